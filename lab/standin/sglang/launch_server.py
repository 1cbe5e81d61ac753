# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The program of a rank: ``python3 -m sglang.launch_server``, as the engine is started."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from datetime import datetime, timezone

from . import BANNER, api, contract, faults, proofs, rendezvous, settings


def say(line: str) -> None:
    """A line of the log, as the engine writes them: time, rank, text."""
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    rank = os.environ.get("NODE_RANK", "")
    print("\n".join(f"[{now} TP{rank}] {part}" for part in line.split("\n")), flush=True)


class Boot:
    """One start of a rank, stage by stage, with the fault that was asked for."""

    def __init__(self, given: settings.Settings, fault: faults.Fault) -> None:
        self._given = given
        self._fault = fault
        self._pace = float(given.environment.get("SPARKFLEET_STANDIN_STAGE_SECONDS", "0.3"))

    def enter(self, stage: str) -> None:
        """Begin a stage; the fault of that stage happens now."""
        if stage != self._fault.stage:
            return
        for line in self._fault.lines:
            say(line)
        if self._fault.ends is None:
            time.sleep(7 * 86400)
        if self._fault.ends is not None and self._fault.ends >= 0:
            sys.stdout.flush()
            os._exit(self._fault.ends)

    def prove(self, lines: Iterable[str]) -> None:
        for line in lines:
            if self._fault.changes != "no-proofs":
                say(line)
        time.sleep(self._pace)


def main() -> int:
    print(f"*** {BANNER} ***", flush=True)
    try:
        given = settings.read(sys.argv[1:], os.environ)
        fault = faults.chosen(os.environ, given.rank)
    except ValueError as error:
        print(f"launch_server.py: error: {error}", flush=True)
        return 2
    shown = ", ".join(f"{name.replace('-', '_')}={v!r}" for name, v in given.arguments.items())
    say(f"server_args=ServerArgs({shown})")  # with the key, as the real engine does
    boot = Boot(given, fault)

    findings, parts = contract.check(given)
    for finding in findings:
        say(str(finding))
    broken = [finding for finding in findings if finding.verdict == "refused"]
    if broken:
        say(f"RuntimeError: {len(broken)} point(s) of the contract are broken")
        return 1

    say("Init torch distributed begin.")
    boot.enter("rendezvous")
    wait = float(given.environment.get("SPARKFLEET_STANDIN_WAIT_SECONDS", "600"))
    try:
        group = rendezvous.meet(given, say, wait)
    except rendezvous.FailedError as error:
        say(f"RuntimeError: rendezvous failed: {error}")
        return 1
    # The first that goes takes all with it; os._exit, since the server's threads do not end.
    if given.nodes > 1:
        threading.Thread(target=_watch, args=[group], daemon=True).start()

    boot.enter("nccl")
    boot.prove(proofs.nccl(given))
    say("Init torch distributed ends.")
    say("Load weight begin.")
    boot.enter("load")
    boot.prove(proofs.load(parts))
    say("Load weight end.")
    boot.enter("engram")
    boot.prove(proofs.engram(parts, fault.changes != "not-packed"))
    boot.prove(proofs.adapters(given))
    boot.enter("pool")
    granted, lines = proofs.pool(given, fault.changes == "pool-clamped")
    boot.prove(lines)
    boot.enter("serve")
    try:
        server = api.Server(given, fault.changes)
    except OSError as error:
        say(f"error while attempting to bind on {given.text('host')}: {error.strerror}")
        return 1
    server.granted, server.step = granted, group.step
    signal.signal(signal.SIGTERM, lambda *_what: os._exit(0))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    boot.enter("ready")
    if given.rank == 0:
        server.ready.set()
        boot.prove(proofs.ready(given))
    else:
        say(f"Dummy health check server started at {given.text('host')}:{given.text('port')}")
    if fault.stage == "after-ready":
        time.sleep(5)
        boot.enter("after-ready")
    signal.pause()
    return 0


def _watch(group: rendezvous.Group) -> None:
    rank = group.serve()
    say(f"RuntimeError: connection closed by peer: rank {rank} is gone")
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
