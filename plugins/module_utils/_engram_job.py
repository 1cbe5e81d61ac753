# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Packing on one node: what there is to do, what speaks against it, how far the program is."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Missing, ask_all
from ansible_collections.sparkfleet.cluster.plugins.module_utils._detached import Detached, Job
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_layout import (
    Found,
    bytes_free,
    bytes_needed,
    inspect,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_pack import (
    BLOCK_ROWS,
    LOCK,
    STATE,
    MismatchError,
    PackError,
    Reader,
    Shard,
    Source,
    pages,
    read_manifest,
    verify,
    write_whole,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_mount import (
    mount_of,
    parse_mountinfo,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import gib

NAME = "engram-pack"
PROGRAM = "/usr/local/lib/sparkfleet/engram_pack.py"
NETWORK = {"nfs", "nfs4", "cifs", "smb3", "9p", "ceph", "glusterfs", "lustre", "virtiofs"}
MEMORY = {"tmpfs", "ramfs", "devtmpfs", "squashfs", "overlay"}
_TRIAL_SECONDS = 2.0


class Entry(NamedTuple):
    """One shard of this rank. `source` is None where there is no checkpoint yet."""

    shard: Shard
    source: Source | None
    found: Found

    @property
    def packed(self) -> bool:
        return self.found.state == "complete"


class Order:
    """What is wanted of a node.

    Args:
        directory: where shards go.
        shards: the shards of the rank.
        how: how rows are looked at, one of `VERIFY`.
    """

    def __init__(
        self,
        directory: str,
        shards: Sequence[tuple[Shard, Source | None]],
        how: str,
        timeout: float,
    ) -> None:
        self.directory = directory
        self.how = how
        self._timeout = timeout
        self.entries = [
            Entry(shard, source, inspect(directory, shard, source)) for shard, source in shards
        ]

    @property
    def todo(self) -> list[Entry]:
        return [entry for entry in self.entries if not entry.packed]

    @property
    def left(self) -> int:
        """Bytes that are not packed yet."""
        return sum(
            entry.shard.size - entry.found.rows_done * entry.shard.row_bytes for entry in self.todo
        )

    @property
    def idle(self) -> bool:
        """Whether nothing is left for the program."""
        return not self.todo and self.how != "full"

    @property
    def adopts(self) -> bool:
        """Whether a shard of somebody else's gets its manifest."""
        return self.how == "full" and any(
            read_manifest(self.directory, entry.shard) is None for entry in self.entries
        )

    def look_at_rows(self) -> list[str]:
        """Compare a sample of what is complete with the checkpoint, which may not answer.

        Returns:
            Why that could not be done. A shard with wrong rows is corrupt from then on.
        """
        problems = []
        for number, entry in enumerate(self.entries):
            if not entry.packed or self.how != "sample" or entry.source is None:
                continue
            path = os.path.join(self.directory, f"{entry.shard.stem}.bin")
            question = functools.partial(_sample, path, entry)
            answer = ask_all({"": question}, self._timeout)[""]
            if isinstance(answer, Missing):
                problems.append(f"{path} cannot be compared with {entry.source.path}: {answer}")
            elif answer["problem"]:
                problems.append(answer["problem"])
            elif answer["mismatch"]:
                found = entry.found._replace(state="corrupt", reason=answer["mismatch"])
                self.entries[number] = entry._replace(found=found)
        return problems

    def in_the_way(self) -> list[str]:
        """Files at the places of shards that are not the shards."""
        return [
            entry.found.reason
            for entry in self.todo
            if entry.found.state not in {"absent", "partial"}
        ]

    def lacking(self, *, later: bool) -> list[str]:
        """What the node lacks for the work; with `later` without what may be installed by then."""
        problems = []
        needed = bytes_needed((entry.shard, entry.found) for entry in self.entries)
        free = bytes_free(self.directory)
        if needed > free:
            problems.append(
                f"{self.directory} needs {needed} bytes more ({gib(needed)}), and {free} "
                f"({gib(free)}) are free there: make room, df -h {self.directory}"
            )
        if not later and importlib.util.find_spec("numpy") is None:
            problems.append(
                f"{sys.executable} has no numpy, which packs the rows: apt install python3-numpy"
            )
        place = _nearest(self.directory)
        if not os.access(place, os.W_OK | os.X_OK):
            why = "read-only" if os.statvfs(place).f_flag & os.ST_RDONLY else "not writable"
            problems.append(f"{place} is {why}; shards are written to {self.directory}")
        return problems

    def rate(self) -> float | None:
        """Bytes per second at which the rows can be read here; None if that cannot be told."""
        shard, source, _found = self.todo[0]
        if source is None:
            return None
        answer = ask_all({"": lambda: _trial(shard, source)}, 3 * _TRIAL_SECONDS)[""]
        return None if isinstance(answer, Missing) else answer

    @property
    def id(self) -> str:
        """The same for the same work, however far it is."""
        told = [[entry.shard, entry.source] for entry in self.entries]
        text = json.dumps([self.directory, self.how, told])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def job(self) -> dict[str, Any]:
        """What the program is told. Work that was begun comes first, then what comes first."""
        ordered = sorted(self.entries, key=lambda entry: not entry.found.rows_done)
        return {
            "id": self.id,
            "directory": self.directory,
            "verify": self.how,
            "shards": [
                {
                    "shard": entry.shard._asdict(),
                    "source": entry.source._asdict() if entry.source else None,
                    "packed": entry.packed,
                }
                for entry in ordered
                if not entry.packed or self.how == "full"
            ],
        }

    def unit(self) -> Job:
        """The work for the systemd of the node."""
        return Job(
            NAME,
            ["nice", "-n10", "ionice", "-c3", sys.executable, "-I", PROGRAM, "-"],
            environment={"SPARKFLEET_JOB": self.id},
            stdin=json.dumps(self.job()),
        )


def _sample(path: str, entry: Entry) -> dict[str, str]:
    told = {"mismatch": "", "problem": ""}
    try:
        verify(path, entry.shard, entry.source, None, "sample")
    except MismatchError as error:
        told["mismatch"] = str(error)
    except PackError as error:
        told["problem"] = str(error)
    return told


def _trial(shard: Shard, source: Source) -> float:
    """Read some of the rows, past the page cache, for a moment. Bytes per second."""
    reader = Reader(source.path)
    length = min(BLOCK_ROWS, shard.hi - shard.lo) * shard.weight_bytes
    buffer = pages(length)
    begun, done = time.monotonic(), 0
    at = source.weight + shard.lo * shard.weight_bytes
    end = source.weight + shard.hi * shard.weight_bytes
    while at + length <= end and time.monotonic() - begun < _TRIAL_SECONDS:
        done += len(reader.read(buffer, at, length, "a trial"))
        at += length
    reader.close()
    return done / max(time.monotonic() - begun, 1e-6)


def _nearest(directory: str) -> str:
    """The directory, or what of its path exists."""
    place = os.path.abspath(directory)
    while not os.path.isdir(place) and place != "/":
        place = os.path.dirname(place)
    return place


# --- the disk -------------------------------------------------------------------------------------


def disk(directory: str, root: str = "/") -> tuple[str, str]:
    """What is wrong with the place of shards: a refusal and a warning, either may be empty.

    The engine reads single rows at random, many at a time. That takes a disk of the node's own; and
    what is in memory is taken from the GPU.
    """
    place = _nearest(directory)
    with open(os.path.join(root, "proc/self/mountinfo"), encoding="utf-8") as stream:
        mount = mount_of(parse_mountinfo(stream.read()), os.path.realpath(place))
    fstype = mount.fstype if mount else ""
    if fstype in NETWORK or fstype.startswith("fuse.ssh"):
        refusal = f"{directory} is on a network filesystem, {mount}; expected a disk of the node"
        return refusal, ""
    if fstype in MEMORY:
        return f"{directory} is on {mount}, which is memory, or may be; expected a disk", ""
    device = os.stat(place).st_dev
    block = os.path.join(root, f"sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for queue in ("queue", "../queue"):  # of the disk, or of the disk a partition is on
        with contextlib.suppress(OSError):
            with open(os.path.join(block, queue, "rotational"), encoding="ascii") as stream:
                if stream.read().strip() == "1":
                    return "", (
                        f"{directory} is on a rotational disk, {mount}; the engine reads rows at "
                        "random and will be slow. Use the NVMe disk"
                    )
            break
    return "", ""


# --- the program ----------------------------------------------------------------------------------


def install(source: str) -> bool:
    """Put the packing program on the node. Whether it was another before."""
    with contextlib.suppress(OSError), open(PROGRAM, encoding="utf-8") as stream:
        if stream.read() == source:
            return False
    os.makedirs(os.path.dirname(PROGRAM), mode=0o755, exist_ok=True)
    write_whole(PROGRAM, source)
    return True


def forget(directory: str) -> None:
    """Let nothing that earlier work told be taken for what the next one tells."""
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(directory, STATE))


def progress(directory: str, job: str) -> dict[str, Any]:
    """What the program last told about a job; empty if it has told nothing."""
    try:
        with open(os.path.join(directory, STATE), encoding="utf-8") as stream:
            told = json.load(stream)
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) and told.get("job") == job else {}


def watch(work: Detached, order: Order, seconds: float | None) -> tuple[str, dict[str, Any]]:
    """Wait for the end of the work, or for some seconds.

    Returns:
        `running`, `succeeded`, `failed` or `absent`, and what the program told last.
    """
    fingerprint = order.unit().fingerprint
    until = None if seconds is None else time.monotonic() + seconds
    while True:
        found = work.status()
        state = found["state"] if found["fingerprint"] == fingerprint else "absent"
        if state != "running" or (until is not None and time.monotonic() >= until):
            told = progress(order.directory, order.id)
            if state == "failed" and not told.get("message"):
                told["message"] = found["last"] or f"the program ended with {found['result']}"
            return state, told
        time.sleep(0.25)


def remove(directory: str, shards: Sequence[Shard], *, really: bool) -> tuple[list[str], list[str]]:
    """Remove what was made for these shards, and nothing else.

    Returns:
        The files that are removed, and why others stay.
    """
    gone, notes = [], []
    for shard in shards:
        stem = os.path.join(directory, shard.stem)
        found = inspect(directory, shard, None)
        mine = found.state in {"absent", "partial", "complete", "oversize"}
        if not mine and not (found.state != "foreign" and read_manifest(directory, shard)):
            notes.append(f"{stem}.bin stays: {found.reason}")
        else:
            gone += [f"{stem}.bin", f"{stem}.json"]
        gone += [f"{stem}.partial", f"{stem}.journal", f"{stem}.json.new", f"{stem}.journal.new"]
    gone += [os.path.join(directory, name) for name in (LOCK, STATE, f"{STATE}.new")]
    gone = [path for path in gone if os.path.lexists(path)]
    if really:
        for path in gone:
            os.unlink(path)
    return gone, notes


def plan(order: Order, rate: float | None = None) -> dict[str, str]:
    """The change in words, as a diff. `rate` in bytes per second tells how long it takes."""

    def lines(states: Sequence[str]) -> str:
        return "".join(
            f"{order.directory}/{entry.shard.stem}.bin: {state}, {entry.shard.size} bytes\n"
            for entry, state in zip(order.entries, states, strict=True)
        )

    after = lines(["complete" for _entry in order.entries])
    if rate:
        minutes, seconds = divmod(int(order.left / rate), 60)
        after += (
            f"{gib(order.left)} to pack: {minutes}:{seconds:02d} minutes at the "
            f"{rate / 2**20:.0f} MiB/s at which they can be read here, if the disk keeps up\n"
        )
    return {"before": lines([entry.found.state for entry in order.entries]), "after": after}
