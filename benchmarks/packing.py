# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What packing Engram rows costs on a disk: time, memory and page cache, against two yardsticks.

``PYTHONPATH=collections python -m benchmarks.packing DIRECTORY`` makes a table, packs it with the
packing program, with the straightforward numpy loop (read a chunk of 262,144 rows, interleave,
write; fsync at the end) and copies as many bytes with ``dd conv=fsync``. Each candidate begins
with a cold cache, the order changes every round, and ratios are of the medians. DIRECTORY has to
be on the disk that is meant, with 22 GB free: a memory filesystem is refused.

``--full-size`` packs rank 0 of 4 of layer 1 of the real model instead, 25,344,411,184 bytes, from a
sparse table of real size, once. Needs 26 GB.

Writes packing.json and packing.svg into ``--results`` and prints the JSON; ends with 1 where a bar
is missed. Needs root, which may drop caches.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _engram_pack as engram
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_job import MEMORY
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_layout import (
    Table,
    inspect,
    split,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_mount import (
    mount_of,
    parse_mountinfo,
)

from benchmarks.machine import bars, machine

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "plugins/module_utils/_engram_pack.py"
REAL_ROWS = 384006168
CHUNK_ROWS = 262144
BARS = {
    "to_loop": 0.5,  # times the loop
    "to_dd": 1.0,  # times dd
    "pack_cached_share": 0.05,  # of the bytes read and written
    "pack_peak_rss": 600 * 2**20,  # bytes
    "recheck_seconds": 1.0,
}
BEGIN = 1000  # of the weights: headers end anywhere


# --- the table ------------------------------------------------------------------------------------


def make_table(path: Path, rows: int, *, sparse: bool) -> engram.Source:
    """A file with the weights and scales of a table, random so that no disk can make less of it."""
    size = BEGIN + rows * 264 + 2 * engram.PAGE  # as much as the packed file at least, for dd
    if not path.exists() or path.stat().st_size != size:
        draw = np.random.Generator(np.random.PCG64(1))
        with path.open("wb") as stream:
            if not sparse:
                for at in range(0, size, 1 << 26):
                    stream.write(draw.bytes(min(1 << 26, size - at)))
            stream.truncate(size)
            os.fsync(stream.fileno())
    told = path.stat()
    scale = BEGIN + rows * 256
    return engram.Source(str(path), size, told.st_mtime_ns, "0" * 64, BEGIN, scale)


# --- the candidates -------------------------------------------------------------------------------


def pack(source: engram.Source, shard: engram.Shard, directory: Path) -> dict[str, Any]:
    """The program as the node runs it."""
    entry = {"shard": shard._asdict(), "source": source._asdict(), "packed": False}
    job = {"id": "1", "directory": str(directory), "verify": "header", "shards": [entry]}
    command = [sys.executable, "-I", str(PROGRAM), "-"]
    usage = resources(command, json.dumps(job).encode())
    state = json.loads((directory / engram.STATE).read_text())
    told = {name: state[name] for name in ("peak_rss", "notes")}
    return {**usage, **told, "file": directory / f"{shard.stem}.bin"}


def loop(source: engram.Source, shard: engram.Shard, directory: Path) -> dict[str, Any]:
    """The straightforward loop, in a process of its own like the program."""
    target = directory / "loop.bin"
    told = {"source": source._asdict(), "shard": shard._asdict(), "target": str(target)}
    command = [sys.executable, "-m", "benchmarks.packing", "--loop"]
    return {**resources(command, json.dumps(told).encode()), "file": target}


def straightforward(source: engram.Source, shard: engram.Shard, target: str) -> None:
    """Read a chunk, interleave, write; fsync at the end."""
    with open(source.path, "rb") as table, open(target, "wb") as packed:  # noqa: PTH123  # texts
        packed.write(shard.header())
        for first in range(shard.lo, shard.hi, CHUNK_ROWS):
            count = min(CHUNK_ROWS, shard.hi - first)
            rows = np.empty((count, 264), np.uint8)
            table.seek(source.weight + first * 256)
            rows[:, :256] = np.frombuffer(table.read(count * 256), np.uint8).reshape(count, 256)
            table.seek(source.scale + first * 8)
            rows[:, 256:] = np.frombuffer(table.read(count * 8), np.uint8).reshape(count, 8)
            packed.write(rows.data)
        packed.flush()
        os.fsync(packed.fileno())


def copy(source: engram.Source, shard: engram.Shard, directory: Path) -> dict[str, Any]:
    """``dd`` with as many bytes."""
    target = directory / "copy.bin"
    command = ["dd", f"if={source.path}", f"of={target}", "bs=1M", "conv=fsync", "status=none"]
    command += [f"count={shard.size}", "iflag=count_bytes"]
    return {**resources(command, b""), "file": target}


def resources(command: list[str], stdin: bytes) -> dict[str, Any]:
    """Run a command: seconds of wall clock and of CPU."""
    begun = time.monotonic()
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, cwd=ROOT, env={**os.environ, "PYTHONPATH": "collections"}
    ) as child:
        assert child.stdin is not None
        child.stdin.write(stdin)
        child.stdin.close()
        _pid, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{command[0]} ended with {child.returncode}")
    return {
        "seconds": round(time.monotonic() - begun, 3),
        "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3),
    }


