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
    LOCK.unlink(missing_ok=True)


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


def test_anybody_on_this_controller_follows_a_run_that_is_gone(hold):
    hold("held", "broken")
    found = json.loads(LOCK.read_text())
    for place, code in (("elsewhere", 2), (found["place"], 0)):
        LOCK.write_text(json.dumps({**found, "owner": "bob@desk", "place": place}))
        assert hold("held", "released").returncode == code
    assert not LOCK.exists()


def test_a_head_that_cannot_be_asked_or_written_keeps_nobody_from_mending_that(hold):
    LOCK.parent.parent.mkdir(parents=True, exist_ok=True)
    LOCK.parent.write_text("no directory")
    try:
        run = hold("held", "released").assert_ok()
    finally:
        LOCK.parent.unlink()
    assert (
        "the cell unit-test-cell is not held: /var/lib/sparkfleet/lock: File exists" in run.output
    )
    run = hold("held", "released", args=("-e", "ansible_python_interpreter=/nowhere")).assert_ok()
    assert "the cell unit-test-cell is not held: " in run.output and "/nowhere" in run.output
    away = (
        "-e",
        "ansible_connection=ssh",
        "-e",
        "ansible_host=192.0.2.1",
        "-e",
        "ansible_timeout=1",
    )
    run = hold("held", args=away).assert_ok()
    assert "is not held: " in run.output and "192.0.2.1" in run.output


def test_checking_takes_nothing(hold):
    hold("held", "released", args=("--check",)).assert_ok().assert_unchanged()
    assert not LOCK.exists()
