# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The three things the module fabric_network can be asked for, on one node."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils import _node_files as files
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _node_network as network
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import NOT_FOUND, Command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._dead_man import (
    ChangeError,
    DeadMan,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._netplan import HAS_YAML, Files
from ansible_collections.sparkfleet.cluster.plugins.module_utils._node_files import (
    NETPLAN,
    Problem,
    Wanted,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._node_network import Before, Change
from ansible_collections.sparkfleet.cluster.plugins.module_utils._node_state import (
    Link,
    Node,
    NodeError,
    Observed,
    Route,
)

# Network managers go on after their commands have returned: what is right counts only when it is
# still right so many seconds later.
SETTLED = 1.0
PAUSE = 0.5


class Outcome(NamedTuple):
    """What the module returns."""

    changed: bool = False
    actions: Sequence[str] = ()
    diff: Sequence[Mapping[str, str]] = ()
    deadline: float | None = None
    problems: Sequence[Problem] = ()


class Changer:
    """Brings one node's fabric ports to a state.

    Args:
        node: reads it.
        dead_man: changes it.
        run: runs a command on it, for a bounded time.
        root: its root directory.
        source: the text of the module utility `_dead_man`, for the node.
        check: only say what would be done.
    """

    def __init__(
        self,
        node: Node,
        dead_man: DeadMan,
        run: Callable[[Sequence[str]], Command],
        root: str,
        source: bytes,
        check: bool,
    ) -> None:
        self._node = node
        self._dead_man = dead_man
        self._run = run
        self._root = root
        self._source = source
        self._check = check

    def reach(self, params: Mapping[str, Any]) -> Outcome:
        """Bring the node to `params["state"]`; whatever forbids it is in the outcome's problems."""
        try:
            if params["state"] == "confirmed":
                return self._confirmed()
            return (self._present if params["state"] == "present" else self._absent)(params)
        except ChangeError as error:
            return Outcome(problems=[Problem("undone", str(error))])
        except NodeError as error:
            return Outcome(problems=[Problem("unreadable", str(error))])

    def _present(self, params: Mapping[str, Any]) -> Outcome:
        wanted, problems = files.read_wanted(params)
        if not HAS_YAML:
            problems.append(Problem("no-yaml", _NO_YAML))
        if self._run(["netplan", "--help"]).rc == NOT_FOUND:
            problems.append(Problem("no-netplan", _NO_NETPLAN))
        if wanted is None or problems:
            return Outcome(problems=problems)
        before = self._before()
        names = [port.netdev for port in wanted.ports]
        dropped = [name for name in (before.links if before else {}) if name not in names]
        observed = self._node.observe(
            [*names, *dropped], params["rank_units"], forward=wanted.forward
        )
        problems = network.impossible(wanted, observed)
        if problems:
            return Outcome(problems=problems)
        others = Files(observed.netplan, NETPLAN.lstrip("/"))
        devices = network.devices(wanted, observed)
        renderers = {
            device.name: others.renderer(device)
            if params["renderer"] == "auto"
            else params["renderer"]
            for device in devices
        }
        texts = files.own_files(wanted, renderers)
        problems = [Problem("broken-netplan", text) for text in others.problems]
        problems += network.unmanaged(renderers, observed)
        if not params["accept_foreign"]:
            claims = others.claims(devices, files.definitions(wanted, renderers))
            problems += network.foreign(claims)
        known = before if observed.files else None
        change = network.to_wanted(wanted, texts, observed, known)
        if change is None:
            return self._nothing(problems)
        problems += self._invalid(observed, texts[NETPLAN]) if change.network else []
        problems += [] if params["force"] else network.serving(observed)
        if problems or self._check:
            return _told(change, None, problems)
        remembered = network.remember(known, wanted, observed)
        return self._carry_out(change, params, remembered, self._until_wanted(wanted))

    def _absent(self, params: Mapping[str, Any]) -> Outcome:
        before = self._before()
        observed = self._node.observe(list(before.links) if before else [], params["rank_units"])
        change = network.to_nothing(observed, before)
        if change is None:
            return self._nothing([])
        problems = [] if params["force"] else network.serving(observed)
        if problems or self._check:
            return _told(change, None, problems)
        return self._carry_out(
            change, params, before, lambda: network.lingering(change.gone, self._node.links())
        )

    def _nothing(self, problems: Sequence[Problem]) -> Outcome:
        """The node is as it should be. A change that was undone is what others wanted before."""
        if not self._check and not problems:
            self._dead_man.drop("rollback")
        return Outcome(deadline=self._dead_man.deadline, problems=problems)

    def _confirmed(self) -> Outcome:
        waits = self._dead_man.deadline is not None
        if not self._check:
            waits = self._dead_man.confirm()
            if not any(os.path.exists(self._path(path)) for path in files.MODES):
                self._dead_man.forget()  # what was confirmed is that there is nothing of ours
        return Outcome(changed=waits, actions=[_CONFIRM] if waits else [])

    def _carry_out(
        self,
        change: Change,
        params: Mapping[str, Any],
        before: Before | None,
        unsettled: Callable[[], list[str]],
    ) -> Outcome:
        if before is not None:
            self._dead_man.save("before", before._asdict())
        deadline = self._dead_man.change(
            change.steps, change.undo, params["rollback_after"], self._source, NETPLAN
        )
        left = _wait(unsettled, params["timeout"])
        if left:
            self._dead_man.undo_now(f"after {params['timeout']} s, {'; '.join(left)}")
            raise ChangeError(self._dead_man.told())
        return _told(change, deadline, [])

    def _until_wanted(self, wanted: Wanted) -> Callable[[], list[str]]:
        return lambda: network.settled(wanted, self._node.links(), self._node.routes())

    def _before(self) -> Before | None:
        saved = self._dead_man.load("before")
        if saved is None:
            return None
        links = {name: Link(*values) for name, values in saved["links"].items()}
        routes = [Route(*values) for values in saved["routes"]]
        return Before(links, routes, saved["kernel"], saved["boot"])

    def _invalid(self, observed: Observed, text: str) -> list[Problem]:
        """What netplan says about all files with ours among them, in a root of its own."""
        folder = tempfile.mkdtemp(prefix="sparkfleet-", dir=self._path("/run"))
        try:
            for path, content in {**observed.netplan, NETPLAN.lstrip("/"): text}.items():
                place = os.path.join(folder, path)
                os.makedirs(os.path.dirname(place), exist_ok=True)
                with open(place, "w", encoding="utf-8", errors="surrogateescape") as stream:
                    os.fchmod(stream.fileno(), 0o600)
                    stream.write(content)
            done = self._run(["netplan", "generate", "--root-dir", folder])
        finally:
            shutil.rmtree(folder)
        if done.rc == 0:
            return []
        # The first line only: further ones quote the file, which can be one with a password.
        said = done.complaint.replace(folder, "")
        return [Problem("broken-netplan", f"netplan would refuse it: {said}")]

    def _path(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))


_CONFIRM = "keep the change that waited to be confirmed"
_NO_NETPLAN = (
    "there is no netplan on this node; DGX OS and Ubuntu have it, elsewhere: apt install netplan.io"
)
_NO_YAML = (
    "the Python of this task has no module yaml; the system's has, because netplan needs it: set "
    "ansible_python_interpreter to /usr/bin/python3"
)


def _told(change: Change, deadline: float | None, problems: Sequence[Problem]) -> Outcome:
    return Outcome(True, change.actions, change.diff, deadline, problems)


def _wait(unsettled: Callable[[], list[str]], timeout: float) -> list[str]:
    """Wait until nothing is left; returns what is."""
    until = time.monotonic() + timeout
    since: float | None = None
    while True:
        left = unsettled()
        now = time.monotonic()
        if left:
            since = None
        elif since is None:
            since = now
        elif now - since >= SETTLED:
            return []
        if now > until:
            return left
        time.sleep(PAUSE)
