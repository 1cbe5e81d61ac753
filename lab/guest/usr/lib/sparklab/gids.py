# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GID table of one RoCE port, filled by the rules of the kernel (drivers/infiniband/core).

Slots 0 and 1 hold the default GID made from the MAC, as v1 and v2. Every address adds a v1 and a v2
entry, each in the first free slot at that moment. Removing an address empties its slots, which stay
taken for as long as somebody still uses the old GID. Pure: no I/O.
"""

from __future__ import annotations

import ipaddress

LENGTH = 256  # slots of an mlx5 port
V1, V2 = "IB/RoCE v1", "RoCE v2"
ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"


def default_gid(mac: str) -> str:
    """``fe80::`` and the EUI-64 of the MAC."""
    part = [int(byte, 16) for byte in mac.split(":")]
    part[0] ^= 2
    eui = [*part[:3], 0xFF, 0xFE, *part[3:]]
    tail = [f"{eui[k]:02x}{eui[k + 1]:02x}" for k in range(0, 8, 2)]
    return ":".join(["fe80", "0000", "0000", "0000", *tail])


def address_gid(address: str) -> str:
    """An address in the long form of sysfs; IPv4 as ``::ffff:a.b.c.d``."""
    raw = ipaddress.ip_address(address).packed
    if len(raw) == 4:
        raw = b"\0" * 10 + b"\xff\xff" + raw
    # not .exploded: newer Pythons print a mapped IPv4 address with dots there
    return ":".join(raw[k : k + 2].hex() for k in range(0, 16, 2))


class GidTable:
    """``slots[i]`` is ``(gid, type, netdev)``, or None where the slot reads as empty."""

    def __init__(self) -> None:
        self.slots: list[tuple[str, str, str] | None] = [None] * LENGTH
        self._held: set[int] = set()  # read as empty, yet not free
        self._in_use = False

    def set_mac(self, mac: str, netdev: str) -> None:
        """A netdev appeared or changed its MAC: the default entries follow."""
        gid = default_gid(mac)
        self.slots[0], self.slots[1] = (gid, V1, netdev), (gid, V2, netdev)

    def add(self, address: str, netdev: str) -> None:
        gid = address_gid(address)
        if any(slot and slot[0] == gid and slot[2] == netdev for slot in self.slots):
            return
        for kind in (V1, V2):
            free = next(
                (
                    k
                    for k, slot in enumerate(self.slots)
                    if k > 1 and not slot and k not in self._held
                ),
                None,
            )
            if free is not None:  # a full table drops the entry, as the kernel does
                self.slots[free] = (gid, kind, netdev)

    def remove(self, address: str, netdev: str) -> None:
        gid = address_gid(address)
        for index, slot in enumerate(self.slots):
            if index > 1 and slot and slot[0] == gid and slot[2] == netdev:
                self.slots[index] = None
                if self._in_use:
                    self._held.add(index)

    def clear(self) -> None:
        """The netdev went away."""
        self.slots = [None] * LENGTH

    def hold(self, in_use: bool) -> None:
        """Whether a queue pair holds on to the entries that are removed from now on."""
        self._in_use = in_use
        if not in_use:
            self._held.clear()
