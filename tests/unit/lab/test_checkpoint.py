"""The lab's checkpoint is one the reference library reads, and the same every time."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.module_utils._safetensors import read_header
from safetensors import TensorSpec, deserialize, serialize

from lab import checkpoint
from lab.cli import main

ROWS = (1009, 523)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("made") / "checkpoint"
    return directory, checkpoint.make(directory, rows=ROWS)


def test_every_shard_is_what_the_library_reads(made):
    directory, told = made
    index = json.loads((directory / "model.safetensors.index.json").read_text())["weight_map"]
    shards = sorted(directory.glob("model-*-of-00048.safetensors"))
    assert len(shards) == told["weight_files"] == 48
    assert sum(path.stat().st_size for path in shards) == told["weight_bytes"]
    seen = {}
    for path in shards:
        theirs = dict(deserialize(path.read_bytes()))
        header = read_header(path)
        assert {k: (t["dtype"], tuple(t["shape"])) for k, t in theirs.items()} == {
            k: (t.dtype, t.shape) for k, t in header.tensors.items()
        }
        seen.update(dict.fromkeys(theirs, path.name))
    assert seen == index


def test_the_order_of_tensors_is_that_of_the_library(made):
    path = made[0] / checkpoint.shard(47)
    read = deserialize(path.read_bytes())
    kept = {name: np.frombuffer(tensor["data"], dtype=np.uint8) for name, tensor in read}
    given = {
        name: TensorSpec(
            dtype=DTYPES[tensor["dtype"]],
            shape=tensor["shape"],
            data_ptr=kept[name].ctypes.data,
            data_len=kept[name].nbytes,
        )
        for name, tensor in sorted(read, reverse=True)
    }
    written = serialize(given)
    header = json.loads(written[8 : 8 + int.from_bytes(written[:8], "little")])
    assert list(read_header(path).tensors) == list(header)


# What the library's writer calls the dtypes.
DTYPES = {"F8_E4M3": "float8_e4m3fn", "F8_E8M0": "float8_e8m0fnu", "BF16": "bfloat16"}


def test_tables_are_in_the_last_shards_and_hold_what_is_told(made):
    directory, told = made
    assert told["engram"]["tables"] == [
        {"layer": 1, "rows": ROWS[0]},
        {"layer": 14, "rows": ROWS[1]},
    ]
    for number, layer, rows in ((47, 1, ROWS[0]), (48, 14, ROWS[1])):
        header = read_header(directory / checkpoint.shard(number))
        data = (directory / checkpoint.shard(number)).read_bytes()
        for part, dtype, width in (("weight", "F8_E4M3", 256), ("scale", "F8_E8M0", 8)):
            name = f"layers.{layer}.engram.embed.{part}"
            assert header.tensors[name][:2] == (dtype, (rows, width))
            begin, end = header.span(name)
            assert data[begin:end] == checkpoint.table_bytes(1, layer, part, 0, rows)


def test_a_part_of_a_table_is_told_without_the_rest():
    whole = checkpoint.table_bytes(7, 1, "weight", 0, 100)
    assert checkpoint.table_bytes(7, 1, "weight", 40, 3) == whole[40 * 256 : 43 * 256]
    assert len(np.unique(np.frombuffer(whole, dtype="<u8"))) == 100 * 32
    assert whole != checkpoint.table_bytes(8, 1, "weight", 0, 100)


def test_contents_follow_from_the_seed(made, tmp_path):
    directory, told = made
    assert checkpoint.make(tmp_path / "again", rows=ROWS) == told
    assert contents(tmp_path / "again") == contents(directory)
    other = checkpoint.make(tmp_path / "other", rows=ROWS, seed=2)
    assert other["revision"] != told["revision"]


def test_a_sparse_table_is_filled_at_the_edges_of_ranks(tmp_path):
    rows = (400_003, 9)
    checkpoint.make(tmp_path, rows=rows, sparse=True)
    path = tmp_path / checkpoint.shard(47)
    begin, _end = read_header(path).span("layers.1.engram.embed.weight")
    with path.open("rb") as stream:
        for rank in range(5):
            row = min(rows[0] * rank // 4, rows[0] - 1)
            stream.seek(begin + row * 256)
            assert stream.read(256) == checkpoint.table_bytes(1, 1, "weight", row, 1)
    assert path.stat().st_blocks * 512 < path.stat().st_size / 2


def test_the_command_line_writes_facts_beside_it(tmp_path, capsys):
    assert main(["checkpoint", str(tmp_path / "made"), "--rows", "11,13"]) == 0
    told = yaml.safe_load((tmp_path / "made.yml").read_text())
    assert [table["rows"] for table in told["engram"]["tables"]] == [11, 13]
    assert str(tmp_path / "made.yml") in capsys.readouterr().out
