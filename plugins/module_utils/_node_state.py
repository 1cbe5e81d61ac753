# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What the network of a node is like now: links, routes, kernel settings, files and units."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command, Missing
from ansible_collections.sparkfleet.cluster.plugins.module_utils._netplan import FOLDERS
from ansible_collections.sparkfleet.cluster.plugins.module_utils._systemd import (
    Unit,
    ask_at_work,
    ask_states,
    read_names,
    read_states,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._tree import Tree

Run = Callable[[Sequence[str]], Command]

NETWORKD, MANAGER, DOCKER = "systemd-networkd.service", "NetworkManager.service", "docker.service"
# What a port's configuration sets in the kernel, and what network managers leave behind there.
KERNEL = (
    "ipv4/conf/{}/arp_ignore",
    "ipv4/conf/{}/arp_announce",
    "ipv4/conf/{}/rp_filter",
    "ipv6/conf/{}/accept_ra",
    "ipv6/conf/{}/addr_gen_mode",
    "ipv6/conf/{}/disable_ipv6",
)
IP_FORWARD = "/proc/sys/net/ipv4/ip_forward"


class NodeError(Exception):
    """Something that has to be known and cannot be read; the text is for people."""


class Link(NamedTuple):
    """A network device. Addresses are `address/prefix`; IPv6 link-local ones are left out."""

    up: bool
    mtu: int
    mac: str
    driver: str | None
    master: str | None
    addresses: list[str]
    leased: list[str]  # those of them that DHCP or a router gave
    managed: bool | None = None  # by NetworkManager; None where it does not run


class Route(NamedTuple):
    """An IPv4 route that somebody made; `via` is None for a subnet on the link."""

    to: str
    via: str | None
    netdev: str


class Observed(NamedTuple):
    """A node as it is."""

    links: dict[str, Link]
    routes: list[Route]
    kernel: dict[str, str]
    files: dict[str, tuple[int, str]]  # our own that exist: path to mode and text
    netplan: dict[str, str]  # path without leading slash to text
    units: dict[str, Unit]
    serving: list[str]
    filter: frozenset[str]  # the rules of iptables, as `iptables -S` writes them
    boot: str


class Node:
    """Reads a node.

    Args:
        root: its root directory.
        run: runs a command there, for a bounded time.
        own: the paths of the files that are ours.
        unit: the unit that is ours.
    """

    def __init__(self, root: str, run: Run, own: Iterable[str], unit: str) -> None:
        self._tree = Tree(root)
        self._run = run
        self._own = list(own)
        self._units = [NETWORKD, MANAGER, DOCKER, unit]

    def observe(
        self, netdevs: Iterable[str], rank_units: Sequence[str], *, forward: bool = False
    ) -> Observed:
        """Read everything once.

        Args:
            netdevs: the ports whose kernel settings matter.
            rank_units: patterns of units that mean a rank is serving.
            forward: whether the rules of iptables matter, whose modules are loaded to read them.

        Raises:
            NodeError: when a command that every Spark has is missing or fails.
        """
        units = self._unit_states()
        links = self.links()
        if units[MANAGER].active:
            links = self._managed(links)
        return Observed(
            links=links,
            routes=self.routes(),
            kernel=self._kernel(netdevs),
            files=self._files(),
            netplan=self._netplan(),
            units=units,
            serving=self._serving(rank_units),
            filter=self._filter() if forward else frozenset(),
            boot=self._tree.text("proc/sys/kernel/random/boot_id"),
        )

    def links(self) -> dict[str, Link]:
        return {
            entry["ifname"]: self._link(entry)
            for entry in self._ip("address", "show")
            if entry.get("ifname")
        }

    def _link(self, entry: Mapping[str, Any]) -> Link:
        name = entry["ifname"]
        driver = self._tree.target(f"sys/class/net/{name}/device/driver")
        infos = [
            info
            for info in entry.get("addr_info", ())
            if "local" in info and not (info["family"] == "inet6" and info["scope"] == "link")
        ]
        return Link(
            up="UP" in entry.get("flags", ()),
            mtu=int(entry.get("mtu", 0)),
            mac=entry.get("address", ""),
            driver=None if isinstance(driver, Missing) else driver,
            master=entry.get("master"),
            addresses=sorted(f"{info['local']}/{info['prefixlen']}" for info in infos),
            leased=[
                f"{info['local']}/{info['prefixlen']}" for info in infos if info.get("dynamic")
            ],
        )

    def _managed(self, links: Mapping[str, Link]) -> dict[str, Link]:
        done = self._run(["nmcli", "--terse", "--fields", "DEVICE,STATE", "device"])
        if done.rc != 0:
            raise NodeError(f"nmcli device: {done.complaint}")
        states = dict(line.rsplit(":", 1) for line in done.out.splitlines() if ":" in line)
        return {
            name: link._replace(managed=states.get(name, "unmanaged") != "unmanaged")
            for name, link in links.items()
        }

    def routes(self) -> list[Route]:
        return [
            Route(_network(entry["dst"]), entry.get("gateway"), entry["dev"])
            for entry in self._ip("-4", "route", "show")
            if entry.get("protocol") != "kernel" and entry.get("dev")
        ]

    def _ip(self, *words: str) -> list[dict[str, Any]]:
        argv = ["ip", "-j", *words]
        done = self._run(argv)
        if done.rc != 0:
            raise NodeError(f"{' '.join(argv)}: {done.complaint}")
        found: list[dict[str, Any]] = json.loads(done.out or "[]")
        return found

    def _kernel(self, netdevs: Iterable[str]) -> dict[str, str]:
        paths = [f"/proc/sys/net/{form.format(name)}" for name in netdevs for form in KERNEL]
        read = {path: self._tree.text(path.lstrip("/")) for path in [*paths, IP_FORWARD]}
        return {path: text for path, text in read.items() if not isinstance(text, Missing)}

    def _files(self) -> dict[str, tuple[int, str]]:
        found = {}
        for path in self._own:
            place = self._tree.path(path.lstrip("/"))
            if os.path.exists(place):
                found[path] = (os.stat(place).st_mode & 0o777, _read(place))
        return found

    def _netplan(self) -> dict[str, str]:
        found = {}
        for folder in FOLDERS:
            for place in glob.glob(self._tree.path(f"{folder}/*.yaml")):
                found[f"{folder}/{os.path.basename(place)}"] = _read(place)
        return found

    def _unit_states(self) -> dict[str, Unit]:
        done = ask_states(self._run, self._units)
        if done.rc != 0:
            raise NodeError(f"systemctl show: {done.complaint}")
        return read_states(done.out, self._units)

    def _serving(self, patterns: Sequence[str]) -> list[str]:
        if not patterns:
            return []
        done = ask_at_work(self._run, patterns)
        if done.rc != 0:
            raise NodeError(f"systemctl list-units: {done.complaint}")
        return read_names(done.out)

    def _filter(self) -> frozenset[str]:
        """Empty where there is no iptables; then Docker drops nothing either."""
        done = self._run(["iptables", "-w", "-S"])
        return frozenset(done.out.splitlines()) if done.rc == 0 else frozenset()


def _read(place: str) -> str:
    with open(place, encoding="utf-8", errors="surrogateescape") as stream:
        return stream.read()


def _network(dst: str) -> str:
    """`ip` writes a host route without its length, and the default route as a word."""
    if dst == "default":
        return "0.0.0.0/0"
    return dst if "/" in dst else f"{dst}/32"
