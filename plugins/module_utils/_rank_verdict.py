# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What the ranks of a cell have, taken together: may it start, must it start again, or neither."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils import _rank
from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import fold_hosts


def rank_verdict(
    facts: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Compare all ranks with each other and with the plan.

    Args:
        facts: by host, in rank order, what ``rank_facts`` returns, and `differs`, the files that
            are not as they should be.
        settings: by host, what ``rank_settings`` returns.

    Returns:
        `problems` (sentences; with any the cell must not start), `serving` (whether every rank
        runs as planned), `reasons` (why not, by host), `at_work` (hosts whose unit has to be
        stopped first, in the order of stopping: the head, then workers).
    """
    problems = [
        f"{host}: {problem['message']}"
        for host, one in facts.items()
        for problem in one["problems"]
    ]
    problems += _differences(facts)
    reasons = {host: _reason(one, settings[host]) for host, one in facts.items()}
    heads = [host for host in facts if settings[host]["head"]]
    order = [*heads, *(host for host in facts if host not in heads)]
    return {
        "problems": fold_sentences(problems),
        "serving": not any(reasons.values()),
        "reasons": {host: reason for host, reason in reasons.items() if reason},
        "at_work": [host for host in order if facts[host]["unit"]["at_work"]],
    }


def _differences(facts: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What must be the same everywhere and is not, with those that differ from most."""
    names = sorted({name for one in facts.values() for name in one["equal"]})
    found = []
    for name in names:
        values = {host: one["equal"].get(name) for host, one in facts.items()}
        known = {host: value for host, value in values.items() if value is not None}
        if len(set(known.values())) > 1:
            usual = Counter(known.values()).most_common(1)[0][0]
            odd = [host for host, value in known.items() if value != usual]
            found.append(
                f"{name}: found another one on {fold_hosts(odd)} than on "
                f"{fold_hosts(host for host in known if host not in odd)}, expected one and the "
                f"same on every rank; next: {_REMEDIES.get(name, 'make them equal')}"
            )
    return found


_REMEDIES = {
    "image": "run the playbook build, which distributes it",
    "NCCL library": "run the playbook build, which distributes it",
    "NVIDIA driver": "install one driver version on all hosts and reboot them",
    "config.json of the checkpoint": "run the playbook share",
    "model.safetensors.index.json of the checkpoint": "run the playbook share",
}


def wanted_digest(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Of the settings, with the GPU asked for in the way that was found on the node."""
    return _rank.digest(resolved(settings, facts["gpu"]))


def resolved(settings: Mapping[str, Any], gpu: str | None) -> dict[str, Any]:
    """The settings with the way to ask for a GPU in them."""
    return {**settings, "gpu": gpu or settings["gpu"]}


def _reason(facts: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Why this rank is not what it should be, empty if it is."""
    if not facts["running"]:
        return f"its unit is {facts['unit']['state']}"
    if any(path.endswith(".service") for path in facts["differs"]):
        return "its unit has to change"
    if facts["settings"] != wanted_digest(facts, settings):
        return "it runs with other settings"
    if facts["image"]["exists"] and facts["container"]["image_id"] != facts["image"]["id"]:
        return "it runs an older image of that name"
    return ""


def fold_sentences(sentences: Iterable[str]) -> list[str]:
    """The same sentence of several hosts once.

    >>> fold_sentences(["a1: no image", "a2: no image", "a3: no disk"])
    ['a1, a2: no image', 'a3: no disk']
    """
    hosts: dict[str, list[str]] = {}
    for sentence in sentences:
        host, _colon, text = sentence.partition(": ")
        hosts.setdefault(text, []).append(host)
    return [f"{fold_hosts(names)}: {text}" for text, names in hosts.items()]
