# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What the watch has on a node: one program, its settings, and on the head a timer."""

from __future__ import annotations

import ast
import contextlib
import glob
import importlib
import inspect
import io
import json
import os
import zipfile
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils import _rank_unit, _recovery_watch
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Runner
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_node import unit_facts
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_settings import (
    PROGRAMS,
    UNIT_FOLDER,
    unit_name,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import write_whole

PROGRAM = f"{PROGRAMS}/recovery.pyz"
AUTHORIZED = "/root/.ssh/authorized_keys"
SSHD = "/etc/ssh/sshd_config.d/20-sparkfleet-recovery-{cell}.conf"
COMMENT = "sparkfleet-recovery"
_PACKAGE = "ansible_collections.sparkfleet.cluster.plugins.module_utils"
_MAIN = f"""\
import sys

from {_PACKAGE}._recovery_watch import main

raise SystemExit(main(sys.argv[1:]))
"""
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the oldest time a zip file knows


def program() -> bytes:
    """The watch with every module utility that it imports, as one file that Python runs.

    The very files that modules import run on the node; the bytes are the same for the same files.
    """
    sources: dict[str, str] = {}
    todo = [_recovery_watch.__name__.rpartition(".")[2]]
    while todo:
        name = todo.pop()
        if name not in sources:
            module = importlib.import_module(f"{_PACKAGE}.{name}")
            sources[name] = inspect.getsource(module)
            todo += _imported(sources[name])
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        folder = ""
        files = {"__main__.py": _MAIN}
        for part in _PACKAGE.split("."):
            folder += f"{part}/"
            files[f"{folder}__init__.py"] = ""
        files |= {f"{folder}{name}.py": sources[name] for name in sorted(sources)}
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), text)
    return packed.getvalue()


def _imported(source: str) -> list[str]:
    """The module utilities of this collection that a module imports."""
    found: list[str] = []
    for statement in ast.walk(ast.parse(source)):
        if isinstance(statement, ast.ImportFrom) and statement.module:
            if statement.module == _PACKAGE:
                found += [alias.name for alias in statement.names]
            elif statement.module.startswith(f"{_PACKAGE}."):
                found.append(statement.module.rpartition(".")[2])
    return found


def timer_name(cell: str) -> str:
    """Of the watch of a cell."""
    return f"sparkfleet-watch@{cell}.timer"


def units(cell: str, interval: int) -> dict[str, str]:
    """The texts of the units of the watch, by path. Whatever else may change is in its settings."""
    service = f"""\
# Written by sparkfleet.cluster; a change is overwritten by the next run.
[Unit]
Description=Look at the cell {cell}
After=network-online.target docker.service

[Service]
Type=oneshot
ExecStart=/usr/bin/python3 -I {PROGRAM} look {cell}
# Stopping and starting all ranks is part of it, waiting for links included.
TimeoutStartSec=3600
Nice=5
"""
    timer = f"""\
# Written by sparkfleet.cluster; a change is overwritten by the next run.
[Unit]
Description=Look at the cell {cell} every {interval} s

[Timer]
OnBootSec={interval}
OnActiveSec=1
OnUnitInactiveSec={interval}
AccuracySec=1

[Install]
WantedBy=timers.target
"""
    stem = f"{UNIT_FOLDER}/sparkfleet-watch@{cell}"
    return {f"{stem}.service": service, f"{stem}.timer": timer}


