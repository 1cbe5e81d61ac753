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
    """Addresses and MTU 9000 on the cabled fabric ports, until the host restarts."""
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


def unplug(network: Network, backend: Backend, cable: Cable) -> None:
    backend.set_carrier(cable.ends, on=False)
    network.part(cable.ends)


def plug(network: Network, backend: Backend, cable: Cable) -> None:
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
        plug(network, backend, cable)


def fill_disk(lab: Lab, host: Host, folder: str, leave_mib: int) -> None:
    """Occupy a filesystem of the host until only ``leave_mib`` MiB are free (0: not a byte)."""
    # the first part at once; the rest by writing, since the filesystem needs some room itself
    script = rf"""
set -e
cd {shlex.quote(folder)}
room() {{ echo $(($(df -B1M --output=avail . | tail -1) - {leave_mib})); }}
[ "$(room)" -le 32 ] || fallocate -l "$(($(room) - 16))M" {_FILLER}
pad() {{ dd if=/dev/zero conv=fsync,notrunc oflag=append of={_FILLER} "$@" 2>/dev/null; }}
if [ {leave_mib} -gt 0 ]; then pad bs=1M count=$(room); else pad bs=1M || pad bs=512 || true; fi
"""
    ssh.root(lab, host, script)


def empty_disk(lab: Lab, host: Host, folder: str) -> None:
    ssh.root(lab, host, f"rm -f {shlex.quote(f'{folder.rstrip(chr(47))}/{_FILLER}')}")


def shift_gid(lab: Lab, host: Host, port: Port) -> str:
    """Move the port's IPv4 GIDs to later slots, leaving a hole, by address events alone.

    Other addresses take the free slots while the port's own is away, and then leave. Works the
    same on Soft-RoCE and on the emulated table, since both follow the kernel's first-free rule.

    :returns: the address with its slots before and after.
    :raises LabError: the port has no address, or its GIDs did not move.
    """
    script = rf"""
set -e
dev={port.netdev}
address=$(ip -4 -o addr show dev $dev scope global | awk 'NR == 1 {{print $4}}')
[ -n "$address" ] || {{ echo "no IPv4 address on $dev, so no GID to move" >&2; exit 3; }}
gid=$(printf 'ffff:%02x%02x:%02x%02x' $(echo "${{address%/*}}" | tr . ' '))
cd /sys/class/infiniband/{port.hca}/ports/1/gids
slots() {{ echo $(grep -l "$gid" * | sort -n); }}
before=$(slots)
last=${{before##* }}
ip addr del "$address" dev $dev
sleep 1
count=0
while [ "$(tr -d ':0\n' <$last)" = "" ] && [ $count -lt 100 ]; do
    count=$((count + 1))
    ip addr add 169.254.213.$count/32 dev $dev
    sleep 0.5
done
ip addr add "$address" dev $dev
sleep 1
for n in $(seq $count); do ip addr del 169.254.213.$n/32 dev $dev; done
sleep 1
after=$(slots)
echo "${{address%/*}} slots $before -> $after"
[ "$before" != "$after" ] || {{ echo "the GID stayed at $before" >&2; exit 4; }}
"""
    done = ssh.root(lab, host, script, check=False)
    if done.returncode:
        raise LabError(f"{host.name}, {port.hca}: {done.stderr.strip()}")
    return done.stdout.strip()
