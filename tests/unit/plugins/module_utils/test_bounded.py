"""Questions that raise, hang, answer much or end without an answer."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    Missing,
    ask_all,
    run_command,
)


def _raise() -> None:
    raise OSError(5, "Input/output error")


def _die() -> None:
    os._exit(3)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (lambda: {"a": [1, None]}, {"a": [1, None]}),
        (lambda: None, None),
        (lambda: "x" * 300_000, "x" * 300_000),  # more than a pipe holds
        (_raise, Missing("OSError: [Errno 5] Input/output error")),
        (_die, Missing("the probe ended without an answer")),
        (object, Missing("TypeError: Object of type object is not JSON serializable")),
    ],
)
def test_every_answer_comes_back(question: Callable[[], Any], answer: Any) -> None:
    (found,) = ask_all({"it": question}, deadline=10).values()
    assert found == answer
    assert isinstance(found, Missing) == isinstance(answer, Missing)


def test_a_question_that_hangs_costs_the_deadline_and_the_others_nothing(tmp_path: Path) -> None:
    """The hanging one has a child of its own, which must go too."""

    def hang() -> None:
        child = subprocess.Popen(["sleep", "60"])
        (tmp_path / "pid").write_text(str(child.pid))
        child.wait()

    start = time.monotonic()
    answers = ask_all({"stuck": hang, "quick": lambda: 7}, deadline=1)
    assert time.monotonic() - start < 3
    assert answers == {"stuck": Missing("no answer within 1 s"), "quick": 7}
    assert isinstance(answers["stuck"], Missing)
    _assert_gone(int((tmp_path / "pid").read_text()))


def _assert_gone(pid: int) -> None:
    for _attempt in range(50):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return
        if state == "Z":  # whoever adopted it has not looked yet
            return
        time.sleep(0.1)
    pytest.fail("the hanging question left a process behind")


def test_answers_keep_the_order_of_the_questions() -> None:
    def later() -> str:
        time.sleep(0.2)
        return "a"

    assert list(ask_all({"a": later, "b": lambda: "b"}, deadline=10)) == ["a", "b"]


def test_what_a_question_leaves_behind_does_not_hold_the_streams() -> None:
    """Ansible waits for the end of the module's output, whoever else still has it open."""
    code = (
        f"import sys; sys.path[:0] = {sys.path!r}\n"
        "import subprocess\n"
        f"from {ask_all.__module__} import ask_all\n"
        "leave = lambda: subprocess.Popen(['sleep', '5'], start_new_session=True).pid\n"
        "print(ask_all({'pid': leave}, 10)['pid'] > 0)\n"
    )
    start = time.monotonic()
    answer = run_command([sys.executable, "-c", code], timeout=20)
    assert (answer.rc, answer.out) == (0, "True\n")
    assert time.monotonic() - start < 4


@pytest.mark.parametrize(
    ("argv", "rc", "complaint"),
    [
        (["true"], 0, "exit status 0"),
        (["sh", "-c", "echo ' first '; exit 3"], 3, "first"),
        (["sh", "-c", "echo out; echo err >&2; exit 3"], 3, "err"),
        (["no-such-program"], NOT_FOUND, "no-such-program: command not found"),
        (["/etc"], NOT_FOUND, "/etc: Permission denied"),
        (["sleep", "60"], None, "sleep did not answer within 0.2 s"),
    ],
)
def test_commands(argv: list[str], rc: int | None, complaint: str) -> None:
    answer = run_command(argv, timeout=0.2 if argv[0] == "sleep" else 10)
    assert (answer.rc, answer.complaint) == (rc, complaint)


def test_commands_speak_english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert run_command(["sh", "-c", "echo $LC_ALL"]).out == "C\n"
