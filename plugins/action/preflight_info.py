# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.sparkfleet.cluster.plugins.module_utils._reach import Problem, diagnose

# Asked in a plain shell, where no module runs: which usual Python starts at all?
_FIND_PYTHON = (
    "for p in /usr/bin/python3 /usr/local/bin/python3 python3; do "
    'if "$p" -c \'import json\' >/dev/null 2>&1; then command -v "$p"; break; fi; done'
)


class ActionModule(ActionBase):
    """Run the module with the controller's clock around it, and turn what stops it into data.

    One broken host must not hide what is wrong with the others, so an unreachable host, a sudo that
    wants a password and a Python that does not start are results here and rows of the table later.
    """

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = dict(task_vars or {})
        problems: list[Problem] = []
        while True:
            before = time.time()
            answer = self._attempt(variables)
            after = time.time()
            if not answer.get("failed"):
                break
            problem = self._diagnose(answer, variables)
            again = problem.check not in {known.check for known in problems}
            problems.append(problem)
            if not again or not self._work_around(problems, variables):
                break
        result.update(
            changed=False,
            probe=answer.get("probe"),
            wanted=answer.get("wanted"),
            clock={**answer.get("clock", {}), "before": before, "after": after},
            problems=[problem._asdict() for problem in problems],
        )
        if "ansible_facts" in answer:
            result["ansible_facts"] = answer["ansible_facts"]
        return result

    def _attempt(self, variables: dict[str, Any]) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = self._execute_module(
                module_name="sparkfleet.cluster.preflight_info",
                module_args=dict(self._task.args),
                task_vars=variables,
            )
        except AnsibleConnectionFailure as error:
            return {"failed": True, "unreachable": True, "msg": str(error)}
        except AnsibleError as error:
            return {"failed": True, "msg": str(error)}
        return answer

    def _diagnose(self, answer: Mapping[str, Any], variables: Mapping[str, Any]) -> Problem:
        said = (answer.get("module_stderr"), answer.get("module_stdout"), answer.get("msg"))
        interpreter = self._used_interpreter
        return diagnose(
            "\n".join(str(text) for text in said if text),
            unreachable=bool(answer.get("unreachable")),
            host=str(variables.get("inventory_hostname")),
            user=self._get_remote_user(),
            python=interpreter.lstrip("#!") if interpreter else None,
        )

    def _work_around(self, problems: list[Problem], variables: dict[str, Any]) -> bool:
        """Make another attempt possible; the rest of the host is worth reading all the same."""
        problem = problems[-1]
        if problem.check == "sudo":
            self._connection.become = None
            return True
        if problem.check == "python":
            found = self._low_level_execute_command(_FIND_PYTHON, sudoable=False)
            python = str(found.get("stdout", "")).strip()
            if python:
                fix = f"set ansible_python_interpreter: {python}"
                problems[-1] = problem._replace(fix=fix)
                variables["ansible_python_interpreter"] = python
                return True
        return False
