# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Copy a checkpoint to a directory of a node; also a program of its own, installed there.

Links are followed to the data, so that a cache of the hub becomes plain files. On the same file
system files are hard links, which takes no time and no space. Elsewhere a file is copied beside its
place and renamed when it is whole; after an interruption the copy goes on where it was. Nothing of
it stays in the page cache, which on these nodes is the engine's memory.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

_CHUNK = 1 << 26  # bytes copied before they are forced to the disk and out of memory
_NOTES = os.path.join(".cache", "huggingface", "download")
_TICK = 2.0  # seconds between two lines of progress


class Item(NamedTuple):
    """A file to copy: its name in the checkpoint, where its data is, and what that is."""

    name: str
    path: str
    size: int
    mtime_ns: int
    device: int


class Progress:
    """Says how far it is, at most every few seconds."""

    def __init__(self, total: int, say: Callable[[str], None]) -> None:
        self._total = total
        self._say = say
        self._begun = self._told = time.monotonic()
        self._done = self._copied = 0

    def add(self, count: int, *, copied: bool = True) -> None:
        self._done += count
        self._copied += count if copied else 0
        now = time.monotonic()
        if now - self._told >= _TICK:
            self._told = now
            self._say(self.line(now))

    def line(self, now: float) -> str:
        rate = self._copied / max(now - self._begun, 1e-9)
        left = (self._total - self._done) / rate if rate else 0.0
        share = 100 * self._done / self._total if self._total else 100.0
        return (
            f"{share:.0f} % of {self._total / 2**30:.1f} GiB, {rate / 2**20:.0f} MiB/s, "
            f"{int(left) // 60}:{int(left) % 60:02d} left"
        )


def items(source: str) -> list[Item]:
    """The files of a checkpoint, and what the hub's downloader noted about them.

    Raises:
        OSError: something cannot be read, or a link leads nowhere.
    """
    found = []
    for name in _names(source, ""):
        path = os.path.realpath(os.path.join(source, name))
        stat = os.stat(path)
        found.append(Item(name, path, stat.st_size, stat.st_mtime_ns, stat.st_dev))
    return found


def _names(source: str, below: str) -> Iterator[str]:
    for entry in sorted(os.scandir(os.path.join(source, below)), key=lambda entry: entry.name):
        name = os.path.join(below, entry.name)
        if entry.is_dir(follow_symlinks=False):
            if entry.name not in {".cache", ".git"}:
                yield from _names(source, name)
            elif name == ".cache" and os.path.isdir(os.path.join(source, _NOTES)):
                yield from _notes(source, _NOTES)
        elif not entry.is_dir():
            yield name


def _notes(source: str, below: str) -> Iterator[str]:
    for place, _folders, files in os.walk(os.path.join(source, below)):
        for file in sorted(files):
            if file.endswith(".metadata"):
                yield os.path.relpath(os.path.join(place, file), source)


def copy(source: str, target: str, say: Callable[[str], None], workers: int = 4) -> int:
    """Make `target` hold what `source` holds; files it has beyond that stay.

    Args:
        source: directory of a checkpoint.
        target: directory, made if missing.
        say: takes lines of progress.
        workers: how many files are copied at once.

    Returns:
        How many files were not there before.

    Raises:
        OSError: a file cannot be read or written; whole files stay, partial ones are continued.
    """
    wanted = items(source)
    os.makedirs(target, exist_ok=True)
    progress = Progress(sum(item.size for item in wanted), say)
    with ThreadPoolExecutor(max(1, workers)) as pool:
        return sum(pool.map(lambda item: _one(item, target, progress), wanted))


def _one(item: Item, target: str, progress: Progress) -> int:
    place = os.path.join(target, item.name)
    if _is_whole(item, place):
        progress.add(item.size, copied=False)
        return 0
    folder = os.path.dirname(place)
    os.makedirs(folder, exist_ok=True)
    # A file that changed has another name for its partial copy, so two are never mixed.
    aside = os.path.join(folder, f".{os.path.basename(place)}.{item.size}-{item.mtime_ns}.part")
    if not _link(item, folder, aside, progress):
        _copy_data(item, aside, progress)
        os.utime(aside, ns=(item.mtime_ns, item.mtime_ns))
    os.replace(aside, place)
    _sync(folder)
    return 1


def _is_whole(item: Item, place: str) -> bool:
    try:
        stat = os.stat(place, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (stat.st_size, stat.st_mtime_ns) == (item.size, item.mtime_ns)


def _link(item: Item, folder: str, aside: str, progress: Progress) -> bool:
    """Whether a hard link could be made; not over file systems, nor where they have none."""
    if os.stat(folder).st_dev != item.device:
        return False
    try:
        if os.path.exists(aside):
            os.unlink(aside)
        os.link(item.path, aside)
    except OSError:
        return False
    progress.add(item.size, copied=False)
    return True


def _copy_data(item: Item, aside: str, progress: Progress) -> None:
    with open(item.path, "rb", buffering=0) as reader, open(aside, "ab", buffering=0) as writer:
        os.fchmod(writer.fileno(), 0o644)
        at = min(writer.tell(), item.size)
        writer.truncate(at)
        reader.seek(at)
        progress.add(at, copied=False)
        buffer = memoryview(bytearray(1 << 22))
        since = at
        while count := reader.readinto(buffer):
            written = 0
            while written < count:
                written += writer.write(buffer[written:count])
            at += count
            progress.add(count)
            if at - since >= _CHUNK:
                _let_go(reader.fileno(), writer.fileno(), since, at)
                since = at
        _let_go(reader.fileno(), writer.fileno(), since, at)
        os.fsync(writer.fileno())
    if at != item.size:
        raise OSError(f"{item.path} has {at} bytes now, it had {item.size}; start again")


def _let_go(reader: int, writer: int, begin: int, end: int) -> None:
    os.fdatasync(writer)  # only what is on the disk can leave the cache
    for file in (reader, writer):
        os.posix_fadvise(file, begin, end - begin, os.POSIX_FADV_DONTNEED)


def _sync(folder: str) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def main(argv: Sequence[str] | None = None) -> int:
    """The program; a sentence and 1 where it cannot go on."""
    parser = argparse.ArgumentParser(description="Copy a checkpoint, with links followed.")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--workers", type=int, default=4, help="files copied at once")
    options = parser.parse_args(argv)
    try:
        count = copy(options.source, options.target, _say, options.workers)
    except OSError as error:
        sys.stderr.write(f"copying {options.source} to {options.target}: {error}\n")
        return 1
    _say(f"{count} files are new in {options.target}")
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
