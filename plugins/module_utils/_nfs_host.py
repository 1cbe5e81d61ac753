# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What both ends of an NFS share do to a node: files that change as a whole, and units."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command, Runner
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_exports import Problem
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import write_whole
from ansible_collections.sparkfleet.cluster.plugins.module_utils._systemd import (
    Unit,
    ask_at_work,
    ask_states,
    read_names,
    read_states,
)


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
        write_whole(place, text, 0o644)


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
    return read_states(must(ask_states(run, names), ["systemctl", "show"]), names)


def serving(run: Runner, patterns: Sequence[str]) -> list[str]:
    """The units of ranks that are at work, by the patterns of their names.

    Raises:
        ShareError: systemd does not answer.
    """
    if not patterns:
        return []
    return read_names(must(ask_at_work(run, patterns), ["systemctl", "list-units"]))
