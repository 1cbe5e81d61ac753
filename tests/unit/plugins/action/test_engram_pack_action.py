# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Watching a packing from the controller: what is shown, and connections that get lost."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.sparkfleet.cluster.plugins.action import engram_pack

TOLD = {
    "phase": "packing",
    "layer": 1,
    "bytes_total": 50 * 2**30,
    "bytes_done": 21 * 2**30,
    "bytes_resumed": 10 * 2**30,
    "rate": 512 * 2**20,
    "seconds": 81.0,
    "seconds_left": 58,
    "notes": [],
}


def running(**more: Any) -> dict[str, Any]:
    return {"changed": False, "running": True, "progress": {**TOLD, **more}}


DONE = {"changed": False, "running": False, "progress": {**TOLD, "phase": "done"}}


class Watched(engram_pack.ActionModule):
    """An action whose node answers what it is told to."""

    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.asked = 0

    def _ask(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        self.asked += 1
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return dict(answer)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time passes by a second whenever it is looked at."""
    now = [0.0]

    def tick() -> float:
        now[0] += 1.0
        return now[0]

    monkeypatch.setattr(engram_pack.time, "monotonic", tick)  # type: ignore[attr-defined]
    monkeypatch.setattr(engram_pack.time, "sleep", lambda seconds: None)  # type: ignore[attr-defined]
    return now


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(engram_pack.display, "display", lines.append)
    return lines


def watch(answers: list[Any], **arguments: Any) -> tuple[dict[str, Any], Watched]:
    action = Watched(answers)
    return action._watch(arguments, {}, "spark2"), action


def test_progress_is_shown_at_a_calm_pace(clock: list[float], shown: list[str]) -> None:
    found, _action = watch([*[running()] * 40, DONE])
    assert found["progress"]["phase"] == "done"
    assert shown[0] == ("[spark2] packing Engram layer 1: 42 % of 50 GiB, 512 MiB/s, 0:58 left")
    assert shown[-1] == ("[spark2] Engram rows done: 40 GiB (10 GiB were there) in 1:21, 512 MiB/s")
    assert 2 <= len(shown) <= 5


def test_at_the_start_nothing_is_known_yet() -> None:
    told = {**TOLD, "layer": None, "bytes_done": 0, "rate": 0.0, "seconds_left": None}
    assert engram_pack.line_of(told) == "packing Engram rows: 0 % of 50 GiB"


def test_a_lost_connection_is_borne_with(clock: list[float], shown: list[str]) -> None:
    lost = AnsibleConnectionFailure("mux_client_request_session: Broken pipe")
    found, action = watch([running(), lost, lost, running(), lost, DONE])
    assert not found.get("failed")
    assert action.asked == 6


def test_a_node_that_stays_away_is_given_up_but_not_its_work(
    clock: list[float], shown: list[str]
) -> None:
    lost = AnsibleConnectionFailure("no route to host")
    found, _action = watch([running(), lost], patience=20)
    assert found["failed"] is True
    assert "for 20 s spark2 cannot be reached: no route to host" in found["msg"]
    assert "run again to watch it" in found["msg"]


def test_a_server_that_restarts_is_waited_for(clock: list[float], shown: list[str]) -> None:
    away = {"running": True, "progress": {}, "silent": "/data/checkpoint: no answer within 60 s"}
    found, _action = watch([running(), *[away] * 30, running(), DONE])
    assert not found.get("failed")
    waits = [line for line in shown if "waiting, for 300 s at most: /data/checkpoint" in line]
    assert 1 <= len(waits) <= 4
    found, _action = watch([running(), away], patience=20)
    assert found["msg"].startswith("for 20 s /data/checkpoint: no answer within 60 s. The packing")


def test_a_failure_is_handed_on(clock: list[float], shown: list[str]) -> None:
    failed = {"failed": True, "msg": "disk full", "progress": {**TOLD, "phase": "failed"}}
    found, _action = watch([running(), failed])
    assert found["msg"] == "disk full"
    assert len(shown) == 1
