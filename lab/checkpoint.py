# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for the checkpoint: real names, Engram tables of any length, all else tiny.

What a row holds follows from its number alone, so that any part of a table can be told without
reading the rest. The order of tensors is that of the reference library's own writer: wider dtypes
first, then by name, which puts the scales of a table before its weights.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import yaml

from lab import ssh
from lab.spec import Host, Lab
from lab.system import LabError, say

SHARDS = 48
LAYERS = (1, 14)  # with an Engram table each
ROWS = (6007, 6011)
REAL_ROWS = (384_006_168, 384_016_682)
WEIGHT, SCALE = 256, 8  # bytes of a row
FACTS = Path(__file__).parents[1] / "roles/spark/files/models/deepseek-v4.1-flash.yml"

_LAYERS, _DRAFT_STAGES = 40, 3
_CHUNK = 1 << 24  # bytes written at once
_PAGE = 4096
# Rows at the edges of these numbers of ranks are filled in a sparse table.
_RANKS = (1, 2, 3, 4, 6, 8)
# The library's order of dtypes, wide ones first.
_ORDER = ("F32", "BF16", "F8_E8M0", "F8_E4M3", "I8")
_BYTES = {"F32": 4, "BF16": 2, "F8_E8M0": 1, "F8_E4M3": 1, "I8": 1}

Tensors = dict[str, tuple[str, tuple[int, ...]]]  # name: (dtype, shape)


def shard(number: int) -> str:
    return f"model-{number:05d}-of-{SHARDS:05d}.safetensors"


def table_bytes(seed: int, layer: int, part: str, first: int, rows: int) -> bytes:
    """What `rows` rows of a table hold from row `first` on; `part` is weight or scale.

    A 64-bit word is splitmix64 of its position and of what table it belongs to.
    """
    width = WEIGHT if part == "weight" else SCALE
    key = int.from_bytes(hashlib.sha256(f"{seed}/{layer}/{part}".encode()).digest()[:8], "little")
    position = np.arange(first * width // 8, (first + rows) * width // 8, dtype=np.uint64)
    with np.errstate(over="ignore"):
        word = position * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
        word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    data: bytes = (word ^ (word >> np.uint64(31))).astype("<u8").tobytes()
    return data


def make(
    directory: Path,
    *,
    rows: Sequence[int] = ROWS,
    layers: Sequence[int] = LAYERS,
    sparse: bool = False,
    seed: int = 1,
    experts: int = 2,
) -> dict[str, Any]:
    """Write a checkpoint and return the facts about it, in the form of the collection's own.

    Args:
        directory: made if missing; files of the same names are replaced.
        rows: how many rows each Engram table has.
        layers: the layer of each Engram table. The last shards of the checkpoint hold one each.
        sparse: leave out all rows but those at the edges of ranks and a few in between.
        seed: other contents of the same form.
        experts: how many experts a layer has; the real model's 384 make a header of its length.
    """
    if len(rows) != len(layers):
        raise LabError(f"{len(rows)} row counts for {len(layers)} Engram layers")
    directory.mkdir(parents=True, exist_ok=True)
    plan = _plan(dict(zip(layers, rows, strict=True)), experts)
    weight_map: dict[str, str] = {}
    total = 0
    for number, tensors in plan.items():
        weight_map.update(dict.fromkeys(tensors, shard(number)))
        total += sum(_size(*tensor) for tensor in tensors.values())
        _write_shard(directory / shard(number), tensors, seed, sparse)
    _write_json(
        directory / "model.safetensors.index.json",
        {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))},
    )
    for name, content in _small_files(rows, layers, experts, seed).items():
        _write_json(directory / name, content)
    (directory / "README.md").write_text("Made by the lab; random contents, computes nothing.\n")
    return facts(directory, rows, layers)


def facts(directory: Path, rows: Sequence[int], layers: Sequence[int]) -> dict[str, Any]:
    """The collection's facts about the real model, with the sizes of this checkpoint."""
    known: dict[str, Any] = yaml.safe_load(FACTS.read_text())
    config = hashlib.sha256((directory / "config.json").read_bytes()).hexdigest()
    return {
        **known,
        "served_name": "lab",
        "repository": "sparkfleet/lab",
        "revision": config[:40],
        "weight_bytes": sum(
            (directory / shard(number)).stat().st_size for number in range(1, SHARDS + 1)
        ),
        "config_sha256": config,
        "engram": {
            **known["engram"],
            "tables": [
                {"layer": layer, "rows": count} for layer, count in zip(layers, rows, strict=True)
            ],
        },
    }


def write_facts(path: Path, told: Mapping[str, Any]) -> None:
    """For `spark_model`."""
    path.write_text(yaml.safe_dump(dict(told), sort_keys=False, explicit_start=True))


def put(lab: Lab, host: Host, directory: Path, target: str = "/data/checkpoint") -> None:
    """Copy a checkpoint to a host; holes stay holes."""
    place = shlex.quote(target)
    unpack = ["sudo", "-n", "sh", "-c", f"mkdir -p {place} && tar -xSf - -C {place}"]
    pack = subprocess.Popen(
        ["tar", "-cSf", "-", "--owner=0", "--group=0", "-C", str(directory), "."],
        stdout=subprocess.PIPE,
    )
    with pack:
        done = subprocess.run(
            ssh.command(lab, host, unpack), stdin=pack.stdout, capture_output=True, check=False
        )
    if done.returncode or pack.returncode:
        raise LabError(f"copying to {host.name} failed: {done.stderr.decode().strip()}")
    say(f"{host.name}: {target}")


