# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Preflight's rows as one table for people: plain text, what is wrong first, equal hosts folded."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_checks import STATUSES
from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import fold_hosts

WIDTH = 110

_LABELS = {"fail": "FAIL"}
_HEADINGS = ("", "check", "host", "found", "expected")
_COLUMNS = (8, 15, 23, 34, WIDTH - 8 - 15 - 23 - 34)
_WIDE = (*_COLUMNS[:3], _COLUMNS[3] + _COLUMNS[4])
_COUNTED = {"fail": "failed", "warn": "warned", "note": "noted", "ok": "passed", "skip": "skipped"}

Row = Mapping[str, str]


class Line(NamedTuple):
    """A line of the table and the status it speaks of; None for the frame."""

    status: str | None
    text: str


def render(rows: Sequence[Row], summary: Mapping[str, Any], cell: str) -> list[Line]:
    """The table as lines of at most `WIDTH` characters, and the verdict at its end."""
    lines = [Line(None, f"Preflight of {cell}: {fold_hosts(summary['hosts'])}"), Line(None, "")]
    lines += [Line(None, text) for text in _cells(_HEADINGS, _COLUMNS)]
    lines.append(Line(None, "-" * WIDTH))
    for status in STATUSES:
        of_status = [row for row in rows if row["status"] == status]
        if of_status:
            lines += _passed(of_status) if status in ("ok", "skip") else _broken(of_status)
    lines += [Line(None, "-" * WIDTH), Line(None, count(summary)), _verdict(summary)]
    return lines


def count(summary: Mapping[str, Any]) -> str:
    """One line with how many checks ended how."""
    counts = [
        f"{len(summary[status])} {_COUNTED.get(status, status)}"
        for status in STATUSES
        if summary[status]
    ]
    hosts = len(summary["hosts"])
    return f"{summary['checks']} checks on {hosts} host{'s' * (hosts != 1)}: {', '.join(counts)}."


def _verdict(summary: Mapping[str, Any]) -> Line:
    if not summary["ready"]:
        return Line("fail", "Not ready: put right what failed, then run again.")
    if summary["warn"] or summary["unknown"]:
        return Line("warn", "Ready, with doubts: read the warnings and what is unknown.")
    return Line("ok", "Ready.")


def failures(rows: Sequence[Row]) -> str:
    """The failed checks, each with its hosts: 'disk on spark3; driver on spark1, spark2'."""
    hosts: dict[str, list[str]] = {}
    for row in rows:
        if row["status"] == "fail":
            hosts.setdefault(row["check"], []).append(row["host"])
    return "; ".join(f"{check} on {fold_hosts(names)}" for check, names in hosts.items())


def _broken(rows: Sequence[Row]) -> Iterator[Line]:
    """Rows that ask for something; what to do about them stands once below those it is for."""
    folded: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        key = (row["status"], row["check"], row["found"], row["expected"], row["fix"])
        folded.setdefault(key, []).append(row["host"])
    entries = list(folded.items())
    for index, ((status, check, found, expected, fix), hosts) in enumerate(entries):
        cells = (_LABELS.get(status, status), check, fold_hosts(hosts), found, expected)
        yield from (Line(status, text) for text in _cells(cells, _COLUMNS))
        following = entries[index + 1][0] if index + 1 < len(entries) else ()
        if fix and (check, fix) != (following[1:2] + following[4:5]):
            yield from (Line(None, text) for text in _fix(fix))


def _fix(text: str) -> list[str]:
    margin = " " * sum(_WIDE[:3])
    return textwrap.wrap(
        f"fix: {text}",
        WIDTH,
        initial_indent=margin,
        subsequent_indent=margin + " " * 5,
        break_on_hyphens=False,
    )


def _passed(rows: Sequence[Row]) -> Iterator[Line]:
    """One line per check; different values of different hosts stand side by side."""
    by_check: dict[str, list[Row]] = {}
    for row in rows:
        by_check.setdefault(row["check"], []).append(row)
    for check, group in by_check.items():
        found = ", ".join(dict.fromkeys(row["found"] for row in group))
        hosts = fold_hosts(row["host"] for row in group)
        found = textwrap.shorten(found, _WIDE[3] - 1, placeholder=" ...")
        cells = (group[0]["status"], check, hosts, found)
        yield from (Line(group[0]["status"], text) for text in _cells(cells, _WIDE))


def _cells(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Lay out one row, each cell wrapped within its column."""
    wrapped = [
        textwrap.wrap(cell, width - 1, break_on_hyphens=False) or [""]
        for cell, width in zip(cells, widths, strict=True)
    ]
    height = max(len(lines) for lines in wrapped)
    return [
        "".join(
            (lines[row] if row < len(lines) else "").ljust(width)
            for lines, width in zip(wrapped, widths, strict=True)
        ).rstrip()
        for row in range(height)
    ]
