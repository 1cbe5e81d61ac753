# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Ask systemd about units, and read its answers. What a failed answer means, the caller decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command, Runner

RANKS = "sparkfleet-rank@*.service"

_PROPERTIES = ("Id", "LoadState", "ActiveState", "UnitFileState")
_AT_WORK = "active,activating,reloading,deactivating"


class Unit(NamedTuple):
    """A unit of systemd; `known` says whether there is one of that name.

    One that `failed` ended by itself, and stays so until it is started or its failure forgotten.
    """

    known: bool
    active: bool
    enabled: bool
    failed: bool


def ask_states(run: Runner, names: Sequence[str]) -> Command:
    """`systemctl show`, for `read_states`."""
    return run(["systemctl", "show", *(f"--property={name}" for name in _PROPERTIES), *names])


def read_states(out: str, names: Sequence[str]) -> dict[str, Unit]:
    """The units by the names they were asked for, maybe aliases; answers keep their order."""
    found = {}
    for name, block in zip(names, out.strip().split("\n\n")):  # noqa: B905  # some may be missing
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        found[name] = Unit(
            known=values.get("LoadState") == "loaded",
            active=values.get("ActiveState") == "active",
            enabled=values.get("UnitFileState") == "enabled",
            failed=values.get("ActiveState") == "failed",
        )
    return {name: found.get(name, Unit(False, False, False, False)) for name in names}


def ask_at_work(run: Runner, patterns: Sequence[str] = (RANKS,)) -> Command:
    """`systemctl list-units` of the units that run or are about to, for `read_names`."""
    return run(
        ["systemctl", "list-units", "--plain", "--no-legend", f"--state={_AT_WORK}", *patterns]
    )


def read_names(out: str) -> list[str]:
    """The names of the units in a list."""
    return [line.split()[0] for line in out.splitlines() if line.strip()]
