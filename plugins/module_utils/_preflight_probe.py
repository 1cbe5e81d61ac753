# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Everything preflight wants to know about one node, read in one go and judged elsewhere.

Each section is a function from a `Machine` to a plain dictionary. A value that cannot be had is
None and its reason stands under `why`. A section that raises or misses the deadline is None itself.
Sizes are bytes, times are seconds since the epoch.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    Command,
    Missing,
    Runner,
    ask_all,
    run_command,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rdma_sysfs import (
    pci_address,
    rdma_devices,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._tree import Tree, record

_DRIVER_VERSION = re.compile(r"\b([0-9]{3}\.[0-9]+(?:\.[0-9]+)?)\b")
_CONTAINER_ID = re.compile(r"docker[-/]([0-9a-f]{64})")
_WALK_SECONDS = 5.0
# "Unknown" in the speed of a link, as kernels and drivers of several ages spell it.
_NO_SPEED = {-1, 0, 65535, 4294967295}
# Packages whose unattended change takes a serving node down, by what they carry. Of the kernel and
# its modules only the metapackages count: they bring a new version, a versioned package stays what
# it is.
_WATCHED = (
    ("docker", re.compile(r"docker(\.io|-ce|-ce-cli)$")),
    ("containerd", re.compile(r"containerd(\.io)?$")),
    ("nvidia", re.compile(r"((lib)?nvidia-|linux-modules-nvidia-|cuda-drivers)(?!.*\d\.\d+\.\d)")),
    (
        "kernel",
        re.compile(
            r"linux-(image-)?(generic|virtual|lowlatency|oem|nvidia|(cloud-)?(amd64|arm64))"
            r"(-64k)?(-hwe)?(-\d\d\.\d\d[a-z]?)?(-edge)?$"
        ),
    ),
)


def _addresses_of(name: str) -> list[str]:
    return sorted({str(entry[4][0]) for entry in socket.getaddrinfo(name, None)})


@dataclass(frozen=True)
class Machine:
    """Where a probe looks. The defaults are this machine; tests put their own in place."""

    tree: Tree = field(default_factory=Tree)
    run: Runner = run_command
    resolve: Callable[[str], list[str]] = _addresses_of
    arch: str = field(default_factory=lambda: os.uname().machine)
    python: str = sys.executable
    euid: int = field(default_factory=os.geteuid)


def probe(
    machine: Machine,
    paths: Sequence[str] = (),
    names: Sequence[str] = (),
    ports: Sequence[int] = (),
    deadline: float = 30.0,
) -> dict[str, Any]:
    """Ask every section at once, then the filesystems, and join what belongs together.

    `paths` are directories whose filesystem is measured, whether they exist yet or not; `names` are
    resolved as this machine resolves them; `ports` are TCP ports whose listeners are named. Waits
    for twice the deadline at most.
    """
    sections: dict[str, Callable[[], Any]] = {
        "system": partial(system, machine),
        "gpu": partial(gpu, machine),
        "docker": partial(docker, machine),
        "rdma": partial(rdma, machine),
        "memory": partial(memory, machine),
        "limits": partial(limits, machine),
        "python": partial(python, machine),
        "sudo": partial(sudo, machine),
        "network": partial(network, machine),
        "ports": partial(listeners, machine, ports),
        "upgrades": partial(upgrades, machine),
    }
    hostname = machine.tree.text("proc/sys/kernel/hostname")
    wanted_names = dict.fromkeys([*names, hostname])
    lookups = {f"name {name}": partial(machine.resolve, name) for name in wanted_names}
    answers = ask_all({**sections, **lookups}, deadline)
    result = record(**{name: answers[name] for name in sections})
    result["names"] = [
        record(name=name, addresses=answers[f"name {name}"]) for name in wanted_names
    ]

    images = (result["docker"] or {}).get("images_dir")
    wanted_paths = dict.fromkeys([*paths, images] if images else paths)
    disks = ask_all(
        {path: partial(filesystem, machine, path, count=path in paths) for path in wanted_paths},
        deadline,
    )
    result["paths"] = [record(path=path, filesystem=disks[path]) for path in wanted_paths]
    _name_containers(result)
    return result


def system(machine: Machine) -> dict[str, Any]:
    """Operating system, kernel now and after the next boot, and who this machine is."""
    tree = machine.tree
    release = _assignments(tree.text("etc/os-release"))
    dgx = _assignments(tree.text("etc/dgx-release"))
    kernel = tree.text("proc/sys/kernel/osrelease")
    newest = _newest_kernel(tree)
    uptime = tree.text("proc/uptime")
    return record(
        os_id=release.get("ID", Missing("no ID in /etc/os-release")),
        os_version=release.get("VERSION_ID", Missing("no VERSION_ID in /etc/os-release")),
        os_name=release.get("PRETTY_NAME", Missing("no PRETTY_NAME in /etc/os-release")),
        dgx_os=dgx.get("DGX_OTA_VERSION") or dgx.get("DGX_SWBUILD_VERSION") or Missing("no DGX OS"),
        arch=machine.arch,
        kernel=kernel,
        kernel_newest=newest,
        kernel_newest_has_nvidia=_has_nvidia_module(tree, newest),
        hostname=tree.text("proc/sys/kernel/hostname"),
        machine_id=tree.text("etc/machine-id"),
        uptime=uptime if isinstance(uptime, Missing) else float(uptime.split()[0]),
        euid=machine.euid,
    )


def gpu(machine: Machine) -> dict[str, Any]:
    """GPUs, who computes on them, and both halves of the driver.

    GB10 shares its memory with the CPU and reports no totals: `memory_mib` is None there, and a
    busy GPU shows in the list of processes only.
    """
    fields = "name,uuid,pci.bus_id,driver_version,memory.total"
    listing = machine.run(["nvidia-smi", f"--query-gpu={fields}", *_CSV])
    working = machine.run(
        ["nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", *_CSV]
    )
    present = listing.rc != NOT_FOUND
    gpus = _table(listing, ("name", "uuid", "pci", "driver", "memory_mib")) if present else []
    return record(
        driver=_nvidia_module(machine.tree, gpus),
        library=_nvidia_library(machine.tree, listing),
        present=present,
        gpus=gpus,
        processes=_processes(machine, working) if present else [],
    )


def docker(machine: Machine) -> dict[str, Any]:
    """The Docker engine, its runtimes, where it keeps images, and the running containers."""
    answer = machine.run(["docker", "info", "--format", "{{json .}}"])
    info = _json_object(answer.out)
    active: bool | Missing = bool(info.get("ServerVersion"))
    complaint = "" if active else "; ".join(info.get("ServerErrors") or []) or answer.complaint
    if "permission denied" in complaint.lower():
        complaint = "permission denied without root"
        active = Missing(complaint)
    lacking = Missing(complaint or "not in what docker info says")
    driver_status = dict(row for row in info.get("DriverStatus") or [] if len(row) == 2)
    containerd = driver_status.get("driver-type", "").startswith("io.containerd.snapshotter")
    images_dir = "/var/lib/containerd" if containerd else info.get("DockerRootDir")
    return record(
        present=answer.rc != NOT_FOUND,
        active=active,
        complaint=complaint,
        version=info.get("ServerVersion") or lacking,
        runtimes=sorted(info.get("Runtimes") or {}),
        default_runtime=info.get("DefaultRuntime") or lacking,
        cdi_devices=sorted(str(device.get("ID")) for device in info.get("DiscoveredDevices") or []),
        storage_driver=info.get("Driver") or lacking,
        images_dir=images_dir or lacking,
        containers=_containers(
            machine.run(["docker", "ps", "--no-trunc", "--format", "{{json .}}"])
        ),
        default_memlock=_default_memlock(machine.tree),
    )


def rdma(machine: Machine) -> dict[str, Any]:
    """RDMA devices and the nodes in /dev/infiniband through which user space reaches them."""
    nodes = machine.tree.names("dev/infiniband")
    return record(devices=rdma_devices(machine.tree), nodes=nodes)


def memory(machine: Machine) -> dict[str, Any]:
    text = machine.tree.text("proc/meminfo")
    sizes = {
        name: int(kib) * 1024
        for name, kib in re.findall(r"^(\w+):\s+([0-9]+) kB$", text, re.MULTILINE)
    }
    lacking = Missing("not in /proc/meminfo")
    return record(
        total=sizes.get("MemTotal", lacking),
        available=sizes.get("MemAvailable", lacking),
        swap_total=sizes.get("SwapTotal", lacking),
    )


def limits(machine: Machine) -> dict[str, Any]:
    """The memlock limit this session got, soft; -1 is unlimited."""
    text = machine.tree.text("proc/self/limits")
    match = re.search(r"^Max locked memory\s+(\S+)", text, re.MULTILINE)
    if match is None:
        return record(memlock=Missing("not in /proc/self/limits"))
    return record(memlock=-1 if match.group(1) == "unlimited" else int(match.group(1)))


def python(machine: Machine) -> dict[str, Any]:
    """The interpreter Ansible chose, the distribution's own, and which of them has numpy."""
    return record(
        executable=machine.python,
        version=".".join(str(part) for part in sys.version_info[:3]),
        numpy=_numpy(machine, machine.python),
        system_numpy=_numpy(machine, "/usr/bin/python3"),
    )


def sudo(machine: Machine) -> dict[str, Any]:
    answer = machine.run(["sudo", "--version"])
    first = answer.out.strip().splitlines()[:1]
    version = first[0].removeprefix("Sudo version ") if first else Missing(answer.complaint)
    return record(version=version)


def network(machine: Machine) -> dict[str, Any]:
    """Every network interface with its addresses; `speed_mbps` is None when the link knows none."""
    tree = machine.tree
    names = tree.names("sys/class/net")
    if isinstance(names, Missing):
        return record(interfaces=names)
    answer = machine.run(["ip", "-j", "addr"])
    addresses = _addresses(answer)
    interfaces = []
    for name in names:
        if not tree.exists(f"sys/class/net/{name}/address"):
            continue  # files such as bonding_masters stand between the interfaces
        speed = tree.integer(f"sys/class/net/{name}/speed")
        interfaces.append(
            record(
                name=name,
                mac=tree.text(f"sys/class/net/{name}/address"),
                state=tree.text(f"sys/class/net/{name}/operstate"),
                mtu=tree.integer(f"sys/class/net/{name}/mtu"),
                speed_mbps=Missing("unknown") if speed in _NO_SPEED else speed,
                addresses=addresses if isinstance(addresses, Missing) else addresses.get(name, []),
            )
        )
    return record(interfaces=interfaces)


def listeners(machine: Machine, ports: Sequence[int]) -> list[dict[str, Any]]:
    """Who listens on the given TCP ports. An owner needs root to be seen.

    The kernel's NFS server holds its sockets without a process; it lists them itself.
    """
    served = machine.tree.text("proc/fs/nfsd/portlist").splitlines()
    nfsd = {int(line.split()[1]) for line in served if line.startswith("tcp ")}
    found: dict[str, int] = {}
    for table in ("tcp", "tcp6"):
        for line in machine.tree.text(f"proc/net/{table}").splitlines()[1:]:
            columns = line.split()
            port = int(columns[1].rpartition(":")[2], 16)
            if columns[3] == _LISTEN and port in ports:
                found[columns[9]] = port
    owners = _socket_owners(machine.tree, set(found)) if found else {}
    rows = []
    for inode, port in found.items():
        pid = owners.get(inode)
        if pid is not None:
            rows.append({"port": port, **_owner(machine.tree, pid)})
        else:
            reason = "no process holds it" if machine.euid == 0 else "needs root"
            process = "nfsd" if port in nfsd else Missing(reason)
            rows.append({"port": port, **record(process=process, unit=None, container=None)})
    return sorted(rows, key=lambda row: (row["port"], str(row["process"])))


def upgrades(machine: Machine) -> dict[str, Any]:
    """What unattended-upgrades may change by itself, and what is kept from it."""
    installed = machine.run(["dpkg-query", "-W", "-f", "${Package}\t${Status}\n"])
    settings = machine.run(["apt-config", "dump"])
    timer = machine.run(["systemctl", "is-enabled", "apt-daily-upgrade.timer"])
    if installed.rc != 0:
        lacking = Missing(installed.complaint)
        return record(installed=lacking, enabled=lacking, origins=lacking, packages=lacking)
    status = dict(line.partition("\t")[::2] for line in installed.out.splitlines())
    values = re.findall(r'^([\w:-]+?)(?:::)? "(.*)";$', settings.out, re.MULTILINE)
    lists: dict[str, list[str]] = {}
    for name, value in values:
        lists.setdefault(name, []).append(value)
    periodic = (lists.get("APT::Periodic::Unattended-Upgrade") or ["0"])[-1]
    blacklist = [
        pattern for pattern in lists.get("Unattended-Upgrade::Package-Blacklist", []) if pattern
    ]
    packages = []
    for name, state in sorted(status.items()):
        family = next((family for family, pattern in _WATCHED if pattern.match(name)), None)
        if family and state.endswith(" installed"):
            held = state.startswith("hold ") or any(
                _matches(pattern, name) for pattern in blacklist
            )
            packages.append({"name": name, "family": family, "held": held})
    return record(
        installed=status.get("unattended-upgrades", "").endswith(" installed"),
        enabled=periodic not in ("", "0") and timer.out.strip() not in ("disabled", "masked"),
        origins=[
            origin
            for key in ("Allowed-Origins", "Origins-Pattern")
            for origin in lists.get(f"Unattended-Upgrade::{key}", [])
            if origin
        ],
        packages=packages,
    )


def filesystem(machine: Machine, path: str, count: bool = True) -> dict[str, Any]:
    """The filesystem that holds a directory, or will hold it once it is made.

    `used` is what lies below the directory already and need not be free a second time. It is
    counted on demand, for a bounded time; `used_complete` says whether the count came to an end.
    """
    real = os.path.realpath(machine.tree.path(path.lstrip("/")))
    nearest = real
    while not os.path.isdir(nearest) and nearest != os.path.dirname(nearest):
        nearest = os.path.dirname(nearest)
    space = os.statvfs(nearest)
    mount_point, fstype, source = _mount(machine.tree, nearest)
    used, complete = _used_below(real) if count else (0, True)
    return record(
        nearest=nearest,
        mount_point=mount_point,
        fstype=fstype,
        source=source,
        device=os.stat(nearest).st_dev,
        free=space.f_bavail * space.f_frsize,
        size=space.f_blocks * space.f_frsize,
        read_only=bool(space.f_flag & os.ST_RDONLY),
        used=used,
        used_complete=complete,
    )


_CSV = ("--format=csv,noheader,nounits",)
_LISTEN = "0A"
_NOT_KNOWN = {"", "n/a", "[n/a]", "not supported", "[not supported]", "[unknown error]"}


def _table(answer: Command, columns: Sequence[str]) -> list[dict[str, Any]] | Missing:
    """The rows of nvidia-smi's CSV; `[N/A]` and its kin become None."""
    if answer.rc != 0:
        return Missing(answer.complaint)
    rows = []
    for cells in csv.reader(answer.out.splitlines(), skipinitialspace=True):
        if len(cells) != len(columns):
            continue  # "No running processes found" and other prose
        row: dict[str, Any] = {}
        for name, cell in zip(columns, cells, strict=True):
            text = cell.strip()
            row[name] = Missing("not reported") if text.lower() in _NOT_KNOWN else text
        if "pci" in row and not isinstance(row["pci"], Missing):
            row["pci"] = pci_address(row["pci"])
        if "memory_mib" in row and not isinstance(row["memory_mib"], Missing):
            row["memory_mib"] = int(float(row["memory_mib"]))
        rows.append(record(**row))
    return rows


def _processes(machine: Machine, answer: Command) -> list[dict[str, Any]] | Missing:
    rows = _table(answer, ("pid", "name", "memory_mib"))
    if isinstance(rows, Missing):
        return rows
    return [
        {**row, **_owner(machine.tree, int(row["pid"])), "why": row["why"]}
        for row in rows
        if row["pid"]
    ]


def _nvidia_module(tree: Tree, gpus: list[dict[str, Any]] | Missing) -> str:
    """The version of the driver's kernel half: its own word, or nvidia-smi's of the first GPU."""
    version = tree.text("proc/driver/nvidia/version")
    match = _DRIVER_VERSION.search(version)
    if match:
        return match.group(1)
    told = [row["driver"] for row in gpus if row["driver"]] if isinstance(gpus, list) else []
    return str(told[0]) if told else Missing(f"/proc/driver/nvidia/version: {version}")


def _nvidia_library(tree: Tree, listing: Command) -> str:
    """The version of the driver's user-space half.

    The library's own file name is the surest source; a nvidia-smi that refuses to work because the
    halves differ prints it too.
    """
    for directory in _listing(tree, "usr/lib"):
        target = tree.target(f"usr/lib/{directory}/libnvidia-ml.so.1")
        match = _DRIVER_VERSION.search(target.removeprefix("libnvidia-ml.so."))
        if not isinstance(target, Missing) and match:
            return match.group(1)
    match = re.search(r"library version:\s*([0-9.]+[0-9])", listing.out + listing.err)
    return match.group(1) if match else Missing("no libnvidia-ml.so.1 under /usr/lib")


def _containers(answer: Command) -> list[dict[str, Any]] | Missing:
    if answer.rc != 0:
        return Missing(answer.complaint)
    rows = [_json_object(line) for line in answer.out.splitlines()]
    return [
        {
            "id": row.get("ID", ""),
            "name": row.get("Names", ""),
            "labels": [
                label.partition("=")[0] for label in row.get("Labels", "").split(",") if label
            ],
        }
        for row in rows
    ]


def _default_memlock(tree: Tree) -> int | Missing:
    daemon = _json_object(tree.text("etc/docker/daemon.json"))
    limit = (daemon.get("default-ulimits") or {}).get("memlock") or {}
    soft = limit.get("Soft")
    return soft if isinstance(soft, int) else Missing("none set in /etc/docker/daemon.json")


def _name_containers(result: Mapping[str, Any]) -> None:
    """Replace container ids by what Docker calls them, in everything that has an owner."""
    known = {row["id"]: row for row in (result["docker"] or {}).get("containers") or []}
    owned = [*(result["ports"] or []), *((result["gpu"] or {}).get("processes") or [])]
    for row in owned:
        container = known.get(row["container"])
        if container:
            row["container"] = container["name"]
            row["labels"] = container["labels"]


def _socket_owners(tree: Tree, inodes: set[str]) -> dict[str, int]:
    owners: dict[str, int] = {}
    for pid in _listing(tree, "proc"):
        if not pid.isdigit():
            continue
        for descriptor in _listing(tree, f"proc/{pid}/fd"):
            target = tree.target(f"proc/{pid}/fd/{descriptor}")
            if target.startswith("socket:[") and target[8:-1] in inodes:
                owners.setdefault(target[8:-1], int(pid))
    return owners


def _owner(tree: Tree, pid: int) -> dict[str, Any]:
    """The process, and the systemd unit and Docker container it runs in."""
    groups = tree.text(f"proc/{pid}/cgroup")
    container = _CONTAINER_ID.search(groups)
    units = re.findall(r"([^/\n]+\.(?:service|scope))", groups)
    return {
        "pid": pid,
        **record(
            process=tree.text(f"proc/{pid}/comm"),
            unit=units[-1] if units and not container else None,
            container=container.group(1) if container else None,
        ),
    }


def _mount(tree: Tree, path: str) -> tuple[str, str, str]:
    """Mount point, filesystem type and source of the mount that holds an existing path."""
    best = ("", "", "")
    for line in tree.text("proc/self/mountinfo").splitlines():
        before, _separator, after = line.partition(" - ")
        point = _unescape(before.split()[4])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # A later mount on the same point hides the earlier one.
        if inside and len(point) >= len(best[0]):
            fstype, source = after.split()[:2]
            best = (point, fstype, _unescape(source))
    return best


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def _used_below(path: str) -> tuple[int, bool]:
    """Bytes on disk below a directory, links to files counted once as what they point to."""
    until = time.monotonic() + _WALK_SECONDS
    seen: set[tuple[int, int]] = set()
    used = 0
    for directory, _directories, files in os.walk(path):
        for name in files:
            if time.monotonic() > until:
                return used, False
            try:
                status = os.stat(os.path.join(directory, name))
            except OSError:
                continue
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                used += status.st_blocks * 512
    return used, True


def _newest_kernel(tree: Tree) -> str:
    names = _listing(tree, "boot")
    kernels = [name.removeprefix("vmlinuz-") for name in names if name.startswith("vmlinuz-")]
    kernels = [kernel for kernel in kernels if not kernel.endswith((".old", ".bak"))]
    if not kernels:
        return Missing("no /boot/vmlinuz-*")
    return max(kernels, key=_version_key)


def _version_key(version: str) -> list[tuple[int, int, str]]:
    """Order versions as the boot loader does: numbers by value, text by letters."""
    parts = re.findall(r"[0-9]+|[^0-9]+", version)
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in parts]


