# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Make cables of what every host of a cell heard on its fabric ports.

A port hears both twins of the cage at the other end, and its own twin: all of them are on one wire.
So what is heard is put together to segments, and a segment of two cages is a cable.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_cabling import End

# Every problem there is: what was found, what it means, and what to do.
PROBLEMS = {
    "host-missing": (
        "{where} told nothing, so its cables are unknown; make it reachable, and run without "
        "--limit."
    ),
    "not-probed": "{where} did not listen: {why}.",
    "lldp-only": (
        "{where} did not listen ({why}), and what lldpd says of it may be two minutes old; run "
        "again as root."
    ),
    "port-missing": (
        "{where} ({end}) does not exist. The functions of the NIC can be absent when no cable was "
        "seated at boot: seat it and reboot; ip -br link shows what there is."
    ),
    "port-down": (
        "{where} ({end}) is administratively down and was not tried: ip link set {netdev} up, or "
        "let the probe raise it."
    ),
    "no-carrier": "{where} has no carrier; seat its cable at both ends.",
    "twin-no-carrier": (
        "{where} has no carrier although its twin {twin} has one; seat the cable at both ends and "
        "reboot."
    ),
    "nobody-heard": (
        "{where} has a carrier, but nobody is heard: the other end is at no host of this "
        "inventory, or its ports are down; ethtool -p {netdev} makes it blink."
    ),
    "twins-differ": (
        "{where}: {leads}, but one cable carries both twins of a cage, so these netdevs belong to "
        "different cages; pair them by PCI function, f0 with f0 and f1 with f1."
    ),
    "twin-silent": (
        "{where} and {peer} do not hear each other, although their twins do; seat the cable at "
        "both ends and reboot both hosts."
    ),
    "one-way": (
        "{where} hears {peer}, but not the other way round; seat the cable at both ends, and look "
        "for errors in ethtool -S {netdev}."
    ),
    "loop": "{where}: one cable connects both cages of this host; lead it to another host.",
    "both-cages": (
        "{where} and the other cage of this host are on one segment, with {others}; plug only one "
        "of them into a switch, the same on every host."
    ),
    "switch": (
        "{where} is on one segment with {others}, so there is a switch{lldp} where a cable was "
        "expected; set the topology to switch, or cable directly."
    ),
    "other-network": (
        "{where} hears {netdev} of {peer}, which is not one of its fabric ports; lead this cable "
        "to another Spark or to the fabric's switch, or correct the names of the ports."
    ),
    "unknown-mac": (
        "{where} hears {kind} that is not in this inventory{lldp}: {macs}; add that host, or take "
        "the cable out."
    ),
    "duplicate-mac": (
        "{where} and {peer} both have the MAC {mac}, so what is heard of it proves nothing; give "
        "one its own back, which ethtool -P shows."
    ),
}


class Port(NamedTuple):
    """One fabric port of one host."""

    host: str
    netdev: str

    def __str__(self) -> str:
        return f"{self.netdev} of {self.host}"


