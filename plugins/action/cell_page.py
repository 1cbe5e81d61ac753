# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.sparkfleet.cluster.plugins.filter.fabric_diagram import fabric_diagram
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import (
    default_path,
    write_whole,
)
from ansible_collections.sparkfleet.cluster.plugins.plugin_utils._cell_page import page
from ansible_collections.sparkfleet.cluster.plugins.plugin_utils._report_file import keep

display = Display()

# Of the file beside the page; what has another number is not read.
FORMAT = 1

# What only the run knows, and the next page therefore takes from the last.
_REMEMBERED = ("plan", "launch", "hosts", "tables", "entry")
_PARTS = ("preflight", "fabric", "verify")
ARGUMENTS: dict[str, dict[str, Any]] = {
    "cell": {"type": "str", "required": True},
    "head": {"type": "str", "default": ""},
    "hosts": {"type": "list", "elements": "dict", "default": []},
    "optional": {"type": "list", "elements": "str", "default": []},
    "preflight_path": {"type": "path", "default": ""},
    "fabric_path": {"type": "path", "default": ""},
    "path": {"type": "path", "default": ""},
    **{
        part: {"type": "dict", "default": {}} for part in (*_PARTS, *_REMEMBERED) if part != "hosts"
    },
}


class ActionModule(ActionBase):
    """Write a page about a cell from this run and the last reports."""

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, validated = self.validate_argument_spec(argument_spec=ARGUMENTS)
        options = plain(validated)
        result.update(changed=False, files=[])
        if self._task.check_mode:
            return result
        cell = options["cell"]
        path = options["path"] or default_path(f"cell-{cell}.html")
        memory = f"{os.path.splitext(path)[0]}.json"
        written = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        remembered = (_read(memory) or {}).get("parts", {})
        times: dict[str, str] = {}
        parts: dict[str, Any] = {}
        for name in _REMEMBERED:
            if options[name]:
                remembered[name] = {"written": written, "found": options[name]}
            elif name in remembered:
                times[name] = remembered[name]["written"]
            parts[name] = (remembered.get(name) or {}).get("found") or None
        for name in _PARTS:
            parts[name] = options[name] or None
        if parts["verify"]:
            parts["verify"]["optional"] = options["optional"]
        else:
            parts["verify"] = _earlier(default_path(f"verify-{cell}.json"), "verify", times)
        if not parts["preflight"]:
            report = options["preflight_path"] or default_path(f"preflight-{cell}.json")
            parts["preflight"] = _earlier(report, "preflight", times)
        # The last one that was measured; a run that measures nothing leaves it as it is.
        report = options["fabric_path"] or default_path(f"fabric-{cell}")
        links = _earlier(f"{report}.json", "fabric", times)
        if links:
            parts["fabric"], parts["plan"] = links["verdict"], links["plan"]
        parts["benchmark"] = _earlier(default_path(f"benchmark-{cell}.json"), "benchmark", times)
        parts["hosts"] = parts["hosts"] or []
        text = page(
            cell,
            written=written,
            head=options["head"],
            times=times,
            **_drawn(parts["plan"], links, parts["fabric"]),
            **parts,
        )
        told = json.dumps({"format": FORMAT, "cell": cell, "parts": remembered}) + "\n"
        result["files"] = keep(path, text, "The page is not written")
        with contextlib.suppress(OSError):  # the next page then tells less
            write_whole(memory, told)
        return result


def _drawn(
    plan: dict[str, Any] | None, links: dict[str, Any] | None, verdict: dict[str, Any] | None
) -> dict[str, Any]:
    """The fabric as a picture, as text where it cannot be drawn, or nothing."""
    if not plan:
        return {}
    proven = {"observed": None, "measured": verdict["measured"] if verdict else None}
    if links:
        proven["observed"] = links["cables"]["cables"]
    elif verdict:
        # Full frames between planned addresses went both ways, so these are the planned cables.
        proven["observed"] = [
            {"ends": link["ends"]}
            for link in verdict["links"]
            if all(all(twin["ping"].values()) for twin in link["twins"])
        ]
    try:
        return {"picture": fabric_diagram(plan, "svg", **proven)}
    except AnsibleError:  # without the drawing library
        return {"drawing": fabric_diagram(plan, "text", **proven)}


def _earlier(path: str, part: str, times: dict[str, str]) -> dict[str, Any] | None:
    """A report of an earlier run, whose time is noted."""
    found = _read(path)
    if found:
        moment = time.gmtime(os.path.getmtime(path))
        times[part] = time.strftime("%Y-%m-%d %H:%M UTC", moment)
    return found


def _read(path: str) -> dict[str, Any] | None:
    """A report; none where there is none that can be read."""
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        display.warning(f"Not read: {path}: {error}")
        return None
    return found if isinstance(found, dict) and found.get("format") == FORMAT else None
