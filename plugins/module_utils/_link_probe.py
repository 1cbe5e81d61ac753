# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Hear on every fabric port who is behind it, with or without addresses.

All hosts of a run shout on all their ports for a while, and each notes the source of what it hears.
A neighbour table or LLDP may tell of a cable that is no longer there; a frame just heard cannot.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils import _link_detached
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    Missing,
    Runner,
    run_command,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_detached import Leash
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_frames import (
    mac_text,
    open_port,
    probe_frame,
    read_tag,
    receive,
    tag_of,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._tree import Tree

# The fabric ports under the names DGX OS gives them; cage 0 is the one nearest the RJ45.
PORTS: tuple[dict[str, Any], ...] = tuple(
    {"netdev": f"en{bus}f{cage}np{cage}", "cage": cage, "domain": domain}
    for cage in (0, 1)
    for domain, bus in ((0, "p1s0"), (2, "P2p1s0"))
)

_NAME = "fabric-neighbours"
_NET = "sys/class/net"
_INTERVAL = 0.25
_QUIET = 1.0  # seconds without a new source, after four shouts of everybody
_SPARE = 10.0  # seconds to lower the ports and to answer
_SOURCES = 256  # per port: more are a network, not a cable
_IFF_UP = 0x1


def start(
    ports: Sequence[Mapping[str, Any]],
    run: str,
    *,
    raise_ports: bool,
    lifetime: float,
    tree: Tree,
    command: Runner = run_command,
) -> str | None:
    """Shout and listen from now on, in a process that is left behind.

    Ports that are administratively down are left alone, or else raised until the process ends.

    Returns:
        Why nothing can be heard on this host; None when all is well.
    """
    _link_detached.collect(_NAME)  # before reading states: it may have raised ports
    states = [port_state(tree, port["netdev"]) for port in ports]
    raised: list[str] = []
    sockets: dict[str, socket.socket] = {}
    try:
        for state in states:
            netdev = state["netdev"]
            if state["state"] == "down" and raise_ports and _set_link(netdev, "up", command):
                raised.append(netdev)
            if state["state"] in ("up", "no-carrier") or netdev in raised:
                sockets[netdev] = open_port(netdev)
    except OSError as error:
        for netdev in raised:
            _set_link(netdev, "down", command)
        if error.errno in (errno.EPERM, errno.EACCES):
            return f"no right to send frames on {netdev}; this needs root"
        return f"cannot send frames on {netdev}: {error.strerror}"

    def work(leash: Leash) -> dict[str, Any]:
        try:
            heard = Ears(sockets, tag_of(run), tree).listen(leash, raised)
            # Read now: after this the ports that were raised are down again.
            found = [_result(port, port_state(tree, port["netdev"]), raised) for port in ports]
        finally:
            for port in sockets.values():
                port.close()
            for netdev in raised:
                _set_link(netdev, "down", command)
        for told in found:
            told.update(heard.get(told["netdev"], {"heard": []}))
        return {"run": run, "ports": found}

    why = _link_detached.start(_NAME, lifetime, work)
    for port in sockets.values():
        port.close()
    for netdev in raised if why else ():
        _set_link(netdev, "down", command)
    return why


def collect(
    ports: Sequence[Mapping[str, Any]],
    run: str,
    *,
    seconds: float,
    settle: float,
    tree: Tree,
    expected: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Let the process listen up to `seconds` longer, then end it and take what it has heard.

    It ends sooner where every port with a carrier has heard a peer, and nobody new for a second.
    As every host has started by now and each listens so much longer, every two of them have heard
    each other, however many of them Ansible reaches at a time. A port that was raised needs a while
    for its carrier: it is waited for, up to `settle` seconds from then on, unless all those that
    are `expected` to have one do.
    """
    timeout = seconds + settle + _SPARE
    wishes = {"seconds": seconds, "settle": settle, "expected": expected}
    result = _link_detached.collect(_NAME, timeout, **wishes)
    if not isinstance(result, Missing) and result["run"] != run:
        result = Missing("the process that listens belongs to another run")
    if isinstance(result, Missing):
        bare = [_result(port, port_state(tree, port["netdev"]), []) for port in ports]
        result = {"ports": [{**port, "heard": []} for port in bare], "why": str(result)}
    return {
        "probed": "why" not in result,
        "why": result.get("why"),
        "ports": result["ports"],
        "macs": macs(tree),
    }


class Ears:
    """What one process hears on the ports of a host."""

    def __init__(self, sockets: Mapping[str, socket.socket], tag: bytes, tree: Tree) -> None:
        self._sockets = sockets
        self._tag = tag
        self._tree = tree
        self._heard: dict[str, dict[str, dict[str, int]]] = {netdev: {} for netdev in sockets}
        self._carrier = dict.fromkeys(sockets, False)
        self._own = {mac_text(port.getsockname()[4]) for port in sockets.values()}
        self._news = 0.0  # when a source was heard for the first time

    def listen(self, leash: Leash, raised: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Shout and listen until the leash is pulled, and as long afterwards as is asked for.

        Returns:
            For each port whether it ever had a carrier, and every source it heard with the number
            of frames, of those that were probes of this run, and of those that were of another one.
        """
        netdevs = {port: netdev for netdev, port in self._sockets.items()}
        started, called, shout, end = time.monotonic(), 0.0, 0.0, None
        while end is None or time.monotonic() < end:
            if time.monotonic() >= shout:
                self._shout()
                shout = time.monotonic() + _INTERVAL
            sources: list[Any] = [*netdevs] if leash.request else [leash, *netdevs]
            for ready in select.select(sources, [], [], max(0.0, shout - time.monotonic()))[0]:
                if ready is not leash:
                    self._note(netdevs[ready], ready)
            if leash.pulled():
                expected = leash.request.get("expected")
                wanted = raised if expected is None else self._carrier.keys() & set(expected)
                waiting = bool(raised) and not all(self._carrier[netdev] for netdev in wanted)
                settled = started + leash.request.get("settle", 0.0)
                if end is None or (waiting and time.monotonic() < settled):
                    called = time.monotonic()
                    end = called + leash.request.get("seconds", 0.0)
                # A port that was just raised may be at a switch that does not forward yet.
                if not set(raised) & set(wanted) and self._has_peers():
                    end = min(end, max(called, self._news) + _QUIET)
        return {
            netdev: {
                "carrier_seen": self._carrier[netdev],
                "heard": [{"mac": mac, **count} for mac, count in sorted(found.items())],
            }
            for netdev, found in self._heard.items()
        }

    def _has_peers(self) -> bool:
        """Whether every port with a carrier has heard another host of this run."""
        return all(
            any(
                count["probes"] and mac not in self._own for mac, count in self._heard[port].items()
            )
            for port, carrier in self._carrier.items()
            if carrier
        )

    def _shout(self) -> None:
        for netdev, port in self._sockets.items():
            self._carrier[netdev] |= self._tree.text(f"{_NET}/{netdev}/carrier") == "1"
            try:
                port.send(probe_frame(port.getsockname()[4], self._tag))
            except OSError:  # no carrier, or the queue is full: there is a next time
                continue

    def _note(self, netdev: str, port: socket.socket) -> None:
        frame = receive(port)
        if frame is None:
            return
        sources = self._heard[netdev]
        mac = mac_text(frame[6:12])
        if mac not in sources and len(sources) >= _SOURCES:
            return
        if mac not in sources:
            self._news = time.monotonic()
        count = sources.setdefault(mac, {"frames": 0, "probes": 0, "other_runs": 0})
        count["frames"] += 1
        tag = read_tag(frame)
        if tag is not None:
            count["probes" if tag == self._tag else "other_runs"] += 1


def port_state(tree: Tree, netdev: str) -> dict[str, Any]:
    """What the kernel says of a port.

    `state` is missing, down (administratively), no-carrier or up. The speed is None where a driver
    does not know it; it then gives an error, -1, 0, 65535 or 4294967295.
    """
    base = f"{_NET}/{netdev}"
    flags, speed = tree.integer(f"{base}/flags"), tree.integer(f"{base}/speed")
    if isinstance(flags, Missing):
        state = "missing"
    elif not flags & _IFF_UP:
        state = "down"
    else:
        state = "up" if tree.text(f"{base}/carrier") == "1" else "no-carrier"
    mac, mtu = tree.text(f"{base}/address"), tree.integer(f"{base}/mtu")
    return {
        "netdev": netdev,
        "state": state,
        "mac": None if isinstance(mac, Missing) else mac.lower(),
        "mtu": None if isinstance(mtu, Missing) else mtu,
        "speed_mbps": None
        if isinstance(speed, Missing) or speed in (-1, 0, 65535, 4294967295)
        else speed,
    }


def macs(tree: Tree) -> dict[str, str]:
    """The MAC of every network interface of this host."""
    names = tree.names(_NET)
    found = {
        name: tree.text(f"{_NET}/{name}/address")
        for name in ([] if isinstance(names, Missing) else names)
    }
    return {
        name: mac.lower()
        for name, mac in found.items()
        if not isinstance(mac, Missing) and mac.strip("0:")
    }


def _result(
    port: Mapping[str, Any], state: Mapping[str, Any], raised: Sequence[str]
) -> dict[str, Any]:
    return {
        **state,
        "cage": port["cage"],
        "domain": port["domain"],
        "raised": state["netdev"] in raised,
        "carrier_seen": state["state"] == "up",
    }


def _set_link(netdev: str, state: str, command: Runner) -> bool:
    return command(["ip", "link", "set", "dev", netdev, state]).rc == 0
