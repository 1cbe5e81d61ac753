# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What can happen to a running lab, and what undoes it."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor

from lab import cabling, ssh
from lab.backend import Backend
from lab.cabling import Cable, End
from lab.network import Network
from lab.spec import Host, Lab, Port
from lab.system import LabError

_FILLER = ".sparklab-fill"
# Neighbours of a port are only dropped when its carrier stays away for a while (lldpd: measured).
_UNPLUGGED_SECONDS = 3.0


def everywhere(hosts: Iterable[Host], act: Callable[[Host], object]) -> None:
    """The same on several hosts at once; the first failure is raised."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(act, hosts))


def give_addresses(lab: Lab, hosts: Sequence[Host]) -> None:
    """Addresses and MTU 9000 on the cabled fabric ports, for this boot only (nothing is written)."""
    wanted: dict[str, list[str]] = {host.name: [] for host in hosts}
    for host, port, address in lab.fabric_addresses():
        if host.name in wanted:
            wanted[host.name] += [
                f"ip link set {port.netdev} mtu 9000 up",
                f"ip addr replace {address} dev {port.netdev}",
            ]
    everywhere(hosts, lambda host: ssh.root(lab, host, "\n".join(["set -e", *wanted[host.name]])))


def cable_called(lab: Lab, name: str) -> Cable:
    """A cable by its name (``cab2``, ``2``) or by one of its ends (``spark2:0``)."""
    cables = lab.cables
    match = re.fullmatch(r"(spark\d+):([01])", name)
    if match:
        end = End(lab.host(match[1]).index, int(match[2]))
        found = lab.cable_at(end)
        if found is None:
            raise LabError(f"nothing is plugged into cage {end.cage} of {match[1]}")
        return found
    for cable in cables:
        if name in (cable.name, cable.name.removeprefix("cab")):
            return cable
    names = ", ".join(cable.name for cable in cables)
    raise LabError(f"no cable '{name}'; there are: {names}, or name an end: spark1:0")


def unplug(lab: Lab, network: Network, backend: Backend, cable: Cable) -> None:
    backend.set_carrier(cable.ends, on=False)
    network.part(cable.ends)


def plug(lab: Lab, network: Network, backend: Backend, cable: Cable) -> None:
    network.join(cable, cable.ends)
    backend.set_carrier(cable.ends, on=True)


def recable(lab: Lab, network: Network, backend: Backend, name: str) -> None:
    """Pull every plug and put it where another cabling has it."""
    cabling.cables(name, lab.hosts_wanted)  # refuse before anything is pulled
    everything = [End(host.index, cage) for host in lab.hosts for cage in (0, 1)]
    backend.set_carrier(everything, on=False)
    network.part(everything)
    time.sleep(_UNPLUGGED_SECONDS)
    lab.cabling = name
    lab.save()
    network.up()
    for cable in lab.cables:
        plug(lab, network, backend, cable)


def fill_disk(lab: Lab, host: Host, folder: str, leave_mib: int) -> None:
    """Occupy a filesystem of the host until only ``leave_mib`` MiB are free."""
    path = shlex.quote(f"{folder.rstrip('/')}/{_FILLER}")
    ssh.root(
        lab,
        host,
        f"set -e; free=$(df -B1M --output=avail {shlex.quote(folder)} | tail -1); "
        f'size=$((free - {leave_mib})); if [ "$size" -gt 0 ]; then fallocate -l "${{size}}M" {path}; fi',
    )


def empty_disk(lab: Lab, host: Host, folder: str) -> None:
    ssh.root(lab, host, f"rm -f {shlex.quote(f'{folder.rstrip(chr(47))}/{_FILLER}')}")


def shift_gid(lab: Lab, host: Host, port: Port) -> str:
    """Move the port's IPv4 GIDs to later slots, leaving a hole, by address events alone.

    Another address takes the free slots while the port's own is away, and then leaves. Works the
    same on Soft-RoCE and on the emulated table, since both follow the kernel's first-free rule.

    :returns: the address that moved.
    """
    script = rf"""
set -e
dev={port.netdev}
address=$(ip -4 -o addr show dev $dev scope global | awk 'NR == 1 {{print $4}}')
[ -n "$address" ] || {{ echo "no IPv4 address on $dev" >&2; exit 3; }}
ip addr del "$address" dev $dev
ip addr add 169.254.213.1/32 dev $dev
sleep 1
ip addr add "$address" dev $dev
sleep 1
ip addr del 169.254.213.1/32 dev $dev
echo "$address"
"""
    done = ssh.root(lab, host, script, check=False)
    if done.returncode:
        raise LabError(
            f"{host.name}: {done.stderr.strip() or 'the GID did not move'}; "
            "a GID slot can only move where there is an address"
        )
    return done.stdout.strip()
