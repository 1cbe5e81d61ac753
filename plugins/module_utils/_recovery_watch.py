# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The program that watches a cell from its head, and that its ranks obey.

It needs the standard library only and is installed on the node with what it imports:

    recovery.pyz look CELL    on the head: ask the cell, note how it is, and restart it if allowed
    recovery.pyz reach CELL   on the head: say which ranks the key does not reach
    recovery.pyz rank CELL    on a worker: what the head's key may do, and no more; the verb
                              (evidence, stop or start) is the command that ssh was asked to run
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from ansible_collections.sparkfleet.cluster.plugins.module_utils import _cell_lock, _recovery
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _recovery_node as node
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Runner, run_command

FOLDER = "/etc/sparkfleet/recovery"
SETTINGS = f"{FOLDER}/{{cell}}.json"
KEY, HOSTS = f"{FOLDER}/ssh/id_ed25519", f"{FOLDER}/ssh/known_hosts"
VERBS = ("evidence", "stop", "start")
_SSH_SECONDS = 5  # to find out that an address does not answer
_EVIDENCE_SECONDS = 90.0
_REPEAT = 60.0  # seconds after which an unchanged state is written again
_CHANGES = ("state", "action", "reasons", "failures", "restarts")

Say = Callable[[str], None]
T = TypeVar("T")


