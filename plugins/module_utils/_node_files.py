# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The fabric plan of one node, and the files it becomes there."""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._netplan import (
    NETWORK_MANAGER,
    render,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._node_state import (
    IP_FORWARD,
    Route,
)

NETPLAN = "/etc/netplan/99-sparkfleet-fabric.yaml"
SYSCTL = "/etc/sysctl.d/60-sparkfleet-fabric.conf"
MANAGER_CONF = "/etc/NetworkManager/conf.d/60-sparkfleet-fabric.conf"
SCRIPT = "/usr/local/lib/sparkfleet/fabric-forward"
UNIT_NAME = "sparkfleet-fabric-forward.service"
UNIT = f"/etc/systemd/system/{UNIT_NAME}"
MODES = {NETPLAN: 0o600, SYSCTL: 0o644, MANAGER_CONF: 0o644, SCRIPT: 0o755, UNIT: 0o644}

CHAIN = "SPARKFLEET-FABRIC"
_HEADER = (
    "Written by the Ansible collection sparkfleet.cluster. Its next run undoes what is changed\n"
    "here: change the inventory instead."
)
_NETDEV = re.compile(r"[^\s/]{1,15}")

Texts = Mapping[str, str]


class Port(NamedTuple):
    """A fabric port and its address."""

    netdev: str
    address: str
    prefix: int


class Wanted(NamedTuple):
    """The plan of one node."""

    ports: list[Port]
    routes: list[Route]
    mtu: int
    forward: bool
    management: str
    shared: bool  # whether other files may address the ports as well


class Problem(NamedTuple):
    """Why nothing is done; `code` is stable, `message` is for people."""

    code: str
    message: str


def read_wanted(given: Mapping[str, Any]) -> tuple[Wanted | None, list[Problem]]:
    """The module's parameters as `Wanted`, or everything that is wrong with them.

    Ports may have further keys, as in the plan of the whole fabric; those are ignored.
    """
    said: list[str] = []
    ports: list[Port] = []
    for number, entry in enumerate(given["ports"] or []):
        try:
            name, length = entry["netdev"], int(entry["prefix"])
            network = ipaddress.IPv4Interface(f"{entry['address']}/{length}")
        except KeyError as error:
            said.append(f"ports[{number}] has no {error.args[0]}")
        except (ValueError, TypeError) as error:
            said.append(f"ports[{number}] has no usable address or prefix: {error}")
        else:
            if not isinstance(name, str) or not _NETDEV.fullmatch(name):
                said.append(f"ports[{number}]: {name!r} is no name of a network interface")
            ports.append(Port(name, str(network.ip), length))
    if not given["ports"]:
        said.append("ports is empty; take it from fabric_plan, hosts[inventory_hostname].ports")
    for what in ("netdev", "address"):
        values = [getattr(port, what) for port in ports]
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            said.append(f"two ports have the same {what}: {', '.join(twice)}")
    routes = [route for entry in given["routes"] or [] for route in _route(entry, ports, said)]
    management = given["management_interface"]
    if management in {port.netdev for port in ports}:
        said.append(
            f"{management} is the management interface and is listed in ports; a change would cut "
            "the connection it comes over"
        )
    if not 1280 <= given["mtu"] <= 9216:
        said.append(
            f"mtu is {given['mtu']}, expected 1280 to 9216; 9000 gives RoCE its largest MTU"
        )
    if said:
        return None, [Problem("input", text) for text in said]
    wanted = Wanted(
        ports,
        routes,
        mtu=given["mtu"],
        forward=given["forward"],
        management=management,
        shared=given["accept_foreign"],
    )
    return wanted, []


def _route(entry: Mapping[str, Any], ports: Sequence[Port], said: list[str]) -> Iterator[Route]:
    try:
        to = ipaddress.IPv4Network(entry["to"])
        via = ipaddress.IPv4Address(entry["via"])
    except ValueError as error:
        said.append(f"route to {entry.get('to')} via {entry.get('via')}: {error}")
        return
    ways = [p.netdev for p in ports if via in subnet(p) and str(via) != p.address]
    if to.prefixlen == 0:
        said.append("a default route belongs to the management network, not to the fabric")
    elif not ways or entry.get("netdev") not in (None, *ways):
        found = f"is on {ways[0]}" if ways else "is in no subnet of a port"
        wanted = f", expected it on {entry['netdev']}" if entry.get("netdev") else ""
        said.append(f"route to {to}: its gateway {via} {found}{wanted}")
    else:
        yield Route(str(to), str(via), entry.get("netdev") or ways[0])


def subnet(port: Port) -> ipaddress.IPv4Network:
    return ipaddress.IPv4Interface(f"{port.address}/{port.prefix}").network


# --- what is to be -------------------------------------------------------------------------------


