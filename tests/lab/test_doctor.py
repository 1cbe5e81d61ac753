# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""`doctor` on a container lab, over real ssh and sudo: right both ways, all problems at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.labs import ROOT, LabUnderTest
from tests.support.playbook import run_playbook

pytestmark = pytest.mark.containers

DOCTOR = ROOT / "playbooks/doctor.yml"


@pytest.fixture(scope="module")
def ring(make_lab: Callable[..., LabUnderTest]) -> LabUnderTest:
    return make_lab("doctor", "containers", "--bare")


def test_a_healthy_lab_is_ready(ring: LabUnderTest, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    run = run_playbook(DOCTOR, ring.inventory, "-e", f"preflight_report_path={path}")
    run.assert_ok().assert_unchanged()
    assert "Preflight of sparks: spark1..spark4" in run.output
    report = json.loads(path.read_text())
    assert report["summary"]["ready"] and report["summary"]["fail"] == []


def test_every_sick_host_is_told_in_one_run(ring: LabUnderTest, tmp_path: Path) -> None:
    """No GPU, no link in any cage, a sudo that asks, a host that is off: one table, exit code 2."""
    path = tmp_path / "report.json"
    ring.root("spark1", """echo '{"present": false}' > /etc/sparklab-gpu.json""")
    ring.cli("cable", "unplug", "cab0", "cab1")
    ring.cli("stop", "spark4")
    try:
        inventory = json.loads(ring.inventory.read_text())
        inventory["sparks"]["hosts"]["spark3"] = {"ansible_user": "operator"}
        (tmp_path / "inventory.yml").write_text(json.dumps(inventory))
        run = run_playbook(
            DOCTOR, tmp_path / "inventory.yml", "-e", f"preflight_report_path={path}"
        )
    finally:
        ring.root("spark1", "rm /etc/sparklab-gpu.json")
        ring.cli("start", "spark4")
        ring.cli("cable", "plug", "cab0", "cab1")
    assert run.returncode == 2
    assert "Traceback" not in run.output
    failed = {
        (row["check"], row["host"])
        for row in json.loads(path.read_text())["rows"]
        if row["status"] == "fail"
    }
    assert {("gpu", "spark1"), ("sudo", "spark3"), ("reachable", "spark4")} <= failed
    for told in ("FAIL    gpu", "FAIL    sudo", "FAIL    reachable", "not ready"):
        assert told in run.output