# --- which tensors ---


def _plan(tables: Mapping[int, int], experts: int) -> dict[int, Tensors]:
    """{shard: tensors}: layers first, then the draft in three shards, then one table each."""
    bodies = SHARDS - _DRAFT_STAGES - len(tables)
    plan: dict[int, Tensors] = {number: {} for number in range(1, SHARDS + 1)}
    for layer in range(_LAYERS):
        plan[layer * bodies // _LAYERS + 1].update(_block(f"layers.{layer}", experts))
    for empty in (number for number in range(1, bodies + 1) if not plan[number]):
        plan[empty] = {f"hc.{empty}.weight": ("F32", (4, 4))}
    plan[1]["embed.weight"] = ("BF16", (32, 8))
    plan[bodies]["norm.weight"] = ("BF16", (8,))
    plan[bodies]["head.weight"] = ("BF16", (32, 8))
    for stage in range(_DRAFT_STAGES):
        plan[bodies + stage + 1].update(_block(f"mtp.{stage}", max(1, experts // 3)))
    for number, (layer, rows) in enumerate(tables.items(), start=SHARDS - len(tables) + 1):
        plan[number] = {
            f"layers.{layer}.engram.embed.weight": ("F8_E4M3", (rows, WEIGHT)),
            f"layers.{layer}.engram.embed.scale": ("F8_E8M0", (rows, SCALE)),
            f"layers.{layer}.engram.wkv.weight": ("F8_E4M3", (32, 32)),
            f"layers.{layer}.engram.wkv.scale": ("F8_E8M0", (1, 1)),
            f"layers.{layer}.engram.q_weight": ("BF16", (8,)),
            f"layers.{layer}.engram.k_weight": ("BF16", (8,)),
        }
    return plan


def _block(prefix: str, experts: int) -> Tensors:
    tensors: Tensors = {
        f"{prefix}.attn.wq.weight": ("F8_E4M3", (32, 32)),
        f"{prefix}.attn.wq.scale": ("F8_E8M0", (1, 1)),
        f"{prefix}.attn_norm.weight": ("BF16", (8,)),
        f"{prefix}.ffn.gate.weight": ("F32", (experts, 8)),
    }
    for expert in range(experts):
        for matrix in ("w1", "w2", "w3"):
            name = f"{prefix}.ffn.experts.{expert}.{matrix}"
            tensors[f"{name}.weight"] = ("I8", (4, 16))
            tensors[f"{name}.scale"] = ("F8_E8M0", (4, 1))
    return tensors


def _small_files(
    rows: Sequence[int], layers: Sequence[int], experts: int, seed: int
) -> dict[str, dict[str, Any]]:
    return {
        "config.json": {
            "architectures": ["DeepseekV41ForCausalLM"],
            "model_type": "deepseek_v41",
            "lab_seed": seed,
            "text_config": {
                "hidden_size": 5120,
                "num_hidden_layers": _LAYERS,
                "num_attention_heads": 64,
                "n_routed_experts": experts,
                "vocab_size": 129280,
                "max_position_embeddings": 1048576,
                "engram_layer_ids": list(layers),
                "engram_num_embeddings": list(rows),
                "engram_head_dim": WEIGHT,
            },
        },
        "generation_config.json": {"temperature": 1.0, "top_p": 0.95},
        "tokenizer.json": {"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}},
        "tokenizer_config.json": {"model_max_length": 1048576},
    }


# --- writing ---


def _write_shard(path: Path, tensors: Tensors, seed: int, sparse: bool) -> None:
    ordered = sorted(tensors, key=lambda name: (_ORDER.index(tensors[name][0]), name))
    entries: dict[str, Any] = {}
    at = 0
    for name in ordered:
        dtype, shape = tensors[name]
        end = at + _size(dtype, shape)
        entries[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, end]}
        at = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    aside = path.with_name(f".{path.name}.part")
    with aside.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        start = stream.tell()
        for name in ordered:
            stream.seek(start + entries[name]["data_offsets"][0])
            _write_tensor(stream, name, tensors[name], seed, sparse)
        stream.truncate(start + at)
    aside.replace(path)


def _write_tensor(
    stream: BinaryIO, name: str, tensor: tuple[str, tuple[int, ...]], seed: int, sparse: bool
) -> None:
    layer, _dot, part = name.removeprefix("layers.").partition(".engram.embed.")
    if not part:
        size = _size(*tensor)
        stream.write(hashlib.shake_128(f"{seed}/{name}".encode()).digest(size))
        return
    count, width = tensor[1]
    start = stream.tell()
    for first, rows in _spots(count, seed) if sparse else _chunks(count, _CHUNK // width):
        stream.seek(start + first * width)
        stream.write(table_bytes(seed, int(layer), part, first, rows))


def _chunks(count: int, step: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, step):
        yield first, min(step, count - first)


def _spots(count: int, seed: int) -> Iterator[tuple[int, int]]:
    """Where a sparse table is filled: around every edge between ranks, and here and there."""
    around = _PAGE // SCALE
    edges = {count * rank // ranks for ranks in _RANKS for rank in range(ranks + 1)}
    draw = np.random.Generator(np.random.PCG64(seed))
    edges.update(int(row) for row in draw.integers(0, count, 64))
    for edge in sorted(edges):
        first, end = max(0, edge - around), min(count, edge + around)
        yield first, end - first


def _size(dtype: str, shape: Sequence[int]) -> int:
    size = _BYTES[dtype]
    for factor in shape:
        size *= factor
    return size


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")
