# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Read what lldpd says of the neighbours of a host.

lldpd keeps a neighbour until its time to live is over, 120 seconds after it was last heard; after a
short loss of carrier it may still tell of the cable that was there before. `age_seconds` counts
from when a neighbour was first heard, not from when it was last heard, so it does not help either.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    Missing,
    Runner,
)

_AGE = re.compile(r"(?:(\d+) days?, )?(\d+):(\d\d):(\d\d)$")


def ask_lldpd(command: Runner) -> list[dict[str, Any]] | Missing:
    """The neighbours lldpd knows; `Missing` where it is not installed or does not run."""
    answer = command(["lldpctl", "-f", "json0"])
    if answer.rc == NOT_FOUND:
        return Missing("lldpctl is not installed")
    if answer.rc != 0:
        return Missing(answer.complaint)
    return read_neighbours(answer.out)


def read_neighbours(text: str) -> list[dict[str, Any]] | Missing:
    """Read the output of `lldpctl -f json0`, and of `-f json` with its changing shapes.

    Where json0 always has lists, json has the value itself if there is just one, interfaces and
    chassis keyed by their names, and leaves out what is empty.
    """
    try:
        root = json.loads(text)
        return [
            _neighbour(name, interface)
            for lldp in _items(root.get("lldp"))
            for entry in _items(lldp.get("interface"))
            for name, interface in _named(entry, "port")
        ]
    except (ValueError, AttributeError):
        return Missing("lldpctl printed something else than neighbours")


def _neighbour(netdev: str, interface: Mapping[str, Any]) -> dict[str, Any]:
    named = [pair for item in _items(interface.get("chassis")) for pair in _named(item, "id")]
    name, chassis = named[0] if named else ("", {})
    port = _first(interface.get("port"))
    port_id = _first(port.get("id"))
    return {
        "netdev": netdev,
        "chassis_name": _value(chassis.get("name")) or name or None,
        "chassis_id": _value(chassis.get("id")),
        "chassis_description": _value(chassis.get("descr")),
        "port_id": _value(port_id),
        "port_description": _value(port.get("descr")),
        "mac": _value(port_id).lower() if port_id.get("type") == "mac" else None,
        "age_seconds": _seconds(interface.get("age")),
    }


def _items(value: Any) -> list[Any]:
    """One or many, as a list."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def _first(value: Any) -> Mapping[str, Any]:
    """The first of some records; an empty one where there is none."""
    first = next(iter(_items(value)), None)
    return first if isinstance(first, Mapping) else {}


def _named(entry: Mapping[str, Any], key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """A record that carries its name, or a record by its name. `key` is in every record."""
    if key in entry or isinstance(entry.get("name"), str):
        name = entry.get("name")
        yield (name if isinstance(name, str) else ""), entry
    else:
        yield from entry.items()


def _value(value: Any) -> Any:
    """A text, or the value of the first of some records."""
    first = next(iter(_items(value)), None)
    return first.get("value") if isinstance(first, Mapping) else first


def _seconds(age: Any) -> int | None:
    match = _AGE.match(age) if isinstance(age, str) else None
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds
