# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The split of the real model by the number, checkpoints that cannot be packed, states of files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_layout import (
    LayoutError,
    Table,
    bytes_free,
    bytes_needed,
    describe,
    find_tables,
    inspect,
    split,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_pack import (
    Packing,
    Shard,
    Source,
    identity,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_wish import wanted_shards

from lab import checkpoint as lab_checkpoint

REAL = [Table(1, 384006168), Table(14, 384016682)]


# --- the split ------------------------------------------------------------------------------------

# tp, ranks, rows and bytes of layer 1, rows and bytes of layer 14, bytes of both
SIZES = [
    (3, [0], 128002056, 33792546880, 128005560, 33793471936, 67586018816),
    (3, [1, 2], 128002056, 33792546880, 128005561, 33793472200, 67586019080),
    (4, [0, 2], 96001542, 25344411184, 96004170, 25345104976, 50689516160),
    (4, [1, 3], 96001542, 25344411184, 96004171, 25345105240, 50689516424),
    (8, [0, 1, 2, 4, 5, 6], 48000771, 12672207640, 48002085, 12672554536, 25344762176),
    (8, [3, 7], 48000771, 12672207640, 48002086, 12672554800, 25344762440),
]


@pytest.mark.parametrize(
    ("tp", "rank", "numbers"),
    [(tp, rank, numbers) for tp, ranks, *numbers in SIZES for rank in ranks],
)
def test_the_real_model_is_split_as_the_engine_splits_it(tp, rank, numbers):
    (one, _), (fourteen, _) = split(REAL, tp, rank)
    told = [one.hi - one.lo, one.size, fourteen.hi - fourteen.lo, fourteen.size]
    assert [*told, one.size + fourteen.size] == numbers
    assert [one.stem, fourteen.stem] == [f"engram-l1-r{rank}of{tp}", f"engram-l14-r{rank}of{tp}"]


def test_the_uneven_table_is_cut_where_the_engine_cuts_it():
    shards = [shard for shard, _source in split(REAL, 4, None)]
    assert [shard.rank for shard in shards] == [0, 1, 2, 3] * 2
    assert [shard.lo for shard in shards[:4]] == [rank * 96001542 for rank in range(4)]
    edges = [0, 96004170, 192008341, 288012511, 384016682]
    assert [shard.lo for shard in shards[4:]] + [shards[7].hi] == edges


def test_the_header_is_as_the_format_tells():
    header = Shard(14, 1, 4, 384016682).header()
    assert header[:8] == bytes.fromhex("44 53 56 31 45 4E 34 31") == b"DSV1EN41"
    assert int.from_bytes(header[:8], "little") == 0x31344E4531565344
    numbers = [int.from_bytes(header[at : at + 8], "little") for at in range(8, 48, 8)]
    assert numbers == [14, 96004170, 192008341, 384016682, 264]
    assert header[48:] == bytes(4048)


def test_offsets_in_the_source_are_those_of_the_rank():
    source = Source("/c/f", 0, 0, "", 5000, 90)
    shard = Shard(14, 1, 4, 384016682)
    told = describe(shard, source, "/e")["source"]
    assert told["weight_offset"] == 5000 + 96004170 * 256
    assert told["weight_size"] == 96004171 * 256
    assert told["scale_offset"] == 90 + 96004170 * 8
    assert told["scale_size"] == 96004171 * 8


@pytest.mark.parametrize(
    ("tables", "tp", "rank", "told"),
    [
        (REAL, 0, None, ["tp_size is 0, expected at least 1"]),
        (REAL, -2, 0, ["tp_size is -2, expected at least 1"]),
        (REAL, 4, 4, ["rank is 4, expected 0 to 3, since tp_size is 4"]),
        (REAL, 4, -1, ["rank is -1, expected 0 to 3"]),
        ([Table(1, 5)], 6, 0, ["layer 1 has 5 rows, too few for 6 ranks"]),
        ([Table(1, 0)], 1, 0, ["layer 1 has 0 rows, too few for 1 ranks"]),
        ([Table(1, 9), Table(1, 9)], 1, 0, ["layer 1 is given more than once"]),
        ([Table(-1, 9)], 1, 0, ["layer is -1"]),
        ([], 1, 0, ["no Engram tables"]),
        ([Table(1, 5), Table(3, -4)], 9, 9, ["rank is 9", "has 5 rows", "has -4 rows"]),
    ],
)
def test_a_split_that_cannot_be_is_refused_with_every_reason(tables, tp, rank, told):
    with pytest.raises(LayoutError) as raised:
        split(tables, tp, rank)
    assert len(raised.value.problems) == len(told)
    for sentence in told:
        assert sentence in str(raised.value)


# --- the checkpoint -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("made")
    lab_checkpoint.make(directory, rows=(1003, 1006))
    return directory


@pytest.fixture
def checkpoint(made: Path, tmp_path: Path) -> Path:
    """A copy, of links, whose small files can be replaced."""
    directory = tmp_path / "checkpoint"
    directory.mkdir()
    for path in made.iterdir():
        (directory / path.name).symlink_to(path)
    return directory


def change(path: Path, act: Callable[[dict[str, Any]], None]) -> None:
    content = json.loads(path.read_text())
    act(content)
    path.unlink()
    path.write_text(json.dumps(content))


def write_table(path: Path, tensors: dict[str, tuple[str, list[int], int]]) -> None:
    """A safetensors file: {name: (dtype, shape, bytes)}, whatever they are."""
    entries, at = {}, 0
    for name, (dtype, shape, size) in tensors.items():
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    header = json.dumps(entries).encode()
    path.unlink()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(at))


