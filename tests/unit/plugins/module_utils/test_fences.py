"""Who reaches which port of a cell, as nftables itself judges the table."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.filter.fences_ruleset import fences_ruleset
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_plan import fabric_plan
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fences import (
    Fence,
    FencesError,
    cell_fences,
    mark,
    ruleset,
)

PLAN = fabric_plan(["spark1", "spark2", "spark3", "spark4"], "ring")
PORTS = {"engine": 8888, "rendezvous": 20000, "nfs": 2049, "exporter": 9100, "api": 8000}


def of(host: str, **more: Any) -> dict[str, Fence]:
    return {fence.use: fence for fence in cell_fences(PLAN, host, ports=PORTS, **more)}


def test_only_the_head_has_what_the_cell_meets_at() -> None:
    assert set(of("spark1")) == {"engine", "rendezvous", "nfs", "metrics"}
    assert set(of("spark3")) == {"engine", "metrics"}


def test_the_engine_is_for_its_host_alone() -> None:
    assert of("spark1")["engine"] == (8888, "engine", ())
    text = ruleset([of("spark1")["engine"]])
    assert re.findall(r"tcp dport 8888 (?:\w+ saddr .*)?accept", text) == []


def test_every_rank_reaches_the_rendezvous_and_each_client_the_share() -> None:
    fences = of("spark1")
    addresses = {port["address"] for host in PLAN["hosts"].values() for port in host["ports"]}
    assert set(fences["rendezvous"].sources) == addresses
    assert fences["nfs"].sources == ["10.20.0.12", "10.20.2.13", "10.20.6.14"]


def test_the_entry_is_fenced_only_when_asked() -> None:
    assert "entry" not in of("spark1")
    assert of("spark1", clients=["192.0.2.9"])["entry"].sources == ["192.0.2.9"]


def test_a_port_of_zero_is_left_alone() -> None:
    found = cell_fences(PLAN, "spark2", ports={**PORTS, "exporter": 0})
    assert [fence.use for fence in found] == ["engine"]


@pytest.mark.parametrize(
    ("fences", "told"),
    [
        ([Fence(22, "engine", ())], "port 22 is that of ssh and not fenced"),
        ([Fence(2222, "nfs", ())], "port 2222 is that of ssh"),
        ([Fence(9, "a", ()), Fence(9, "b", ())], "port 9 is that of a and of b"),
        ([Fence(70000, "nfs", ())], "the port of nfs is 70000"),
        ([Fence(9, "nfs", ["spark1"])], "'spark1' may reach nfs, expected an address"),
    ],
)
def test_refusals(fences: Sequence[Fence], told: str) -> None:
    with pytest.raises(FencesError, match=re.escape(told)):
        ruleset(fences, {22, 2222})


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(FencesError) as caught:
        ruleset([Fence(22, "nfs", ["x", "y"])])
    assert len(str(caught.value).splitlines()) == 3


def test_the_mark_follows_the_rules() -> None:
    one, two = ruleset([Fence(9, "a", ["10.0.0.1"])]), ruleset([Fence(9, "a", ["10.0.0.2"])])
    assert mark(one) != mark(two)
    assert mark(one).startswith("sparkfleet fences ")


def test_the_filter_refuses_with_sentences() -> None:
    made = fences_ruleset(PLAN, "spark1", PORTS, monitoring=["192.0.2.12"])
    assert "192.0.2.12" in made["text"]
    assert made["mark"] in made["text"]
    with pytest.raises(AnsibleTemplatePluginError, match="is that of ssh"):
        fences_ruleset(PLAN, "spark1", {**PORTS, "nfs": 2200}, ssh_port=2200)
    with pytest.raises(AnsibleTemplatePluginError, match="not what fabric_plan returns"):
        fences_ruleset({}, "spark1", PORTS)
    with pytest.raises(AnsibleTemplatePluginError, match="KeyError 'nfs'"):
        fences_ruleset(PLAN, "spark1", {"engine": 1, "rendezvous": 2})


@pytest.mark.skipif(
    not (shutil.which("nft") and shutil.which("unshare")), reason="needs nft and unshare"
)
def test_nftables_reads_the_table_twice_over(tmp_path: Path) -> None:
    fences = cell_fences(
        PLAN,
        "spark1",
        ports=PORTS,
        monitoring=["192.0.2.0/24", "192.0.2.7", "2001:db8::/64"],
        clients=["198.51.100.1"],
    )
    text = ruleset(fences)
    place = tmp_path / "fences.nft"
    place.write_text(text, encoding="utf-8")
    script = 'nft -f "$1" && nft -f "$1" && nft list ruleset'
    done = subprocess.run(
        ["unshare", "--net", "--map-root-user", "sh", "-c", script, "sh", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    assert mark(text) in done.stdout
    assert done.stdout.count("reject with tcp reset") == 5
