# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What choosing the GIDs of four HCAs with 256 slots each costs in CPU time.

``python -m benchmarks.gid_walk`` builds such a Spark in memory: files of a tmpfs, where the
attributes of empty slots fail with EINVAL as in sysfs. With ``--sysfs /sys`` it measures the
machine it runs on. Times are milliseconds of user and system time, and
of the clock on the wall for `program_wall`. Writes gids.json into ``--results``; ends with 1 where
the bar is missed.
"""

from __future__ import annotations

import argparse
import functools
import json
import resource
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.machine import machine

ROOT = Path(__file__).resolve().parent.parent
BAR = 150.0  # milliseconds on the clock, of the median
PROGRAM = ROOT / "plugins/module_utils/_roce_gid.py"


def spark(root: Path, slots: int) -> Path:
    """A Spark whose GID tables have this many slots, four of them filled."""
    from tests.unit.sysfs import build, fixture, gid_table

    files = fixture("gid/spark")
    for device in files["sys"]["class"]["infiniband"].values():
        port = device["ports"]["1"]
        port.update(gid_table(port.pop("gid_table"), slots))
    return build(root, files) / "sys"


def cost(act: Callable[[], object], clock: Callable[[], float], runs: int) -> dict[str, float]:
    """Milliseconds by a clock that returns seconds."""
    times = []
    for _run in range(runs):
        start = clock()
        act()
        times.append((clock() - start) * 1000)
    return {"fastest": round(min(times), 1), "median": round(statistics.median(times), 1)}


def of_children() -> float:
    """CPU seconds of all child processes so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(sysfs: str, runs: int) -> dict[str, Any]:
    """The function, the program with Python around it, and for comparison Python alone."""
    roce_gids = runpy.run_path(str(PROGRAM))["roce_gids"]
    command = [sys.executable, "-I", "-S", str(PROGRAM), "--sysfs", sysfs, "--format", "table"]
    empty = [sys.executable, "-I", "-S", "-c", ""]
    run = functools.partial(subprocess.run, capture_output=True, check=True)
    return {
        "machine": machine(),
        "bar_milliseconds": BAR,
        "hcas": len(roce_gids(sysfs)["devices"]),
        "runs": runs,
        "walk_and_choice": cost(lambda: roce_gids(sysfs), time.process_time, runs),
        "program": cost(lambda: run(command), of_children, runs),
        "python_alone": cost(lambda: run(empty), of_children, runs),
        "program_wall": cost(lambda: run(command), time.monotonic, runs),
    }


def main() -> int:
    """Measure, keep, print and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sysfs", help="measure this tree instead of a built one")
    parser.add_argument("--slots", type=int, default=256, help="slots of a built tree")
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--results", type=Path, default=ROOT / ".cache/benchmarks")
    options = parser.parse_args()
    if options.sysfs:
        result = measure(options.sysfs, options.runs)
    else:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            result = measure(str(spark(Path(folder), options.slots)), options.runs)
    text = json.dumps(result, indent=1)
    options.results.mkdir(parents=True, exist_ok=True)
    (options.results / "gids.json").write_text(f"{text}\n", encoding="utf-8")
    print(text)
    median = result["program_wall"]["median"]
    if median > BAR:
        print(f"choosing takes {median} ms on the clock, bar {BAR:g} ms")
    return 1 if median > BAR else 0


if __name__ == "__main__":
    sys.exit(main())
