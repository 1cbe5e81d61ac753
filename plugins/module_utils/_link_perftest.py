# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Read what perftest and rping print."""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command

# The columns are named like BW average[Gb/sec], 99% percentile[usec] and #bytes.
_HEAD = re.compile(r"^\s*#bytes\s+#iterations")
_COLUMN = re.compile(r"#\w+|(?:BW |[\d.]+% )?\w+\[[^\]]+\]")
_ROW = re.compile(r"^[\s\d.]+$")
_SETTING = re.compile(r"^\s*(Mtu|GID index)\s*:\s*(\d+)", re.MULTILINE)
_GBPS = {"Gb/sec": 1.0, "MiB/sec": 2**23 / 1e9, "MB/sec": 2**23 / 1e9}  # its MB are MiB
_FAULT = re.compile(
    r"fail|error|unable|couldn.t|could not|cannot|did not|refused|unreach|not found"
)
_STATUS = re.compile(r"Failed status \d+|RDMA_CM_EVENT_\w+, error")
_NO_DEVICE = re.compile(r"did not detect devices|no rdma devices were|unable to find the infini")
_NOBODY = ("Couldn't connect", "EVENT_REJECTED", "refused")
_NOISE = re.compile(r"^\s*(WARNING|Conflicting CPU frequency)")


def read_result(program: str, command: Command) -> dict[str, Any]:
    """What one run told.

    Returns:
        `ok` and `error` (null when ok). For a run of perftest that is ok also `mtu` (of RoCE, in
        bytes) and `gid_index`, and `gbps` or `typical_us` and `p99_us`.
    """
    if command.rc != 0:
        return {"ok": False, "error": complaint(command)}
    if program == "rping":
        return {"ok": True, "error": None}
    row = last_row(command.out)
    if row.get("#iterations") == 0:  # with a duration, lost packets end it as if all were well
        return {"ok": False, "error": f"{program} got not one message through"}
    settings = {name: int(value) for name, value in _SETTING.findall(command.out)}
    told: dict[str, Any] = {"mtu": settings.get("Mtu"), "gid_index": settings.get("GID index")}
    bandwidths = [name for name in row if name.startswith("BW average")]
    if bandwidths:
        unit = bandwidths[0].partition("[")[2].rstrip("]")
        told["gbps"] = round(row[bandwidths[0]] * _GBPS.get(unit, 0.0), 2)
    elif "t_typical[usec]" in row:
        told["typical_us"] = row["t_typical[usec]"]
        told["p99_us"] = row.get("99% percentile[usec]")
    else:
        return {"ok": False, "error": f"{program} ended without a result"}
    return {"ok": True, "error": None, **told}


def last_row(out: str) -> dict[str, float]:
    """The last line of numbers under the head of the table, by column; empty without one."""
    columns: list[str] = []
    row: dict[str, float] = {}
    for line in out.splitlines():
        if _HEAD.match(line):
            columns = _COLUMN.findall(line)
        elif columns and _ROW.match(line) and line.strip():
            numbers = line.split()
            if len(numbers) == len(columns):
                row = dict(zip(columns, map(float, numbers), strict=True))
    return row


def complaint(command: Command) -> str:
    """The one line worth showing of a run that failed."""
    if command.rc is None:
        return command.err
    err, out = (
        [line.strip() for line in text.splitlines() if line.strip() and not _NOISE.match(line)]
        for text in (command.err, command.out)
    )
    states = [line for line in err + out if _STATUS.search(line)]
    faults = [line for line in err + out if _FAULT.search(line.lower())]
    return next(iter(states or faults or err or out[-1:]), f"exit status {command.rc}")


def not_listening(command: Command) -> bool:
    """Whether a program found nobody who would talk to it."""
    said = command.err + command.out
    return bool(command.rc) and any(sign in said for sign in _NOBODY)


def no_device(error: str | None) -> bool:
    """Whether a program failed because it found no RDMA device that it could use."""
    return bool(error and _NO_DEVICE.search(error.lower()))