def definitions(wanted: Wanted, renderers: Texts) -> dict[str, dict[str, Any]]:
    """Each port as netplan defines it."""
    found: dict[str, dict[str, Any]] = {}
    for port in wanted.ports:
        found[port.netdev] = {
            "renderer": renderers[port.netdev],
            "dhcp4": False,
            "dhcp6": False,
            "accept-ra": False,
            "link-local": [],
            "mtu": wanted.mtu,
            "optional": True,  # a missing cable does not hold up the boot
            # Keep the address when the peer is switched off: with it goes the GID, and it may come
            # back in another slot. NetworkManager ignores this key; see MANAGER_CONF.
            "ignore-carrier": True,
            "addresses": [f"{port.address}/{port.prefix}"],
        }
        routes = [{"to": r.to, "via": r.via} for r in wanted.routes if r.netdev == port.netdev]
        if routes:
            found[port.netdev]["routes"] = routes
    return found


def own_files(wanted: Wanted, renderers: Texts) -> dict[str, str]:
    """The text of every file that is ours, by path."""
    texts = {
        NETPLAN: render(definitions(wanted, renderers), _HEADER),
        SYSCTL: _sysctl(wanted),
    }
    managed = [name for name, renderer in renderers.items() if renderer == NETWORK_MANAGER]
    if managed:
        texts[MANAGER_CONF] = _manager(managed)
    if wanted.forward:
        texts |= {SCRIPT: _script(wanted), UNIT: _UNIT}
    return texts


def _comment(*lines: str) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in (*_HEADER.splitlines(), *lines))


def kernel_settings(wanted: Wanted) -> dict[str, str]:
    """Settings below /proc/sys. For those of a port the kernel takes the maximum with conf/all."""
    found = {}
    for port in wanted.ports:
        for name, value in (("arp_ignore", 1), ("arp_announce", 2), ("rp_filter", 2)):
            found[f"/proc/sys/net/ipv4/conf/{port.netdev}/{name}"] = str(value)
    if wanted.forward:
        found[IP_FORWARD] = "1"
    return found


def _sysctl(wanted: Wanted) -> str:
    """A sysctl.d file: read at boot, and by udev for a port whenever it appears."""
    why = _comment(
        "",
        "Both twins of a cable hear every ARP request on it: only the port that has an address may",
        "answer for it (arp_ignore) and announce it (arp_announce). What comes around a ring may",
        "arrive by another port than the answer leaves by (rp_filter: loose).",
    )
    kernel = kernel_settings(wanted).items()
    lines = [f"{path.removeprefix('/proc/sys/')} = {value}\n" for path, value in kernel]
    return why + "".join(lines)


def _manager(netdevs: Iterable[str]) -> str:
    matches = ",".join(f"interface-name:={name}" for name in netdevs)
    return _comment(
        "",
        "NetworkManager takes the addresses off a port 6 seconds after the peer is switched off,",
        "and with them the GIDs that running processes hold. netplan has no key against that.",
    ) + (f"[device-sparkfleet-fabric]\nmatch-device={matches}\nignore-carrier=yes\n")


def rules(wanted: Wanted) -> list[str]:
    names = [port.netdev for port in wanted.ports]
    return [f"-A {CHAIN} -i {a} -o {b} -j ACCEPT" for a, b in itertools.permutations(names, 2)]


def _script(wanted: Wanted) -> str:
    lines = "\n".join(rules(wanted))
    why = _comment(
        "", "Docker drops what is forwarded and not its own, unless DOCKER-USER accepts it."
    )
    return f"""#!/bin/sh
{why}set -u
command -v iptables-restore >/dev/null || exit 0  # then nothing of Docker drops anything
hook=FORWARD
if iptables -w -n -L DOCKER-USER >/dev/null 2>&1; then hook=DOCKER-USER; fi
unhook() {{
    while iptables -w -D "$1" -j {CHAIN} 2>/dev/null; do :; done
}}
case "${{1-}}" in
accept)
    iptables-restore -w --noflush <<'RULES' || exit
*filter
:{CHAIN} - [0:0]
{lines}
COMMIT
RULES
    iptables -w -C "$hook" -j {CHAIN} 2>/dev/null || iptables -w -I "$hook" -j {CHAIN} || exit
    if [ "$hook" != FORWARD ]; then unhook FORWARD; fi
    ;;
remove)
    unhook FORWARD
    unhook DOCKER-USER
    iptables -w -F {CHAIN} 2>/dev/null && iptables -w -X {CHAIN}
    ;;
*)
    echo "usage: $0 accept|remove" >&2
    exit 2
    ;;
esac
"""


_UNIT = f"""{_comment()}[Unit]
Description=Let the ports of the fabric forward to each other
# Docker makes its chains when it starts. It wants this unit, which does not stay active: so it is
# run at boot and after every start of Docker.
After=docker.service

[Service]
Type=oneshot
ExecStart={SCRIPT} accept

[Install]
WantedBy=multi-user.target docker.service
"""
