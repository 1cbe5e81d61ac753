"""Watching the work of a node: progress, lost connections, every way it can end."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.sparkfleet.cluster.plugins.action import detached_command

LOST = AnsibleConnectionFailure("Broken pipe")


def state(name: str, last: str = "", **more: Any) -> dict[str, Any]:
    return {"state": name, "last": last, "tail": [last], "log": "/l", "rc": 0, **more}


class Watch:
    """The action with a clock of its own; each question takes its next answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.shown: list[str] = []
        self.stages: list[str] = []
        self._patch = monkeypatch
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        monkeypatch.setattr(detached_command, "time", clock)
        monkeypatch.setattr(detached_command.display, "display", self.shown.append)
        monkeypatch.setattr(ActionBase, "run", lambda *_args: {})

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, answers: list[Any], *, check: bool = False, **arguments: Any) -> dict[str, Any]:
        coming: Iterator[Any] = iter(answers)

        def ask(_self: Any, given: dict[str, Any], _variables: Any) -> dict[str, Any]:
            self.stages.append(given["stage"])
            answer = next(coming)
            if isinstance(answer, Exception):
                raise answer
            found: dict[str, Any] = answer
            return found

        self._patch.setattr(detached_command.ActionModule, "_ask", ask)
        action = object.__new__(detached_command.ActionModule)
        given = {"name": "job", "stage": "watch", **arguments}
        action._task = SimpleNamespace(args=given, check_mode=check)  # type: ignore[assignment]
        return action.run(task_vars={"inventory_hostname": "spark2"})


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def test_it_ends_well_and_is_forgotten(watch: Watch) -> None:
    done = watch.run([state("running", "10 %"), state("succeeded", "done"), {}])
    assert not done.get("failed") and done["changed"] is False
    assert watch.stages == ["watch", "watch", "clear"]
    assert watch.shown == ["[spark2] job 0:00: 10 %"]


def test_progress_is_calm(watch: Watch) -> None:
    steps = [state("running", f"{percent} %") for percent in range(40)]
    watch.run([*steps, state("succeeded"), {}])
    assert 5 <= len(watch.shown) <= 13
    assert watch.now > 100


def test_a_lost_connection_is_borne(watch: Watch) -> None:
    done = watch.run([state("running", "a"), *[LOST] * 50, state("succeeded"), {}])
    assert not done.get("failed")
    assert any("cannot be reached, trying again" in line for line in watch.shown)


def test_a_node_that_stays_away_is_told_and_its_work_goes_on(watch: Watch) -> None:
    done = watch.run([LOST] * 500, patience=60)
    assert done["failed"] and "spark2 cannot be reached for 60 s" in done["msg"]
    assert "clear" not in watch.stages


def test_patience_starts_anew_after_an_answer(watch: Watch) -> None:
    away = [LOST] * 15
    done = watch.run([*away, state("running"), *away, state("succeeded"), {}], patience=60)
    assert not done.get("failed")


def test_work_that_failed_shows_its_end(watch: Watch) -> None:
    done = watch.run([state("failed", "no space left", rc=1, result="exit-code")])
    assert done["failed"]
    assert "job on spark2 ended with exit-code, status 1" in done["msg"]
    assert "no space left" in done["msg"] and "/l" in done["msg"]
    assert "clear" not in watch.stages  # systemctl status shows it to whoever looks


def test_work_that_takes_too_long_goes_on(watch: Watch) -> None:
    done = watch.run([state("running", "slow")] * 500, timeout=100)
    assert done["failed"] and "is not done after 100 s, and goes on" in done["msg"]
    assert "clear" not in watch.stages


def test_work_that_vanished_is_told_but_not_in_check_mode(watch: Watch) -> None:
    assert "is gone" in watch.run([state("absent")])["msg"]
    assert not watch.run([state("absent")], check=True).get("failed")


def test_a_module_that_fails_is_handed_on(watch: Watch) -> None:
    done = watch.run([{"failed": True, "msg": "sudo wants a password"}])
    assert done["failed"] and done["msg"] == "sudo wants a password"


@pytest.mark.parametrize("stage", ["start", "status", "clear"])
def test_other_stages_are_the_modules_alone(watch: Watch, stage: str) -> None:
    assert watch.run([{"state": "running", "changed": True}], stage=stage)["changed"]
    assert watch.stages == [stage]
