# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Long work on a node, left to its systemd, so that no lost connection can end it.

The work is a transient unit: starting one reloads nothing, so the devices of running containers
stay as they are. The unit itself is the record of the work. It stays after the end, with the exit
status, until somebody clears it or the node restarts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Runner

_PROPERTIES = ("LoadState", "ActiveState", "SubState", "Result", "ExecMainStatus", "Description")
_TAIL = 16384  # bytes of a log that are looked at
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")


class DetachedError(Exception):
    """The work cannot be started or asked for; the text is for people."""


class Job(NamedTuple):
    """What is to be done, and where its traces are.

    Args:
        name: of the unit, without the prefix and the ending.
        argv: the command.
        directory: where it runs.
        environment: variables it gets beyond systemd's own.
        stdin: the text it reads. It may be secret: it is kept in a file of root, until cleared.
    """

    name: str
    argv: Sequence[str]
    directory: str = "/"
    environment: Mapping[str, str] = {}
    stdin: str = ""

    @property
    def fingerprint(self) -> str:
        """The same for the same work; the text it reads does not count, since tokens are in it."""
        told = json.dumps([list(self.argv), self.directory, sorted(self.environment.items())])
        return hashlib.sha256(told.encode()).hexdigest()[:12]


class Detached:
    """The work of one name on this node.

    Args:
        name: see `Job`.
        run: runs a command for a bounded time.
        logs: the directory of logs.
        runtime: a directory that is empty after a restart, for what the work reads.
    """

    def __init__(
        self,
        name: str,
        run: Runner,
        logs: str = "/var/log/sparkfleet",
        runtime: str = "/run/sparkfleet",
    ) -> None:
        if not NAME.fullmatch(name):
            raise DetachedError(
                f"name is {name!r}, expected lower-case letters, digits and dashes, 64 at most"
            )
        self.unit = f"sparkfleet-{name}.service"
        self.log = os.path.join(logs, f"{name}.log")
        self._stdin = os.path.join(runtime, f"{name}.stdin")
        self._run = run

    def start(self, job: Job) -> bool:
        """Start the work, or leave it alone where the same work is running already.

        Returns:
            Whether it was started now.

        Raises:
            DetachedError: other work of that name is running, or systemd refuses.
        """
        found = self.status()
        if found["state"] == "running":
            if found["fingerprint"] == job.fingerprint:
                return False
            raise DetachedError(
                f"{self.unit} is running other work ({found['last'] or 'nothing said yet'}). "
                f"Wait for it, or end it with: systemctl stop {self.unit}"
            )
        self.clear()
        os.makedirs(os.path.dirname(self.log), mode=0o755, exist_ok=True)
        os.makedirs(os.path.dirname(self._stdin), mode=0o755, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.replace(self.log, f"{self.log}.1")
        handle = os.open(self._stdin, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(job.stdin)
        properties = {
            "Type": "exec",
            "RemainAfterExit": "yes",
            "WorkingDirectory": job.directory,
            "StandardInput": f"file:{self._stdin}",
            "StandardOutput": f"append:{self.log}",
            "StandardError": f"append:{self.log}",
        }
        done = self._run(
            [
                *("systemd-run", "--quiet", f"--unit={self.unit}"),
                f"--description=sparkfleet {self.unit} {job.fingerprint}",
                *(f"--property={name}={value}" for name, value in properties.items()),
                *(f"--setenv={name}={value}" for name, value in sorted(job.environment.items())),
                # systemd would put variables in: a dollar is written twice for one.
                *("--", *(word.replace("$", "$$") for word in job.argv)),
            ]
        )
        if done.rc != 0:
            os.unlink(self._stdin)
            raise DetachedError(f"{' '.join(job.argv[:2])} was not started: {done.complaint}")
        return True

    def status(self) -> dict[str, Any]:
        """How the work stands: `state` absent, running, succeeded or failed, and what it said.

        Raises:
            DetachedError: systemd does not answer.
        """
        done = self._run(
            ["systemctl", "show", *(f"--property={name}" for name in _PROPERTIES), self.unit]
        )
        if done.rc != 0:
            raise DetachedError(f"systemctl show {self.unit}: {done.complaint}")
        values = dict(line.split("=", 1) for line in done.out.splitlines() if "=" in line)
        said = tail(self.log)
        return {
            "state": _state(values),
            "rc": int(values.get("ExecMainStatus") or 0),
            "result": values.get("Result", ""),
            "fingerprint": values.get("Description", "").rpartition(" ")[2],
            "last": said[-1] if said else "",
            "tail": said[-30:],
        }

    def clear(self) -> bool:
        """End the work if it runs, and forget it; the log stays. Whether there was any."""
        there: bool = self.status()["state"] != "absent"
        if there:
            self._run(["systemctl", "stop", self.unit])
            self._run(["systemctl", "reset-failed", self.unit])
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._stdin)
        return there


def _state(values: Mapping[str, str]) -> str:
    if values.get("LoadState") != "loaded":
        return "absent"
    active, sub = values.get("ActiveState"), values.get("SubState")
    if active == "failed":
        return "failed"
    if active == "active" and sub == "exited":
        return "succeeded"
    return "absent" if active == "inactive" else "running"


def tail(path: str) -> list[str]:
    """The last lines of a log as text to show: progress bars resolved, control codes taken out."""
    try:
        with open(path, "rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(0, size - _TAIL))
            data = stream.read(_TAIL)
    except OSError:
        return []
    lines = []
    for line in data.decode("utf-8", errors="replace").split("\n"):
        # A program that paints over its line returns the carriage; the last painting counts.
        shown = _CONTROL.sub("", line.rstrip("\r").rpartition("\r")[2]).strip()
        if shown:
            lines.append(shown[:300])
    return lines