W1, S1 = "layers.1.engram.embed.weight", "layers.1.engram.embed.scale"
SHARD1 = lab_checkpoint.shard(47)


def test_tables_are_where_the_reference_library_finds_them(made: Path) -> None:
    from safetensors import safe_open

    one, fourteen = find_tables(str(made), "abc")
    assert (one.layer, one.rows, fourteen.layer, fourteen.rows) == (1, 1003, 14, 1006)
    assert one.source is not None
    assert one.source.revision == "abc"
    data = Path(one.source.path).read_bytes()
    assert one.source.size == len(data)
    with safe_open(one.source.path, "np") as file:
        assert file.get_slice(W1).get_shape() == [1003, 256]
    assert data[one.source.weight :][: 1003 * 256] == lab_checkpoint.table_bytes(
        1, 1, "weight", 0, 1003
    )
    assert data[one.source.scale :][: 1003 * 8] == lab_checkpoint.table_bytes(
        1, 1, "scale", 0, 1003
    )


def refused(checkpoint: Path) -> str:
    with pytest.raises(LayoutError) as raised:
        find_tables(str(checkpoint))
    return str(raised.value)


def test_weights_and_scales_in_different_files(checkpoint: Path) -> None:
    index = checkpoint / "model.safetensors.index.json"
    change(index, lambda told: told["weight_map"].update({S1: lab_checkpoint.shard(48)}))
    assert f"{W1} is in {SHARD1}, {S1} in {lab_checkpoint.shard(48)}" in refused(checkpoint)


@pytest.mark.parametrize(
    ("file", "told"),
    [
        (None, f"names no file for the tensor {W1}"),
        ("none.safetensors", "none.safetensors: No such file or directory"),
        ("../x", "'../x', expected a file name"),
        (7, "is in 7, expected a file name"),
        ("folder", "folder: Is a directory"),
        ("loop", "loop: Too many levels of symbolic links"),
        ("config.json", "config.json: its first 8 bytes tell a header of"),
    ],
)
def test_an_index_that_names_no_usable_file(checkpoint: Path, file: Any, told: str) -> None:
    (checkpoint / "folder").mkdir()
    (checkpoint / "loop").symlink_to("loop")

    def act(content: dict[str, Any]) -> None:
        content["weight_map"].update({W1: file, S1: file})

    change(checkpoint / "model.safetensors.index.json", act)
    assert told in refused(checkpoint)