class Installation:
    """The watch of a cell on this node.

    Args:
        cell: whose watch it is.
        run: runs a command for a bounded time.
        root: where the file system of the node begins.
    """

    def __init__(self, cell: str, run: Runner, root: str = "/") -> None:
        self._cell = cell
        self._run = run
        self._root = root
        self._settings = _recovery_watch.SETTINGS.format(cell=cell)
        self._timer = timer_name(cell)

    def _place(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))

    def _linked(self, unit: str, target: str) -> bool:
        return os.path.islink(self._place(f"{UNIT_FOLDER}/{target}.wants/{unit}"))

    def read(self, path: str) -> tuple[int, bytes] | None:
        """Mode and content of a file, None where there is none."""
        try:
            with open(self._place(path), "rb") as stream:
                return os.fstat(stream.fileno()).st_mode & 0o777, stream.read()
        except OSError:
            return None

    def keyed(self) -> bool:
        """Whether this node has the key of an automatic watch, or lets it in."""
        places = [_recovery_watch.KEY, SSHD.format(cell=self._cell)]
        keys = (self.read(AUTHORIZED) or (0, b""))[1].decode(errors="replace")
        ours = any(line.endswith(f" {COMMENT}@{self._cell}") for line in keys.splitlines())
        return ours or any(self.read(path) is not None for path in places)

    def present(
        self, settings: Mapping[str, Any], *, interval: int, at_boot: bool, really: bool
    ) -> tuple[list[str], list[dict[str, str]], str]:
        """Bring everything to what it should be.

        Args:
            settings: of the watch.
            interval: seconds between two looks; 0 where this node is not the head.
            at_boot: whether the rank of this node starts by itself with the node.
            really: whether it is done, or only told.

        Returns:
            The actions, the differences as Ansible shows them, and a note.

        Raises:
            OSError: a file cannot be written; those that are there stay whole.
            UnitError: systemd refuses.
        """
        wanted = {
            PROGRAM: (0o755, program()),
            self._settings: (
                0o600,
                (json.dumps(settings, indent=1, sort_keys=True) + "\n").encode(),
            ),
        }
        texts = units(self._cell, interval) if interval else {}
        wanted |= {path: (0o644, text.encode()) for path, text in texts.items()}
        differing = [path for path, what in wanted.items() if self.read(path) != what]
        diff = [self._diff(path, wanted[path][1]) for path in differing if path != PROGRAM]
        actions = [f"write {path}" for path in differing]
        had = self._own_units()
        old = set(had) - set(texts)
        actions += self._remove_units(really=really) if old else []
        if really:
            for path in differing:
                mode, data = wanted[path]
                write_whole(self._place(path), data.decode("utf-8", "surrogateescape"), mode)
        rank = unit_facts(self._cell, self._run)
        note = ""
        if texts:
            changed = bool(set(texts) & set(differing))
            actions += self._start(really=really, changed=changed)
            # A reload of systemd takes the GPU away from a running container (E03).
            if really and rank["at_work"] and changed and had:
                note = "the new interval counts from the next start of the node or of the cell"
            elif really and not rank["at_work"] and self._stale():
                _rank_unit.act(self._run, "daemon-reload")
                _rank_unit.act(self._run, "restart", self._timer)
        name = unit_name(self._cell)
        if rank["known"] and self._linked(name, "multi-user.target") != at_boot:
            verb = "enable" if at_boot else "disable"
            actions.append(f"{verb} {name}")
            if really:
                _rank_unit.act(self._run, "--root=/", verb, name)
        return actions, diff, note

    def _start(self, *, really: bool, changed: bool) -> list[str]:
        actions = []
        if not self._linked(self._timer, "timers.target"):
            actions.append(f"enable {self._timer}")
            if really:
                _rank_unit.act(self._run, "--root=/", "enable", self._timer)
        active = self._run(["systemctl", "is-active", "--quiet", self._timer]).rc == 0
        if changed or not active:
            actions.append(f"start {self._timer}")
            if really:
                _rank_unit.act(self._run, "start", self._timer)
        return actions

    def _stale(self) -> bool:
        shown = self._run(["systemctl", "show", "--property=NeedDaemonReload", self._timer])
        return "NeedDaemonReload=yes" in shown.out

    def _diff(self, path: str, after: bytes) -> dict[str, str]:
        before = (self.read(path) or (0, b""))[1]
        return {
            "before_header": path,
            "after_header": path,
            "before": before.decode(errors="replace"),
            "after": after.decode(errors="replace"),
        }

    def _own_units(self) -> list[str]:
        return [path for path in units(self._cell, 1) if self.read(path) is not None]

    def _remove_units(self, *, really: bool) -> list[str]:
        paths = self._own_units()
        if not paths:
            return []
        if really:
            _rank_unit.act(self._run, "stop", self._timer)
            _rank_unit.act(self._run, "--root=/", "disable", self._timer)
            for path in paths:
                os.unlink(self._place(path))
        return [f"stop {self._timer}", *(f"remove {path}" for path in paths)]

    def absent(self, *, really: bool) -> list[str]:
        """Remove the watch of this cell, and the program with the last one of the node.

        The record of restarts stays, so that a bound is not lost by installing again.
        """
        actions = self._remove_units(really=really)
        others = glob.glob(self._place(_recovery_watch.SETTINGS.format(cell="*")))
        paths = [self._settings]
        if others in ([], [self._place(self._settings)]):
            paths.append(PROGRAM)
        paths = [path for path in paths if self.read(path) is not None]
        if really:
            for path in paths:
                os.unlink(self._place(path))
            with contextlib.suppress(OSError):  # the key of the head may be in it
                os.rmdir(self._place(_recovery_watch.FOLDER))
        return [*actions, *(f"remove {path}" for path in paths)]
