# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import time
from typing import Any

from ansible import constants
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _verify_report as report
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import default_path
from ansible_collections.sparkfleet.cluster.plugins.plugin_utils._report_file import keep

display = Display()

# Of the JSON file; readers refuse a number they do not know.
FORMAT = 1

ARGUMENTS: dict[str, dict[str, Any]] = {
    "cell": {"type": "str", "required": True},
    "result": {"type": "dict", "required": True},
    "optional": {"type": "list", "elements": "str", "default": []},
    "path": {"type": "path", "default": ""},
}
_COLOURS = {
    "failed": "COLOR_ERROR",
    "not_applicable": "COLOR_SKIP",
    "skipped": "COLOR_SKIP",
    "passed": "COLOR_OK",
}


class ActionModule(ActionBase):
    """Show what came out of a verification, and keep it as files."""

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, validated = self.validate_argument_spec(argument_spec=ARGUMENTS)
        options = plain(validated)
        found, cell, optional = options["result"], options["cell"], options["optional"]
        for line in report.table(found, cell, optional):
            colour = line.verdict and constants.config.get_config_value(_COLOURS[line.verdict])
            display.display(line.text, color=colour and str(colour))
        written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        names = ("url", "model", "stand_in", "open", "passed", "checks")
        kept = {"format": FORMAT, "cell": cell, "written": written, "optional": optional}
        kept |= {name: found[name] for name in names}
        path = options["path"] or default_path(f"verify-{cell}")
        texts = {
            f"{path}.json": json.dumps(kept, indent=1) + "\n",
            f"{path}.xml": report.junit(found, cell, written),
            f"{path}.md": report.markdown(found, cell, written),
        }
        result.update(
            changed=False,
            failures=report.failures(found, optional),
            summary=report.summary(found),
            files=[]
            if self._task.check_mode
            else [file for item in texts.items() for file in keep(*item)],
        )
        return result
