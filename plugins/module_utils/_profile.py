# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Profiles: how one model is served, as data.

A profile may be based on another and then says only what differs: mappings are merged, null removes
an entry, everything else is replaced. The settings of a cell are merged in the same way, with the
names of `settings` beside the other keys of a profile. docs/serving.md describes every key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import (
    PlanError,
    Reader,
    is_list,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import suggestion

# What a profile consists of. `settings`, `env` and `arguments` have keys of their own.
SECTIONS = {
    "fits": ("hosts", "topologies"),
    "image": ("reference", "architecture", "provides", "build"),
    "nccl": ("version", "container_path"),
    "container": (
        "entrypoint",
        "command",
        "model_path",
        "engram_path",
        "state_path",
        "cache_path",
        "mounts",
        "gpus",
        "rdma",
        "devices",
        "capabilities",
        "privileged",
        "network_mode",
        "ipc_mode",
        "shm_size",
        "ulimits",
        "oom_score_adj",
    ),
    "memory": (
        "node",
        "system",
        "free",
        "weights_split",
        "weights_copied",
        "draft",
        "kv_token",
        "swa",
        "swa_slot",
        "graph_slot",
        "indexer_transient",
        "indexer_chunked",
        "nccl",
        "head",
        "least_fraction",
    ),
}
FREE = ("settings", "env", "arguments", "proofs", "fatals")
KEYS = ("description", "based_on", "model", *FREE, *SECTIONS)
# What `spark_settings` may hold beside the names of settings.
OVERRIDES = ("env", "arguments", "proofs", "fatals", "image", "nccl", "container", "memory")
LINES = {
    "proofs": ("pattern", "scope", "count", "required", "when"),
    "fatals": ("pattern", "cause", "remedy", "weak", "when"),
}
_LISTS = ("entrypoint", "command", "mounts", "devices", "capabilities", "provides", "topologies")
_MOUNT = ("source", "target", "read_only")
_FLAGS = ("gpus", "rdma", "privileged", "required", "weak")
_TRUTH = {"true": True, "yes": True, "false": False, "no": False}
_KINDS = {bool: "true or false", int: "a whole number from 0", float: "a number from 0"}
_VARIABLE = re.compile(r"\$\{([^}]*)\}")

Read = Callable[[str, str], tuple[str, Any]]  # (name, where it is named) -> (its place, content)


@dataclass(frozen=True)
class Profile:
    """A profile with the settings of the cell in it."""

    name: str
    data: Mapping[str, Any]  # every key of `KEYS`, but based_on

    def section(self, key: str) -> Mapping[str, Any]:
        """One of its mappings, empty where it has none."""
        found: Mapping[str, Any] = self.data.get(key) or {}
        return found


def merge(base: Any, change: Any) -> Any:
    """What a change makes of a value: mappings are merged, null entries vanish, the rest is new.

    >>> merge({"a": 1, "b": {"c": 2, "d": 3}}, {"a": None, "b": {"c": 4}})
    {'b': {'c': 4, 'd': 3}}
    """
    if not isinstance(change, Mapping):
        return change
    merged = dict(base) if isinstance(base, Mapping) else {}
    for key, value in change.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def read_profile(name: str, read: Read) -> Profile:
    """Read a profile with all that it is based on.

    Raises:
        PlanError: with everything that is wrong with its form.
    """
    chain: list[tuple[str, Mapping[str, Any]]] = []
    places: list[str] = []
    checks = Reader()
    wanted, named_in = name, "spark_profile"
    while wanted:
        place, content = read(wanted, named_in)
        if place in places:
            raise PlanError(
                [f"profile {wanted} is based on itself, by way of {', '.join(places)}."]
            )
        if not isinstance(content, Mapping):
            raise PlanError([f"{place} is no profile: expected a mapping of keys and values."])
        places.append(place)
        chain.append((place, content))
        _check_form(checks, place, content)
        named_in, wanted = place, str(content.get("based_on") or "")
    if checks.problems:
        raise PlanError(checks.problems)
    data: Mapping[str, Any] = {}
    for _place, content in reversed(chain):
        data = merge(data, content)
    return Profile(name, {key: value for key, value in data.items() if key != "based_on"})


def _check_form(checks: Reader, place: str, content: Mapping[str, Any]) -> None:
    checks.keys(place, content, KEYS)
    for key in (*FREE, *SECTIONS):
        value = content.get(key)
        if value is None:
            continue
        where = f"{place}: {key}"
        if not isinstance(value, Mapping):
            checks.problems.append(f"{where} is {value!r}, expected a mapping.")
            continue
        _check_section(checks, where, key, value)


def _check_section(checks: Reader, where: str, key: str, value: Mapping[str, Any]) -> None:
    if key in SECTIONS:
        checks.keys(where, value, SECTIONS[key])
    for name, entry in value.items():
        here = f"{where}.{name}"
        if entry is None:
            continue
        if key in LINES:
            if not isinstance(entry, Mapping):
                checks.problems.append(f"{here} is {entry!r}, expected a mapping.")
                continue
            checks.keys(here, entry, LINES[key])
            _check_line(checks, here, entry)
        elif key == "env" and not isinstance(entry, (str, int, float)):
            checks.problems.append(f"{here} is {entry!r}, expected text.")
        elif key == "env" and isinstance(entry, bool):
            checks.problems.append(
                f"{here} is {entry!r}, which could be 1 or true; quote what it is to be."
            )
        elif key == "arguments" and not name.startswith("-"):
            checks.problems.append(f"{here} is no option; it begins with --.")
        elif key == "arguments" and not (isinstance(entry, (str, int, float)) or is_list(entry)):
            checks.problems.append(f"{here} is {entry!r}, expected text, a number, true or a list.")
        elif key == "settings" and name in OVERRIDES:
            checks.problems.append(f"{here} cannot be the name of a setting.")
        elif key == "settings" and not isinstance(entry, (str, int, float)):
            checks.problems.append(f"{here} is {entry!r}, expected text, a number or a boolean.")
        elif name in _LISTS and not is_list(entry):
            checks.problems.append(f"{here} is {entry!r}, expected a list.")
        elif name in _FLAGS and not isinstance(entry, bool):
            checks.problems.append(f"{here} is {entry!r}, expected true or false.")
        elif key == "memory" and (isinstance(entry, bool) or not isinstance(entry, (int, float))):
            checks.problems.append(f"{here} is {entry!r}, expected a number.")
        elif name == "mounts":
            for number, mount in enumerate(entry):
                if isinstance(mount, Mapping) and {"source", "target"} <= set(mount):
                    checks.keys(f"{here}[{number}]", mount, _MOUNT)
                else:
                    checks.problems.append(
                        f"{here}[{number}] is {mount!r}, expected source, target and, unless it is "
                        "true, read_only."
                    )
        elif key == "fits" and name == "hosts":
            if isinstance(entry, bool) or not isinstance(entry, int):
                checks.problems.append(f"{here} is {entry!r}, expected a whole number.")
        elif name in ("build", "ulimits") and not isinstance(entry, Mapping):
            checks.problems.append(f"{here} is {entry!r}, expected a mapping.")


def _check_line(checks: Reader, here: str, entry: Mapping[str, Any]) -> None:
    pattern = entry.get("pattern")
    if pattern is not None:
        try:
            re.compile(_VARIABLE.sub("0", str(pattern)))
        except re.error as error:
            checks.problems.append(f"{here}.pattern is no regular expression: {error}.")
    scope = entry.get("scope")
    if scope not in (None, "all", "head"):
        checks.problems.append(f"{here}.scope is {scope!r}, expected all or head.")
    for flag in ("required", "weak"):
        if not isinstance(entry.get(flag, False), bool):
            checks.problems.append(f"{here}.{flag} is {entry[flag]!r}, expected true or false.")
    if not isinstance(entry.get("when", {}), Mapping):
        checks.problems.append(f"{here}.when is {entry['when']!r}, expected a mapping.")


def apply_settings(profile: Profile, settings: Any) -> tuple[Profile, list[str]]:
    """Merge the settings of a cell into a profile. Returns it with what is wrong with them."""
    if settings in (None, ""):
        return profile, []
    where = "spark_settings"
    checks = Reader()
    if not isinstance(settings, Mapping):
        return profile, [f"{where} is {settings!r}, expected a mapping of settings to values."]
    known = profile.section("settings")
    changes: dict[str, Any] = {}
    chosen: dict[str, Any] = {}
    for name, value in settings.items():
        if name in OVERRIDES:
            so_far = len(checks.problems)
            if value is not None and not isinstance(value, Mapping):
                checks.problems.append(f"{where}.{name} is {value!r}, expected a mapping.")
                continue
            _check_section(checks, f"{where}.{name}", name, value or {})
            _check_made(checks, profile, name, value or {})
            if len(checks.problems) == so_far:
                changes[name] = value or {}
        elif name not in known:
            checks.problems.append(
                f"{where}: profile {profile.name} has no setting {name!r}"
                f"{suggestion(name, [*known, *OVERRIDES])}; it has {', '.join(sorted(known))}, "
                f"and everything below {', '.join(OVERRIDES)}."
            )
        elif value is not None:
            given = _like(known[name], value)
            if given is None:
                kind = _KINDS.get(type(known[name]), "text")
                checks.problems.append(f"{where}.{name} is {value!r}, expected {kind}.")
            else:
                chosen[name] = given
    merged = merge(profile.data, {**changes, "settings": chosen})
    return Profile(profile.name, merged), checks.problems


def _check_made(checks: Reader, profile: Profile, key: str, value: Mapping[str, Any]) -> None:
    """What a profile makes from settings or the plan is not to say something else than they do."""
    if key not in ("env", "arguments"):
        return
    for name, entry in value.items():
        made_from = _VARIABLE.findall(str(profile.section(key).get(name, "")))
        if entry is not None and made_from:
            settings = [word for word in made_from if word in profile.section("settings")]
            remedy = f"set {settings[0]} instead" if settings else "leave it out"
            checks.problems.append(
                f"spark_settings.{key}.{name} would contradict the plan, which makes it from "
                f"{', '.join(made_from)}; {remedy}."
            )


def _like(default: Any, value: Any) -> Any:
    """A value as the type of the default, None where it cannot be. The command line gives text."""
    if isinstance(default, bool):
        return value if isinstance(value, bool) else _TRUTH.get(str(value).strip().lower())
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    if isinstance(default, str):
        return str(value)
    try:
        number = float(value)
    except ValueError:
        return None
    if isinstance(default, float):
        return number if 0 <= number < float("inf") else None
    return int(number) if number.is_integer() and number >= 0 else None


def substitute(value: Any, variables: Mapping[str, Any], used: set[str]) -> str:
    """Put variables in their places in a text, and remember which.

    Raises:
        KeyError: with the name of a variable that does not exist.
    """
    text = _text(value)
    if "${" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        used.add(match.group(1))
        return _text(variables[match.group(1)])

    return _VARIABLE.sub(replace, text)


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def holds(when: Mapping[str, Any], env: Mapping[str, str]) -> bool:
    """Whether an environment is as `when` says: a text is equal, true is there, false is not.

    >>> holds({"A": "1", "B": False}, {"A": "1"}), holds({"A": True}, {})
    (True, False)
    """
    return all(
        (name in env) is value if isinstance(value, bool) else env.get(name) == str(value)
        for name, value in when.items()
    )


def fitting(profiles: Iterable[Profile], topology: str, hosts: int) -> list[str]:
    """The names of the profiles made for a topology and a number of hosts."""
    return [profile.name for profile in profiles if fits(profile, topology, hosts)]


def fits(profile: Profile, topology: str, hosts: int) -> bool:
    """Whether a profile is made for a topology and a number of hosts; it may leave both open."""
    wanted = profile.section("fits")
    count, topologies = wanted.get("hosts"), wanted.get("topologies")
    return (count is None or count == hosts) and (not topologies or topology in topologies)
