# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs on a node: shout on every fabric port for a while, print who was heard where.

Layer 2 only (EtherType for local experiments), so it tells cabling from addressing.
"""

import contextlib
import json
import select
import socket
import subprocess
import sys
import time

PORTS = {"enp1s0f0np0": 0, "enP2p1s0f0np0": 0, "enp1s0f1np1": 1, "enP2p1s0f1np1": 1}
ETHERTYPE = 0x88B5


def main(seconds: float) -> None:
    name = socket.gethostname()
    sockets = {}
    for netdev in PORTS:
        subprocess.run(["ip", "link", "set", netdev, "up"], check=False)  # fresh ones are down
        try:
            # protocol 0: a socket that is not bound yet would hear every port
            opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            opened.bind((netdev, ETHERTYPE))
        except OSError:
            continue
        sockets[opened] = netdev
    heard = set()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for opened, netdev in sockets.items():
            head = b"\xff" * 6 + opened.getsockname()[4] + ETHERTYPE.to_bytes(2, "big")
            with contextlib.suppress(OSError):  # no carrier
                opened.send(head + f"{name}:{PORTS[netdev]}".encode().ljust(46))
        for opened in select.select(list(sockets), [], [], 0.2)[0]:
            try:
                packet, address = opened.recvfrom(200)
            except OSError:  # the link went down meanwhile
                continue
            if address[2] != socket.PACKET_OUTGOING:
                heard.add((PORTS[sockets[opened]], packet[14:].decode().strip()))
    print(json.dumps(sorted(heard)))


main(float(sys.argv[1]))
