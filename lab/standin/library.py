# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that look like NCCL to whoever reads them, and compute nothing."""

from __future__ import annotations

import struct

MACHINES = {"x86_64": 62, "aarch64": 183}
BUILD_ID = bytes.fromhex("05cb631cff46c79fc7e655496f951df1229cfb3f")


def library(
    *texts: str,
    machine: str = "x86_64",
    version: str | None = "2.30.7+cuda13.0",
    build_id: bytes | None = BUILD_ID,
    size: int = 3 << 20,
    kind: int = 3,
) -> bytes:
    """A shared library as its header tells it, filled up to `size` bytes."""
    note = b""
    if build_id is not None:
        # one note of another kind first, as gcc writes them
        note = struct.pack("<III", 4, 16, 1) + b"GNU\0" + bytes(16)
        note += struct.pack("<III", 4, len(build_id), 3) + b"GNU\0" + build_id
    start = 64 + 2 * 56
    load = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    notes = struct.pack("<IIQQQQQQ", 4, 4, start, 0, 0, len(note), len(note), 4)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = ident + struct.pack(
        "<HHIQQQIHHHHHH", kind, MACHINES[machine], 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0
    )
    data = bytearray(head + load + notes + note)
    data += bytes(size - len(data))
    told = [f"NCCL version {version}"] if version else []
    # the texts lie across the border between two blocks of a reader
    tail = b"\0" + b"\0".join(text.encode() for text in [*told, *texts]) + b"\0"
    begin = (1 << 20) - len(tail) // 2
    data[begin : begin + len(tail)] = tail
    return bytes(data)
