# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The router on its node: bring it to a state, ask it, and take a cell out of its rotation."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils import (
    _entry_config,
    _openai_answers,
    _router_run,
    _router_settings,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Runner
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_http import (
    Client,
    ProbeError,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._ranks import serving
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import write_whole
from ansible_collections.sparkfleet.cluster.plugins.module_utils._systemd import (
    ask_states,
    read_states,
)

_JOURNAL = f"journalctl -u {_router_settings.UNIT_NAME}"
_NEEDED = {  # files that tell that a package is there
    "python3-venv": ("usr/lib/python3*", "ensurepip/__init__.py"),
    "python3-packaging": ("usr/lib/python3/dist-packages", "packaging/__init__.py"),
}
_TRY = {"messages": [{"role": "user", "content": "Say: ready"}], "max_tokens": 8}


class RouterError(Exception):
    """Why the router is not as it should be; the text is for people."""


class Worker(NamedTuple):
    """A cell as the router sees it."""

    id: str
    healthy: bool


class Api:
    """Talks to the router of this node on loopback, where it wants no key."""

    def __init__(self, port: int) -> None:
        self._client = Client(f"http://127.0.0.1:{port}")

    def workers(self) -> dict[str, Worker]:
        """By address, the workers it knows. One that never answered is not among them."""
        answer = self._call("/workers")
        found = answer.get("workers") if isinstance(answer, dict) else None
        if not isinstance(found, list):
            raise RouterError("the router does not tell its workers; look at: " + _JOURNAL)
        return {
            str(one.get("url")): Worker(str(one.get("id")), bool(one.get("is_healthy")))
            for one in found
        }

    def add(self, url: str) -> None:
        """Let it send requests there as soon as health is answered."""
        self._call("/workers", {"url": url})

    def remove(self, url: str) -> None:
        """Let it send nothing there any more; requests that run go on."""
        worker = self.workers().get(url)
        if worker:
            self._call(f"/workers/{worker.id}", method="DELETE")

    def _call(self, path: str, body: Any = None, method: str = "") -> Any:
        try:
            answer = self._client.call(path, body, method=method, deadline=10)
        except ProbeError as error:
            raise RouterError(
                f"the router does not answer ({error}); look at: {_JOURNAL}"
            ) from None
        if answer.status >= 400:
            raise RouterError(
                f"the router answers {path} with status {answer.status}: {answer.text[:200]}"
            )
        return answer.document


def until(true: Callable[[], bool], seconds: float, pause: float = 0.2) -> bool:
    """Ask until the answer is yes, at most for that long."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() >= end:
            return False
        time.sleep(pause)
    return True


def read_settings(root: str = "/") -> dict[str, Any]:
    """The settings that were written for the router of this node.

    Raises:
        RouterError: there are none.
    """
    path = os.path.join(root, _router_run.SETTINGS.lstrip("/"))
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
        if isinstance(found["cells"], dict) and isinstance(found["router"]["port"], int):
            return dict(found)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    raise RouterError(
        f"there are no settings of a router in {_router_run.SETTINGS}; run the playbook router"
    )


# --- the cells behind it --------------------------------------------------------------------------


class Cells:
    """The cells behind the router of this node.

    Args:
        run: runs a command there.
        settings: what `read_settings` returns.
        root: its root directory.
    """

    def __init__(self, run: Runner, settings: Mapping[str, Any], root: str = "/") -> None:
        self._run = run
        self._root = root
        self._ports: dict[str, int] = settings["cells"]
        self.names = list(self._ports)
        self.api = Api(settings["router"]["port"])

    def requests(self, cell: str) -> int:
        """How many requests run on the cell. On its port a connection is one of them."""
        port = self._ports[cell]
        done = self._run(["ss", "-Htn", "state", "established", f"sport = :{port}"])
        if done.rc != 0:
            raise RouterError(f"ss: {done.complaint}; it is in the package iproute2")
        return sum(1 for line in done.out.splitlines() if line.strip())

    def drained(self, cell: str) -> bool:
        """Whether new requests are kept from it."""
        return os.path.exists(self._flag(cell))

    def url(self, cell: str) -> str:
        """How the router knows it."""
        return _router_settings.worker_url(self._ports[cell])

    def drain(self, cell: str, seconds: float, check: bool = False) -> bool:
        """Keep new requests from a cell and wait for those that run. Returns whether that was new.

        Raises:
            RouterError: they do not end in time; the cell gets requests again then.
        """
        known = self.url(cell) in self.api.workers()
        changed = known or not self.drained(cell)
        if changed and check:
            return True
        others = [
            name
            for name in self.names
            if name != cell and not self.drained(name) and self._healthy(name)
        ]
        if changed and not others and self._healthy(cell):
            raise RouterError(
                f"no cell but {cell} gets requests, so that draining it would end the service; "
                "bring another one back first, with the playbook router"
            )
        # The file outlasts a restart of the router, which would take the cell back by itself.
        os.makedirs(os.path.dirname(self._flag(cell)), mode=0o755, exist_ok=True)
        write_whole(self._flag(cell), "", 0o644)
        self.api.remove(self.url(cell))
        gone = until(lambda: self.url(cell) not in self.api.workers(), 10)
        if gone and until(lambda: self.requests(cell) == 0, seconds):
            return changed
        left = self.requests(cell)
        self.restore(cell, 0)
        if not gone:
            raise RouterError(f"the router does not let go of {cell}; look at: {_JOURNAL}")
        raise RouterError(
            f"{left} request{'s' * (left != 1)} still ran on {cell} after {seconds:g} s, so it "
            "stays in rotation; wait longer, with router_drain_timeout"
        )

    def restore(self, cell: str, seconds: float, check: bool = False) -> bool:
        """Let a cell have requests again, and wait until it gets them. Whether that was new.

        Raises:
            RouterError: it does not answer in time. It gets requests as soon as it does.
        """
        known = self.url(cell) in self.api.workers()
        changed = self.drained(cell) or not known
        if check:
            return changed
        if self.drained(cell):
            os.unlink(self._flag(cell))
        if not known:
            self.api.add(self.url(cell))
        if seconds and not until(lambda: self._healthy(cell), seconds):
            raise RouterError(
                f"{cell} is not healthy after {seconds:g} s, as the router sees it; ask its entry: "
                f"curl {self.url(cell)}/health"
            )
        return changed

    def complete(self) -> bool:
        """Whether the router finds every cell healthy that is not drained."""
        return all(self.drained(cell) or self._healthy(cell) for cell in self.names)

    def _healthy(self, cell: str) -> bool:
        return self.api.workers().get(self.url(cell), Worker("", False)).healthy

    def _flag(self, cell: str) -> str:
        path = _entry_config.ROUTER_ENTRY.drained(cell)
        return os.path.join(self._root, path.lstrip("/"))

    def state(self, deadline: float) -> list[dict[str, Any]]:
        """Every cell: does the router see it, and does it answer.

        Returns:
            For each cell `cell`, `healthy`, `drained`, `requests`, the name of its `model`, and
            `reason`, why a completion through its port failed, empty if it was answered or not
            asked for.
        """
        workers = self.api.workers()
        found = []
        for cell in self.names:
            healthy = workers.get(self.url(cell), Worker("", False)).healthy
            drained = self.drained(cell)
            reason = model = ""
            if healthy and not drained:
                try:
                    model = served_name(self.url(cell), deadline)
                    reason = complete(self.url(cell), deadline, model)
                except ProbeError as error:
                    reason = str(error)
            found.append(
                {
                    "cell": cell,
                    "healthy": healthy,
                    "drained": drained,
                    "requests": self.requests(cell),
                    "model": model,
                    "reason": reason,
                }
            )
        return found


def served_name(url: str, deadline: float) -> str:
    """The name of the model that a cell serves; a router does not know it."""
    answer = Client(url).call("/v1/models", deadline=deadline)
    if answer.status != 200:
        raise ProbeError("refused", f"status {answer.status}")  # its text may repeat a key
    models = _openai_answers.models(answer)
    if not models:
        raise ProbeError("no-model", "it serves no model")
    return models[0].id


def complete(url: str, deadline: float, model: str) -> str:
    """Ask for one completion. Returns why there is none, empty if there is.

    Health alone is not enough: it is answered without a key, and a wrong one shows only here.
    """
    client = Client(url)
    try:
        body = {**_TRY, "model": model}
        answer = client.call("/v1/chat/completions", body, deadline=deadline)
        if answer.status != 200:
            return f"status {answer.status}"
        _openai_answers.reply_of(answer)
    except ProbeError as error:
        return str(error)
    return ""


def judge(cells: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """What forbids to call the router ready, and what only has to be told.

    One dead cell is told: the others serve. None, or one that answers health and nothing else, is
    refused, before a user meets it.
    """
    problems = [
        f"{one['cell']} is healthy and answers no completion ({one['reason']}); is its key right? "
        "Run the playbook router again after the playbook site of that cell"
        for one in cells
        if one["reason"]
    ]
    warnings = [
        f"{one['cell']} is drained: it gets no requests until the playbook upgrade or the module "
        "router_cell brings it back"
        for one in cells
        if one["drained"]
    ]
    warnings += [
        f"{one['cell']} does not answer yet; the router takes it when it does"
        for one in cells
        if not one["healthy"] and not one["drained"]
    ]
    if not any(one["healthy"] and not one["reason"] for one in cells):
        problems.append("no cell answers; run the playbook status for each of them")
    return problems, warnings


# --- the service ----------------------------------------------------------------------------------


class Service:
    """The unit of the router on this node.

    Args:
        run: runs a command there, for a bounded time.
        root: its root directory.
    """

    def __init__(self, run: Runner, root: str = "/") -> None:
        self._run = run
        self._root = root

    def needs(self, version: str) -> tuple[list[str], bool]:
        """Packages that are missing to install that version, and whether it is missing itself."""
        record = f"site-packages/sglang_router-{version}.dist-info/RECORD"
        missing = not self._any(f"{self._folder(version)}/lib/python3*", record)
        packages = [
            name
            for name, (folders, file) in _NEEDED.items()
            if missing and not self._any(folders, file)
        ]
        return packages, missing

    def _any(self, folders: str, file: str) -> bool:
        base, _slash, last = folders.rpartition("/")
        try:
            names = os.listdir(self._path(base))
        except OSError:
            return False
        begin = last.rstrip("*")
        same = [
            name for name in names if name == last or (last != begin and name.startswith(begin))
        ]
        return any(os.path.exists(self._path(f"{base}/{name}/{file}")) for name in same)

    def plan(self, params: Mapping[str, Any]) -> list[str]:
        """What is to be done so that the router runs as described; empty if it does."""
        return self._plan(params)[0]

    def _plan(self, params: Mapping[str, Any]) -> tuple[list[str], dict[str, tuple[int, str]]]:
        files = self._files(params)
        different = [path for path, wanted in files.items() if self._read(path) != wanted]
        done = ask_states(self._run, [_router_settings.UNIT_NAME])
        if done.rc != 0:
            raise RouterError(f"systemctl show: {done.complaint}")
        unit = read_states(done.out, [_router_settings.UNIT_NAME])[_router_settings.UNIT_NAME]
        name = _router_settings.UNIT_NAME
        actions = [f"write {path}" for path in different]
        link = self._linked() != self._folder(params["version"])
        if link:
            actions.append(f"use version {params['version']}")
        if not os.path.lexists(self._path(_router_settings.WANTED)):
            actions.append(f"systemctl --root=/ enable {name}")
        if unit.known and _router_settings.UNIT in different:
            actions.append("systemctl daemon-reload")
        before = (self._read(_router_run.SETTINGS) or (0, ""))[1]
        text = files[_router_run.SETTINGS][1]
        others = [path for path in different if path != _router_run.SETTINGS]
        if not unit.active:
            actions.append(f"systemctl start {name}")
        elif (
            others
            or link
            or (before != text and not _router_settings.only_cells_differ(before, text))
        ):
            actions.append(f"systemctl restart {name}")
        elif before != text:
            actions.append("tell the router its cells")
        return actions, {path: files[path] for path in different}

    def apply(self, params: Mapping[str, Any], patience: float) -> list[str]:
        """Do it. Returns what was done.

        Raises:
            RouterError: it cannot be, or the router does not answer then.
            OSError: a file cannot be written.
        """
        actions, different = self._plan(params)
        if "systemctl daemon-reload" in actions:
            ranks, reason = serving(self._run)
            if ranks or reason:
                raise RouterError(
                    "the unit of the router has to change, which makes systemd read its units "
                    "again and takes the GPU from a running container, and "
                    f"{ranks[0] + ' serves' if ranks else reason}. Stop the ranks of this host "
                    "first"
                )
        for path, (mode, text) in different.items():
            write_whole(self._path(path), text, mode)
        for action in actions:
            if action.startswith("systemctl "):
                done = self._run(action.split())
                if done.rc != 0:
                    raise RouterError(f"{action}: {done.complaint}; look at: {_JOURNAL}")
            elif action.startswith("use version "):
                self._link(self._folder(params["version"]))
        api = Api(params["port"])
        if actions and not until(lambda: self._answers(api), patience):
            raise RouterError(
                f"the router does not answer on port {params['port']} after {patience:g} s; "
                f"look at: {_JOURNAL}"
            )
        if "tell the router its cells" in actions:
            wanted = {_router_settings.worker_url(port) for port in params["cells"].values()}
            known = set(api.workers())
            for url in sorted(known - wanted):
                api.remove(url)
            for url in sorted(wanted - known):
                api.add(url)
        return actions

    @staticmethod
    def _answers(api: Api) -> bool:
        try:
            api.workers()
        except RouterError:
            return False
        return True

    def absent(self, check: bool = False) -> list[str]:
        """No router: unit, settings and programs go."""
        name = _router_settings.UNIT_NAME
        done = ask_states(self._run, [name])
        if done.rc != 0:
            raise RouterError(f"systemctl show: {done.complaint}")
        actions = []
        if read_states(done.out, [name])[name].active:
            actions.append(f"systemctl stop {name}")
        if os.path.lexists(self._path(_router_settings.WANTED)):
            actions.append(f"systemctl --root=/ disable {name}")
        places = [
            _router_settings.UNIT,
            _router_settings.PROGRAM,
            _router_settings.PROGRAMS,
            os.path.dirname(_router_run.SETTINGS),
        ]
        removed = [place for place in places if os.path.lexists(self._path(place))]
        actions += [f"remove {place}" for place in removed]
        if check:
            return actions
        for action in actions:
            if action.startswith("systemctl "):
                done = self._run(action.split())
                if done.rc != 0:
                    raise RouterError(f"{action}: {done.complaint}")
        for place in map(self._path, removed):
            if os.path.isdir(place):
                shutil.rmtree(place)
            else:
                os.unlink(place)
        return actions

    def _files(self, params: Mapping[str, Any]) -> dict[str, tuple[int, str]]:
        return {
            _router_settings.PROGRAM: (0o644, inspect.getsource(_router_run)),
            _router_run.SETTINGS: (0o644, _router_settings.settings_text(params)),
            _router_settings.UNIT: (0o644, _router_settings.unit()),
        }

    @staticmethod
    def _folder(version: str) -> str:
        return f"{_router_settings.PROGRAMS}/{version}"

    def _linked(self) -> str:
        try:
            return os.readlink(self._path(_router_settings.CURRENT))
        except OSError:
            return ""

    def _link(self, folder: str) -> None:
        place = self._path(_router_settings.CURRENT)
        aside = f"{place}.new"
        if os.path.lexists(aside):
            os.unlink(aside)
        os.symlink(folder, aside)
        os.replace(aside, place)

    def _path(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))

    def _read(self, path: str) -> tuple[int, str] | None:
        place = self._path(path)
        try:
            with open(place, encoding="utf-8", errors="replace") as stream:
                return os.stat(place).st_mode & 0o777, stream.read()
        except OSError:
            return None
