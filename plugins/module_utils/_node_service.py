# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Bring units of systemd and the files they read to a state, tried before anything is replaced."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command, Runner
from ansible_collections.sparkfleet.cluster.plugins.module_utils._ranks import serving
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import write_whole
from ansible_collections.sparkfleet.cluster.plugins.module_utils._systemd import (
    Unit,
    ask_states,
    read_states,
)

UNITS = "/etc/systemd/system"
LOADED = "/var/lib/sparkfleet/services"  # what a unit was last told to read
_WANTED_BY = re.compile(r"^WantedBy=(.+)$", re.MULTILINE)


class ServiceError(Exception):
    """What keeps a service from being as it should be; the text is for people."""


class File(NamedTuple):
    """A file of a service; `shown` says whether a diff shows what is in it."""

    text: str
    mode: int = 0o644
    shown: bool = True


class Wish(NamedTuple):
    """What belongs to a service.

    Args:
        files: by path.
        units: their texts, by name. What ``WantedBy`` in them says is made so.
        running: the units that run now. Those of `units` end with the service; others are
            somebody's, and only started.
        once: units that are started once after a change, and have to end well.
        programs: the paths of programs it needs, with the package that brings each.
        tests: commands that try the files before they replace others; ``{folder}`` is where they
            are then, by their last names.
        probe: a command that shows what is in force, empty for none.
        expected: a text that its output has to contain.
        leavings: what the service itself writes, removed with it.
    """

    files: Mapping[str, File] = {}
    units: Mapping[str, str] = {}
    running: Sequence[str] = ()
    once: Sequence[str] = ()
    programs: Mapping[str, str] = {}
    tests: Sequence[Sequence[str]] = ()
    probe: Sequence[str] = ()
    expected: str = ""
    leavings: Sequence[str] = ()

    @property
    def everything(self) -> dict[str, File]:
        """Every file, those of the units among them."""
        return {
            **self.files,
            **{f"{UNITS}/{name}": File(text) for name, text in self.units.items()},
        }

    @property
    def digest(self) -> str:
        """The same for the same files."""
        told = {path: file.text for path, file in self.everything.items()}
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    @property
    def links(self) -> list[str]:
        """What makes systemd start units with others, without a word to its manager."""
        return [
            f"{UNITS}/{target}.wants/{name}"
            for name, text in self.units.items()
            for line in _WANTED_BY.findall(text)
            for target in line.split()
        ]


class Outcome(NamedTuple):
    """What was done, or would be in check mode. `packages` are missing."""

    actions: list[str]
    diff: list[dict[str, str]]
    packages: list[str]


