# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _fleet_run
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain

display = Display()

_PLAYBOOKS = Path(__file__).parents[2] / "playbooks"


class _Run(threading.Thread):
    """One cell: its process, and its lines as they come."""

    def __init__(self, cell: str, argv: list[str]) -> None:
        super().__init__(daemon=True)
        self.cell = cell
        self.lines: list[str] = []
        self.rc: int | None = None
        self.seconds = 0.0
        self._argv = argv

    def run(self) -> None:
        began = time.monotonic()
        with subprocess.Popen(
            self._argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        ) as process:
            for line in process.stdout or ():
                self.lines.append(line.rstrip("\n"))
                display.display(f"{self.cell} | {line.rstrip()}")
        self.rc = process.returncode
        self.seconds = round(time.monotonic() - began, 1)

    def told(self) -> dict[str, Any]:
        return {
            "cell": self.cell,
            "rc": self.rc,
            "seconds": self.seconds,
            "changed": _fleet_run.changed(self.lines),
        }


class ActionModule(ActionBase):
    """Run ansible-playbook for every cell on this controller."""

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _validation, validated = self.validate_argument_spec(
            argument_spec={
                "playbook": {"type": "str", "required": True},
                "cells": {"type": "list", "elements": "str", "required": True},
                "serial": {"type": "bool", "default": False},
            }
        )
        options = plain(validated)
        cells: list[str] = options["cells"]
        line = dict(context.CLIARGS)
        groups = {name: list(hosts) for name, hosts in variables.get("groups", {}).items()}
        problems = _fleet_run.problems(line, cells, groups)
        playbook = _PLAYBOOKS / f"{options['playbook']}.yml"
        if not playbook.is_file():
            known = ", ".join(sorted(path.stem for path in _PLAYBOOKS.glob("*.yml")))
            problems.append(f"no playbook is called {options['playbook']}; there are: {known}")
        if problems:
            return {**result, "failed": True, "changed": False, "msg": "\n".join(problems)}
        runs = [
            _Run(cell, _fleet_run.command(sys.executable, line, str(playbook), cell))
            for cell in dict.fromkeys(cells)
        ]
        for run in runs:
            run.start()
            if options["serial"]:
                run.join()
                if run.rc != 0:
                    break
        for run in runs:
            if run.ident is not None:  # begun
                run.join()
        result.update(changed=any(run.told()["changed"] for run in runs))
        result["cells"] = [run.told() for run in runs]
        failed = [run for run in runs if run.rc not in (0, None)]
        if failed:
            left = [run.cell for run in runs if run.rc is None]
            said = [f"{run.cell}: {_fleet_run.cause(run.lines)}" for run in failed]
            if left:
                said.append(f"not begun after that: {', '.join(left)}")
            result.update(failed=True, msg="\n".join(said))
        return result
