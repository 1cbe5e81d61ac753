# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packed Engram tables for tests of what reads them: as the format is described, row after row."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lab.checkpoint import table_bytes


def packed(model: Path, layer: int, rows: int, rank: int, ranks: int) -> bytes:
    """The table of one rank and layer, from a checkpoint."""
    low, high = rows * rank // ranks, rows * (rank + 1) // ranks
    index = json.loads((model / "model.safetensors.index.json").read_text())["weight_map"]
    parts = []
    for part, width in (("weight", 256), ("scale", 8)):
        name = f"layers.{layer}.engram.embed.{part}"
        data = (model / index[name]).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        start = 8 + length + json.loads(data[8 : 8 + length])[name]["data_offsets"][0]
        parts.append((data, start, width))
    body = b"".join(
        data[start + width * row : start + width * (row + 1)]
        for row in range(low, high)
        for data, start, width in parts
    )
    head = b"DSV1EN41" + struct.pack("<5Q", layer, low, high, rows, 264)
    return head.ljust(4096, b"\0") + body


def write(directory: Path, model: Path, tables: Mapping[int, int], rank: int, ranks: int) -> None:
    """The tables of one rank, under the names the engine looks for."""
    directory.mkdir(parents=True, exist_ok=True)
    for layer, rows in tables.items():
        path = directory / f"engram-l{layer}-r{rank}of{ranks}.bin"
        path.write_bytes(packed(model, layer, rows, rank, ranks))


def packed_digest(layer: int, rows: int, rank: int, ranks: int = 4) -> str:
    """The sha256 of all rows of a rank's file, without its header, from what the lab generates."""
    low, high = rows * rank // ranks, rows * (rank + 1) // ranks
    weight, scale = (
        np.frombuffer(table_bytes(1, layer, part, low, high - low), np.uint8).reshape(
            high - low, -1
        )
        for part in ("weight", "scale")
    )
    return hashlib.sha256(np.hstack([weight, scale]).tobytes()).hexdigest()
