# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes when stages began and tasks ended, in seconds since the run began, to SPARKFLEET_STAGES.

A stage is a role, or a play where a task belongs to none.
"""

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
short_description: When stages began and tasks ended
description: For benchmarks/no_change.py.
"""


class CallbackModule(CallbackBase):
    """Notes times, from one change of stage to the next."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "stages"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self._begun = time.monotonic()
        self._play = ""
        self._stages: list[tuple[str, float]] = []
        self._ended: dict[str, float] = {}
        self._tasks = 0

    def _now(self) -> float:
        return round(time.monotonic() - self._begun, 2)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Note which play it is."""
        self._play = play.get_name()

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:  # noqa: ARG002
        """Count a task, and note when it begins a stage."""
        self._tasks += 1
        role = task._role  # noqa: SLF001  # no other way to a task's role
        stage = role.get_name(include_role_fqcn=False) if role else self._play
        if not self._stages or self._stages[-1][0] != stage:
            self._stages.append((stage, self._now()))

    def v2_runner_on_ok(self, result: Any) -> None:
        """Note when a task ended on a host; the last counts."""
        self._ended[str(result.task.name)] = self._now()

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Write it all."""
        hosts = {host: stats.summarize(host) for host in sorted(stats.processed)}
        told = {"stages": self._stages, "ended": self._ended, "tasks": self._tasks}
        told |= {"seconds": self._now(), "hosts": hosts}
        Path(os.environ["SPARKFLEET_STAGES"]).write_text(json.dumps(told), encoding="utf-8")
