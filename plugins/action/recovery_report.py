# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _recovery
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain

display = Display()

ARGUMENTS: dict[str, dict[str, Any]] = {
    "cell": {"type": "str", "required": True},
    "hosts": {"type": "list", "elements": "str", "required": True},
    "found": {"type": "dict", "required": True},
    "limits": {"type": "dict", "default": {}},
    "asked": {"type": "bool", "default": False},
}


class ActionModule(ActionBase):
    """Judge a cell with the rules of the watch, and show what was found."""

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, validated = self.validate_argument_spec(argument_spec=ARGUMENTS)
        options = plain(validated)
        hosts: list[str] = options["hosts"]
        found = {host: options["found"].get(host) or {} for host in hosts}
        ranks = {host: one["evidence"] for host, one in found.items() if one.get("evidence")}
        head = found[hosts[0]]
        try:
            limits = _recovery.Limits(**options["limits"])
        except TypeError as error:
            return {**result, "failed": True, "msg": f"limits: {error}"}
        verdict = _recovery.judge(
            ranks,
            hosts,
            record=head.get("record"),
            now=time.time(),
            limits=limits,
            who="a playbook",
            failures=limits.canary_failures,  # that many were asked for at once
            before=str((head.get("state") or {}).get("state", "")),
            asked=options["asked"],
        )
        lines = _recovery.lines(options["cell"], verdict, hosts)
        for line in ("", *lines):
            display.display(line)
        told = verdict._asdict()
        told.pop("found")
        missing = [host for host in hosts if host not in ranks]
        return {**result, **told, "changed": False, "missing": missing, "lines": lines}
