# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import getpass
import json
import os
import socket
import time
from typing import Any

from ansible import context
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _cell_lock

display = Display()

_MODULE = "sparkfleet.cluster.cell_lock"
_TRIES = 5  # somebody else may write between a look and a change


class ActionModule(ActionBase):
    """Say who this run is, and decide here: only the controller knows whether a process lives."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, options = self.validate_argument_spec(
            argument_spec={
                "cell": {"type": "str", "required": True},
                "state": {"type": "str", "choices": ["held", "released"], "default": "held"},
                "force": {"type": "bool", "default": False},
            }
        )
        cell = str(options["cell"])
        mine = self._mine()
        wanted: _cell_lock.Holder | None
        for _attempt in range(_TRIES):
            looked = self._ask(cell, task_vars, look=True)
            if looked.get("failed") or looked.get("unreachable"):
                return {**result, **looked}
            found = _cell_lock.as_holder(looked["found"])
            try:
                if options["state"] == "held":
                    wanted = _cell_lock.take(
                        cell, found, mine, alive=_cell_lock.alive, force=options["force"]
                    )
                else:
                    wanted = _cell_lock.give(found, mine)
            except _cell_lock.Locked as refusal:
                if not self._task.check_mode:
                    return {**result, "failed": True, "changed": False, "msg": str(refusal)}
                display.warning(str(refusal))
                wanted = found
            told = {**result, "changed": False, "found": looked["found"]}
            if self._task.check_mode or wanted == found:
                return told
            done = self._ask(
                cell,
                task_vars,
                expected=json.dumps(found._asdict() if found else None),
                wanted=json.dumps(wanted._asdict() if wanted else None),
            )
            if done.get("failed") or done.get("unreachable"):
                return {**result, **done}
            if _cell_lock.as_holder(done["found"]) == found:
                if options["force"] and found and found.run != mine.run:
                    display.warning(f"took the cell {cell} from {found.owner}: {found.playbook}")
                return told
        return {
            **result,
            "failed": True,
            "changed": False,
            "msg": f"others take and leave the cell {cell} again and again; run again",
        }

    def _ask(self, cell: str, variables: dict[str, Any] | None, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = self._execute_module(
            module_name=_MODULE, module_args={"cell": cell, **more}, task_vars=variables or {}
        )
        return found

    @staticmethod
    def _mine() -> _cell_lock.Holder:
        pid = os.getppid()  # this is a process of a task; its parent runs the playbook
        try:
            user = getpass.getuser()
        except (KeyError, OSError):
            user = str(os.getuid())
        return _cell_lock.Holder(
            owner=f"{user}@{socket.gethostname()}",
            playbook=" ".join(str(word) for word in context.CLIARGS.get("args", ()))
            or "a playbook",
            pid=pid,
            born=_cell_lock.born(pid),
            since=round(time.time(), 1),
        )
