# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What has to be tried to prove the links of a plan, and in which order.

A link is what two hosts can reach each other over without a third: a cable, or the way through a
switch between any two hosts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_cabling import End

Pair = tuple[int, int]


def link_schedule(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Links, pings and rounds of a plan; the filter documents the result."""
    links = plan_links(plan)
    ranks = {host: rank for rank, host in enumerate(plan["hosts"])}
    pairs = [(ranks[link["hosts"][0]], ranks[link["hosts"][1]]) for link in links]
    return {
        "links": links,
        "pings": _pings(plan, links),
        "rounds": [
            {"hosts": dict(part for number in places for part in _parts(links[number], client))}
            for places in rounds(pairs)
            for client in (1, 0)
        ],
    }


def plan_links(plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every link, in the order of the cables, with the ports of its twins.

    Two ports are connected when they are in one subnet: it belongs to one twin of one cable, or of
    the switch.
    """
    by_subnet: dict[str, list[dict[str, Any]]] = {}
    for host, planned in plan["hosts"].items():
        for port in planned["ports"]:
            by_subnet.setdefault(port["subnet"], []).append({**port, "host": host})
    links: dict[tuple[int, End, End], list[dict[str, Any]]] = {}
    for ports in by_subnet.values():
        for one, two in combinations(ports, 2):
            ends = (End(one["host"], one["cage"]), End(two["host"], two["cage"]))
            told = ("host", "netdev", "hca", "address")
            twin = {
                "domain": one["domain"],
                "ports": [{key: port[key] for key in told} for port in (one, two)],
            }
            links.setdefault((one["cable"], *ends), []).append(twin)
    return [
        {
            "link": number,
            "ends": [one.word, two.word],
            "hosts": [one.host, two.host],
            "mtu": plan["fabric"]["mtu"],
            "twins": sorted(twins, key=lambda twin: int(twin["domain"])),
        }
        for number, ((_cable, one, two), twins) in enumerate(
            sorted(links.items(), key=lambda item: item[0][0])
        )
    ]


def rounds(pairs: Sequence[Pair]) -> list[list[int]]:
    """Put pairs of hosts into as few rounds as possible, with no host twice in a round.

    For a ring of an even number of hosts these are two rounds, for any other three. For all pairs
    of hosts there is one round less than hosts, or one for each where their number is odd.

    Returns:
        For each round the places of its pairs in `pairs`.
    """
    # Filling rounds in the order of a ring is best for a ring, and in the order of the circle
    # method of tournaments for all pairs.
    players = max((host for pair in pairs for host in pair), default=0) + 1
    circle = sorted(range(len(pairs)), key=lambda place: _turn(pairs[place], players))
    return min(_fill(pairs, range(len(pairs))), _fill(pairs, circle), key=len)


def _turn(pair: Pair, players: int) -> int:
    """The round of a tournament in which two players meet: one sits still, the others move on."""
    turns = players - 1 + players % 2
    one, two = pair
    return 2 * one % turns if two == turns else (one + two) % turns


def _fill(pairs: Sequence[Pair], order: Iterable[int]) -> list[list[int]]:
    filled: list[list[int]] = []
    busy: list[set[int]] = []
    for place in order:
        for number, hosts in enumerate(busy):
            if hosts.isdisjoint(pairs[place]):
                filled[number].append(place)
                hosts.update(pairs[place])
                break
        else:
            filled.append([place])
            busy.append(set(pairs[place]))
    return filled


def _pings(
    plan: Mapping[str, Any], links: Iterable[Mapping[str, Any]]
) -> dict[str, list[dict[str, Any]]]:
    """Both directions of every twin of every link, by the host that sends."""
    checks: dict[str, list[dict[str, Any]]] = {host: [] for host in plan["hosts"]}
    for link in links:
        for twin in link["twins"]:
            one, two = twin["ports"]
            for here, there in ((one, two), (two, one)):
                checks[here["host"]].append(
                    {
                        "netdev": here["netdev"],
                        "source": here["address"],
                        "destination": there["address"],
                        "mtu": plan["fabric"]["mtu"],
                    }
                )
    return checks


def _parts(link: Mapping[str, Any], client: int) -> Iterable[tuple[str, dict[str, Any]]]:
    """What the two hosts of a link do: one serves, the other measures what it can send."""
    for own, host in enumerate(link["hosts"]):
        twins = [
            {
                "domain": twin["domain"],
                "hca": twin["ports"][own]["hca"],
                "address": twin["ports"][own]["address"],
                "peer_address": twin["ports"][1 - own]["address"],
            }
            for twin in link["twins"]
        ]
        role = "client" if own == client else "server"
        yield host, {"link": link["link"], "role": role, "twins": twins}
