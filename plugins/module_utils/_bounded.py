# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Ask a machine questions that may never be answered.

A read below a hard NFS mount whose server is gone, an attribute of a wedged network card and a name
server that is down all block in the kernel, where neither a signal nor an alarm helps. So every
question runs in a child process of its own, and a child that misses the deadline is left behind.
"""

# Also runs without Ansible, whose run_command belongs to modules.
# pylint: disable=ansible-bad-function

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

NOT_FOUND = 127  # the shell's code for a command that does not exist

_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL": "C",
}


class Missing(str):
    """A value that could not be had; the text says why."""


class Command(NamedTuple):
    """What a command answered. `rc` is None when it gave no answer in time."""

    rc: int | None
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """The one line worth showing of a command that failed."""
        lines = [line.strip() for line in (self.err or self.out).splitlines() if line.strip()]
        return lines[0] if lines else f"exit status {self.rc}"


Runner = Callable[[Sequence[str]], Command]


def run_command(argv: Sequence[str], timeout: float = 20.0) -> Command:
    """Run a command without a shell, in the C locale, for at most `timeout` seconds."""
    try:
        child = subprocess.Popen(  # pylint: disable=consider-using-with  # would wait for ever
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **_ENVIRONMENT},
            encoding="utf-8",
            errors="replace",
        )
    except FileNotFoundError:
        return Command(NOT_FOUND, "", f"{argv[0]}: command not found")
    except OSError as error:
        return Command(NOT_FOUND, "", f"{argv[0]}: {error.strerror}")
    try:
        out, err = child.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        child.kill()
        for stream in (child.stdout, child.stderr):
            if stream:
                stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=1)  # longer for nothing: what is stuck in the kernel does not end
        return Command(None, "", f"{argv[0]} did not answer within {timeout:g} s")
    return Command(child.returncode, out, err)


def ask_all(questions: Mapping[str, Callable[[], Any]], deadline: float) -> dict[str, Any]:
    """Call every function in a process of its own, all at once.

    Returns what each returned, passed through JSON; `Missing` for one that raised or that had no
    answer `deadline` seconds after the start. Never waits longer than that.
    """
    until = time.monotonic() + deadline
    answers: dict[str, Any] = {}
    buffers: dict[str, bytearray] = {}
    children: dict[str, int] = {}
    with selectors.DefaultSelector() as selector:
        for name, question in questions.items():
            reader, writer = os.pipe()
            pid = os.fork()
            if pid == 0:
                _answer(question, writer)
            os.close(writer)
            children[name] = pid
            buffers[name] = bytearray()
            selector.register(reader, selectors.EVENT_READ, name)
        while selector.get_map():
            left = until - time.monotonic()
            ready = selector.select(left) if left > 0 else []
            if not ready:
                break
            for key, _events in ready:
                chunk = os.read(key.fd, 65536)
                if chunk:
                    buffers[key.data] += chunk
                else:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    answers[key.data] = _decode(bytes(buffers[key.data]))
        for key in list(selector.get_map().values()):
            answers[key.data] = Missing(f"no answer within {deadline:g} s")
            _kill_group(children[key.data])
            os.close(key.fd)
    for pid in children.values():
        # Never a wait: a child stuck in the kernel does not end, and init reaps what is left over.
        os.waitpid(pid, os.WNOHANG)
    return {name: answers[name] for name in questions}


def _answer(question: Callable[[], Any], writer: int) -> None:
    """The child: answer into the pipe and end without running anything of the parent's."""
    status = 1
    try:
        os.setsid()
        # A child that is left behind must not hold the channel open that Ansible waits on.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        try:
            payload = json.dumps({"value": question()})
        except Exception as error:  # noqa: BLE001  # whatever goes wrong is the answer
            payload = json.dumps({"reason": f"{type(error).__name__}: {error}"})
        with os.fdopen(writer, "wb") as stream:
            stream.write(payload.encode())
        status = 0
    finally:
        os._exit(status)


def _decode(data: bytes) -> Any:
    try:
        payload = json.loads(data)
    except ValueError:
        return Missing("the probe ended without an answer")
    return payload["value"] if "value" in payload else Missing(payload["reason"])


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
