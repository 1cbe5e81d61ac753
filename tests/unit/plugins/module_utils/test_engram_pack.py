# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packing program against a slow reference, against interruptions and against bad input."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _engram_pack as engram
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_pack import (
    Job,
    MismatchError,
    PackError,
    Packing,
    Shard,
    Source,
    durable_rows,
    read_journal,
    read_manifest,
    verify,
)

from tests.support.playbook import ROOT

BLOCK = 512  # rows; the smallest whose bytes are whole pages


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engram, "BLOCK_ROWS", BLOCK)


def make_source(path: Path, rows: int, *, begin: int = 1003, seed: int = 7) -> Source:
    """A file with weights at an odd place and the scales behind them, after a hole."""
    draw = random.Random(seed)
    scale = begin + rows * 256 + 17
    path.write_bytes(
        bytes(begin) + draw.randbytes(rows * 256) + bytes(17) + draw.randbytes(rows * 8)
    )
    return source_of(path, begin, scale)


def source_of(path: Path, weight: int, scale: int) -> Source:
    told = path.stat()
    return Source(str(path), told.st_size, told.st_mtime_ns, "0" * 64, weight, scale, "main")


def reference(shard: Shard, source: Source) -> bytes:
    """The file as the format's description tells it, row by row; shares no code."""
    n, r, tp = shard.rows, shard.rank, shard.tp_size
    low, high = n * r // tp, n * (r + 1) // tp
    data = Path(source.path).read_bytes()
    made = bytearray(struct.pack("<QQQQQQ", 0x31344E4531565344, shard.layer, low, high, n, 264))
    made += b"\0" * 4048
    for k in range(low, high):
        made += data[source.weight + 256 * k : source.weight + 256 * k + 256]
        made += data[source.scale + 8 * k : source.scale + 8 * k + 8]
    return bytes(made)


def pack(directory: Path, shard: Shard, source: Source, how: str = "sample") -> bytes:
    packing = Packing(str(directory), shard, source, how)
    packing.run(lambda count: None)
    return (directory / f"{shard.stem}.bin").read_bytes()