def print_line(line: str) -> None:
    """A line for the journal, a person, or the head."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Watch:
    """One look at a cell, and what follows from it.

    Args:
        settings: as the role ``recovery`` writes them: `cell`, `head`, `hosts` (in rank order
            `name` and the `addresses` it is reached at), `automatic`, `model`, `engine_port`,
            `canary_timeout` (s), `disk_least` (bytes), `fatals`, `limits`, `start_seconds` (how
            long a start or stop of a rank may take).
        run: runs a command for a bounded time.
        say: takes a line for the journal.
        root: where the file system of the node begins.
        now: the time, in seconds of the epoch.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        run: Callable[..., Any] = run_command,
        say: Say = print_line,
        root: str = "/",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._cell: str = settings["cell"]
        self._run = run
        self._say = say
        self._root = root
        self._now = now
        self._limits = _recovery.Limits(**settings["limits"])
        self._names = [host["name"] for host in settings["hosts"]]
        self._head = self._names[0]
        self._record_path = self._place(node.RECORD)
        self._state_path = self._place(node.STATE)
        self.complaints: list[str] = []  # of ssh; told when they are news

    def _place(self, path: str) -> str:
        return os.path.join(self._root, path.format(cell=self._cell).lstrip("/"))

    def look(self) -> dict[str, Any]:
        """Returns the state as it is written."""
        before = node.read_json(self._state_path) or {}
        record = node.read_json(self._record_path)
        canary = node.ask(
            self._settings["engine_port"],
            self._settings["model"],
            self._settings["canary_timeout"],
        )
        failures = 0
        if canary["answered"]:
            verdict = _recovery.SERVING  # and nobody is bothered with more questions
        else:
            # Without a key to them the other ranks are not asked.
            asked = self._names if self._settings["automatic"] else self._names[:1]
            found = self._everywhere(asked, lambda name: self._evidence(name, canary))
            ranks = {name: one for name, one in zip(asked, found, strict=True) if one is not None}
            if ranks[self._head]["ready"]:
                failures = int(before.get("failures", 0)) + 1
                if _moved(before.get("counter"), canary["counter"]):
                    failures = 1  # late, but at work: a long prompt is no death
            verdict = _recovery.judge(
                ranks,
                asked,
                record=record,
                now=self._now(),
                limits=self._limits,
                failures=failures,
                before=str(before.get("state", "")),
                held=self._held(),
            )
        pending = (record or {}).get("pending")
        if record and pending and not pending.get("hold") and verdict.state == "serving":
            record = _recovery.finish(record)
            self._keep(self._record_path, record)
        state = self._note(before, verdict, record, canary, failures)
        if self._settings["automatic"] and verdict.action == "restart":
            begun = self._restart(record, verdict)
            if begun:
                reasons = ["all ranks were told to stop and to start", *verdict.reasons]
                started = verdict._replace(state="waiting", action="wait", reasons=reasons)
                state = self._note(state, started, begun, canary, 0)
        return state

    def _held(self) -> str:
        """Who works on the cell; not for ever, since a run that breaks off cannot let go."""
        path = _cell_lock.file_of(self._cell, self._root)
        try:
            holder = _cell_lock.read(path)
            age = self._now() - os.stat(path).st_mtime
        except OSError:
            return ""
        if holder is None or not 0 <= age < self._limits.ready_timeout:
            return ""
        return f"{holder.owner} works on it: {holder.playbook}"

    @staticmethod
    def _everywhere(names: Sequence[str], act: Callable[[str], T]) -> list[T]:
        with ThreadPoolExecutor(max_workers=max(1, len(names))) as pool:
            return list(pool.map(act, names))

    def unreachable(self) -> list[str]:
        """The ranks that do not answer the key of the head."""
        names = self._names[1:]
        found = self._everywhere(names, lambda name: self._evidence(name, {}))
        return [name for name, one in zip(names, found, strict=True) if one is None]

    # --- ranks -----------------------------------------------------------------------------------

    def _evidence(self, name: str, canary: Mapping[str, Any]) -> dict[str, Any] | None:
        if name == self._head:
            return node.evidence(
                self._cell,
                functools.partial(self._run, timeout=60),
                fatals=self._settings["fatals"],
                canary=canary,
                disk_least=self._settings["disk_least"],
                root=self._root,
            )
        said = self._ssh(name, "evidence", _EVIDENCE_SECONDS)
        try:
            found = json.loads(said or "")
        except ValueError:
            return None
        return found if isinstance(found, dict) and "installed" in found else None

    def _ssh(self, name: str, verb: str, seconds: float) -> str | None:
        """What a worker answers at the first of its addresses that does, None if none does."""
        host = next(one for one in self._settings["hosts"] if one["name"] == name)
        for address in host["addresses"]:
            done = self._run(ssh_command(address, verb), timeout=seconds)
            if done.rc is not None and done.rc != 255:  # 255: ssh itself has failed
                return str(done.out)
            self.complaints.append(f"{name} at {address}: {done.complaint}")
        return None

    def _do(self, name: str, verb: str) -> str:
        """Stop or start a rank. Returns why that failed, empty if it did not."""
        seconds = float(self._settings["start_seconds"])
        if name == self._head:
            act = node.stop if verb == "stop" else node.start
            return act(self._cell, functools.partial(self._run, timeout=seconds))
        said = self._ssh(name, verb, seconds)
        return f"{name} cannot be reached" if said is None else said.strip()

    # --- what is done ----------------------------------------------------------------------------

    def _restart(
        self, record: Mapping[str, Any] | None, verdict: _recovery.Verdict
    ) -> dict[str, Any] | None:
        """The head down, workers down, workers up, the head up; the attempt is on disk first."""
        begun = _recovery.begin(
            record, self._now(), self._limits, who=_recovery.WATCH, reasons=verdict.reasons
        )
        if not self._keep(self._record_path, begun):
            return None
        count = f"{len(begun['attempts'])} of {self._limits.attempts}"
        self._say(f"starting the cell again, {count}: {'; '.join(verdict.reasons)}")
        workers = self._names[1:]
        failed = self._step("stop", [self._head]) or self._step("stop", workers)
        if not failed:
            failed = self._step("start", workers) or self._step("start", [self._head])
        done = _recovery.finish(begun)
        self._keep(self._record_path, done)
        return done

    def _step(self, verb: str, names: Sequence[str]) -> bool:
        """Whether something went wrong; what it was is seen by the next look, too."""
        told = self._everywhere(names, lambda name: self._do(name, verb))
        problems = [f"{name}: {text}" for name, text in zip(names, told, strict=True) if text]
        for problem in [*self.complaints, *problems] if problems else ():
            self._say(f"{verb}: {problem}")
        return bool(problems)

    # --- what is kept ----------------------------------------------------------------------------

    def _note(
        self,
        before: Mapping[str, Any],
        verdict: _recovery.Verdict,
        record: Any,
        canary: Mapping[str, Any],
        failures: int,
    ) -> dict[str, Any]:
        now = self._now()
        changed = verdict.state != before.get("state")
        state = {
            "format": _recovery.FORMAT,
            "cell": self._cell,
            "state": verdict.state,
            "since": now if changed else before.get("since", now),
            "checked": now,
            "action": verdict.action,
            "reasons": verdict.reasons,
            "remedy": verdict.remedy,
            "automatic": self._settings["automatic"],
            "failures": failures,
            "canary_seconds": canary["seconds"],
            "counter": canary["counter"],
            "restarts": (record or {}).get("total", 0),
            "open_until": (record or {}).get("open_until"),
        }
        news = any(state[name] != before.get(name) for name in _CHANGES)
        if changed:
            told = "; ".join(verdict.reasons) or canary["detail"]
            for line in [f"{self._cell} is {verdict.state}: {told}", *self.complaints]:
                self._say(line)
        if news or now - float(before.get("checked", 0)) >= _REPEAT or now < before["checked"]:
            self._keep(self._state_path, state)
        return state

    def _keep(self, path: str, value: Mapping[str, Any]) -> bool:
        try:
            node.write_json(path, value)
        except OSError as error:
            # Without a record nothing is restarted: the bound would be lost.
            self._say(f"{path} cannot be written: {error.strerror}; next: df -h {path}")
            return False
        return True


