"""Every reason there is for refusing a plan, word by word; the cases are in fabric_refusals.yml."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import PlanError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_plan import fabric_plan

from tests.unit.fabrics import names, plan

CASES = yaml.safe_load(Path(__file__).with_name("fabric_refusals.yml").read_text(encoding="utf-8"))


def refused(hosts: Any = 4, topology: Any = "ring", **options: Any) -> PlanError:
    with pytest.raises(PlanError) as caught:
        fabric_plan(names(hosts) if isinstance(hosts, int) else hosts, topology, **options)
    return caught.value


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["problems"][-1][:60])
def test_refuses(case):
    given = {name: value for name, value in case.items() if name != "problems"}
    assert refused(**given).problems == case["problems"]


def test_one_problem_is_a_sentence_and_several_are_a_list():
    assert str(refused(mtu=1)) == "mtu is 1, expected a number from 1280 to 9216."
    assert str(refused(mtu=1, twins="x")) == (
        "2 problems:\n"
        "- twins is 'x', expected both or first.\n"
        "- mtu is 1, expected a number from 1280 to 9216."
    )


@pytest.mark.parametrize(
    ("options", "address"),
    [
        ({"prefix_length": 25, "nccl_prefix_length": 25}, "10.20.0.11"),
        ({"prefix_length": 20, "nccl_prefix_length": 24, "pool": "10.0.0.0/8"}, "10.0.0.11"),
        ({"twins": "first", "nccl_prefix_length": 23}, "10.20.0.11"),
        ({"pool": "172.16.0.0/16"}, "172.16.0.11"),
        ({"pool": "172.17.0.0/16", "reserved_networks": {"Docker": []}}, "172.17.0.11"),
        ({"pool": "172.17.0.0/16", "reserved_networks": []}, "172.17.0.11"),
        ({"nccl": "skip-tree-pat", "twins": "first"}, "10.20.0.11"),
        ({"management_networks": ["10.21.0.0/16", "fe80::/10"]}, "10.20.0.11"),
    ],
)
def test_accepts_what_only_looks_like_these(options, address):
    assert plan(4, **options)["fabric"]["head_address"] == address


def test_a_triangle_may_have_any_nccl():
    for nccl in ("stock", "switchless-cycle", "skip-tree-pat", "dual-pci-domain"):
        plan(3, "triangle", nccl=nccl)


def test_ends_need_no_quotes_where_hosts_have_names():
    cables = yaml.safe_load("[[spark1:0, spark2:1], [spark2:0, spark3:1], [spark3:0, spark1:1]]")
    assert plan(3, cabling=cables)["hosts"] == plan(3)["hosts"]