@pytest.mark.parametrize("seed", range(12))
def test_every_split_equals_the_slow_reference(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    tp = draw.choice([1, 2, 3, 4, 5, 8])
    rows = draw.choice([tp, tp + 1, BLOCK * tp, BLOCK * tp - 1, draw.randrange(9, 6000)])
    source = make_source(tmp_path / "table", rows, begin=draw.randrange(1, 9000), seed=seed)
    for rank in range(tp):
        shard = Shard(draw.choice([1, 14]), rank, tp, rows)
        assert pack(tmp_path, shard, source, "full") == reference(shard, source)
        assert sorted(path.name for path in tmp_path.glob(f"{shard.stem}.*")) == [
            f"{shard.stem}.bin",
            f"{shard.stem}.json",
        ]


def test_the_block_of_the_real_program_is_whole_pages(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    assert engram.BLOCK_ROWS % engram.PAGE == 0
    shard = Shard(1, 0, 1, engram.BLOCK_ROWS + 3)
    source = make_source(tmp_path / "table", shard.rows)
    assert pack(tmp_path, shard, source, "full") == reference(shard, source)


def test_other_widths_are_packed_as_they_are(tmp_path: Path) -> None:
    source = make_source(tmp_path / "table", 1100)._replace(scale=1003)
    shard = Shard(1, 0, 1, 1100, weight_bytes=56, scale_bytes=8)
    data = Path(source.path).read_bytes()[1003:]
    rows = b"".join(data[56 * k : 56 * k + 56] + data[8 * k : 8 * k + 8] for k in range(shard.rows))
    assert pack(tmp_path, shard, source)[4096:] == rows


def test_the_manifest_tells_what_was_packed_and_its_hash(tmp_path: Path) -> None:
    source = make_source(tmp_path / "table", 3000)
    shard = Shard(14, 1, 2, 3000)
    rows = pack(tmp_path, shard, source)[4096:]
    manifest = read_manifest(str(tmp_path), shard)
    assert manifest is not None
    step = BLOCK * 264
    blocks = [hashlib.sha256(rows[at : at + step]) for at in range(0, len(rows), step)]
    assert manifest["blocks"] == [block.hexdigest() for block in blocks]
    whole = hashlib.sha256(b"".join(block.digest() for block in blocks)).hexdigest()
    assert manifest["digest"] == whole
    assert manifest["range"] == [1500, 3000]
    assert manifest["source"]["revision"] == "main"
    assert manifest["source"]["file"] == "table"


# --- interruptions --------------------------------------------------------------------------------

_SERVER = f"""
import os, sys
import numpy
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _engram_pack as engram
engram.BLOCK_ROWS, engram.SYNC_SECONDS = {BLOCK}, 0
for job in sys.stdin:
    child = os.fork()
    if child == 0:
        os._exit(engram.main([job.strip()]))
    print(child, flush=True)
    sys.stdin.readline()
    print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.fixture
def server() -> Iterator[subprocess.Popen[str]]:
    """Starts the program as a process of its own as often as wanted; numpy is loaded once."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "collections"),
        "OPENBLAS_NUM_THREADS": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()


def job_of(directory: Path, shard: Shard, source: Source, **fields: Any) -> dict[str, Any]:
    entry = {"shard": shard._asdict(), "source": source._asdict(), "packed": False}
    return {"id": "1", "directory": str(directory), "verify": "header", "shards": [entry], **fields}


def test_a_hundred_kills_at_random_moments_change_nothing(tmp_path: Path, server: Any) -> None:
    draw = random.Random(20)
    rows = BLOCK * 400 + 77
    source = make_source(tmp_path / "table", rows)
    resumed = kills = 0
    for rank in range(40):
        shard = Shard(1, rank % 4, 4, rows)
        directory = tmp_path / f"round{rank}"
        directory.mkdir()
        job = directory / "job"
        job.write_text(json.dumps(job_of(directory, shard, source)))
        status, kept = None, 0
        while status != 0:
            server.stdin.write(f"{job}\n")
            server.stdin.flush()
            pid = int(server.stdout.readline())
            time.sleep(draw.uniform(0, 0.04))
            os.kill(pid, signal.SIGKILL)  # a zombie, if it was done already
            server.stdin.write("\n")
            server.stdin.flush()
            status = int(server.stdout.readline())
            assert status in {0, signal.SIGKILL}
            assert (directory / f"{shard.stem}.bin").exists() or status != 0
            kills += status == signal.SIGKILL
            now = durable_rows(str(directory), shard, source)
            if not (directory / f"{shard.stem}.bin").exists():
                assert now >= kept, "work that was on the disk is lost"
            resumed += bool(kept)
            kept = now
        packed = directory / f"{shard.stem}.bin"
        assert packed.read_bytes() == reference(shard, source)
        verify(str(packed), shard, source, read_manifest(str(directory), shard), "full")
        packed.unlink()
        if kills >= 100 and resumed >= 30:
            return
    pytest.fail(f"only {kills} kills, {resumed} of them resumed")


def begin(directory: Path, shard: Shard, source: Source, blocks: int) -> None:
    """Leave work behind as an interruption after this many blocks does."""
    done = 0

    def stop(_count: int) -> None:
        nonlocal done
        done += 1
        if done == blocks:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engram, "SYNC_SECONDS", -1.0)
        with pytest.raises(KeyboardInterrupt):
            Packing(str(directory), shard, source, "header").run(stop)


def test_work_is_continued_where_it_was(tmp_path: Path) -> None:
    source = make_source(tmp_path / "table", 6000)
    shard = Shard(1, 0, 1, 6000)
    begin(tmp_path, shard, source, 5)
    assert durable_rows(str(tmp_path), shard, source) == 4 * BLOCK
    told: list[int] = []
    Packing(str(tmp_path), shard, source, "full").run(told.append)
    assert sum(told) == (6000 - 4 * BLOCK) * 264
    assert (tmp_path / f"{shard.stem}.bin").read_bytes() == reference(shard, source)


@pytest.mark.parametrize(
    "other",
    [
        {"rank": 2},
        {"rows": 12001},
        {"layer": 14},
        {"revision": "other"},
        {"header_sha256": "1" * 64},
        {"mtime_ns": 5},
    ],
)
def test_a_partial_of_something_else_is_never_continued(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    source = make_source(tmp_path / "table", 12000)
    shard = Shard(1, 0, 4, 12000)
    mine = {name: value for name, value in other.items() if name in Shard._fields}
    theirs = {name: value for name, value in other.items() if name in Source._fields}
    begin(tmp_path, shard, source, 3)
    stem = tmp_path / shard.stem
    found = json.loads((tmp_path / f"{shard.stem}.journal").read_text().splitlines()[0])
    found["shard"].update(mine)
    found["source"].update(theirs)
    lines = (tmp_path / f"{shard.stem}.journal").read_text().splitlines()[1:]
    stem.with_suffix(".journal").write_text("\n".join([json.dumps(found), *lines]) + "\n")
    assert durable_rows(str(tmp_path), shard, source) == 0
    told: list[int] = []
    packing = Packing(str(tmp_path), shard, source, "full")
    packing.run(told.append)
    assert sum(told) == 3000 * 264
    assert "begun again" in packing.notes[0]
    assert stem.with_suffix(".bin").read_bytes() == reference(shard, source)


@pytest.mark.parametrize(
    ("tail", "count"),
    [("", 2), ("ab" * 20, 2), ("\0" * 65, 2), ("\0" * 64 + "\n", 2), ("a" * 64 + "\n", 3)],
)
def test_a_journal_that_was_cut_off_tells_what_is_whole(tmp_path, tail, count):
    path = tmp_path / "j"
    path.write_text('{"a": 1}\n' + "b" * 64 + "\n" + "c" * 64 + "\n" + tail)
    assert read_journal(str(path)) == ({"a": 1}, ["b" * 64, "c" * 64, "a" * 64][:count])


@pytest.mark.parametrize("text", ["", "{", "[1]\n", "\0\0\0", "nothing\n"])
def test_a_journal_that_is_none_is_no_work(tmp_path, text):
    path = tmp_path / "j"
    path.write_text(text)
    assert read_journal(str(path)) == (None, [])


def test_a_partial_that_is_gone_or_shorter_is_no_work(tmp_path: Path) -> None:
    source = make_source(tmp_path / "table", 6000)
    shard = Shard(1, 0, 1, 6000)
    begin(tmp_path, shard, source, 5)
    partial = tmp_path / f"{shard.stem}.partial"
    os.truncate(partial, 9000)
    assert durable_rows(str(tmp_path), shard, source) == 0
    partial.unlink()
    assert durable_rows(str(tmp_path), shard, source) == 0
    assert pack(tmp_path, shard, source) == reference(shard, source)


# --- bad input ------------------------------------------------------------------------------------


def assert_nothing_published(directory: Path, shard: Shard) -> None:
    assert not (directory / f"{shard.stem}.bin").exists()
    assert not (directory / f"{shard.stem}.json").exists()


def test_a_source_that_shrinks_is_named_with_tensor_and_bytes(tmp_path, monkeypatch):
    source = make_source(tmp_path / "table", 6000)
    shard = Shard(1, 0, 1, 6000)
    earlier = Shard(14, 0, 1, 6000)
    pack(tmp_path, earlier, source)
    before = (tmp_path / f"{earlier.stem}.bin").read_bytes()
    cut = source.scale + 100
    real = engram._Assembly.block

    def shrink(self, number):
        if number == 6:
            os.truncate(source.path, cut)
        return real(self, number)

    monkeypatch.setattr(engram._Assembly, "block", shrink)
    with pytest.raises(PackError) as raised:
        pack(tmp_path, shard, source)
    text = str(raised.value)
    assert source.path in text
    assert "layers.1.engram.embed.scale rows" in text
    assert f"ends at byte {cut}" in text
    assert_nothing_published(tmp_path, shard)
    assert (tmp_path / f"{earlier.stem}.bin").read_bytes() == before


def test_a_source_that_changes_while_it_is_read_is_refused(tmp_path, monkeypatch):
    source = make_source(tmp_path / "table", 2000)
    shard = Shard(1, 0, 1, 2000)
    real = engram._Assembly.block

    def touch(self, number):
        os.utime(source.path, (1, 1))
        return real(self, number)

    monkeypatch.setattr(engram._Assembly, "block", touch)
    with pytest.raises(PackError, match="changed while it was read"):
        pack(tmp_path, shard, source)
    assert_nothing_published(tmp_path, shard)


def test_a_source_that_is_gone_is_named(tmp_path):
    source = make_source(tmp_path / "table", 2000)._replace(path=str(tmp_path / "none"))
    with pytest.raises(PackError, match=r"none cannot be opened: No such file"):
        pack(tmp_path, Shard(1, 0, 1, 2000), source)


def test_a_full_disk_is_told_with_bytes_and_leaves_nothing(tmp_path, monkeypatch):
    source = make_source(tmp_path / "table", 2000)
    shard = Shard(1, 0, 1, 2000)

    def full(fd, offset, length):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(PackError, match=rf"needs {shard.size} bytes in all, and \d+ are free"):
        pack(tmp_path, shard, source)
    assert_nothing_published(tmp_path, shard)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_write_that_fails_in_the_middle_is_told_and_continued(tmp_path, monkeypatch, error):
    source = make_source(tmp_path / "table", 9000)
    shard = Shard(1, 0, 1, 9000)
    real = os.pwrite
    writes = 0

    def fail(fd, data, offset):
        nonlocal writes
        writes += 1
        if writes > 9:
            raise OSError(error, os.strerror(error))
        return real(fd, data, offset)

    monkeypatch.setattr(engram, "SYNC_SECONDS", -1.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", fail)
        with pytest.raises(PackError, match=os.strerror(error)) as raised:
            pack(tmp_path, shard, source)
    assert f"{shard.stem}.partial" in str(raised.value)
    assert_nothing_published(tmp_path, shard)
    assert durable_rows(str(tmp_path), shard, source) > 0
    assert pack(tmp_path, shard, source, "full") == reference(shard, source)


def test_without_direct_io_the_result_is_the_same_and_it_says_so(tmp_path, monkeypatch):
    source = make_source(tmp_path / "table", 5000)
    shard = Shard(1, 0, 1, 5000)
    real = os.open

    def refuse(path, flags, *rest, **more):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return real(path, flags, *rest, **more)

    def unknown(fd, offset, length):
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "posix_fallocate", unknown)
    begin(tmp_path, shard, source, 4)
    assert durable_rows(str(tmp_path), shard, source) == 3 * BLOCK
    packing = Packing(str(tmp_path), shard, source, "full")
    packing.run(lambda count: None)
    assert "no direct I/O" in packing.notes[0]
    assert (tmp_path / f"{shard.stem}.bin").read_bytes() == reference(shard, source)


# --- verifying ------------------------------------------------------------------------------------


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("row", [0, 1, 1998, 1999])
@pytest.mark.parametrize("how", ["sample", "full"])
def test_a_wrong_row_at_an_edge_is_found(tmp_path: Path, row: int, how: str) -> None:
    source = make_source(tmp_path / "table", 2000)
    shard = Shard(1, 0, 1, 2000)
    pack(tmp_path, shard, source)
    path = tmp_path / f"{shard.stem}.bin"
    verify(str(path), shard, source, read_manifest(str(tmp_path), shard), how)
    flip(path, shard.offset(row) + 263)
    with pytest.raises(MismatchError, match="differ") as raised:
        verify(str(path), shard, source, read_manifest(str(tmp_path), shard), how)
    assert str(path) in str(raised.value)


def test_without_a_manifest_all_rows_are_compared_with_the_checkpoint(tmp_path: Path) -> None:
    source = make_source(tmp_path / "table", 2000)
    shard = Shard(1, 1, 2, 2000)
    pack(tmp_path, shard, source)
    path = tmp_path / f"{shard.stem}.bin"
    manifest = read_manifest(str(tmp_path), shard)
    assert manifest is not None
    assert verify(str(path), shard, source, None, "full") == manifest["blocks"]
    flip(path, shard.offset(1600))
    with pytest.raises(
        MismatchError, match=r"1 of 2 blocks differ from the checkpoint.*rows 1512 to"
    ):
        verify(str(path), shard, source, None, "full")
    with pytest.raises(PackError, match="no manifest"):
        verify(str(path), shard, None, None, "full")


def test_swapped_rank_files_differ_in_every_sampled_row(tmp_path: Path) -> None:
    source = make_source(tmp_path / "table", 4000)
    zero, two = Shard(1, 0, 4, 4000), Shard(1, 2, 4, 4000)
    pack(tmp_path, zero, source)
    assert zero.size == two.size
    with pytest.raises(MismatchError, match="row 2000"):
        verify(str(tmp_path / f"{zero.stem}.bin"), two, source, None, "sample")


def test_rows_that_came_to_the_disk_wrong_are_not_published(tmp_path, monkeypatch):
    source = make_source(tmp_path / "table", 2000)
    shard = Shard(1, 0, 1, 2000)
    real = engram.verify

    def damaged(path, *rest):
        flip(Path(path), shard.offset(0))
        return real(path, *rest)

    monkeypatch.setattr(engram, "verify", damaged)
    with pytest.raises(MismatchError, match="row 0"):
        pack(tmp_path, shard, source)
    assert_nothing_published(tmp_path, shard)
    assert durable_rows(str(tmp_path), shard, source) == 0


# --- the program ----------------------------------------------------------------------------------


def state(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / engram.STATE).read_text())
    return found


def test_the_state_file_tells_the_end(tmp_path: Path) -> None:
    source = make_source(tmp_path / "table", 5000)
    shard = Shard(1, 0, 1, 5000)
    Job(job_of(tmp_path, shard, source)).run()
    told = state(tmp_path)
    assert (told["job"], told["phase"], told["seconds_left"]) == ("1", "done", 0)
    assert told["bytes_done"] == told["bytes_total"] == shard.size - 4096
    assert told["bytes_resumed"] == 0
    assert 2**22 < told["peak_rss"] < 2**30


def test_the_state_file_tells_the_failure(tmp_path: Path) -> None:
    source = make_source(tmp_path / "table", 5000)
    os.truncate(source.path, 4000)
    with pytest.raises(PackError):
        Job(job_of(tmp_path, Shard(1, 0, 1, 5000), source)).run()
    told = state(tmp_path)
    assert told["phase"] == "failed"
    assert "changed" in told["message"]


def test_only_one_packs_into_a_directory(tmp_path: Path) -> None:
    import fcntl

    source = make_source(tmp_path / "table", 5000)
    shard = Shard(1, 0, 1, 5000)
    with (tmp_path / engram.LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(PackError, match="another packing holds"):
            Job(job_of(tmp_path, shard, source)).run()
    assert_nothing_published(tmp_path, shard)
