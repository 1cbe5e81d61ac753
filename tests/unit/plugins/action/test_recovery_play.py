# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The playbooks recover and reset on machines that are no nodes, one of which cannot be reached."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.playbook import ROOT
from tests.unit.plugins.action.test_playbooks import Cell

RECOVER = ROOT / "playbooks/recover.yml"
RESET = ROOT / "playbooks/reset.yml"
AWAY = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}


@pytest.mark.parametrize("away", ["spark1", "spark2"])
def test_a_host_that_is_away_is_a_finding(tmp_path: Path, away: str) -> None:
    ring = Cell(tmp_path, size=4)
    ring.hosts[away].update(AWAY)
    ring.group = f"without_{away}"  # a cell each, since a run holds it
    run = ring.run(RECOVER, "-e", f"spark_group={ring.group}")
    assert run.returncode != 0
    refusal = run.failed[-1].message
    assert f"{away} cannot be reached" in refusal, run.output
    assert f"The cell {ring.group} is not started again." in refusal
    assert not Path(f"/var/lib/sparkfleet/lock/{ring.group}.json").exists(), "it lets go"


def test_nothing_is_removed_that_nobody_confirmed(tmp_path: Path) -> None:
    message = Cell(tmp_path, size=4).refused(RESET)
    assert "Nothing is removed yet" in message
    assert "-e reset_confirmed=true" in message


@pytest.mark.parametrize("name", ["spark_checkpoint_dir", "spark_engram_dir"])
def test_weights_are_not_removed_by_the_way(tmp_path: Path, name: str) -> None:
    cell = Cell(tmp_path, size=4)
    cell.vars[name] = "/var/lib/sparkfleet/model"
    run = cell.run(RESET, "--check")
    assert run.returncode != 0
    assert "found inside of what is removed" in run.failed[0].message
