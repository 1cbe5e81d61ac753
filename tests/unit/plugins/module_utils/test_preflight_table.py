"""The table people read: one golden example, and what holds for every table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_checks import (
    evaluate,
    summarise,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_model import Settings
from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_table import (
    WIDTH,
    failures,
    render,
)

from tests.unit.conftest import GIB, HOSTS
from tests.unit.sysfs import FIXTURES

SETTINGS = Settings(
    rdma_netdevs=["enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1"],
    pcie_width=4,
    pcie_speed=32,
    memory_total_gib=115,
    memory_available_gib=100,
    swap_max_gib=16,
    images_gib=40,
    clock_skew=5,
    skip=["numpy"],
)
Results = dict[str, dict[str, Any]]


def spoil(cell: Results) -> list[Mapping[str, str]]:
    """Break one thing of every kind."""
    cell["spark3"] = {
        "probe": None,
        "problems": [{"check": "reachable", "found": "it does not answer", "fix": "check power"}],
    }
    cell["spark2"]["probe"]["gpu"]["driver"] = "580.142"
    for path in cell["spark1"]["probe"]["paths"]:
        path["filesystem"]["free"] = 212 * GIB
    for device in cell["spark4"]["probe"]["rdma"]["devices"]:
        device["fw_ver"] = None
    for host in ("spark1", "spark2"):
        cell[host]["probe"]["memory"]["swap_total"] = 32 * GIB
        cell[host]["probe"]["system"]["machine_id"] = "f" * 32
    return list(evaluate(cell, HOSTS, SETTINGS))


def test_a_table(healthy_cell: Results) -> None:
    rows = spoil(healthy_cell)
    text = "\n".join(line.text for line in render(rows, summarise(rows), "sparks")) + "\n"
    assert text == (FIXTURES / "preflight-table.txt").read_text(encoding="utf-8")


def test_every_line_fits_and_is_plain(healthy_cell: Results) -> None:
    rows = spoil(healthy_cell)
    lines = render(rows, summarise(rows), "sparks")
    assert max(len(line.text) for line in lines) <= WIDTH
    assert all(line.text.isascii() and line.text == line.text.rstrip() for line in lines)


def test_every_check_and_every_remedy_is_in_the_table(healthy_cell: Results) -> None:
    rows = spoil(healthy_cell)
    lines = render(rows, summarise(rows), "sparks")
    shown = {line.text.split()[1] for line in lines if line.status and line.text[:8].strip()}
    assert {row["check"] for row in rows} <= shown
    text = " ".join(word for line in lines for word in line.text.split())
    for row in rows:
        assert row["fix"] in text


def test_failures_name_their_hosts(healthy_cell: Results) -> None:
    assert failures(spoil(healthy_cell)) == (
        "reachable on spark3; driver on spark2; driver_match on spark2; disk on spark1"
    )


def test_a_healthy_cell_is_ready(healthy_cell: Results) -> None:
    rows = evaluate(healthy_cell, HOSTS, SETTINGS)
    *_table, count, verdict = render(rows, summarise(rows), "sparks")
    assert count.text == "33 checks on 4 hosts: 32 passed, 1 skipped."
    assert (verdict.status, verdict.text) == ("ok", "Ready.")
