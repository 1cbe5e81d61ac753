# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Ethernet frames as they are, before addresses mean anything: probes of our own, and ARP."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import select
import socket
import struct
import time

ETHERTYPE = 0x88B5  # IEEE 802, local experimental EtherType 1
BROADCAST = b"\xff" * 6

_ARP = 0x0806
_IPV4, _IPV6 = 0x0800, 0x86DD
_ALL = 0x0003  # ETH_P_ALL
_MINIMUM = 60  # without the checksum
_MAGIC = b"SFLP\x01"  # the last byte is the version of this format
_TAG = 16

_SO_ATTACH_FILTER = 26
_SOL_PACKET, _ADD_MEMBERSHIP, _ALLMULTI = 263, 1, 2
# Every frame but IP, which at the rates of these links would drown a program: classic BPF.
_NO_IP = (
    (0x28, 0, 0, 12),  # load the EtherType
    (0x15, 2, 0, _IPV4),  # jump to "drop"
    (0x15, 1, 0, _IPV6),
    (0x06, 0, 0, 256),  # take so many bytes
    (0x06, 0, 0, 0),  # drop
)


def mac_text(mac: bytes) -> str:
    """Six bytes as 02:00:00:00:00:01."""
    return mac.hex(":")


def tag_of(run: str) -> bytes:
    """What tells the probes of one run from those of any other."""
    return hashlib.sha256(run.encode()).digest()[:_TAG]


def probe_frame(source: bytes, tag: bytes) -> bytes:
    """A broadcast that says: here is this port, asked by this run."""
    head = BROADCAST + source + struct.pack("!H", ETHERTYPE)
    return (head + _MAGIC + tag).ljust(_MINIMUM, b"\0")


def read_tag(frame: bytes) -> bytes | None:
    """The tag of a probe; None for any other frame."""
    if frame[12:14] != struct.pack("!H", ETHERTYPE) or frame[14 : 14 + len(_MAGIC)] != _MAGIC:
        return None
    tag = frame[14 + len(_MAGIC) :][:_TAG]
    return tag if len(tag) == _TAG else None


def arp_request(mac: bytes, source: str, target: str) -> bytes:
    """Who has the IPv4 address `target`? Tell `source`."""
    body = struct.pack("!HHBBH", 1, _IPV4, 6, 4, 1)
    body += mac + socket.inet_aton(source) + bytes(6) + socket.inet_aton(target)
    return (BROADCAST + mac + struct.pack("!H", _ARP) + body).ljust(_MINIMUM, b"\0")


def arp_claim(frame: bytes, target: str) -> str | None:
    """The MAC that claims the IPv4 address `target` in an ARP reply; None for any other frame."""
    head = struct.pack("!HHHBBH", _ARP, 1, _IPV4, 6, 4, 2)
    if frame[12:22] != head or frame[28:32] != socket.inet_aton(target):
        return None
    return mac_text(frame[22:28])


def open_port(netdev: str) -> socket.socket:
    """A socket that hears every frame on one port that is not IP.

    Raises:
        OSError: no such port, or no right to do so (EPERM).
    """
    # Until it is bound, a socket with a protocol hears every port: the protocol comes with bind().
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        code = b"".join(struct.pack("HBBI", *instruction) for instruction in _NO_IP)
        buffer = ctypes.create_string_buffer(code, len(code))
        program = struct.pack("HP", len(_NO_IP), ctypes.addressof(buffer))
        port.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
        port.bind((netdev, _ALL))
        # A switch speaks to multicast addresses (LLDP, spanning tree) that a NIC else ignores.
        request = struct.pack("iHH8s", socket.if_nametoindex(netdev), _ALLMULTI, 0, b"")
        with contextlib.suppress(OSError):
            port.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, request)
        port.setblocking(False)
    except BaseException:
        port.close()
        raise
    return port


def receive(port: socket.socket) -> bytes | None:
    """The next frame somebody else sent; None for an own one, or where there is none."""
    try:
        frame, address = port.recvfrom(256)
    except OSError:  # nothing there, or the link went down meanwhile
        return None
    return None if address[2] == socket.PACKET_OUTGOING or len(frame) < 14 else frame


def who_has(netdev: str, source: str, target: str, seconds: float = 0.5) -> list[str]:
    """Every MAC behind a port that claims an IPv4 address, in the order of their answers.

    More than one claims it where both twins of a host answer for each other (ARP flux), or where
    two hosts have the same address.

    Raises:
        OSError: no such port, or no right to do so (EPERM).
    """
    claims: dict[str, None] = {}
    with open_port(netdev) as port:
        port.send(arp_request(port.getsockname()[4], source, target))
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if select.select([port], [], [], left)[0] and (frame := receive(port)):
                claim = arp_claim(frame, target)
                if claim:
                    claims[claim] = None
    return list(claims)
