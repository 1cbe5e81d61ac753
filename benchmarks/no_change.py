# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run of site.yml costs that changes nothing, as a multiple of `ansible -m setup`.

``python -m benchmarks.no_change`` makes a container lab for each of ``--cells``, serves from it
with the stand-ins of the lab, and removes it. The first run takes the nodes from bare to serving
and tells the time from the cell's answer to the end of the run. Then setup and site.yml are run in
turns on the same hosts, so that what else the machine does hits both; medians are compared. Cells
of four and eight hosts tell the growth.

Writes no_change.json and no_change.svg into ``--results``, where cells that were measured before
and are not now stay; ends with 1 where a bar is missed, and where a run changed something.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import bars, machine
from lab import spec

ROOT = Path(__file__).resolve().parent.parent
BAR = 15.0  # times setup, for the cell of make demo
BAR_AFTER_READY = 20.0  # seconds
BAR_CELL = "ring-4"
CELLS = (BAR_CELL, "switch-4", "switch-8")
READY = "Wait until the cell has answered"


def call(command: list[str], stages: Path | None = None) -> tuple[float, dict[str, Any]]:
    """Seconds of one command, and what the callback noted; stops where it fails."""
    env = dict(os.environ)
    if stages:
        plugins = str(ROOT / "benchmarks/callback_plugins")
        env |= {"ANSIBLE_CALLBACK_PLUGINS": plugins, "ANSIBLE_CALLBACKS_ENABLED": "stages"}
        env["SPARKFLEET_STAGES"] = str(stages)
    begun = time.monotonic()
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    took = time.monotonic() - begun
    if done.returncode:
        sys.exit(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:].decode()}"
        )
    return took, json.loads(stages.read_text(encoding="utf-8")) if stages else {}


def shares(told: dict[str, Any]) -> dict[str, float]:
    """Seconds of each stage; the last ends with the run."""
    ends = [begun for _name, begun in told["stages"][1:]] + [told["seconds"]]
    found: dict[str, float] = {}
    for (name, begun), end in zip(told["stages"], ends, strict=True):
        found[name] = round(found.get(name, 0) + end - begun, 2)
    return found


def measure(cell: str, lab_name: str, rounds: int) -> dict[str, Any]:
    """One cell, named by its topology and number of hosts, in a lab of its own."""
    topology, hosts = cell.split("-")
    lab = [sys.executable, "-m", "lab", "--name", f"{lab_name}-{cell}"]
    try:
        call([*lab, "up", "--bare", "--cabling", topology, "--hosts", hosts])
        call([*lab, "standin"])
        made = spec.load(f"{lab_name}-{cell}")
        assert made is not None
        inventory = ["-i", str(made.state / "inventory.yml")]
        site = ["ansible-playbook", "site.yml", *inventory, "-e", f"@{made.state / 'standin.yml'}"]
        setup = ["ansible", "sparks", *inventory, "-m", "setup"]
        stages = made.state / "stages.json"
        took, started = call(site, stages)
        print(f"{cell}: from bare to serving {took:.0f} s", flush=True)
        setups, sites, parts, changed = [], [], [], 0
        for number in range(rounds):
            setups.append(round(call(setup)[0], 2))
            took, told = call(site, stages)
            sites.append(round(took, 2))
            parts.append(shares(told))
            changed += sum(host["changed"] for host in told["hosts"].values())
            print(
                f"{cell}, round {number + 1}: setup {setups[-1]} s, site.yml {sites[-1]} s",
                flush=True,
            )
        found = machine()
    finally:
        call([*lab, "down"])
    return {
        "machine": found,
        "hosts": int(hosts),
        "topology": topology,
        "multiple": round(statistics.median(sites) / statistics.median(setups), 1),
        "setup_seconds": setups,
        "site_seconds": sites,
        "tasks": told["tasks"],
        "changed": changed,
        "stage_seconds": {
            name: round(statistics.median(run[name] for run in parts), 2) for name in parts[0]
        },
        "after_ready_seconds": round(started["seconds"] - started["ended"][READY], 1),
    }


def missed(cells: dict[str, dict[str, Any]]) -> list[str]:
    """Sentences about bars that are not met, and about runs that changed something."""
    bad = []
    for name, cell in cells.items():
        if cell["changed"]:
            bad.append(f"{name}: {cell['changed']} tasks changed something")
        if name == BAR_CELL and cell["multiple"] > BAR:
            bad.append(f"{name}: {cell['multiple']} times setup, bar {BAR:g}")
        if name == BAR_CELL and cell["after_ready_seconds"] > BAR_AFTER_READY:
            after = cell["after_ready_seconds"]
            bad.append(f"{name}: {after} s after ready, bar {BAR_AFTER_READY:g} s")
    return bad


def main() -> int:
    """Measure, keep, print and judge."""
    lab = os.environ.get("LAB_NAME") or "bench"
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cells", nargs="+", default=CELLS, metavar="TOPOLOGY-HOSTS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=ROOT / ".cache/benchmarks")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    path = options.results / "no_change.json"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"] if path.exists() else {}
    for cell in options.cells:
        cells[cell] = measure(cell, lab, options.rounds)
        result = {"bar_multiple": BAR, "bar_after_ready_seconds": BAR_AFTER_READY, "cells": cells}
        path.write_text(f"{json.dumps(result, indent=1)}\n", encoding="utf-8")
    print(path.read_text(encoding="utf-8"))
    first = next(iter(cells))
    rows = [(stage, took, f"{took:.1f} s") for stage, took in cells[first]["stage_seconds"].items()]
    bars(f"A run that changes nothing, {first}", rows, options.results / "no_change.svg")
    bad = missed(cells)
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
