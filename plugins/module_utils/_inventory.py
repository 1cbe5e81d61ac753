# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Refuse an inventory or a way of calling that would end in half a cell.

Everything here is decided from the inventory and the command line alone, before any host is
contacted. Problems are sentences that name host, variable and remedy.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import fold_hosts

DEFAULT_GROUP = "sparks"
OWN_PREFIX = "spark_"

_INTERFACE = re.compile(r"[^\s/:]{1,15}$")  # 15 characters are the kernel's limit
_HOST = re.compile(r"[A-Za-z0-9._:%\[\]-]+$")


class Unreadable:
    """Stands for a variable whose template cannot be evaluated, with the reason."""

    def __init__(self, reason: str) -> None:
        self.reason = reason


def _text(value: Any) -> str | None:
    if value is None or (isinstance(value, str) and not value.strip()):
        return "is empty"
    if isinstance(value, str):
        return None
    if isinstance(value, (Mapping, Sequence)):
        return f"is {value!r}; it must be a single text"
    kind = "a boolean" if isinstance(value, bool) else "a number"
    if not isinstance(value, (int, float)):
        kind = "a date"
    return f"is {value!r}: YAML read what stands there as {kind}; quote it"


def _matching(pattern: re.Pattern[str], meaning: str) -> Callable[[Any], str | None]:
    def judge(value: Any) -> str | None:
        wrong = _text(value)
        if wrong or pattern.match(value):
            return wrong
        return f"is {value!r}, which is no {meaning}"

    return judge


def _port(value: Any) -> str | None:
    # A value given with -e is always text; a boolean is an integer only to Python.
    number = int(value) if isinstance(value, str) and value.isdigit() else value
    if isinstance(number, bool) or not isinstance(number, int) or not 0 < number < 65536:
        return f"is {value!r}, which is no TCP port (1 to 65535)"
    return None


def _boolean(value: Any) -> str | None:
    words = ("true", "false", "yes", "no", "on", "off", "1", "0")
    if isinstance(value, bool) or str(value).lower() in words:
        return None
    return f"is {value!r}, which is neither true nor false"


def _one_of(*words: str) -> Callable[[Any], str | None]:
    def judge(value: Any) -> str | None:
        return None if value in words else f"is {value!r}; it must be one of {', '.join(words)}"

    return judge


def _judged_by_the_plan(_value: Any) -> str | None:
    """``fabric_plan`` knows what goes together, and tells every reason at once."""
    return None


_absolute = _matching(re.compile(r"/"), "absolute path (~ would be root's home there)")

# Every variable of the inventory that the collection reads for a whole cell, and its form.
VARIABLES: dict[str, Callable[[Any], str | None]] = {
    "ansible_host": _matching(_HOST, "address or host name"),
    "ansible_port": _port,
    "ansible_user": _text,
    "spark_group": _text,
    "spark_partial": _boolean,
    "spark_management_interface": _matching(_INTERFACE, "interface name"),
    "spark_api_port": _port,
    "spark_engine_port": _port,
    "spark_rendezvous_port": _port,
    "spark_nfs_port": _port,
    "spark_checkpoint_dir": _absolute,
    "spark_engram_dir": _absolute,
    "spark_topology": _judged_by_the_plan,
    "spark_cabling": _judged_by_the_plan,
    "spark_fabric_cage": _judged_by_the_plan,
    "spark_fabric_twins": _judged_by_the_plan,
    "spark_fabric_mtu": _judged_by_the_plan,
    "spark_fabric_pool": _text,
    "spark_fabric_prefix_length": _judged_by_the_plan,
    "spark_fabric_cell": _judged_by_the_plan,
    "spark_fabric_reserved_networks": _judged_by_the_plan,
    "spark_fabric_ports": _judged_by_the_plan,
    "spark_nccl": _judged_by_the_plan,
    "spark_model": _text,
    "spark_weights_mode": _one_of("nfs", "local", "both"),
    "spark_profile": _judged_by_the_plan,
    "spark_settings": _judged_by_the_plan,
    "spark_image": _judged_by_the_plan,
}


