# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""From freshly installed virtual machines to a cell that serves: what containers cannot show.

RDMA that really carries bytes, the kernel's NFS, an NVMe disk, and nodes that really restart. There
are no gates: Soft-RoCE on an emulated processor shows that it works, not how fast.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lab import checkpoint
from tests.support.labs import ROOT, LabUnderTest
from tests.support.packed import packed_digest
from tests.support.playbook import ansible_env, run_playbook

pytestmark = pytest.mark.vm

FABRIC = ROOT / "playbooks/fabric.yml"
SHARE = ROOT / "playbooks/share.yml"
PACK = ROOT / "playbooks/pack.yml"
SITE = ROOT / "site.yml"
UNIT = "sparkfleet-rank@sparks.service"
ROWS = (400_009, 400_013)
GENTLE = {
    "ansible_python_interpreter": "/usr/bin/python3",
    "roce_fabric_twin_gbps": 0,
    "roce_fabric_both_gbps": 0,
    "roce_fabric_measure_seconds": 6,
    "roce_fabric_measure_grace": 120,
    "roce_fabric_measure_message_size": 1024,
    "roce_fabric_measure_queue_pairs": 1,
    "roce_fabric_measure_latency_iterations": 50,
    "roce_fabric_measure_at_once": 1,
    "roce_fabric_rollback_after": 600,
}


@pytest.fixture(scope="module")
def ring(make_lab: Callable[..., LabUnderTest]) -> LabUnderTest:
    return make_lab("fabric", "vm", "--bare")


def settings(**more: object) -> tuple[str, str]:
    return ("-e", json.dumps({**GENTLE, **more}))


def test_every_cable_is_proven_with_rdma(ring: LabUnderTest, tmp_path: Path) -> None:
    report = tmp_path / "fabric"
    more = settings(roce_fabric_report_path=str(report))
    run_playbook(FABRIC, ring.inventory, *more, timeout=1500).assert_ok()
    links = json.loads(report.with_suffix(".json").read_text())["verdict"]["links"]
    assert [link["verdict"] for link in links] == ["ok"] * 4
    for link in links:
        assert link["there"] is not None and link["back"] is not None  # not one lost message
        assert all(twin["rping"] == {"there": True, "back": True} for twin in link["twins"])
    assert ring.reaches("spark1", "10.20.4.13", 8972)  # the diagonal, through a neighbour


def test_gids_that_moved_are_found_after_a_reboot(ring: LabUnderTest, tmp_path: Path) -> None:
    """A slot moves on the node that stays up, and all of them on the one that starts anew."""
    before = chosen(ring, "spark2", tmp_path)
    ring.cli("gid-shift", "spark2", "rocep1s0f0")
    reboot(ring, "spark3")
    after = chosen(ring, "spark2", tmp_path)
    assert after["gid_address"] == before["gid_address"] == "10.20.2.12"
    assert after["gid_index"] == before["gid_index"] + 1
    checked = settings(roce_fabric_state="checked", roce_fabric_measure="never")
    run_playbook(FABRIC, ring.inventory, *checked, timeout=900).assert_ok().assert_unchanged()
    assert ring.reaches("spark1", "10.20.4.13", 8972)


@pytest.fixture(scope="module")
def told(ring: LabUnderTest) -> str:
    """Variables of a checkpoint on the head that takes a while to pack, and of other stand-ins."""
    ring.cli("standin", "--rows", ",".join(map(str, ROWS)))
    return f"@{ring.lab.state}/standin.yml"


def test_every_rank_reads_the_weights_of_the_head(ring: LabUnderTest, told: str) -> None:
    """Two clients on cables of the head, and one over two hops."""
    more = ("-e", told, *settings())
    run_playbook(SHARE, ring.inventory, *more, timeout=900).assert_ok()
    run_playbook(SHARE, ring.inventory, *more, timeout=900).assert_ok().assert_unchanged()
    servers = ring.everywhere("findmnt -no SOURCE,FSTYPE /data/checkpoint || true")
    assert servers == {
        "spark1": "",
        "spark2": "10.20.0.11:/data/checkpoint nfs4",
        "spark3": "10.20.0.11:/data/checkpoint nfs4",  # through spark2
        "spark4": "10.20.6.11:/data/checkpoint nfs4",
    }


