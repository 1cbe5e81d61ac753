# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The rules of preflight, one function each; `CHECKS` at the end lists them in order.

Messages name what was found, what was expected and what to do; `fix` starts with a verb and may be
typed where it shows a command.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Missing
from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_model import (
    GIB,
    Cell,
    Check,
    Finding,
    Node,
    each,
    is_ours,
    owner_label,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import fold_hosts, gib

_OLDEST_PYTHON = (3, 10)
_ENOUGH_MEMLOCK = GIB


# --- The cell as a whole
# ---------------------------------------------------------------------------


def _cell(cell: Cell) -> Iterator[Finding]:
    for name in cell.absent:
        yield Finding(
            name,
            "bad",
            "not looked at (--limit)",
            f"all {len(cell.members)} hosts at once",
            "run again without --limit before deploying",
        )
    if not cell.absent:
        for node in cell.nodes:
            yield node.good(f"all {len(cell.members)} hosts")


def _problem(check: str, expected: str, good: str) -> Callable[[Cell], Iterator[Finding]]:
    """A check that Ansible itself answers by reaching the host, or not."""

    def judge(cell: Cell) -> Iterator[Finding]:
        for node in cell.nodes:
            problem = node.problems.get(check)
            if problem:
                yield node.bad(problem["found"], expected, problem["fix"])
            elif node.probe is not None:
                yield node.good(good)

    return judge


def _same(read: Callable[[Node, Cell], Any], fix: str) -> Callable[[Cell], Iterator[Finding]]:
    """A check that wants one text on all hosts and names the odd ones out.

    What most hosts have counts as right; where nothing leads, what the first host has.
    """

    def judge(cell: Cell) -> Iterator[Finding]:
        values: dict[Node, Hashable] = {node: read(node, cell) for node in cell.read_nodes}
        known = {node: value for node, value in values.items() if not isinstance(value, Missing)}
        # most_common keeps the order of first appearance among equals: the head wins a tie.
        (right, _count), *_others = Counter(known.values()).most_common(1) or [("", 0)]
        holders = fold_hosts(node.name for node, value in known.items() if value == right)
        for node, value in values.items():
            if isinstance(value, _NotApplicable):
                yield node.skip(value)
            elif isinstance(value, Missing):
                yield node.unknown(value)
            elif len(values) == 1 and cell.absent:
                yield node.skip(f"{value}, and nothing to compare with")
            elif value == right:
                yield node.good(str(value))
            else:
                yield node.bad(str(value), f"{right} as on {holders}", fix)

    return judge


class _NotApplicable(Missing):
    """A value that cannot exist here, because of something another check reports."""


def _clock(cell: Cell) -> Iterator[Finding]:
    """Compare clocks as intervals: reading one takes time, above all on the way there."""
    allowed = cell.settings.clock_skew
    expected = f"within {allowed:g} s of each other"
    offsets = {
        node: (node.clock["end"] - node.clock["after"], node.clock["start"] - node.clock["before"])
        for node in cell.read_nodes
        if "end" in node.clock
    }
    if not offsets:
        return
    # The reference is the clock that agrees with most others, so that the one that is off is named.
    reference = max(
        offsets,
        key=lambda node: sum(
            _apart(offsets[node], other)[0] <= allowed for other in offsets.values()
        ),
    )
    for node, offset in offsets.items():
        least, most = _apart(offset, offsets[reference])
        if least > allowed:
            side = "ahead of" if offset[0] > offsets[reference][0] else "behind"
            yield node.bad(
                f"{least:.1f} s or more {side} {reference.name}",
                expected,
                "turn on time synchronisation: sudo timedatectl set-ntp true",
            )
        elif most <= allowed or node is reference:
            yield node.good(f"within {allowed:g} s")
        else:
            yield node.unknown(f"measured to {most:.1f} s only", expected)


def _apart(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    """The least and the greatest distance of two numbers that are known as intervals."""
    least = max(0.0, one[0] - other[1], other[0] - one[1])
    return least, max(one[1] - other[0], other[1] - one[0])


def _identity(cell: Cell) -> Iterator[Finding]:
    """Two inventory names of one machine. MAC addresses tell; machine ids do not on Sparks."""
    cards = {node: _macs(node) for node in cell.read_nodes}
    for node, macs in cards.items():
        same = [other.name for other in cards if cards[other] == macs]
        if not macs:
            yield node.unknown("no MAC addresses read")
        elif len(same) > 1:
            yield node.bad(
                f"{fold_hosts(same)} are one machine (equal MAC addresses)",
                "one machine per host",
                "correct ansible_host and ansible_port",
            )
        else:
            yield node.good("a machine of its own")


def _macs(node: Node) -> frozenset[str]:
    interfaces = node.read("network", "interfaces")
    if isinstance(interfaces, Missing):
        return frozenset()
    return frozenset(port["mac"] for port in interfaces if port["mac"] != "00:00:00:00:00:00")


def _machine_id(cell: Cell) -> Iterator[Finding]:
    ids = {node: node.read("system", "machine_id") for node in cell.read_nodes}
    for node, own in ids.items():
        same = [other.name for other, value in ids.items() if value == own]
        if isinstance(own, Missing):
            yield node.unknown(own)
        elif len(same) == 1:
            yield node.good("unique")
        else:
            yield node.bad(
                f"the same on {fold_hosts(same)}",
                "",
                "nothing needed: Sparks are shipped like this, and nothing here goes by it",
            )


def _resolve(cell: Cell) -> Iterator[Finding]:
    """The names of the other hosts must lead to addresses that those hosts have."""
    owned = {node.name: _own_addresses(node) for node in cell.read_nodes}
    for node in cell.read_nodes:
        others = [name for name in node.wanted.get("names", []) if name != node.name]
        answers = {entry["name"]: entry for entry in node.read("names")}
        lost, wrong = [], []
        for name in others:
            addresses = answers[name]["addresses"]
            if not addresses:
                lost.append(name)
            elif all(_is_loopback(address) for address in addresses):
                wrong.append(f"{name} is {addresses[0]}")
            elif owned.get(name) and not owned[name] & set(addresses):
                wrong.append(f"{name} is {addresses[0]}, which {name} does not have")
        whom = "any other host" if len(lost) == len(others) else fold_hosts(lost)
        found = [f"cannot resolve {whom}"] if lost else []
        found += wrong
        if found:
            yield node.bad(
                "; ".join(found),
                "an address of that host",
                "add the hosts to /etc/hosts or to the name server",
            )
        else:
            yield node.good(f"{len(others)} other names")


def _own_addresses(node: Node) -> set[str]:
    interfaces = node.read("network", "interfaces")
    if isinstance(interfaces, Missing):
        return set()
    return {address for port in interfaces for address in port["addresses"] or []}


# --- One host at a time
# ----------------------------------------------------------------------------


def _sudo(cell: Cell) -> Iterator[Finding]:
    for node in cell.nodes:
        version = node.read("sudo", "version")
        problem = node.problems.get("sudo")
        if problem:
            # Measured: the Rust sudo words its prompt in a way that Ansible waits for in vain.
            rust = not isinstance(version, Missing) and "sudo-rs" in version
            fix = "set ansible_become_exe to the classic sudo (on Ubuntu /usr/bin/sudo.ws)"
            found = problem["found"] + (f" ({version})" if rust else "")
            yield node.bad(found, "root without a prompt", fix if rust else problem["fix"])
        elif node.probe is not None:
            yield _root(node, version)


def _root(node: Node, version: str) -> Finding:
    user = node.read("system", "euid")
    if isinstance(user, Missing):
        return node.unknown(user)
    if user != 0:
        return node.bad("the probe ran without root", "root", "set become: true for this host")
    return node.good("root" if isinstance(version, Missing) else f"root, sudo {version}")


def _python(cell: Cell) -> Iterator[Finding]:
    expected = f"Python {'.'.join(map(str, _OLDEST_PYTHON))} or newer"
    for node in cell.nodes:
        problem = node.problems.get("python")
        if problem:
            yield node.bad(problem["found"], expected, problem["fix"])
        elif node.probe is not None:
            version = node.read("python", "version")
            if isinstance(version, Missing):
                yield node.unknown(version)
                continue
            found = f"{node.read('python', 'executable')} ({version})"
            if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST_PYTHON:
                yield node.bad(found, expected, "set ansible_python_interpreter to a newer one")
            else:
                yield node.good(found)


def _numpy(node: Node, _cell: Cell) -> Finding:
    own, system = node.read("python", "numpy"), node.read("python", "system_numpy")
    executable = node.read("python", "executable")
    if not isinstance(own, Missing):
        return node.good(f"numpy {own}")
    if isinstance(system, Missing):
        fix = "sudo apt install python3-numpy"
    else:
        fix = "set ansible_python_interpreter: /usr/bin/python3, which has it"
    found = f"no numpy in {executable}" if "No module named" in own else f"{executable}: {own}"
    return node.bad(found, "numpy, for packing", fix)


def _next_kernel(node: Node, _cell: Cell) -> Finding:
    now, newest = node.read("system", "kernel"), node.read("system", "kernel_newest")
    if isinstance(newest, Missing):
        return node.unknown(newest)
    if newest == now:
        return node.good("the running kernel")
    driver = node.read("system", "kernel_newest_has_nvidia")
    without = ", without an NVIDIA module" if driver is False else ""
    fix = "reboot the node before deploying, while nothing serves"
    if without:
        fix = f"install the NVIDIA module for {newest}, or remove that kernel, before any reboot"
    return node.bad(f"{newest}{without}", f"{now}, which runs now", fix)


def _driver_match(node: Node, _cell: Cell) -> Finding:
    if not node.read("gpu", "present"):
        return node.skip("no NVIDIA driver")
    module, library = node.read("gpu", "driver"), node.read("gpu", "library")
    for value in (module, library):
        if isinstance(value, Missing):
            return node.unknown(value)
    # nvidia-smi may print the library's version without its last part.
    if module == library or module.startswith(f"{library}."):
        return node.good(module)
    return node.bad(
        f"module {module}, library {library}",
        "one version",
        "reboot the node: the driver was upgraded under the loaded module",
    )


def _gpu(node: Node, _cell: Cell) -> Finding:
    expected = "a GPU that nvidia-smi lists"
    if not node.read("gpu", "present"):
        return node.bad("no nvidia-smi", expected, "install the NVIDIA driver of DGX OS")
    gpus = node.read("gpu", "gpus")
    fix = "look at: nvidia-smi; sudo dmesg | grep -i nvrm. A reboot reloads the driver"
    if isinstance(gpus, Missing) or not gpus:
        return node.bad(str(gpus) if gpus else "nvidia-smi lists none", expected, fix)
    return node.good(", ".join(f"{one['name']} at {one['pci']}" for one in gpus))


def _gpu_idle(node: Node, _cell: Cell) -> Finding:
    if not node.read("gpu", "present"):
        return node.skip("no nvidia-smi to ask")
    processes = node.read("gpu", "processes")
    if isinstance(processes, Missing):
        return node.unknown(processes)
    foreign = [owner_label(process) for process in processes if not is_ours(process)]
    if foreign:
        return node.bad(
            ", ".join(foreign), "no process on the GPU, or our own", "stop what computes there"
        )
    return node.good(node.own_work or "idle")


def _docker(node: Node, _cell: Cell) -> Finding:
    active = node.read("docker", "active")
    if not node.read("docker", "present"):
        return node.bad("no docker command", "a running engine", "install Docker; DGX OS brings it")
    if isinstance(active, Missing):
        return node.unknown(active)
    if not active:
        fix = "sudo systemctl enable --now docker, then: sudo journalctl -u docker"
        return node.bad(node.read("docker", "complaint"), "a running engine", fix)
    return node.good(f"{node.read('docker', 'version')}, {node.read('docker', 'storage_driver')}")


def _nvidia_runtime(node: Node, _cell: Cell) -> Finding:
    if node.read("docker", "active") is not True:
        return node.skip("Docker does not answer")
    runtimes = node.read("docker", "runtimes")
    if "nvidia" in runtimes:
        return node.good(f"runtime nvidia, default {node.read('docker', 'default_runtime')}")
    if any(device.startswith("nvidia.com/gpu") for device in node.read("docker", "cdi_devices")):
        return node.good("CDI device nvidia.com/gpu")
    return node.bad(
        f"only {', '.join(runtimes)}",
        "the runtime nvidia, or its CDI devices",
        "sudo nvidia-ctk runtime configure --runtime=docker, then restart Docker",
    )


def _rdma_devices(node: Node, cell: Cell) -> Finding:
    wanted = cell.settings.rdma_netdevs
    expected = f"RDMA devices on {', '.join(wanted)}"
    devices = node.read("rdma", "devices")
    if isinstance(devices, Missing) or not devices:
        return node.bad(
            "no RDMA device at all",
            expected,
            "power off, seat a QSFP cable, power on: a Spark hides its network card when no cable "
            "is plugged in at boot. If it stays away: sudo modprobe mlx5_ib",
        )
    bonded = [one for one in node.devices if len(one["netdevs"]) > 1]
    if bonded:
        return node.bad(
            f"{bonded[0]['name']} bonds {' and '.join(bonded[0]['netdevs'])}",
            expected,
            "take the bond apart: NCCL drives the ports as rails of their own",
        )
    carried = {one["netdevs"][0]: one for one in node.devices}
    lacking = [netdev for netdev in wanted if netdev not in carried]
    if lacking:
        there = ", ".join(f"{one['name']} on {one['netdevs'][0]}" for one in node.devices) or "none"
        return node.bad(
            f"none on {', '.join(lacking)}; there: {there}",
            expected,
            "plug in the cables and reboot, or set preflight_rdma_netdevs to what this node has",
        )
    dead = [carried[netdev]["name"] for netdev in wanted if _is_zero_guid(carried[netdev])]
    if dead:
        fix = "reload the driver; rdma_cm cannot use a device without a node GUID"
        return node.bad(f"node GUID of {', '.join(dead)} is zero", expected, fix)
    ports = [port for netdev in wanted for port in carried[netdev]["ports"]]
    active = sum(port["state"] == "ACTIVE" for port in ports)
    return node.good(f"{len(wanted)} devices, {active} with a link")


def _infiniband(node: Node, cell: Cell) -> Finding:
    if not node.devices:
        return node.skip("no RDMA device")
    nodes = node.read("rdma", "nodes")
    lacking = [
        f"/dev/infiniband/{one['uverbs'] or 'uverbs*'} of {one['name']}"
        for one in cell.fabric(node)
        if not one["uverbs_present"]
    ]
    if isinstance(nodes, Missing) or "rdma_cm" not in nodes:
        lacking.append("/dev/infiniband/rdma_cm")
    if lacking:
        return node.bad(
            f"no {', '.join(lacking)}",
            "a node for every device, and rdma_cm",
            "sudo modprobe -a ib_uverbs rdma_ucm, and install rdma-core so that it lasts",
        )
    return node.good("a node for every device")


def _pcie(node: Node, cell: Cell) -> Finding:
    if not node.devices:
        return node.skip("no RDMA device")
    width, speed = cell.settings.pcie_width, cell.settings.pcie_speed
    expected = f"x{width} at {speed:g} GT/s"
    slow, silent = [], []
    for one in cell.fabric(node):
        if one["pcie_width"] is None or one["pcie_speed"] is None:
            silent.append(one["name"])
        elif one["pcie_width"] < width or one["pcie_speed"] < speed:
            slow.append(f"{one['name']}: x{one['pcie_width']} at {one['pcie_speed']:g} GT/s")
    if slow:
        return node.bad(
            "; ".join(slow),
            expected,
            "update the firmware (sudo fwupdmgr update), then power the node off and on",
        )
    if silent:
        return node.unknown(_silence(silent, cell.fabric(node)), expected)
    return node.good(f"{expected} on {len(cell.fabric(node))} functions")


def _firmware(node: Node, cell: Cell) -> Any:
    devices = cell.fabric(node)
    if not devices:
        return _NotApplicable("no RDMA device")
    silent = [one["name"] for one in devices if one["fw_ver"] is None]
    if silent:
        return Missing(_silence(silent, devices))
    return ", ".join(sorted({one["fw_ver"] for one in devices}))


def _silence(names: Sequence[str], devices: Sequence[Any]) -> str:
    everywhere = len(names) == len(devices)
    return f"unreadable on {f'all {len(names)} devices' if everywhere else ', '.join(names)}"


def _os(node: Node, _cell: Cell) -> Any:
    release = node.read("system", "os_name")
    dgx = node.read("system", "dgx_os")
    return release if isinstance(dgx, Missing) else f"DGX OS {dgx} ({release})"


def _memory(node: Node, cell: Cell) -> Finding:
    total, least = node.read("memory", "total"), cell.settings.memory_total_gib * GIB
    if isinstance(total, Missing):
        return node.unknown(total)
    if total < least:
        fix = "set preflight_memory_total_gib for machines smaller than a Spark (121.7 GiB)"
        return node.bad(gib(total), f"{gib(least)} or more", fix)
    return node.good(gib(total))


def _memory_free(node: Node, cell: Cell) -> Finding:
    available, least = node.read("memory", "available"), cell.settings.memory_available_gib * GIB
    if isinstance(available, Missing):
        return node.unknown(available)
    if node.own_work:
        return node.good(f"{gib(available)} beside {node.own_work}")
    if available < least:
        return node.bad(
            gib(available), f"{gib(least)} or more", "stop what holds it: ps aux --sort=-rss | head"
        )
    return node.good(gib(available))


def _swap(node: Node, cell: Cell) -> Finding:
    swap, most = node.read("memory", "swap_total"), cell.settings.swap_max_gib * GIB
    if isinstance(swap, Missing):
        return node.unknown(swap)
    if swap > most:
        return node.bad(
            gib(swap),
            f"{gib(most)} or less",
            "shrink it: a full unified memory then ends a process instead of stalling the node",
        )
    return node.good(gib(swap) if swap else "none")


def _disk(node: Node, cell: Cell) -> Finding:
    """Free space, per filesystem: what several directories on one need, they need together."""
    measured = {entry["path"]: entry for entry in node.read("paths")}
    needs: dict[int, list[tuple[str, float]]] = {}
    spaces: dict[int, Mapping[str, Any]] = {}
    unknown = []
    for purpose, path, amount in _needs(node, cell):
        space = measured[path]["filesystem"]
        if space is None:
            unknown.append(f"{path}: {measured[path]['why']['filesystem']}")
            continue
        spaces[space["device"]] = space
        left = max(0.0, amount - space["used"])
        if left and not space["used_complete"] and space["free"] < left:
            unknown.append(f"{path}: too many files to count what is there already")
        elif left:
            needs.setdefault(space["device"], []).append((purpose, left))
    if isinstance(node.read("docker", "images_dir"), Missing):
        unknown.append("where Docker keeps its images is not known")
    bad, wanted = [], []
    for device, entries in needs.items():
        space, total = spaces[device], sum(amount for _purpose, amount in entries)
        if space["read_only"]:
            bad.append(f"{space['mount_point']} is mounted read-only")
        elif space["free"] < total:
            bad.append(f"{gib(space['free'])} free on {space['mount_point']} ({space['fstype']})")
        else:
            continue
        parts = " + ".join(f"{gib(amount)} {purpose}" for purpose, amount in entries)
        wanted.append(f"{gib(total)}: {parts}" if len(entries) > 1 else parts)
    if bad:
        return node.bad(
            "; ".join(bad),
            "; ".join(wanted),
            "make room, or set spark_checkpoint_dir and spark_engram_dir to a larger filesystem",
        )
    if unknown:
        return node.unknown("; ".join(unknown))
    return node.good(
        ", ".join(
            f"{gib(space['free'])} free on {space['mount_point']}" for space in spaces.values()
        )
    )


def _needs(node: Node, cell: Cell) -> Iterator[tuple[str, str, float]]:
    """Purpose, path and bytes of what will lie on this node."""
    head = node.name == cell.members[0]
    shares = {"each": 1.0, "head": float(head), "split": 1.0 / len(cell.members)}
    for entry in node.wanted.get("disk", []):
        yield entry["purpose"], entry["path"], entry["gib"] * GIB * shares[entry["where"]]
    images = node.read("docker", "images_dir")
    if not isinstance(images, Missing):
        yield "images", images, cell.settings.images_gib * GIB


def _memlock(node: Node, _cell: Cell) -> Finding:
    limit = node.read("limits", "memlock")
    if isinstance(limit, Missing):
        return node.unknown(limit)
    # For information: the engine's containers get a limit of their own, whatever Docker's default.
    default = node.read("docker", "default_memlock")
    inside = "" if isinstance(default, Missing) else f", {_limit(default)} in containers"
    if 0 <= limit < _ENOUGH_MEMLOCK:
        return node.bad(
            _limit(limit) + inside,
            f"{gib(_ENOUGH_MEMLOCK)} or more, for RDMA outside containers",
            'write "* - memlock unlimited" to /etc/security/limits.d/rdma.conf and log in again',
        )
    return node.good(_limit(limit) + inside)


def _limit(size: int) -> str:
    if size < 0:
        return "unlimited"
    return gib(size) if size >= GIB else f"{size / 2**20:.0f} MiB"


def _self_resolve(node: Node, _cell: Cell) -> Finding:
    """Rendezvous libraries publish the address of the own name; loopback leads others astray."""
    hostname = node.read("system", "hostname")
    expected = f"an address other hosts can reach, for {hostname}"
    fix = f"give {hostname} its management address in /etc/hosts, in place of 127.0.1.1"
    answer = next(entry for entry in node.read("names") if entry["name"] == hostname)
    if not answer["addresses"]:
        return node.bad(f"{hostname} cannot be resolved", expected, fix)
    loopback = [address for address in answer["addresses"] if _is_loopback(address)]
    if loopback:
        return node.bad(f"{hostname} is {loopback[0]}", expected, fix)
    return node.good(f"{hostname} is {answer['addresses'][0]}")


def _ports(node: Node, _cell: Cell) -> Finding:
    """Free, or held by what this collection runs. The kernel's NFS server counts as ours.

    A machine has one NFS server, so an export of ours joins whatever it serves already; a server in
    user space on that port would be in its way.
    """
    purposes = {entry["port"]: entry["purpose"] for entry in node.wanted.get("ports", [])}
    expected = f"{', '.join(str(port) for port in purposes)} free, or ours"
    taken, unseen, ours = [], [], []
    for one in node.read("ports"):
        port = f"{one['port']} ({purposes[one['port']]})"
        if one["process"] is None:
            unseen.append(f"{port} is taken: {one['why']['process']}")
        elif is_ours(one) or (one["process"] == "nfsd" and "pid" not in one):
            ours.append(f"{port} {owner_label(one)}")
        else:
            taken.append(f"{port} is taken by {owner_label(one)}")
    if taken:
        return node.bad(
            "; ".join(dict.fromkeys(taken)),
            expected,
            "stop it there, or choose other ports (spark_*_port)",
        )
    if unseen:
        return node.unknown("; ".join(dict.fromkeys(unseen)), expected)
    return node.good(", ".join(dict.fromkeys(ours)) or "free")


def _upgrades(node: Node, _cell: Cell) -> Finding:
    installed = node.read("upgrades", "installed")
    if isinstance(installed, Missing):
        return node.unknown(installed)
    if not installed or not node.read("upgrades", "enabled"):
        return node.good("no unattended upgrades")
    exposed: dict[str, list[str]] = {}
    for package in node.read("upgrades", "packages"):
        if not package["held"]:
            exposed.setdefault(package["family"], []).append(package["name"])
    if not exposed:
        return node.good("unattended upgrades keep off")
    first = " ".join(names[0] for names in exposed.values())
    return node.bad(
        f"unattended-upgrades may change {', '.join(exposed)}",
        "packages a serving node needs are held",
        f"sudo apt-mark hold {first} (and their kin), or list them in Package-Blacklist of "
        "/etc/apt/apt.conf.d/50unattended-upgrades",
    )


def _management(node: Node, _cell: Cell) -> Finding:
    wanted = node.wanted.get("management_interface", "")
    expected = f"{wanted} with an address"
    interfaces = node.read("network", "interfaces")
    if isinstance(interfaces, Missing):
        return node.unknown(interfaces)
    by_name = {port["name"]: port for port in interfaces}
    if wanted not in by_name:
        there = ", ".join(name for name in by_name if name != "lo")
        return node.bad(
            f"no interface {wanted}; there: {there}",
            expected,
            "set spark_management_interface to the one that has this node's management address",
        )
    addresses = by_name[wanted]["addresses"]
    if addresses is None:
        return node.unknown(by_name[wanted]["why"]["addresses"], expected)
    usable = [address for address in addresses if not ipaddress.ip_address(address).is_link_local]
    if not usable:
        return node.bad(
            f"{wanted} is {by_name[wanted]['state']} and has no address",
            expected,
            "plug in its cable, or set spark_management_interface",
        )
    return node.good(f"{wanted} {usable[0]}")


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _is_zero_guid(device: Any) -> bool:
    return bool(device["node_guid"]) and not device["node_guid"].replace(":", "").strip("0")


def _value(*path: str) -> Callable[[Node, Cell], Any]:
    return lambda node, _cell: node.read(*path)


def _driver(node: Node, _cell: Cell) -> Any:
    if not node.read("gpu", "present"):
        return _NotApplicable("no NVIDIA driver")
    return node.read("gpu", "driver")


CHECKS: dict[str, Check] = {
    "cell": Check("warning", _cell),
    "reachable": Check("error", _problem("reachable", "an answer over ssh", "answers")),
    "sudo": Check("error", _sudo),
    "python": Check("error", _python),
    "probe": Check("error", _problem("probe", "a probe that runs to its end", "complete")),
    "identity": Check("error", _identity),
    "machine_id": Check("info", _machine_id),
    "os": Check("error", _same(_os, "bring all nodes to one release")),
    "arch": Check("error", _same(_value("system", "arch"), "use machines of one architecture")),
    "kernel": Check(
        "error", _same(_value("system", "kernel"), "bring all nodes to one kernel, then reboot")
    ),
    "next_kernel": Check("warning", each("system", _next_kernel)),
    "driver": Check("error", _same(_driver, "bring all nodes to one driver, then reboot")),
    "driver_match": Check("error", each("gpu", _driver_match)),
    "gpu": Check("error", each("gpu", _gpu)),
    "gpu_idle": Check("error", each("gpu", _gpu_idle)),
    "docker": Check("error", each("docker", _docker)),
    "nvidia_runtime": Check("error", each("docker", _nvidia_runtime)),
    "rdma_devices": Check("error", each("rdma", _rdma_devices)),
    "infiniband": Check("error", each("rdma", _infiniband)),
    "pcie": Check("error", each("rdma", _pcie)),
    "firmware": Check(
        "warning", _same(_firmware, "update with: sudo fwupdmgr update, then power off and on")
    ),
    "memory": Check("error", each("memory", _memory)),
    "memory_free": Check("warning", each("memory", _memory_free)),
    "swap": Check("warning", each("memory", _swap)),
    "memlock": Check("warning", each("limits", _memlock)),
    "disk": Check("error", each("paths", _disk)),
    "management": Check("error", each("network", _management)),
    "resolve": Check("warning", _resolve),
    "self_resolve": Check("warning", each("system", _self_resolve)),
    "ports": Check("error", each("ports", _ports)),
    "clock": Check("warning", _clock),
    "upgrades": Check("warning", each("upgrades", _upgrades)),
    "numpy": Check("warning", each("python", _numpy)),
}