def check_group(groups: Mapping[str, Sequence[str]], group: str) -> list[str]:
    """The group of the cell exists and has enough hosts for one."""
    if group not in groups:
        others = [
            f"{name} ({len(hosts)} host{'s' * (len(hosts) != 1)})"
            for name, hosts in groups.items()
            if hosts and name not in ("all", "ungrouped")
        ]
        there = f"it has {', '.join(sorted(others))}" if others else "it has no group with hosts"
        return [
            (
                f"the inventory has no group {group!r}; {there}. Put the nodes of the cell into "
                f"{group!r}, or name their group with -e spark_group=NAME."
            )
        ]
    hosts = groups[group]
    if len(hosts) < 2:
        who = f"only {hosts[0]}" if hosts else "no host"
        return [f"group {group!r} has {who}; a cell needs two hosts or more. Add the others to it."]
    return []


class Complaint(NamedTuple):
    """A variable that has the wrong form on some hosts."""

    hosts: Sequence[str]
    variable: str
    text: str

    def __str__(self) -> str:
        return f"{fold_hosts(self.hosts)}: {self.variable} {self.text}."


def check_variables(hosts: Mapping[str, Mapping[str, Any]]) -> list[Complaint]:
    """Every variable the collection reads has the form it needs, on every host.

    `hosts` maps each host to the values of its variables, those of `VARIABLES` and those that start
    with `spark_`. A value that several hosts share is complained about once.
    """
    complaints: dict[tuple[str, str], list[str]] = {}
    for host, values in hosts.items():
        for name, value in values.items():
            wrong = _wrong(name, value)
            if wrong:
                complaints.setdefault((name, wrong), []).append(host)
    return [Complaint(names, name, text) for (name, text), names in complaints.items()]


def _wrong(name: str, value: Any) -> str | None:
    if isinstance(value, Unreadable):
        return f"cannot be evaluated: {value.reason}"
    return VARIABLES[name](value) if name in VARIABLES else None


def check_addresses(hosts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """No two hosts share address and port. One address with two ports is a gateway, and fine."""
    at: dict[tuple[str, str], list[str]] = {}
    for host, values in hosts.items():
        address = str(values.get("ansible_host", host)).lower()
        at.setdefault((address, str(values.get("ansible_port", 22))), []).append(host)
    return [
        f"{fold_hosts(names)} have the same address {address} port {port}; "
        "correct ansible_host, or ansible_port behind a gateway."
        for (address, port), names in at.items()
        if len(names) > 1
    ]


def unknown_variables(names: Iterable[str]) -> list[str]:
    """Likely misspellings: variables of our prefix that nothing reads, but that resemble one.

    They are compared without the prefix, which alone makes short names look alike.
    """
    known = [name.removeprefix(OWN_PREFIX) for name in VARIABLES if name.startswith(OWN_PREFIX)]
    return [
        f"nothing reads the variable {name} (did you mean {OWN_PREFIX}{near[0]}?)."
        for name in dict.fromkeys(names)
        if name.startswith(OWN_PREFIX)
        and name not in VARIABLES
        and (near := get_close_matches(name.removeprefix(OWN_PREFIX), known, n=1, cutoff=0.75))
    ]


def check_whole(
    members: Sequence[str],
    play_hosts_all: Sequence[str],
    play_hosts: Sequence[str],
    batch: Sequence[str],
    limit: str | None,
) -> Iterator[str]:
    """All members of the cell are in this play, at once and alive.

    The four are Ansible's: the hosts the play was made for, those still in it, those of the current
    batch, and the value of `--limit`.
    """
    outside = [host for host in members if host not in play_hosts_all]
    gone = [host for host in members if host in play_hosts_all and host not in play_hosts]
    waiting = [host for host in members if host in play_hosts and host not in batch]
    if outside and limit:
        yield (
            f"--limit {limit} leaves out {fold_hosts(outside)}; this step needs every host of the "
            "cell. Run it without --limit."
        )
    elif outside:
        yield (
            f"this play does not include {fold_hosts(outside)}; it needs every host of the cell. "
            "Let its hosts be the whole group."
        )
    if gone:
        yield (
            f"{fold_hosts(gone)} failed or became unreachable earlier in this run; this step needs "
            "every host of the cell. Repair them first: ansible-playbook sparkfleet.cluster.doctor."
        )
    if waiting:
        yield (
            f"serial leaves {fold_hosts(waiting)} for later; this step needs every host of the "
            "cell at once. Remove serial, and make cells of the hosts to go one after the other."
        )
