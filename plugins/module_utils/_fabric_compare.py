# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Hold the cables that were really found against the plan, and say what to do about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_cabling import (
    RULES,
    Cable,
    End,
    chains,
    follows,
    read_cables,
    rule_cables,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import PlanError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain


def fabric_compare(plan: Any, observed: Any) -> dict[str, Any]:
    """Compare a plan with the cables that were found; the filter documents input and result.

    Raises:
        PlanError: the input cannot be read.
    """
    found = Comparison.of(plan, observed)
    problems = list(found.problems())
    suggestion = found.suggestion() if problems else None
    return {
        "ok": not problems,
        "problems": problems,
        "unused": list(found.unused()),
        "advice": list(found.advice(suggestion)) if problems else [],
        "suggestion": suggestion,
    }


@dataclass(frozen=True)
class Comparison:
    """The cables of a plan and those that were found. Each cage is part of one of the latter."""

    hosts: Sequence[str]
    switch: bool
    cabling: str
    planned: Sequence[Cable]
    found: Sequence[Cable]

    @classmethod
    def of(cls, plan: Any, observed: Any) -> Comparison:
        """From the result of `fabric_plan` and a list of cables.

        Raises:
            PlanError: one of them is something else.
        """
        plan = plain(plan)
        if not isinstance(plan, Mapping) or not {"fabric", "cables", "hosts"} <= set(plan):
            raise PlanError(["the plan is not what fabric_plan returns; give its whole result."])
        hosts = list(plan["hosts"])
        planned, wrong = read_cables(plan["cables"], "the plan's cables", ends=None)
        cables, problems = read_cables(plain(observed), "observed", ends=None)
        if wrong or problems:
            raise PlanError([*wrong, *problems])
        fabric = plan["fabric"]
        segments = list(_segments(cables, hosts))
        return cls(hosts, fabric["topology"] == "switch", fabric["cabling"], planned, segments)

    @cached_property
    def _at(self) -> dict[End, Cable]:
        """The cable that was found in each cage."""
        return {end: cable for cable in self.found for end in cable}

    def is_right(self, cable: Cable) -> bool:
        """Whether a planned cable is there. A switch may have more in it."""
        found = set(self._at.get(cable[0], ()))
        return set(cable) <= found if self.switch else set(cable) == found

    def is_there(self, cable: Cable, end: End) -> bool:
        """Whether one end of a planned cable is where it should be."""
        return end in self._main(cable) if self.switch else self.is_right(cable)

    def unplanned(self) -> Iterator[Cable]:
        """What was found and is not in the plan; a cable to the switch has one end."""
        right = {end for cable in self.planned if self.is_right(cable) for end in cable}
        for cable in self.found:
            ours = [end for end in cable if end.host in self.hosts]
            if self.switch and cable == self._main(self.planned[0]):
                yield from ((end,) for end in ours if end not in self.planned[0])
            elif ours and not right & set(cable):
                yield cable

    def problems(self) -> Iterator[str]:
        """Every cage that is not wired as planned, one sentence each."""
        if self.switch:
            for cable in self.planned:
                if not self.is_right(cable):
                    yield from self._not_in_switch(cable)
            return
        needed = {end for cable in self.planned for end in cable}
        shared = [cable for cable in self.found if len(cable) > 2 and needed & set(cable)]
        for cable in shared:
            yield (
                f"{_listed(map(self._name, cable))} hear each other, expected two ends to a cable: "
                "there is a switch between them, or a neighbour entry is no longer true"
            )
        explained = {end for cable in shared for end in cable}
        for cable in self.planned:
            if self.is_right(cable):
                continue
            if not any(end in self._at for end in cable):
                yield f"there is no cable between {cable[0]} and {cable[1]}"
                continue
            for end, expected in (cable, cable[::-1]):
                if end not in explained:
                    yield f"cage {end.cage} of {end.host} {self._wiring(end)}, expected {expected}"

    def _wiring(self, end: End) -> str:
        others = [self._name(other) for other in self._at.get(end, ()) if other != end]
        return f"is wired to {_listed(others)}" if others else "has no cable"

    def _name(self, end: End) -> str:
        return str(end) if end.host in self.hosts else f"{end} (not in this cell)"

    def _not_in_switch(self, planned: Cable) -> Iterator[str]:
        main = self._main(planned)
        for end in planned:
            if End(end.host, 1 - end.cage) in main and end not in main:
                yield (
                    f"cage {1 - end.cage} of {end.host} is wired to the switch, "
                    f"expected cage {end.cage}"
                )
            elif end not in main:
                yield f"cage {end.cage} of {end.host} {self._wiring(end)}, expected the switch"

    def _main(self, planned: Cable) -> Cable:
        """What was found of the switch: the segment with most of its hosts."""
        hosts = {end.host for end in planned}
        return max(
            (cable for cable in self.found if len(cable) > 1),
            key=lambda cable: len(hosts & {end.host for end in cable}),
            default=(),
        )

    def unused(self) -> Iterator[str]:
        """Cages of the cell that have a cable which the plan does not need."""
        needed = {end for cable in self.planned for end in cable}
        for cable in self.found:
            ours = [end for end in cable if end.host in self.hosts]
            if self.switch and cable == self._main(self.planned[0]):
                for end in ours:
                    other = End(end.host, 1 - end.cage)
                    if end not in needed and other in cable:
                        yield f"{end} is wired to the switch too, which the plan does not use"
            elif ours and not needed & set(cable):
                names = _listed(map(self._name, cable))
                yield f"{names} are wired to each other, which the plan does not use"

    def suggestion(self) -> dict[str, Any] | None:
        """The options of `fabric_plan` that make a plan of the cables as they are, if any do."""
        cables = [cable for cable in self.found if all(end.host in self.hosts for end in cable)]
        if any(len(cable) > 2 for cable in cables):
            return self._switch_plan(cables)
        shape = chains(cables, self.hosts)
        path = list(shape[0].hosts)
        if len(shape) > 1 or len(cables) != (len(path) if len(path) > 2 else 1):
            return None
        ways = [path, [path[0], *reversed(path[1:])]]
        if follows(path, self.hosts):
            ways.insert(0, list(self.hosts))
        plan: dict[str, Any] = {
            "hosts": ways[0],
            "topology": {2: "pair", 3: "triangle"}.get(len(path), "ring"),
        }
        wired = set(map(frozenset, cables))
        for way in ways:
            for rule in sorted(RULES, key=lambda rule: rule != self.cabling):
                for cage in (0, 1):
                    if set(map(frozenset, rule_cables(rule, way, cage))) == wired:
                        return {**plan, "hosts": way, "cabling": rule, "cage": cage}
        listed = sorted(cables, key=lambda cable: _place(cable, ways[0]))
        return {**plan, "cabling": [[end.word for end in cable] for cable in listed], "cage": 0}

    def _switch_plan(self, cables: Sequence[Cable]) -> dict[str, Any] | None:
        if len(cables) > 1 or sorted(end.host for end in cables[0]) != sorted(self.hosts):
            return None
        cages = {end.host: end.cage for end in cables[0]}
        same = len(set(cages.values())) == 1
        hosts = [h if same else {"name": h, "cage": cages[h]} for h in self.hosts]
        return {
            "hosts": hosts,
            "topology": "switch",
            "cabling": None,
            "cage": cages[self.hosts[0]] if same else 0,
        }

    def advice(self, suggestion: Mapping[str, Any] | None) -> Iterator[str]:
        """What to do: to the cables, or to the plan."""
        yield from self._moves()
        if suggestion is not None:
            yield f"To plan for the cables as they are: {_told(suggestion, self.hosts)}."
        elif not self.switch and all(len(cable) == 2 for cable in self.found):
            inside = [c for c in self.found if all(end.host in self.hosts for end in c)]
            shape = chains(inside, self.hosts)
            yield f"No plan fits the cables as they are: {', '.join(map(str, shape))}."
            if len(shape) == 1 and shape[0].free and len(self.hosts) > 2:
                yield f"A cable from {shape[0].free[1]} to {shape[0].free[0]} would close the ring."

    def _moves(self) -> Iterator[str]:
        """Where the right hosts are wired with the wrong cages."""
        wanted, there = _neighbours(self.planned), _neighbours(self.found)
        if self.switch or {h: set(n) for h, n in wanted.items()} != {
            h: set(n) for h, n in there.items()
        }:
            return
        for host, cages in wanted.items():
            if cages == there[host]:
                continue
            if len(cages) > 1:
                yield f"To wire {host} as planned, exchange its two plugs."
            else:
                (cage,), (now,) = cages.values(), there[host].values()
                yield f"To wire {host} as planned, move its plug from cage {now} to cage {cage}."


