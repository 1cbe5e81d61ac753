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
from ansible.errors import AnsibleError
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
        gone: _cell_lock.Holder | None = None
        for _attempt in range(_TRIES):
            answer = self._ask(cell, options["state"], mine, gone, task_vars or {})
            if "found" not in answer:
                display.warning(f"the cell {cell} is not {options['state']}: {_why(answer)}")
                return {**result, "changed": False}
            told = {**result, "changed": False, "found": answer["found"]}
            found = _cell_lock.as_holder(answer["found"])
            if options["state"] == "released" or found is None or found.run == mine.run:
                return told
            if found == gone:
                if options["force"]:
                    display.warning(f"took the cell {cell} from {found.owner}: {found.playbook}")
                return told
            try:
                _cell_lock.refuse(cell, found, mine, alive=_cell_lock.alive, force=options["force"])
            except _cell_lock.Locked as refusal:
                if not self._task.check_mode:
                    return {**result, "failed": True, "changed": False, "msg": str(refusal)}
                display.warning(str(refusal))
            if self._task.check_mode:
                return told
            gone = found
        return {
            **result,
            "failed": True,
            "changed": False,
            "msg": f"others take and leave the cell {cell} again and again; run again",
        }

    def _ask(
        self,
        cell: str,
        state: str,
        mine: _cell_lock.Holder,
        gone: _cell_lock.Holder | None,
        variables: dict[str, Any],
    ) -> dict[str, Any]:
        """What the module says; of a host that cannot be asked, why."""
        given = {
            "cell": cell,
            "state": state,
            "mine": json.dumps(mine._asdict()),
            "gone": json.dumps(gone._asdict() if gone else None),
        }
        try:
            answer: dict[str, Any] = self._execute_module(
                module_name=_MODULE, module_args=given, task_vars=variables
            )
        except AnsibleError as error:
            return {"msg": str(error)}
        return answer

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
            place=_cell_lock.place(),
        )


def _why(answer: dict[str, Any]) -> str:
    said = [answer.get(name) for name in ("msg", "module_stderr", "module_stdout")]
    return " ".join(next((str(text) for text in said if text), "no answer").split())[:300]
