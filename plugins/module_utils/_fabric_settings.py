# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What a user decides about a fabric, read together and refused together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_addresses import (
    Addresses,
    check_overlap,
    read_area,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_cabling import (
    RULES,
    TOPOLOGIES,
    Cable,
    End,
    check_list,
    read_cables,
    rule_cables,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_hosts import (
    DOMAINS,
    NETDEV,
    Host,
    check_devices,
    read_devices,
    read_hosts,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import (
    PlanError,
    Reader,
    require_netaddr,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import (
    fold_hosts,
    suggestion,
)

# Which NCCL the ranks load: the one of the image, or one with a published patch for rings.
NCCL = ("stock", "switchless-cycle", "skip-tree-pat", "dual-pci-domain")


@dataclass(frozen=True)
class Settings:
    """Everything a plan depends on."""

    topology: str
    cabling: str
    hosts: Sequence[Host]
    cables: Sequence[Cable]
    addresses: Addresses
    domains: Sequence[int]
    mtu: int
    management_interface: str
    nccl: str
    nccl_prefix_length: int

    @cached_property
    def ranks(self) -> dict[str, int]:
        """The place of every host in the order."""
        return {host.name: host.rank for host in self.hosts}

    @property
    def direct(self) -> bool:
        """Whether every two hosts share a cable or the switch."""
        return self.topology == "switch" or len(self.hosts) <= 3

    @property
    def ring(self) -> bool:
        """Whether different cages of a host lead to different neighbours."""
        return self.topology != "switch" and len(self.hosts) > 2


def read_settings(
    hosts: Any,
    topology: Any,
    cabling: Any = None,
    cage: Any = None,
    pool: Any = None,
    prefix_length: Any = None,
    cell: Any = None,
    cell_prefix_length: Any = None,
    twins: Any = None,
    mtu: Any = None,
    management_interface: Any = None,
    management_networks: Any = None,
    reserved_networks: Any = None,
    nccl: Any = None,
    nccl_prefix_length: Any = None,
    devices: Any = None,
    **unknown: Any,
) -> Settings:
    """Turn plain data into settings. The filter documents each; None stands for the default.

    Raises:
        PlanError: with everything that is wrong.
    """
    require_netaddr()
    read = Reader()
    read.keys("the options", unknown, [*signature(read_settings).parameters][1:-1])
    if topology is None:
        read.problems.append(f"topology is missing, expected one of {', '.join(TOPOLOGIES)}.")
    shape = read.word("topology", topology, TOPOLOGIES, "")
    usual_cage = read.number("cage", cage, 0, 1, 0)
    first_only = read.word("twins", twins, ("both", "first"), "both") == "first"
    domains = DOMAINS[:1] if first_only else DOMAINS
    prefix = read.number("prefix_length", prefix_length, 8, 31, 24)

    found = read_devices(read, devices)
    so_far = len(read.problems)
    members = read_hosts(read, hosts, found)
    names = [host.name for host in members]
    if shape and len(read.problems) == so_far:
        read.problems += _check_count(shape, names)
    rule, cables = _read_cabling(read, cabling, shape, members, usual_cage)
    plugged: dict[str, set[int]] = {}
    for end in (end for made in cables for end in made):
        plugged.setdefault(end.host, set()).add(end.cage)
    for host in members:
        if host.name in found:
            needed = {(cage, domain) for cage in plugged.get(host.name, ()) for domain in domains}
            read.problems += check_devices(host, found[host.name], needed)

    area = read_area(read, pool, prefix, cell, cell_prefix_length, len(cables))
    check_overlap(read, area, management_networks, reserved_networks)
    patch = read.word("nccl", nccl, NCCL, "")
    compared = read.number("nccl_prefix_length", nccl_prefix_length, 1, 32, prefix)
    ethernet_mtu = read.number("mtu", mtu, 1280, 9216, 9000)
    interface = read.name(
        "management_interface", management_interface, NETDEV, "an interface name", "enP7s7"
    )
    if not shape or not plugged or area is None or not plugged.keys() <= set(names):
        raise PlanError(read.problems)
    settings = Settings(
        topology=shape,
        cabling=rule,
        hosts=members,
        cables=cables,
        addresses=Addresses(area, prefix),
        domains=domains,
        mtu=ethernet_mtu,
        management_interface=interface,
        nccl=patch,
        nccl_prefix_length=compared,
    )
    if shape == "switch":
        read.problems += settings.addresses.check_switch(len(members))
    read.problems += _check_nccl(settings, prefix_given=nccl_prefix_length is not None)
    if read.problems:
        raise PlanError(read.problems)
    return settings


def _check_count(topology: str, names: Sequence[str]) -> Iterator[str]:
    least, most = {"pair": (2, 2), "triangle": (3, 3)}.get(topology, (2, 1 << 32))
    if least <= len(names) <= most:
        return
    found = f"{len(names)}: {fold_hosts(names)}" if names else "none"
    fitting = {2: "pair", 3: "triangle"}.get(len(names), "ring or switch")
    remedy = f"choose {fitting}" if len(names) > 1 else "list the others"
    yield (
        f"topology {topology} needs {least} hosts{'' if least == most else ' or more'}, "
        f"found {found}; {remedy}."
    )


def _read_cabling(
    read: Reader, value: Any, topology: str, hosts: Sequence[Host], cage: int
) -> tuple[str, list[Cable]]:
    """The name of the cabling and its cables."""
    names = [host.name for host in hosts]
    if topology == "switch":
        if value is not None:
            read.problems.append(
                f"cabling is {value!r}, but topology switch has no cables between hosts; leave it "
                "out, or choose the topology ring."
            )
        ends = [End(host.name, cage if host.cage is None else host.cage) for host in hosts]
        return "switch", [tuple(ends)]
    read.problems += [
        f"{host.name}: cage is only for topology switch, where a host has one cable; here, give "
        "cabling as a list of cables."
        for host in hosts
        if host.cage is not None
    ]
    usual = "matching" if topology == "pair" else "rotation"
    if value is None or isinstance(value, str):
        rule = usual if value is None else value
        if rule not in RULES:
            read.problems.append(
                f"cabling is {value!r}, expected {', '.join(RULES)} or a list of cables like "
                f"[spark1:0, spark2:1]{suggestion(rule, RULES)}."
            )
            rule = usual
        if rule == "matching" and topology != "pair" and len(names) > 2 and len(names) % 2:
            read.problems.append(
                f"cabling matching needs an even number of hosts, found {len(names)}: the cages "
                "alternate from cable to cable, so the last one would meet a cage that is taken. "
                "Use rotation."
            )
        return rule, rule_cables(rule, names, cage)
    cables, problems = read_cables(value, "cabling")
    read.problems += problems
    if topology and not problems:
        read.problems += check_list(topology, cables, names)
    return "list", cables


def _check_nccl(settings: Settings, prefix_given: bool) -> Iterator[str]:
    """The settings for NCCL fit the topology, and NCCL can tell the links apart."""
    if not settings.ring:
        only = "is only for rings of three hosts or more"
        if settings.nccl not in ("", "stock"):
            yield f"nccl is {settings.nccl!r}, which {only}: leave it out."
        if prefix_given:
            yield f"nccl_prefix_length {only}, where NCCL compares subnets: leave it out."
        return
    if settings.nccl == "stock" and not settings.direct:
        yield (
            "nccl is 'stock', but that connects trees between hosts that share no cable, and fails "
            f"in a ring of {len(settings.hosts)}; install a patched NCCL and name its patch: "
            f"{', '.join(NCCL[1:])}."
        )
    # NCCL takes the HCA whose address agrees with the listener's in so many bits.
    length = settings.nccl_prefix_length
    remedy = f"make it {settings.addresses.prefix_length}, like prefix_length"
    links: dict[int, str] = {}
    for number, cable in enumerate(settings.cables):
        for domain in settings.domains:
            one, two = (
                int(settings.addresses.address(number, domain, settings.ranks[host], end))
                >> (32 - length)
                for end, (host, _cage) in enumerate(cable)
            )
            subnet = str(settings.addresses.subnet(number, domain))
            other = links.setdefault(one, subnet)
            if one != two:
                yield (
                    f"nccl_prefix_length is {length}, so to NCCL the two ends of the link {subnet} "
                    f"have no subnet in common; {remedy}."
                )
                return
            if other != subnet:
                yield (
                    f"nccl_prefix_length is {length}, so to NCCL the links {other} and {subnet} "
                    f"are indistinguishable; {remedy}."
                )
                return
