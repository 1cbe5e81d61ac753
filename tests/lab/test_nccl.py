# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The same patched NCCL on every rank; libraries here look like NCCL and compute nothing."""

from __future__ import annotations

import hashlib
import http.server
import json
import platform
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nccl_library import library_facts

from lab.standin.library import library
from lab.system import CACHE
from tests.support.labs import ROOT, LabUnderTest
from tests.support.playbook import (
    Run,
    assert_check_changes_nothing,
    assert_idempotent,
    run_playbook,
)

pytestmark = pytest.mark.containers

BUILD = ROOT / "playbooks/build.yml"
MARK = "NCCL_SWITCHLESS_RING_ONLY"
INSTALLED = "/usr/local/lib/sparkfleet/nccl/libnccl.so.2"
IN_IMAGE = "/opt/sglang/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"
STATE = "ls -lR /usr/local/lib/sparkfleet/nccl /var/lib/sparkfleet/nccl 2>&1; docker ps -aq"
SERVE = "systemd-run --quiet --unit=sparkfleet-rank@cell.service sleep infinity"
# An image with a shell, and with a stock NCCL where the profile says torch looks for it.
IMAGE = f"""
set -e
mkdir -p /srv/image && cd /srv/image && cp /bin/busybox .
printf 'the stock library' >libnccl.so.2
cat >Dockerfile <<'END'
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
COPY libnccl.so.2 {IN_IMAGE}
END
docker build -q -t engine:test .
printf 'FROM engine:test\\nCOPY libnccl.so.2 /usr/lib/libnccl.so.2.99\\n' >Dockerfile.two
docker build -q -t engine:two -f Dockerfile.two .
"""
# A source whose `make` is a script of the image it is built in: no compiler is in this test.
SOURCE = """
set -e
rm -rf /srv/nccl && mkdir -p /srv/nccl /srv/make && cd /srv/nccl
mv /srv/library .
echo unpatched >patched
git init -q . && git config user.email lab@example.org && git config user.name lab
git add . && git commit -qm source
echo patched >patched
git diff >/srv/ring.patch && git checkout -q patched
cd /srv/make && cp /bin/busybox . && cat >make <<'END'
#!/bin/sh -e
echo "make $*"
for word; do case "$word" in BUILDDIR=*) out=${word#BUILDDIR=} ;; esac; done
[ "$(cat /source/patched)" = patched ]
mkdir -p "$out/lib" && cp /source/library "$out/lib/libnccl.so.2.30.7"
ln -sf libnccl.so.2.30.7 "$out/lib/libnccl.so.2"
END
chmod +x make
cat >Dockerfile <<'END'
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
COPY make /bin/make
END
docker build -q -t maker:test . >/dev/null
git -C /srv/nccl rev-parse HEAD
sha256sum /srv/ring.patch | cut -d' ' -f1
"""


@pytest.fixture(scope="module")
def ring(make_lab: Callable[..., LabUnderTest]) -> LabUnderTest:
    lab = make_lab("nccl", "containers")
    lab.everywhere(IMAGE)
    return lab


@pytest.fixture
def patched(tmp_path: Path) -> Path:
    path = tmp_path / "libnccl.so.2.30.7"
    path.write_bytes(library(MARK, machine=platform.machine()))
    return path


def nccl(lab: LabUnderTest, *args: str) -> Run:
    return run_playbook(BUILD, lab.inventory, *args)


def wish(**values: object) -> tuple[str, ...]:
    given = json.dumps({"spark_image": "engine:test", **values})
    return ("--timeout", "60", "--tags", "nccl", "-e", given)


def file(path: Path, **values: object) -> tuple[str, ...]:
    return wish(nccl_source="file", nccl_file=str(path), **values)


def digests(lab: LabUnderTest) -> set[str]:
    return set(lab.everywhere(f"sha256sum {INSTALLED} | cut -d' ' -f1").values())


