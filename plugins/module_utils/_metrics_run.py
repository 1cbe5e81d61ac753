# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Ask a node all that its metrics tell, and write them where node_exporter reads.

It runs every half minute as ``sparkfleet-metrics.service``. Whatever may hang is asked in a child
with a deadline, so a wedged card or a silent engine costs a metric and never the others.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils import _metrics as metrics
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _rank, _roce_gid
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    Missing,
    Runner,
    ask_all,
    run_command,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._metrics import Sample
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import write_whole
from ansible_collections.sparkfleet.cluster.plugins.module_utils._systemd import (
    ask_states,
    read_states,
)

SETTINGS = "/etc/sparkfleet/metrics.json"
MEMORY = "/var/lib/sparkfleet/metrics/memory.json"
PAGE, ENGINE_PAGE = "sparkfleet.prom", "sparkfleet_engine.prom"
RECOVERY = "/var/lib/sparkfleet/recovery"
_DEADLINE = 10.0  # seconds for all but the canary
_LOG_BYTES = 4 << 20
_PAGE_BYTES = 4 << 20
_DISCARD = 9  # the port that nobody listens on; what counts is who is asked for the address


class Collector:
    """One run on a node.

    Args:
        settings: of the role monitoring: `cell`, `ports` of the plan, `mtu`, `rate_gbps`,
            `canary_timeout` and `canary_limit` (s), `folder` that node_exporter reads.
        run: runs a command for a bounded time.
        root: where the file system of the node begins.
        now: seconds of the epoch.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        run: Runner,
        root: str = "/",
        now: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._run = run
        self._root = root
        self._now = now
        self._rank = self._json(_rank.SETTINGS.format(cell=settings["cell"]))
        self._told = self._json(_rank.STATE.format(cell=settings["cell"]))
        self._memory = self._json(MEMORY)

    def collect(self) -> None:
        """Write the pages, each as a whole.

        Raises:
            OSError: they cannot be written.
        """
        unit = self._unit()
        questions: dict[str, Callable[[], Any]] = {"gids": self._gids, "peers": self._neighbours}
        if self._rank:
            questions["shards"] = self._shards
        serves = bool(self._rank.get("head")) and unit["active"]
        if serves:
            # Heads alone need HTTP, whose import takes a third of the time of a run.
            from ansible_collections.sparkfleet.cluster.plugins.module_utils import _openai_http

            self._client = _openai_http.Client(f"http://127.0.0.1:{self._rank['engine_port']}")
            questions |= {"canary": self._canary, "engine": self._engine}
        deadline = max(_DEADLINE, self._settings["canary_timeout"] + 2)
        answers = ask_all(questions, deadline)
        known = {name: one for name, one in answers.items() if not isinstance(one, Missing)}
        samples = self._samples(unit, known, serves)
        samples += [
            Sample("sparkfleet_question_failed", name not in known, {"question": name})
            for name in questions
        ]
        samples.append(Sample("sparkfleet_last_run_timestamp_seconds", self._now()))
        write_whole(self._place(MEMORY), json.dumps(self._memory), 0o644)
        self._put(ENGINE_PAGE, known.get("engine") or "")
        self._put(PAGE, metrics.render(samples))

    def _samples(
        self, unit: Mapping[str, bool], known: Mapping[str, Any], serves: bool
    ) -> list[Sample]:
        given, ports = self._settings, self._settings["ports"]
        started = self._told.get("started")
        found = []
        if "gids" in known:
            found += metrics.link_samples(
                ports, known["gids"], mtu=given["mtu"], rate_gbps=given["rate_gbps"]
            )
            if unit["active"] and started is not None:
                found += metrics.drift_samples(ports, known["gids"], started, self._memory)
        if "peers" in known:
            found += metrics.cable_samples(ports, known["peers"])
        if self._rank:
            found += metrics.rank_samples(self._rank, unit, self._told, self._memory)
        if "shards" in known:
            found += metrics.shard_samples(self._rank, known["shards"])
        if serves:
            found += metrics.canary_samples(
                known.get("canary"), given["canary_limit"], started, self._memory
            )
            found += metrics.pool_samples(self._pool(started))
        if self._rank.get("head"):
            cell = given["cell"]
            found += metrics.recovery_samples(
                self._json(f"{RECOVERY}/{cell}.json"),
                self._json(f"{RECOVERY}/{cell}-state.json"),
                self._now(),
            )
        return found

    # --- questions -----------------------------------------------------------------------------

    def _unit(self) -> dict[str, bool]:
        name = f"sparkfleet-rank@{self._settings['cell']}.service"
        done = ask_states(self._run, [name])
        state = read_states(done.out if done.rc == 0 else "", [name])[name]
        return {"active": state.active, "enabled": state.enabled, "failed": state.failed}

    def _gids(self) -> list[dict[str, Any]]:
        wishes = [
            {name: port[name] for name in ("hca", "netdev", "subnet")}
            for port in self._settings["ports"]
        ]
        found = _roce_gid.roce_gids(os.path.join(self._root, "sys"), expected=wishes)
        names = ("hca", "state", "netdev_mtu", "rate_gbps", "gid_index")
        return [{name: device[name] for name in names} for device in found["devices"]]

    def _neighbours(self) -> list[dict[str, Any]]:
        for port in self._settings["ports"]:
            if port.get("peer"):
                with contextlib.suppress(OSError), _udp(port) as udp:
                    udp.sendto(b"", (port["peer"]["address"], _DISCARD))
        time.sleep(0.2)  # an answer takes far less
        done = self._run(["ip", "-json", "neigh", "show"])
        found: list[dict[str, Any]] = json.loads(done.out)
        return found

    def _shards(self) -> list[str]:
        # Only what is on the disk of the node: the checkpoint may be on a server that is gone.
        mounts = [
            mount
            for mount in self._rank["container"]["mounts"]
            if self._rank["engram"] and mount["target"] == self._rank["engram"]["path"]
        ]
        narrow = {**self._rank, "gpu": "none", "container": {"mounts": mounts}}
        return [problem.code for problem in _rank.check(narrow, self._root)]

    def _canary(self) -> float:
        begin = time.monotonic()
        answer = self._client.call(
            "/v1/chat/completions",
            {
                "model": self._argument("--served-model-name") or "default",
                "messages": [{"role": "user", "content": "Say: here."}],
                "max_tokens": 1,
                "temperature": 0,
            },
            deadline=self._settings["canary_timeout"],
        )
        if answer.status != 200 or not (answer.document or {}).get("choices"):
            raise ValueError(f"status {answer.status}")
        return time.monotonic() - begin

    def _argument(self, name: str) -> str:
        """What the engine was given for an argument, empty for nothing."""
        words = [str(word) for word in self._rank["container"]["command"]]
        return words[words.index(name) + 1] if name in words[:-1] else ""

    def _engine(self) -> str:
        answer = self._client.call("/metrics", deadline=5)
        text = metrics.engine_page(answer.text) if answer.status == 200 else ""
        return text if len(text) < _PAGE_BYTES else ""

    def _pool(self, started: float | None) -> dict[str, Any]:
        """From the log of the boot, until it has told; afterwards from memory."""
        noted = self._memory.get("pool")
        if noted and noted["started"] == started:
            return dict(noted["pool"])
        # Needed once for each start.
        from ansible_collections.sparkfleet.cluster.plugins.module_utils import _engine_boot

        path = str(self._rank["log"]["path"])
        boot = _rank.boot_log(path)
        path = boot if os.path.exists(self._place(boot)) else path
        read = _engine_boot.read_log(self._place(path), 0, _LOG_BYTES)
        asked = self._argument("--max-total-tokens")
        found = _engine_boot.examine(read[0] if read else "", asked=int(asked or 0) or None)
        pool: dict[str, Any] = found["pool"]
        if pool["granted"] is not None:
            self._memory["pool"] = {"started": started, "pool": pool}
        return pool

    # --- files -----------------------------------------------------------------------------------

    def _place(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))

    def _json(self, path: str) -> dict[str, Any]:
        try:
            with open(self._place(path), encoding="utf-8") as stream:
                found = json.load(stream)
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def _put(self, name: str, text: str) -> None:
        path = os.path.join(self._place(self._settings["folder"]), name)
        if text:
            write_whole(path, text, 0o644)
        else:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _udp(port: Mapping[str, Any]) -> socket.socket:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, port["netdev"].encode())
    return udp


def main() -> int:
    """Returns the exit status."""
    try:
        with open(SETTINGS, encoding="utf-8") as stream:
            settings = json.load(stream)
        Collector(settings, lambda argv: run_command(argv, timeout=5)).collect()
    except (OSError, ValueError) as error:
        sys.stderr.write(f"metrics not written: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
