# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What an NCCL library is: processor, version, build, and the marks of the patches in it.

A marker says that a patch is in there, not whose: identity is the SHA-256. Two builds of one
version behave differently (vllm issue 42354).
"""

from __future__ import annotations

import hashlib
import os
import re
import struct
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

CHUNK = 1 << 20
_OVERLAP = 256  # bytes: more than a marker or a version has
# The text NCCL prints when it starts: VERSION_STRING in its init.cc.
_VERSION = re.compile(rb"NCCL version (\d+\.\d+\.\d+[0-9A-Za-z.+_-]{0,40})\0")
# e_machine of the ELF header, in the words of `uname -m`.
MACHINES = {62: "x86_64", 183: "aarch64"}
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_NOTE = struct.Struct("<III")
_SHARED, _LOAD, _NOTES, _BUILD_ID = 3, 1, 4, 3
_NOTES_LIMIT = 1 << 16  # bytes of notes that are looked at


class ElfError(Exception):
    """The file is no shared library that could be loaded here; the text says what it is."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Elf(NamedTuple):
    """Of a shared library: its processor and the id its linker gave it (hexadecimal)."""

    machine: str
    build_id: str | None


def library_facts(path: str, markers: Sequence[str], machine: str) -> dict[str, Any]:
    """Look at a library without loading it, in bounded memory.

    Args:
        path: the file.
        markers: texts that have to be in it.
        machine: what it has to be made for, as `uname -m` says it.

    Returns:
        `exists`, `size` (bytes), `sha256`, `machine`, `build_id`, `version`, `markers` (for each
        whether it is there), and `problems` as {code, message}; all None that cannot be known.
    """
    facts: dict[str, Any] = {
        "path": path,
        "exists": False,
        "size": None,
        "sha256": None,
        "machine": None,
        "build_id": None,
        "version": None,
        "markers": dict.fromkeys(markers, False),
        "problems": [],
    }

    def problem(code: str, message: str) -> None:
        facts["problems"].append({"code": code, "message": message})

    try:
        with open(path, "rb") as stream:
            facts["exists"] = True
            facts["size"] = os.fstat(stream.fileno()).st_size
            facts["sha256"], facts["version"], found = _scan(stream, markers)
            facts["markers"] = {marker: marker in found for marker in markers}
            elf = read_elf(stream, facts["size"])
    except FileNotFoundError:
        problem("missing", f"there is no file {path}")
        return facts
    except OSError as error:
        problem("unreadable", f"{path} cannot be read: {error.strerror}")
        return facts
    except ElfError as error:
        problem(error.code, f"{path} {error}")
        return facts
    facts.update(machine=elf.machine, build_id=elf.build_id)
    if elf.machine != machine:
        problem("wrong-machine", f"{path} is made for {elf.machine}, expected {machine}")
    if facts["version"] is None:
        problem("not-nccl", f"{path} is a library, but not NCCL: it names no version of it")
    missing = [marker for marker, there in facts["markers"].items() if not there]
    if missing and facts["version"]:
        problem(
            "markers-missing",
            f"{path} is NCCL {facts['version']} without {', '.join(missing)}: a stock library, or "
            "one with another patch. Expected one built with the patch that has these marks",
        )
    return facts


def _scan(stream: IO[bytes], markers: Sequence[str]) -> tuple[str, str | None, set[str]]:
    digest = hashlib.sha256()
    version: str | None = None
    wanted = {marker: marker.encode() for marker in markers}
    found: set[str] = set()
    before = b""
    for chunk in iter(lambda: stream.read(CHUNK), b""):
        digest.update(chunk)
        window = before + chunk
        if version is None:
            match = _VERSION.search(window)
            version = match[1].decode() if match else None
        found |= {marker for marker, text in wanted.items() if text in window}
        before = window[-_OVERLAP:]
    return digest.hexdigest(), version, found


def read_elf(stream: IO[bytes], size: int) -> Elf:
    """Read the header of a shared library.

    Raises:
        ElfError: it is something else, of a kind no Spark loads, or shorter than its header says.
    """
    stream.seek(0)
    head = stream.read(_HEADER.size)
    if head[:4] != b"\x7fELF":
        told = "is empty" if not head else f"begins with {head[:8]!r}"
        raise ElfError("not-elf", f"is no ELF file: it {told}")
    if len(head) < _HEADER.size:
        raise ElfError("truncated", f"ends within its header, after {size} bytes")
    if head[4] != 2 or head[5] != 1:
        raise ElfError("not-elf", "is not a 64-bit little-endian ELF file")
    fields = _HEADER.unpack(head)
    kind, machine, program, sections = fields[1], fields[2], fields[5], fields[6]
    entry, count, section_size, section_count = fields[9], fields[10], fields[11], fields[12]
    if kind != _SHARED:
        raise ElfError("not-elf", f"is no shared library (ELF type {kind}, expected {_SHARED})")
    if entry != _SEGMENT.size and count:
        raise ElfError("not-elf", f"has program headers of {entry} bytes, expected {_SEGMENT.size}")
    needed = max(program + entry * count, sections + section_size * section_count)
    segments = []
    if needed <= size:
        stream.seek(program)
        table = stream.read(entry * count)
        segments = [_SEGMENT.unpack_from(table, at * entry) for at in range(count)]
        needed = max(
            [needed, *(offset + length for _t, _f, offset, _v, _p, length, *_r in segments)]
        )
    if needed > size:
        raise ElfError("truncated", f"has {size} bytes, but its header speaks of {needed}")
    return Elf(
        MACHINES.get(machine, f"machine {machine}"),
        next(_build_ids(stream, segments), None),
    )


def _build_ids(stream: IO[bytes], segments: Sequence[Sequence[int]]) -> Iterator[str]:
    for kind, _flags, offset, _virtual, _physical, length, _memory, align in segments:
        if kind != _NOTES:
            continue
        stream.seek(offset)
        data = stream.read(min(length, _NOTES_LIMIT))
        step = 8 if align == 8 else 4
        at = 0
        while at + _NOTE.size <= len(data):
            names, described, note = _NOTE.unpack_from(data, at)
            name = at + _NOTE.size
            begin = name + -(-names // step) * step
            if note == _BUILD_ID and data[name : name + names] == b"GNU\0":
                yield data[begin : begin + described].hex()
            at = begin + -(-described // step) * step