# --- measuring ------------------------------------------------------------------------------------


def drop_caches() -> None:
    """Begin cold: what is dirty is written, what is clean is forgotten."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def cached(path: Path) -> int:
    """Bytes of a file that are in the page cache."""
    command = ["fincore", "--bytes", "--noheadings", "--output", "RES", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(done.stdout)


def filesystem(directory: Path) -> str:
    """What the directory is on; memory is refused."""
    mount = mount_of(parse_mountinfo(Path("/proc/self/mountinfo").read_text()), str(directory))
    if mount is None or mount.fstype in MEMORY:
        raise SystemExit(f"{directory} is on {mount}; give a directory on a disk")
    return str(mount)


CANDIDATES: dict[str, Callable[[engram.Source, engram.Shard, Path], dict[str, Any]]] = {
    "pack": pack,
    "loop": loop,
    "dd": copy,
}


def measure(directory: Path, rows: int, rounds: int) -> dict[str, Any]:
    """All candidates in turn, and what is left in the page cache by each."""
    source = make_table(directory / "table", rows, sparse=False)
    ((shard, _source),) = split([Table(1, rows)], 1, 0)
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in CANDIDATES}
    names = list(CANDIDATES)
    for number in range(rounds):
        for name in names[number % 3 :] + names[: number % 3]:
            work = directory / "work"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            drop_caches()
            told = CANDIDATES[name](source, shard, work)
            made = told.pop("file")
            told["bytes"] = made.stat().st_size
            told["cached_share"] = (cached(made) + cached(Path(source.path))) / (2 * told["bytes"])
            told["load"] = os.getloadavg()[0]
            runs[name].append(told)
            print(name, told, file=sys.stderr)
            if name == "pack":
                begun = time.monotonic()
                assert inspect(str(work), shard, source).state == "complete"
                told["recheck_seconds"] = round(time.monotonic() - begun, 4)
            shutil.rmtree(work)
    median = {
        name: statistics.median(told["seconds"] for told in runs[name]) for name in CANDIDATES
    }
    return {
        "bytes": shard.size,
        "rounds": rounds,
        "seconds": median,
        "to_loop": round(median["pack"] / median["loop"], 3),
        "to_dd": round(median["pack"] / median["dd"], 3),
        "pack_mib_per_second": round(shard.size / median["pack"] / 2**20),
        "pack_peak_rss": max(told["peak_rss"] for told in runs["pack"]),
        "pack_cached_share": max(told["cached_share"] for told in runs["pack"]),
        "recheck_seconds": max(told["recheck_seconds"] for told in runs["pack"]),
        "bars": BARS,
        "runs": runs,
    }


def measure_full_size(directory: Path) -> dict[str, Any]:
    """One rank-layer of the real model, once."""
    source = make_table(directory / "full-size", REAL_ROWS, sparse=True)
    ((shard, _source),) = split([Table(1, REAL_ROWS)], 4, 0)
    work = directory / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    drop_caches()
    told = pack(source, shard, work)
    made = told.pop("file")
    told["bytes"] = made.stat().st_size
    told["cached_share"] = cached(made) / told["bytes"]
    told["mib_per_second"] = round(told["bytes"] / told["seconds"] / 2**20)
    shutil.rmtree(work)
    Path(source.path).unlink()
    return told


def draw(result: dict[str, Any], path: Path) -> None:
    """The runs as bars, each a round."""
    names = {"pack": "engram_pack", "dd": "dd conv=fsync", "loop": "numpy loop"}
    rows = [
        (label, told["seconds"], f"{told['seconds']:.1f} s")
        for name, label in names.items()
        for told in result["runs"][name]
    ]
    bars(f"Packing {result['bytes'] / 1e9:.2f} GB, cold cache", rows, path)


def missed(result: dict[str, Any]) -> list[str]:
    """Sentences about bars that are not met."""
    return [
        f"{name} is {result[name]}, bar {bar}" for name, bar in BARS.items() if result[name] > bar
    ]


def main() -> int:
    """Measure, keep, print and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add("directory", nargs="?", type=Path, help="on the disk that is meant")
    add("--rows", type=int, default=40_000_000, help="of the table; 264 bytes each")
    add("--rounds", type=int, default=3)
    add("--results", type=Path, default=ROOT / ".cache/benchmarks")
    add("--full-size", action="store_true", help="one rank-layer of the real model, once")
    add("--loop", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.loop:
        told = json.load(sys.stdin)
        straightforward(
            engram.Source(**told["source"]), engram.Shard(**told["shard"]), told["target"]
        )
        return 0
    if options.directory is None:
        parser.error("give a directory on the disk that is meant")
    directory = options.directory.resolve()
    directory.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "filesystem": filesystem(directory),
        "machine": machine(),
    }
    options.results.mkdir(parents=True, exist_ok=True)
    name = "packing-full-size" if options.full_size else "packing"
    if options.full_size:
        result.update(measure_full_size(directory))
    else:
        result.update(measure(directory, options.rows, options.rounds))
        draw(result, options.results / "packing.svg")
    text = json.dumps(result, indent=1)
    (options.results / f"{name}.json").write_text(f"{text}\n")
    print(text)
    bad = [] if options.full_size else missed(result)
    print("\n".join(bad))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
