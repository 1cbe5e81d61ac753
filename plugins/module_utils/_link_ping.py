# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Does a full frame get through, unfragmented, from one port to the one it should lead to?

A ping that passes proves less than it seems: with twins on one wire, either may answer ARP for the
other, and then RDMA goes to the wrong function while ping goes on working. So who claims the
address is asked as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    Command,
    Runner,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_probe import port_state
from ansible_collections.sparkfleet.cluster.plugins.module_utils._tree import Tree

# What can be wrong: what was found, what it means, and what to do.
PROBLEMS = {
    "no-ping": "ping is not installed ({said}): apt install iputils-ping.",
    "no-port": "{netdev} does not exist; ip -br link shows what there is.",
    "port-down": "{netdev} is {state}: ip link set {netdev} up, and seat the cable at both ends.",
    "no-address": "{source} is no address of {netdev}; ip -br addr show dev {netdev}.",
    "no-route": (
        "{destination} cannot be reached through {netdev} ({said}); ip route get {destination}."
    ),
    "local-mtu": (
        "{netdev} has MTU {found_mtu}, expected {mtu}: ip link set {netdev} mtu {mtu}, and set it "
        "in netplan."
    ),
    # Many devices let 4 bytes more than their MTU pass, the size of a VLAN tag.
    "narrow-path": (
        "packets of {mtu} bytes from {netdev} to {destination} are lost, those of {found_mtu} "
        "pass; look for an MTU of {found_mtu}, or 4 less, at the port of {destination} and at a "
        "switch in between."
    ),
    "no-arp": (
        "nobody behind {netdev} has the address {destination}; is it configured there, and is this "
        "the right cable?"
    ),
    "no-answer": (
        "{destination} does not answer a ping through {netdev}, although {claims} claims it; does "
        "a firewall drop it? ufw status, nft list ruleset."
    ),
    "loss": (
        "{received} of {sent} full frames from {netdev} to {destination} came back; look for "
        "errors in ethtool -S {netdev}."
    ),
    "arp-flux": (
        "{destination} is claimed by {claims}. Where both are twins of one host, set its sysctls "
        "net.ipv4.conf.all.arp_ignore=1 and net.ipv4.conf.all.arp_announce=2; else two hosts have "
        "this address."
    ),
    "ping-failed": "ping of {destination} through {netdev} failed: {said}.",
}

_HEADERS = 28  # of IPv4 and ICMP
_ETHERNET = 1500
_COUNTS = re.compile(r"^(\d+) packets transmitted, (\d+) received", re.MULTILINE)
_TIMES = re.compile(r"^rtt min/avg/max/mdev = [\d.]+/([\d.]+)/", re.MULTILINE)
_TOLD_MTU = re.compile(r"mtu ?= ?(\d+)")
# The right to open raw sockets may be missing: then it stays unknown who claims an address.
Claims = Callable[[str, str, str], "list[str] | None"]


class Answer(NamedTuple):
    """What one call of ping told."""

    sent: int
    received: int
    rtt_ms: float | None
    too_long: bool  # it was not even sent
    told_mtu: int | None
    command: Command

    @property
    def passed(self) -> bool:
        return self.received > 0


def read_ping(command: Command) -> Answer:
    """Read the output of iputils' ping."""
    counts, times = _COUNTS.search(command.out), _TIMES.search(command.out)
    said = command.out + command.err
    told = _TOLD_MTU.search(said)
    return Answer(
        sent=int(counts.group(1)) if counts else 0,
        received=int(counts.group(2)) if counts else 0,
        rtt_ms=float(times.group(1)) if times else None,
        too_long="essage too long" in said,
        told_mtu=int(told.group(1)) if told else None,
        command=command,
    )


