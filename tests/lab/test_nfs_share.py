# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The share playbook: all refusals in containers, which have no kernel NFS, and the rest in VMs.

The checkpoint is a stand-in with real names. Speeds of emulated machines mean nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab import checkpoint
from tests.support.labs import ROOT, LabUnderTest
from tests.support.playbook import Run, assert_check_changes_nothing, run_playbook

SHARE = ROOT / "playbooks/share.yml"
EXPORTS = "/etc/exports.d/sparkfleet.exports"
PATIENT = {"ANSIBLE_TIMEOUT": "200"}  # sudo answers late on emulated machines
SERVICE = "sparkfleet-checkpoint.service"
# All that the role may touch on a node.
STATE = """
find /etc/exports /etc/exports.d /etc/nfs.conf.d /etc/systemd/system -type f -exec sha256sum {} +
find /etc/systemd/system -type l | sort; exportfs -v; grep nfs /proc/self/mountinfo
cat /proc/fs/nfsd/portlist; systemctl list-units --plain --no-legend '*.mount' | awk '{print $1}'
systemctl is-active nfs-server; true
""".replace("; ", " 2>/dev/null; ")


def share(lab: LabUnderTest, *args: str, timeout: float = 600, **settings: object) -> Run:
    """Only the share; the checkpoint is there, and in containers no real one."""
    args = ("--tags", "nfs_share", *args)
    settings.setdefault("ansible_python_interpreter", "/usr/bin/python3")
    words = ("-e", json.dumps(settings), *args)
    run = run_playbook(SHARE, lab.inventory, *words, env=PATIENT, timeout=timeout)
    assert "Traceback" not in run.output, run.output
    return run


def refused(run: Run) -> str:
    assert run.returncode == 2, run.output
    return "\n".join(note.message for note in run.failed)


# --- containers ---

PAIR: dict[str, Any] = {"spark_topology": "pair"}


@pytest.fixture(scope="module")
def pair(make_lab: Callable[..., LabUnderTest]) -> LabUnderTest:
    return make_lab("nfs", "containers", "--bare", "--cabling", "pair")


@pytest.fixture
def head(pair: LabUnderTest) -> LabUnderTest:
    """A pair whose head has a small checkpoint of its user, and no export of anybody."""
    pair.root(
        "spark1",
        f"""
rm -rf /data/checkpoint {EXPORTS} /etc/exports.d/theirs.exports; : >/etc/exports; exportfs -ra
mkdir -p /data/checkpoint /etc/exports.d; cd /data/checkpoint
echo x >model-00001-of-00001.safetensors
echo '{{"weight_map": {{"a": "model-00001-of-00001.safetensors"}}}}' >model.safetensors.index.json
chown -R spark: .; chmod 755 /data . ; chmod 644 *
""",
    )
    return pair


@pytest.mark.containers
def test_check_mode_on_bare_hosts(pair: LabUnderTest) -> None:
    """Neither checkpoint nor fabric nor server are there; everything is told, nothing done."""
    pair.root("spark1", "rm -rf /data/checkpoint")
    run = assert_check_changes_nothing(
        SHARE,
        pair.inventory,
        *("--tags", "nfs_share", "-e", json.dumps(PAIR)),
        witness=lambda: pair.everywhere(STATE),
    )
    assert "/data/checkpoint 10.20.0.12(ro,sync,crossmnt" in run.output
    assert "What=10.20.0.11:/data/checkpoint" in run.output
    both = share(pair, "--check", "--diff", **PAIR, spark_weights_mode="both").assert_ok()
    assert "Where=/data/checkpoint-shared" in both.output
    assert "there is no /data/checkpoint; get the checkpoint first" in refused(share(pair, **PAIR))


