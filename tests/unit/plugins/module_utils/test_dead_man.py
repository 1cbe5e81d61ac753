# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A change undoes itself unless it is confirmed, whatever ends in between."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _dead_man
from ansible_collections.sparkfleet.cluster.plugins.module_utils._dead_man import (
    ChangeError,
    DeadMan,
    File,
    Steps,
    replace,
    run,
)

FILE = "/etc/netplan/99-sparkfleet-fabric.yaml"
SWITCH = "/proc/sys/net/ipv4/ip_forward"
SOURCE = Path(_dead_man.__file__).read_bytes()


def steps(text: str | None, value: str = "1", commands: Sequence[str] = ("reload",)) -> Steps:
    return Steps(
        before=[["-stop", "it"]],
        files=[File(path=FILE, mode=0o600, text=text)],
        kernel={SWITCH: value},
        commands=[[word] for word in commands],
    )


class Systemd:
    """Runs what systemd-run is given, timers when told; everything else is written down."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.said: list[str] = []
        self.fail: dict[str, int] = {}
        self.timer = False

    def run(self, argv: Sequence[str], timeout: float) -> tuple[int, str]:
        line = " ".join(argv)
        self.said.append(line)
        for word, status in self.fail.items():
            if word in line:
                return status, f"{word} says no"
        if argv[0] == "systemctl" and argv[-1].endswith(".timer"):
            self.timer = False
        if argv[0] == "systemd-run":
            assert Path(argv[-2]).read_bytes() == SOURCE
            if any(word.startswith("--on-active") for word in argv):
                self.timer = True
            else:
                return 0 if self.start(argv[-1]) else 1, "exit status 1"
        return 0, ""

    def start(self, verb: str) -> bool:
        return bool(getattr(DeadMan(str(self.root), self.run), verb)())

    def fire(self) -> None:
        assert self.timer
        self.timer = False
        self.start("rollback")


@pytest.fixture
def systemd(tmp_path: Path) -> Systemd:
    switch = tmp_path / SWITCH.lstrip("/")
    switch.parent.mkdir(parents=True)
    switch.write_text("0\n")
    return Systemd(tmp_path)


@pytest.fixture
def dead_man(systemd: Systemd) -> DeadMan:
    return DeadMan(str(systemd.root), systemd.run)


def state(systemd: Systemd) -> tuple[str | None, str]:
    file = systemd.root / FILE.lstrip("/")
    switch = systemd.root / SWITCH.lstrip("/")
    return file.read_text() if file.exists() else None, switch.read_text().strip()


def change(dead_man: DeadMan, new: str = "new", old: str | None = None) -> float:
    return dead_man.change(steps(new), steps(old, "0"), 90, SOURCE, FILE)


def test_the_switch_is_armed_before_anything_changes(systemd, dead_man):
    systemd.fail["--on-active=90"] = 1
    with pytest.raises(ChangeError, match="nothing was changed"):
        change(dead_man)
    assert state(systemd) == (None, "0") and dead_man.deadline is None


def test_a_change_is_carried_out_apart_and_in_order(systemd, dead_man):
    change(dead_man)
    assert state(systemd) == ("new", "1")
    assert (systemd.root / FILE.lstrip("/")).stat().st_mode & 0o777 == 0o600
    kinds = [line.split()[0] for line in systemd.said]
    assert kinds == ["systemd-run", "systemd-run", "stop", "reload"]
    assert "--on-active=90" in systemd.said[0] and "--wait" in systemd.said[1]


def test_confirmed_in_time_it_stays(systemd, dead_man):
    change(dead_man)
    assert dead_man.confirm() is True
    assert not systemd.timer
    assert dead_man.confirm() is False
    assert state(systemd) == ("new", "1") and dead_man.deadline is None


@pytest.mark.parametrize("old", [None, "old"])
def test_not_confirmed_it_is_undone_and_the_next_confirmation_says_so(systemd, dead_man, old):
    change(dead_man, old=old)
    systemd.fire()
    assert state(systemd) == (old, "0")
    with pytest.raises(ChangeError) as told:
        dead_man.confirm()
    kept = "/var/lib/sparkfleet/fabric/99-sparkfleet-fabric.yaml.undone"
    assert "because nobody confirmed it within 90 s" in str(told.value)
    assert f"kept as {kept}" in str(told.value)
    assert (systemd.root / kept.lstrip("/")).read_text() == "new"


def test_the_next_change_forgets_that_one_was_undone(systemd, dead_man):
    change(dead_man)
    systemd.fire()
    change(dead_man, "newer")
    assert dead_man.confirm() is True


def test_a_switch_that_fires_after_the_confirmation_does_nothing(systemd, dead_man):
    change(dead_man)
    dead_man.confirm()
    assert systemd.start("rollback") is True
    assert state(systemd) == ("new", "1")


def test_a_change_that_fails_is_undone_at_once(systemd, dead_man):
    systemd.fail["reload"] = 1
    with pytest.raises(ChangeError) as told:
        change(dead_man)
    assert "because it failed with reload: reload says no. " in str(told.value)
    assert "Undoing it failed in part: reload: reload says no" in str(told.value)
    assert state(systemd) == (None, "0") and not systemd.timer


def test_a_change_that_cannot_be_started_is_undone_too(systemd, dead_man):
    systemd.fail["--unit=sparkfleet-fabric-apply"] = 1
    with pytest.raises(ChangeError, match="failed with --unit=sparkfleet-fabric-apply says no"):
        change(dead_man)
    assert state(systemd) == (None, "0")


def test_what_may_fail_does_not_count(systemd, dead_man):
    systemd.fail["stop it"] = 5
    change(dead_man)
    assert state(systemd) == ("new", "1")


def test_a_file_that_cannot_be_written_is_a_failure_and_no_reason_to_stop(systemd, dead_man):
    (systemd.root / "etc").mkdir()
    (systemd.root / "etc/netplan").write_text("in the way")
    with pytest.raises(ChangeError, match=f"{FILE}: File exists"):
        change(dead_man)
    assert systemd.said[-1] == "reload" and state(systemd)[1] == "0"


def test_a_second_change_goes_back_to_the_last_confirmed_state(systemd, dead_man):
    change(dead_man, "new", old=None)
    change(dead_man, "newer", old="new")
    assert state(systemd)[0] == "newer"
    systemd.fire()
    assert state(systemd) == (None, "0")


def test_a_second_change_does_not_follow_a_first_that_is_undone_meanwhile(systemd, dead_man):
    change(dead_man)
    run_it: _dead_man.Run = systemd.run

    def stop_too_late(argv: Sequence[str], timeout: float) -> tuple[int, str]:
        if argv[0] == "systemctl":
            systemd.fire()
        return run_it(argv, timeout)

    late = DeadMan(str(systemd.root), stop_too_late)
    with pytest.raises(ChangeError, match=r"nobody confirmed it within 90 s.*Run again"):
        change(late, "newer")
    assert state(systemd) == (None, "0")


def test_after_a_restart_without_the_timer_it_can_still_be_confirmed(systemd, dead_man):
    change(dead_man)
    systemd.timer = False
    assert dead_man.deadline is not None
    assert dead_man.confirm() is True


def test_forgetting_leaves_nothing(systemd, dead_man):
    change(dead_man)
    dead_man.forget()
    assert not Path(dead_man.folder).exists()
    assert dead_man.confirm() is False


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    place = tmp_path / "a.yaml"
    replace(str(place), "old\n", 0o600)
    with pytest.raises(UnicodeEncodeError):
        replace(str(place), "new\ud800\n" * 2, 0o600)
    assert place.read_text() == "old\n" and [p.name for p in tmp_path.iterdir()] == ["a.yaml"]


def test_the_file_runs_on_a_node_by_itself(tmp_path):
    alone = tmp_path / "dead_man.py"
    alone.write_bytes(SOURCE)
    program = f"import runpy; m = runpy.run_path({str(alone)!r}); print(m['FOLDER'])"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "/var/lib/sparkfleet/fabric\n"


@pytest.mark.parametrize(
    ("argv", "timeout", "expected"),
    [
        (["true"], 5, (0, "exit status 0")),
        (["sh", "-c", "echo first; echo last >&2; exit 3"], 5, (3, "last")),
        (["/nonexistent"], 5, (127, "No such file or directory")),
        (["sleep", "9"], 0.1, (124, "no end within 0.1 s")),
    ],
)
def test_running_a_command(argv, timeout, expected):
    assert run(argv, timeout) == expected


def test_what_is_kept_is_for_root_only(systemd, dead_man):
    change(dead_man)
    folder = Path(dead_man.folder)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert json.loads((folder / "undo.json").read_text())["seconds"] == 90
