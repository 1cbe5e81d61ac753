# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The RDMA devices of a machine, as /sys/class/infiniband shows them.

Every attribute is optional: other vendors' cards lack some, a port without a cable refuses others,
and a software device (Soft-RoCE) has neither a PCI function nor firmware.
"""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Missing
from ansible_collections.sparkfleet.cluster.plugins.module_utils._tree import Tree, record

INFINIBAND = "sys/class/infiniband"
_VERBS = "sys/class/infiniband_verbs"
# The domain has four hex digits in sysfs and eight in what nvidia-smi prints.
_PCI = re.compile(r"^(?:0000)?([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])$")


def pci_address(text: str) -> str:
    """The usual spelling of a PCI address: 0000000F:01:00.0 -> 000f:01:00.0."""
    match = _PCI.match(text.strip().lower())
    if match is None:
        return Missing(f"{text!r} is not a PCI address")
    domain, bus, device, function = match.groups()
    return f"{domain}:{bus}:{device}.{function}"


def rdma_devices(tree: Tree) -> list[dict[str, Any]] | Missing:
    """One record per device, by name; `Missing` where the kernel has no RDMA class at all.

    A driver that reloads takes its devices away for a moment and may bring them back under other
    names. When one vanishes during the walk, the walk starts again, once.
    """
    devices: list[dict[str, Any]] = []
    for _attempt in range(2):
        names = tree.names(INFINIBAND)
        if isinstance(names, Missing):
            return names
        uverbs = _character_devices(tree)
        devices = [_device(tree, name, uverbs) for name in names]
        if not any(device["vanished"] for device in devices):
            break
    return devices


def _device(tree: Tree, name: str, uverbs: dict[str, str]) -> dict[str, Any]:
    base = f"{INFINIBAND}/{name}"
    ports = tree.names(f"{base}/ports")
    node = uverbs.get(name, Missing("no entry in /sys/class/infiniband_verbs"))
    return record(
        name=name,
        pci=_pci(tree, base),
        netdevs=_netdevs(tree, base),
        node_guid=tree.text(f"{base}/node_guid"),
        fw_ver=tree.text(f"{base}/fw_ver"),
        board_id=tree.text(f"{base}/board_id"),
        virtual_function=tree.exists(f"{base}/device/physfn"),
        pcie_speed=_leading_number(tree.text(f"{base}/device/current_link_speed")),
        pcie_max_speed=_leading_number(tree.text(f"{base}/device/max_link_speed")),
        pcie_width=_link_width(tree.text(f"{base}/device/current_link_width")),
        pcie_max_width=_link_width(tree.text(f"{base}/device/max_link_width")),
        ports=[]
        if isinstance(ports, Missing)
        else [_port(tree, f"{base}/ports/{port}", port) for port in ports],
        uverbs=node,
        uverbs_present=not isinstance(node, Missing) and tree.exists(f"dev/infiniband/{node}"),
        vanished=not tree.exists(base),
    )


def _port(tree: Tree, base: str, port: str) -> dict[str, Any]:
    return record(
        port=port,
        state=_word(tree.text(f"{base}/state")),
        physical_state=_word(tree.text(f"{base}/phys_state")),
        rate_gbps=_leading_number(tree.text(f"{base}/rate")),
        link_layer=tree.text(f"{base}/link_layer"),
    )


def _pci(tree: Tree, base: str) -> str:
    target = tree.target(f"{base}/device")
    return target if isinstance(target, Missing) else pci_address(target)


def _netdevs(tree: Tree, base: str) -> list[str]:
    """A bonded device has two, a device that is no endpoint has none."""
    names = tree.names(f"{base}/device/net")
    if not isinstance(names, Missing):
        return names
    parent = tree.text(f"{base}/parent")  # Soft-RoCE names its netdev here
    return [] if isinstance(parent, Missing) else [parent]


def _character_devices(tree: Tree) -> dict[str, str]:
    """RDMA device -> uverbsN, the node in /dev/infiniband that user space opens for it."""
    names = tree.names(_VERBS)
    if isinstance(names, Missing):
        return {}
    owners = {name: tree.text(f"{_VERBS}/{name}/ibdev") for name in names}
    return {ibdev: name for name, ibdev in owners.items() if not isinstance(ibdev, Missing)}


def _word(text: str) -> str:
    """Drop the kernel's number: "4: ACTIVE" -> "ACTIVE"."""
    return text if isinstance(text, Missing) else text.rpartition(":")[2].strip()


def _leading_number(text: str) -> float | Missing:
    """Drop the unit: "32.0 GT/s PCIe" -> 32.0, "200 Gb/sec (4X HDR)" -> 200.0."""
    if isinstance(text, Missing):
        return text
    match = re.match(r"[0-9]+(?:\.[0-9]+)?", text)
    return float(match.group()) if match else Missing(f"{text!r} has no number")


def _link_width(text: str) -> int | Missing:
    """The kernel prints 0 or 255 for a link it knows nothing about."""
    number = _leading_number(text)
    if isinstance(number, Missing):
        return number
    return int(number) if 0 < number < 255 else Missing(f"width {text}")
