# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An independent reader of checkpoints and packed Engram tables: nothing shared with the packer.

The layouts are those of the serving recipe. Every function raises RefusedError with the words of
the engine's own message where it has one.
"""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any

MAGIC = 0x31344E4531565344
ROW = 264
START = 4096
_SAMPLES = 32


class RefusedError(Exception):
    """What is on the disk is not what this rank needs."""


def header(path: Path) -> tuple[int, dict[str, Any]]:
    """The start of the data of a safetensors file, and its tensors."""
    with path.open("rb") as stream:
        first = stream.read(8)
        if len(first) < 8:
            raise RefusedError(f"{path}: {len(first)} bytes")
        (length,) = struct.unpack("<Q", first)
        if length > 100_000_000:
            raise RefusedError(f"{path}: a header of {length} bytes")
        text = stream.read(length)
    try:
        tensors = json.loads(text)
    except ValueError as error:
        raise RefusedError(f"{path}: the header is not JSON") from error
    tensors.pop("__metadata__", None)
    end = 8 + length + max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
    size = path.stat().st_size
    if size != end:
        raise RefusedError(f"{path}: {size} bytes, its header tells of {end}")
    return 8 + length, tensors


def checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, str], list[str]]:
    """The configuration, the file of each tensor, and the files: all opened and measured."""
    config = json.loads((folder / "config.json").read_text())
    index = folder / "model.safetensors.index.json"
    if index.exists():
        places: dict[str, str] = json.loads(index.read_text())["weight_map"]
    else:
        single = "model.safetensors"
        places = dict.fromkeys(header(folder / single)[1], single)
    files = sorted(set(places.values()))
    for name in files:
        _start, tensors = header(folder / name)
        lost = [t for t, place in places.items() if place == name and t not in tensors]
        if lost:
            raise RefusedError(f"{name} holds no {lost[0]}, which the index has there")
    return config, places, files


def tables(config: dict[str, Any]) -> list[tuple[int, int]]:
    """Layer and number of rows of each Engram table of a model."""
    text = config.get("text_config", config)
    return list(
        zip(text.get("engram_layer_ids", []), text.get("engram_num_embeddings", []), strict=True)
    )


def packed(
    folder: Path, layer: int, rows: int, rank: int, tp: int, source: Path, places: dict[str, str]
) -> tuple[int, int]:
    """Check one packed table, header and sampled rows; returns the rows [lo, hi) in it."""
    path = folder / f"engram-l{layer}-r{rank}of{tp}.bin"
    low, high = rows * rank // tp, rows * (rank + 1) // tp
    try:
        with path.open("rb") as stream:
            head = stream.read(48)
            size = os.fstat(stream.fileno()).st_size
            if len(head) < 48:
                raise RefusedError(f"packed Engram shard {path} has no header")
            found = struct.unpack("<6Q", head)
            wanted = (MAGIC, layer, low, high, rows, ROW)
            if found != wanted:
                raise RefusedError(
                    f"packed Engram shard does not match: {path} has {found}, expected {wanted}"
                )
            if size < START + ROW * (high - low):
                raise RefusedError(f"packed Engram shard is truncated: {path} has {size} bytes")
            _sample(stream.fileno(), path, layer, low, high, source, places)
    except FileNotFoundError as error:
        raise RefusedError(f"no packed Engram shard {path}") from error
    return low, high


def _sample(
    file: int, path: Path, layer: int, low: int, high: int, source: Path, places: dict[str, str]
) -> None:
    """Rows spread over the table: 256 bytes of weight, then 8 of scale, as in the checkpoint."""
    parts = []
    for part, width in (("weight", 256), ("scale", 8)):
        name = f"layers.{layer}.engram.embed.{part}"
        if name not in places:
            raise RefusedError(f"the checkpoint has no {name}")
        origin = source / places[name]
        start, tensors = header(origin)
        parts.append((origin, start + tensors[name]["data_offsets"][0], width))
    step = max(1, (high - low) // _SAMPLES)
    for row in [*range(low, high, step), high - 1]:
        expected = b""
        for origin, start, width in parts:
            with origin.open("rb") as stream:
                stream.seek(start + row * width)
                expected += stream.read(width)
        found = os.pread(file, ROW, START + ROW * (row - low))
        if found != expected:
            raise RefusedError(
                f"packed Engram shard does not match: row {row} of {path} is not the checkpoint's"
            )
