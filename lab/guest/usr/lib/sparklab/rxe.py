# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Soft-RoCE on the fabric NICs, named as a Spark names the functions of its ConnectX-7."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

with open("/etc/sparklab.json") as handle:
    PORTS = json.load(handle)["ports"]

subprocess.run(["modprobe", "rdma_rxe"], check=True)
deadline = time.monotonic() + 60
for port in PORTS:
    # udev gives the NIC its name; before that there is nothing to stand on
    while not os.path.exists(f"/sys/class/net/{port['netdev']}"):
        if time.monotonic() > deadline:
            sys.exit(f"no netdev {port['netdev']} within 60 s")
        time.sleep(0.1)
commands = [
    f"link add {port['hca']} type rxe netdev {port['netdev']}\n"
    for port in PORTS
    if not os.path.exists(f"/sys/class/infiniband/{port['hca']}")
]
subprocess.run(["rdma", "-b", "-"], input="".join(commands), text=True, check=True)