def link_cables(
    results: Mapping[str, Mapping[str, Any]], plan: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Cables, and what does not add up; the filter documents options and result."""
    return _Evidence(results, plan).result()


class _Evidence:
    """What all hosts heard, port by port."""

    def __init__(
        self, results: Mapping[str, Mapping[str, Any]], plan: Mapping[str, Any] | None
    ) -> None:
        self._results = results
        self._planned: set[End] | None = None
        self._switch = False
        self._hosts = list(results)
        if plan:
            self._switch = plan["fabric"]["topology"] == "switch"
            self._hosts = list(dict.fromkeys([*plan["hosts"], *results]))
            self._planned = {
                End(host, int(port["cage"]))
                for host, planned in plan["hosts"].items()
                for port in planned["ports"]
            }
        self._problems: list[dict[str, Any]] = []
        self._facts: dict[Port, Mapping[str, Any]] = {
            Port(host, fact["netdev"]): fact
            for host in self._hosts
            for fact in self._of(host, "ports") or []
        }
        self._ends = {port: End(port.host, int(fact["cage"])) for port, fact in self._facts.items()}
        self._owners = self._inventory()
        self._heard = {port: self._sources(port) for port in self._facts}
        self._peers = {
            port: {owner for mac in macs if isinstance(owner := self._owners.get(mac), Port)}
            for port, macs in self._heard.items()
        }

    def result(self) -> dict[str, Any]:
        self._check_hosts()
        self._check_ports()
        torn = self._check_twins()
        segments = self._segments(torn)
        for ends in segments:
            self._check_segment(ends)
        self._check_cages({end for ends in segments for end in ends})
        return {
            "cables": [
                self._cable(ends) for ends in segments if len({end.host for end in ends}) > 1
            ],
            "hosts": {host: {"ports": self._ports(host)} for host in self._hosts},
            "problems": sorted(
                self._problems, key=lambda problem: self._hosts.index(problem["host"])
            ),
        }

    # --- what is known ------------------------------------------------------------------------

    def _of(self, host: str, key: str) -> Any:
        return self._results.get(host, {}).get(key)

    def _inventory(self) -> dict[str, Port | str | None]:
        """Whose a MAC is: a port, the host of another interface, or None where several have it."""
        owners: dict[str, Port | str | None] = {}
        for port, fact in self._facts.items():
            mac: str = fact.get("mac") or ""
            other = owners.setdefault(mac, port) if mac else port
            if other != port:
                self._say("duplicate-mac", port, mac=mac, peer=other)
                owners[mac] = None
        fabric = set(owners)
        for host in self._hosts:
            for netdev, mac in (self._of(host, "macs") or {}).items():
                if mac not in fabric and Port(host, netdev) not in self._facts:
                    # Virtual interfaces may have the same one on every host.
                    owners[mac] = host if owners.get(mac, host) == host else None
        return owners

    def _sources(self, port: Port) -> set[str]:
        """The MACs heard on a port, its own twin's among them."""
        if self._of(port.host, "probed"):
            return {entry["mac"] for entry in self._facts[port].get("heard") or []}
        return {
            entry["mac"]
            for entry in self._of(port.host, "lldp") or []
            if entry["netdev"] == port.netdev and entry["mac"]
        }

    def _twins(self, end: End) -> list[Port]:
        return [port for port, its_end in self._ends.items() if its_end == end]

    def _cages(self, port: Port) -> set[End]:
        """The other cages whose ports are heard on this one."""
        return {self._ends[peer] for peer in self._peers[port]} - {self._ends[port]}

    def _had_carrier(self, port: Port) -> bool:
        return bool(self._facts[port].get("carrier_seen"))

    def _strangers(self, ports: Iterable[Port]) -> list[str]:
        return sorted(
            {mac for port in ports for mac in self._heard[port] if mac not in self._owners}
        )

    def _order(self, end: End) -> tuple[int, int]:
        return self._hosts.index(end.host), end.cage

    def _list(self, ends: Iterable[End]) -> str:
        return ", ".join(map(str, sorted(ends, key=self._order)))

    def _segments(self, torn: set[End]) -> list[tuple[End, ...]]:
        """Cages on one wire, two or more, in the order of the hosts; without the `torn` ones."""
        heard = [
            (self._ends[port], end)
            for port in self._facts
            for end in self._cages(port)
            if not torn & {self._ends[port], end}
        ]
        found = {tuple(sorted(ends, key=self._order)) for ends in _connected(heard)}
        return sorted(found, key=lambda ends: self._order(ends[0]))

    # --- what does not add up -----------------------------------------------------------------

    def _say(self, code: str, where: Port | End | str, **words: Any) -> None:
        end = self._ends.get(where) if isinstance(where, Port) else where
        told = {"where": where, "end": end, "netdev": getattr(where, "netdev", ""), **words}
        self._problems.append(
            {
                "code": code,
                "host": where if isinstance(where, str) else where.host,
                "cage": end.cage if isinstance(end, End) else None,
                "netdev": where.netdev if isinstance(where, Port) else None,
                "message": PROBLEMS[code].format(**told),
            }
        )

    def _check_hosts(self) -> None:
        for host in self._hosts:
            why = self._of(host, "why")
            if self._of(host, "ports") is None:
                self._say("host-missing", host)
            elif not self._of(host, "probed"):
                self._say("lldp-only" if self._of(host, "lldp") else "not-probed", host, why=why)

    def _check_ports(self) -> None:
        for port, fact in self._facts.items():
            planned = self._planned is None or self._ends[port] in self._planned
            if planned and fact["state"] in ("missing", "down"):
                self._say(f"port-{fact['state']}", port)

    def _check_twins(self) -> set[End]:
        """The cages whose twins are not on one wire: nothing follows from what they hear."""
        wires = _connected((port, peer) for port, peers in self._peers.items() for peer in peers)
        cages = {port: {self._ends[p] for p in wire} for wire in wires for port in wire}
        torn: set[End] = set()
        for end in dict.fromkeys(self._ends.values()):
            ways = {
                port: others
                for port in self._twins(end)
                if (others := {c for c in cages.get(port, ()) if c.host != end.host})
            }
            if any(one.isdisjoint(two) for one in ways.values() for two in ways.values()):
                torn.add(end)
                leads = " and ".join(
                    f"{port.netdev} leads to {self._list(others)}" for port, others in ways.items()
                )
                self._say("twins-differ", end, leads=leads)
        return torn

    def _check_segment(self, ends: Sequence[End]) -> None:
        hosts = [end.host for end in ends]
        doubled = next((end for end in ends if hosts.count(end.host) > 1), None)
        if doubled and len(set(hosts)) == 1:
            self._say("loop", doubled)
        elif doubled:
            others = [end for end in ends if end.host != doubled.host]
            self._say("both-cages", doubled, others=self._list(others))
        elif len(ends) > 2 and not self._switch:
            lldp = self._lldp_name(ends)
            self._say("switch", ends[0], others=self._list(ends[1:]), lldp=lldp)
        for one, two in self._pairs(ends):
            ways = self._ways(one, two)
            if ways == "none":
                self._say("twin-silent", one, peer=two)
            elif ways != "both":
                hears, peer = (one, two) if ways == "first" else (two, one)
                self._say("one-way", hears, peer=peer, netdev=peer.netdev)

    def _pairs(self, ends: Sequence[End]) -> Iterator[tuple[Port, Port]]:
        """Ports of equal domain at the ends of a segment, where both of them could be tried."""
        ports = [
            port
            for end in ends
            for port in self._twins(end)
            if self._had_carrier(port)
            and self._of(port.host, "probed")
            and self._owners.get(self._facts[port]["mac"]) == port
        ]
        for place, one in enumerate(ports):
            for two in ports[place + 1 :]:
                if one.host != two.host and self._domain(one) == self._domain(two):
                    yield one, two

    def _domain(self, port: Port) -> int:
        return int(self._facts[port]["domain"])

    def _ways(self, one: Port, two: Port) -> str:
        """Who hears whom: both, only the first (the second's frames arrive there), second, none."""
        first, second = two in self._peers[one], one in self._peers[two]
        if first and second:
            return "both"
        return "first" if first else "second" if second else "none"

    def _check_cages(self, together: set[End]) -> None:
        for end in dict.fromkeys(self._ends.values()):
            if self._planned is not None and end not in self._planned:
                continue
            twins = self._twins(end)
            live = [port for port in twins if self._had_carrier(port)]
            dead = [port for port in twins if self._facts[port]["state"] == "no-carrier"]
            dead = [port for port in dead if port not in live]
            if live and dead:
                self._say("twin-no-carrier", dead[0], twin=live[0].netdev)
            elif dead and self._planned is not None:
                self._say("no-carrier", end)
            strange = self._check_strangers(end, twins)
            heard = end in together or any(self._cages(port) for port in twins)
            if live and not strange and not heard and self._of(end.host, "probed"):
                self._say("nobody-heard", end, netdev=live[0].netdev)

    def _check_strangers(self, end: End, twins: Sequence[Port]) -> bool:
        """Whether there is somebody on the wire who has no fabric port in this inventory."""
        heard = set().union(*(self._heard[port] for port in twins))
        others = {mac: peer for mac in heard if isinstance(peer := self._owners.get(mac), str)}
        for peer in dict.fromkeys(others.values()):
            netdevs = sorted(name for name, mac in self._of(peer, "macs").items() if mac in others)
            self._say("other-network", end, peer=peer, netdev=netdevs[0])
        strangers = self._strangers(twins)
        everybody = all(self._of(host, "ports") is not None for host in self._hosts)
        if strangers and everybody and not self._switch:
            entries = [entry for port in twins for entry in self._facts[port].get("heard") or []]
            run = any(entry["other_runs"] for entry in entries if entry["mac"] in strangers)
            self._say(
                "unknown-mac",
                end,
                kind="a Spark which another run is probing" if run else "a device",
                macs=", ".join(strangers[:3]) + (" and more" if len(strangers) > 3 else ""),
                lldp=self._lldp_name([end]),
            )
        return bool(others or strangers)

    def _lldp_name(self, ends: Iterable[End]) -> str:
        """What lldpd calls a device behind these cages that is none of the hosts."""
        for end in ends:
            netdevs = {port.netdev for port in self._twins(end)}
            for entry in self._of(end.host, "lldp") or []:
                known = entry["mac"] in self._owners or entry["chassis_id"] in self._owners
                if entry["netdev"] in netdevs and not known:
                    name = entry["chassis_name"] or entry["chassis_id"]
                    return f" (LLDP: {name}, port {entry['port_id']})"
        return ""

    # --- what there is ------------------------------------------------------------------------

    def _cable(self, ends: Sequence[End]) -> dict[str, Any]:
        twins = [
            {
                "domain": self._domain(one),
                "netdevs": [one.netdev, two.netdev],
                "heard": self._ways(one, two),
            }
            for one, two in self._pairs(ends)
        ]
        return {"ends": [end.word for end in ends], "twins": twins if len(ends) == 2 else []}

    def _ports(self, host: str) -> list[dict[str, Any]]:
        kept = ("netdev", "cage", "domain", "mac", "state", "mtu", "speed_mbps")
        return [
            {
                **{key: fact.get(key) for key in kept},
                "peers": [end.word for end in sorted(self._cages(port), key=self._order)],
                "unknown": self._strangers([port]),
            }
            for port, fact in self._facts.items()
            if port.host == host
        ]


def _connected(pairs: Iterable[tuple[Any, Any]]) -> list[set[Any]]:
    """What hangs together by pairs, as sets."""
    found: list[set[Any]] = []
    for pair in pairs:
        touched = [group for group in found if not group.isdisjoint(pair)]
        found = [group for group in found if group not in touched]
        found.append(set(pair).union(*touched))
    return found
