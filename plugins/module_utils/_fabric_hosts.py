# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The hosts of a fabric and the names of their ports.

A port is one twin of one cage. Its netdev and RDMA device have the names that DGX OS gives them,
unless a user says otherwise or other names were found on the host.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_cabling import CAGES
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import (
    Reader,
    is_list,
)

DOMAINS = (0, 2)  # the PCI domains of the two twins
NETDEV = re.compile(r"[^\s/:]{1,15}")  # 15 characters are the kernel's limit
_HCA = re.compile(r"[A-Za-z0-9_.-]+")  # none of the signs of NCCL's selector syntax

Place = tuple[int, int]  # cage and domain
Devices = Mapping[str, Sequence[Mapping[str, Any]]]  # by host, as roce_gid_info returns them


@dataclass(frozen=True)
class Host:
    """A host in its place in the order, with the names of its ports."""

    name: str
    rank: int
    cage: int | None = None  # the one that goes to the switch, where this host has another
    netdevs: dict[Place, str] = field(default_factory=dict)
    hcas: dict[Place, str] = field(default_factory=dict)


def standard_names(cage: int, domain: int) -> tuple[str, str]:
    """The netdev and the RDMA device of a port on DGX OS.

    >>> standard_names(0, 0), standard_names(1, 2)
    (('enp1s0f0np0', 'rocep1s0f0'), ('enP2p1s0f1np1', 'roceP2p1s0f1'))
    """
    bus = f"P{domain}p1s0" if domain else "p1s0"
    return f"en{bus}f{cage}np{cage}", f"roce{bus}f{cage}"


def read_devices(read: Reader, value: Any) -> Devices:
    """What was found on hosts: for each a result of roce_gid_info, or the list in it."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        read.problems.append(f"devices is {value!r}, expected a mapping from host to its devices.")
        return {}
    found: dict[str, list[Mapping[str, Any]]] = {}
    for host, result in value.items():
        devices = result.get("devices") if isinstance(result, Mapping) else result
        if is_list(devices) and all(isinstance(device, Mapping) for device in devices):
            found[host] = list(devices)
        else:
            read.problems.append(f"devices of {host}: expected what roce_gid_info returns for it.")
    return found


def read_hosts(read: Reader, value: Any, devices: Devices) -> list[Host]:
    """Names, or mappings with `name` and what is special about that host, in rank order."""
    if not is_list(value):
        read.problems.append(f"the hosts are {value!r}, expected a list of names in rank order.")
        return []
    found: dict[str, Host] = {}
    for number, item in enumerate(value):
        where = f"hosts[{number}]"
        record = item if isinstance(item, Mapping) else {"name": item}
        name = record.get("name")
        if not isinstance(name, str) or not name or name != name.strip():
            read.problems.append(f"{where} is {item!r}, expected the name of a host; quote it.")
        elif name in found:
            read.problems.append(f"{where}: {name} is listed twice; a host has one rank.")
        else:
            read.keys(name, record, ("name", "cage", "ports"))
            cage = record.get("cage")
            own = None if cage is None else read.number(f"{name}: cage", cage, 0, 1, 0)
            host = Host(name, len(found), own)
            _name_ports(host, _read_ports(read, name, record.get("ports")), devices.get(name, ()))
            read.problems += _check_names(host)
            found[name] = host
    return list(found.values())


def _read_ports(read: Reader, host: str, value: Any) -> dict[Place, dict[str, str]]:
    """The names a user gives to ports."""
    ports: dict[Place, dict[str, str]] = {}
    example = "{cage: 0, domain: 2, hca: mlx5_2}"
    if value is not None and not is_list(value):
        read.problems.append(f"{host}: ports is {value!r}, expected a list like [{example}].")
        return ports
    for number, item in enumerate(value or []):
        where = f"{host}: ports[{number}]"
        if not isinstance(item, Mapping) or not {"cage", "domain"} <= set(item):
            read.problems.append(f"{where} is {item!r}, expected a mapping like {example}.")
            continue
        read.keys(where, item, ("cage", "domain", "netdev", "hca"))
        cage = read.number(f"{where}.cage", item["cage"], 0, 1, 0)
        domain = int(read.word(f"{where}.domain", str(item["domain"]), ("0", "2"), "0"))
        if (cage, domain) in ports:
            read.problems.append(f"{where} names cage {cage}, domain {domain} a second time.")
        netdev, hca = item.get("netdev"), item.get("hca")
        ports[cage, domain] = {
            "netdev": read.name(f"{where}.netdev", netdev, NETDEV, "an interface name", ""),
            "hca": read.name(f"{where}.hca", hca, _HCA, "the name of an RDMA device", ""),
        }
    return ports


def _name_ports(
    host: Host,
    own: Mapping[Place, Mapping[str, str]],
    devices: Sequence[Mapping[str, Any]],
) -> None:
    """The user's names before those that were found, and those before the usual ones."""
    for place in ((cage, domain) for cage in CAGES for domain in DOMAINS):
        # Cages and domains may have become text on the way through Ansible.
        there = [
            device
            for device in devices
            if (str(device.get("cage")), str(device.get("domain"))) == tuple(map(str, place))
        ]
        found = there[0] if len(there) == 1 else {}
        named = own.get(place, {})
        netdev, hca = standard_names(*place)
        host.netdevs[place] = named.get("netdev") or str(found.get("netdev") or netdev)
        host.hcas[place] = named.get("hca") or str(found.get("hca") or hca)


def _check_names(host: Host) -> Iterator[str]:
    for kind, names in (("netdev", host.netdevs), ("hca", host.hcas)):
        for name in dict.fromkeys(names.values()):
            places = [f"cage {c}, domain {d}" for (c, d), other in names.items() if other == name]
            if len(places) > 1:
                yield (
                    f"{host.name}: {kind} {name} stands for {' and for '.join(places)}; "
                    "correct its ports."
                )


def check_devices(
    host: Host, devices: Sequence[Mapping[str, Any]], needed: set[Place]
) -> Iterator[str]:
    """Every port that the plan needs is among the devices that were found."""
    for device in devices:
        problem = device.get("problem")
        if isinstance(problem, Mapping) and problem.get("code") == "bonded":
            yield (
                f"{host.name}: {device.get('hca')} is bonded, so its cages and twins cannot be "
                "told apart; remove the bond."
            )
            return
    there = sorted(str(device.get("hca")) for device in devices)
    for cage, domain in sorted(needed):
        hca = host.hcas[cage, domain]
        if hca not in there:
            yield (
                f"{host.name}: cage {cage}, domain {domain} should be {hca}, but the RDMA devices "
                f"found are: {', '.join(there) or 'none'}; plug its cable in and reboot if it has "
                "none, or correct its ports."
            )
