# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Which rows of the Engram tables a rank owns, where they are, and what of them is packed already.

The format is told in `_engram_pack`, which writes it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_pack import (
    HEADER,
    MAGIC,
    PAGE,
    Shard,
    Source,
    durable_rows,
    read_journal,
    read_manifest,
    tensor_names,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._safetensors import (
    Header,
    SafetensorsError,
    read_header,
)

INDEX, CONFIG = "model.safetensors.index.json", "config.json"
STATES = ("absent", "partial", "complete", "foreign", "truncated", "oversize", "corrupt")
WEIGHT_DTYPE, SCALE_DTYPE = "F8_E4M3", "F8_E8M0"

_TABLE = re.compile(r"layers\.([0-9]+)\.engram\.embed\.(?:weight|scale)")
_LOOK_ALIKES = {
    b"DS41EPG2": "15 rows to a page, which is another packer's format",
    MAGIC[::-1]: "written by a big-endian machine",
    b"DSV41EN1": "the magic as comments spell it, which no little-endian writer produces",
}


class LayoutError(Exception):
    """Tables or a split that cannot be; `problems` are sentences for people."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class AbsentError(LayoutError):
    """There is no checkpoint at all where it should be."""


class Table(NamedTuple):
    """One table. `source` is None where only its size is known."""

    layer: int
    rows: int
    source: Source | None = None


# --- the split ------------------------------------------------------------------------------------


def split(
    tables: Iterable[Table],
    tp_size: int,
    rank: int | None,
    weight_bytes: int = 256,
    scale_bytes: int = 8,
) -> list[tuple[Shard, Source | None]]:
    """The shards of a rank, or of all ranks, in the order of layers and ranks.

    Rank r owns the rows [N * r // tp, N * (r + 1) // tp) of each table; the engine's row store
    computes the same and refuses any other range.

    Raises:
        LayoutError: every reason why there is no such split.
    """
    tables = sorted(tables, key=lambda table: table.layer)
    problems = []
    if tp_size < 1:
        problems.append(f"tp_size is {tp_size}, expected at least 1")
    elif rank is not None and not 0 <= rank < tp_size:
        problems.append(f"rank is {rank}, expected 0 to {tp_size - 1}, since tp_size is {tp_size}")
    if min(weight_bytes, scale_bytes) < 1:
        problems.append(
            f"a row has {weight_bytes} bytes of weights and {scale_bytes} of scales, expected at "
            "least 1 of each"
        )
    if not tables:
        problems.append("there are no Engram tables to split")
    layers = [table.layer for table in tables]
    problems += [
        f"layer {layer} is given more than once"
        for layer in sorted({layer for layer in layers if layers.count(layer) > 1})
    ]
    for table in tables:
        if table.layer < 0:
            problems.append(f"layer is {table.layer}, expected 0 or more")
        if table.rows < max(tp_size, 1):
            problems.append(
                f"the table of layer {table.layer} has {table.rows} rows, too few for "
                f"{max(tp_size, 1)} ranks: each has to own at least one"
            )
    if problems:
        raise LayoutError(*problems)
    ranks = range(tp_size) if rank is None else [rank]
    return [
        (
            Shard(table.layer, number, tp_size, table.rows, weight_bytes, scale_bytes),
            table.source,
        )
        for table in tables
        for number in ranks
    ]


# --- the checkpoint -------------------------------------------------------------------------------


def find_tables(
    checkpoint: str, revision: str = "", weight_bytes: int = 256, scale_bytes: int = 8
) -> list[Table]:
    """The Engram tables of a checkpoint, from its index, its config and the headers of two files.

    Raises:
        AbsentError: there is no checkpoint.
        LayoutError: every reason why its tables cannot be packed.
    """
    index = os.path.join(checkpoint, INDEX)
    if not os.path.lexists(index):
        raise AbsentError(
            f"{index} does not exist: there is no checkpoint, or the wrong directory, or what is "
            "mounted there is not"
        )
    weight_map = _json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise LayoutError(f"{index}: there is no weight_map, expected one of tensors to files")
    layers = sorted({int(match[1]) for name in weight_map if (match := _TABLE.fullmatch(name))})
    told = _told_rows(os.path.join(checkpoint, CONFIG))
    problems, tables = [], []
    for layer in layers:
        try:
            table = _find_table(checkpoint, weight_map, layer, weight_bytes, scale_bytes)
        except LayoutError as error:
            problems += error.problems
            continue
        expected = told.get(layer, table.rows)
        if expected != table.rows:
            problems.append(
                f"{CONFIG} tells {expected} rows of the Engram table of layer {layer}, the tensor "
                f"{tensor_names(layer)[0]} has {table.rows}: they are of different revisions"
            )
        if table.source:
            tables.append(table._replace(source=table.source._replace(revision=revision)))
    problems += [
        f"{CONFIG} tells an Engram table of layer {layer}, but {INDEX} names no tensor "
        f"{tensor_names(layer)[0]}"
        for layer in sorted(told.keys() - set(layers))
    ]
    if problems:
        raise LayoutError(*problems)
    return tables


def _find_table(checkpoint: str, weight_map: Mapping[str, Any], layer: int, *widths: int) -> Table:
    names = tensor_names(layer)
    files = [weight_map.get(name) for name in names]
    for name, file in zip(names, files, strict=True):
        if file is None:
            raise LayoutError(f"{INDEX} names no file for the tensor {name}")
        if not isinstance(file, str) or os.path.basename(file) != file or not file:
            raise LayoutError(f"{INDEX}: tensor {name} is in {file!r}, expected a file name")
    if files[0] != files[1]:
        raise LayoutError(
            f"{INDEX}: {names[0]} is in {files[0]}, {names[1]} in {files[1]}; the engine reads "
            "both from one file"
        )
    path = os.path.join(checkpoint, str(files[0]))
    try:
        header = read_header(path)
        with open(path, "rb") as stream:
            digest = hashlib.sha256(stream.read(header.data_start)).hexdigest()
            told = os.fstat(stream.fileno())
    except SafetensorsError as error:
        raise LayoutError(str(error)) from error
    except OSError as error:
        raise LayoutError(
            f"{path}: {error.strerror}; {INDEX} says that the tensor {names[0]} is in it"
        ) from error
    rows = _rows(path, header, names, widths)
    weight, scale = (header.span(name)[0] for name in names)
    source = Source(os.path.realpath(path), told.st_size, told.st_mtime_ns, digest, weight, scale)
    return Table(layer, rows, source)


def _rows(path: str, header: Header, names: Sequence[str], widths: Sequence[int]) -> int:
    problems = []
    rows = []
    for name, dtype, width in zip(names, (WEIGHT_DTYPE, SCALE_DTYPE), widths, strict=True):
        tensor = header.tensors.get(name)
        if tensor is None:
            problems.append(f"{path}: no tensor {name}, although {INDEX} says so")
            continue
        if tensor.dtype != dtype:
            problems.append(f"{path}: tensor {name} is {tensor.dtype}, expected {dtype}")
        if len(tensor.shape) != 2 or tensor.shape[1] != width:
            problems.append(
                f"{path}: tensor {name} has the shape {list(tensor.shape)}, expected rows of "
                f"{width} bytes"
            )
        else:
            rows.append(tensor.shape[0])
    if len(set(rows)) > 1:
        problems.append(
            f"{path}: {names[0]} has {rows[0]} rows, {names[1]} has {rows[1]}; expected as many"
        )
    if problems:
        raise LayoutError(*problems)
    return rows[0]


def _told_rows(path: str) -> dict[int, int]:
    """Layer to rows, as the model's configuration tells. Empty where it tells nothing."""
    config = _json(path)
    text = config.get("text_config", config)
    text = text if isinstance(text, dict) else {}
    layers: Any = text.get("engram_layer_ids")
    rows: Any = text.get("engram_num_embeddings")
    if layers is None and rows is None:
        return {}
    plain = all(
        isinstance(found, list)
        and all(isinstance(item, int) and not isinstance(item, bool) for item in found)
        for found in (layers, rows)
    )
    if not plain or len(layers) != len(rows):
        raise LayoutError(
            f"{path}: engram_layer_ids is {layers!r} and engram_num_embeddings is {rows!r}, "
            "expected two lists of numbers, as long as each other"
        )
    return dict(zip(layers, rows, strict=True))


def _json(path: str) -> dict[str, Any]:
    def refuse(text: str) -> Any:
        raise ValueError(f"{text} is not JSON")

    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream, parse_constant=refuse)
    except OSError as error:
        raise LayoutError(
            f"{path}: {error.strerror}; is {os.path.dirname(path)} the whole checkpoint?"
        ) from error
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path} is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise LayoutError(f"{path}: expected a JSON object")
    return found


