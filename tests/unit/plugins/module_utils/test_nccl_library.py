"""What a library says about itself, read from files made for the purpose."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nccl_library import library_facts

from lab.standin.library import BUILD_ID, library

RING, GIDS = "SWITCHLESS_RING_ONLY", "IB_EXTENDED_IPV4_GIDS"
PATCHED = library(f"NCCL_{RING}", f"NCCL_{GIDS}", machine="aarch64")


def facts(tmp_path: Path, data: bytes, *markers: str, machine: str = "aarch64") -> dict[str, Any]:
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(data)
    return library_facts(str(path), markers, machine)


def codes(found: dict[str, Any]) -> list[str]:
    return [problem["code"] for problem in found["problems"]]


def test_a_patched_library(tmp_path: Path) -> None:
    data = library(f"NCCL_{RING}", machine="aarch64")
    found = facts(tmp_path, data, RING)
    assert found["problems"] == []
    assert found["sha256"] == hashlib.sha256(data).hexdigest()
    assert (found["size"], found["machine"]) == (len(data), "aarch64")
    assert (found["version"], found["markers"]) == ("2.30.7+cuda13.0", {RING: True})
    assert found["build_id"] == BUILD_ID.hex()


def test_texts_across_blocks_are_found(tmp_path: Path) -> None:
    for shift in range(0, 120, 7):
        found = facts(tmp_path, library("x" * shift, RING, machine="aarch64"), RING)
        assert found["problems"] == [], shift


def test_a_stock_library_is_told_by_what_it_lacks(tmp_path: Path) -> None:
    found = facts(tmp_path, library(f"NCCL_{GIDS}", machine="aarch64"), RING, GIDS)
    assert found["markers"] == {RING: False, GIDS: True}
    assert codes(found) == ["markers-missing"]
    assert (
        f"NCCL 2.30.7+cuda13.0 without {RING}: a stock library" in found["problems"][0]["message"]
    )


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", ["not-elf"]),
        (b"\x7fELF", ["truncated"]),
        (b"#!/bin/sh\nexit 0\n", ["not-elf"]),
        (b"version https://git-lfs.github.com/spec/v1\n", ["not-elf"]),
        (PATCHED[:-1], ["truncated"]),
        (PATCHED[:100], ["truncated"]),
        (PATCHED[:63], ["truncated"]),
        (b"\x7fELF\x01" + PATCHED[5:], ["not-elf"]),
        (b"\x7fELF\x02\x02" + PATCHED[6:], ["not-elf"]),
        (library(RING, machine="aarch64", kind=2), ["not-elf"]),
        (library(RING, machine="x86_64"), ["wrong-machine"]),
        (library(machine="aarch64", version=None), ["not-nccl"]),
        (library(machine="x86_64"), ["wrong-machine", "markers-missing"]),
    ],
)
def test_what_is_wrong_has_a_name(tmp_path: Path, data: bytes, told: list[str]) -> None:
    found = facts(tmp_path, data, RING)
    assert codes(found) == told
    assert all(str(tmp_path) in problem["message"] for problem in found["problems"])
    assert found["sha256"] == hashlib.sha256(data).hexdigest()


def test_a_library_without_build_id(tmp_path: Path) -> None:
    found = facts(tmp_path, library(RING, machine="aarch64", build_id=None), RING)
    assert found["problems"] == [] and found["build_id"] is None


def test_header_noise_never_raises(tmp_path: Path) -> None:
    for at in range(200):
        for value in (0, 1, 0x7F, 0xFF):
            data = bytearray(PATCHED[:4096])
            data[at] = value
            facts(tmp_path, bytes(data), RING)


def test_nothing_there_and_nothing_readable(tmp_path: Path) -> None:
    assert codes(library_facts(str(tmp_path / "none"), (), "aarch64")) == ["missing"]
    assert codes(library_facts(str(tmp_path), (), "aarch64")) == ["unreadable"]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(PATCHED)
    os.truncate(path, 300 << 20)
    script = (
        "import sys\n"
        "from ansible_collections.sparkfleet.cluster.plugins.module_utils._nccl_library import *\n"
        "facts = library_facts(sys.argv[1], ['SWITCHLESS_RING_ONLY'], 'aarch64')\n"
        "assert facts['problems'] == [], facts\n"
        # getrusage would count what the process that started this one had
        "status = open('/proc/self/status').read()\n"
        "print(status.split('VmHWM:')[1].split()[0])\n"
    )
    root = Path(__file__).resolve().parents[4]
    done = subprocess.run(
        [sys.executable, "-c", script, str(path)],
        env={**os.environ, "PYTHONPATH": str(root / "collections")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) < 100_000  # kilobytes
