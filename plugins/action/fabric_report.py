# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from typing import Any

from ansible.errors import AnsibleTemplatePluginError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.sparkfleet.cluster.plugins.filter.fabric_diagram import fabric_diagram
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import default_path
from ansible_collections.sparkfleet.cluster.plugins.plugin_utils._report_file import keep

display = Display()

# Of the file; readers refuse a number they do not know.
FORMAT = 1

ARGUMENTS: dict[str, dict[str, Any]] = {
    "cell": {"type": "str", "required": True},
    "plan": {"type": "dict", "required": True},
    "cables": {"type": "dict", "required": True},
    "verdict": {"type": "dict"},
    "keep": {"type": "bool", "default": True},
    "path": {"type": "path", "default": ""},
}


class ActionModule(ActionBase):
    """Show the fabric of a cell as a drawing and a table, and keep it as files."""

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, validated = self.validate_argument_spec(argument_spec=ARGUMENTS)
        options = plain(validated)
        plan, cables, verdict = options["plan"], options["cables"], options["verdict"]
        measured = verdict["measured"] if verdict else None
        drawing = {"observed": cables["cables"], "measured": measured}
        if not verdict or measured:
            display.display(fabric_diagram(plan, "text", **drawing))
        if verdict:
            display.display(verdict["text"])
        files: list[str] = []
        if verdict and options["keep"] and not self._task.check_mode:
            path = options["path"] or default_path(f"fabric-{options['cell']}")
            report = {"format": FORMAT, "cell": options["cell"], "plan": plan}
            report |= {"cables": cables, "verdict": verdict}
            files += keep(f"{path}.json", json.dumps(report, indent=1) + "\n")
            try:
                files += keep(f"{path}.svg", fabric_diagram(plan, "svg", **drawing))
            except AnsibleTemplatePluginError as error:  # without the drawing library
                display.warning(f"The picture is not drawn: {error.message}")
        result.update(changed=False, files=files)
        return result
