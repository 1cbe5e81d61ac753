# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.sparkfleet.cluster.plugins.module_utils import (
    _benchmark_report as report,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import default_path
from ansible_collections.sparkfleet.cluster.plugins.plugin_utils._report_file import keep

display = Display()

ARGUMENTS: dict[str, dict[str, Any]] = {
    "cell": {"type": "str", "required": True},
    "url": {"type": "str", "required": True},
    "points": {"type": "list", "elements": "dict", "required": True},
    "ranks": {"type": "dict", "default": {}},
    "path": {"type": "path", "default": ""},
    "compare": {"type": "path", "default": ""},
}


class ActionModule(ActionBase):
    """Show what a benchmark came to, keep it as files, and hold it against an earlier one."""

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, validated = self.validate_argument_spec(argument_spec=ARGUMENTS)
        options = plain(validated)
        points = [{**point, "kind": report.kind_of(point)} for point in options["points"] if point]
        result.update(changed=False, files=[], comparison=[])
        if not points:  # as in check mode
            return result
        hosts = {
            name: {
                "settings": rank.get("settings"),
                "image": (rank.get("image") or {}).get("content"),
            }
            for name, rank in options["ranks"].items()
        }
        run = {
            "format": report.FORMAT,
            "cell": options["cell"],
            "written": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "url": options["url"],
            "model": points[0]["model"],
            "stand_in": any(point["stand_in"] for point in points),
            "configuration": report.configuration_hash(hosts),
            "hosts": hosts,
            "points": points,
        }
        page = report.markdown(run)
        for line in report.table(run):
            display.display(line)
        if options["compare"]:
            before = self._earlier(options["compare"])
            try:
                result["comparison"] = report.comparison_lines(before, run)
                page += report.comparison_markdown(before, run)
            except report.ReportError as error:
                raise AnsibleActionFail(
                    f"compare: {options['compare']} cannot be compared: {error}"
                ) from error
            for line in ("", *result["comparison"]):
                display.display(line)
        result.update(configuration=run["configuration"], written=run["written"])
        if not self._task.check_mode:
            path = options["path"] or default_path(f"benchmark-{options['cell']}")
            result["files"] = self._keep(path, run, page)
        return result

    def _earlier(self, path: str) -> Any:
        try:
            with open(path, encoding="utf-8") as stream:
                return json.load(stream)
        except (OSError, ValueError) as error:
            raise AnsibleActionFail(
                f"compare: {path} cannot be read ({error}), expected the JSON file of an earlier "
                "benchmark"
            ) from error

    def _keep(self, path: str, run: dict[str, Any], page: str) -> list[str]:
        files = keep(f"{path}.json", json.dumps(run, indent=1) + "\n")
        try:
            drawing = report.picture(run)
        except report.ReportError as error:
            display.warning(f"No picture: {error}")
            return files + keep(f"{path}.md", page)
        files += keep(f"{path}.svg", drawing.as_svg())
        try:
            drawing.save_png(f"{path}.png")
            files.append(f"{path}.png")
        except ImportError:
            display.warning(
                "No PNG beside the SVG, which needs CairoSVG on the controller; next: pip install "
                "'drawsvg[raster]', and the distribution's libcairo2"
            )
        except OSError as error:  # no libcairo2, or nowhere to write
            display.warning(f"No PNG beside the SVG: {str(error).strip().splitlines()[0]}")
        name = os.path.basename(path)
        return files + keep(f"{path}.md", f"{page}\n![The same as bars]({name}.svg)\n")