def _has_nvidia_module(tree: Tree, kernel: str) -> bool | Missing:
    if isinstance(kernel, Missing):
        return kernel
    listing = tree.text(f"lib/modules/{kernel}/modules.dep")
    if isinstance(listing, Missing):
        return Missing(f"/lib/modules/{kernel}/modules.dep: {listing}")
    return "/nvidia.ko" in listing


def _numpy(machine: Machine, executable: str) -> str:
    answer = machine.run([executable, "-c", "import numpy; print(numpy.__version__)"])
    if answer.rc == 0:
        return answer.out.strip()
    lines = answer.err.strip().splitlines()
    return Missing(lines[-1] if lines else answer.complaint)


def _addresses(answer: Command) -> dict[str, list[str]] | Missing:
    if answer.rc != 0:
        return Missing(answer.complaint)
    try:
        links = json.loads(answer.out or "[]")
    except ValueError as error:
        return Missing(f"ip -j addr: {error}")
    # iproute2 prints an empty object for every link that a filter dropped.
    return {
        link["ifname"]: [entry["local"] for entry in link.get("addr_info", []) if "local" in entry]
        for link in links
        if link
    }


def _assignments(text: str) -> dict[str, str]:
    """KEY="value" lines, as in /etc/os-release."""
    if isinstance(text, Missing):
        return {}
    words = (word for line in text.splitlines() for word in shlex.split(line, comments=True))
    return {
        key: value for key, separator, value in (word.partition("=") for word in words) if separator
    }


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _listing(tree: Tree, relative: str) -> list[str]:
    names = tree.names(relative)
    return [] if isinstance(names, Missing) else names


def _matches(pattern: str, name: str) -> bool:
    try:
        return re.match(pattern, name) is not None
    except re.error:
        return False
