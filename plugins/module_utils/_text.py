# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""How hosts, sizes and unknown words are written in messages to people."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"^(.*?)([0-9]+)$")


def fold_hosts(names: Iterable[str]) -> str:
    """Write a list of hosts shortly: three or more consecutive numbers become a range.

    >>> fold_hosts(["spark1", "spark2", "spark3", "spark7", "head"])
    'spark1..spark3, spark7, head'
    """
    runs: list[list[str]] = []
    for name in names:
        if runs and _follows(runs[-1][-1], name):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]}..{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def _follows(first: str, second: str) -> bool:
    left, right = _NUMBERED.match(first), _NUMBERED.match(second)
    if not left or not right or left.group(1) != right.group(1):
        return False
    same_width = len(left.group(2)) == len(right.group(2)) or not left.group(2).startswith("0")
    return same_width and int(right.group(2)) == int(left.group(2)) + 1


def gib(size: float) -> str:
    """Bytes as GiB, with a decimal only where it matters.

    >>> gib(130664235008), gib(536870912)
    ('122 GiB', '0.5 GiB')
    """
    value = size / 2**30
    return f"{value:.0f} GiB" if value >= 10 or value == int(value) else f"{value:.1f} GiB"


def suggestion(word: str, known: Iterable[str]) -> str:
    """' (did you mean x?)' for a likely slip of the pen, else nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.75)
    return f" (did you mean {close[0]}?)" if close else ""