# --- what is packed -------------------------------------------------------------------------------


class Found(NamedTuple):
    """What there is of one shard.

    Args:
        state: one of `STATES`.
        reason: why it is not complete, or what is odd about it.
        rows_done: rows of unfinished work that is continued.
        allocated: bytes on the disk that unfinished work, continued or not, takes already.
    """

    state: str
    reason: str
    rows_done: int = 0
    allocated: int = 0


def inspect(directory: str, shard: Shard, source: Source | None) -> Found:
    """Look at the header, the size and the manifest of a shard, never at its rows.

    Args:
        directory: where shards are; need not exist.
        shard: what is looked for.
        source: the checkpoint it has to be from, if that is known.
    """
    path = os.path.join(directory, f"{shard.stem}.bin")
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            header = stream.read(PAGE)
    except FileNotFoundError:
        return _unfinished(directory, shard, source)
    except OSError as error:
        return Found("corrupt", f"{path} cannot be read: {error.strerror}")
    reason = _other(header, shard)
    if reason:
        return Found("foreign", f"{path} is {reason}")
    if not any(header) and size:
        return Found("corrupt", f"{path} begins with zeros, as a file that never reached the disk")
    if size < shard.size:
        missing = shard.size - size
        return Found("truncated", f"{path} has {size} bytes, expected {shard.size}: {missing} miss")
    if header != shard.header():
        return Found("corrupt", f"{path} has other bytes than zeros between header and rows")
    if size > shard.size:
        more = size - shard.size
        return Found("oversize", f"{path} has {size} bytes, expected {shard.size}: {more} too many")
    return _by_manifest(directory, shard, source)


