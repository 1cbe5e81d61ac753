"""Fabrics that several tests look at, and the network that a plan describes."""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_plan import fabric_plan

Plan = Mapping[str, Any]


def names(count: int) -> list[str]:
    return [f"spark{number}" for number in range(1, count + 1)]


def plan(count: int, topology: str = "ring", **options: Any) -> dict[str, Any]:
    return fabric_plan(names(count), topology, **options)


def miswired_ring() -> list[list[str]]:
    """A ring of four by rotation, but spark2 has its plugs exchanged and the last cable is out."""
    return [
        ["spark1:0", "spark2:0"],
        ["spark2:1", "spark3:1"],
        ["spark3:0", "spark4:1"],
    ]


def measured(fabric: Plan) -> list[dict[str, Any]]:
    """What a proof may have found: the second cable is slow."""
    return [
        {"ends": cable["ends"], "gbps": 187.3 + number, "ok": True}
        if number != 1
        else {"ends": cable["ends"], "gbps": 13.2, "ok": False}
        for number, cable in enumerate(fabric["cables"])
    ]


def walk(fabric: Plan, start: str, target: str) -> tuple[list[str], str]:
    """The hosts a packet passes on its way to an address, and the address it comes from.

    As a kernel does it: own addresses first, then the longest prefix of connected and other routes.
    The packet carries the address of the interface that it leaves by. Fails where there is no
    route, where a next hop is not on the wire, and where packets go round in circles.
    """
    owner = {port["address"]: name for name, port in ports(fabric)}
    address = int(ipaddress.IPv4Address(target))
    path, source = [start], ""
    while owner[target] != path[-1]:
        assert len(path) <= len(fabric["hosts"]), f"{target} is not reached: {path}"
        here = fabric["hosts"][path[-1]]
        own = {port["netdev"]: port for port in here["ports"]}
        table = [(port["subnet"], None, port["netdev"]) for port in here["ports"]]
        table += [(route["to"], route["via"], route["netdev"]) for route in here["routes"]]
        fitting = [row for row in table if (address ^ network(row[0])[0]) < network(row[0])[1]]
        assert fitting, f"{path[-1]} has no route to {target}"
        _to, via, netdev = min(fitting, key=lambda row: network(row[0])[1])
        port, hop = own[netdev], via or target
        assert hop in wire(fabric, port), f"{path[-1]} does not find {hop} on {netdev}"
        source = source or port["address"]
        path.append(owner[hop])
    return path, source


@functools.cache
def network(text: str) -> tuple[int, int]:
    """Its first address, and how many it has."""
    found = ipaddress.IPv4Network(text)
    return int(found[0]), found.num_addresses


def wire(fabric: Plan, port: Mapping[str, Any]) -> set[str]:
    """The addresses that answer on the cable of a port."""
    return {
        other["address"]
        for _name, other in ports(fabric)
        if other["cable"] == port["cable"] and other["address"] != port["address"]
    }


def ports(fabric: Plan) -> list[tuple[str, Mapping[str, Any]]]:
    return [(name, port) for name, host in fabric["hosts"].items() for port in host["ports"]]


def distance(count: int, one: int, other: int) -> int:
    return min((one - other) % count, (other - one) % count)
