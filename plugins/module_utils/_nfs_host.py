# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What both ends of an NFS share do to a node: files that change as a whole, and units."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command, Runner
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_exports import Problem


class ShareError(Exception):
    """A change that did not work; the text is for people."""


class Outcome(NamedTuple):
    """What one end of a share was, or would be, brought to."""

    actions: Sequence[str] = ()
    diff: Sequence[Mapping[str, str]] = ()
    problems: Sequence[Problem] = ()
    warnings: Sequence[str] = ()
    values: Mapping[str, Any] = {}

    def result(self) -> dict[str, Any]:
        """What a module returns."""
        told = "\n".join(problem.message for problem in self.problems)
        return {
            "changed": bool(self.actions) and not self.problems,
            "failed": bool(self.problems),
            **({"msg": told} if told else {}),
            "actions": list(self.actions),
            "diff": list(self.diff),
            "problems": [problem._asdict() for problem in self.problems],
            **self.values,
        }


class Unit(NamedTuple):
    """A unit of systemd; `known` says whether there is one of that name."""

    known: bool
    active: bool
    enabled: bool


class Folder:
    """The files of a node below `root`."""

    def __init__(self, root: str) -> None:
        self._root = root

    def path(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))

    def text(self, path: str) -> str | None:
        """What a file says, None where there is none."""
        try:
            with open(self.path(path), encoding="utf-8", errors="surrogateescape") as stream:
                return stream.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def put(self, path: str, text: str | None) -> None:
        """Write a file as a whole or not at all; with None it is removed."""
        place = self.path(path)
        if text is None:
            if os.path.lexists(place):
                os.unlink(place)
            return
        directory = os.path.dirname(place)
        os.makedirs(directory, mode=0o755, exist_ok=True)
        # The leading dot keeps daemons from reading it before it is whole.
        handle, aside = tempfile.mkstemp(prefix=f".{os.path.basename(place)}-", dir=directory)
        try:
            with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as stream:
                os.fchmod(stream.fileno(), 0o644)
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(aside, place)
        except OSError:
            os.unlink(aside)
            raise


def changed_text(path: str, before: str | None, after: str | None) -> dict[str, str]:
    """The entry of a diff for one file."""
    return {
        "before_header": path,
        "after_header": path,
        "before": before or "",
        "after": after or "",
    }


def must(done: Command, words: Sequence[str]) -> str:
    """The output of a command that has to work.

    Raises:
        ShareError: it did not.
    """
    if done.rc != 0:
        raise ShareError(f"{' '.join(words)}: {done.complaint}")
    return done.out


def units(run: Runner, names: Sequence[str]) -> dict[str, Unit]:
    """The state of units, by name.

    Raises:
        ShareError: systemd does not answer.
    """
    wanted = ("Id", "LoadState", "ActiveState", "UnitFileState")
    words = ["systemctl", "show", *(f"--property={name}" for name in wanted), *names]
    found = {}
    blocks = must(run(words), words[:2]).strip().split("\n\n")
    for name, block in zip(names, blocks):  # noqa: B905  # strict= would hide what is missing
        values = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
        found[name] = Unit(
            known=values.get("LoadState") == "loaded",
            active=values.get("ActiveState") == "active",
            enabled=values.get("UnitFileState") == "enabled",
        )
    return {name: found.get(name, Unit(False, False, False)) for name in names}


def serving(run: Runner, patterns: Sequence[str]) -> list[str]:
    """The units of ranks that are at work, by the patterns of their names.

    Raises:
        ShareError: systemd does not answer.
    """
    if not patterns:
        return []
    states = "active,activating,reloading,deactivating"
    words = ["systemctl", "list-units", "--plain", "--no-legend", f"--state={states}", *patterns]
    return [line.split()[0] for line in must(run(words), words[:2]).splitlines() if line.strip()]