def test_all_nodes_pack_at_once_while_the_server_restarts(ring: LabUnderTest, told: str) -> None:
    more = ("-e", told, *settings(engram_pack_verify="full"))
    with ThreadPoolExecutor() as pool:
        first = pool.submit(run_playbook, PACK, ring.inventory, *more, timeout=1500)
        deadline = time.monotonic() + 600
        while ring.root("spark3", "ls /data/engram/*.partial", check=False) == "":
            assert time.monotonic() < deadline and not first.done(), first
            time.sleep(1)
        reboot(ring, "spark1")
        run = first.result()
    # the others wait until the server is back, and finish in this run
    assert not any(run.hosts[f"spark{n}"].failures for n in (2, 3, 4)), run.output
    run_playbook(PACK, ring.inventory, *more, timeout=1200).assert_ok()
    run_playbook(PACK, ring.inventory, *more, timeout=900).assert_ok().assert_unchanged()
    for rank, host in enumerate(ring.lab.hosts):
        for layer, rows in zip(checkpoint.LAYERS, ROWS, strict=True):
            path = f"/data/engram/engram-l{layer}-r{rank}of4.bin"
            found = ring.root(host.name, f"tail -c +4097 {path} | sha256sum").split()[0]
            assert found == packed_digest(layer, rows, rank), f"{host.name}: {path}"
            assert "nvme" in ring.root(host.name, f"findmnt -no SOURCE -T {path}")


def test_the_whole_site_serves(ring: LabUnderTest, told: str, tmp_path: Path) -> None:
    """Ranks under systemd with Docker, over NFS, with GIDs of Soft-RoCE; the engine stands in."""
    report = {"roce_fabric_measure": "never", "verify_report_path": str(tmp_path / "verify")}
    more = ("-e", told, *settings(**report))
    run_playbook(SITE, ring.inventory, *more, timeout=2400).assert_ok()
    run_playbook(SITE, ring.inventory, *more, timeout=1500).assert_ok().assert_unchanged()
    assert answers(ring)
    for rank, host in enumerate(ring.lab.hosts):
        said = ring.root(host.name, "cat /var/log/sparkfleet/sparks-rank.log")
        assert f"rank {rank}" in said and "stand-in" in said.lower()


def test_all_nodes_restart_and_serve_again(ring: LabUnderTest) -> None:
    """A power cut of all: the fabric, the mounts and the ranks come back without hands."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda host: reboot(ring, host.name), ring.lab.hosts))
    deadline = time.monotonic() + 900
    while not answers(ring):
        states = ring.everywhere(f"systemctl is-active {UNIT} || true")
        assert time.monotonic() < deadline, states
        time.sleep(5)


def answers(lab: LabUnderTest) -> bool:
    """Whether the entry gives the right answer to a question, within its time."""
    head = lab.lab.hosts[0]
    lines = lab.root(head.name, "cat /etc/sparkfleet/keys", check=False).splitlines()
    request = urllib.request.Request(
        f"http://{head.address}:8000/v1/chat/completions",
        json.dumps({"messages": [{"role": "user", "content": "What is 17 x 23?"}]}).encode(),
        {"Authorization": f"Bearer {lines[0].split(':', 1)[1] if lines else ''}"},
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return '"391"' in answer.read().decode()
    except OSError:
        return False


def chosen(lab: LabUnderTest, host: str, directory: Path) -> dict[str, Any]:
    """The GID that `roce_gid_info` chooses on one port of a host, as a user would ask for it."""
    ask = ["-m", "sparkfleet.cluster.roce_gid_info", "-a", "hcas==rocep1s0f0"]
    interpreter = f"ansible_python_interpreter={GENTLE['ansible_python_interpreter']}"
    done = subprocess.run(
        [sys.executable, "-m", "ansible", "adhoc", "-i", str(lab.inventory), host, *ask]
        + ["-e", interpreter],
        env=ansible_env(directory),
        capture_output=True,
        check=True,
        text=True,
        timeout=180,
    )
    said = json.loads(done.stdout[done.stdout.index("{") :])
    (device,) = [one for one in said["devices"] if one["selected"]]
    return dict(device)


def reboot(lab: LabUnderTest, host: str) -> None:
    """Restart a node, and wait until it answers as one that started anew."""
    boot = "cat /proc/sys/kernel/random/boot_id"
    before = lab.root(host, boot)
    lab.root(host, "systemctl reboot", check=False)
    deadline = time.monotonic() + 400
    while lab.root(host, boot, check=False) in ("", before):
        assert time.monotonic() < deadline, f"{host} did not come back"
        time.sleep(2)
