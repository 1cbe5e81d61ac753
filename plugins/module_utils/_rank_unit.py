# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Install, start, stop and remove the unit of a rank."""

from __future__ import annotations

import contextlib
import glob
import inspect
import os
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils import _rank, _roce_gid
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command, Runner
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_settings import (
    LOGS,
    PROGRAMS,
    UNIT_FOLDER,
    files,
    unit_name,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_verdict import resolved
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import write_whole

_WANTS = "multi-user.target.wants"
_PROGRAMS = {"rank.py": _rank, "roce_gid.py": _roce_gid}


class UnitError(Exception):
    """What keeps a rank from being as it should be; the text is for people."""


class Installation:
    """The files of a rank on this node.

    Args:
        settings: of the rank; to remove one, its cell is enough.
        gpu: the way in which a container gets the GPU; None if that is not known yet.
        root: where the file system of the node begins.
    """

    def __init__(self, settings: Mapping[str, Any], gpu: str | None, root: str = "/") -> None:
        self._root = root
        self._cell = str(settings["cell"])
        self._settings = _rank.SETTINGS.format(cell=self._cell)
        self._files: dict[str, tuple[int, str]] = {}
        self._folders: list[str] = []
        if "container" in settings:
            # The very files that this module imports run on the node.
            programs = {name: inspect.getsource(module) for name, module in _PROGRAMS.items()}
            self._files = files(resolved(settings, gpu), programs)
            mounts = settings["container"]["mounts"]
            self._folders = [mount["source"] for mount in mounts if not mount["read_only"]]

    @property
    def unit_file(self) -> str:
        """Where the unit is."""
        return f"{UNIT_FOLDER}/{unit_name(self._cell)}"

    def differing(self) -> list[str]:
        """The paths of files that are missing or not as they should be."""
        return [path for path, wanted in self._files.items() if self.read(path) != wanted]

    def diff(self) -> list[dict[str, str]]:
        """The differences as Ansible shows them; of settings everybody may see."""
        return [
            {
                "before_header": path,
                "after_header": path,
                "before": (self.read(path) or (0, ""))[1],
                "after": self._files[path][1],
            }
            for path in self.differing()
            if not path.startswith(PROGRAMS)
        ]

    def read(self, path: str) -> tuple[int, str] | None:
        """Mode and text of a file, None where there is none."""
        place = self._place(path)
        try:
            with open(place, encoding="utf-8", errors="surrogateescape") as stream:
                return os.stat(place).st_mode & 0o777, stream.read()
        except OSError:
            return None

    def _place(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))

    def missing_folders(self) -> list[str]:
        """The directories that the container writes to and that do not exist yet."""
        return [path for path in (LOGS, *self._folders) if not os.path.isdir(self._place(path))]

    def write(self) -> None:
        """Make everything as it should be, each file as a whole.

        Raises:
            OSError: a file cannot be written; those that are there stay whole.
        """
        for path in self.missing_folders():
            os.makedirs(self._place(path), mode=0o755)
        for path in self.differing():
            mode, text = self._files[path]
            write_whole(self._place(path), text, mode)

    def present(self) -> list[str]:
        """The files of this rank that exist."""
        return [
            path for path in (self.unit_file, self._settings) if os.path.exists(self._place(path))
        ]

    def remove(self) -> None:
        """Remove the files of this rank, and the programs with the last rank of the node."""
        for path in self.present():
            os.unlink(self._place(path))
        with contextlib.suppress(OSError):  # other things of the cell may be in it
            os.rmdir(os.path.dirname(self._place(self._settings)))
        if not glob.glob(self._place(_rank.SETTINGS.format(cell="*"))):
            for name in _PROGRAMS:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._place(f"{PROGRAMS}/{name}"))

    def enabled(self) -> bool:
        """Whether the unit starts with the node."""
        link = f"{UNIT_FOLDER}/{_WANTS}/{unit_name(self._cell)}"
        return os.path.islink(self._place(link))


def act(run: Runner, *words: str) -> Command:
    """A verb of systemctl. Raises UnitError if it fails."""
    done = run(["systemctl", *words])
    if done.rc != 0:
        raise UnitError(f"systemctl {' '.join(words)}: {done.complaint}")
    return done


def start(cell: str, run: Runner) -> None:
    """Start the unit and wait until its container runs.

    Raises:
        UnitError: with what its starter said.
    """
    unit = unit_name(cell)
    run(["systemctl", "reset-failed", unit])  # fails where there is nothing to forget
    done = run(["systemctl", "start", unit])
    if done.rc != 0:
        said = run(["journalctl", "--unit", unit, "--output", "cat", "--lines", "20", "--no-pager"])
        lines = [line for line in said.out.splitlines() if line.startswith("not started: ")]
        told = "\n".join(line.removeprefix("not started: ") for line in lines[-8:])
        raise UnitError(told or f"{unit} does not start: {done.complaint}\n{said.out}")