@pytest.mark.containers
@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (
            "chmod 600 /data/checkpoint/*",
            "the first is model-00001-of-00001.safetensors (mode 0600, spark:spark)",
        ),
        ("chmod 750 /data/checkpoint", "/data/checkpoint (mode 0750, spark:spark) is not"),
        ("chmod 750 /data", "/data (mode 0750, root:root) is not traversable for nobody"),
        (
            "cd /data/checkpoint; mkdir -p ../blobs; mv m*01.* ../blobs/a; ln -s ../blobs/a",
            "really needed: /data/blobs",
        ),
        (
            "echo '/data/checkpoint 10.20.0.12(rw)' >/etc/exports",
            "/etc/exports:1 exports /data/checkpoint to 10.20.0.12 already",
        ),
        (
            "echo '/data/checkpoint 10.0.0.0/8 (ro)' >/etc/exports.d/theirs.exports",
            "/etc/exports.d/theirs.exports:1 gives /data/checkpoint to everybody",
        ),
        ("echo '/srv 10.20.0.0/24(ro,fsid=0)' >/etc/exports", "makes /srv the NFSv4 root"),
    ],
)
def test_what_cannot_be_shared_is_refused_before_anything_is_written(
    head: LabUnderTest, damage: str, told: str
) -> None:
    head.root("spark1", damage)
    before = head.everywhere(STATE)
    assert told in refused(share(head, **PAIR))
    assert head.everywhere(STATE) == before


@pytest.mark.containers
def test_a_broken_file_of_others_does_not_take_their_exports(head: LabUnderTest) -> None:
    """The real exportfs, in a namespace of its own: the live table is as before."""
    head.root("spark1", "mkdir -p /srv/x; echo '/srv/x 10.0.0.1(ro)' >/etc/exports; exportfs -ra")
    head.root("spark1", "echo '/srv/x 10.0.0.1(ro,nonsense)' >/etc/exports")
    before = head.everywhere(STATE)
    assert "/srv/x" in before["spark1"]
    told = refused(share(head, **PAIR))
    assert "/srv/x would no longer be exported to 10.0.0.1" in told
    assert 'unknown keyword "nonsense"' in told
    assert head.everywhere(STATE) == before


@pytest.mark.containers
def test_as_far_as_the_kernels_server(head: LabUnderTest) -> None:
    """The export is in force as the account asked for; the server cannot start in a container."""
    head.root("spark1", "chmod 600 /data/checkpoint/*; mkdir -p /srv/x")
    head.root("spark1", "echo '/srv/x 10.0.0.1(ro)' >/etc/exports")
    run = share(head, **PAIR, nfs_share_account="spark")
    assert "systemctl start nfs-server.service" in refused(run)
    table = head.root("spark1", "exportfs -s")
    assert "/srv/x  10.0.0.1(" in table
    (line,) = [row for row in table.splitlines() if row.startswith("/data/checkpoint")]
    assert line.split()[1].startswith("10.20.0.12(")
    for option in ("ro", "crossmnt", "all_squash", "anonuid=1000", "anongid=1000"):
        assert option in line.rstrip(")").replace("(", ",").split(",")
    told = refused(share(head, **PAIR, nfs_share_account="spark", nfs_share_state="checked"))
    assert "to be done: systemctl start nfs-server.service" in told
    assert "10.20.0.11:/data/checkpoint is not what is mounted on /data/checkpoint" in told
    share(head, **PAIR, nfs_share_state="absent").assert_ok()
    assert head.root("spark1", f"exportfs -s; cat {EXPORTS} 2>/dev/null || true").startswith("/srv")
    share(head, **PAIR, nfs_share_state="absent").assert_ok().assert_unchanged()


@pytest.mark.containers
def test_local_weights_need_no_share(head: LabUnderTest) -> None:
    before = head.everywhere(STATE)
    for state in ("present", "checked", "absent"):
        run = share(head, **PAIR, spark_weights_mode="local", nfs_share_state=state)
        run.assert_ok().assert_unchanged()
    assert head.everywhere(STATE) == before


# --- virtual machines: the ring of four, where spark3 is two cables away from the head ---

SERVERS = {"spark2": "10.20.0.11", "spark3": "10.20.0.11", "spark4": "10.20.6.11"}
MOUNTED = "grep ' /data/checkpoint ' /proc/self/mountinfo | grep nfs4 || true"


