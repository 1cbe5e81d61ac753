# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The record of restarts as a module, and the verdict as it is shown in a playbook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _recovery_node
from ansible_collections.sparkfleet.cluster.plugins.modules import recovery_attempt

from tests.support.playbook import run_playbook
from tests.unit.plugins.module_utils.test_recovery import DIED, cell


class Record:
    """Calls the module on a record below a temporary directory."""

    def __init__(self, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.path = path
        self._capsys = capsys

    def __call__(self, state: str, **arguments: Any) -> dict[str, Any]:
        arguments = {"cell": "sparks", "state": state, **arguments}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            recovery_attempt.main()
        answer: dict[str, Any] = json.loads(self._capsys.readouterr().out)
        return answer


@pytest.fixture
def record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Record:
    path = tmp_path / "recovery/sparks.json"
    monkeypatch.setattr(_recovery_node, "RECORD", str(path))
    return Record(path, capsys)


def test_an_attempt_from_its_begin_to_its_end(record: Record) -> None:
    limits = {"attempts": 1, "window": 60, "cooldown": 60}
    assert record("finished")["changed"] is False  # nothing was begun
    foreseen = record("begun", reasons=["why"], limits=limits, _ansible_check_mode=True)
    assert foreseen["changed"] is True
    assert not record.path.exists()
    record("begun", reasons=["why"], limits=limits)
    kept = json.loads(record.path.read_text())
    assert (kept["total"], kept["pending"]["who"]) == (1, "a playbook")
    assert kept["attempts"][0]["reasons"] == ["why"]
    assert kept["open_until"] > kept["attempts"][0]["at"]
    assert record("finished")["changed"] is True
    assert record("finished")["changed"] is False
    held = record("held", who="site")["record"]
    assert (held["total"], len(held["attempts"]), held["pending"]["who"]) == (1, 1, "site")
    assert record("finished")["changed"] is False  # that is site's
    assert record("finished", who="site")["changed"] is True
    forgotten = record("forgotten")["record"]
    assert (forgotten["attempts"], forgotten["open_until"], forgotten["total"]) == ([], None, 1)
    assert forgotten["pending"]["hold"] is True


def test_a_record_that_cannot_be_kept_is_a_refusal(record: Record) -> None:
    record.path.parent.write_text("no directory")
    answer = record("begun", limits={})
    assert answer["failed"] is True
    assert "nothing is started again without a record" in answer["msg"]


def test_limits_that_are_none_are_refused(record: Record) -> None:
    assert "limits" in record("begun", limits={"tries": 3})["msg"]


def test_the_verdict_is_shown_and_returned(tmp_path: Path) -> None:
    found = {host: {"evidence": one} for host, one in cell(spark2=DIED).items()}
    del found["spark3"]
    task = {
        "sparkfleet.cluster.recovery_report": {
            "cell": "sparks",
            "hosts": ["spark1", "spark2", "spark3"],
            "found": found,
        },
        "register": "verdict",
    }
    told = {"ansible.builtin.debug": {"msg": "{{ verdict.state }} {{ verdict.missing }}"}}
    play = [{"hosts": "localhost", "gather_facts": False, "tasks": [task, told]}]
    playbook = tmp_path / "play.yml"
    playbook.write_text(yaml.safe_dump(play))
    run = run_playbook(playbook, "localhost,").assert_ok().assert_unchanged()
    assert "2     spark3  cannot be reached" in run.output
    assert "waiting ['spark3']" in run.output