class NodeService:
    """A service on this node.

    Args:
        name: its own.
        wish: how it should be.
        run: runs a command for a bounded time.
        root: where the file system of the node begins.
    """

    def __init__(self, name: str, wish: Wish, run: Runner, root: str = "/") -> None:
        self._name = name
        self._wish = wish
        self._run = run
        self._root = root
        self._loaded = f"{LOADED}/{name}"

    # --- present -----------------------------------------------------------------------------

    def present(self, *, check: bool, force: bool) -> Outcome:
        """Make it run as wished.

        Raises:
            ServiceError: it must not be changed now, does not pass a test, or does not start.
            OSError: a file cannot be written.
        """
        wish = self._wish
        packages = sorted(
            {name for path, name in wish.programs.items() if not os.path.exists(self._place(path))}
        )
        different = [path for path, file in wish.everything.items() if self._read(path) != file[:2]]
        links = [path for path in wish.links if not os.path.islink(self._place(path))]
        states = self._states()
        changed_units = [name for name in wish.units if f"{UNITS}/{name}" in different]
        reload_units = any(states[name].known for name in changed_units)
        loaded = self._read(self._loaded)
        current = loaded is not None and loaded[0] == wish.digest and self._in_force(packages)
        actions = [f"install {name}" for name in packages]
        actions += [
            f"{'write' if self._read(path) is None else 'change'} {path}" for path in different
        ]
        actions += ["systemctl daemon-reload"] if reload_units else []
        actions += [f"enable {os.path.basename(path)}" for path in links]
        for name in wish.running:
            if not states[name].active:
                actions.append(f"systemctl start {name}")
            elif name in wish.units and (different or not current):
                verb = "restart" if name in changed_units else "reload-or-restart"
                actions.append(f"systemctl {verb} {name}")
        if different or not current:
            actions += [f"systemctl start {name}" for name in wish.once]
        outcome = Outcome(actions, [self._diff(path) for path in different], packages)
        if (packages or reload_units) and not force:
            self._nobody_serves(packages)
        if check or not actions:
            return outcome
        if packages:
            raise ServiceError(
                f"the packages {', '.join(packages)} are missing; install them, or run the role"
            )
        self._try()
        for path in different:
            file = wish.everything[path]
            write_whole(self._place(path), file.text, file.mode)
        for path in links:
            os.makedirs(os.path.dirname(self._place(path)), exist_ok=True)
            with contextlib.suppress(FileExistsError):
                os.symlink(f"{UNITS}/{os.path.basename(path)}", self._place(path))
        for action in actions:
            if action.startswith("systemctl "):
                self._do(action.split())
        if not self._in_force([]):
            raise ServiceError(
                f"{wish.running[0]} was started, and {' '.join(wish.probe)} does not show "
                f"{wish.expected!r}; next: journalctl -u {wish.running[0]}"
            )
        write_whole(self._place(self._loaded), wish.digest, 0o644)
        return outcome

    def _nobody_serves(self, packages: Sequence[str]) -> None:
        ranks, unknown = serving(self._run)
        if ranks or unknown:
            what = f"installing {packages[0]}" if packages else "a changed unit"
            raise ServiceError(
                f"{what} makes systemd read its units again, which takes the GPU from a running "
                f"container, and {ranks[0] + ' serves' if ranks else unknown}; next: run the "
                "playbook stop first, or repeat this with force"
            )

    def _try(self) -> None:
        if not self._wish.tests:
            return
        with tempfile.TemporaryDirectory(prefix="sparkfleet-") as folder:
            for path, file in self._wish.files.items():
                with open(
                    os.path.join(folder, os.path.basename(path)), "w", encoding="utf-8"
                ) as stream:
                    stream.write(file.text)
            for words in self._wish.tests:
                done = self._run([word.replace("{folder}", folder) for word in words])
                if done.rc != 0:
                    raise ServiceError(
                        f"what was to be written does not pass {words[0]}: "
                        f"{(done.err or done.out).strip()}; nothing was changed"
                    )

    def _in_force(self, packages: Sequence[str]) -> bool:
        if not self._wish.probe:
            return True
        if packages:
            return False
        done = self._run(self._wish.probe)
        return done.rc == 0 and self._wish.expected in done.out

    def _do(self, words: Sequence[str]) -> None:
        done: Command = self._run(words)
        if done.rc != 0:
            told = ""
            if words[-1] in (*self._wish.running, *self._wish.once):
                said = self._run(["journalctl", "-u", words[-1], "-o", "cat", "-n", "5"])
                told = f": {' | '.join(said.out.split(chr(10))).strip(' |')}"
            raise ServiceError(f"{' '.join(words)}: {done.complaint}{told}")

    # --- absent ------------------------------------------------------------------------------

    def absent(self, *, check: bool) -> Outcome:
        """Take away what `present` made, and what the service left.

        Raises:
            ServiceError: a unit does not stop.
            OSError: a file cannot be removed.
        """
        wish = self._wish
        states = self._states()
        running = [name for name in wish.running if name in wish.units and states[name].active]
        made = [*wish.links, *wish.everything, self._loaded, *wish.leavings]
        there = [path for path in made if os.path.lexists(self._place(path))]
        actions = [f"systemctl stop {name}" for name in running]
        actions += [f"remove {path}" for path in there]
        if check:
            return Outcome(actions, [], [])
        for name in running:
            self._do(["systemctl", "stop", name])
        for path in there:
            place = self._place(path)
            if os.path.isdir(place) and not os.path.islink(place):
                shutil.rmtree(place)
            else:
                os.unlink(place)
            if "sparkfleet" in os.path.dirname(path):
                with contextlib.suppress(OSError):  # something else is in it
                    os.rmdir(os.path.dirname(place))
        return Outcome(actions, [], [])

    # --- what is there -----------------------------------------------------------------------

    def _states(self) -> dict[str, Unit]:
        names = list(dict.fromkeys([*self._wish.units, *self._wish.running]))
        if not names:
            return {}
        done = ask_states(self._run, names)
        return read_states(done.out if done.rc == 0 else "", names)

    def _place(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))

    def _read(self, path: str) -> tuple[str, int] | None:
        place = self._place(path)
        try:
            with open(place, encoding="utf-8", errors="surrogateescape") as stream:
                return stream.read(), os.stat(place).st_mode & 0o777
        except OSError:
            return None

    def _diff(self, path: str) -> dict[str, str]:
        file = self._wish.everything[path]
        before = (self._read(path) or ("", 0))[0]
        hidden = "" if file.shown else "(not shown)\n"
        return {
            "before_header": path,
            "after_header": path,
            "before": (hidden and before and "(another)\n") or before,
            "after": hidden or file.text,
        }
