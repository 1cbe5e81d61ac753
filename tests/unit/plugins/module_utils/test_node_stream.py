"""Streams to several receivers over the loopback, with real processes, and every way to be cut."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _node_stream as stream

from tests.support.ports import free_port

PROGRAM = stream.__file__
TOKEN = "t" * 43
SIZE = 7 * (1 << 20) + 12345

needs_zstd = pytest.mark.skipif(not shutil.which("zstd"), reason="no zstd here")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(SIZE))
    return path


def program(action: str, **settings: Any) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-I", PROGRAM, action],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert child.stdin
    child.stdin.write(json.dumps(settings))
    child.stdin.close()
    child.stdin = None
    return child


def sender(port: int, command: list[str], **more: Any) -> subprocess.Popen[str]:
    settings: dict[str, Any] = {
        "command": command,
        "listen": ["127.0.0.1"],
        "port": port,
        "token": TOKEN,
        "receivers": 1,
        "gather": 15,
        "compress": False,
        "bytes": SIZE,
    }
    return program("send", **{**settings, **more})


def receiver(port: int, command: list[str], **more: Any) -> subprocess.Popen[str]:
    settings: dict[str, Any] = {
        "command": command,
        "address": "127.0.0.1",
        "port": port,
        "token": TOKEN,
        "gather": 15,
        "compress": False,
        "bytes": SIZE,
    }
    return program("receive", **{**settings, **more})


def end(child: subprocess.Popen[str]) -> tuple[int, str]:
    said, _nothing = child.communicate(timeout=60)
    assert "Traceback" not in said, said
    return child.returncode, said


def writer(path: Path) -> list[str]:
    return ["dd", f"of={path}", "status=none"]


@pytest.mark.parametrize("compress", [False, pytest.param(True, marks=needs_zstd)])
def test_three_receive_what_one_command_prints(data: Path, tmp_path: Path, compress: bool) -> None:
    port = free_port()
    counted = ["sh", "-c", f"echo once >> {tmp_path}/runs; cat {data}"]
    send = sender(port, counted, receivers=2, compress=compress, listen=["127.0.0.1", "127.0.0.2"])
    one = receiver(port, writer(tmp_path / "one"), compress=compress)
    two = receiver(port, writer(tmp_path / "two"), compress=compress, address="127.0.0.2")
    assert [end(child)[0] for child in (send, one, two)] == [0, 0, 0]
    wanted = hashlib.sha256(data.read_bytes()).digest()
    for name in ("one", "two"):
        assert hashlib.sha256((tmp_path / name).read_bytes()).digest() == wanted
    assert (tmp_path / "runs").read_text() == "once\n"


def test_a_wrong_token_gets_nothing(data: Path, tmp_path: Path) -> None:
    port = free_port()
    send = sender(port, ["cat", str(data)])
    code, said = end(receiver(port, writer(tmp_path / "stolen"), token="guess"))
    assert code == 1 and "404" in said
    assert not (tmp_path / "stolen").exists()
    assert TOKEN not in said
    code, said = end(receiver(port, writer(tmp_path / "right")))
    assert code == 0, said
    assert end(send)[0] == 0


def test_a_command_that_fails_is_seen_at_both_ends(data: Path, tmp_path: Path) -> None:
    port = free_port()
    send = sender(port, ["sh", "-c", f"head -c 3000000 {data}; exit 3"])
    got = receiver(port, writer(tmp_path / "part"))
    code, said = end(send)
    assert code == 1 and "ended with status 3" in said
    code, said = end(got)
    assert code == 1 and "the stream was cut after" in said


def test_the_reading_command_never_sees_an_orderly_end_of_a_cut_stream(
    data: Path, tmp_path: Path
) -> None:
    port = free_port()
    send = sender(port, ["sh", "-c", f"head -c 3000000 {data}; exit 3"])
    done = tmp_path / "done"
    got = receiver(port, ["sh", "-c", f"cat >/dev/null; touch {done}"])
    assert end(send)[0] == 1
    assert end(got)[0] == 1
    assert not done.exists()


def test_one_receiver_that_fails_does_not_end_the_others(data: Path, tmp_path: Path) -> None:
    port = free_port()
    send = sender(port, ["cat", str(data)], receivers=2, listen=["127.0.0.1", "127.0.0.2"])
    bad = receiver(port, ["sh", "-c", "head -c 1000 >/dev/null; exit 4"])
    good = receiver(port, writer(tmp_path / "good"), address="127.0.0.2")
    assert end(good)[0] == 0
    assert (tmp_path / "good").read_bytes() == data.read_bytes()
    assert end(bad)[0] == 1
    end(send)  # it may have sent all into buffers before the receiver went


def test_a_receiver_that_never_comes_is_told(data: Path, tmp_path: Path) -> None:
    port = free_port()
    send = sender(port, ["cat", str(data)], receivers=2, gather=1)
    got = receiver(port, writer(tmp_path / "alone"))
    code, said = end(send)
    assert code == 1 and "only 1 of 2 receivers came within 1 s (127.0.0.1:" in said
    assert end(got)[0] == 1


def test_a_sender_that_is_not_there_is_told(tmp_path: Path) -> None:
    code, said = end(receiver(free_port(), writer(tmp_path / "x"), gather=0.5))
    assert code == 1 and "was not reached within 0.5 s: Connection refused" in said


def test_an_address_that_is_not_up_is_told(data: Path) -> None:
    code, said = end(sender(free_port(), ["cat", str(data)], listen=["192.0.2.77"]))
    assert code == 1 and "192.0.2.77" in said and "fabric" in said


def test_a_missing_command_is_told(tmp_path: Path) -> None:
    port = free_port()
    send = sender(port, ["no-such-command"])
    got = receiver(port, writer(tmp_path / "x"))
    code, said = end(send)
    assert code == 1 and "no-such-command: No such file" in said
    assert end(got)[0] == 1


@pytest.mark.parametrize("settings", ["", "{}", "[1]", "null"])
def test_unusable_settings_are_no_traceback(settings: str) -> None:
    done = subprocess.run(
        [sys.executable, "-I", PROGRAM, "send"],
        input=settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr


def test_progress_is_calm_and_tells_share_rate_and_time() -> None:
    said: list[str] = []
    meter = stream.Meter(4 << 30, said.append, period=3600)
    for _chunk in range(100):
        meter.add(1 << 20)
    assert said == []
    line = meter.line(meter._begun + 1)
    assert line == "0.1 GiB of about 4.0 GiB (2 %), 100 MiB/s, 0:39 left"
    meter.bytes = 5 << 30
    assert "(99 %)" in meter.line(meter._begun + 1)
