# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Writes what a playbook run did to the file named by SPARKFLEET_RECORD; see ../playbook.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ansible.plugins.callback import CallbackBase

DOCUMENTATION = r"""
name: record
type: notification
short_description: Record the outcome of a playbook run for a test
description:
  - Records statistics of every host, and every result that changed or failed.
requirements:
  - The environment variable E(SPARKFLEET_RECORD) names the file to write.
"""


class CallbackModule(CallbackBase):
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "record"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.changed: list[dict[str, Any]] = []
        self.failed: list[dict[str, Any]] = []

    def _note(self, result: Any, notes: list[dict[str, Any]]) -> None:
        notes.append(
            {
                "host": result.host.get_name(),
                "task": result.task.get_name(),
                "action": result.task.resolved_action or result.task.action,
                "message": str(result.result.get("msg", "")),
            }
        )

    def v2_runner_on_ok(self, result: Any) -> None:
        if result.is_changed():
            self._note(result, self.changed)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            self._note(result, self.failed)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        self._note(result, self.failed)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        hosts = {host: stats.summarize(host) for host in sorted(stats.processed)}
        record = {"hosts": hosts, "changed": self.changed, "failed": self.failed}
        Path(os.environ["SPARKFLEET_RECORD"]).write_text(json.dumps(record), encoding="utf-8")
