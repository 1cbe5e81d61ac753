# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Leave a process behind on a node in one task, and call it back for its result in a later one.

Both ends of a link have to be at work at the same time, but Ansible runs a task on as many hosts as
it has forks, and on the others when those are done. So a task starts the work everywhere and
returns at once, and the next task, which begins when every host has finished the first, collects
it.

There is at most one process of a name on a machine. It ends when it is called back, when a new one
of its name is started, or when its time is over, and leaves no file: it is reached through a socket
in the kernel's abstract namespace, which goes with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Missing

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid
_TIMEOUT = 5.0  # for messages between processes of one machine


class Leash:
    """How a process that was left behind learns that it has to come to an end.

    Can be given to select(): readable means that somebody may be calling.
    """

    def __init__(self, listener: socket.socket, seconds: float) -> None:
        self._listener = listener
        self._caller: socket.socket | None = None
        self.request: dict[str, Any] = {}  # what the caller wants, once there is one
        self._end = time.monotonic() + seconds

    def fileno(self) -> int:
        return self._listener.fileno()

    @property
    def left(self) -> float:
        """Seconds until the process has to end by itself."""
        return max(0.0, self._end - time.monotonic())

    def wait(self) -> None:
        """Do nothing until the leash may have been pulled."""
        select.select([self._listener], [], [], self.left)

    def pulled(self) -> bool:
        """Whether to end: the time is over, or the result is called for."""
        if self._caller is None and select.select([self._listener], [], [], 0)[0]:
            caller, _address = self._listener.accept()
            caller.settimeout(_TIMEOUT)
            if _user_of(caller) != os.geteuid():
                caller.close()
            else:
                self._caller = caller
                with contextlib.suppress(OSError, ValueError):
                    self.request = json.loads(_read(caller))
        return self._caller is not None or not self.left

    def answer(self, result: Any) -> None:
        """Hand the result to whoever called; the name is free for another process then."""
        self._listener.close()
        if self._caller is not None:
            self._caller.sendall(json.dumps(result).encode())
            self._caller.close()


def start(name: str, seconds: float, work: Callable[[Leash], Any]) -> str | None:
    """Run `work` in a process of its own that outlives this one, for at most `seconds`.

    `work` returns its result soon after the leash is pulled. One of the same name that still runs
    is ended first, so a task that is repeated starts afresh.

    Returns:
        Why it was not started; None when it was.
    """
    collect(name)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(_address(name))
    except OSError:
        listener.close()
        return f"an earlier process {name} does not end; look for it with ss -xlp"
    listener.listen()
    if os.fork():
        listener.close()
        return None
    try:
        _run(Leash(listener, seconds), work)
    finally:
        os._exit(0)


def collect(name: str, timeout: float = 20.0, **request: Any) -> Any:
    """End the process of that name and return its result; `Missing` where there is none.

    `request` is what the process may want to know before it ends, and `timeout` how many seconds it
    may take for that.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
        caller.settimeout(timeout)
        try:
            caller.connect(_address(name))
            if _user_of(caller) != os.geteuid():
                return Missing(f"the process {name} belongs to another user")
            caller.sendall(json.dumps(request).encode())
            caller.shutdown(socket.SHUT_WR)
            data = _read(caller)
        except ConnectionRefusedError:
            return Missing(f"no process {name} is running: it was not started, or its time is over")
        except TimeoutError:
            return Missing(f"the process {name} did not answer within {timeout:g} s")
        except OSError as error:
            return Missing(f"the process {name} cannot be reached: {error.strerror}")
    try:
        return json.loads(data)
    except ValueError:
        return Missing(f"the process {name} ended without a result")


def _read(peer: socket.socket) -> bytes:
    """Everything up to the end of what the other side sends."""
    return b"".join(iter(lambda: peer.recv(65536), b""))


def _run(leash: Leash, work: Callable[[Leash], Any]) -> None:
    """The process that is left behind."""
    os.setsid()
    # Ansible waits until nobody holds the streams of the module any more.
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    # What `work` does at its end, it does as well when it is told to terminate.
    signal.signal(signal.SIGTERM, _terminate)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    leash.answer(work(leash))


def _terminate(_signal: int, _frame: Any) -> None:
    raise SystemExit


def _address(name: str) -> str:
    return f"\0sparkfleet.cluster/{name}"


def _user_of(peer: socket.socket) -> int:
    data = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _pid, user, _group = _CREDENTIALS.unpack(data)
    return int(user)
