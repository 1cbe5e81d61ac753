"""Work left to systemd: what it is told, what it is asked, and how its answers are read."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._detached import (
    Detached,
    DetachedError,
    Job,
    tail,
)


class Systemd:
    """Answers as systemd does, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.active, self.sub, self.description = "inactive", "dead", "x"
        self.refuses = ""

    def __call__(self, argv: Sequence[str]) -> Command:
        self.asked.append(list(argv))
        if argv[0] == "systemd-run":
            if self.refuses:
                return Command(1, "", self.refuses)
            self.active, self.sub = "active", "running"
            (told,) = [word for word in argv if word.startswith("--description=")]
            self.description = told.partition("=")[2]
        elif argv[1] == "stop":
            self.active, self.sub = "inactive", "dead"
        elif argv[1] == "show":
            loaded = "loaded" if self.active != "inactive" else "not-found"
            return Command(
                0,
                f"LoadState={loaded}\nActiveState={self.active}\nSubState={self.sub}\n"
                f"Result=success\nExecMainStatus=0\nDescription={self.description}\n",
                "",
            )
        return Command(0, "", "")

    @property
    def started(self) -> list[list[str]]:
        return [argv for argv in self.asked if argv[0] == "systemd-run"]


@pytest.fixture
def systemd() -> Systemd:
    return Systemd()


@pytest.fixture
def work(tmp_path: Path, systemd: Systemd) -> Detached:
    return Detached("job", systemd, str(tmp_path / "log"), str(tmp_path / "run"))


JOB = Job("job", ["make", "$HOME/x", "100%"], "/src", {"B": "2", "A": "1"}, "token")


def test_what_systemd_is_told(work: Detached, systemd: Systemd, tmp_path: Path) -> None:
    assert work.start(JOB)
    (argv,) = systemd.started
    assert argv[argv.index("--") + 1 :] == ["make", "$$HOME/x", "100%"]
    assert {"--unit=sparkfleet-job.service", "--setenv=A=1", "--setenv=B=2"} <= set(argv)
    assert "--property=WorkingDirectory=/src" in argv
    assert not [word for word in argv if "token" in word]
    given = tmp_path / "run/job.stdin"
    assert given.read_text() == "token"
    assert stat.S_IMODE(given.stat().st_mode) == 0o600
    # no reload: it takes the GPU from running containers
    assert not [asked for asked in systemd.asked if "daemon-reload" in asked]
    assert work.clear()
    assert not given.exists()
    assert not work.clear()


def test_the_same_work_is_not_started_twice(work: Detached, systemd: Systemd) -> None:
    assert work.start(JOB)
    assert not work.start(JOB._replace(stdin="another token"))
    assert len(systemd.started) == 1
    for other in (
        JOB._replace(argv=["make"]),
        JOB._replace(directory="/"),
        JOB._replace(environment={}),
    ):
        with pytest.raises(DetachedError, match="is running other work"):
            work.start(other)


@pytest.mark.parametrize(("active", "sub"), [("active", "exited"), ("failed", "failed")])
def test_work_that_ended_is_started_anew(
    work: Detached, systemd: Systemd, tmp_path: Path, active: str, sub: str
) -> None:
    work.start(JOB)
    (tmp_path / "log/job.log").write_text("first\n")
    systemd.active, systemd.sub = active, sub
    assert work.start(JOB)
    assert (tmp_path / "log/job.log.1").read_text() == "first\n"
    assert work.status()["tail"] == []


@pytest.mark.parametrize(
    ("active", "sub", "state"),
    [
        ("inactive", "dead", "absent"),
        ("activating", "start", "running"),
        ("active", "running", "running"),
        ("deactivating", "stop-sigterm", "running"),
        ("active", "exited", "succeeded"),
        ("failed", "failed", "failed"),
    ],
)
def test_states(work: Detached, systemd: Systemd, active: str, sub: str, state: str) -> None:
    systemd.active, systemd.sub = active, sub
    assert work.status()["state"] == state


def test_a_refusal_of_systemd_is_told_and_leaves_no_secret(
    work: Detached, systemd: Systemd, tmp_path: Path
) -> None:
    systemd.refuses = "Failed to find executable make"
    with pytest.raises(DetachedError, match="was not started: Failed to find executable"):
        work.start(JOB)
    assert not list((tmp_path / "run").iterdir())


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "../x", "a" * 65, "-x", "a b"])
def test_names_that_could_be_paths_or_options_are_refused(systemd: Systemd, name: str) -> None:
    with pytest.raises(DetachedError, match="expected lower-case"):
        Detached(name, systemd)


def test_the_tail_is_text_to_show(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(
        b"old\n" * 10000
        + b"\x1b[32mStep 1\x1b[0m\r\n10 %\r20 %\r30 %\n\n \xff bad\nlong"
        + b"g" * 999
    )
    lines = tail(str(path))
    assert lines[-4:-1] == ["Step 1", "30 %", "\ufffd bad"]
    assert len(lines[-1]) == 300
    assert tail(str(tmp_path / "none")) == []
