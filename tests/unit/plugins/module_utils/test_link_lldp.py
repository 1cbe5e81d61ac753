"""What lldpctl prints, in all its shapes; the two files were captured from one lldpd 1.0.18."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    Command,
    Missing,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_lldp import (
    ask_lldpd,
    read_neighbours,
)

CAPTURES = Path(__file__).parents[2] / "fixtures" / "link"
ONE = {
    "chassis": {"spark2": {"id": {"type": "mac", "value": "02:00:00:00:02:00"}}},
    "port": {"id": {"type": "mac", "value": "02:00:00:00:02:01"}},
}


def neighbours(text: str) -> list[dict[str, Any]]:
    found = read_neighbours(text)
    assert not isinstance(found, Missing)
    return found


@pytest.mark.parametrize("name", ["lldp-json0", "lldp-json"])
def test_captures(name: str) -> None:
    """Two ports of one cage: each hears its own twin, and both twins of the far cage."""
    found = neighbours((CAPTURES / f"{name}.json").read_text(encoding="utf-8"))
    assert [(entry["netdev"], entry["chassis_name"], entry["mac"]) for entry in found] == [
        ("enp1s0f0np0", "spark1", "52:54:00:03:01:11"),
        ("enp1s0f0np0", "spark2", "52:54:00:03:02:20"),
        ("enp1s0f0np0", "spark2", "52:54:00:03:02:21"),
        ("enP2p1s0f0np0", "spark1", "52:54:00:03:01:10"),
        ("enP2p1s0f0np0", "spark2", "52:54:00:03:02:20"),
        ("enP2p1s0f0np0", "spark2", "52:54:00:03:02:21"),
    ]
    assert found[1] == {
        "netdev": "enp1s0f0np0",
        "chassis_name": "spark2",
        "chassis_id": "52:54:00:03:02:00",
        "chassis_description": found[0]["chassis_description"],
        "port_id": "52:54:00:03:02:20",
        "port_description": "enp1s0f1np1",
        "mac": "52:54:00:03:02:20",
        "age_seconds": 9,
    }


@pytest.mark.parametrize(
    ("lldp", "netdevs"),
    [
        ({}, []),
        ([{}], []),
        ({"interface": {"enp1s0f0np0": ONE}}, ["enp1s0f0np0"]),
        ({"interface": [{"a": ONE}, {"b": ONE}]}, ["a", "b"]),
        ({"interface": {"a": {**ONE, "chassis": {"id": {"type": "local", "value": "x"}}}}}, ["a"]),
        ({"interface": {"a": {"port": {}}}}, ["a"]),
    ],
)
def test_shapes(lldp: Any, netdevs: list[str]) -> None:
    found = neighbours(json.dumps({"lldp": lldp}))
    assert [entry["netdev"] for entry in found] == netdevs


@pytest.mark.parametrize(
    ("interface", "key", "value"),
    [
        (ONE, "chassis_name", "spark2"),
        ({**ONE, "port": {"id": {"type": "ifname", "value": "sfp-7"}}}, "mac", None),
        ({**ONE, "port": {"id": {"type": "ifname", "value": "sfp-7"}}}, "port_id", "sfp-7"),
        ({**ONE, "age": "1 day, 02:03:04"}, "age_seconds", 93784),
        ({**ONE, "age": "soon"}, "age_seconds", None),
        ({**ONE, "chassis": {"id": {"type": "local", "value": "x"}}}, "chassis_name", None),
    ],
)
def test_details(interface: Any, key: str, value: Any) -> None:
    text = json.dumps({"lldp": {"interface": {"enp1s0f0np0": interface}}})
    (found,) = neighbours(text)
    assert found[key] == value


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (Command(NOT_FOUND, "", "x"), "lldpctl is not installed"),
        (Command(1, "", "[WARN] unable to connect"), "[WARN] unable to connect"),
        (Command(None, "", "lldpctl did not answer"), "lldpctl did not answer"),
        (Command(0, "", ""), "lldpctl printed something else than neighbours"),
        (Command(0, "[]", ""), "lldpctl printed something else than neighbours"),
        (Command(0, '{"lldp": 3}', ""), "lldpctl printed something else than neighbours"),
    ],
)
def test_no_neighbours_with_a_reason(answer: Command, reason: str) -> None:
    assert ask_lldpd(lambda _argv: answer) == Missing(reason)
