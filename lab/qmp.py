# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Talking to a running QEMU over its control socket (the QEMU Machine Protocol, JSON lines)."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from lab.system import LabError


class Monitor:
    """One conversation with one QEMU. QEMU serves one at a time; others wait for the greeting.

    :raises LabError: on every failure: no such socket, no answer in time, a refused command.
    """

    def __init__(self, path: Path, seconds: float = 20) -> None:
        self.path = path
        self._events: list[dict[str, Any]] = []
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(seconds)
        try:
            self._socket.connect(str(path))
            self._lines = self._socket.makefile("rw", encoding="utf-8")
            self._read()  # the greeting
        except OSError as error:
            self._socket.close()
            raise LabError(f"QEMU does not answer on {path}: {error}") from error
        self.execute("qmp_capabilities")

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lines.close()
        self._socket.close()

    def execute(self, command: str, **arguments: Any) -> Any:
        """What the command returned; events that come in between are kept for `wait_event`."""
        words = {name.replace("_", "-"): value for name, value in arguments.items()}
        try:
            self._lines.write(json.dumps({"execute": command, "arguments": words}) + "\n")
            self._lines.flush()
            while True:
                answer = self._read()
                if "return" in answer:
                    return answer["return"]
                if "error" in answer:
                    raise LabError(f"QEMU refused {command} {words}: {answer['error']['desc']}")
                self._events.append(answer)
        except OSError as error:
            raise LabError(f"QEMU did not answer {command} on {self.path}: {error}") from error

    def wait_event(
        self, name: str, seconds: float, wanted: Callable[[dict[str, Any]], bool]
    ) -> dict[str, Any]:
        """The data of the first wanted event of that name, already seen or still to come."""
        deadline = time.monotonic() + seconds
        while True:
            for event in self._events:
                if event.get("event") == name and wanted(event.get("data", {})):
                    self._events.remove(event)
                    return dict(event.get("data", {}))
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                self._events.append(self._read())
            except OSError as error:
                raise LabError(f"no {name} from QEMU on {self.path} in {seconds:.0f} s") from error

    def _read(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise ConnectionError("QEMU closed the connection")
        answer: dict[str, Any] = json.loads(line)
        return answer
