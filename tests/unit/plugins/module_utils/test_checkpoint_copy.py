"""A copy is whole or continued, of the data behind links, and never a mix of two sources."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _checkpoint_copy
from ansible_collections.sparkfleet.cluster.plugins.module_utils._checkpoint_copy import (
    Progress,
    copy,
    items,
    main,
)

PROGRAM = Path(str(_checkpoint_copy.__file__))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Two files, one behind two links, with what a downloader left."""
    path = tmp_path / "source"
    notes = path / ".cache/huggingface/download"
    notes.mkdir(parents=True)
    (path / "sub").mkdir()
    (path / "sub/plain").write_bytes(os.urandom(5000))
    (tmp_path / "blob").write_bytes(os.urandom(100_000))
    (tmp_path / "hop").symlink_to("blob")
    (path / "shard").symlink_to("../hop")
    (notes / "shard.metadata").write_text("x")
    (notes / "abc.incomplete").write_text("x")
    return path


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A directory on another file system than the tests' own."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory) / "target"


def tree(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


def wanted(source: Path) -> dict[str, bytes]:
    return {name: data for name, data in tree(source).items() if "incomplete" not in name}


def test_links_become_files(source, elsewhere):
    assert copy(str(source), str(elsewhere), print) == 3
    assert tree(elsewhere) == wanted(source)
    assert not (elsewhere / "shard").is_symlink()
    assert (elsewhere / "shard").stat().st_nlink == 1
    assert (elsewhere / "shard").stat().st_mode & 0o777 == 0o644
    assert (elsewhere / "shard").stat().st_mtime_ns == (source / "shard").stat().st_mtime_ns
    assert copy(str(source), str(elsewhere), print) == 0


def test_hard_links_on_the_same_file_system(source, tmp_path):
    assert copy(str(source), str(tmp_path / "target"), print) == 3
    assert tree(tmp_path / "target") == wanted(source)
    assert (tmp_path / "target/shard").samefile(tmp_path / "blob")
    assert not (tmp_path / "target/shard").is_symlink()
    assert copy(str(source), str(tmp_path / "target"), print) == 0


def test_a_file_that_changed_is_copied_again(source, elsewhere):
    copy(str(source), str(elsewhere), print)
    (source / "sub/plain").write_bytes(b"other")
    assert copy(str(source), str(elsewhere), print) == 1
    assert tree(elsewhere) == wanted(source)


def test_a_partial_copy_is_continued(source, elsewhere):
    """The part that is there is taken as it is: this one is wrong on purpose."""
    (item,) = [item for item in items(str(source)) if item.name == "shard"]
    elsewhere.mkdir()
    part = elsewhere / f".shard.{item.size}-{item.mtime_ns}.part"
    part.write_bytes(b"!" * 1000)
    copy(str(source), str(elsewhere), print)
    data = (source / "shard").read_bytes()
    assert (elsewhere / "shard").read_bytes() == b"!" * 1000 + data[1000:]
    assert not part.exists()


def test_a_partial_copy_of_something_else_is_not(source, elsewhere):
    elsewhere.mkdir()
    (elsewhere / ".shard.100000-12345.part").write_bytes(b"!" * 1000)
    copy(str(source), str(elsewhere), print)
    assert (elsewhere / "shard").read_bytes() == (source / "shard").read_bytes()


def test_a_partial_copy_that_is_too_long(source, elsewhere):
    (item,) = [item for item in items(str(source)) if item.name == "shard"]
    elsewhere.mkdir()
    data = (source / "shard").read_bytes()
    (elsewhere / f".shard.{item.size}-{item.mtime_ns}.part").write_bytes(data + b"more")
    copy(str(source), str(elsewhere), print)
    assert (elsewhere / "shard").read_bytes() == data


def test_killed_again_and_again(tmp_path, elsewhere):
    source = tmp_path / "source"
    source.mkdir()
    for number in range(4):
        (source / f"file{number}").write_bytes(os.urandom(1 << 25))
    command = [sys.executable, str(PROGRAM), str(source), str(elsewhere), "--workers", "2"]
    interrupted = 0
    for attempt in range(30):
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(0.05 + 0.01 * attempt)
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            interrupted += 1
        child.wait()
        for file in elsewhere.glob("file*"):
            assert file.read_bytes() == (source / file.name).read_bytes()
    assert interrupted
    assert subprocess.run(command, check=False, capture_output=True).returncode == 0
    assert tree(elsewhere) == tree(source)


def test_the_program_says_what_is_wrong(source, elsewhere, capsys):
    (source / "lost").symlink_to("/no/where")
    assert main([str(source), str(elsewhere)]) == 1
    assert "/no/where" in capsys.readouterr().err
    assert main([str(source / "no"), str(elsewhere)]) == 1
    (source / "lost").unlink()
    assert main([str(source), str(elsewhere)]) == 0
    assert "3 files are new" in capsys.readouterr().out


def test_progress():
    said: list[str] = []
    progress = Progress(4 << 30, said.append)
    progress._begun -= 10
    progress._told -= 10
    progress.add(1 << 30, copied=False)
    assert said == ["25 % of 4.0 GiB, 0 MiB/s, 0:00 left"]
    progress.add(1 << 30)
    assert progress.line(progress._begun + 10) == "50 % of 4.0 GiB, 102 MiB/s, 0:20 left"
