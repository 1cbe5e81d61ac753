"""Processes that are left behind: called back, started again, ended by time or by a signal."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Missing
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_detached import (
    Leash,
    collect,
    start,
)


@pytest.fixture
def name() -> Iterator[str]:
    name = f"test-{uuid.uuid4()}"
    yield name
    collect(name)


def until_pulled(result: Any) -> Callable[[Leash], Any]:
    def work(leash: Leash) -> Any:
        while not leash.pulled():
            leash.wait()
        return result

    return work


def test_the_result_comes_when_it_is_called_for(name: str) -> None:
    start(name, 60, until_pulled({"big": "x" * 300_000}))
    began = time.monotonic()
    assert collect(name) == {"big": "x" * 300_000}
    assert time.monotonic() - began < 5
    assert collect(name) == Missing(
        f"no process {name} is running: it was not started, or its time is over"
    )


def test_the_process_knows_what_is_asked_for(name: str) -> None:
    def work(leash: Leash) -> Any:
        before = dict(leash.request)
        until_pulled(None)(leash)
        return [before, leash.request]

    start(name, 60, work)
    assert collect(name, seconds=3, of=["a"]) == [{}, {"seconds": 3, "of": ["a"]}]


def test_it_runs_on_its_own(name: str) -> None:
    """In a session of its own and without the streams that Ansible waits for."""

    def work(leash: Leash) -> dict[str, Any]:
        until_pulled(None)(leash)
        return {
            "pid": os.getpid(),
            "session": os.getsid(0),
            "streams": [str(Path(f"/proc/self/fd/{fd}").readlink()) for fd in (0, 1, 2)],
        }

    start(name, 60, work)
    found = collect(name)
    assert found["pid"] == found["session"] != os.getpid()
    assert found["streams"] == ["/dev/null"] * 3


def test_a_second_start_ends_the_first(name: str, tmp_path: Path) -> None:
    def first(leash: Leash) -> None:
        until_pulled(None)(leash)
        (tmp_path / "ended").touch()

    start(name, 60, first)
    for number in range(20):  # the name must be free as soon as the one before has answered
        assert start(name, 60, until_pulled(number)) is None
    assert (tmp_path / "ended").exists()
    assert collect(name) == 19


def test_it_ends_when_its_time_is_over(name: str, tmp_path: Path) -> None:
    def work(leash: Leash) -> None:
        until_pulled(None)(leash)
        (tmp_path / "ended").touch()

    start(name, 0.2, work)
    _wait_for(tmp_path / "ended")
    assert isinstance(collect(name), Missing)


def test_told_to_terminate_it_cleans_up(name: str, tmp_path: Path) -> None:
    def work(leash: Leash) -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        try:
            until_pulled(None)(leash)
        finally:
            (tmp_path / "ended").touch()

    start(name, 60, work)
    _wait_for(tmp_path / "pid")
    time.sleep(0.1)  # for the text in it
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGTERM)
    _wait_for(tmp_path / "ended")


def test_work_that_fails_has_no_result(name: str) -> None:
    def work(leash: Leash) -> None:
        until_pulled(None)(leash)
        raise ValueError

    start(name, 60, work)
    assert collect(name) == Missing(f"the process {name} ended without a result")


def test_one_that_does_not_answer_is_not_waited_for(name: str) -> None:
    def work(leash: Leash) -> None:
        time.sleep(1)
        until_pulled(None)(leash)

    start(name, 60, work)
    assert collect(name, timeout=0.2) == Missing(f"the process {name} did not answer within 0.2 s")


def _wait_for(path: Path) -> None:
    for _attempt in range(100):
        if path.exists():
            return
        time.sleep(0.05)
    pytest.fail(f"{path.name} did not appear")
