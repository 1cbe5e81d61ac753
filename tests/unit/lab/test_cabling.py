# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cablings of the lab, drawn as text: ``1.0=2.1`` is cage 0 of spark1 to cage 1 of spark2."""

from __future__ import annotations

import pytest

from lab.cabling import CABLINGS, Cable, End, cables
from lab.system import LabError


def drawn(segments: list[Cable]) -> str:
    return " ".join(
        "=".join(f"{end.host + 1}.{end.cage}" for end in cable.ends) for cable in segments
    )


@pytest.mark.parametrize(
    ("name", "hosts", "expected"),
    [
        ("ring", 4, "1.0=2.1 2.0=3.1 3.0=4.1 4.0=1.1"),
        ("ring", 6, "1.0=2.1 2.0=3.1 3.0=4.1 4.0=5.1 5.0=6.1 6.0=1.1"),
        ("triangle", 3, "1.0=2.1 2.0=3.1 3.0=1.1"),
        ("pair", 2, "1.0=2.0"),
        ("pairs", 4, "1.0=2.0 3.0=4.0"),
        ("switch", 4, "1.0=2.0=3.0=4.0"),
        ("swapped-cage", 4, "1.0=2.0 2.1=3.1 3.0=4.1 4.0=1.1"),
        ("two-pairs", 4, "1.0=2.1 1.1=2.0 3.0=4.1 3.1=4.0"),
        ("line", 4, "1.0=2.1 2.0=3.1 3.0=4.1"),
        ("double-link", 4, "1.0=2.1 2.0=1.1 3.0=4.1"),
        ("double-link", 3, "1.0=2.1 2.0=1.1"),
    ],
)
def test_cabling_by_name(name: str, hosts: int, expected: str) -> None:
    assert drawn(cables(name, hosts)) == expected


@pytest.mark.parametrize("name", CABLINGS)
def test_no_cage_is_used_twice(name: str) -> None:
    for hosts in CABLINGS[name].hosts:
        if CABLINGS[name].even and hosts % 2:
            continue
        ends: list[End] = [end for cable in cables(name, hosts) for end in cable.ends]
        assert len(ends) == len(set(ends))
        assert all(0 <= end.host < hosts and end.cage in (0, 1) for end in ends)


@pytest.mark.parametrize(
    ("name", "hosts", "told"),
    [
        ("star", 4, "there are: ring, triangle"),
        ("triangle", 4, "needs 3 hosts, not 4; pass --hosts 3"),
        ("pair", 3, "needs 2 hosts"),
        ("two-pairs", 5, "needs 4 or 6 or 8 hosts, not 5"),
        ("ring", 9, "needs 3 or 4 or 5 or 6 or 7 or 8 hosts"),
    ],
)
def test_impossible_cabling_is_refused(name: str, hosts: int, told: str) -> None:
    with pytest.raises(LabError) as refused:
        cables(name, hosts)
    assert told in str(refused.value)
