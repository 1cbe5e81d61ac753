# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""All ranks meet at the init address, compare what they were started with, and stay connected.

As with Gloo, a rank that goes away takes the others with it: each holds a connection to rank 0.
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from .settings import Settings

_STEP = b"s"  # one byte, so that steps and answers can be counted


class FailedError(Exception):
    """The ranks do not come together; the text says why."""


class Group:
    """The connections of a group that has met.

    As in tensor parallelism nothing is computed without everybody: `step()` of rank 0 returns when
    every other rank has answered, and never while one is silent. `serve()` of a rank answers, and
    blocks until a connection ends.
    """

    def __init__(self, members: dict[int, socket.socket]) -> None:
        self._members = members
        self._answers = threading.Condition()
        self._steps = 0
        self._answered = dict.fromkeys(members, 0)

    def step(self) -> None:
        """Do one step with all ranks, for as long as it takes."""
        with self._answers:
            self._steps += 1
            wanted = self._steps
            for connection in self._members.values():
                with contextlib.suppress(OSError):
                    connection.sendall(_STEP)
            self._answers.wait_for(lambda: min(self._answered.values(), default=wanted) >= wanted)

    def serve(self) -> int:
        """The rank that went away first."""
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._members.items():
                connection.settimeout(None)
                selector.register(connection, selectors.EVENT_READ, rank)
            while True:
                for key, _events in selector.select():
                    if not self._hear(key.data):
                        return int(key.data)

    def _hear(self, rank: int) -> bool:
        """Read what a rank sent, and answer rank 0; false when it went away."""
        try:
            data = self._members[rank].recv(4096)
            if data and rank == 0:
                self._members[rank].sendall(data)
        except OSError:
            return False
        with self._answers:
            self._answered[rank] += len(data)
            self._answers.notify_all()
        return bool(data)

    def close(self) -> None:
        for connection in self._members.values():
            with contextlib.suppress(OSError):
                connection.close()


def meet(settings: Settings, say: Callable[[str], None], timeout: float = 600) -> Group:
    """Wait for all ranks at --dist-init-addr.

    Raises FailedError when two ranks are one, settings differ, or somebody does not come in time.
    """
    if settings.nodes == 1:
        return Group({})
    host, _colon, port = settings.text("dist-init-addr").rpartition(":")
    deadline = time.monotonic() + timeout
    if settings.rank == 0:
        return _receive(settings, host, int(port), deadline, say)
    return _join(settings, host, int(port), deadline)


def _receive(
    settings: Settings, host: str, port: int, deadline: float, say: Callable[[str], None]
) -> Group:
    members: dict[int, socket.socket] = {}
    problems: list[str] = []
    mine = settings.common()
    try:
        server = socket.create_server((host, port))
    except OSError as error:
        raise FailedError(f"rank 0 cannot listen at {host}:{port}: {error.strerror}") from error
    with server:
        while len(members) < settings.nodes - 1 and not problems:
            server.settimeout(max(0.1, deadline - time.monotonic()))
            try:
                connection, _address = server.accept()
            except TimeoutError:
                absent = sorted(set(range(1, settings.nodes)) - set(members))
                problems.append(f"no word from rank {', '.join(map(str, absent))}")
                break
            connection.settimeout(10)
            said = _line(connection)
            if said is None:  # a probe of the port, or a rank that died
                connection.close()
                continue
            rank = said["rank"]
            if rank in (0, *members) or not 0 < rank < settings.nodes:
                problems.append(f"rank {rank} of {settings.nodes} came twice or is none")
            problems += _differences(mine, said["common"], rank)
            members[rank if rank not in members else -rank] = connection
            say(f"rendezvous: {len(members) + 1} of {settings.nodes} ranks")
    answer = {"go": not problems, "problems": problems}
    for connection in members.values():
        with contextlib.suppress(OSError):
            connection.sendall(json.dumps(answer).encode() + b"\n")
    group = Group(members)
    if problems:
        group.close()
        raise FailedError("; ".join(problems))
    return group


def _differences(mine: dict[str, str], theirs: dict[str, str], rank: int) -> list[str]:
    names = sorted(name for name in {*mine, *theirs} if mine.get(name) != theirs.get(name))
    return [f"rank {rank} differs from rank 0 in {', '.join(names)}"] if names else []


def _join(settings: Settings, host: str, port: int, deadline: float) -> Group:
    hello = json.dumps({"rank": settings.rank, "common": settings.common()}).encode() + b"\n"
    while True:
        try:
            connection = socket.create_connection((host, port), timeout=5)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                raise FailedError(f"nobody at {host}:{port}: {error.strerror or error}") from error
            time.sleep(0.2)
    connection.sendall(hello)
    connection.settimeout(max(1.0, deadline - time.monotonic()))
    answer = _line(connection) or {
        "go": False,
        "problems": ["rank 0 went away during the rendezvous"],
    }
    if not answer["go"]:
        connection.close()
        raise FailedError("; ".join(answer["problems"]))
    return Group({0: connection})


def _line(connection: socket.socket) -> dict[str, Any] | None:
    data = b""
    try:
        while not data.endswith(b"\n"):
            chunk = connection.recv(65536)
            if not chunk:
                return None
            data += chunk
        found: dict[str, Any] = json.loads(data)
    except (OSError, ValueError):
        return None
    return found
