# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What a picture of a fabric shows, whatever it is drawn with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_cabling import (
    Cable,
    End,
    read_cables,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_compare import Comparison
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import PlanError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain


@dataclass(frozen=True)
class Rate:
    """A measured bandwidth, and whether it is enough, where that is known."""

    gbps: float
    ok: bool | None

    def __str__(self) -> str:
        mark = {True: "✓ ", False: "✗ ", None: ""}[self.ok]
        return f"{mark}{self.gbps:.1f} Gb/s"


@dataclass(frozen=True)
class Link:
    """A planned cable, or a switch with all its cables.

    `there` says for each end whether it is wired as planned, and is empty where nobody looked.
    """

    number: int
    ends: Cable
    subnets: Sequence[str]
    there: Mapping[End, bool]
    rates: Mapping[frozenset[End], Rate]

    @property
    def found(self) -> bool | None:
        """Whether all of it is as planned; None where nobody looked."""
        return all(self.there.values()) if self.there else None

    def rate(self, end: End | None = None) -> Rate | None:
        """The bandwidth of a cable; of one end of a switch, the best that anybody reached there.

        The best, because a slow cable of another host is not this one's fault.
        """
        over = [rate for pair, rate in self.rates.items() if end is None or end in pair]
        return max(over, key=lambda rate: (rate.ok is not False, rate.gbps), default=None)


@dataclass(frozen=True)
class Port:
    """One twin of a cage."""

    address: str
    netdev: str


@dataclass(frozen=True)
class Box:
    """A host, with its ports by cage."""

    name: str
    rank: int
    ports: Mapping[int, Sequence[Port]]


@dataclass(frozen=True)
class Picture:
    """The plan and, where there is more to say, what was found and measured."""

    title: str
    details: str
    switch: bool
    boxes: Sequence[Box]
    links: Sequence[Link]
    unplanned: Sequence[Cable]  # found; one with a single end goes to the switch
    problems: Sequence[str]

    @classmethod
    def of(cls, plan: Any, observed: Any = None, measured: Any = None) -> Picture:
        """From the result of `fabric_plan`; the filter documents what else there may be.

        Raises:
            PlanError: something cannot be read.
        """
        plan = plain(plan)
        found = Comparison.of(plan, observed or [])
        looked = observed is not None
        rates = _read_rates(plain(measured))
        links = [
            Link(
                number=number,
                ends=cable,
                subnets=[subnet["subnet"] for subnet in plan["cables"][number]["subnets"]],
                there={end: found.is_there(cable, end) for end in cable if looked},
                rates={ends: rate for ends, rate in rates.items() if ends <= set(cable)},
            )
            for number, cable in enumerate(found.planned)
        ]
        fabric = plan["fabric"]
        shape, how = fabric["topology"].capitalize(), fabric["cabling"]
        if fabric["topology"] in ("ring", "switch"):
            shape += f" of {len(plan['hosts'])}"
        cabling = {"list": ", cables as listed", "switch": ""}.get(how, f", cabling {how}")
        return cls(
            title=shape + cabling,
            details=f"{fabric['range']}, MTU {fabric['mtu']}",
            switch=found.switch,
            boxes=[_box(name, host) for name, host in plan["hosts"].items()],
            links=links,
            unplanned=list(found.unplanned()),
            problems=[*found.problems(), *found.unused()] if looked else [],
        )

    def link(self, *hosts: int) -> Link:
        """The planned cable between two hosts that are neighbours, or the switch."""
        names = {self.boxes[number].name for number in hosts}
        return next(link for link in self.links if names <= {end.host for end in link.ends})

    def end(self, link: Link, host: int) -> End:
        """The end of a cable at a host."""
        return next(end for end in link.ends if end.host == self.boxes[host].name)


def _box(name: str, host: Mapping[str, Any]) -> Box:
    ports: dict[int, list[Port]] = {}
    for port in host["ports"]:
        ports.setdefault(port["cage"], []).append(Port(port["address"], port["netdev"]))
    return Box(name, host["rank"], ports)


def _read_rates(measured: Any) -> dict[frozenset[End], Rate]:
    """Measurements as {both ends: rate}; of several between the same ends, the lowest."""
    ends, problems = read_cables(measured or [], "measured")
    rates: dict[frozenset[End], Rate] = {}
    for number, item in enumerate([] if problems else measured or []):
        gbps, ok = (item.get("gbps"), item.get("ok")) if isinstance(item, Mapping) else (None, None)
        if isinstance(gbps, bool) or not isinstance(gbps, (int, float)):
            problems.append(f"measured[{number}]: gbps is {gbps!r}, expected a number.")
        elif not isinstance(ok, (bool, type(None))):
            problems.append(f"measured[{number}]: ok is {ok!r}, expected true or false.")
        else:
            pair = frozenset(ends[number])
            if pair not in rates or gbps < rates[pair].gbps:
                rates[pair] = Rate(float(gbps), ok)
    if problems:
        raise PlanError(problems)
    return rates


def shortened(name: str, width: int) -> str:
    """A name that fits: without its domain, or else without its middle.

    >>> shortened("spark1.example.com", 12), shortened("gx10-in-the-kitchen", 12)
    ('spark1…', 'gx10-i…tchen')
    """
    host = name.partition(".")[0]
    if len(name) <= width:
        return name
    if len(host) < min(width, len(name)):
        return f"{host}…"
    return f"{name[: width // 2]}…{name[len(name) - (width - 1) // 2 :]}"
