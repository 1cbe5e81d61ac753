# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is plugged into whom: the cablings a lab can be built with, right ones and mistakes.

A cable is one layer-2 segment that carries both twins (PCI domain 0 and 2) of every cage plugged
into it. Hosts are counted from 0, cages are 0 (nearest the RJ45) and 1. Pure: no I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lab.system import LabError


@dataclass(frozen=True, order=True)
class End:
    """One cage of one host."""

    host: int
    cage: int


@dataclass(frozen=True)
class Cable:
    """A segment: two ends for a cable, every member for a switch."""

    name: str
    ends: tuple[End, ...]


def _rotation(hosts: int) -> list[list[End]]:
    """Cage 0 of host k to cage 1 of host k+1: the switchless ring, and the triangle for three."""
    return [[End(k, 0), End((k + 1) % hosts, 1)] for k in range(hosts)]


def _one_segment(hosts: int) -> list[list[End]]:
    return [[End(k, 0) for k in range(hosts)]]


def _swapped_cage(hosts: int) -> list[list[End]]:
    """The ring, with both plugs of the second host in the wrong cage."""
    return [
        [End(e.host, 1 - e.cage) if e.host == 1 else e for e in ends] for ends in _rotation(hosts)
    ]


def _two_pairs(hosts: int) -> list[list[End]]:
    """Every cage is used and every host has two cables, yet there are two islands."""
    return [[End(a, cage), End(a + 1, 1 - cage)] for a in range(0, hosts - 1, 2) for cage in (0, 1)]


def _pairs(hosts: int) -> list[list[End]]:
    """Cells of two hosts each, with one cable."""
    return [[End(a, 0), End(a + 1, 0)] for a in range(0, hosts - 1, 2)]


def _line(hosts: int) -> list[list[End]]:
    return _rotation(hosts)[:-1]


def _double_link(hosts: int) -> list[list[End]]:
    """Two cables between the first two hosts; the rest of the ring keeps what is left."""
    first = [[End(0, 0), End(1, 1)], [End(1, 0), End(0, 1)]]
    return first + [[End(k, 0), End(k + 1, 1)] for k in range(2, hosts - 1)]


@dataclass(frozen=True)
class _Rule:
    build: Callable[[int], list[list[End]]]
    hosts: range
    about: str
    even: bool = False
    cell: int = 0  # hosts in a cell; 0: all of them


CABLINGS: dict[str, _Rule] = {
    "ring": _Rule(_rotation, range(3, 9), "switchless ring: cage 0 of each to cage 1 of the next"),
    "triangle": _Rule(_rotation, range(3, 4), "three hosts, every one cabled to both others"),
    "pair": _Rule(_one_segment, range(2, 3), "two hosts, cage 0 to cage 0"),
    "pairs": _Rule(_pairs, range(4, 9), "cells of two hosts each", even=True, cell=2),
    "switch": _Rule(_one_segment, range(2, 9), "cage 0 of every host in one switch"),
    "swapped-cage": _Rule(_swapped_cage, range(3, 9), "MISTAKE: spark2 has its plugs exchanged"),
    "two-pairs": _Rule(_two_pairs, range(4, 9), "MISTAKE: islands of two", even=True),
    "line": _Rule(_line, range(3, 9), "MISTAKE: the ring's last cable is missing"),
    "double-link": _Rule(_double_link, range(3, 9), "MISTAKE: spark1 and spark2 share two cables"),
}


def cells(cabling: str, hosts: int) -> list[range]:
    """The hosts of every cell: one cell, unless the cabling makes several."""
    size = CABLINGS[cabling].cell or hosts
    return [range(first, first + size) for first in range(0, hosts, size)]


def cables(cabling: str, hosts: int) -> list[Cable]:
    """The segments of a cabling.

    :raises LabError: unknown name, or a number of hosts that the cabling cannot have.
    """
    rule = CABLINGS.get(cabling)
    if rule is None:
        raise LabError(f"no cabling is called '{cabling}'; there are: {', '.join(CABLINGS)}")
    if hosts not in rule.hosts or (rule.even and hosts % 2):
        wanted = [str(n) for n in rule.hosts if not (rule.even and n % 2)]
        raise LabError(
            f"cabling '{cabling}' needs {' or '.join(wanted)} hosts, not {hosts}; "
            f"pass --hosts {wanted[0]}"
        )
    return [Cable(f"cab{k}", tuple(ends)) for k, ends in enumerate(rule.build(hosts))]
