# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run of site.yml costs that changes nothing, as a multiple of `ansible -m setup`.

``python -m benchmarks.no_change`` needs a lab that serves, as `make demo` leaves it (LAB_NAME).
Both are run in turns on the same hosts, so that what else the machine does hits both; medians are
compared. Before that the cell is stopped once and started by site.yml, for the time from its
answer to the end of the run. Writes no_change.json and no_change.svg into ``--results``; ends with
1 where a bar is missed, and where a run that should change nothing changed something.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import bars, machine

ROOT = Path(__file__).resolve().parent.parent
INVENTORY = "inventories/lab.yml"
BAR = 15.0  # times setup
BAR_AFTER_READY = 20.0  # seconds
READY = "Wait until the cell has answered"


def ansible(command: list[str], stages: Path | None = None) -> tuple[float, dict[str, Any]]:
    """Seconds of one command, and what the callback noted; stops where it fails."""
    env = dict(os.environ)
    if stages:
        plugins = str(ROOT / "benchmarks/callback_plugins")
        env |= {"ANSIBLE_CALLBACK_PLUGINS": plugins, "ANSIBLE_CALLBACKS_ENABLED": "stages"}
        env["SPARKFLEET_STAGES"] = str(stages)
    begun = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    took = time.monotonic() - begun
    if done.returncode:
        sys.exit(
            f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:].decode()}"
        )
    return took, json.loads(stages.read_text(encoding="utf-8")) if stages else {}


def shares(told: dict[str, Any]) -> dict[str, float]:
    """Seconds of each play; the last ends with the run."""
    ends = [begun for _name, begun in told["plays"][1:]] + [told["seconds"]]
    found: dict[str, float] = {}
    for (name, begun), end in zip(told["plays"], ends, strict=True):
        found[name] = round(found.get(name, 0) + end - begun, 2)
    return found


def measure(variables: str, rounds: int) -> dict[str, Any]:
    """A start, then rounds of setup and of site.yml in turns."""
    site = ["ansible-playbook", "site.yml", "-i", INVENTORY, "-e", f"@{variables}"]
    stop = ["ansible-playbook", "playbooks/stop.yml", "-i", INVENTORY, "-e", f"@{variables}"]
    setup = ["ansible", "sparks", "-i", INVENTORY, "-m", "setup"]
    with tempfile.TemporaryDirectory() as directory:
        stages = Path(directory) / "stages.json"
        ansible(stop)
        _took, started = ansible(site, stages)
        after = round(started["seconds"] - started["ended"][READY], 1)
        setups, sites, plays, changed = [], [], [], 0
        for number in range(rounds):
            setups.append(round(ansible(setup)[0], 2))
            took, told = ansible(site, stages)
            sites.append(round(took, 2))
            plays.append(shares(told))
            changed += sum(host["changed"] for host in told["hosts"].values())
            print(f"round {number + 1}: setup {setups[-1]} s, site.yml {sites[-1]} s", flush=True)
    multiple = statistics.median(sites) / statistics.median(setups)
    return {
        "machine": machine(),
        "hosts": len(told["hosts"]) - 1,  # without localhost
        "bar_multiple": BAR,
        "multiple": round(multiple, 1),
        "setup_seconds": setups,
        "site_seconds": sites,
        "tasks": told["tasks"],
        "changed": changed,
        "stage_seconds": {
            name: round(statistics.median(run[name] for run in plays), 2) for name in plays[0]
        },
        "bar_after_ready_seconds": BAR_AFTER_READY,
        "after_ready_seconds": after,
    }


def main() -> int:
    """Measure, keep, print and judge."""
    lab = os.environ.get("LAB_NAME") or "lab"
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--variables", default=f"/var/lib/sparkfleet-lab/{lab}/standin.yml")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=ROOT / ".cache/benchmarks")
    options = parser.parse_args()
    result = measure(options.variables, options.rounds)
    options.results.mkdir(parents=True, exist_ok=True)
    rows = [(name, took, f"{took:.1f} s") for name, took in result["stage_seconds"].items()]
    setup = statistics.median(result["setup_seconds"])
    rows.insert(0, ("for comparison: setup", setup, f"{setup:.1f} s"))
    bars("A run that changes nothing, by stage", rows, options.results / "no_change.svg")
    text = json.dumps(result, indent=1)
    (options.results / "no_change.json").write_text(f"{text}\n", encoding="utf-8")
    print(text)
    bad = []
    if result["changed"]:
        bad.append(f"{result['changed']} tasks changed something")
    if result["multiple"] > BAR:
        bad.append(f"{result['multiple']} times setup, bar {BAR:g}")
    if result["after_ready_seconds"] > BAR_AFTER_READY:
        bad.append(f"{result['after_ready_seconds']} s after ready, bar {BAR_AFTER_READY:g} s")
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
