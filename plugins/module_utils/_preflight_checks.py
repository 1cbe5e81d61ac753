# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Judge what the probes of all nodes of a cell found.

A check looks at the whole cell and yields one finding per host. A finding is good, bad or unknown;
the severity of its check turns a bad one into a failure, a warning or a note. What could not be
read is unknown, and unknown is never good.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_model import (
    Cell,
    Node,
    Settings,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_rules import CHECKS
from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import suggestion

SEVERITIES = ("error", "warning", "info")

_STATUS_OF_BAD = {"error": "fail", "warning": "warn", "info": "note"}
# From the gravest to the least; a check counts as the gravest of its rows.
STATUSES = ("fail", "warn", "unknown", "note", "ok", "skip")


class SettingsError(ValueError):
    """A setting that names something that does not exist."""


def evaluate(
    results: Mapping[str, Mapping[str, Any]], members: Sequence[str], settings: Settings
) -> list[dict[str, str]]:
    """Judge a cell.

    `results` holds what `preflight_info` returned for each host that was looked at, `members` all
    hosts of the cell in rank order. Returns rows of check, host, severity, status, found, expected
    and fix, in the order of the checks. Raises `SettingsError` for a check that does not exist.
    """
    severities = _severities(settings)
    cell = Cell(
        members, [Node(name, results[name]) for name in members if name in results], settings
    )
    rows = []
    for name, check in CHECKS.items():
        findings = check.judge(cell)
        if name in settings.skip:
            findings = [node.skip("preflight_skip") for node in cell.nodes]
        rows += [
            {
                "check": name,
                "host": finding.host,
                "severity": severities[name],
                "status": _status(finding.verdict, severities[name]),
                "found": finding.found,
                "expected": finding.expected,
                "fix": finding.fix,
            }
            for finding in findings
        ]
    return rows


def summarise(rows: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Count checks by the gravest status any host has; `ready` when none failed."""
    by_check: dict[str, set[str]] = {}
    for row in rows:
        by_check.setdefault(row["check"], set()).add(row["status"])
    worst = {
        check: next(status for status in STATUSES if status in statuses)
        for check, statuses in by_check.items()
    }
    groups = {
        status: [check for check, of_check in worst.items() if of_check == status]
        for status in STATUSES
    }
    return {
        "ready": not groups["fail"],
        "checks": len(worst),
        "hosts": list(dict.fromkeys(row["host"] for row in rows)),
        **groups,
    }


def _severities(settings: Settings) -> dict[str, str]:
    chosen = dict(settings.severity or {})
    for variable, names in (("preflight_skip", settings.skip), ("preflight_severity", chosen)):
        for name in names:
            if name not in CHECKS:
                raise SettingsError(
                    f"{variable} names the check {name!r}, which does not exist"
                    f"{suggestion(name, CHECKS)}. The checks are: {', '.join(CHECKS)}."
                )
    for name, severity in chosen.items():
        if severity not in SEVERITIES:
            raise SettingsError(
                f"preflight_severity sets {name} to {severity!r}; use {', '.join(SEVERITIES)}."
            )
    return {name: chosen.get(name, check.severity) for name, check in CHECKS.items()}


def _status(verdict: str, severity: str) -> str:
    return {"good": "ok", "bad": _STATUS_OF_BAD[severity]}.get(verdict, verdict)