def check_path(
    check: Mapping[str, Any], *, tree: Tree, command: Runner, who_has: Claims
) -> dict[str, Any]:
    """Try one direction of one twin of a link.

    Args:
        check: `netdev`, `source`, `destination` and `mtu`.
        tree: The files of the machine.
        command: Runs ping.
        who_has: Asks by ARP who claims an address: (netdev, source, destination) -> MACs.

    Returns:
        The check with `ok`, `code` and `message` (null when ok), `rtt_ms`, `found_mtu` (the largest
        that passes, as far as it was looked for) and `claims` (the MACs that claim the address).
    """
    path = _Path(check, tree, command)
    path.claims = who_has(path.netdev, path.source, path.destination) if path.is_up() else None
    code = path.judge()
    told = {**check, **path.words()}
    return {
        **check,
        "ok": code is None,
        "code": code,
        "message": PROBLEMS[code].format(**told) if code else None,
        "rtt_ms": path.rtt_ms,
        "found_mtu": path.found_mtu,
        "claims": path.claims,
    }


class _Path:
    def __init__(self, check: Mapping[str, Any], tree: Tree, command: Runner) -> None:
        self.netdev, self.source = str(check["netdev"]), str(check["source"])
        self.destination, self.mtu = str(check["destination"]), int(check["mtu"])
        self.claims: list[str] | None = None
        self.rtt_ms: float | None = None
        self.found_mtu: int | None = None
        self._port = port_state(tree, self.netdev)
        self._command = command
        self._last: Answer | None = None

    def is_up(self) -> bool:
        return bool(self._port["state"] == "up")

    def words(self) -> dict[str, Any]:
        """What messages tell."""
        last = self._last
        return {
            "state": "without carrier" if self._port["state"] == "no-carrier" else "down",
            "found_mtu": self.found_mtu,
            "claims": " and ".join(self.claims or ["somebody"]),
            "sent": last.sent if last else 0,
            "received": last.received if last else 0,
            "said": last.command.complaint if last else "",
        }

    def judge(self) -> str | None:
        """The code of the problem, None where there is none."""
        if not self.is_up():
            return "no-port" if self._port["state"] == "missing" else "port-down"
        small = self._ping(84, count=2)  # also fills the neighbour table before the real test
        if not small.passed:
            return self._why_nothing_passes(small)
        if self._port["mtu"] < self.mtu:
            self.found_mtu = self._port["mtu"]
            return "local-mtu"
        large = self._ping(self.mtu, count=3)
        self.rtt_ms = large.rtt_ms if large.passed else small.rtt_ms
        if not large.passed:
            # What was told in an error message is what the kernel remembers of the path.
            self.found_mtu = large.told_mtu or self._largest()
            return "narrow-path"
        self.found_mtu = self.mtu
        if large.received < large.sent:
            return "loss"
        return "arp-flux" if len(self.claims or ()) > 1 else None

    def _why_nothing_passes(self, small: Answer) -> str:
        said = small.command.err
        if small.command.rc == NOT_FOUND:
            return "no-ping"
        if "annot assign requested address" in said:
            return "no-address"
        if "unreachable" in said:
            return "no-route"
        if not small.sent:
            return "ping-failed"
        return "no-answer" if self.claims or self.claims is None else "no-arp"

    def _largest(self) -> int:
        """The largest packet that passes. The usual one is tried first, then it is halved."""
        passes, fails = 84, self.mtu
        middle = min(_ETHERNET, (passes + fails) // 2)
        while fails - passes > 1:
            if self._ping(middle, count=1, wait=0.5).passed:
                passes = middle
                middle = middle + 1 if middle == _ETHERNET else (passes + fails) // 2
            else:
                fails = middle
                middle = (passes + fails) // 2
        return passes

    def _ping(self, size: int, count: int, wait: float = 1.0) -> Answer:
        argv = ["ping", "-n", "-q", "-c", str(count), "-i", "0.02", "-W", f"{wait:g}", "-M", "do"]
        argv += ["-s", str(size - _HEADERS), "-I", self.source, "-I", self.netdev, self.destination]
        self._last = read_ping(self._command(argv))
        return self._last
