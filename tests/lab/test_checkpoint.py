# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The role `checkpoint` on a container lab: the real downloader, against a stand-in of the hub."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lab import checkpoint
from tests.support.hub import Hub
from tests.support.labs import ROOT, LabUnderTest
from tests.support.playbook import (
    Run,
    ansible_env,
    assert_check_changes_nothing,
    run_playbook,
)

pytestmark = pytest.mark.containers

PLAY = Path(__file__).with_name("checkpoint.yml")
REQUIREMENTS = ROOT / "roles/checkpoint/files/requirements.txt"
TARGET = "/data/checkpoint"
UNIT = "sparkfleet-checkpoint.service"
HF = "/opt/hf/hf"
TRICKLE = 2000  # bytes a second: alive, and done by no test's end


@dataclass
class Site:
    """A lab with a hub beside it."""

    lab: LabUnderTest
    hub: Hub
    facts: dict[str, Any]
    folder: Path
    endpoint: str
    variables: dict[str, Any] = field(default_factory=dict)

    def arguments(self, **more: Any) -> list[str]:
        told = {
            "spark_model": str(self.folder / "model.yml"),
            "spark_checkpoint_dir": TARGET,
            "checkpoint_endpoint": self.endpoint,
            "checkpoint_downloader": HF,
            "checkpoint_spare_gib": 0.01,
            "checkpoint_retry_seconds": 1,
            **more,
        }
        return ["-e", json.dumps(told)]

    def play(self, *words: str, **more: Any) -> Run:
        return run_playbook(PLAY, self.lab.inventory, *self.arguments(**more), *words, timeout=300)

    def start(self, directory: Path) -> subprocess.Popen[bytes]:
        """The same in the background, to be interrupted; it writes to `output` there."""
        directory.mkdir(exist_ok=True)
        with (directory / "output").open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "ansible", "playbook", "-i", str(self.lab.inventory)]
                + [*self.arguments(), str(PLAY)],
                env=ansible_env(directory),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def on_head(self, script: str) -> str:
        return self.lab.root("spark1", script)

    def witness(self) -> dict[str, str]:
        return self.lab.everywhere(
            "find /data /usr/local /var/lib/sparkfleet /var/log/sparkfleet /root /etc/sparkfleet "
            "-printf '%p %s %T@\\n' 2>/dev/null | sort; dpkg -l | wc -l"
        )

    def whole(self, host: str = "spark1") -> bool:
        """Byte by byte, with what the hub has."""
        sums = self.lab.root(host, f"cd {TARGET} && sha256sum *.safetensors *.json")
        done = subprocess.run(
            "sha256sum *.safetensors *.json",
            shell=True,
            cwd=self.folder / "checkpoint",
            capture_output=True,
            text=True,
            check=True,
        )
        return sums.split() == done.stdout.split()


@pytest.fixture(scope="module")
def site(
    make_lab: Callable[..., LabUnderTest], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("hub")
    facts = checkpoint.make(folder / "checkpoint", rows=(50_021, 5_003))
    checkpoint.write_facts(folder / "model.yml", facts)
    downloader = folder / "hf"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", f"--target={downloader}"]
        + ["--python-version=3.13", "--only-binary=:all:", "--require-hashes"]
        + [f"--platform=manylinux_2_{glibc}_{os.uname().machine}" for glibc in (28, 17)]
        + [f"--platform=manylinux2014_{os.uname().machine}", f"--requirement={REQUIREMENTS}"],
        check=True,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
    )
    (downloader / "hf").write_text(
        '#!/bin/sh\nPYTHONPATH=/opt/hf exec python3 -m huggingface_hub.cli.hf "$@"\n'
    )
    (downloader / "hf").chmod(0o755)
    lab = make_lab("checkpoint", "containers", "--hosts", "2", "--cabling", "pair")
    for host in lab.lab.hosts:
        checkpoint.put(lab.lab, host, downloader, "/opt/hf")
    hub = Hub(folder / "checkpoint", facts["repository"], facts["revision"])
    with hub.serve(lab.lab.gateway) as endpoint:
        yield Site(lab, hub, facts, folder, endpoint)


