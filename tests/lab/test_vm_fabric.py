# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric playbook over real RDMA, which takes emulated machines minutes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.labs import ROOT, LabUnderTest
from tests.support.playbook import run_playbook

pytestmark = pytest.mark.vm_fabric


def test_the_fabric_is_proven_with_rdma_and_finds_gids_that_moved(
    make_lab: Callable[..., LabUnderTest], tmp_path: Path
) -> None:
    """Gates are near zero: Soft-RoCE on an emulated processor shows that it works, not how fast."""
    ring = make_lab("fabric", "vm", "--bare")
    fabric, report = ROOT / "playbooks/fabric.yml", tmp_path / "fabric"
    gentle = {
        "ansible_python_interpreter": "/usr/bin/python3",
        "roce_fabric_twin_gbps": 0.0001,
        "roce_fabric_both_gbps": 0.0001,
        "roce_fabric_measure_seconds": 2,
        "roce_fabric_measure_grace": 60,
        "roce_fabric_measure_message_size": 4096,
        "roce_fabric_measure_queue_pairs": 1,
        "roce_fabric_rollback_after": 600,
        "roce_fabric_report_path": str(report),
    }
    run_playbook(fabric, ring.inventory, "-e", json.dumps(gentle), timeout=1200).assert_ok()
    verdict = json.loads(report.with_suffix(".json").read_text())["verdict"]
    assert [link["verdict"] for link in verdict["links"]] == ["ok"] * 4
    assert all(link["gbps"] > 0 for link in verdict["links"])
    assert ring.reaches("spark1", "10.20.4.13", 8972)  # the diagonal, through a neighbour
    ring.cli("gid-shift", "spark2", "rocep1s0f0")
    boot = "cat /proc/sys/kernel/random/boot_id"
    before = ring.root("spark3", boot)
    ring.root("spark3", "systemctl reboot", check=False)
    deadline = time.monotonic() + 300
    while ring.root("spark3", boot, check=False) in ("", before):
        assert time.monotonic() < deadline
        time.sleep(2)
    gentle |= {"roce_fabric_state": "checked", "roce_fabric_measure": "never"}
    run_playbook(fabric, ring.inventory, "-e", json.dumps(gentle), timeout=1200).assert_ok()