def refused(run: Run, *told: str) -> None:
    assert run.returncode != 0
    for sentence in told:
        assert sentence in run.output, run.output
    assert "Traceback" not in run.output


def test_a_ring_without_a_patched_library_is_refused(ring: LabUnderTest) -> None:
    before = ring.everywhere(STATE)
    refused(
        nccl(ring, *wish()),
        f"spark1: there is no file {INSTALLED}. This cell needs a patched NCCL",
        f"spark4: there is no file {INSTALLED}",
    )
    assert ring.everywhere(STATE) == before


@pytest.mark.parametrize(
    ("texts", "options", "told"),
    [
        ((), {}, "without SWITCHLESS_RING_ONLY: a stock library"),
        ((MARK,), {"machine": "aarch64"}, "is made for aarch64, expected x86_64"),
        ((MARK,), {"version": "2.27.3"}, "NCCL 2.27.3, but the profile is made for 2.30.7"),
    ],
)
def test_a_library_that_is_not_right_never_leaves_the_controller(
    ring: LabUnderTest,
    tmp_path: Path,
    texts: tuple[str, ...],
    options: dict[str, str],
    told: str,
) -> None:
    before = ring.everywhere(STATE)
    path = tmp_path / "library"
    path.write_bytes(library(*texts, **{"machine": platform.machine(), **options}))  # type: ignore[arg-type]
    refused(nccl(ring, *file(path)), told)
    assert ring.everywhere(STATE) == before


def test_from_a_file_to_every_rank(ring: LabUnderTest, patched: Path) -> None:
    assert_check_changes_nothing(
        BUILD, ring.inventory, *file(patched), witness=lambda: ring.everywhere(STATE)
    )
    assert_idempotent(BUILD, ring.inventory, *file(patched))
    assert digests(ring) == {hashlib.sha256(patched.read_bytes()).hexdigest()}
    assert set(ring.everywhere("docker ps -aq").values()) == {""}
    # what is there is as good as what is brought
    nccl(ring, *wish()).assert_ok().assert_unchanged()
    ring.root("spark3", f"printf x >>{INSTALLED}")
    refused(nccl(ring, *wish()), "the ranks have different NCCL libraries", "spark3: ")
    # nothing is changed under a rank that is serving
    ring.root("spark3", SERVE)
    try:
        refused(
            nccl(ring, *file(patched)),
            "spark3 is serving (sparkfleet-rank@cell.service) and would get another NCCL",
        )
    finally:
        ring.root("spark3", "systemctl stop sparkfleet-rank@cell.service")
    run = nccl(ring, *file(patched)).assert_ok()
    assert run.hosts["spark3"].changed and not run.hosts["spark1"].changed


def test_a_second_nccl_in_the_image_is_refused(ring: LabUnderTest, patched: Path) -> None:
    nccl(ring, *file(patched)).assert_ok()
    refused(
        nccl(ring, *file(patched, spark_image="engine:two")),
        "a program could load /usr/lib/libnccl.so.2.99. Exactly one may be visible",
    )
    refused(nccl(ring, *file(patched, spark_image="absent:1")), "could not look")


@pytest.fixture
def server(patched: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: object) -> None:
            super().__init__(*args, directory=str(patched.parent))  # type: ignore[arg-type]

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{httpd.server_address[1]}/{patched.name}"
        httpd.shutdown()


def test_from_an_address(ring: LabUnderTest, server: str, patched: Path, tmp_path: Path) -> None:
    ring.everywhere("rm -rf /usr/local/lib/sparkfleet/nccl")
    sha256 = hashlib.sha256(patched.read_bytes()).hexdigest()
    given = {"nccl_source": "url", "nccl_url": server, "nccl_cache_dir": str(tmp_path / "cache")}
    refused(nccl(ring, *wish(**given)), "nccl_sha256 is ''")
    assert_check_changes_nothing(
        BUILD,
        ring.inventory,
        *wish(**given, nccl_sha256=sha256),
        witness=lambda: (ring.everywhere(STATE), list(tmp_path.glob("cache/*.so"))),
    )
    refused(nccl(ring, *wish(**given, nccl_sha256="0" * 64)), "checksum")
    assert_idempotent(BUILD, ring.inventory, *wish(**given, nccl_sha256=sha256))
    assert digests(ring) == {sha256}