def _moved(before: float | None, now: float | None) -> bool:
    return before is not None and now is not None and now != before


def ssh_command(address: str, verb: str) -> list[str]:
    """Ask a worker with the key that can do nothing else, and only if it is the one known."""
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(_SSH_SECONDS),
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": HOSTS,
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "HostKeyAlgorithms": "ssh-ed25519",
        "LogLevel": "ERROR",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", "-F", "none", "-i", KEY, *words, f"root@{address}", verb]


# --- the program ----------------------------------------------------------------------------------


def obey(cell: str, verb: str, run: Callable[..., Any], say: Say) -> int:
    """On a worker: one verb of three. What went wrong with stop and start is printed."""
    if verb not in VERBS:
        say(f"refused: {verb!r} is none of {', '.join(VERBS)}")
        return 2
    settings = node.read_json(SETTINGS.format(cell=cell)) or {}
    runner: Runner = functools.partial(run, timeout=settings.get("start_seconds", 600))
    if verb == "evidence":
        found = node.evidence(
            cell,
            functools.partial(run, timeout=20),
            fatals=settings.get("fatals", ()),
            disk_least=settings.get("disk_least", 0),
        )
        say(json.dumps(found))
        return 0
    problem = node.stop(cell, runner) if verb == "stop" else node.start(cell, runner)
    if problem:
        say(problem)
    return 0


def main(arguments: Iterable[str]) -> int:
    """Returns the exit status."""
    words = list(arguments)
    if len(words) == 2 and words[0] == "rank":
        asked = os.environ.get("SSH_ORIGINAL_COMMAND", "")
        return obey(words[1], asked, run_command, print_line)
    if len(words) == 2 and words[0] in ("look", "reach"):
        path = SETTINGS.format(cell=words[1])
        settings = node.read_json(path)
        if settings is None:
            sys.stderr.write(f"{path} cannot be read; next: run the playbook recover\n")
            return 78
        watch = Watch(settings)
        if words[0] == "look":
            watch.look()
            return 0
        missing = watch.unreachable()
        for line in watch.complaints if missing else ():
            print_line(line)
        for name in missing:
            print_line(
                f"{name} does not answer the key of the watch; next: journalctl -u ssh there"
            )
        return 1 if missing else 0
    sys.stderr.write(__doc__ or "")
    return 2