@pytest.mark.parametrize(
    ("tensors", "told"),
    [
        (
            {W1: ("BF16", [4, 128], 1024), S1: ("F8_E8M0", [4, 8], 32)},
            [f"tensor {W1} is BF16, expected F8_E4M3", "[4, 128], expected rows of 256 bytes"],
        ),
        (
            {W1: ("F8_E4M3", [4, 256], 1024), S1: ("F8_E8M0", [4, 4], 16)},
            [f"tensor {S1} has the shape [4, 4], expected rows of 8 bytes"],
        ),
        (
            {W1: ("F8_E4M3", [4, 256], 1024), S1: ("F8_E8M0", [5, 8], 40)},
            [f"{W1} has 4 rows, {S1} has 5"],
        ),
        ({W1: ("F8_E4M3", [4, 256], 1024)}, [f"no tensor {S1}"]),
        ({W1: ("F8_E4M3", [1024], 1024), S1: ("F8_E8M0", [4, 8], 32)}, ["the shape [1024]"]),
        (
            {W1: ("F8_E4M3", [4, 256], 1024), S1: ("F8_E8M0", [4, 8], 32)},
            ["tells 1003 rows of the Engram table of layer 1", "has 4"],
        ),
    ],
)
def test_tensors_that_are_no_tables(checkpoint, tensors, told):
    write_table(checkpoint / SHARD1, tensors)
    text = refused(checkpoint)
    for sentence in told:
        assert sentence in text


@pytest.mark.parametrize("cut", [5, 60, -1])
def test_a_file_that_is_cut(checkpoint: Path, cut: int) -> None:
    data = (checkpoint / SHARD1).read_bytes()
    (checkpoint / SHARD1).unlink()
    (checkpoint / SHARD1).write_bytes(data[:cut])
    assert str(checkpoint / SHARD1) in refused(checkpoint)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("model.safetensors.index.json", None, "does not exist: there is no checkpoint"),
        ("model.safetensors.index.json", '{"weight_map": {"a": NaN}}', "NaN is not JSON"),
        ("model.safetensors.index.json", "[]", "expected a JSON object"),
        ("model.safetensors.index.json", "{}", "there is no weight_map"),
        ("config.json", "{", "is not JSON"),
        ("config.json", '{"engram_layer_ids": [1], "engram_num_embeddings": 5}', "two lists"),
        ("config.json", '{"engram_layer_ids": [1, 14], "engram_num_embeddings": [1003]}', "two"),
        (
            "config.json",
            '{"engram_layer_ids": [1, 14, 20], "engram_num_embeddings": [1003, 1006, 5]}',
            "tells an Engram table of layer 20, but",
        ),
    ],
)
def test_small_files_that_are_not_usable(checkpoint, name, text, told):
    (checkpoint / name).unlink()
    if text is not None:
        (checkpoint / name).write_text(text)
    assert told in refused(checkpoint)


def wish(**fields: Any) -> dict[str, Any]:
    return {
        "checkpoint": None,
        "tables": None,
        "tp_size": 2,
        "rank": 0,
        "weight_bytes": 256,
        "scale_bytes": 8,
        "timeout": 20.0,
        **fields,
    }


def test_tables_that_the_checkpoint_does_not_have(made: Path) -> None:
    tables = [{"layer": 1, "rows": 1003}, {"layer": 14, "rows": 9}, {"layer": 20, "rows": 3}]
    with pytest.raises(LayoutError) as raised:
        wanted_shards(wish(checkpoint=str(made), tables=tables))
    assert "layer 14 has 1006 rows" in str(raised.value)
    assert "expected 9" in str(raised.value)
    assert "layer 20 has no rows" in str(raised.value)
    found = wanted_shards(
        wish(checkpoint=str(made), tables=tables[:1] + [{"layer": 14, "rows": 1006}])
    )
    assert [shard.rows for shard, _source in found] == [1003, 1006]


def test_a_checkpoint_that_does_not_answer_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "model.safetensors.index.json")
    with pytest.raises(LayoutError, match=r"no answer within 0\.2 s\. If it is a mount"):
        wanted_shards(wish(checkpoint=str(tmp_path), timeout=0.2))


# --- states ---------------------------------------------------------------------------------------


@pytest.fixture
def packed(made: Path, tmp_path: Path) -> tuple[Path, Shard, Source]:
    """Rank 0 of 2 of layer 14, whose ranks have equal sizes."""
    (_one, fourteen) = wanted_shards(wish(checkpoint=str(made)))
    shard, source = fourteen
    assert source is not None
    Packing(str(tmp_path), shard, source, "header").run(lambda count: None)
    return tmp_path / f"{shard.stem}.bin", shard, source