@pytest.fixture(scope="module")
def ring(
    make_lab: Callable[..., LabUnderTest], tmp_path_factory: pytest.TempPathFactory
) -> LabUnderTest:
    """With the fabric of the plan, as the product makes it, and a checkpoint on the head."""
    lab = make_lab("nfsvm", "vm", "--bare")
    settings = {
        "ansible_python_interpreter": "/usr/bin/python3",
        "roce_fabric_measure": "never",
        "roce_fabric_rollback_after": 600,
    }
    fabric = ROOT / "playbooks/fabric.yml"
    words = ("-e", json.dumps(settings))
    run_playbook(fabric, lab.inventory, *words, env=PATIENT, timeout=1500).assert_ok()
    directory = tmp_path_factory.mktemp("checkpoint")
    checkpoint.make(directory, rows=(60007, 6011))
    checkpoint.put(lab.lab, lab.lab.host("spark1"), directory)
    lab.root("spark1", "chmod -R a+rX /data/checkpoint; chmod 755 /data; sync")
    return lab


@pytest.fixture
def shared(ring: LabUnderTest) -> LabUnderTest:
    """With the share in place, whatever the test before did to it."""
    share(ring, timeout=1200).assert_ok()
    return ring


@pytest.mark.vm
def test_every_client_mounts_its_own_address_and_reads_everything(ring: LabUnderTest) -> None:
    ring.root("spark1", "mkdir -p /srv/x; echo '/srv/x 10.0.0.1(ro)' >/etc/exports; exportfs -ra")
    share(ring, timeout=1200).assert_ok()
    for host, address in SERVERS.items():
        line = ring.root(host, MOUNTED)
        assert f" nfs4 {address}:/data/checkpoint " in line
        for option in ("ro", "vers=4.2", "hard", "nconnect=8", "proto=tcp"):
            assert option in line.replace(" ", ",").split(",")
        assert "Read-only file system" in ring.root(host, "touch /data/checkpoint/x 2>&1 || true")
        assert ring.root(host, f"systemctl is-enabled {SERVICE}") == "enabled"
    run = share(ring, "--diff", timeout=1200)
    run.assert_ok().assert_unchanged()
    share(ring, "--check", "--diff", timeout=1200).assert_ok().assert_unchanged()
    share(ring, nfs_share_state="checked", timeout=1200).assert_ok().assert_unchanged()
    assert "/srv/x  10.0.0.1(" in ring.root("spark1", "exportfs -s"), "others' exports stay"


# Reads all of a shard with pauses, from the server, and leaves its hash.
SLOWLY = """
import hashlib, os, sys, time
path, name = '/data/checkpoint/model-00047-of-00048.safetensors', sys.argv[1]
seen, handle = hashlib.sha256(), os.open(path, os.O_RDONLY)
os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_RANDOM)
while block := os.read(handle, 1 << 18):
    seen.update(block)
    time.sleep(float(sys.argv[2]))
open(name, 'w').write(seen.hexdigest())
"""


@pytest.mark.vm
def test_the_head_restarts_in_the_middle_of_a_read(shared: LabUnderTest, tmp_path: Path) -> None:
    """Readers wait and go on; the next proof passes, grace period or not."""
    wanted = shared.root("spark1", "sha256sum </data/checkpoint/model-00047-of-00048.safetensors")
    for host in ("spark2", "spark3"):
        shared.root(
            host,
            f"rm -f /run/hash; cat >/run/slowly.py <<'END'\n{SLOWLY}\nEND\n"
            "systemd-run --quiet --collect --unit=slowly python3 /run/slowly.py /run/hash 2",
        )
    time.sleep(5)
    shared.cli("reboot", "spark1")
    assert shared.root("spark2", "test -e /run/hash && echo done || echo reading") == "reading"
    share(shared, timeout=1200).assert_ok()
    share(shared, timeout=1200).assert_ok().assert_unchanged()
    for host in ("spark2", "spark3"):
        script = "for n in $(seq 300); do test -s /run/hash && break; sleep 1; done; cat /run/hash"
        assert shared.root(host, script, timeout=400) == wanted.split()[0]


@pytest.mark.vm
def test_a_client_that_starts_before_its_server(shared: LabUnderTest) -> None:
    """It comes up without the mount, lets people in, and mounts when the server is there."""
    shared.root("spark1", "systemctl stop nfs-server")
    shared.cli("reboot", "spark3")
    assert shared.root("spark3", MOUNTED) == ""
    assert shared.root("spark3", "sudo -u spark true && echo in") == "in"
    shared.root("spark1", "systemctl start nfs-server")
    script = f"for n in $(seq 240); do {MOUNTED.replace(' || true', '')} && break; sleep 1; done"
    assert "10.20.0.11:/data/checkpoint" in shared.root("spark3", script, timeout=300)
    share(shared, timeout=1200).assert_ok().assert_unchanged()


