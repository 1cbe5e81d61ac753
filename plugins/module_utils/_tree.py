# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Read small kernel and configuration files below a root that tests may choose."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Missing

_T = TypeVar("_T")


def record(**fields: Any) -> dict[str, Any]:
    """A plain dictionary in which every `Missing` is None, with the reasons under `why`.

    >>> record(rate=Missing("Invalid argument"), state="DOWN")
    {'rate': None, 'state': 'DOWN', 'why': {'rate': 'Invalid argument'}}
    """
    why = {name: str(value) for name, value in fields.items() if isinstance(value, Missing)}
    return {
        **{name: None if name in why else value for name, value in fields.items()},
        "why": why,
    }


class Tree:
    """Files below `root`. Nothing raises: what cannot be read is `Missing` with the reason.

    The kernel answers EINVAL for single attributes of healthy devices (the rate of a port without a
    cable, for one), so a failure counts for the one file and never for the directory around it.
    """

    def __init__(self, root: str = "/") -> None:
        self._root = root

    def path(self, relative: str) -> str:
        return os.path.join(self._root, relative)

    def exists(self, relative: str) -> bool:
        return os.path.exists(self.path(relative))

    def text(self, relative: str) -> str:
        """The file without surrounding white space."""
        return self._attempt(relative, _read)

    def names(self, relative: str) -> list[str] | Missing:
        """The sorted names in a directory."""
        return self._attempt(relative, lambda path: sorted(os.listdir(path)))

    def target(self, relative: str) -> str:
        """The last part of what a link points to."""
        return self._attempt(relative, lambda path: os.path.basename(os.readlink(path)))

    def integer(self, relative: str) -> int | Missing:
        text = self.text(relative)
        if isinstance(text, Missing):
            return text
        try:
            return int(text, 0)
        except ValueError:
            return Missing(f"{text!r} is not a number")

    def _attempt(self, relative: str, action: Callable[[str], _T]) -> _T | Missing:
        try:
            return action(self.path(relative))
        except OSError as error:
            return Missing(error.strerror or type(error).__name__)


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as stream:
        return stream.read().strip()
