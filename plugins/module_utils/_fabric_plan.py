# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The fabric of one cell, computed from what its inventory says and from nothing else."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_cabling import Cable
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_hosts import Host
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_settings import (
    Settings,
    read_settings,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain


def fabric_plan(hosts: Any, topology: Any = None, **options: Any) -> dict[str, Any]:
    """Plan cables, addresses, routes and NCCL's settings; the filter documents options and result.

    Raises:
        PlanError: with every reason why there is no plan.
    """
    # Roles have no way of leaving an option out: there, empty text stands for that.
    given = {name: value for name, value in plain(options).items() if value != ""}
    return _Plan(read_settings(plain(hosts), plain(topology), **given)).result()


class _Plan:
    """Settings in, the plan as plain data out."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._addresses = settings.addresses
        self._count = len(settings.hosts)
        # The cables of each host: {cage: (cable, its end there)}.
        self._plugged: list[dict[int, tuple[int, int]]] = [{} for _host in settings.hosts]
        # The cable from each rank to the next, twice round.
        self._round: list[int] = []
        for number, cable in enumerate(settings.cables):
            ranks = [settings.ranks[end.host] for end in cable]
            for end, (rank, (_host, cage)) in enumerate(zip(ranks, cable, strict=True)):
                self._plugged[rank][cage] = (number, end)
        if settings.ring:
            between = {
                frozenset(settings.ranks[end.host] for end in c): n
                for n, c in enumerate(settings.cables)
            }
            once = [between[frozenset((rank, self._step(rank, 1)))] for rank in range(self._count)]
            self._round = once * 2
            self._breaks = [
                at
                for at in range(1, len(self._round))
                if self._round[at] != self._round[at - 1] + 1
            ]

    def result(self) -> dict[str, Any]:
        settings = self._settings
        hosts = {host.name: self._host(host) for host in settings.hosts}
        head = hosts[settings.hosts[0].name]
        head["nfs_client_sources"] = [
            host["nfs_source_address"] for host in hosts.values() if host is not head
        ]
        return {
            "fabric": {
                "topology": settings.topology,
                "cabling": settings.cabling,
                "range": str(settings.addresses.area),
                "prefix": settings.addresses.prefix_length,
                "domains": list(settings.domains),
                "mtu": settings.mtu,
                "head": settings.hosts[0].name,
                "head_address": head["ports"][0]["address"],
            },
            "cables": [self._cable(number) for number in range(len(settings.cables))],
            "hosts": hosts,
        }

    def _cable(self, number: int) -> dict[str, Any]:
        return {
            "cable": number,
            "ends": [{"host": end.host, "cage": end.cage} for end in self._settings.cables[number]],
            "subnets": [
                {"domain": domain, "subnet": str(self._addresses.subnet(number, domain))}
                for domain in self._settings.domains
            ],
        }

    def _host(self, host: Host) -> dict[str, Any]:
        rank = host.rank
        return {
            "rank": rank,
            "ports": self._ports(rank),
            "devices": [
                {"cage": cage, "domain": domain, "netdev": netdev, "hca": host.hcas[cage, domain]}
                for (cage, domain), netdev in sorted(host.netdevs.items())
            ],
            "routes": self._routes(rank) if self._settings.ring else [],
            "forward": not self._settings.direct,
            **self._nfs(rank),
            "peer_hcas": self._peer_hcas(rank),
            "nccl_env": _nccl_env(self._settings, host, sorted(self._plugged[rank])),
        }

    def _ports(self, rank: int) -> list[dict[str, Any]]:
        ports = []
        for cage in sorted(self._plugged[rank]):
            number, end = self._plugged[rank][cage]
            cable = self._settings.cables[number]
            for domain in self._settings.domains:
                port = self._port(cable, number, end, domain)
                port["prefix"] = self._addresses.prefix_length
                port["subnet"] = str(self._addresses.subnet(number, domain))
                port["cable"] = number
                port["peer"] = None
                if self._settings.topology != "switch":
                    peer = self._port(cable, number, 1 - end, domain)
                    port["peer"] = {"host": cable[1 - end].host, **peer}
                ports.append(port)
        return ports

    def _port(self, cable: Cable, number: int, end: int, domain: int) -> dict[str, Any]:
        name, cage = cable[end]
        host = self._settings.hosts[self._settings.ranks[name]]
        return {
            "netdev": host.netdevs[cage, domain],
            "hca": host.hcas[cage, domain],
            "cage": cage,
            "domain": domain,
            "address": self._address(host.rank, number, domain),
        }

    def _address(self, rank: int, number: int, domain: int = 0) -> str:
        end = next(end for cable, end in self._plugged[rank].values() if cable == number)
        return str(self._addresses.address(number, domain, rank, end))

    def _step(self, rank: int, way: int) -> int:
        return (rank + way) % self._count

    def _cable_to(self, rank: int, way: int) -> int:
        """The cable to the next rank (1) or to the one before (-1)."""
        return self._round[rank if way > 0 else rank - 1]

    def _runs(self, start: int, stop: int) -> list[tuple[int, int]]:
        """The cables between two places of the round, as runs of neighbouring numbers."""
        low, high = bisect_right(self._breaks, start), bisect_left(self._breaks, stop)
        cuts = [start, *self._breaks[low:high], stop]
        return [(self._round[a], self._round[b - 1]) for a, b in pairwise(cuts) if a < b]

    def _routes(self, rank: int) -> list[dict[str, str]]:
        """To every address of a ring that is not on an own cable, the shorter way round.

        Where the number of hosts is odd, the cable opposite is equally far both ways: there each of
        its two ends has routes of its own. So packets and answers always take the same way.
        """
        half = (self._count - 1) // 2  # so many cables away, this one included, is the shorter way
        odd = self._count % 2
        routes: list[dict[str, str]] = []
        for way, start, stop in (
            (1, rank + 1, rank + half + 1 - odd),
            (-1, rank + half + 1, rank + self._count - 1),
        ):
            runs = self._runs(start, stop)
            targets = [network for run in runs for network in self._addresses.cover(*run)]
            if odd:
                far = self._step(rank, way * half)
                opposite = self._cable_to(far, way)
                targets += [
                    f"{self._address(far, opposite, domain)}/32"
                    for domain in self._settings.domains
                ]
            routes += self._via(rank, way, targets)
        return routes

    def _via(self, rank: int, way: int, targets: Sequence[str]) -> list[dict[str, str]]:
        number = self._cable_to(rank, way)
        cage = next(c for c, (cable, _end) in self._plugged[rank].items() if cable == number)
        via = self._address(self._step(rank, way), number)
        netdev = self._settings.hosts[rank].netdevs[cage, self._settings.domains[0]]
        return [{"to": to, "via": via, "netdev": netdev} for to in targets]

    def _nfs(self, rank: int) -> dict[str, Any]:
        """What a client mounts from, where it arrives from, and over how many cables.

        It is the head's address on the shorter way to the client, the one in the direction of ranks
        where both are equal; the client arrives from its own cable on that way.
        """
        plan: dict[str, Any] = {
            "nfs_server_address": None,
            "nfs_source_address": None,
            "nfs_hops": 0,
            "nfs_client_sources": [],
        }
        if rank == 0:
            return plan
        way, hops = (1, rank) if rank <= self._count - rank else (-1, self._count - rank)
        if self._settings.ring:
            near, far = self._cable_to(0, way), self._cable_to(rank, -way)
        else:
            near, far, hops = 0, 0, 1
        plan["nfs_server_address"] = self._address(0, near)
        plan["nfs_source_address"] = self._address(rank, far)
        plan["nfs_hops"] = hops
        return plan

    def _peer_hcas(self, rank: int) -> list[dict[str, Any]]:
        """Which HCAs lead to which rank. RDMA is not forwarded, so only ranks on a common cable."""
        settings = self._settings
        host = settings.hosts[rank]
        peers: dict[int, list[str]] = {}
        for cage, (number, end) in self._plugged[rank].items():
            hcas = [host.hcas[cage, domain] for domain in settings.domains]
            for other, (name, _cage) in enumerate(settings.cables[number]):
                if other != end:
                    peers[settings.ranks[name]] = hcas
        return [{"rank": other, "hcas": list(peers[other])} for other in sorted(peers)]


def _nccl_env(settings: Settings, host: Host, cages: Sequence[int]) -> dict[str, str]:
    """The settings for NCCL that follow from cables and addresses. Tuning is not among them."""
    patch = settings.nccl or ("stock" if settings.direct else "switchless-cycle")
    # Published patches advertise two addresses of a listener; only the last knows both domains.
    domains = settings.domains if patch in ("stock", "dual-pci-domain") else settings.domains[:1]
    env = {
        # Sockets and foreign plugins would work too, at a tenth of the rate: an error is better.
        "NCCL_NET": "IB",
        "NCCL_NET_PLUGIN": "none",
        # Exact names, because without "=" mlx5_1 is mlx5_10 too; in PCI order, because peers are
        # paired by position.
        "NCCL_IB_HCA": "=" + ",".join(host.hcas[cage, d] for d in domains for cage in cages),
        # GIDs are chosen by meaning: an index differs between HCAs, and over time.
        "NCCL_IB_ADDR_FAMILY": "AF_INET",
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        "NCCL_IB_ADDR_RANGE": str(settings.addresses.area),
        # Ranks find each other over the network that reaches all of them without a detour.
        "NCCL_SOCKET_IFNAME": f"={settings.management_interface}",
        "GLOO_SOCKET_IFNAME": settings.management_interface,
    }
    if settings.ring:
        env |= {
            # Take the HCA whose subnet agrees with the peer's, instead of the one at its position.
            "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
            "NCCL_IB_SUBNET_PREFIX_LEN": str(settings.nccl_prefix_length),
            # A merged device would be the two cages of a domain, which lead to different hosts.
            "NCCL_IB_MERGE_NICS": "0",
            # Data comes in by one cage and goes out by the other.
            "NCCL_CROSS_NIC": "1",
        }
    if not settings.direct:
        # Trees and the like would need cables between hosts that have none.
        env["NCCL_ALGO"] = "Ring"
    if patch == "skip-tree-pat":
        env["NCCL_SKIP_TREE_CONNECT"] = "1"
    elif patch != "stock":
        env["NCCL_SWITCHLESS_RING_ONLY"] = "1"
    if patch == "dual-pci-domain":
        env |= {
            "NCCL_IB_EXTENDED_IPV4_GIDS": "1",
            "NCCL_IB_PRESERVE_PCI_DOMAIN": "1",
            "NCCL_IB_ROUTE_DIAGNOSTICS": "1",  # the proof in the log that all HCAs are used
            "NCCL_IB_QPS_PER_CONNECTION": "1",
        }
    return env
