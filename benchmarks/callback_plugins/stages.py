# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes when plays began and tasks ended, in seconds since the run began, to SPARKFLEET_STAGES."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = """
name: stages
type: notification
short_description: When plays began and tasks ended
description: For benchmarks/no_change.py.
"""


class CallbackModule(CallbackBase):
    """Notes times; plays that came from a playbook of their own have that play's name."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "stages"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._begun = time.monotonic()
        self._plays: list[tuple[str, float]] = []
        self._ended: dict[str, float] = {}
        self._tasks = 0

    def _now(self) -> float:
        return round(time.monotonic() - self._begun, 2)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Note when a play began."""
        self._plays.append((play.get_name(), self._now()))

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:  # noqa: ARG002
        """Count a task."""
        self._tasks += 1

    def v2_runner_on_ok(self, result: Any) -> None:
        """Note when a task ended on a host; the last counts."""
        self._ended[str(result.task.name)] = self._now()

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write it all."""
        hosts = {host: stats.summarize(host) for host in sorted(stats.processed)}
        told = {"plays": self._plays, "ended": self._ended, "tasks": self._tasks}
        told |= {"seconds": self._now(), "hosts": hosts}
        Path(os.environ["SPARKFLEET_STAGES"]).write_text(json.dumps(told), encoding="utf-8")
