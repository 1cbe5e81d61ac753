# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The wires of a lab: one network namespace that holds a bridge per cable and a management bridge.

Only one veth pair reaches the machine's own namespace, so its firewall, forwarding and bridges
(and those of a Docker engine) neither see nor disturb the lab, and removing the namespace removes
the wires. Names inside: ``m-<i>`` management port of host i, ``f<cage><twin>-<i>`` fabric ports.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from lab.cabling import Cable, End
from lab.spec import MANAGEMENT, PORTS, Host, Lab, Port, port_of
from lab.system import LabError, run

# A switch that does not know LLDP forwards it: needed for direct cables made of a bridge.
_FORWARD_LLDP = "0x4000"
_SEGMENT_MTU = 9216


class Network:
    """Wires of one lab. Every method can be repeated."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.ns = lab.netns

    # --- the whole -----------------------------------------------------------------------------

    def up(self) -> None:
        """The namespace, the management bridge with the machine as .1, a bridge for each cable."""
        if not self.exists():
            run(["ip", "netns", "add", self.ns])
        self._sysctl("net.ipv6.conf.default.disable_ipv6=1", "net.ipv6.conf.all.disable_ipv6=1")
        # Per namespace since Linux 5.3; where it is global or absent there is nothing to do here.
        self._sysctl("net.bridge.bridge-nf-call-iptables=0", check=False)
        self._batch(["link set lo up"])
        links = self.links()
        if "mgmt" not in links:
            self._batch(["link add mgmt type bridge", "link set mgmt up"])
        if self._outside() not in self._host_links():
            # a half-made pair cannot be: both ends come with one command
            run(
                ["ip", "link", "add", self._outside(), "type", "veth"]
                + ["peer", "name", "machine", "netns", self.ns]
            )
        self._batch(["link set machine master mgmt up"])
        prefix = f"{self.lab.gateway}/24"
        run(["sysctl", "-qw", f"net.ipv6.conf.{self._outside()}.disable_ipv6=1"], check=False)
        run(["ip", "addr", "replace", prefix, "dev", self._outside()])
        run(["ip", "link", "set", self._outside(), "up"])
        for cable in self.lab.cables:
            if cable.name not in links:
                self._batch(
                    [
                        (
                            f"link add {cable.name} mtu {_SEGMENT_MTU} type bridge stp_state 0 "
                            f"forward_delay 0 mcast_snooping 0 group_fwd_mask {_FORWARD_LLDP}"
                        ),
                        f"link set {cable.name} up",
                    ]
                )

    def down(self) -> None:
        """By the lab's name alone: its number may be unknown, and then it is somebody else's."""
        if self.exists():
            if "machine" in self.links():
                self._batch(["link del machine"])  # takes its end on the machine along
            run(["ip", "netns", "del", self.ns])

    def exists(self) -> bool:
        return Path("/run/netns", self.ns).exists()

    def inside(self, *argv: str) -> list[str]:
        """The command line that runs ``argv`` among the wires (and keeps /sys and /proc)."""
        return ["nsenter", f"--net=/run/netns/{self.ns}", *argv]

    # --- ports -----------------------------------------------------------------------------------

    def add_taps(self, host: Host) -> None:
        """Ports for a virtual machine; carrier inside the guest is the machine's business."""
        links = self.links()
        for name in self.port_names(host):
            if name not in links:
                self._batch([f"tuntap add {name} mode tap"])
        self.plug_host(host)

    def add_veths(self, host: Host, pid: int) -> None:
        """Ports for a container, by their real names in its namespace, MTU 1500 as delivered."""
        links = self.links()
        inner = self.links(pid)
        commands = []
        wanted = [(MANAGEMENT, host.management_mac, self._management(host))]
        wanted += [(port.netdev, host.mac(port), self.port_name(host, port)) for port in PORTS]
        for netdev, mac, name in wanted:
            if name in links and netdev in inner:
                continue
            if name in links:
                commands.append(f"link del {name}")
            commands.append(
                f"link add {name} mtu {_SEGMENT_MTU} type veth "
                f"peer name {netdev} address {mac} mtu 1500 netns /proc/{pid}/ns/net"
            )
        self._batch(commands)
        self._reveal(pid, [netdev for netdev, _mac, _name in wanted])
        self.plug_host(host)

    @staticmethod
    def _reveal(pid: int, netdevs: Iterable[str]) -> None:
        """Let a container see its ports in /sys.

        Who asks for one while the node boots is told that it is not there, and kernels were seen
        that keep this: the directory lists the port then, and opening it fails, until what is
        remembered of names is dropped.
        """
        folder = Path(f"/proc/{pid}/root/sys/class/net")
        if not all((folder / netdev / "mtu").exists() for netdev in netdevs):
            Path("/proc/sys/vm/drop_caches").write_text("2\n")

    def remove_ports(self, host: Host) -> None:
        links = self.links()
        self._batch([f"link del {name}" for name in self.port_names(host) if name in links])

    def plug_host(self, host: Host) -> None:
        """Everything of one host into its place: management bridge and cables."""
        self._batch([f"link set {self._management(host)} master mgmt up"])
        for cage in (0, 1):
            end = End(host.index, cage)
            cable = self.lab.cable_at(end)
            if cable:
                self.join(cable, [end])
            else:
                self.part([end])  # nothing plugged in: no carrier

    def join(self, cable: Cable, ends: Iterable[End]) -> None:
        """Plug ends into a cable: both twins, full MTU, carrier on."""
        present = self.links()
        self._batch(
            f"link set {name} master {cable.name} mtu {_SEGMENT_MTU} up"
            for name in self._names(ends)
            if name in present
        )
        self._batch([f"link set {cable.name} mtu {_SEGMENT_MTU}"])

    def part(self, ends: Iterable[End]) -> None:
        """Pull the plug: out of the segment and no carrier."""
        present = self.links()
        self._batch(
            f"link set {name} nomaster down" for name in self._names(ends) if name in present
        )

    def set_path_mtu(self, host: Host, port: Port, mtu: int) -> None:
        """Make the wire behind one twin narrower: larger frames are lost without a word."""
        self._batch([f"link set {self.port_name(host, port)} mtu {mtu}"])

    def set_management(self, host: Host, connected: bool) -> None:
        self._batch([f"link set {self._management(host)} {'up' if connected else 'down'}"])

    # --- looking ---------------------------------------------------------------------------------

    def links(self, pid: int | None = None) -> dict[str, dict[str, object]]:
        """The interfaces among the wires, or in the namespace of a process."""
        argv = ["ip", "-j", "link", "show"]
        if pid is None:
            argv[1:1] = ["-n", self.ns]
            if not self.exists():
                return {}
        else:
            argv = ["nsenter", "-t", str(pid), "-n", *argv]
        return {link["ifname"]: link for link in json.loads(run(argv).stdout or "[]") if link}

    def members(self) -> dict[str, list[str]]:
        """What is really plugged in: {segment: [port names]}."""
        plugged: dict[str, list[str]] = {}
        for name, link in self.links().items():
            if isinstance(master := link.get("master"), str):
                plugged.setdefault(master, []).append(name)
        return plugged

    def port_names(self, host: Host) -> list[str]:
        return [self._management(host), *(self.port_name(host, port) for port in PORTS)]

    @staticmethod
    def port_name(host: Host, port: Port) -> str:
        return f"{port.tag}-{host.index}"

    @staticmethod
    def _management(host: Host) -> str:
        return f"m-{host.index}"

    def _names(self, ends: Iterable[End]) -> list[str]:
        return [f"{port_of(end.cage, twin).tag}-{end.host}" for end in ends for twin in ("a", "b")]

    def _outside(self) -> str:
        return f"sparklab{self.lab.index}"

    @staticmethod
    def _host_links() -> set[str]:
        return {link["ifname"] for link in json.loads(run(["ip", "-j", "link"]).stdout) if link}

    def _sysctl(self, *settings: str, check: bool = True) -> None:
        run(self.inside("sysctl", "-qw", *settings), check=check)

    def _batch(self, commands: Iterable[str]) -> None:
        """Many ``ip`` commands in one process."""
        text = "\n".join(commands)
        if text:
            run(["ip", "-n", self.ns, "-batch", "-"], text=text + "\n")


def machine_routes() -> list[str]:
    """Destinations the machine itself routes to, but for the default route."""
    done = run(["ip", "-j", "-4", "route"], check=False)
    try:
        routes = json.loads(done.stdout or "[]")
    except ValueError as error:
        raise LabError(f"ip -j route printed no JSON: {done.stdout[:200]}") from error
    return [route["dst"] for route in routes if route and route.get("dst") != "default"]
