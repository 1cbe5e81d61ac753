# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Who is plugged into whom: the cabling rules, lists of cables, and what shape they make.

A Spark has two cages: 0 is the one nearest the RJ45, 1 the outer one. A cable carries both twins of
the cages it connects. One that has more than two ends is a switch with all that is plugged into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import is_list
from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import suggestion

CAGES = (0, 1)
TOPOLOGIES = ("pair", "triangle", "ring", "switch")
RULES = ("rotation", "matching")


class End(NamedTuple):
    """One cage of one host."""

    host: str
    cage: int

    def __str__(self) -> str:
        return f"{self.host} cage {self.cage}"

    @property
    def word(self) -> str:
        """As it is written in a list of cables."""
        return f"{self.host}:{self.cage}"


Cable = tuple[End, ...]


class Chain(NamedTuple):
    """Hosts that hang together by cables between two ends each, in the order of the cables.

    A chain is `closed` when its last host is cabled to its first; else `free` are the two cages at
    its ends that have no cable.
    """

    hosts: tuple[str, ...]
    free: tuple[End, End] | None

    @property
    def closed(self) -> bool:
        return self.free is None

    def __str__(self) -> str:
        way = " - ".join(self.hosts)
        if self.closed and len(self.hosts) == 2:
            return f"two cables between {self.hosts[0]} and {self.hosts[1]}"
        if self.closed:
            return f"a ring {way}"
        return f"{way} without any cable" if len(self.hosts) == 1 else f"a line {way}"


def rule_cables(rule: str, hosts: Sequence[str], cage: int) -> list[Cable]:
    """The cables of a ring, in the order that decides their subnets.

    `rotation` connects `cage` of each host to the other cage of the next. `matching` connects equal
    cages: `cage` for the first cable, and then in turn. Two hosts have one cable: the one to close
    their ring would run beside the first and add no bandwidth, because both share the PCIe lanes.
    """
    count = len(hosts) if len(hosts) > 2 else len(hosts) - 1
    cables: list[Cable] = []
    for k in range(count):
        here, there = hosts[k], hosts[(k + 1) % len(hosts)]
        if rule == "rotation":
            cables.append((End(here, cage), End(there, 1 - cage)))
        else:
            cables.append((End(here, (cage + k) % 2), End(there, (cage + k) % 2)))
    return cables


def read_end(value: Any) -> End:
    """`spark1:0`, or a mapping with `host` and `cage`.

    Raises:
        ValueError: it is neither; the text says what was found and expected.
    """
    host, cage = value, None
    if isinstance(value, Mapping):
        host, cage = value.get("host"), value.get("cage")
    elif isinstance(value, str):
        host, _colon, cage = value.rpartition(":")
    if not isinstance(host, str) or not host:
        raise ValueError(
            f"is {value!r}, expected host:cage like spark1:0; quote it if YAML made a number of "
            "digits around a colon"
        )
    if isinstance(cage, bool) or str(cage) not in ("0", "1"):
        raise ValueError(f"is {value!r}, but a Spark has cage 0 and cage 1")
    return End(host, int(str(cage)))


def read_cables(value: Any, where: str, ends: int | None = 2) -> tuple[list[Cable], list[str]]:
    """Read a list of cables; each is a list of ends, or a mapping that has it under `ends`.

    Returns:
        The cables that can be read, and what is wrong with the others. `ends` is how many each must
        have; None allows a switch, and one end is then dropped without a word: it says nothing.
    """
    if not is_list(value):
        return [], [f"{where} is {value!r}, expected a list of cables like [spark1:0, spark2:1]."]
    cables: list[Cable] = []
    problems: list[str] = []
    for number, item in enumerate(value):
        found = item.get("ends") if isinstance(item, Mapping) else item
        if not is_list(found) or (ends is not None and len(found) != ends):
            problems.append(
                f"{where}[{number}] is {item!r}, expected the two ends of a cable, "
                "like [spark1:0, spark2:1]."
            )
            continue
        read: list[End] = []
        for end in found:
            try:
                read.append(read_end(end))
            except ValueError as error:
                problems.append(f"{where}[{number}]: an end {error}.")
        if len(read) == len(found) and len(read) > 1:
            cables.append(tuple(read))
    return cables, problems


