# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""A cell as preflight sees it: its hosts, what their probes found, and what it is held to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Missing

GIB = 2**30
# What is ours: units and containers of this name, and containers that carry such a label.
OWN_PREFIX = "sparkfleet-"
OWN_LABEL = "sparkfleet."


@dataclass(frozen=True)
class Settings:
    """What the cell is held to. The defaults that describe a DGX Spark are the role's."""

    rdma_netdevs: Sequence[str]
    pcie_width: int
    pcie_speed: float  # GT/s
    memory_total_gib: float
    memory_available_gib: float
    swap_max_gib: float
    images_gib: float
    clock_skew: float  # seconds
    skip: Sequence[str] = ()
    severity: Mapping[str, str] | None = None


class Finding(NamedTuple):
    """One verdict about one host: good, bad, unknown or skip."""

    host: str
    verdict: str
    found: str
    expected: str = ""
    fix: str = ""


class Node:
    """One host of the cell: what its probe returned, or why there is none."""

    def __init__(self, name: str, result: Mapping[str, Any]) -> None:
        self.name = name
        self.probe: Mapping[str, Any] | None = result.get("probe")
        self.wanted: Mapping[str, Any] = result.get("wanted") or {}
        self.clock: Mapping[str, float] = result.get("clock") or {}
        # A result without problems is none of the probe's own: the task ended in another way.
        lost = {
            "check": "probe",
            "found": result.get("msg", "no result").removeprefix("Task failed: "),
            "fix": "run again with -vvv to see everything the host said",
        }
        self.problems: dict[str, Mapping[str, str]] = {
            problem["check"]: problem for problem in result.get("problems", [lost])
        }

    def read(self, section: str, *path: str) -> Any:
        """A value of the probe, or `Missing` with the reason the probe gave."""
        value: Any = self.probe or {}
        for name in (section, *path):
            reasons = value.get("why", {})
            if value.get(name) is None:
                return Missing(reasons.get(name, "not read"))
            value = value[name]
        return value

    @cached_property
    def devices(self) -> list[Mapping[str, Any]]:
        """RDMA devices that can be an end of the fabric: no virtual functions, no bare ports."""
        devices = self.read("rdma", "devices")
        if isinstance(devices, Missing):
            return []
        return [
            device for device in devices if not device["virtual_function"] and device["netdevs"]
        ]

    @cached_property
    def own_work(self) -> str:
        """The name of what this collection runs on the GPU already, or an empty string."""
        processes = self.read("gpu", "processes")
        if isinstance(processes, Missing):
            return ""
        return next((owner_label(one) for one in processes if is_ours(one)), "")

    def good(self, found: str) -> Finding:
        return Finding(self.name, "good", found)

    def bad(self, found: str, expected: str, fix: str) -> Finding:
        return Finding(self.name, "bad", found, expected, fix)

    def unknown(self, reason: str, expected: str = "") -> Finding:
        return Finding(self.name, "unknown", reason, expected)

    def skip(self, reason: str) -> Finding:
        return Finding(self.name, "skip", reason)


@dataclass(frozen=True)
class Cell:
    """The hosts of a cell in rank order, and those of them that this run looks at."""

    members: Sequence[str]
    nodes: Sequence[Node]
    settings: Settings

    @property
    def absent(self) -> list[str]:
        present = {node.name for node in self.nodes}
        return [name for name in self.members if name not in present]

    @property
    def read_nodes(self) -> list[Node]:
        return [node for node in self.nodes if node.probe is not None]

    def fabric(self, node: Node) -> list[Mapping[str, Any]]:
        """The RDMA devices the fabric will use; other vendors' cards are none of our business."""
        return [
            one for one in node.devices if set(one["netdevs"]) & set(self.settings.rdma_netdevs)
        ]


class Check(NamedTuple):
    """A rule about the cell: how grave it is when broken, and how it is judged."""

    severity: str
    judge: Callable[[Cell], Iterable[Finding]]


def each(
    section: str, judge: Callable[[Node, Cell], Finding]
) -> Callable[[Cell], Iterator[Finding]]:
    """A rule that looks at one host at a time, at one section of its probe above all."""

    def judge_all(cell: Cell) -> Iterator[Finding]:
        for node in cell.read_nodes:
            read = node.read(section)
            yield node.unknown(read) if isinstance(read, Missing) else judge(node, cell)

    return judge_all


def is_ours(owner: Mapping[str, Any]) -> bool:
    """Whether a process that holds a port or a GPU was started by this collection."""
    names = (owner["process"], owner["unit"], owner["container"])
    return any(name and name.startswith(OWN_PREFIX) for name in names) or any(
        label.startswith(OWN_LABEL) for label in owner.get("labels", [])
    )


def owner_label(owner: Mapping[str, Any]) -> str:
    if owner["container"]:
        return f"container {owner['container']}"
    where = owner["unit"] or (f"pid {owner['pid']}" if "pid" in owner else "the kernel")
    return f"{owner['process']} ({where})"