@pytest.fixture(autouse=True)
def fresh(site: Site) -> Iterator[None]:
    """Every test begins with hosts that have no checkpoint, and a hub in good health."""
    yield
    site.hub.rate, site.hub.free, site.hub.down, site.hub.token = None, 0, False, ""
    site.lab.everywhere(
        f"systemctl stop {UNIT} 2>/dev/null; systemctl reset-failed {UNIT} 2>/dev/null;"
        f"rm -rf {TARGET} /data/source /source /data/token /data/fake* /usr/local/lib/sparkfleet"
    )
    site.hub.requests.clear()


def soon(true: Callable[[], bool], seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, "it did not come to that in time"
        time.sleep(0.2)


def test_download_and_leave_alone(site: Site) -> None:
    run = site.play().assert_ok()
    assert site.whole()
    assert run.hosts["spark2"].changed == 0
    assert site.on_head(f"ls -A {TARGET}/.cache") == "huggingface"
    assert site.on_head("find /root -newer /etc/hostname -size +100k") == ""
    site.hub.requests.clear()
    # Whole, it needs no hub, no proxy that works and no downloader.
    site.hub.down = True
    again = site.play(
        checkpoint_downloader="/no/such/hf",
        checkpoint_environment={"HTTPS_PROXY": "http://127.0.0.1:9"},
        checkpoint_hashes="known",
    )
    again.assert_ok().assert_unchanged()
    assert site.hub.requests == []


def test_check_mode_on_a_bare_host(site: Site) -> None:
    run = assert_check_changes_nothing(
        PLAY, site.lab.inventory, *site.arguments(), witness=site.witness
    )
    assert run.changed
    assert site.hub.requests == []


def test_check_mode_on_a_bare_host_with_the_downloader_to_install(site: Site) -> None:
    arguments = site.arguments(checkpoint_downloader="", checkpoint_packages=["coreutils"])
    assert_check_changes_nothing(PLAY, site.lab.inventory, *arguments, witness=site.witness)


def test_an_interrupted_download_goes_on(site: Site, tmp_path: Path) -> None:
    """The controller dies, then the node's download as in a power cut: nothing starts from zero."""
    big = checkpoint.shard(47)
    # The downloader writes 10 MiB at once.
    site.hub.rate, site.hub.free = TRICKLE, 11 << 20
    controller = site.start(tmp_path)
    try:
        soon(lambda: "incomplete" in site.on_head(f"find {TARGET} -size +9M || true"))
    finally:
        controller.kill()
        controller.wait()
    assert site.on_head(f"systemctl show --property=SubState {UNIT}") == "SubState=running"
    site.on_head(f"systemctl kill --signal=KILL {UNIT}")
    site.hub.rate = None
    site.hub.requests.clear()
    site.play().assert_ok()
    assert site.whole()
    assert [request.start for request in site.hub.asked_for(big)] == [10 << 20]
    site.play().assert_ok().assert_unchanged()


def test_a_download_that_is_running_is_watched(site: Site, tmp_path: Path) -> None:
    site.hub.rate = TRICKLE
    first = site.start(tmp_path / "first")
    try:
        soon(lambda: bool(site.hub.asked_for(checkpoint.shard(47))))
    finally:
        first.kill()
        first.wait()
    running = site.on_head(f"systemctl show --property=MainPID {UNIT}")
    assert running != "MainPID=0"
    second = site.start(tmp_path / "second")
    try:
        soon(lambda: "Watch it" in (tmp_path / "second/output").read_text())
        assert site.on_head(f"systemctl show --property=MainPID {UNIT}") == running
        site.hub.rate = None
        assert second.wait(300) == 0
    finally:
        second.kill()
        second.wait()
    assert site.whole()
    assert len(site.hub.asked_for(checkpoint.shard(47))) == 1


CONTENT = """#!/bin/sh
echo once >> /data/fake.log
mkdir -p /data/checkpoint
cp /data/source/*.json /data/checkpoint
for n in $(seq -w 1 30); do cp /data/source/model-000$n-of-00048.safetensors /data/checkpoint; done
"""


def test_exit_code_zero_proves_nothing(site: Site) -> None:
    """A downloader that gets 30 of 48 files and is content, as older ones were."""
    checkpoint.put(
        site.lab.lab, site.lab.lab.host("spark1"), site.folder / "checkpoint", "/data/source"
    )
    site.on_head(f"printf %s {shlex.quote(CONTENT)} > /data/fake; chmod +x /data/fake")
    run = site.play(checkpoint_downloader="/data/fake", checkpoint_attempts=2)
    assert run.returncode == 2
    for number in range(1, 49):
        assert (f"{checkpoint.shard(number)}: missing" in run.output) == (number > 30)
    assert site.on_head("wc -l < /data/fake.log") == "2"


def test_damage_is_told_and_repaired(site: Site) -> None:
    site.play().assert_ok()
    third, ninth = checkpoint.shard(3), checkpoint.shard(9)
    site.on_head(f"cd {TARGET}; truncate -s -3 {third}; touch -d '2020-01-01' {third}; rm {ninth};")
    before = site.witness()
    run = site.play(checkpoint_state="checked")
    assert run.returncode == 2
    assert f"{third}: 3 bytes missing" in run.output
    assert f"{ninth}: missing" in run.output
    assert site.witness() == before
    site.hub.requests.clear()
    site.play().assert_ok()
    assert site.whole()
    assert {r.path.rpartition("/")[2] for r in site.hub.requests if r.method == "GET"} >= {
        third,
        ninth,
    }
    assert site.hub.asked_for(checkpoint.shard(47)) == []


def test_what_fetching_cannot_put_right_is_refused_at_once(site: Site) -> None:
    site.on_head(f"mkdir -p {TARGET}; echo x > /data/token; chmod 644 /data/token")
    run = site.play(checkpoint_token_file="/data/token", checkpoint_spare_gib=100000)
    assert run.returncode == 2
    assert "/data/token can be read by others than root" in run.output
    assert "100000 GiB to spare" in run.output
    run = site.play(checkpoint_token_file="/data/no-token")
    assert "/data/no-token does not exist" in run.output
    assert site.hub.requests == []
    site.play().assert_ok()
    site.on_head(f"cp {TARGET}/{checkpoint.shard(1)} {TARGET}/consolidated.safetensors")
    site.hub.requests.clear()
    run = site.play()
    assert run.returncode == 2
    assert "consolidated.safetensors" in run.output
    assert site.hub.requests == []


def test_a_token_reaches_the_hub_and_nobody_else(site: Site, tmp_path: Path) -> None:
    site.hub.token = "hf_secretOfTheTest"
    site.hub.rate = 2_000_000
    # Not on a command line: sudo writes those to the journal.
    (tmp_path / "token").write_text(site.hub.token)
    checkpoint.put(site.lab.lab, site.lab.lab.host("spark1"), tmp_path, "/data/source")
    site.on_head("install -m 600 /data/source/token /data/token")
    run = site.play("-vvv", checkpoint_token_file="/data/token").assert_ok()
    assert site.whole()
    assert site.hub.asked_for(checkpoint.shard(1))[0].token == site.hub.token
    assert site.hub.token not in run.output
    places = f"/var/log/sparkfleet {TARGET} /root /run/sparkfleet"
    assert site.on_head(f"grep -rlF -f /data/token {places} || true") == ""


def test_a_hub_that_is_down_is_tried_again(site: Site) -> None:
    site.hub.down = True
    run = site.play(checkpoint_attempts=1)
    assert run.returncode == 2
    assert "/var/log/sparkfleet/checkpoint.log" in run.output
    assert "503" in run.output


def test_every_node_has_its_own(site: Site) -> None:
    site.play(spark_weights_mode="local").assert_ok()
    assert site.whole("spark1")
    assert site.whole("spark2")
    site.play(spark_weights_mode="local").assert_ok().assert_unchanged()


CACHE = """
set -eu
cd {source}; hub={hub}; model=$hub/models--org--m; rev={revision}
mkdir -p $model/blobs $model/snapshots/$rev $hub/blobs
for file in *; do
  sum=$(sha256sum $file | cut -d' ' -f1); start=$(echo $sum | cut -c1-2)
  mkdir -p $hub/blobs/$start; mv $file $hub/blobs/$start/$sum; chmod 600 $hub/blobs/$start/$sum
  ln -s ../../blobs/$start/$sum $model/blobs/$sum
  ln -s ../../blobs/$sum $model/snapshots/$rev/$file
done
"""


@pytest.mark.parametrize("place", ["/data/source", "/source"], ids=["same disk", "other disk"])
def test_a_cache_of_links_is_copied_as_files(site: Site, place: str) -> None:
    revision = site.facts["revision"]
    lab = site.lab.lab
    checkpoint.put(lab, lab.host("spark1"), site.folder / "checkpoint", f"{place}/plain")
    site.on_head(CACHE.format(source=f"{place}/plain", hub=f"{place}/hub", revision=revision))
    snapshot = f"{place}/hub/models--org--m/snapshots/{revision}"
    told = {"checkpoint_source": "directory", "checkpoint_directory": snapshot}
    check = assert_check_changes_nothing(
        PLAY, site.lab.inventory, *site.arguments(**told), witness=site.witness
    )
    assert check.changed
    site.play(**told).assert_ok()
    assert site.whole()
    assert site.on_head(f"find {TARGET} -type l") == ""
    assert (site.on_head(f"find {TARGET} -type f -links 1 | head -1") == "") == (
        place == "/data/source"
    )
    site.play(**told).assert_ok().assert_unchanged()
    assert site.hub.requests == []


def test_a_source_that_is_not_whole_is_refused(site: Site) -> None:
    lab = site.lab.lab
    checkpoint.put(lab, lab.host("spark1"), site.folder / "checkpoint", "/data/source")
    site.on_head(
        f"cd /data/source; ln -sf /gone/blob {checkpoint.shard(2)}; rm {checkpoint.shard(5)}"
    )
    run = site.play(checkpoint_source="directory", checkpoint_directory="/data/source")
    assert run.returncode == 2
    assert f"{checkpoint.shard(2)}: a link to /gone/blob, which does not exist" in run.output
    assert f"{checkpoint.shard(5)}: missing" in run.output
    assert site.on_head(f"ls {TARGET} 2>/dev/null | wc -l") == "0"


def test_the_other_nodes_copy_from_their_mount(site: Site) -> None:
    """A plain directory stands in for the mount of the head's."""
    lab = site.lab.lab
    checkpoint.put(lab, lab.host("spark2"), site.folder / "checkpoint", f"{TARGET}-shared")
    try:
        told = {"spark_weights_mode": "both", "only": "spark2", "entry": "copy"}
        site.play(**told).assert_ok()
        assert site.whole("spark2")
        site.play(**told).assert_ok().assert_unchanged()
    finally:
        site.lab.root("spark2", f"rm -rf {TARGET}-shared")


def test_the_downloader_is_installed_from_pinned_wheels(site: Site, tmp_path: Path) -> None:
    """The packages that this needs are on the hosts of the lab, which reach no archive."""
    assert site.on_head("python3 -c 'import ensurepip, packaging' 2>&1") == ""
    wheels = tmp_path / "wheels"
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--quiet", f"--dest={wheels}"]
        + ["--python-version=3.13", "--only-binary=:all:", "--require-hashes"]
        + [f"--platform=manylinux_2_{glibc}_{os.uname().machine}" for glibc in (28, 17)]
        + [f"--platform=manylinux2014_{os.uname().machine}", f"--requirement={REQUIREMENTS}"],
        check=True,
    )
    lab = site.lab.lab
    checkpoint.put(lab, lab.host("spark1"), wheels, "/data/source")
    told = {"checkpoint_downloader": "", "checkpoint_downloader_index": "/data/source"}
    site.play(**told).assert_ok()
    assert site.whole()
    site.play(**told).assert_ok().assert_unchanged()