def test_from_sources_with_a_stand_in_for_make(
    ring: LabUnderTest, patched: Path, tmp_path: Path
) -> None:
    ring.put("spark1", "/srv/library", patched.read_bytes())
    commit, patch = ring.root("spark1", SOURCE).split()
    given = {
        "nccl_source": "build",
        "nccl_cache_dir": str(tmp_path / "cache"),
        "nccl_build_repository": "file:///srv/nccl",
        "nccl_build_commit": commit,
        "nccl_build_image": "maker:test",
        "nccl_build_packages": ["git"],
    }
    ring.everywhere("rm -rf /usr/local/lib/sparkfleet/nccl")
    refused(nccl(ring, *wish(**given)), "nccl_build_patches is empty")
    right = wish(**given, nccl_build_patches=[{"url": "file:///srv/ring.patch", "sha256": patch}])
    ring.root("spark1", SERVE)
    try:
        refused(nccl(ring, *right), "spark1 is serving", "would have to build NCCL")
    finally:
        ring.root("spark1", "systemctl stop sparkfleet-rank@cell.service")
    assert_check_changes_nothing(
        BUILD, ring.inventory, *right, witness=lambda: ring.everywhere(STATE)
    )
    wrong = [{"url": "file:///srv/ring.patch", "sha256": "0" * 64}]
    refused(nccl(ring, *wish(**given, nccl_build_patches=wrong)), "checksum")
    assert_idempotent(BUILD, ring.inventory, *right)
    assert digests(ring) == {hashlib.sha256(patched.read_bytes()).hexdigest()}
    said = ring.root("spark1", "cat /var/log/sparkfleet/nccl-build.log")
    assert "src.build NVCC_GENCODE=-gencode=arch=compute_121,code=sm_121 BUILDDIR=/built" in said


@pytest.fixture(scope="module")
def stock() -> Path:
    """The real NCCL for a Spark's processor from PyPI; 250 MB, kept."""
    folder = CACHE / "nccl"
    wheels = list(folder.glob("nvidia_nccl_cu13-*_aarch64.whl"))
    if not wheels:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--platform", "manylinux_2_18_aarch64"]
        subprocess.run([*command, "--dest", str(folder), "nvidia-nccl-cu13"], check=True)
        wheels = list(folder.glob("nvidia_nccl_cu13-*_aarch64.whl"))
    path = folder / "libnccl.so.2"
    if not path.exists():
        with zipfile.ZipFile(wheels[0]) as wheel:
            path.write_bytes(wheel.read("nvidia/nccl/lib/libnccl.so.2"))
    return path


def test_the_real_stock_library_is_known_as_such(stock: Path) -> None:
    found = library_facts(str(stock), ["SWITCHLESS_RING_ONLY"], "aarch64")
    assert [problem["code"] for problem in found["problems"]] == ["markers-missing"]
    assert found["machine"] == "aarch64" and found["version"].startswith("2.")
    notes = subprocess.run(["readelf", "-n", stock], capture_output=True, text=True, check=True)
    assert f"Build ID: {found['build_id']}" in notes.stdout
    fine = library_facts(str(stock), [], "aarch64")
    assert fine["problems"] == []


def test_the_real_stock_library_reaches_no_rank(ring: LabUnderTest, stock: Path) -> None:
    before = ring.everywhere(STATE)
    refused(
        nccl(ring, *file(stock)),
        "is made for aarch64, expected x86_64",
        "without SWITCHLESS_RING_ONLY: a stock library",
    )
    assert ring.everywhere(STATE) == before
