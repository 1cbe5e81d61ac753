# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain

display = Display()

_PAUSES = (0.5, 1.0, 1.0, 2.0, 3.0)  # then the last one again
_CALM = 10.0  # seconds between two lines of progress


class ActionModule(ActionBase):
    """Watch the work of a node with short connections; every other stage is the module's alone."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = dict(task_vars or {})
        arguments = plain(dict(self._task.args))
        if arguments.get("stage") != "watch":
            return {**result, **self._ask(arguments, variables)}
        host = str(variables.get("inventory_hostname"))
        name = arguments.get("name")
        begun = shown_at = time.monotonic()
        shown, silent, turn = "", None, 0
        timeout, patience = (
            float(arguments.get("timeout", 7200)),
            float(arguments.get("patience", 300)),
        )
        while True:
            now = time.monotonic()
            try:
                found = self._ask(arguments, variables)
                silent = None
            except AnsibleConnectionFailure as error:
                silent = silent or now
                if now - silent > patience:
                    return {
                        **result,
                        "failed": True,
                        "msg": f"{host} cannot be reached for {patience:.0f} s: {error}. The work "
                        f"{name} goes on there; run again to watch it.",
                    }
                found = {"state": "unknown", "last": "the node cannot be reached, trying again"}
            if found.get("failed"):
                return {**result, **found}
            if found["state"] not in {"running", "unknown"}:
                break
            line = found["last"]
            if line and line != shown and (not shown or now - shown_at >= _CALM):
                display.display(f"[{host}] {name} {_clock(now - begun)}: {line[:120]}")
                shown, shown_at = line, now
            if now - begun > timeout:
                return {
                    **result,
                    **found,
                    "failed": True,
                    "msg": f"{name} on {host} is not done after {timeout:.0f} s, and goes on. Its "
                    f"log there is {found.get('log')}; run again to watch it.",
                }
            time.sleep(_PAUSES[min(turn, len(_PAUSES) - 1)])
            turn += 1
        if found["state"] == "absent":
            if self._task.check_mode:
                return {**result, **found, "changed": False}
            return {
                **result,
                **found,
                "failed": True,
                "msg": f"{name} on {host} is gone: it was ended, or the node restarted. Its log "
                f"is {found['log']}, if there is any; run again to start it anew.",
            }
        if found["state"] == "failed":
            said = "\n".join(found["tail"][-15:]) or "(it printed nothing)"
            return {
                **result,
                **found,
                "failed": True,
                "msg": f"{name} on {host} ended with {found['result']}, status {found['rc']}. "
                f"Its log {found['log']} ends with:\n{said}",
            }
        self._ask({**arguments, "stage": "clear"}, variables)
        return {**result, **found, "changed": False}

    def _ask(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name="sparkfleet.cluster.detached_command",
            module_args=arguments,
            task_vars=variables,
        )
        return answer


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
