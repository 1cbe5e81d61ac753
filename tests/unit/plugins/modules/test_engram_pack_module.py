# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The packing module with the real program as a process; only systemd is stood in for."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _engram_job as engram_job
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._detached import Detached
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_wish import SilentError
from ansible_collections.sparkfleet.cluster.plugins.modules import engram_pack

from lab import checkpoint as lab_checkpoint

ROWS = (4003, 4006)


class FakeSystemd:
    """Runs the transient units it is given, and answers what `Detached` and the guard ask."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[bytes] | None = None
        self.description = ""
        self.ranks: list[str] = []
        self.starts = 0

    def __call__(self, argv: Sequence[str], timeout: float = 20.0) -> Command:
        said = ""
        if argv[0] == "systemd-run":
            self._start(list(argv))
        elif argv[1] == "list-units":
            said = "".join(f"{unit} loaded active running Rank\n" for unit in self.ranks)
        elif argv[1] == "show":
            said = "\n".join(f"{name}={value}" for name, value in self._properties().items())
        elif argv[1] == "stop" and self.process:
            self.process.kill()
            self.process.wait()
            self.process = None
        return Command(0, said, "")

    def _start(self, argv: list[str]) -> None:
        words = argv[argv.index("--") + 1 :]
        told = dict(word.partition("=")[::2] for word in argv[1 : argv.index("--")] if "=" in word)
        self.description = told["--description"]
        stdin = next(word for word in argv if "StandardInput=file:" in word).partition("file:")[2]
        with Path(stdin).open("rb") as stream:
            self.process = subprocess.Popen(
                words[words.index("-c3") + 1 :],
                stdin=stream,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        self.starts += 1

    def _properties(self) -> dict[str, str]:
        if self.process is None:
            return {"LoadState": "not-found"}
        rc = self.process.poll()
        state = {None: ("active", "running"), 0: ("active", "exited")}.get(rc, ("failed", "failed"))
        return {
            "LoadState": "loaded",
            "ActiveState": state[0],
            "SubState": state[1],
            "Result": "success" if not rc else "signal",
            "ExecMainStatus": str(rc or 0),
            "Description": self.description,
        }


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeSystemd]:
    fake = FakeSystemd()
    place = functools.partial(Detached, logs=str(tmp_path / "log"), runtime=str(tmp_path / "run"))
    monkeypatch.setattr(engram_pack, "run_command", fake)
    monkeypatch.setattr(engram_pack, "Detached", place)
    monkeypatch.setattr(engram_job, "PROGRAM", str(tmp_path / "lib/engram_pack.py"))
    yield fake
    fake(["systemctl", "stop"])


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoint")
    lab_checkpoint.make(directory, rows=ROWS)
    return directory


@pytest.fixture
def call(systemd: FakeSystemd, checkpoint: Path, tmp_path: Path, capsys: Any) -> Any:
    """Call the module for rank 1 of 4."""

    def run(**arguments: Any) -> dict[str, Any]:
        wish = {
            "checkpoint": str(checkpoint),
            "tp_size": 4,
            "rank": 1,
            "directory": str(tmp_path / "engram"),
            "any_filesystem": True,
            **arguments,
        }
        with patch_module_args(wish), pytest.raises(SystemExit) as ended:
            engram_pack.main()
        answer: dict[str, Any] = json.loads(capsys.readouterr().out)
        assert bool(ended.value.code) == bool(answer.get("failed"))
        return answer

    return run


def rows_of(layer: int, number: int, rank: int = 1) -> bytes:
    low, high = number * rank // 4, number * (rank + 1) // 4
    weight = lab_checkpoint.table_bytes(1, layer, "weight", low, high - low)
    scale = lab_checkpoint.table_bytes(1, layer, "scale", low, high - low)
    return b"".join(
        weight[256 * k : 256 * k + 256] + scale[8 * k : 8 * k + 8] for k in range(high - low)
    )


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir() if not path.name.startswith(".")}


FILES = {f"engram-l{layer}-r1of4.{ending}" for layer in (1, 14) for ending in ("bin", "json")}


def test_packed_once_and_then_left_alone(call: Any, systemd: FakeSystemd, tmp_path: Path) -> None:
    first = call()
    assert (first["changed"], first["running"]) == (True, False)
    assert first["progress"]["phase"] == "done"
    assert [shard["state"] for shard in first["shards"]] == ["complete", "complete"]
    assert names(tmp_path / "engram") == FILES
    for layer, number in zip((1, 14), ROWS, strict=True):
        packed = (tmp_path / f"engram/engram-l{layer}-r1of4.bin").read_bytes()
        assert packed[4096:] == rows_of(layer, number)
    for how in ("header", "sample"):
        again = call(verify=how)
        assert (again["changed"], again["bytes_to_write"]) == (False, 0)
    assert systemd.starts == 1
    assert call(verify="full")["changed"] is False
    assert systemd.starts == 2


def test_the_stages_apart(call: Any, systemd: FakeSystemd) -> None:
    assert call(stage="start")["running"] is True
    assert call(stage="start")["changed"] is False
    ended = call(stage="watch")
    assert (ended["changed"], ended["running"]) == (False, False)
    assert call(stage="watch")["changed"] is False
    assert systemd.starts == 1


def test_a_source_that_is_silent_ends_a_watch_only_without_work(
    call: Any, systemd: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(_wish: object) -> None:
        raise SilentError("/data/checkpoint: no answer within 60 s")

    monkeypatch.setattr(engram_pack, "wanted_shards", silent)
    assert call(stage="watch")["msg"].startswith("/data/checkpoint: no answer")
    systemd.process = subprocess.Popen(["sleep", "60"])
    waiting = call(stage="watch")
    assert (waiting["running"], waiting["silent"][:16]) == (True, "/data/checkpoint")
    systemd.process.kill()
    systemd.process.wait()
    assert call(stage="watch")["failed"] is True  # it died, and that is told
    systemd.process = subprocess.Popen(["true"])
    systemd.process.wait()
    assert call(stage="watch")["running"] is True  # done, to be judged when the source is back
    assert call(stage="start")["failed"] is True


def test_a_kill_is_told_and_the_next_run_continues(
    call: Any, systemd: FakeSystemd, tmp_path: Path
) -> None:
    call(stage="start")
    assert systemd.process is not None
    os.kill(systemd.process.pid, signal.SIGKILL)
    systemd.process.wait()
    answer = call(stage="watch")
    if not answer.get("failed"):  # it was done before
        pytest.fail("the program was faster than the kill")
    assert "ended with signal" in answer["msg"]
    assert "run again to continue" in answer["msg"]
    assert not {name for name in names(tmp_path / "engram") if name.endswith(".bin")}
    assert call(stage="watch")["msg"].startswith("the packing is gone")
    assert call()["changed"] is True
    assert names(tmp_path / "engram") == FILES


def test_what_earlier_work_told_is_not_told_again(
    call: Any, systemd: FakeSystemd, tmp_path: Path
) -> None:
    """The same work has the same name, so its state file would be believed."""
    call(stage="start")
    assert systemd.process is not None
    systemd.process.wait()
    state = tmp_path / "engram/.pack-state.json"
    old = {**json.loads(state.read_text()), "phase": "failed", "message": "long ago"}
    state.write_text(json.dumps(old))
    (tmp_path / "engram/engram-l1-r1of4.bin").unlink()
    call(stage="start")
    systemd.process.kill()
    systemd.process.wait()
    assert "long ago" not in call(stage="watch").get("msg", "")


def test_check_mode_tells_and_leaves_everything(call: Any, systemd: FakeSystemd, tmp_path: Path):
    answer = call(_ansible_check_mode=True, _ansible_diff=True)
    assert answer["changed"] is True
    assert answer["seconds_expected"] is not None
    assert "engram-l1-r1of4.bin: absent" in answer["diff"]["before"]
    assert "engram-l14-r1of4.bin: complete, 268624 bytes" in answer["diff"]["after"]
    assert not (tmp_path / "engram").exists()
    assert systemd.starts == 0
    call()
    answer = call(_ansible_check_mode=True)
    assert (answer["changed"], "seconds_expected" in answer) == (False, False)


def test_in_check_mode_tables_tell_where_there_is_no_checkpoint_yet(call: Any) -> None:
    tables = [{"layer": layer, "rows": rows} for layer, rows in zip((1, 14), ROWS, strict=True)]
    answer = call(checkpoint="/none", tables=tables, _ansible_check_mode=True)
    assert (answer["changed"], answer["seconds_expected"]) == (True, None)
    assert [shard["size"] for shard in answer["shards"]] == [268360, 268624]
    assert call(checkpoint="/none", tables=tables)["failed"] is True
    assert call(checkpoint="/none", _ansible_check_mode=True)["failed"] is True


def test_a_file_in_the_way_is_replaced_only_when_allowed(call: Any, tmp_path: Path) -> None:
    call()
    call(rank=3)
    place, other = (tmp_path / f"engram/engram-l14-r{rank}of4.bin" for rank in (1, 3))
    shutil.copy(other, place)
    swapped = place.read_bytes()
    answer = call()
    assert "is a shard of rank 3 of 4" in answer["msg"]
    assert "set replace to true" in answer["msg"]
    assert place.read_bytes() == swapped == other.read_bytes()
    assert call(replace=True)["changed"] is True
    assert place.read_bytes()[4096:] == rows_of(14, ROWS[1])


def test_wrong_rows_are_found_by_the_sample_and_by_the_hashes(call: Any, tmp_path: Path) -> None:
    call()
    place = tmp_path / "engram/engram-l14-r1of4.bin"
    with place.open("r+b") as stream:
        stream.seek(4096)
        stream.write(b"wrong")
    assert call(verify="header")["changed"] is False
    for how in ("sample", "full"):
        answer = call(verify=how)
        assert f"{place}: " in answer["msg"]
        assert "differ" in answer["msg"]
    assert call(verify="sample", replace=True)["changed"] is True
    assert place.read_bytes()[4096:] == rows_of(14, ROWS[1])


def test_a_shard_of_somebody_else_gets_its_manifest(call: Any, tmp_path: Path) -> None:
    call()
    manifest = tmp_path / "engram/engram-l1-r1of4.json"
    before = manifest.read_text()
    manifest.unlink()
    assert call(verify="sample")["changed"] is False
    assert call(verify="full")["changed"] is True
    assert manifest.read_text() == before


def test_another_revision_is_another_shard(call: Any) -> None:
    call(revision="a")
    assert call(revision="a")["changed"] is False
    assert "tells revision a of the checkpoint, which now has b" in call(revision="b")["msg"]


def test_a_serving_rank_is_not_disturbed(call: Any, systemd: FakeSystemd, tmp_path: Path) -> None:
    systemd.ranks = ["sparkfleet-rank@sparks.service"]
    assert "sparkfleet-rank@sparks.service is serving" in call()["msg"]
    assert not (tmp_path / "engram").exists()
    assert call(force=True)["changed"] is True
    assert call()["changed"] is False
    assert "is serving" in call(state="absent")["msg"]
    assert names(tmp_path / "engram") == FILES


def test_a_full_disk_is_told_before_the_work(call: Any, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(engram_job, "bytes_free", lambda directory: 500_000)
    answer = call()
    assert "needs 536984 bytes more" in answer["msg"]
    assert "500000" in answer["msg"]
    assert not (tmp_path / "engram").exists()


def test_all_that_is_lacking_is_told_at_once(call: Any, monkeypatch, systemd, tmp_path) -> None:
    systemd.ranks = ["sparkfleet-rank@sparks.service"]
    monkeypatch.setattr(engram_job, "bytes_free", lambda directory: 0)
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "numpy" else found(name)
    )
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    text = call()["msg"]
    for part in ("bytes more", "has no numpy", "is not writable", "is serving"):
        assert part in text


@pytest.mark.parametrize(
    ("fstype", "told"),
    [
        ("nfs4", "is on a network filesystem, srv:/x (nfs4) on /"),
        ("tmpfs", "is on srv:/x (tmpfs) on /, which is memory, or may be; expected a disk"),
        ("overlay", "expected a disk"),
        ("ext4", ""),
    ],
)
def test_where_shards_may_be(tmp_path: Path, fstype: str, told: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    line = f"1 1 0:1 / / rw - {fstype} srv:/x rw\n"
    (tmp_path / "proc/self/mountinfo").write_text(line)
    refusal, warning = engram_job.disk("/not/there", str(tmp_path))
    assert told in refusal
    assert bool(told) == bool(refusal)
    assert not warning


@pytest.mark.parametrize("queue", ["queue", "../queue"])
def test_a_rotational_disk_is_warned_of(tmp_path: Path, queue: str) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mountinfo").write_text("1 1 0:1 / / rw - ext4 /dev/sda1 rw\n")
    device = Path("/").stat().st_dev
    block = tmp_path / f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    block.mkdir(parents=True)
    (block / queue).mkdir()
    (block / queue / "rotational").write_text("1\n")
    refusal, warning = engram_job.disk("/", str(tmp_path))
    assert not refusal
    assert "on a rotational disk, /dev/sda1 (ext4) on /" in warning
    (block / queue / "rotational").write_text("0\n")
    assert engram_job.disk("/", str(tmp_path)) == ("", "")


def test_memory_is_refused_by_the_module(call: Any) -> None:
    directory = Path(f"/dev/shm/engram-{os.getpid()}")
    answer = call(directory=str(directory), any_filesystem=False)
    assert "expected a disk" in answer["msg"]
    assert not directory.exists()


def test_absent_removes_its_own_files_only(call: Any, tmp_path: Path) -> None:
    call()
    call(rank=3)
    directory = tmp_path / "engram"
    (directory / "mine.txt").write_text("stays")
    shutil.copy(directory / "engram-l1-r3of4.bin", directory / "engram-l1-r1of4.bin")
    tables = [{"layer": layer, "rows": rows} for layer, rows in zip((1, 14), ROWS, strict=True)]
    wish = {"state": "absent", "checkpoint": None, "tables": tables}
    before = names(directory)
    told = call(**wish, _ansible_check_mode=True)
    assert (told["changed"], names(directory)) == (True, before)
    done = call(**wish)
    assert done["removed"] == told["removed"]
    assert names(directory) == before - {
        "engram-l14-r1of4.bin",
        "engram-l14-r1of4.json",
    }
    assert call(**wish)["changed"] is False


def test_absent_ends_work_that_goes_on(call: Any, systemd: FakeSystemd, tmp_path: Path) -> None:
    call(stage="start")
    time.sleep(0.3)
    call(state="absent")
    assert systemd.process is None
    assert list((tmp_path / "engram").iterdir()) == []


def test_bad_checkpoints_are_told_by_the_module(call: Any, tmp_path: Path) -> None:
    assert "/none/model.safetensors.index.json does not exist" in call(checkpoint="/none")["msg"]
    assert "rank is 4, expected 0 to 3" in call(rank=4)["msg"]
    tables = [{"layer": 1, "rows": 5}, {"layer": 14, "rows": ROWS[1]}]
    assert "layer 1 has 4003 rows" in call(tables=tables)["msg"]
    assert not (tmp_path / "engram").exists()
