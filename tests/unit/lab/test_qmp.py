# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Talking to QEMU: answers among events, refusals, silence, a QEMU that ends."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.qmp import Monitor
from lab.system import LabError

GREETING: dict[str, object] = {"QMP": {"version": {}, "capabilities": []}}
Serve = Callable[[list[list[object]]], Path]


@pytest.fixture
def qemu(tmp_path: Path) -> Iterator[Serve]:
    """``qemu([[line, ...], ...])``: greets, then says each list of lines after one command."""
    threads = []

    def serve(replies: list[list[object]]) -> Path:
        path = tmp_path / "qmp"
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(str(path))
        listening.listen(1)

        def talk() -> None:
            with listening, listening.accept()[0] as said, said.makefile("rw") as lines:
                said_in_turn: list[list[object]] = [[GREETING], [{"return": {}}], *replies]
                for answers in said_in_turn:
                    if answers != [GREETING]:
                        lines.readline()
                    for answer in answers:
                        lines.write(json.dumps(answer) + "\n")
                    lines.flush()

        threads.append(threading.Thread(target=talk))
        threads[-1].start()
        return path

    yield serve
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()


def test_events_wait_while_an_answer_is_read(qemu: Serve) -> None:
    gone = {"event": "DEVICE_DELETED", "data": {"device": "nvme0"}}
    other = {"event": "DEVICE_DELETED", "data": {"path": "/machine/peripheral/nvme0"}}
    with Monitor(qemu([[other, {"return": [1]}, gone]])) as monitor:
        assert monitor.execute("device_del", id="nvme0") == [1]
        found = monitor.wait_event("DEVICE_DELETED", 5, lambda data: "device" in data)
        assert found == gone["data"]


def test_a_refused_command_says_why(qemu: Serve) -> None:
    refusal = {"error": {"class": "GenericError", "desc": "Device 'nvme0' not found"}}
    with (
        Monitor(qemu([[refusal]])) as monitor,
        pytest.raises(LabError, match=r"refused device_del .*Device 'nvme0' not found"),
    ):
        monitor.execute("device_del", id="nvme0")


def test_a_qemu_that_ends_is_no_answer(qemu: Serve) -> None:
    with (
        Monitor(qemu([[]])) as monitor,
        pytest.raises(LabError, match=r"did not answer quit .*closed the connection"),
    ):
        monitor.execute("quit")


def test_an_event_that_does_not_come_is_named(qemu: Serve) -> None:
    with (
        Monitor(qemu([])) as monitor,
        pytest.raises(LabError, match=r"no DEVICE_DELETED from QEMU"),
    ):
        monitor.wait_event("DEVICE_DELETED", 0.2, bool)


def test_no_socket_is_a_readable_error(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="QEMU does not answer on"):
        Monitor(tmp_path / "qmp")