def _other(header: bytes, shard: Shard) -> str:
    """What a file is instead, by its header; empty if it is this shard or tells nothing."""
    if len(header) < HEADER.size or not any(header):
        return ""
    magic, *numbers = HEADER.unpack_from(header)
    if magic != MAGIC:
        known = _LOOK_ALIKES.get(magic)
        return f"no shard of this format: it begins with {magic!r}" + (
            f", {known}" if known else ""
        )
    names = ("layer", "first row", "end row", "rows of the table", "bytes of a row")
    wanted = (shard.layer, shard.lo, shard.hi, shard.rows, shard.row_bytes)
    differ = [
        f"{name} {found}, expected {expected}"
        for name, found, expected in zip(names, numbers, wanted, strict=True)
        if found != expected
    ]
    if not differ:
        return ""
    owner = next(
        (
            f"of rank {rank} of {shard.tp_size}"
            for rank in range(shard.tp_size)
            if shard._replace(rank=rank).header()[: HEADER.size] == header[: HEADER.size]
        ),
        "of another table or split",
    )
    return f"a shard {owner}: {'; '.join(differ)}"


def _unfinished(directory: str, shard: Shard, source: Source | None) -> Found:
    stem = os.path.join(directory, shard.stem)
    allocated = 0
    with contextlib.suppress(OSError):
        allocated = min(os.stat(f"{stem}.partial").st_blocks * 512, shard.size)
    rows = durable_rows(directory, shard, source)
    total = shard.hi - shard.lo
    if rows:
        share = f"{rows} of {total} rows ({100 * rows // total} %)"
        return Found("partial", f"{stem}.partial has {share}", rows, allocated)
    if read_journal(f"{stem}.journal")[0] is not None:
        return Found(
            "absent", f"{stem}.partial is of other work, and is not continued", 0, allocated
        )
    return Found("absent", "", 0, allocated)


def _by_manifest(directory: str, shard: Shard, source: Source | None) -> Found:
    manifest = read_manifest(directory, shard)
    if manifest is None:
        return Found("complete", "it has no manifest: its rows were not hashed when it was packed")
    path = os.path.join(directory, f"{shard.stem}.json")
    if manifest.get("shard") != shard._asdict():
        return Found("foreign", f"{path} is the manifest of another shard")
    packed = manifest.get("source", {})
    for name, wanted in (source.content if source else {}).items():
        had = packed.get(name)
        # What lies where is in the hash of the header; names of files may change.
        if name in {"size", "header_sha256", "revision"} and had and wanted and had != wanted:
            return Found(
                "foreign", f"{path} tells {name} {had} of the checkpoint, which now has {wanted}"
            )
    return Found("complete", "")


def describe(
    shard: Shard, source: Source | None, directory: str = "", found: Found | None = None
) -> dict[str, Any]:
    """A shard for people and programs."""
    rows = shard.hi - shard.lo
    return {
        "layer": shard.layer,
        "rank": shard.rank,
        "file": f"{shard.stem}.bin",
        "path": os.path.join(directory, f"{shard.stem}.bin") if directory else None,
        "first_row": shard.lo,
        "end_row": shard.hi,
        "rows": rows,
        "table_rows": shard.rows,
        "size": shard.size,
        "source": {
            "path": source.path,
            "weight_offset": source.weight + shard.lo * shard.weight_bytes,
            "weight_size": rows * shard.weight_bytes,
            "scale_offset": source.scale + shard.lo * shard.scale_bytes,
            "scale_size": rows * shard.scale_bytes,
        }
        if source
        else None,
        "state": found.state if found else None,
        "reason": found.reason if found else "",
        "rows_done": found.rows_done if found else 0,
    }


def bytes_needed(shards: Iterable[tuple[Shard, Found]]) -> int:
    """Bytes that have to be free for all that is not complete; work begun has its space already."""
    return sum(
        max(0, shard.size - found.allocated) for shard, found in shards if found.state != "complete"
    )


def bytes_free(directory: str) -> int:
    """Bytes free to anybody on the filesystem a directory is on, or would be on."""
    place = os.path.abspath(directory)
    while not os.path.isdir(place) and place != "/":
        place = os.path.dirname(place)
    told = os.statvfs(place)
    return told.f_bavail * told.f_frsize
