"""The module around the choice of GIDs: its parameters, its ways to end, its documentation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.sparkfleet.cluster.plugins.module_utils._roce_gid import ADVICE
from ansible_collections.sparkfleet.cluster.plugins.modules import roce_gid_info

from tests.support.playbook import run_playbook
from tests.unit.sysfs import build, fixture

NO_ADDRESS = {
    "sys/class/infiniband/rocep1s0f0/ports/1/gid_table": "enp1s0f0np0: 0 LL v1, 1 LL v2",
}


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    return build(tmp_path, fixture("gid/spark")) / "sys"


@pytest.fixture
def sysfs_without_address(tmp_path: Path) -> Path:
    return build(tmp_path, fixture("gid/spark", NO_ADDRESS)) / "sys"


def call(capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit) as ended:
        roce_gid_info.main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert bool(ended.value.code) == bool(answer.get("failed"))
    return answer


@pytest.mark.parametrize("check", [False, True])
def test_a_healthy_node(sysfs: Path, capsys: pytest.CaptureFixture[str], check: bool) -> None:
    answer = call(
        capsys,
        sysfs=str(sysfs),
        hcas="=rocep1s0f0,roceP2p1s0f0",
        expected=[{"hca": "rocep1s0f0", "subnet": "10.20.0.0/24"}],
        _ansible_check_mode=check,
    )
    assert answer["changed"] is False
    assert answer["nccl_env"]["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0"
    assert answer["problems"] == []


def test_a_port_without_a_gid_is_data(
    sysfs_without_address: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = call(capsys, sysfs=str(sysfs_without_address))
    assert "failed" not in answer
    assert [problem["code"] for problem in answer["problems"]] == ["no-ipv4"]
    assert answer["nccl_env"] == {}


def test_a_port_without_a_gid_fails_when_it_is_required(
    sysfs_without_address: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = call(capsys, sysfs=str(sysfs_without_address), required=True)
    assert answer["msg"].startswith(
        "rocep1s0f0 port 1: no-ipv4: found no IPv4 address in the table"
    )
    assert len(answer["devices"]) == 4


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"hcas": "=a,=b"}, "stand once"),
        ({"hcas": {"a": 1}}, "neither text nor a list"),
        ({"hcas": []}, "one HCA name or more"),
        ({"expected": [{"subnet": "10.0.0.0/24"}]}, "missing required arguments: hca"),
        ({"expected": [{"hca": "a", "subnet": "x"}]}, "subnet of a is 'x'"),
        ({"policy": "verify"}, "policy is verify but all of the following are missing: index"),
        ({"policy": "pin", "index": 3}, "leave it out"),
        ({"policy": "guess"}, "must be one of: auto, pin, verify"),
        ({"index": ""}, "index"),
    ],
    ids=str,
)
def test_bad_parameters(
    capsys: pytest.CaptureFixture[str], arguments: Mapping[str, Any], says: str
) -> None:
    answer = call(capsys, sysfs="/nowhere", **arguments)
    assert says in answer["msg"]
    assert "exception" not in answer


def test_every_code_is_documented() -> None:
    returned = yaml.safe_load(roce_gid_info.RETURN)
    text = " ".join(returned["problems"]["contains"]["code"]["description"])
    assert set(re.findall(r"V\(([^)]*)\)", text)) == set(ADVICE)


def test_every_value_is_documented(sysfs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = call(capsys, sysfs=str(sysfs))
    returned = yaml.safe_load(roce_gid_info.RETURN)
    assert answer.keys() - {"changed", "invocation"} == returned.keys()
    port = answer["devices"][0]
    told = returned["devices"]["contains"]
    assert list(port) == list(told)
    for name in ("pcie", "gids"):
        value = port[name][0] if name == "gids" else port[name]
        assert list(value) == list(told[name]["contains"])
    for name, value in port.items():
        if "sample" in told[name] and not isinstance(value, (dict, list)):
            assert value == told[name]["sample"], name


PLAY = """
- name: The examples of the documentation
  hosts: localhost
  connection: local
  gather_facts: false
  vars:
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
  module_defaults:
    sparkfleet.cluster.roce_gid_info:
      sysfs: SYSFS
  tasks: []
"""


def test_the_examples_work(sysfs: Path, tmp_path: Path) -> None:
    """As a user types them, through Ansible; only the file's place is another."""
    target = tmp_path / "engine.env"
    play = yaml.safe_load(PLAY.replace("SYSFS", str(sysfs)))
    examples = roce_gid_info.EXAMPLES.replace("/etc/my-engine.env", str(target))
    play[0]["tasks"] = yaml.safe_load(examples)
    playbook = tmp_path / "examples.yml"
    playbook.write_text(yaml.safe_dump(play, sort_keys=False), encoding="utf-8")
    run = run_playbook(playbook, "localhost,").assert_ok()
    assert [note.action for note in run.changed] == ["ansible.builtin.copy"]
    assert target.read_text(encoding="utf-8") == (
        "NCCL_IB_HCA==rocep1s0f0,roceP2p1s0f0\n"
        "NCCL_IB_ADDR_FAMILY=AF_INET\n"
        "NCCL_IB_ROCE_VERSION_NUM=2\n"
        "NCCL_IB_ADDR_RANGE=10.20.0.0/23\n"
    )
