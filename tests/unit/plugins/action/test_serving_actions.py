# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Planning, waiting and refusing in real plays, on hosts that are this machine."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.playbook import Run, run_playbook
from tests.unit import ranks


class Play:
    """Some tasks on two hosts that are this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, tasks: list[dict[str, Any]], *words: str, size: int = 2, **more: Any) -> Run:
        hosts: dict[str, Any] = {f"spark{number}": {} for number in range(1, size + 1)}
        variables = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            **more,
        }
        inventory = self.folder / "inventory.yml"
        inventory.write_text(yaml.safe_dump({"sparks": {"hosts": hosts, "vars": variables}}))
        playbook = self.folder / "play.yml"
        play = {
            "name": "Try",
            "hosts": "sparks",
            "gather_facts": False,
            "roles": ["sparkfleet.cluster.spark"],
            "tasks": tasks,
        }
        playbook.write_text(yaml.safe_dump([play]))
        return run_playbook(playbook, inventory, *words)


@pytest.fixture
def play(tmp_path: Path) -> Play:
    return Play(tmp_path)


GUARD = {"sparkfleet.cluster.serving_guard": None, "run_once": True, "register": "planned"}


def test_a_plan_is_made_once_for_all_hosts(play):
    show = {"ansible.builtin.debug": {"msg": "{{ planned.plan.profile }}"}}
    run = play.run([GUARD, show], size=4).assert_ok()
    assert run.output.count("dsv41-tp4-ring") == 4


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"spark_profile": "dsv41-tp44"}, ["dsv41-tp44", "did you mean dsv41-tp4"]),
        ({"spark_settings": {"max_total_token": 1, "env": 3}}, ["max_total_tokens", "env is 3"]),
        ({"spark_topology": "switch", "spark_profile": "dsv41-tp4-ring"}, ["choose dsv41-tp4"]),
    ],
)
def test_a_plan_that_cannot_work_is_refused_in_plain_words(play, variables, words):
    run = play.run([GUARD], size=4, **variables)
    (note,) = run.failed
    for word in words:
        assert word in note.message
    assert not note.message.startswith(("Task failed", "Finalization"))
    assert "Traceback" not in run.output


def wait(hosts: int, **more: Any) -> dict[str, Any]:
    own = ranks.settings()
    settings = "{{ own | combine({'head': inventory_hostname == 'spark1'}) }}"
    return {
        "sparkfleet.cluster.sglang_wait": {
            "settings": settings,
            "cell": "sparks",
            "hosts": [f"spark{number}" for number in range(1, hosts + 1)],
            "served_name": "m",
            "interval": 0.1,
            **more,
        },
        "vars": {"own": {**own, "cell": "no-such-cell"}},
    }


def test_ranks_that_do_not_run_end_the_wait_on_all_hosts(play):
    run = play.run([wait(2)])
    assert run.returncode == 2
    assert {note.host for note in run.failed} == {"spark1", "spark2"}
    assert all("does not run" in note.message for note in run.failed)
    assert "Traceback" not in run.output


def test_check_mode_looks_once(play):
    play.run([wait(2)], "--check").assert_ok()


def test_a_wait_needs_a_turn_for_every_host_or_goes_on_without(play):
    """With one process after the other the first must not wait for those that never come."""
    run = play.run([wait(3)], "--forks", "1", size=3)
    assert run.returncode == 2
    assert len(run.failed) == 3


def test_what_is_not_settings_is_told(play):
    run = play.run(
        [
            {
                "ansible.builtin.debug": {
                    "msg": "{{ {'hosts': {'a': {}}} | sparkfleet.cluster.rank_settings(fabric={},"
                    " tables=[], rendezvous_port=1) }}"
                }
            }
        ]
    )
    assert "are not what serving_plan and fabric_plan return" in run.output
    assert "Traceback" not in run.output


def test_a_verdict_needs_results_of_the_module(play):
    run = play.run(
        [{"ansible.builtin.debug": {"msg": "{{ {'a': 1} | sparkfleet.cluster.rank_verdict({}) }}"}}]
    )
    assert "these are not results of sglang_rank_info" in run.output


def test_modules_take_settings_as_they_are_planned(play, tmp_path):
    """Stopping a rank that was never there changes nothing and needs no plan."""
    stop = {
        "sparkfleet.cluster.sglang_rank": {"settings": {"cell": "nobody"}, "state": "stopped"},
        "register": "stopped",
    }
    run = play.run([stop, {"ansible.builtin.debug": {"var": "stopped.actions"}}])
    run.assert_ok().assert_unchanged()
    assert json.dumps([]) in run.output