@pytest.mark.vm
def test_a_server_that_is_gone_holds_nobody_up(shared: LabUnderTest) -> None:
    shared.root("spark1", "systemctl stop nfs-server")
    try:
        started = time.monotonic()
        told = refused(share(shared, nfs_share_state="checked", nfs_share_deadline=20))
        assert time.monotonic() - started < 600, "tasks take long on emulated machines"
    finally:
        shared.root("spark1", "systemctl start nfs-server")
    assert "to be done: systemctl start nfs-server.service" in told
    for address in set(SERVERS.values()):
        assert f"{address}:/data/checkpoint on /data/checkpoint: no answer within 20 s" in told
        assert f"{address} does not take connections on tcp 2049" in told
    share(shared, nfs_share_state="checked", timeout=1200).assert_ok()


@pytest.mark.vm
def test_another_content_below_a_mount_is_recognised(shared: LabUnderTest) -> None:
    """The head's directory was replaced; clients still hold the old one, of which half is gone."""
    shared.root(
        "spark1",
        "cd /data; cp -a checkpoint new; mv checkpoint old; mv new checkpoint; cd old; "
        # truncate does not wait until clients give their delegations back
        "rm model-00048-of-00048.safetensors; "
        "head -c 100 config.json >model-00001-of-00048.safetensors",
    )
    told = refused(share(shared, nfs_share_state="checked", timeout=1200))
    assert "model-00048-of-00048.safetensors is missing" in told
    assert "model-00001-of-00048.safetensors has 100 bytes here" in told
    shared.root("spark1", "rm -rf /data/old")
    told = refused(share(shared, nfs_share_state="checked", timeout=1200))
    assert "is stale" in told or "is missing" in told
    share(shared, nfs_share_state="absent", timeout=1200).assert_ok()
    share(shared, timeout=1200).assert_ok()


@pytest.mark.vm
def test_rdma_for_neighbours_only(shared: LabUnderTest) -> None:
    told = refused(share(shared, nfs_share_transport="rdma"))
    assert "RDMA does not cross the Sparks between: 10.20.0.11 is 2 hops away" in told
    transport = "{{ 'tcp' if inventory_hostname == 'spark3' else 'rdma' }}"
    share(shared, nfs_share_transport=transport, timeout=1200).assert_ok()
    for host, words in {
        "spark2": "proto=rdma",
        "spark3": "proto=tcp",
        "spark4": "proto=rdma",
    }.items():
        assert words in shared.root(host, MOUNTED)
    share(shared, nfs_share_transport=transport, timeout=1200).assert_ok().assert_unchanged()
    shared.root("spark1", "systemctl restart nfs-server", timeout=300)
    assert "rdma 20049" in shared.root("spark1", "cat /proc/fs/nfsd/portlist")


@pytest.mark.vm
def test_a_serving_rank_keeps_its_mount_and_all_of_it_goes_at_last(shared: LabUnderTest) -> None:
    shared.root("spark2", "systemd-run --quiet --unit=sparkfleet-rank@cell.service sleep infinity")
    try:
        told = refused(share(shared, nfs_share_state="absent"))
    finally:
        shared.root("spark2", "systemctl stop sparkfleet-rank@cell.service")
    assert "sparkfleet-rank@cell.service is serving from this checkpoint" in told
    assert "10.20.0.11:" in shared.root("spark2", MOUNTED)
    share(shared, nfs_share_state="absent", timeout=1200).assert_ok()
    assert set(shared.everywhere(MOUNTED).values()) == {""}
    left = shared.everywhere(
        f"ls {EXPORTS} /etc/systemd/system | grep -E 'sparkfleet.(exp|check)|data-' || true"
    )
    assert set(left.values()) == {""}
    assert "/data/checkpoint" not in shared.root("spark1", "exportfs -s")
    share(shared, nfs_share_state="absent", timeout=1200).assert_ok().assert_unchanged()
