"""What the unit tests share: machines made of files, and cells made of machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    Command,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_probe import (
    Machine,
    probe,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._tree import Tree

from tests.unit.sysfs import build, fixture

MakeMachine = Callable[..., Machine]
GIB = 2**30
HOSTS = ("spark1", "spark2", "spark3", "spark4")


def _runner(answers: Mapping[str, Any]) -> Callable[[Sequence[str]], Command]:
    """Answer commands by the words their line starts with; the program's directory is left out."""

    def run(argv: Sequence[str]) -> Command:
        line = " ".join([Path(argv[0]).name, *argv[1:]])
        for words, answer in answers.items():
            if line.startswith(words):
                if isinstance(answer, str):
                    return Command(0, answer, "")
                return Command(answer["rc"], answer.get("out", ""), answer.get("err", ""))
        return Command(NOT_FOUND, "", f"{argv[0]}: command not found")

    return run


def _machine(root: Path, loaded: Mapping[str, Any]) -> Machine:
    names: Mapping[str, list[str]] = loaded["names"]
    return Machine(
        tree=Tree(str(build(root, loaded["files"]))),
        run=_runner(loaded["commands"]),
        resolve=lambda host: names[host],
        arch=loaded["arch"],
        python="/usr/bin/python3",
        euid=loaded.get("euid", 0),
    )


@pytest.fixture
def make_machine(tmp_path: Path) -> MakeMachine:
    """Make a machine from a fixture and changes to it; see ``fixture`` for their form."""

    def make(changes: Mapping[str, Any] | None = None, name: str = "spark") -> Machine:
        return _machine(tmp_path, fixture(name, changes))

    return make


@pytest.fixture(scope="session")
def _healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    machine = _machine(tmp_path_factory.mktemp("spark"), fixture("spark"))
    return probe(machine, paths=["/srv/checkpoint", "/srv/engram"], names=HOSTS, ports=[8000, 2049])


@pytest.fixture
def healthy_cell(_healthy: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Results of preflight_info for four healthy Sparks, as text that went over the wire."""
    cell = {}
    for number, host in enumerate(HOSTS, start=1):
        read = json.loads(json.dumps(_healthy))
        read["python"]["version"] = "3.12.3"
        read["system"]["hostname"] = host
        read["system"]["machine_id"] = f"{number:032x}"
        read["names"] = [entry for entry in read["names"] if entry["name"] in HOSTS]
        for port in read["network"]["interfaces"]:
            if port["name"] != "lo":
                port["mac"] = port["mac"][:-2] + f"{number}{port['mac'][-1]}"
            port["addresses"] = [
                address.replace("192.0.2.11", f"192.0.2.1{number}") for address in port["addresses"]
            ]
        for entry in read["paths"]:
            entry["filesystem"] = _filesystem()
        cell[host] = {
            "probe": read,
            "wanted": {
                "management_interface": "enP7s7",
                "disk": [
                    {"purpose": "weights", "path": "/srv/checkpoint", "gib": 500, "where": "head"},
                    {"purpose": "Engram", "path": "/srv/engram", "gib": 200, "where": "split"},
                ],
                "ports": [{"port": 8000, "purpose": "API"}, {"port": 2049, "purpose": "NFS"}],
                "names": list(HOSTS),
            },
            "clock": {"before": 1000.0, "start": 1000.6, "end": 1001.0, "after": 1001.1},
            "problems": [],
        }
    return cell


def _filesystem() -> dict[str, Any]:
    """A roomy disk; what the machine of the tests has is none of the tests' business."""
    return {
        "nearest": "/srv",
        "mount_point": "/srv",
        "fstype": "ext4",
        "source": "/dev/nvme0n1p2",
        "device": 1,
        "free": 3000 * GIB,
        "size": 3700 * GIB,
        "read_only": False,
        "used": 0,
        "used_complete": True,
        "why": {},
    }
