# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What planning costs from 4 to 1,024 hosts, in CPU seconds of one core.

``PYTHONPATH=collections python -m benchmarks.planning`` plans one fabric of all hosts, as a ring
and at a switch, and the launches of as many hosts in cells of eight. Each is done several times and
the fastest counts, since nothing makes a program faster than it is. Writes planning.json and
planning.svg into ``--results``; ends with 1 where a bar is missed.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import bars, machine
from tests.unit.fabrics import plan
from tests.unit.servings import serving

ROOT = Path(__file__).resolve().parent.parent
BAR = 2.0  # seconds for 1,024 hosts
SIZES = (4, 8, 16, 32, 64, 128, 256, 512, 1024)


def cost(act: Callable[[], object], runs: int) -> float:
    """CPU seconds of the fastest of several runs."""
    times = []
    for _run in range(runs):
        begun = time.process_time()
        act()
        times.append(time.process_time() - begun)
    return round(min(times), 4)


def launches(hosts: int) -> None:
    """The launches of this many hosts in cells of eight; of the four, in one cell."""
    for _cell in range(max(1, hosts // 8)):
        serving("dsv41-tp8" if hosts >= 8 else "dsv41-tp4", min(hosts, 8), "switch")


def measure(runs: int) -> dict[str, Any]:
    """CPU seconds by kind of plan and number of hosts."""
    pool = "10.0.0.0/8"
    kinds: dict[str, Callable[[int], object]] = {
        "fabric, ring": lambda hosts: plan(hosts, "ring", pool=pool),
        "fabric, switch": lambda hosts: plan(hosts, "switch", pool=pool, prefix_length=20),
        "launches, cells of 8": launches,
    }
    found = {
        kind: {str(size): cost(functools.partial(act, size), runs) for size in SIZES}
        for kind, act in kinds.items()
    }
    return {"machine": machine(), "bar_seconds": BAR, "runs": runs, "seconds": found}


def main() -> int:
    """Measure, keep, print and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--results", type=Path, default=ROOT / ".cache/benchmarks")
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    result = measure(options.runs)
    rows = [
        (f"{kind}, {size} hosts", seconds, f"{seconds:.3f} s")
        for kind, times in result["seconds"].items()
        for size, seconds in times.items()
        if size in ("64", "256", "1024")
    ]
    bars("Planning, CPU seconds", rows, options.results / "planning.svg")
    text = json.dumps(result, indent=1)
    (options.results / "planning.json").write_text(f"{text}\n", encoding="utf-8")
    print(text)
    missed = [kind for kind, times in result["seconds"].items() if times["1024"] > BAR]
    for kind in missed:
        print(f"{kind}: {result['seconds'][kind]['1024']} s for 1,024 hosts, bar {BAR} s")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
