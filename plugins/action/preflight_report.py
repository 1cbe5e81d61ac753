# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import time
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain
from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_checks import (
    SettingsError,
    evaluate,
    summarise,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_model import Settings
from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_table import (
    failures,
    render,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import default_path
from ansible_collections.sparkfleet.cluster.plugins.plugin_utils._report_file import keep

display = Display()

# Of the file; readers refuse a number they do not know.
FORMAT = 1

SETTINGS: dict[str, dict[str, Any]] = {
    "skip": {"type": "list", "elements": "str", "default": []},
    "severity": {"type": "dict", "default": {}},
    "rdma_netdevs": {"type": "list", "elements": "str", "required": True},
    "pcie_width": {"type": "int", "required": True},
    "pcie_speed": {"type": "float", "required": True},
    "memory_total_gib": {"type": "float", "required": True},
    "memory_available_gib": {"type": "float", "required": True},
    "swap_max_gib": {"type": "float", "required": True},
    "images_gib": {"type": "float", "required": True},
    "clock_skew": {"type": "float", "required": True},
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    "cell": {"type": "str", "required": True},
    "members": {"type": "list", "elements": "str", "required": True},
    "results": {"type": "dict", "required": True},
    "settings": {"type": "dict", "required": True, "options": SETTINGS},
    "path": {"type": "path", "default": ""},
}
_COLOURS = {
    "fail": "COLOR_ERROR",
    "warn": "COLOR_WARN",
    "unknown": "COLOR_WARN",
    "note": "COLOR_HIGHLIGHT",
    "ok": "COLOR_OK",
    "skip": "COLOR_SKIP",
}


class ActionModule(ActionBase):
    """Judge what was read on all hosts, show it as one table and keep it as one file."""

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, validated = self.validate_argument_spec(argument_spec=ARGUMENTS)
        options = plain(validated)
        members = options["members"]
        try:
            rows = evaluate(options["results"], members, Settings(**options["settings"]))
        except SettingsError as error:
            raise AnsibleActionFail(str(error)) from error
        summary = summarise(rows)
        for line in render(rows, summary, options["cell"]):
            display.display(line.text, color=_colour(line.status))
        message = f"cell {options['cell']} is ready"
        if not summary["ready"]:
            message = f"cell {options['cell']} is not ready: {failures(rows)}"
        report = {
            "format": FORMAT,
            "cell": options["cell"],
            "members": members,
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "summary": summary,
            "rows": rows,
            "results": options["results"],
        }
        path = options["path"] or default_path(f"preflight-{options['cell']}.json")
        files: list[str] = []
        if not self._task.check_mode:
            text = json.dumps(report, indent=1) + "\n"
            files = keep(path, text, "The preflight report is not written")
        result.update(
            changed=False,
            msg=message,
            rows=plain(rows),
            summary=plain(summary),
            path=files[0] if files else None,
        )
        return result


def _colour(status: str | None) -> str | None:
    if status is None:
        return None
    return str(constants.config.get_config_value(_COLOURS[status]))
