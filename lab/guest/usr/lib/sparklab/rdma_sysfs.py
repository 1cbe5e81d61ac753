#!/usr/bin/python3
# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""STAND-IN for RDMA devices in a container lab: files under /sys/class/infiniband, nothing else.

Real are the netdevs, their addresses, MACs and carriers; the GID table is computed from them by the
kernel's slot rules (``gids.py``) and follows every address event in order, as netlink reports it.
No verbs, no RDMA traffic. ``/run/sparklab/held/<hca>`` makes removed GIDs keep their slots, as a
queue pair that still uses them would.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gids import LENGTH, ZERO, GidTable

CLASS = Path("/sys/class/infiniband")
VERBS = Path("/sys/class/infiniband_verbs")
DEVICES = Path("/run/sparklab/devices")
HELD = Path("/run/sparklab/held")
# Reading this gives EINVAL in every network namespace, which is what an empty slot must give.
EINVAL = "/sys/class/net/lo/speed"

_NEWLINK, _DELLINK, _NEWADDR, _DELADDR = 16, 17, 20, 21
_GROUPS = 0x1 | 0x10 | 0x100  # links, IPv4 addresses, IPv6 addresses
_IFA_ADDRESS, _IFA_LOCAL = 1, 2


class Hca:
    """One emulated device: its table and its folder."""

    def __init__(self, number: int, port: dict[str, str]) -> None:
        self.name, self.netdev, self.pci = port["hca"], port["netdev"], port["pci"]
        self.folder = CLASS / self.name
        self.table = GidTable()
        self._written: list[tuple[str, str, str] | None] = [("", "", "")] * LENGTH
        self._mac = ""
        self._make(number)

    def _make(self, number: int) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        port = self.folder / "ports/1"
        for folder in ("gids", "gid_attrs/types", "gid_attrs/ndevs", "counters", "hw_counters"):
            (port / folder).mkdir(parents=True)
        device = DEVICES / self.pci
        (device / "net" / self.netdev).mkdir(parents=True, exist_ok=True)
        for name, text in {
            "vendor": "0x15b3",
            "device": "0x1021",
            "current_link_speed": "32.0 GT/s PCIe",
            "current_link_width": "4",
            "max_link_speed": "32.0 GT/s PCIe",
            "max_link_width": "4",
        }.items():
            (device / name).write_text(text + "\n")
        (self.folder / "device").symlink_to(device)
        for name, text in {
            "fw_ver": "28.45.4028",
            "hca_type": "MT4129",
            "board_id": "NVD0000000087",
            "hw_rev": "0",
            "node_type": "1: CA",
            "node_desc": f"{socket.gethostname()} {self.name}",
        }.items():
            (self.folder / name).write_text(text + "\n")
        (port / "link_layer").write_text("Ethernet\n")
        for name in ("port_rcv_data", "port_xmit_data", "symbol_error", "link_downed"):
            (port / "counters" / name).write_text("0\n")
        for name in ("out_of_sequence", "packet_seq_err", "local_ack_timeout_err"):
            (port / "hw_counters" / name).write_text("0\n")
        verbs = VERBS / f"uverbs{number}"
        verbs.mkdir(parents=True, exist_ok=True)
        (verbs / "ibdev").write_text(self.name + "\n")

    def refresh_link(self) -> None:
        """State, rate and the default GIDs, from the netdev as it is now."""
        net = Path("/sys/class/net", self.netdev)
        try:
            mac = (net / "address").read_text().strip()
        except OSError:  # the netdev is gone
            mac = ""
        if not mac:
            self.table.clear()
        elif mac != self._mac:
            self.table.set_mac(mac, self.netdev)
            guid = mac.replace(":", "")
            guid = f"{guid[:6]}0300{guid[6:]}"
            text = ":".join(guid[k : k + 4] for k in range(0, 16, 4))
            (self.folder / "node_guid").write_text(text + "\n")
            (self.folder / "sys_image_guid").write_text(text[:-1] + "0\n")
        self._mac = mac
        try:
            carrier = (net / "carrier").read_text().strip() == "1"
        except OSError:  # EINVAL while administratively down
            carrier = False
        port = self.folder / "ports/1"
        (port / "state").write_text("4: ACTIVE\n" if carrier else "1: DOWN\n")
        (port / "phys_state").write_text("5: LinkUp\n" if carrier else "3: Disabled\n")
        (port / "rate").write_text("200 Gb/sec (4X HDR)\n" if carrier else "40 Gb/sec (4X QDR)\n")

    def write(self) -> None:
        """Bring the files up to date with the table; untouched slots cost nothing."""
        port = self.folder / "ports/1"
        for index, slot in enumerate(self.table.slots):
            if slot == self._written[index]:
                continue
            gid, kind, netdev = slot or (ZERO, "", "")
            _replace(port / "gids" / str(index), gid)
            _replace(port / "gid_attrs/types" / str(index), kind)
            _replace(port / "gid_attrs/ndevs" / str(index), netdev)
            self._written[index] = slot


