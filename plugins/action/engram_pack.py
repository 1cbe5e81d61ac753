# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain
from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import gib

display = Display()

POLL = 3.0  # seconds a connection is kept
CALM = 15.0  # seconds between two lines about a host


class ActionModule(ActionBase):
    """Watch the packing of a node with short connections, and tell how far it is."""

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = dict(task_vars or {})
        arguments = plain(dict(self._task.args))
        stage = arguments.get("stage", "all")
        started: dict[str, Any] = {}
        if stage != "watch":
            alone = {**arguments, "stage": "start"}
            started = self._ask(alone, variables)
            if stage == "start" or started.get("failed") or not started.get("running"):
                return {**result, **started}
        host = str(variables.get("inventory_hostname"))
        ended = self._watch({**arguments, "stage": "watch", "poll": POLL}, variables, host)
        changed = bool(started.get("changed"))
        kept = {name: started[name] for name in ("diff",) if name in started}
        return {**result, **kept, **ended, "changed": changed}

    def _watch(
        self, arguments: dict[str, Any], variables: dict[str, Any], host: str
    ) -> dict[str, Any]:
        patience = float(arguments.get("patience", 300))
        shown: float | None = None
        silent: float | None = None
        while True:
            try:
                found = self._ask(arguments, variables)
                why = found.get("silent")
            except AnsibleConnectionFailure as error:
                found, why = {}, f"{host} cannot be reached: {error}"
            if why:
                now = time.monotonic()
                silent = silent or now
                if now - silent > patience:
                    return {
                        "failed": True,
                        "msg": f"for {patience:.0f} s {why}. The packing on {host} goes on; run "
                        "again to watch it",
                    }
                if shown is None or now - shown >= CALM:
                    display.display(f"[{host}] waiting, for {patience:.0f} s at most: {why}")
                    shown = now
                time.sleep(POLL)
                continue
            silent = None
            told = found.get("progress") or {}
            if found.get("failed") or not found.get("running"):
                if told.get("phase") == "done":
                    display.display(f"[{host}] {end_of(told)}")
                return found
            if told and (shown is None or time.monotonic() - shown >= CALM):
                display.display(f"[{host}] {line_of(told)}")
                shown = time.monotonic()

    def _ask(self, arguments: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = self._execute_module(
            module_name="sparkfleet.cluster.engram_pack",
            module_args=arguments,
            task_vars=variables,
        )
        return answer


def line_of(told: Mapping[str, Any]) -> str:
    """How far a packing is, in one line."""
    total = max(told["bytes_total"], 1)
    share = f"{100 * told['bytes_done'] // total} % of {gib(total)}"
    where = "rows" if told["layer"] is None else f"layer {told['layer']}"
    parts = [f"{told['phase']} Engram {where}: {share}"]
    if told["rate"]:
        parts.append(f"{told['rate'] / 2**20:.0f} MiB/s")
    if told["seconds_left"] is not None:
        parts.append(f"{clock(told['seconds_left'])} left")
    return ", ".join(parts)


def end_of(told: Mapping[str, Any]) -> str:
    """What a packing did, in one line."""
    worked = told["bytes_total"] - told["bytes_resumed"]
    rate = f", {told['rate'] / 2**20:.0f} MiB/s" if told["rate"] else ""
    kept = f" ({gib(told['bytes_resumed'])} were there)" if told["bytes_resumed"] else ""
    notes = "".join(f"; {note}" for note in told["notes"])
    return f"Engram rows done: {gib(worked)}{kept} in {clock(told['seconds'])}{rate}{notes}"


def clock(seconds: float) -> str:
    """Seconds as minutes and seconds.

    >>> clock(75.2)
    '1:15'
    """
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
