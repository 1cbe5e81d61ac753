# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.template import trust_as_template
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import PlanError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain


class ActionModule(ActionBase):
    """Compute a lazy variable, so that its refusal is one of this task and no accident."""

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        self.validate_argument_spec(argument_spec={})
        try:
            plan = plain(self._templar.evaluate_expression(trust_as_template("spark_serving")))
        except AnsibleError as error:
            return {**result, "failed": True, "changed": False, "msg": _reason(error)}
        return {**result, "changed": False, "plan": plan}


def _reason(error: BaseException) -> str:
    """The refusal of a plan without what Ansible says around it."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, PlanError):
            return str(inner)
        inner = inner.__cause__ or inner.__context__
    return str(error)
