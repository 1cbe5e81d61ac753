# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof that a checkpoint can be read."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _nfs_read as reading

SHARDS = [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for number, name in enumerate(SHARDS):
        (folder / name).write_bytes(b"x" * (5000 + number))
    (folder / "config.json").write_text("{}")
    index = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[2], "d": SHARDS[0]}}
    (folder / reading.INDEX).write_text(json.dumps(index))
    (folder / ".cache").mkdir()
    (folder / ".cache" / "note").write_text("")
    return folder


def codes(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(problem["code"], problem["file"]) for problem in found["problems"]]


def test_a_whole_checkpoint(checkpoint: Path) -> None:
    found = reading.read_ends(str(checkpoint), reading.manifest(str(checkpoint)))
    assert found == {"shards": 3, "bytes": 15003, "problems": []}


def test_a_single_file(tmp_path: Path) -> None:
    (tmp_path / reading.SINGLE).write_bytes(b"12345")
    assert reading.read_ends(str(tmp_path)) == {"shards": 1, "bytes": 5, "problems": []}


def test_hidden_files_are_no_part_of_it(checkpoint: Path) -> None:
    assert sorted(reading.manifest(str(checkpoint))) == sorted(
        [*SHARDS, "config.json", reading.INDEX]
    )


def truncate(folder: Path) -> None:
    os.truncate(folder / SHARDS[1], 10)


def age(folder: Path) -> None:
    os.utime(folder / SHARDS[1], (1, 1))


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (lambda folder: (folder / SHARDS[1]).unlink(), [("missing", SHARDS[1])]),
        (lambda folder: os.truncate(folder / SHARDS[1], 0), [("empty", SHARDS[1])]),
        (truncate, [("size", SHARDS[1])]),
        (age, [("time", SHARDS[1])]),
        (lambda folder: (folder / "config.json").unlink(), [("missing", "config.json")]),
        (lambda folder: (folder / "more").write_text(""), [("extra", "more")]),
        (
            lambda folder: ((folder / SHARDS[1]).unlink(), (folder / SHARDS[1]).mkdir()),
            [("unreadable", SHARDS[1])],
        ),
        (
            lambda folder: [p.unlink() for p in folder.glob("model*")],
            [("no-index", reading.INDEX), *(("missing", name) for name in SHARDS)],
        ),
    ],
)
def test_another_content_than_at_the_source(
    checkpoint: Path, damage: Callable[[Path], Any], found: list[tuple[str, str]]
) -> None:
    expected = reading.manifest(str(checkpoint))
    damage(checkpoint)
    assert codes(reading.read_ends(str(checkpoint), expected)) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"weight_map": []}',
        '{"weight_map": {"a": 1}}',
        '{"weight_map": {"a": "../../etc/passwd"}}',
        '{"weight_map": {"a": "/etc/passwd"}}',
    ],
)
def test_an_index_that_is_none(checkpoint: Path, text: str) -> None:
    (checkpoint / reading.INDEX).write_text(text)
    found = reading.read_ends(str(checkpoint))
    assert codes(found) == [("bad-index", reading.INDEX)]
    assert found["shards"] == 0


@pytest.mark.parametrize(
    ("number", "code"),
    [(errno.ESTALE, "stale"), (errno.EACCES, "unreadable"), (errno.EIO, "unreadable")],
)
def test_errors_of_a_server(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str
) -> None:
    def fail(handle: int, size: int, place: int) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "pread", fail)
    assert codes(reading.read_ends(str(checkpoint))) == [(code, name) for name in SHARDS]


# --- below a mount ---


@pytest.fixture
def mounted(checkpoint: Path, tmp_path: Path) -> Callable[..., str]:
    """A mountinfo with these sources on the checkpoint."""

    def write(*sources: str) -> str:
        path = tmp_path / "mountinfo"
        path.write_text(
            "".join(
                f"9{n} 29 0:55 / {checkpoint} ro,relatime - nfs4 {source} ro,vers=4.2,hard\n"
                for n, source in enumerate(sources)
            )
        )
        return str(path)

    return write


SOURCE = "127.0.0.1:/srv/models"


def test_the_mount_that_was_asked_for(checkpoint: Path, mounted: Callable[..., str]) -> None:
    found = reading.prove(str(checkpoint), SOURCE, None, 10, mountinfo=mounted(SOURCE))
    assert found == {"shards": 3, "bytes": 15003, "problems": []}


@pytest.mark.parametrize("sources", [(), ("127.0.0.2:/srv/models",), (SOURCE, SOURCE)])
def test_another_mount_is_not_read(
    checkpoint: Path, mounted: Callable[..., str], sources: tuple[str, ...]
) -> None:
    """An empty directory below, another server, two mounts on top of each other."""
    found = reading.prove(str(checkpoint), SOURCE, None, 10, mountinfo=mounted(*sources))
    assert codes(found) == [("not-mounted", str(checkpoint))]
    assert found["shards"] == 0
    for source in sources or ("found: nothing",):
        assert source in found["problems"][0]["message"]


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def test_a_server_that_is_gone(
    checkpoint: Path, mounted: Callable[..., str], listener: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer comes at the deadline and tells a dead server from one in its grace period."""
    monkeypatch.setattr(reading, "read_ends", lambda *_args: time.sleep(60))
    for port, words in (
        (closed_port(), "does not take connections on tcp"),
        (listener, "NFS grace period"),
    ):
        started = time.monotonic()
        found = reading.prove(str(checkpoint), SOURCE, None, 0.5, port, mounted(SOURCE))
        assert time.monotonic() - started < 5
        assert codes(found) == [("no-answer", str(checkpoint))]
        message = found["problems"][0]["message"]
        assert f"{SOURCE} on {checkpoint}: no answer within 0.5 s" in message
        assert words in message
