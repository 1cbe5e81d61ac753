# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Pack a rank's rows of the Engram tables into the files the serving engine reads.

A table is two tensors of one safetensors file, weights and scales. A rank owns the rows
[N * r // tp, N * (r + 1) // tp) of each and reads them from `engram-l<layer>-r<rank>of<tp>.bin`:
six little-endian u64 (magic, layer, first row, end row, N, bytes of a row), zeros up to byte 4096,
then the rows, each its weights followed by its scales.

Blocks of rows are read, interleaved, hashed and written by a few threads at once, past the page
cache where the filesystem lets them. Beside `X.bin` there are, while it is made, `X.partial` and
`X.journal` (what it is made from, and the hash of each block known to be on the disk), and once it
is made the manifest `X.json`.

This file needs numpy and runs on a node without Ansible, detached from whoever started it:

    engram_pack.py JOB.json|-

Exit status: 0 done; 1 failed, with the reason in the state file and on stderr; 2 bad arguments.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import mmap
import os
import random
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

MAGIC = b"DSV1EN41"
HEADER = struct.Struct("<8s5Q")
PAGE = 4096  # the rows begin there, and direct I/O wants multiples of it
# A multiple of the page, so that whole blocks are pages whatever the bytes of a row. 16.5 MiB.
BLOCK_ROWS = 65536
WORKERS = 8
SYNC_SECONDS = 2.0  # the work an interruption may cost
STATE_SECONDS = 1.0
SAMPLE_ROWS = 1024
MANIFEST_FORMAT = 1
VERSION = 1  # of this program
LOCK, STATE = ".pack.lock", ".pack-state.json"
VERIFY = ("header", "sample", "full")


class PackError(Exception):
    """Why a shard is not made or not right; the text is for people."""


class MismatchError(PackError):
    """Rows are not what they should be."""


class Shard(NamedTuple):
    """The part of one table that one rank owns. `rows` is N, of the whole table."""

    layer: int
    rank: int
    tp_size: int
    rows: int
    weight_bytes: int = 256
    scale_bytes: int = 8

    @property
    def lo(self) -> int:
        return self.rows * self.rank // self.tp_size

    @property
    def hi(self) -> int:
        return self.rows * (self.rank + 1) // self.tp_size

    @property
    def row_bytes(self) -> int:
        return self.weight_bytes + self.scale_bytes

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return PAGE + self.row_bytes * (self.hi - self.lo)

    @property
    def stem(self) -> str:
        return f"engram-l{self.layer}-r{self.rank}of{self.tp_size}"

    @property
    def blocks(self) -> int:
        return -(-(self.hi - self.lo) // BLOCK_ROWS)

    def block(self, number: int) -> tuple[int, int]:
        """First and end row of a block, counted in the whole table."""
        first = self.lo + number * BLOCK_ROWS
        return first, min(first + BLOCK_ROWS, self.hi)

    def offset(self, row: int) -> int:
        """Where a row of the table is in the file."""
        return PAGE + (row - self.lo) * self.row_bytes

    def header(self) -> bytes:
        fields = (MAGIC, self.layer, self.lo, self.hi, self.rows, self.row_bytes)
        return HEADER.pack(*fields).ljust(PAGE, b"\0")


class Source(NamedTuple):
    """The checkpoint file a table is in. `weight` and `scale` are where its tensors begin."""

    path: str
    size: int
    mtime_ns: int
    header_sha256: str
    weight: int
    scale: int
    revision: str = ""

    @property
    def content(self) -> dict[str, Any]:
        """What tells one content from another, wherever it lies and whenever it was copied."""
        return {
            "file": os.path.basename(self.path),
            "size": self.size,
            "header_sha256": self.header_sha256,
            "weight": self.weight,
            "scale": self.scale,
            "revision": self.revision,
        }


def identity(shard: Shard, source: Source) -> dict[str, Any]:
    """What has to be equal for work to be continued."""
    return {
        "format": MANIFEST_FORMAT,
        "shard": shard._asdict(),
        "source": {**source.content, "mtime_ns": source.mtime_ns},
        "block_rows": BLOCK_ROWS,
    }


def read_journal(path: str) -> tuple[dict[str, Any] | None, list[str]]:
    """What unfinished work is made from, and the hashes of the blocks that are on the disk.

    A last line that was cut off, or never reached the disk, ends the list.
    """
    try:
        with open(path, encoding="ascii", errors="replace") as stream:
            lines = stream.read().split("\n")[:-1]
        found = json.loads(lines[0])
    except (OSError, ValueError, IndexError):
        return None, []
    digests: list[str] = []
    for line in lines[1:]:
        if len(line) != 64 or not set(line) <= set("0123456789abcdef"):
            break
        digests.append(line)
    return (found if isinstance(found, dict) else None), digests


def durable_rows(directory: str, shard: Shard, source: Source | None) -> int:
    """How many rows of unfinished work can be continued. Without `source` only the shard counts."""
    stem = os.path.join(directory, shard.stem)
    found, digests = read_journal(f"{stem}.journal")
    if found is None or found.get("shard") != shard._asdict():
        return 0
    if source is not None and found != identity(shard, source):
        return 0
    with contextlib.suppress(OSError):
        if os.stat(f"{stem}.partial").st_size >= shard.size:
            return min(len(digests) * BLOCK_ROWS, shard.hi - shard.lo)
    return 0


def read_manifest(directory: str, shard: Shard) -> dict[str, Any] | None:
    """The manifest of a shard; None if there is none that can be read."""
    try:
        with open(os.path.join(directory, f"{shard.stem}.json"), encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("format") == MANIFEST_FORMAT else None


# --- reading and writing past the page cache ------------------------------------------------------


def _open(path: str, flags: int) -> tuple[int, bool]:
    """A descriptor, and whether it goes past the page cache."""
    with contextlib.suppress(OSError):
        return os.open(path, flags | os.O_DIRECT | os.O_CLOEXEC, 0o644), True
    return os.open(path, flags | os.O_CLOEXEC, 0o644), False


class Reader:
    """Reads ranges of a file into buffers of pages, and leaves no page cache behind."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self.fd, self.direct = _open(path, os.O_RDONLY)
        except OSError as error:
            raise PackError(f"{path} cannot be opened: {error.strerror}") from error

    def read(self, buffer: memoryview, offset: int, length: int, what: str) -> memoryview:
        """Fill part of a buffer that begins at a page, and return that part.

        Args:
            buffer: at least two pages larger than `length`.
            offset: bytes from the beginning of the file.
            length: bytes wanted.
            what: what is read, for the message.

        Raises:
            PackError: the file has no such bytes, or they cannot be read.
        """
        skip = offset % PAGE
        start = offset - skip
        end = -(-(offset + length) // PAGE) * PAGE - start
        done = 0
        while done < skip + length:
            try:
                count = os.preadv(self.fd, [buffer[done:end]], start + done)
            except OSError as error:
                raise PackError(
                    f"{self.path} cannot be read at byte {start + done} ({what}): {error.strerror}"
                ) from error
            done += count
            if done < skip + length and (count == 0 or done % PAGE):
                raise PackError(
                    f"{self.path} ends at byte {os.fstat(self.fd).st_size}, but {what} reach to "
                    f"byte {offset + length}: it is cut, or was cut while it was read. Verify the "
                    "file it is from, then run again"
                )
        self.forget(start, end)
        return buffer[skip : skip + length]

    def forget(self, offset: int, length: int) -> None:
        """Drop what buffered reading left in the page cache."""
        if not self.direct:
            os.posix_fadvise(self.fd, offset, length, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        os.close(self.fd)


def pages(size: int) -> memoryview:
    """A buffer that begins at a page, as direct I/O wants it."""
    return memoryview(mmap.mmap(-1, -(-size // PAGE) * PAGE + 2 * PAGE))


class _Assembly:
    """Makes blocks of a shard out of its source. Used by several threads, each has its buffers."""

    def __init__(self, shard: Shard, source: Source) -> None:
        self._shard, self._source = shard, source
        self._reader = Reader(source.path)
        self._local = threading.local()
        self.direct = self._reader.direct
        self.unchanged()

    def block(self, number: int) -> tuple[memoryview, int]:
        """The rows of a block in a buffer of pages, and how many bytes of it they are."""
        import numpy as np

        shard, source, mine = self._shard, self._source, self._local
        if not hasattr(mine, "rows"):
            sizes = (shard.weight_bytes, shard.scale_bytes, shard.row_bytes)
            mine.weights, mine.scales, mine.rows = (pages(BLOCK_ROWS * size) for size in sizes)
        first, end = shard.block(number)
        count = end - first
        rows = np.frombuffer(mine.rows, np.uint8, count * shard.row_bytes)
        rows = rows.reshape(count, shard.row_bytes)
        parts = (
            (mine.weights, source.weight, shard.weight_bytes, slice(None, shard.weight_bytes)),
            (mine.scales, source.scale, shard.scale_bytes, slice(shard.weight_bytes, None)),
        )
        for (buffer, begin, width, columns), tensor in zip(
            parts, tensor_names(shard.layer), strict=True
        ):
            data = self._reader.read(
                buffer, begin + first * width, count * width, f"{tensor} rows {first} to {end}"
            )
            rows[:, columns] = np.frombuffer(data, np.uint8).reshape(count, width)
        return mine.rows, count * shard.row_bytes

    def unchanged(self) -> None:
        """Refuse a file that is not the one the job was made for.

        Raises:
            PackError: its size or time differs.
        """
        now = os.fstat(self._reader.fd)
        source = self._source
        if (now.st_size, now.st_mtime_ns) != (source.size, source.mtime_ns):
            raise PackError(
                f"{source.path} changed while it was read: {now.st_size} bytes, expected "
                f"{source.size} of the time the packing began. Verify the checkpoint, run again"
            )

    def close(self) -> None:
        self._reader.close()


def tensor_names(layer: int) -> tuple[str, str]:
    """The names of the weights and of the scales of a table."""
    return f"layers.{layer}.engram.embed.weight", f"layers.{layer}.engram.embed.scale"


def _in_order(work: Callable[[int], Any], numbers: Sequence[int]) -> Iterator[Any]:
    """What `work` returns for each number, in order; a few are at work at the same time."""
    pool = ThreadPoolExecutor(WORKERS)
    waiting: deque[Future[Any]] = deque()
    try:
        for number in numbers:
            waiting.append(pool.submit(work, number))
            if len(waiting) > 2 * WORKERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


# --- packing --------------------------------------------------------------------------------------

Progress = Callable[[int], None]  # is told the bytes of each finished block


class Packing:
    """One shard on its way to the disk.

    Args:
        directory: where the shard goes.
        shard: what is made.
        source: what it is made from.
        verify: how the rows are looked at once more before anybody can see the file.
    """

    def __init__(self, directory: str, shard: Shard, source: Source, verify: str) -> None:
        self._directory, self._shard, self._source = directory, shard, source
        self._verify = verify
        self._stem = os.path.join(directory, shard.stem)
        self._journal: int | None = None
        self._digests: list[str] = []
        self.notes: list[str] = []

    def run(self, progress: Progress) -> None:
        """Make the shard, or finish what was begun.

        Raises:
            PackError: it cannot be made; what is on the disk is continued by the next run.
        """
        partial = f"{self._stem}.partial"
        try:
            assembly = _Assembly(self._shard, self._source)
            try:
                self._begin()
                fd, direct = _open(partial, os.O_RDWR | os.O_CREAT)
                try:
                    self._reserve(fd)
                    self._write(fd, direct, assembly, progress)
                    assembly.unchanged()
                    os.pwrite(fd, _aligned(self._shard.header()), 0)
                    os.ftruncate(fd, self._shard.size)
                    os.fsync(fd)
                    self._forget(fd, direct, 0, self._shard.size)
                finally:
                    os.close(fd)
            finally:
                assembly.close()
                if self._journal is not None:
                    os.close(self._journal)
            if not (assembly.direct and direct):
                place = self._source.path if not assembly.direct else self._directory
                self.notes.append(f"{place}: no direct I/O, went through the page cache")
            manifest = manifest_of(self._shard, self._source, self._digests)
            try:
                verify(partial, self._shard, self._source, manifest, self._verify)
            except MismatchError:
                os.unlink(f"{self._stem}.journal")  # nothing of it is worth continuing
                raise
            self._publish(manifest)
        except OSError as error:
            raise PackError(_sentence(error, partial, self._shard.size)) from error

    def _begin(self) -> None:
        """Open the journal at the end of what can be continued."""
        path = f"{self._stem}.journal"
        wanted = identity(self._shard, self._source)
        if durable_rows(self._directory, self._shard, self._source):
            self._digests = read_journal(path)[1][: self._shard.blocks]
        else:
            found = read_journal(path)[0]
            if found is not None and found != wanted:
                self.notes.append(f"{self._stem}.partial is of other work and begun again")
            # The old journal must not speak for the new file.
            for name in (path, f"{self._stem}.partial"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name)
        text = "\n".join([json.dumps(wanted), *self._digests]) + "\n"
        write_whole(path, text)
        self._journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _reserve(self, fd: int) -> None:
        """Take all the space before the work, so that a full disk is told at once."""
        before, whole = os.fstat(fd).st_size, -(-self._shard.size // PAGE) * PAGE
        try:
            os.posix_fallocate(fd, 0, whole)
        except OSError as error:
            if error.errno not in {errno.EOPNOTSUPP, errno.EINVAL}:
                os.ftruncate(fd, before)
                raise
            os.ftruncate(fd, whole)

    def _write(self, fd: int, direct: bool, assembly: _Assembly, progress: Progress) -> None:
        shard = self._shard

        def pack(number: int) -> str:
            rows, length = assembly.block(number)
            digest = hashlib.sha256(rows[:length]).hexdigest()
            # The end of the last page is cut off again at the end.
            whole = -(-length // PAGE) * PAGE
            offset, done = shard.offset(shard.block(number)[0]), 0
            while done < whole:
                count = os.pwrite(fd, rows[done:whole], offset + done)
                if count % PAGE:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                done += count
            return digest

        first = len(self._digests)
        noted, synced = first, time.monotonic()
        for number, digest in enumerate(_in_order(pack, range(first, shard.blocks)), first):
            self._digests.append(digest)
            begin, end = shard.block(number)
            progress((end - begin) * shard.row_bytes)
            if time.monotonic() - synced >= SYNC_SECONDS:
                self._note(fd, direct, noted)
                noted, synced = len(self._digests), time.monotonic()
        self._note(fd, direct, noted)

    def _note(self, fd: int, direct: bool, since: int) -> None:
        """Write down the blocks that are on the disk now. Only then are they finished."""
        os.fdatasync(fd)
        new = self._digests[since:]
        if new and self._journal is not None:
            os.write(self._journal, "".join(f"{digest}\n" for digest in new).encode())
            os.fdatasync(self._journal)
            begin = self._shard.offset(self._shard.block(since)[0])
            length = len(new) * BLOCK_ROWS * self._shard.row_bytes
            self._forget(fd, direct, begin, length)

    @staticmethod
    def _forget(fd: int, direct: bool, offset: int, length: int) -> None:
        if not direct:
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)

    def _publish(self, manifest: Mapping[str, Any]) -> None:
        """The manifest comes first: a shard without one would never be checked for its rows."""
        write_manifest(self._directory, self._shard, manifest)
        os.rename(f"{self._stem}.partial", f"{self._stem}.bin")
        _sync_directory(self._directory)
        os.unlink(f"{self._stem}.journal")


def manifest_of(shard: Shard, source: Source, digests: Sequence[str]) -> dict[str, Any]:
    """What is kept beside a shard: what it is, what it is from, and the hashes of its blocks."""
    return {
        "format": MANIFEST_FORMAT,
        "tool": f"sparkfleet.cluster.engram_pack {VERSION}",
        "shard": shard._asdict(),
        "range": [shard.lo, shard.hi],
        "size": shard.size,
        "source": source.content,
        "block_rows": BLOCK_ROWS,
        "digest": digest_of(digests),
        "blocks": list(digests),
    }


def write_manifest(directory: str, shard: Shard, manifest: Mapping[str, Any]) -> None:
    """Put the manifest of a shard in its place."""
    write_whole(
        os.path.join(directory, f"{shard.stem}.json"), json.dumps(manifest, indent=0) + "\n"
    )


def digest_of(digests: Sequence[str]) -> str:
    """One SHA-256 for all rows: of the SHA-256 of each block, one after the other."""
    return hashlib.sha256(b"".join(bytes.fromhex(digest) for digest in digests)).hexdigest()


def _aligned(data: bytes) -> memoryview:
    buffer = pages(len(data))
    buffer[: len(data)] = data
    return buffer[: len(data)]


def write_whole(path: str, text: str) -> None:
    """Write a small file as a whole or not at all, and durably."""
    aside = f"{path}.new"
    with open(aside, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(aside, path)


def _sync_directory(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _sentence(error: OSError, path: str, size: int) -> str:
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        folder = os.statvfs(os.path.dirname(path))
        free = folder.f_bavail * folder.f_frsize
        return (
            f"{path} needs {size} bytes in all, and {free} are free ({error.strerror}). Make room"
        )
    return f"{error.filename or path}: {error.strerror}"


# --- verifying ------------------------------------------------------------------------------------


def verify(
    path: str,
    shard: Shard,
    source: Source | None,
    manifest: Mapping[str, Any] | None,
    how: str,
    progress: Progress | None = None,
) -> list[str]:
    """Look at the rows of a file whose header and size are right.

    Args:
        path: the file.
        shard: what it should be.
        source: the checkpoint, which a sample is compared with.
        manifest: its manifest, whose hashes are compared when all rows are looked at. Without one
            all rows are compared with the checkpoint.
        how: one of `VERIFY`.
        progress: is told the bytes of each block.

    Returns:
        The hashes of all blocks, when all were looked at.

    Raises:
        MismatchError: a row differs.
        PackError: a row cannot be read.
    """
    if how == "sample":
        if source is None:
            raise PackError(f"{path}: a sample needs the checkpoint to compare with")
        _compare_sample(path, shard, source)
    return _hash_all(path, shard, source, manifest, progress) if how == "full" else []


def sample(shard: Shard) -> list[int]:
    """The rows to look at: those at the ends and at the edges of blocks, and some by lot."""
    rows = range(shard.lo, shard.hi)
    edges = {shard.lo, shard.lo + 1, shard.hi - 2, shard.hi - 1}
    edges |= {shard.block(number)[0] for number in (1, shard.blocks // 2, shard.blocks - 1)}
    edges |= {row - 1 for row in edges}
    lot = random.Random(shard.stem)
    drawn = lot.sample(rows, SAMPLE_ROWS) if len(rows) > SAMPLE_ROWS else rows
    return sorted({row for row in edges if row in rows} | set(drawn))


def _compare_sample(path: str, shard: Shard, source: Source) -> None:
    packed, table = Reader(path), Reader(source.path)
    names = tensor_names(shard.layer)
    parts = (
        (source.weight, shard.weight_bytes, names[0]),
        (source.scale, shard.scale_bytes, names[1]),
    )
    local = threading.local()

    def look(row: int) -> tuple[int, bool]:
        if not hasattr(local, "row"):
            local.row = pages(shard.row_bytes)
        what = f"row {row}"
        got = bytes(packed.read(local.row, shard.offset(row), shard.row_bytes, what))
        expected = b"".join(
            bytes(table.read(local.row, begin + row * width, width, f"{name} {what}"))
            for begin, width, name in parts
        )
        return row, got == expected

    try:
        for row, same in _in_order(look, sample(shard)):
            if not same:
                at = shard.offset(row)
                raise MismatchError(
                    f"{path}: row {row} (bytes {at} to {at + shard.row_bytes}) differs from "
                    f"{names[0]} and its scale in {source.path}"
                )
    finally:
        packed.close()
        table.close()


def _hash_all(
    path: str,
    shard: Shard,
    source: Source | None,
    manifest: Mapping[str, Any] | None,
    progress: Progress | None,
) -> list[str]:
    known = None
    if manifest is not None and manifest["block_rows"] == BLOCK_ROWS:
        known = manifest["blocks"]
    if known is None and source is None:
        raise PackError(f"{path} has no manifest, and there is no checkpoint to compare with")
    assembly = _Assembly(shard, source) if known is None and source is not None else None
    reader = Reader(path)
    local = threading.local()

    def look(number: int) -> tuple[str, str]:
        if not hasattr(local, "rows"):
            local.rows = pages(BLOCK_ROWS * shard.row_bytes)
        first, end = shard.block(number)
        length = (end - first) * shard.row_bytes
        got = reader.read(local.rows, shard.offset(first), length, f"rows {first} to {end}")
        if assembly is None:
            return hashlib.sha256(got).hexdigest(), ""
        rows, _length = assembly.block(number)
        return hashlib.sha256(got).hexdigest(), hashlib.sha256(rows[:length]).hexdigest()

    digests: list[str] = []
    wrong: list[int] = []
    try:
        for number, (got, made) in enumerate(_in_order(look, range(shard.blocks))):
            if got != (known[number] if known is not None else made):
                wrong.append(number)
            digests.append(got)
            if progress:
                begin, end = shard.block(number)
                progress((end - begin) * shard.row_bytes)
    finally:
        reader.close()
        if assembly:
            assembly.close()
    if wrong:
        first, end = shard.block(wrong[0])
        against = "its manifest" if known is not None else "the checkpoint"
        raise MismatchError(
            f"{path}: {len(wrong)} of {shard.blocks} blocks differ from {against}, the first at "
            f"rows {first} to {end} (bytes {shard.offset(first)} to {shard.offset(end)})"
        )
    return digests


# --- the program ----------------------------------------------------------------------------------


class Job:
    """All that one start of the program does, and what it tells about it.

    Args:
        job: `id`, `directory`, `verify`, and `shards`: a list of `shard` (fields of `Shard`),
            `source` (fields of `Source`) and `packed`, whether it is there and only to be verified.
    """

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._job = job
        self._directory = job["directory"]
        self._shards = [
            (Shard(**entry["shard"]), Source(**entry["source"]), entry["packed"])
            for entry in job["shards"]
        ]
        self._started = self._told = time.monotonic()
        self._rates: deque[tuple[float, int]] = deque(maxlen=64)
        self._worked = 0
        kept = sum(
            durable_rows(self._directory, shard, source) * shard.row_bytes
            for shard, source, packed in self._shards
            if not packed
        )
        self._state: dict[str, Any] = {
            "job": job["id"],
            "pid": os.getpid(),
            "phase": "packing",
            "layer": None,
            "bytes_total": sum(shard.size - PAGE for shard, _source, _packed in self._shards),
            "bytes_done": kept,
            "bytes_resumed": kept,
            "rate": 0.0,
            "seconds_left": None,
            "seconds": 0.0,
            "peak_rss": 0,
            "notes": [],
            "message": "",
        }

    def run(self) -> None:
        """Do it under the lock of the directory; the state file tells how far it is.

        Raises:
            PackError: it failed. The state file says so as well.
        """
        lock = os.open(
            os.path.join(self._directory, LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
        )
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise PackError(f"another packing holds {self._directory}/{LOCK}") from error
            self._tell()
            try:
                self._all()
            except Exception as error:
                known = isinstance(error, (PackError, OSError))
                self._state["message"] = str(error) if known else repr(error)
                self._state["phase"] = "failed"
                self._tell()
                raise
            self._state.update(phase="done", seconds_left=0)
            self._tell()
        finally:
            os.close(lock)

    def _all(self) -> None:
        for shard, source, packed in self._shards:
            self._state.update(layer=shard.layer, phase="verifying" if packed else "packing")
            path = os.path.join(self._directory, f"{shard.stem}.bin")
            if packed:
                manifest = read_manifest(self._directory, shard)
                digests = verify(path, shard, source, manifest, self._job["verify"], self._progress)
                if digests and manifest is None:
                    write_manifest(self._directory, shard, manifest_of(shard, source, digests))
            else:
                packing = Packing(self._directory, shard, source, self._job["verify"])
                packing.run(self._progress)
                self._state["notes"] += packing.notes

    def _progress(self, count: int) -> None:
        now = time.monotonic()
        self._worked += count
        self._state["bytes_done"] += count
        self._rates.append((now, self._worked))
        if now - self._told >= STATE_SECONDS:
            self._told = now
            self._tell()

    def _tell(self) -> None:
        state, now = self._state, time.monotonic()
        state["seconds"] = round(now - self._started, 1)
        state["peak_rss"] = _peak_rss()
        if self._worked:
            state["rate"] = round(self._worked / max(now - self._started, 1e-3))
            # What the last blocks did says more about the time left than the average.
            (then, before), (last, after) = self._rates[0], self._rates[-1]
            recent = (after - before) / (last - then) if last > then else state["rate"]
            left = state["bytes_total"] - state["bytes_done"]
            state["seconds_left"] = round(left / max(recent, 1))
        path = os.path.join(self._directory, STATE)
        # A state that cannot be written must not end work that can be done.
        with contextlib.suppress(OSError):
            with open(f"{path}.new", "w", encoding="utf-8") as stream:
                json.dump(state, stream)
            os.rename(f"{path}.new", path)


def _peak_rss() -> int:
    """The most bytes this process ever had in memory; rusage tells those of who started it, too."""
    with contextlib.suppress(OSError, ValueError), open("/proc/self/status", "rb") as stream:
        for line in stream:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def main(arguments: Sequence[str]) -> int:
    """Do the job that a file describes."""
    if len(arguments) != 1:
        sys.stderr.write("usage: engram_pack.py JOB.json|-\n")
        return 2
    if arguments[0] == "-":
        job = Job(json.load(sys.stdin))
    else:
        with open(arguments[0], encoding="utf-8") as stream:
            job = Job(json.load(stream))
    try:
        job.run()
    except PackError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
