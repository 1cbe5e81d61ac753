# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reaching the hosts of a lab as a person and Ansible do: user ``spark``, host keys checked."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from lab.spec import Host, Lab
from lab.system import LabError, owner, run, write_atomic

# A lab is smaller than a Spark: what the checks ask for is scaled down, not the checks.
_SCALED_DOWN = {
    "preflight_memory_total_gib": 0.9,
    "preflight_memory_available_gib": 0.2,
    "preflight_checkpoint_gib": 0.5,
    "preflight_engram_gib": 0.5,
    "preflight_images_gib": 0.5,
}


def write_access(lab: Lab) -> None:
    """ssh_config, known_hosts and an inventory, readable by the person who asked for the lab."""
    known, blocks = [], []
    for host in lab.hosts:
        public = (lab.folder(host) / "ssh_host_ed25519_key.pub").read_text().split()[:2]
        known.append(f"{host.name},{host.address} {' '.join(public)}\n")
        blocks.append(f"Host {host.name}\n  HostName {host.address}\n  HostKeyAlias {host.name}\n")
    common = (
        "Host *\n  User spark\n"
        f"  IdentityFile {lab.state}/id_ed25519\n  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {lab.state}/known_hosts\n"
        "  StrictHostKeyChecking yes\n  BatchMode yes\n  LogLevel ERROR\n"
    )
    write_atomic(lab.state / "known_hosts", "".join(known))
    write_atomic(lab.state / "ssh_config", "\n".join([*blocks, common]))
    write_atomic(lab.state / "inventory.yml", json.dumps(inventory(lab), indent=2) + "\n")
    uid, gid = owner()
    os.chown(lab.state / "id_ed25519", uid, gid)
    # Ansible names a shared connection by host and user: labs must not share a folder for them
    (lab.state / "cp").mkdir(mode=0o700, exist_ok=True)
    os.chown(lab.state / "cp", uid, gid)


def inventory(lab: Lab) -> dict[str, Any]:
    """The same as inventories/lab.yml, for any lab and number of hosts (JSON is YAML).

    Several cells are as in inventories/two-cells.yml, with the first host as that of the router.
    """
    access = {
        "ansible_ssh_common_args": f"-F {lab.state}/ssh_config",
        "ansible_control_path_dir": f"{lab.state}/cp",
        "spark_checkpoint_dir": "/data/checkpoint",
        "spark_engram_dir": "/data/engram",
        **_SCALED_DOWN,
    }
    if len(lab.cells) == 1:
        return {"sparks": {"hosts": {host.name: None for host in lab.hosts}, "vars": access}}
    cells = {
        name: {
            # The router has to reach them, who does not read the lab's ssh configuration.
            "hosts": {host.name: {"ansible_host": host.address} for host in hosts},
            "vars": {"spark_group": name, "spark_fabric_cell": number},
        }
        for number, (name, hosts) in enumerate(lab.cells.items())
    }
    routers = {"hosts": {lab.hosts[0].name: None}}
    return {
        "all": {
            "vars": {**access, "router_cells": list(cells)},
            "children": {"spark_cells": {"children": cells}, "spark_routers": routers},
        }
    }


def command(lab: Lab, host: Host, argv: Sequence[str] = ()) -> list[str]:
    words = ["ssh", "-F", str(lab.state / "ssh_config"), "-o", "ConnectTimeout=5", host.name]
    return words + ([shlex.join(argv)] if argv else [])


def root(
    lab: Lab, host: Host, script: str, *, check: bool = True, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """Run a shell script as root on a host."""
    return run(command(lab, host, ["sudo", "-n", "sh", "-c", script]), check=check, timeout=timeout)


def wait(lab: Lab, hosts: Sequence[Host], seconds: float) -> None:
    """Until sshd of every host has let ``spark`` in.

    :raises LabError: names the hosts that did not within the time.
    """
    waiting = list(hosts)
    deadline = time.monotonic() + seconds
    while waiting:
        trials = {host.name: _probe(lab, host) for host in waiting}
        waiting = [host for host in waiting if trials[host.name].wait()]
        if waiting and time.monotonic() > deadline:
            names = ", ".join(host.name for host in waiting)
            raise LabError(
                f"no ssh within {seconds:.0f} s: {names}; see the console: "
                f"lab --name {lab.name} console {waiting[0].name}"
            )
        time.sleep(0.2 if waiting else 0)


def _probe(lab: Lab, host: Host) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command(lab, host, ["true"]),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