def patched(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def test_complete(packed):
    path, shard, source = packed
    assert inspect(str(path.parent), shard, source) == ("complete", "", 0, 0)
    assert inspect(str(path.parent), shard, None).state == "complete"
    assert bytes_needed([(shard, inspect(str(path.parent), shard, source))]) == 0
    path.with_suffix(".json").unlink()
    found = inspect(str(path.parent), shard, source)
    assert (found.state, found.reason[:18]) == ("complete", "it has no manifest")


@pytest.mark.parametrize(
    ("act", "state", "reason"),
    [
        (lambda path: path.unlink(), "absent", ""),
        (lambda path: os.truncate(path, 20), "truncated", "has 20 bytes, expected"),
        (lambda path: os.truncate(path, 0), "truncated", "has 0 bytes, expected"),
        (lambda path: os.truncate(path, path.stat().st_size - 1), "truncated", "1 miss"),
        (lambda path: os.truncate(path, path.stat().st_size + 9), "oversize", "9 too many"),
        (lambda path: patched(path, 0, bytes(4096)), "corrupt", "begins with zeros"),
        (lambda path: patched(path, 900, b"x"), "corrupt", "other bytes than zeros"),
        (lambda path: patched(path, 0, b"DS41EPG2"), "foreign", "15 rows to a page"),
        (lambda path: patched(path, 0, b"DSV41EN1"), "foreign", "as comments spell it"),
        (lambda path: patched(path, 0, b"whatever"), "foreign", "begins with b'whatever'"),
        (lambda path: patched(path, 8, b"\1"), "foreign", "layer 1, expected 14"),
        (
            lambda path: patched(path, 16, b"\7"),
            "foreign",
            "of another table or split: first row 7",
        ),
        (lambda path: patched(path, 40, b"\0"), "foreign", "bytes of a row 256, expected 264"),
        (lambda path: (path.unlink(), path.mkdir()), "corrupt", "Is a directory"),
    ],
)
def test_what_is_wrong_with_a_file_has_a_name(packed, act, state, reason):
    path, shard, source = packed
    act(path)
    found = inspect(str(path.parent), shard, source)
    assert found.state == state
    assert reason in found.reason
    assert bytes_needed([(shard, found)]) == shard.size


def test_swapped_rank_files_of_equal_size(packed):
    path, shard, source = packed
    other = shard._replace(rank=1)
    assert other.size == shard.size
    Packing(str(path.parent), other, source, "header").run(lambda count: None)
    path.rename(path.with_suffix(".aside"))
    (path.parent / f"{other.stem}.bin").rename(path)
    found = inspect(str(path.parent), shard, source)
    assert found.state == "foreign"
    assert "is a shard of rank 1 of 2: first row 503, expected 0" in found.reason


@pytest.mark.parametrize("field", ["size", "header_sha256", "revision"])
def test_packed_from_another_checkpoint(packed, field):
    path, shard, source = packed
    source = source._replace(revision="b")
    manifest = json.loads(path.with_suffix(".json").read_text())
    manifest["source"].update({"revision": "b", field: "a"})
    path.with_suffix(".json").write_text(json.dumps(manifest))
    found = inspect(str(path.parent), shard, source)
    assert found.state == "foreign"
    assert f"tells {field} a of the checkpoint" in found.reason


def test_begun_work_is_credited(packed):
    path, shard, source = packed
    path.unlink()
    partial = path.with_suffix(".partial")
    partial.write_bytes(bytes(shard.size))
    os.sync()
    journal = path.with_suffix(".journal")
    journal.write_text(json.dumps(identity(shard, source)) + "\n" + "a" * 64 + "\n")
    found = inspect(str(path.parent), shard, source)
    assert (found.state, found.rows_done) == ("partial", 503)
    assert bytes_needed([(shard, found)]) == 0
    journal.write_text(
        json.dumps(identity(shard._replace(rank=1), source)) + "\n" + "a" * 64 + "\n"
    )
    found = inspect(str(path.parent), shard, source)
    assert (found.state, found.rows_done) == ("absent", 0)
    assert "is of other work" in found.reason


def test_free_space_is_that_of_where_the_directory_would_be(tmp_path: Path) -> None:
    there, not_there = bytes_free(str(tmp_path)), bytes_free(str(tmp_path / "a/b"))
    assert abs(there - not_there) < 2**30
    assert bytes_free("/proc") == 0
