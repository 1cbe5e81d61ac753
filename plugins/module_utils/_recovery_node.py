# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What a node can tell of its rank when a cell is judged, and the two things it can do about it."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils import _rank, _rank_unit, _roce_gid
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    Missing,
    Runner,
    ask_all,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_answers import reply_of
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_http import (
    Client,
    ProbeError,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_node import (
    boot_facts,
    container_facts,
    unit_facts,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_settings import unit_name
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import write_whole

FOLDER = "/var/lib/sparkfleet/recovery"
RECORD, STATE = f"{FOLDER}/{{cell}}.json", f"{FOLDER}/{{cell}}-state.json"
_HEALTH_SECONDS = 5.0
_TOKENS = re.compile(
    r"^sglang:(?:prompt|generation)_tokens_total(?:\{[^}]*\})? ([0-9.eE+]+)$", re.MULTILINE
)
_RUNNING = re.compile(r"^sglang:num_running_reqs(?:\{[^}]*\})? ([0-9.eE+]+)$", re.MULTILINE)


def evidence(
    cell: str,
    run: Runner,
    *,
    fatals: Sequence[Mapping[str, Any]] = (),
    canary: Mapping[str, Any] | None = None,
    disk_least: int = 0,
    deadline: float = 30,
    root: str = "/",
) -> dict[str, Any]:
    """What this node knows of its rank; reads, and asks the engine, changes nothing.

    Args:
        cell: whose rank it is.
        run: runs a command for a bounded time.
        fatals: what the log must not show.
        canary: what ``ask`` returned on the head, None elsewhere.
        disk_least: bytes that have to be free where the rank writes.
        deadline: in seconds, for what may hang on a dead mount.
        root: where the file system of the node begins.

    Returns:
        `installed`, `rank`, `unit` (state, exit_status), `container` (whether it runs), `stage` (of
        its starter, empty where it was not started since the node booted), `doing` (how far the
        boot is), `ready` (whether the engine has come up), `started` and `ended` (seconds of the
        epoch, None if not), `problems` (of its starter), `fatals`, `silent` (why the engine does
        not answer at all), `causes` (what keeps it from starting: code, message and, of a link, the
        host at its other end as `peer`), `notes`, `gids` (slots by HCA, `start` and `now`),
        `canary`.
    """
    unit = unit_facts(cell, run)
    facts: dict[str, Any] = {
        "installed": False,
        "rank": None,
        "unit": {"state": unit["state"], "exit_status": unit["exit_status"]},
        "container": False,
        "stage": "",
        "doing": "",
        "ready": False,
        "started": None,
        "ended": None,
        "problems": [],
        "fatals": [],
        "silent": "",
        "causes": [],
        "notes": [],
        "gids": {"start": {}, "now": {}},
        "canary": dict(canary) if canary is not None else None,
    }
    settings = read_json(_below(root, _rank.SETTINGS.format(cell=cell)))
    if settings is None or not unit["known"]:
        return facts
    told = read_json(_below(root, _rank.STATE.format(cell=cell))) or {}
    boot = boot_facts(settings, run, proofs=[], fatals=fatals, root=root)
    up = unit["active"]
    facts.update(
        installed=True,
        rank=settings["rank"],
        container=container_facts(settings, run)["running"],
        stage=boot["status"],
        doing=boot["log"]["stage"]["name"] if boot["status"] == "running" else boot["status"],
        ready=up and boot["log"]["stage"]["name"] == "ready",
        started=told.get("started"),
        ended=boot["ended"],
        problems=boot["problems"],
        # Of a start that was stopped on purpose, what the log says is past.
        fatals=[
            {name: fatal[name] for name in ("name", "line", "cause", "remedy")}
            for fatal in boot["log"]["fatals"]
            if not fatal["weak"] and boot["status"] != "stopped"
        ],
        silent=_silent(settings) if up and boot["status"] == "running" else "",
    )
    questions = {
        "the inputs": lambda: [one._asdict() for one in _rank.check(settings, root)],
        "the disk": lambda: _disk(settings, root, disk_least),
        "the links": lambda: _links(settings, root),
    }
    for name, answer in ask_all(questions, deadline).items():
        if isinstance(answer, Missing):
            message = f"found no answer about {name}: {answer}; next: dmesg, and findmnt -t nfs4"
            facts["causes"].append({"code": "silent", "message": message})
        elif name == "the links":
            facts["causes"] += answer["causes"]
            facts["gids"] = {"start": told.get("gids") or {}, "now": answer["slots"]}
        else:
            facts["causes"] += answer
    if up:
        facts["notes"] += _drift(**facts["gids"])
    return facts


def _below(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))


def _silent(settings: Mapping[str, Any]) -> str:
    """An engine that is stopped accepts connections and says nothing; one that boots refuses."""
    try:
        client = Client(f"http://127.0.0.1:{settings['engine_port']}")
        client.call("/health", deadline=_HEALTH_SECONDS)
    except ProbeError as error:
        return str(error) if error.cause == "no-answer" else ""
    return ""


def _disk(settings: Mapping[str, Any], root: str, least: int) -> list[dict[str, str]]:
    """Logs, what the engine keeps and our own state have somewhere to go."""
    places = [settings["log"]["path"], f"{FOLDER}/any"]
    places = [os.path.dirname(path) for path in places]
    places += [one["source"] for one in settings["container"]["mounts"] if not one["read_only"]]
    found: dict[int, dict[str, str]] = {}
    for place in places:
        path = _below(root, place)
        while not os.path.exists(path):
            path = os.path.dirname(path)
        free = os.statvfs(path).f_bavail * os.statvfs(path).f_frsize
        if free < least:
            message = (
                f"found {free >> 20} MiB free below {place}, expected {least >> 20}; "
                f"next: du -xh --max-depth=2 {place} | sort -h, and remove what is not needed"
            )
            found.setdefault(os.stat(path).st_dev, {"code": "disk-full", "message": message})
    return list(found.values())


def _links(settings: Mapping[str, Any], root: str) -> dict[str, Any]:
    """The GID of every HCA as a start would choose it now, or what keeps it from that."""
    gid = settings["gid"]
    if not gid:
        return {"causes": [], "slots": {}}
    found = _roce_gid.roce_gids(
        _below(root, "sys"), gid["hcas"], gid.get("expected") or None, gid.get("policy", "auto")
    )
    peers = gid.get("peers", {})
    causes = []
    for problem in found["problems"]:
        peer = peers.get(problem["hca"] or "")
        where = f" (its cable goes to {peer})" if peer else ""
        who = f"{problem['hca']}: " if problem["hca"] else ""
        cause = {"code": problem["code"], "message": f"{who}{problem['message']}{where}"}
        causes.append({**cause, "peer": peer.split()[0] if peer else None})
    chosen = [device for device in found["devices"] if device["selected"]]
    return {"causes": causes, "slots": {one["hca"]: one["gid_index"] for one in chosen}}


def _drift(start: Mapping[str, int | None], now: Mapping[str, int | None]) -> list[str]:
    """Slots that moved since the start. What is connected keeps its entry until the next one."""
    return [
        f"the GID of {hca} moved from slot {start[hca]} to {now[hca]}, for its next start"
        for hca in start
        if now.get(hca) is not None and now[hca] != start[hca]
    ]


# --- the canary -----------------------------------------------------------------------------------


def ask(port: int, model: str, deadline: float, tries: int = 1) -> dict[str, Any]:
    """Ask the head for a real completion of one token: what `/health` says proves little.

    Returns:
        `answered`, `seconds` (of an answer, else None), `detail`, and `counter`: how many tokens
        the engine has gone through, None where it tells no metrics. While that moves, an engine
        that is late is busy.
    """
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say yes."}],
        "max_tokens": 1,
        "temperature": 0,
    }
    client = Client(f"http://127.0.0.1:{port}")
    detail = ""
    for _attempt in range(tries):
        begun = time.monotonic()
        try:
            reply_of(client.call("/v1/chat/completions", body, deadline=deadline))
        except ProbeError as error:
            detail = str(error)
            if error.cause != "no-answer":
                break  # it will say the same again at once
        else:
            seconds = round(time.monotonic() - begun, 3)
            told = f"answered in {seconds:.2f} s"
            return {"answered": True, "seconds": seconds, "detail": told, "counter": None}
    return {"answered": False, "seconds": None, "detail": detail, "counter": _counter(client)}


def _counter(client: Client) -> float | None:
    try:
        text = client.call("/metrics", deadline=_HEALTH_SECONDS).text
    except ProbeError:
        return None
    found = [float(value) for value in _TOKENS.findall(text)]
    running = [float(value) for value in _RUNNING.findall(text)]
    return sum(found) if found and sum(running) > 0 else None


# --- what can be done -----------------------------------------------------------------------------


def stop(cell: str, run: Runner) -> str:
    """Stop the rank. Returns why that failed, empty if it did not."""
    done = run(["systemctl", "stop", unit_name(cell)])
    run(["systemctl", "reset-failed", unit_name(cell)])  # fails where there is nothing to forget
    return "" if done.rc == 0 else done.complaint


def start(cell: str, run: Runner) -> str:
    """Start the rank, and wait until its container runs. Returns why that failed."""
    try:
        _rank_unit.start(cell, run)
    except _rank_unit.UnitError as error:
        return str(error)
    return ""


# --- files ----------------------------------------------------------------------------------------


def read_json(path: str) -> dict[str, Any] | None:
    """A file of ours, None where there is none that can be read."""
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Write it as a whole and to the disk. Raises OSError."""
    write_whole(path, json.dumps(value, indent=1, sort_keys=True) + "\n", 0o644)
