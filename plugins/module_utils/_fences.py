# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Who may reach which port of a node, as a table of nftables of our own.

The table knows nothing but these ports, and lets everything else pass on to whatever other tables
there are. What it refuses no other table can let in.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

TABLE = "inet sparkfleet"


class FencesError(ValueError):
    """Fences that cannot be meant, a line for each."""


class Fence(NamedTuple):
    """A port and who may reach it; without sources nobody but the host itself."""

    port: int
    use: str
    sources: Sequence[str]


def cell_fences(
    plan: Mapping[str, Any],
    host: str,
    *,
    ports: Mapping[str, int],
    monitoring: Iterable[str] = (),
    clients: Iterable[str] = (),
) -> list[Fence]:
    """The fences of a host.

    Args:
        plan: the result of ``fabric_plan``.
        host: one of its hosts.
        ports: by use: engine, rendezvous, nfs, exporter, api; 0 leaves a port alone.
        monitoring: who reads metrics, as addresses or networks.
        clients: who may reach the entry; if there are none, everybody may.
    """
    own = plan["hosts"][host]
    is_head = plan["fabric"]["head"] == host
    members = [
        port["address"]
        for member in plan["hosts"].values()
        for port in member["ports"]
        if port["address"]
    ]
    found = [Fence(ports["engine"], "engine", ())]
    if is_head:
        found.append(Fence(ports["rendezvous"], "rendezvous", members))
        found.append(Fence(ports["nfs"], "nfs", list(own["nfs_client_sources"] or ())))
        if list(clients):
            found.append(Fence(ports["api"], "entry", list(clients)))
    found.append(Fence(ports["exporter"], "metrics", list(monitoring)))
    return [fence for fence in found if fence.port]


def ruleset(fences: Sequence[Fence], keep: Iterable[int] = (22,)) -> str:
    """The file that nftables reads. It replaces the table in one step and touches no other.

    Args:
        fences: what to refuse to whom.
        keep: ports that must not be fenced: those by which people get in.

    Raises:
        FencesError: a port is one of those to keep, or has two fences, or a source is no address.
    """
    problems = []
    uses: dict[int, str] = {}
    for fence in fences:
        if not 0 < fence.port < 65536:
            problems.append(f"the port of {fence.use} is {fence.port}, expected 1 to 65535")
        if fence.port in set(keep):
            problems.append(
                f"port {fence.port} is that of ssh and not fenced; give {fence.use} another port"
            )
        if fence.port in uses:
            problems.append(
                f"port {fence.port} is that of {uses[fence.port]} and of {fence.use}; "
                "each needs its own"
            )
        uses[fence.port] = fence.use
    rules = []
    for fence in fences:
        networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        for source in fence.sources:
            try:
                networks.append(ipaddress.ip_network(source, strict=False))
            except ValueError:
                problems.append(
                    f"{source!r} may reach {fence.use}, expected an address or a network such as "
                    "192.0.2.7 or 192.0.2.0/24"
                )
        rules += _rules(fence, networks)
    if problems:
        raise FencesError("\n".join(dict.fromkeys(problems)))
    body = "\n".join(f"        {rule}" for rule in rules)
    digest = hashlib.sha256(body.encode()).hexdigest()[:16]
    return f"""\
# Written by the Ansible collection sparkfleet.cluster. Its next run undoes what is changed here.
# It speaks of these ports alone: all else passes, ssh above all.
table {TABLE}
delete table {TABLE}
table {TABLE} {{
    comment "sparkfleet fences {digest}"
    chain input {{
        type filter hook input priority filter - 10; policy accept;
        iifname "lo" accept
{body}
    }}
}}
"""


def mark(text: str) -> str:
    """What ``nft list table`` shows where this very ruleset is in force."""
    return next(line.split('"')[1] for line in text.splitlines() if "comment" in line)


def _rules(fence: Fence, networks: Iterable[Any]) -> list[str]:
    found = []
    for family, version in (("ip", 4), ("ip6", 6)):
        own = [network for network in networks if network.version == version]
        if own:
            # Networks that overlap are no set to nftables.
            members = ", ".join(_text(network) for network in sorted(_collapsed(own)))
            found.append(
                f"tcp dport {fence.port} {family} saddr {{ {members} }} accept "
                f'comment "{fence.use}"'
            )
    return [*found, f'tcp dport {fence.port} counter reject with tcp reset comment "{fence.use}"']


def _collapsed(networks: list[Any]) -> list[Any]:
    return list(ipaddress.collapse_addresses(networks))


def _text(network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> str:
    single = network.prefixlen == network.max_prefixlen
    return str(network.network_address) if single else str(network)
