# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What benchmarks make of what they noted, and that the times come from a real run."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from benchmarks.machine import bars, machine
from benchmarks.no_change import missed, shares
from benchmarks.packing import BARS
from benchmarks.packing import missed as missed_by_packing
from tests.support.playbook import ROOT, run_playbook


def test_a_stage_lasts_until_the_next_and_the_last_until_the_end() -> None:
    stages = [["Check", 0.5], ["Serve", 2.0], ["Check", 5.0]]
    assert shares({"stages": stages, "seconds": 9.0}) == {"Check": 5.5, "Serve": 3.0}


def test_the_callback_notes_stages_tasks_and_results(tmp_path: Path) -> None:
    told = tmp_path / "stages.json"
    tasks = [{"name": "Wait", "ansible.builtin.command": "sleep 0.3", "changed_when": True}]
    play = {"name": "One", "hosts": "localhost", "gather_facts": False, "tasks": tasks}
    play["vars"] = {"ansible_python_interpreter": sys.executable}
    (tmp_path / "play.yml").write_text(json.dumps([play]), encoding="utf-8")
    env = {
        "ANSIBLE_CALLBACK_PLUGINS": str(ROOT / "benchmarks/callback_plugins"),
        "ANSIBLE_CALLBACKS_ENABLED": "stages",
        "SPARKFLEET_STAGES": str(told),
    }
    run = run_playbook(tmp_path / "play.yml", "localhost,", "-c", "local", env=env)
    assert run.returncode == 0, run.output
    found = json.loads(told.read_text(encoding="utf-8"))
    assert [name for name, _begun in found["stages"]] == ["One"]
    assert found["ended"]["Wait"] >= found["stages"][0][1] + 0.3
    assert found["tasks"] == 1
    assert found["hosts"]["localhost"]["changed"] == 1


def test_a_picture_has_a_bar_for_each_row_and_the_machine_is_told(tmp_path: Path) -> None:
    bars("Bars", [("one", 1.0, "1 s"), ("<two>", 0.0, "0 s")], tmp_path / "bars.svg")
    text = (tmp_path / "bars.svg").read_text(encoding="utf-8")
    assert text.count("<rect") == 3  # with the ground
    assert "<two>" not in text
    assert {"cpu", "cpus", "memory_gib", "kernel", "python", "load", "when"} <= set(machine())


def test_a_missed_bar_of_a_run_is_told_with_its_cell() -> None:
    good = {"changed": 0, "multiple": 14.9, "after_ready_seconds": 19.0}
    slow = {"changed": 2, "multiple": 15.1, "after_ready_seconds": 20.5}
    assert missed({"ring-4": good, "switch-8": {**slow, "changed": 0}}) == []
    assert missed({"ring-4": slow}) == [
        "ring-4: 2 tasks changed something",
        "ring-4: 15.1 times setup, bar 15",
        "ring-4: 20.5 s after ready, bar 20 s",
    ]


def test_a_missed_bar_of_packing_is_told() -> None:
    assert missed_by_packing(BARS) == []
    assert missed_by_packing({**BARS, "to_dd": 1.25}) == ["to_dd is 1.25, bar 1.0"]
