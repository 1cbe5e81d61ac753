# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The addresses of a fabric: what it takes from a pool, and who must not have it.

Cable k owns the subnets 2k and 2k + 1, one for each twin, so that a subnet means one twin of one
cable. The host part tells the rank. Neither depends on how many hosts there are, so a host that is
added at the end of a ring takes over the closing cable and moves nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import (
    Reader,
    is_list,
)

with suppress(ImportError):  # require_netaddr() tells it where it is needed
    from netaddr import IPAddress, IPNetwork, iprange_to_cidrs

_LOWEST = 11  # the host part of rank 0
_CELL_BITS = 5  # a cell has 32 subnets of the pool: sixteen cables, two twins each


class Addresses:
    """The subnets and addresses of cables in an area."""

    def __init__(self, area: IPNetwork, prefix_length: int) -> None:
        self.area = area
        self.prefix_length = prefix_length
        self._size = 1 << (32 - prefix_length)
        self._last = self._size - (2 if prefix_length < 31 else 1)

    def _first(self, cable: int, domain: int) -> int:
        return int(self.area.first) + (2 * cable + (domain > 0)) * self._size

    def subnet(self, cable: int, domain: int) -> IPNetwork:
        """The subnet of one twin of a cable."""
        return IPNetwork((self._first(cable, domain), self.prefix_length))

    def address(self, cable: int, domain: int, rank: int, end: int) -> IPAddress:
        """The address of a rank that has a certain end of a cable.

        Published plans give .11 to the first host and count on from there. Ranks for which the
        subnet has no room are numbered .1 and .2 by the ends of their cable, which never collides.
        """
        part = _LOWEST + rank
        if part > self._last:
            part = int(self.prefix_length < 31) + end
        return IPAddress(self._first(cable, domain) + part)

    def cover(self, first: int, last: int) -> list[str]:
        """The fewest networks with both twins of cables with these numbers, and nothing else."""
        low, high = self._first(first, 0), self._first(last + 1, 0) - 1
        return [str(network) for network in iprange_to_cidrs(IPAddress(low), IPAddress(high))]

    def check_switch(self, ranks: int) -> Iterator[str]:
        """A subnet has room for all ranks."""
        highest = _LOWEST + ranks - 1
        if highest > self._last:
            yield (
                f"prefix_length is {self.prefix_length}, where addresses end at .{self._last}, but "
                f"{ranks} ranks in one subnet, from .{_LOWEST} on, need .{highest}; make it "
                f"{32 - (highest + 1).bit_length()} or shorter."
            )


def read_area(
    read: Reader, pool: Any, prefix: int, cell: Any, cell_prefix: Any, cables: int
) -> IPNetwork | None:
    """The pool, or the share of a cell in it. Shares are equally large, whatever the cells are."""
    network = read.network("pool", "10.20.0.0/16" if pool is None else pool, "10.20.0.0/16")
    if network is None:
        return None
    wrong = _unusable(network)
    if wrong:
        read.problems.append(f"pool is {pool!r}, {wrong}.")
        return None
    area, whose = network, f"pool {network}"
    if cell is None and cell_prefix is not None:
        read.problems.append("cell_prefix_length goes with cell; number the cells from 0.")
    if cell is not None:
        shortest = network.prefixlen
        longest, usual = max(prefix, shortest), max(prefix - _CELL_BITS, shortest)
        length = read.number("cell_prefix_length", cell_prefix, shortest, longest, usual)
        shares = 1 << (length - shortest)
        index = read.number("cell", cell, 0, shares - 1, -1)
        if index < 0:
            read.problems[-1] += (
                f" Pool {network} has {shares} share{'s' * (shares > 1)} of /{length}, one for "
                "each cell; use a larger pool, or a longer cell_prefix_length."
            )
            return None
        area = IPNetwork((network.first + (index << (32 - length)), length))
        whose = f"the share {area} of cell {index} in pool {network}"
    room = 1 << (prefix - area.prefixlen) if prefix >= area.prefixlen else 0
    if room < 2 * cables:
        wanted = prefix - (2 * cables - 1).bit_length()
        read.problems.append(
            f"{whose} is too small: it holds {room} subnet{'s' * (room != 1)} of /{prefix}, and "
            f"{cables} {'cables take' if cables > 1 else 'cable takes'} {2 * cables}, for two "
            f"twins each; make it /{wanted} or larger, or prefix_length longer."
        )
        return None
    return area


def _unusable(network: IPNetwork) -> str:
    """Why a network cannot hold addresses of the fabric."""
    if network.version != 4:
        return "expected an IPv4 network: the GIDs of this fabric are IPv4-mapped"
    if network.ip != network.network:
        return f"which has host bits set; expected a network such as {network.cidr}"
    if network.is_link_local():
        return "which is link-local; such addresses are never chosen as GIDs"
    octet = network.first >> 24
    if network.is_loopback() or octet == 0 or octet >= 224:
        return "which holds no addresses for hosts"
    return ""


def check_overlap(read: Reader, area: IPNetwork | None, management: Any, reserved: Any) -> None:
    """The area has nothing of networks that are somebody else's."""
    for label, network in _taken(read, management, reserved):
        if area is None or network.version != area.version:
            continue
        if area.first <= network.last and network.first <= area.last:
            read.problems.append(
                f"the addresses of the fabric, {area}, overlap {label} {network}; choose another "
                "pool."
            )


def _taken(read: Reader, management: Any, reserved: Any) -> Iterator[tuple[str, IPNetwork]]:
    """The networks, with what they are called in a message."""
    groups = {"management_networks": ("the management network", management)}
    if reserved is None or isinstance(reserved, Mapping):
        for name, networks in {"Docker": "172.17.0.0/16", **(reserved or {})}.items():
            groups[f"reserved_networks.{name}"] = (f"{name}'s network", networks)
    else:
        groups["reserved_networks"] = ("the reserved network", reserved)
    for option, (label, networks) in groups.items():
        for item in networks if is_list(networks) else [networks]:
            network = None if item is None else read.network(option, item, "192.168.1.0/24")
            if network is not None:
                yield label, network.cidr