def _replace(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}")
    aside.unlink(missing_ok=True)
    if text:
        aside.write_text(text + "\n")
    else:
        aside.symlink_to(EINVAL)
    os.replace(aside, path)


def _address(payload: bytes) -> tuple[int, str] | None:
    """(interface index, address) of an address message; None where it carries none."""
    family, _prefix, _flags, _scope, index = struct.unpack_from("=BBBBI", payload)
    found: dict[int, bytes] = {}
    offset = 8
    while offset + 4 <= len(payload):
        length, kind = struct.unpack_from("=HH", payload, offset)
        if length < 4:
            break
        found[kind] = payload[offset + 4 : offset + length]
        offset += (length + 3) & ~3
    raw = found.get(_IFA_LOCAL) or found.get(_IFA_ADDRESS)
    if family not in (socket.AF_INET, socket.AF_INET6) or raw is None:
        return None
    return index, str(ipaddress.ip_address(raw))


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + 16 <= len(data):
        length, kind = struct.unpack_from("=IH", data, offset)
        if length < 16:
            return
        yield kind, data[offset + 16 : offset + length]
        offset += (length + 3) & ~3


class Emulator:
    """The four devices, and which netdev (or upper of one) feeds which of them."""

    def __init__(self, ports: list[dict[str, str]]) -> None:
        self.hcas = {port["netdev"]: Hca(k, port) for k, port in enumerate(ports)}
        self._names: dict[int, str] = {}
        self._owner: dict[str, str] = {}  # netdev -> the fabric netdev below it

    def resync(self) -> None:
        """Everything as it is now: at the start, and when events were lost."""
        self._learn_links()
        for hca in self.hcas.values():
            hca.refresh_link()
        listing = json.loads(subprocess.check_output(["ip", "-j", "addr"]))
        now: dict[str, set[tuple[str, str]]] = {name: set() for name in self.hcas}
        for link in filter(None, listing):
            owner = self._owner.get(link["ifname"])
            if owner:
                for info in link["addr_info"]:
                    if "local" in info:
                        now[owner].add((info["local"], link["ifname"]))
                        self.hcas[owner].table.add(info["local"], link["ifname"])
        for hca in self.hcas.values():
            self._forget_missing(hca, now[hca.netdev])
            hca.write()

    @staticmethod
    def _forget_missing(hca: Hca, now: set[tuple[str, str]]) -> None:
        for slot in hca.table.slots[2:]:
            if slot:
                parsed = ipaddress.IPv6Address(slot[0])
                address = str(parsed.ipv4_mapped or parsed)
                if (address, slot[2]) not in now:
                    hca.table.remove(address, slot[2])

    def _learn_links(self) -> None:
        listing = json.loads(subprocess.check_output(["ip", "-j", "link"]))
        links = {link["ifname"]: link for link in listing if link}
        self._names = {link["ifindex"]: name for name, link in links.items()}
        self._owner = {name: name for name in self.hcas if name in links}
        for name, link in links.items():  # VLANs and macvlans belong to the device below them
            if link.get("link") in self.hcas:
                self._owner[name] = link["link"]

    def handle(self, kind: int, payload: bytes) -> None:
        if kind in (_NEWLINK, _DELLINK):
            self._learn_links()
            for hca in self.hcas.values():
                hca.refresh_link()
        elif kind in (_NEWADDR, _DELADDR) and (found := _address(payload)):
            index, address = found
            netdev = self._names.get(index, "")
            owner = self._owner.get(netdev)
            if owner:
                hca = self.hcas[owner]
                hca.table.hold((HELD / hca.name).exists())
                change = hca.table.add if kind == _NEWADDR else hca.table.remove
                change(address, netdev)
        for hca in self.hcas.values():
            hca.write()


def main() -> None:
    facts = json.loads(Path("/etc/sparklab.json").read_text())
    HELD.mkdir(parents=True, exist_ok=True)
    listener = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    listener.bind((0, _GROUPS))
    emulator = Emulator(facts["ports"])
    emulator.resync()
    notify = os.environ.get("NOTIFY_SOCKET")
    if notify:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ready:
            ready.sendto(b"READY=1", notify)
    while True:
        try:
            data = listener.recv(1 << 18)
        except OSError:  # ENOBUFS: more events than the buffer holds
            emulator.resync()
            continue
        for kind, payload in _messages(data):
            emulator.handle(kind, payload)


if __name__ == "__main__":
    main()