def chains(cables: Iterable[Cable], hosts: Sequence[str]) -> list[Chain]:
    """Follow the cables from host to host. Every cage has one cable at the most."""
    mate: dict[End, End] = {}
    for one, other in cables:
        mate[one], mate[other] = other, one

    def walk(start: str, leave: int) -> tuple[list[str], End]:
        """To the cage without a cable, or to the one that closes the ring."""
        path, end = [start], End(start, leave)
        while end in mate:
            arrival = mate[end]
            if arrival.host == start:
                return path, arrival
            path.append(arrival.host)
            end = End(arrival.host, 1 - arrival.cage)
        return path, end

    found: list[Chain] = []
    seen: set[str] = set()
    for host in hosts:
        if host in seen:
            continue
        path, last = walk(host, 0)
        if last in mate:
            found.append(Chain(tuple(path), None))
        else:
            back, first = walk(host, 1)
            path = back[:0:-1] + path
            if hosts.index(path[0]) > hosts.index(path[-1]):
                path, first, last = path[::-1], last, first
            found.append(Chain(tuple(path), (first, last)))
        seen.update(path)
    return found


def follows(path: Sequence[str], hosts: Sequence[str]) -> bool:
    """Whether a ring that is given from its first host on runs in the order of the hosts."""
    return list(path) in (list(hosts), [hosts[0], *reversed(hosts[1:])])


def check_list(topology: str, cables: Sequence[Cable], hosts: Sequence[str]) -> Iterator[str]:
    """Why a list of cables does not make the topology; nothing when it does."""
    used: dict[End, int] = {}
    between: dict[frozenset[str], int] = {}
    sound = True
    for number, cable in enumerate(cables):
        where = f"cabling[{number}]"
        for end in cable:
            if end.host not in hosts:
                hint = suggestion(end.host, hosts)
                yield f"{where}: {end.host} is not among the hosts{hint}; name one of them."
                sound = False
            elif end in used:
                yield (
                    f"{where}: {end} is used twice, already by cabling[{used[end]}]; a cage takes "
                    "one cable."
                )
                sound = False
            used.setdefault(end, number)
        pair = frozenset(end.host for end in cable)
        if len(pair) == 1:
            yield f"{where}: both ends are in {cable[0].host}; a cable connects two hosts."
            sound = False
        elif pair in between:
            one, other = sorted(pair, key=lambda host: hosts.index(host) if host in hosts else -1)
            yield (
                f"{where} is a second cable between {one} and {other}, beside "
                f"cabling[{between[pair]}]; it adds no bandwidth, because both share the PCIe "
                "lanes. Leave one out."
            )
        between.setdefault(pair, number)
    if sound and len(hosts) > 1:
        yield from _check_shape(topology, cables, hosts)


def _check_shape(topology: str, cables: Sequence[Cable], hosts: Sequence[str]) -> Iterator[str]:
    found = chains(cables, hosts)
    if len(hosts) == 2:
        if not cables:
            yield f"cabling has no cable between {hosts[0]} and {hosts[1]}; name it."
        return
    if len(found) > 1 or not found[0].closed:
        remedy = ""
        if len(found) == 1 and found[0].free:
            first, last = found[0].free
            remedy = f" A cable from {last} to {first} would close it."
        yield (
            f"cabling makes no {topology}: found {', '.join(map(str, found))}; expected one "
            f"ring through all {len(hosts)} hosts.{remedy}"
        )
    elif not follows(found[0].hosts, hosts):
        yield (
            f"cabling runs {' - '.join(found[0].hosts)}, but NCCL's ring connects each rank to the "
            f"next, and the ranks follow the order of the hosts: {', '.join(hosts)}. List the "
            "hosts in the order of the cables."
        )
