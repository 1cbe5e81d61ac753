# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs of ansible-playbook that hold a cell, with this machine as its head."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.playbook import run_playbook

LOCK = Path("/var/lib/sparkfleet/lock/unit-test-cell.json")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the lock of a cell is root's")


@pytest.fixture
def hold(tmp_path: Path):
    path = tmp_path / "hold.yml"

    def run(*states: str, args: tuple[str, ...] = (), **options: Any):
        tasks = [
            {
                "name": f"Make it {state}",
                "sparkfleet.cluster.cell_lock": {
                    "cell": "unit-test-cell",
                    "state": state,
                    **options,
                },
            }
            if state != "broken"
            else {"name": "Break off", "ansible.builtin.fail": {"msg": "as told"}}
            for state in states
        ]
        play = {"name": "Work", "hosts": "localhost", "gather_facts": False, "tasks": tasks}
        path.write_text(yaml.safe_dump([play]), encoding="utf-8")
        python = ("-e", f"ansible_python_interpreter={sys.executable}")
        return run_playbook(path, "localhost,", "-c", "local", *python, *args)

    yield run
    for leaving in LOCK.parent.glob("unit-test-cell*"):
        leaving.unlink()


def test_a_run_holds_a_cell_and_lets_go(hold, tmp_path):
    hold("held", "held", "released").assert_ok().assert_unchanged()
    found = json.loads(LOCK.read_text())
    assert found["depth"] == 1 and found["playbook"].endswith("hold.yml")
    hold("held", "released").assert_ok()  # the first run is gone without letting go
    assert not LOCK.exists()


def test_a_run_that_broke_off_is_followed_by_the_next_of_its_owner(hold):
    assert hold("held", "broken").returncode != 0
    assert LOCK.exists()
    hold("held", "released").assert_ok()
    assert not LOCK.exists()


def test_somebody_else_is_named_and_can_be_overruled(hold):
    LOCK.parent.mkdir(parents=True, exist_ok=True)
    other = {"owner": "bob@desk", "playbook": "site.yml", "pid": 1, "born": 0, "since": 1.0}
    LOCK.write_text(json.dumps(other))
    run = hold("held")
    assert run.returncode != 0 and "Traceback" not in run.output
    assert "bob@desk works on the cell unit-test-cell since" in run.output
    assert json.loads(LOCK.read_text()) == other
    checked = hold("held", "released", args=("--check",)).assert_ok()
    assert "bob@desk works on" in checked.output
    assert json.loads(LOCK.read_text()) == other
    taken = hold("held", "released", force=True).assert_ok()
    assert "took the cell unit-test-cell from bob@desk: site.yml" in taken.output
    assert not LOCK.exists()


def test_checking_takes_nothing(hold):
    hold("held", "released", args=("--check",)).assert_ok().assert_unchanged()
    assert not LOCK.exists()