def _segments(cables: Iterable[Cable], hosts: Sequence[str]) -> Iterator[Cable]:
    """Cables as found become one for each cage, in the order of the hosts.

    A cable is found from both its ends, by both twins. A port also hears the other twin of its own
    cage, and nobody else: that is no cable.
    """
    joined: dict[End, set[End]] = {}
    for cable in cables:
        if len({end.host for end in cable}) > 1:
            group = set(cable).union(*(joined.get(end, ()) for end in cable))
            joined.update(dict.fromkeys(group, group))
    order = {host: number for number, host in enumerate(hosts)}

    def place(end: End) -> tuple[int, str, int]:
        return order.get(end.host, len(order)), end.host, end.cage

    segments = {tuple(sorted(group, key=place)) for group in joined.values()}
    yield from sorted(segments, key=lambda cable: [place(end) for end in cable])


def _neighbours(cables: Iterable[Cable]) -> dict[str, dict[str, int]]:
    """For each host, the cage that leads to each neighbour."""
    found: dict[str, dict[str, int]] = {}
    for cable in cables:
        for end, other in (cable, cable[::-1]) if len(cable) == 2 else ():
            found.setdefault(end.host, {})[other.host] = end.cage
    return found


def _place(cable: Cable, way: Sequence[str]) -> int:
    """Where along a ring a cable is: it connects that host to the next."""
    one, other = sorted(way.index(end.host) for end in cable)
    return one if other == one + 1 else other


def _listed(names: Iterable[str]) -> str:
    """One, two and three."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _told(suggestion: Mapping[str, Any], hosts: Sequence[str]) -> str:
    """A suggestion in words."""
    words = [f"topology {suggestion['topology']}"]
    cabling = suggestion["cabling"]
    if isinstance(cabling, str):
        words.append(f"cabling {cabling}")
    elif cabling:
        words.append(f"cabling [{', '.join('[' + ', '.join(c) + ']' for c in cabling)}]")
    if suggestion["cage"]:
        words.append(f"cage {suggestion['cage']}")
    order = suggestion["hosts"]
    if order != list(hosts) and all(isinstance(host, str) for host in order):
        words.append(f"hosts in the order {', '.join(order)}")
    elif order != list(hosts):
        words += [f"cage {host['cage']} for {host['name']}" for host in order if host["cage"]]
    return ", ".join(words)
