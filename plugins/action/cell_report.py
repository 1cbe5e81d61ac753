# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.sparkfleet.cluster.plugins.module_utils._cell_status import (
    status_lines,
    summary_lines,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import default_path

display = Display()

_PARTS = ("preflight", "fabric", "serving", "entry", "verify")
ARGUMENTS: dict[str, dict[str, Any]] = {
    "cell": {"type": "str", "required": True},
    "head": {"type": "str", "default": ""},
    "hosts": {"type": "list", "elements": "dict", "default": []},
    "api": {"type": "dict"},
    "tables": {"type": "dict", "default": {}},
    "fabric_path": {"type": "path", "default": ""},
    "verify_path": {"type": "path", "default": ""},
    **{part: {"type": "dict"} for part in _PARTS},
}


class ActionModule(ActionBase):
    """Show a cell as it is, or what a run has shown of it."""

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, validated = self.validate_argument_spec(argument_spec=ARGUMENTS)
        options = plain(validated)
        cell = options["cell"]
        if options["hosts"]:
            lines = status_lines(
                cell,
                options["hosts"],
                api=options["api"],
                fabric=_report(options["fabric_path"] or default_path(f"fabric-{cell}")),
                verify=_report(options["verify_path"] or default_path(f"verify-{cell}")),
            )
        else:
            parts = {part: options[part] for part in (*_PARTS, "tables", "head")}
            lines = summary_lines(cell, **parts)
        for line in ("", *lines):
            display.display(line)
        result.update(changed=False, lines=lines)
        return result


def _report(path: str) -> dict[str, Any] | None:
    """A report of an earlier run; none where there is none that can be read."""
    try:
        with open(f"{path}.json", encoding="utf-8") as stream:
            found = json.load(stream)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        display.warning(f"Not read: {path}.json: {error}")
        return None
    return found if isinstance(found, dict) and found.get("format") == 1 else None
