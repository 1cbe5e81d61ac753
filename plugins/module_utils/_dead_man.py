# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Change a node in a way that undoes itself unless somebody who reached the node confirms it.

A timer of systemd is armed before the first change. The change itself runs as a service of its own,
so that the connection it may cut does not end it half-way. Only a later call that takes the timer
away keeps the change; otherwise the timer brings the state before it back.

Both run this file, which needs the standard library only and is copied to the node:

    python3 /var/lib/sparkfleet/fabric/dead_man.py apply|rollback

A change is plain data, `Steps`, and so is its opposite.
"""

# Also runs without Ansible, whose run_command belongs to modules.
# pylint: disable=ansible-bad-function

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypedDict

FOLDER = "/var/lib/sparkfleet/fabric"
ROLLBACK = "sparkfleet-fabric-rollback"
APPLY = "sparkfleet-fabric-apply"
# No command of a change takes longer on a healthy node; netplan took 19 s on an emulated one.
LONGEST_COMMAND = 120.0

Run = Callable[[Sequence[str], float], "tuple[int, str]"]
"""Runs a command for at most so many seconds: exit status, and the line worth showing of it."""


class File(TypedDict):
    """A file as it is to be; `text` is None for none at all."""

    path: str
    mode: int
    text: str | None


class Steps(TypedDict):
    """What to do, in this order.

    Commands are lists of words; as in a unit of systemd, one that begins with `-` may fail. The
    values of `kernel` go to the files of these names.
    """

    before: list[list[str]]
    files: list[File]
    kernel: dict[str, str]
    commands: list[list[str]]


class ChangeError(Exception):
    """A change that could not be started, confirmed or ended well; the text is for people."""


def run(argv: Sequence[str], timeout: float) -> tuple[int, str]:
    """Run a command without a shell."""
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired:
        return 124, f"no end within {timeout:g} s"
    except OSError as error:
        return 127, error.strerror or "cannot be run"
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return done.returncode, lines[-1] if lines else f"exit status {done.returncode}"


def replace(path: str, text: str, mode: int) -> None:
    """Put a file in place whole or not at all, also when the power fails."""
    folder = os.path.dirname(path)
    os.makedirs(folder, exist_ok=True)
    # No suffix: netplan and systemd read every file of theirs that ends in .yaml, .conf, .service.
    handle, aside = tempfile.mkstemp(prefix=f".{os.path.basename(path)}.", dir=folder)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as stream:
            os.fchmod(handle, mode)
            stream.write(text)
            stream.flush()
            os.fsync(handle)
        os.replace(aside, path)
    except BaseException:
        os.unlink(aside)
        raise
    _sync(folder)


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class DeadMan:
    """The one change of a node that is under way or waits to be confirmed.

    Args:
        root: the node's root directory.
        run: runs commands on the node.
    """

    def __init__(self, root: str = "/", run: Run = run) -> None:
        self._root = root
        self._run = run
        self.folder = self._path(FOLDER)

    # --- what the module calls -------------------------------------------------------------------

    @property
    def deadline(self) -> float | None:
        """When an unconfirmed change is undone, in seconds since the epoch; None without one."""
        undo = self.load("undo")
        return None if undo is None else float(undo["deadline"])

    def change(self, steps: Steps, undo: Steps, seconds: int, source: bytes, keep: str) -> float:
        """Arm the switch, then carry the change out; returns when the switch fires.

        An older change that still waits is replaced: what brings back the state before it stays.

        Args:
            steps: the change.
            undo: its opposite.
            seconds: how long to wait for `confirm`, from now on.
            source: this file, for the node.
            keep: the path of the file that is put aside for inspection when it is undone.

        Raises:
            ChangeError: when the switch cannot be armed; nothing is changed then. When the change
                fails; it has been undone then.
        """
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        pending = self.load("undo")
        if pending is not None:
            self._stop_timer()
        with self._lock():
            if pending is not None and self.load("undo") is None:
                raise ChangeError(f"{self.told()} Run again.")
            deadline = time.time() + seconds
            replace(self._file("dead_man.py"), source.decode(), 0o600)
            first = pending["steps"] if pending else undo
            self.save(
                "undo", {"steps": first, "seconds": seconds, "deadline": deadline, "keep": keep}
            )
            self.save("apply", steps)
            self.drop("rollback", "failures")
        status, said = self._start(ROLLBACK, "rollback", f"--on-active={seconds}")
        if status:
            if pending is None:
                self.drop("undo")
            raise ChangeError(f"systemd-run cannot arm the switch, so nothing was changed: {said}.")
        status, said = self._start(APPLY, "apply", "--wait")
        if status:
            failures = self.load("failures") or [said]
            self.undo_now(f"it failed with {'; '.join(failures)}")
            raise ChangeError(self.told())
        return deadline

    def undo_now(self, reason: str) -> None:
        """Bring the state before the change back without waiting for the switch."""
        with self._lock():
            undo = self.load("undo")
            if undo is None:
                return
            self.save("undo", {**undo, "reason": reason})
        self._stop_timer()
        self._start(ROLLBACK, "rollback", "--wait")

    def confirm(self) -> bool:
        """Keep the change that waits; False when none does.

        Raises:
            ChangeError: when it was undone meanwhile.
        """
        if self.load("undo") is not None:
            self._stop_timer()
            with self._lock():  # waits for a switch that is firing right now
                if self.load("undo") is not None:
                    self.drop("undo")
                    return True
        if self.load("rollback") is not None:
            raise ChangeError(self.told())
        return False

    def told(self) -> str:
        """What became of a change that was undone, in sentences."""
        told = self.load("rollback")
        if told is None:
            return f"The change ended and left no word; see journalctl -u {APPLY} -u {ROLLBACK}."
        kept = f" What was undone is kept as {told['kept']}." if told["kept"] else ""
        failed = "".join(f" Undoing it failed in part: {text}." for text in told["failures"])
        return f"The change was undone at {told['at']}, because {told['reason']}.{failed}{kept}"

    def forget(self) -> None:
        """Leave nothing of this on the node."""
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- what is kept on the node -----------------------------------------------------------------

    def load(self, name: str) -> Any:
        """What was saved under a name on the node, or None.

        Raises:
            ChangeError: when somebody else wrote there.
        """
        path = self._file(f"{name}.json")
        try:
            with open(path, encoding="utf-8") as stream:
                return json.load(stream)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ChangeError(f"{path} is damaged ({error}); look at it and remove it.") from None

    def save(self, name: str, value: Mapping[str, Any] | Sequence[str]) -> None:
        """Keep plain data under a name on the node, readable by root only."""
        replace(self._file(f"{name}.json"), json.dumps(value, indent=1) + "\n", 0o600)

    def drop(self, *names: str) -> None:
        """Keep it no longer."""
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._file(f"{name}.json"))

    # --- what systemd calls ----------------------------------------------------------------------

    def apply(self) -> bool:
        """Carry the change out; False when anything of it failed."""
        with self._lock():
            failures = self._enact(self.load("apply"))
            if failures:
                self.save("failures", failures)
        return not failures

    def rollback(self) -> bool:
        """Undo the change that waits, unless it was confirmed in the last moment."""
        with self._lock():
            undo = self.load("undo")
            if undo is None:
                return True
            kept = self._keep(undo["keep"])
            failures = self._enact(undo["steps"])
            unheard = f"nobody confirmed it within {undo['seconds']} s"
            told = {
                "at": time.strftime("%Y-%m-%d %H:%M:%S %z"),
                "reason": undo.get("reason", unheard),
                "kept": kept,
                "failures": failures,
            }
            self.save("rollback", told)
            self.drop("undo")
        return not failures

    # --- parts -----------------------------------------------------------------------------------

    def _enact(self, steps: Steps) -> list[str]:
        """Do all of it, also after a failure: half of an undo is worse. Returns what failed."""
        failures: dict[str, None] = {}  # in order, and each once

        def command(words: Sequence[str]) -> None:
            argv = [words[0].removeprefix("-"), *words[1:]]
            status, said = self._run(argv, LONGEST_COMMAND)
            if status and argv[0] == words[0]:
                failures[f"{' '.join(argv)}: {said}"] = None

        def put(path: str, action: Callable[..., None], *arguments: Any) -> None:
            try:
                action(*arguments)
            except OSError as error:
                failures[f"{path}: {error.strerror}"] = None

        def kernel() -> None:
            for path, value in steps["kernel"].items():
                put(path, self._set, path, value)

        for words in steps["before"]:
            command(words)
        for file in steps["files"]:
            put(file["path"], self._place, file)
        # Before addresses appear, and once more because what manages the links sets some as well.
        kernel()
        for words in steps["commands"]:
            command(words)
        kernel()
        return list(failures)

    def _place(self, file: File) -> None:
        path = self._path(file["path"])
        if file["text"] is not None:
            replace(path, file["text"], file["mode"])
        elif os.path.lexists(path):
            os.unlink(path)
            _sync(os.path.dirname(path))

    def _set(self, path: str, value: str) -> None:
        place = self._path(path)
        with open(place, encoding="ascii") as stream:
            if stream.read().strip() == value:
                return
        with open(place, "w", encoding="ascii") as stream:
            stream.write(f"{value}\n")

    def _keep(self, path: str) -> str | None:
        """Put what is about to be undone aside, for people to look at."""
        kept = f"{FOLDER}/{os.path.basename(path)}.undone"
        try:
            shutil.copy2(self._path(path), self._path(kept))
        except OSError:
            return None
        return kept

    def _start(self, unit: str, verb: str, *options: str) -> tuple[int, str]:
        argv = ["systemd-run", "--quiet", "--collect", f"--unit={unit}", *options]
        if options and options[0].startswith("--on-active"):
            argv.append("--timer-property=AccuracySec=200ms")
        argv += [sys.executable, "-I", self._file("dead_man.py"), verb]
        return self._run(argv, 10 * LONGEST_COMMAND)

    def _stop_timer(self) -> None:
        self._run(["systemctl", "stop", f"{ROLLBACK}.timer"], 30.0)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        with open(self._file("lock"), "w", encoding="ascii") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def _path(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))

    def _file(self, name: str) -> str:
        return os.path.join(self.folder, name)


def main(arguments: Sequence[str]) -> int:
    """What the two units run."""
    dead_man = DeadMan()
    done = dead_man.apply() if list(arguments) == ["apply"] else dead_man.rollback()
    return 0 if done else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
