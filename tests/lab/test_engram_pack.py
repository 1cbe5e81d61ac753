# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pack playbook on a container lab: four hosts at once, a kill in the middle, a full disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lab import checkpoint as lab_checkpoint
from tests.support.labs import ROOT, LabUnderTest
from tests.support.packed import packed_digest
from tests.support.playbook import (
    Run,
    assert_check_changes_nothing,
    assert_idempotent,
    run_playbook,
)

pytestmark = pytest.mark.containers

PACK = ROOT / "playbooks/pack.yml"
ROWS = (600_011, 600_022)  # 79 MB on each host
STATE = "ls -l --time-style=full-iso /data/engram /usr/local/lib/sparkfleet 2>&1 || true"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("source")
    told = lab_checkpoint.make(directory / "checkpoint", rows=ROWS)
    lab_checkpoint.write_facts(directory / "facts.yml", told)
    return directory


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., LabUnderTest], source: Path) -> LabUnderTest:
    made = make_lab("engram", "containers")
    for host in made.lab.hosts:
        lab_checkpoint.put(made.lab, host, source / "checkpoint")
    return made


def pack(lab: LabUnderTest, source: Path, *args: str) -> Run:
    return run_playbook(PACK, lab.inventory, *wish(source), *args)


def wish(source: Path) -> tuple[str, ...]:
    # The data disk of a container is memory where there are no loop devices.
    return "-e", f"spark_model={source}/facts.yml", "-e", "engram_pack_any_filesystem=true"


def assert_packed(lab: LabUnderTest, only: str = "") -> None:
    for rank, host in enumerate(lab.lab.hosts):
        if only and host.name != only:
            continue
        for layer, rows in zip((1, 14), ROWS, strict=True):
            path = f"/data/engram/engram-l{layer}-r{rank}of4.bin"
            found = lab.root(host.name, f"tail -c +4097 {path} | sha256sum").split()[0]
            assert found == packed_digest(layer, rows, rank), f"{host.name}: {path}"


def test_check_mode_tells_sizes_and_time(lab: LabUnderTest, source: Path) -> None:
    run = assert_check_changes_nothing(
        PACK, lab.inventory, *wish(source), witness=lambda: lab.everywhere(STATE)
    )
    assert "engram-l14-r3of4.bin: complete, " in run.output
    assert "MiB/s at which they can be read here" in run.output
    assert {note.host for note in run.changed} == {host.name for host in lab.lab.hosts}


def test_four_hosts_pack_at_once_and_then_nothing(lab: LabUnderTest, source: Path) -> None:
    first, second = assert_idempotent(PACK, lab.inventory, *wish(source), "-f", "1")
    assert_packed(lab)
    assert "Engram rows done: " in first.output
    assert max(stats.ok for stats in second.hosts.values()) <= 6
    assert_check_changes_nothing(
        PACK, lab.inventory, *wish(source), witness=lambda: lab.everywhere(STATE)
    ).assert_unchanged()
    checks = ("-e", "engram_pack_state=checked", "-e", "engram_pack_verify=full")
    pack(lab, source, *checks).assert_ok().assert_unchanged()


def test_a_host_that_is_killed_in_the_middle_continues(lab: LabUnderTest, source: Path) -> None:
    pack(lab, source, "-e", "engram_pack_state=absent").assert_ok()
    pack(lab, source, "-e", "engram_pack_state=absent").assert_ok().assert_unchanged()
    # Killed as soon as the first blocks are known to be on the disk.
    watch = (
        'nohup sh -c \'until grep -qsE "^[0-9a-f]{64}$" /data/engram/*.journal; do sleep 0.02; '
        "done; systemctl kill --signal=KILL sparkfleet-engram-pack' >/dev/null 2>&1 &"
    )
    lab.root("spark2", watch)
    run = pack(lab, source)
    killed = [note for note in run.failed if note.host == "spark2"]
    assert killed, f"spark2 was not killed\n{run.output}"
    assert "run again to continue" in killed[0].message
    assert "Traceback" not in run.output
    pack(lab, source).assert_ok()
    assert_packed(lab)
    pack(lab, source).assert_ok().assert_unchanged()


def test_rows_of_another_rank_are_not_replaced(lab: LabUnderTest, source: Path) -> None:
    pack(lab, source, "--limit", "spark1").assert_ok()
    place = "/data/engram/engram-l1-r0of4.bin"
    lab.root("spark1", f"cp {place} /data/kept")
    lab.root("spark1", f"printf '\\007' | dd of={place} bs=1 seek=16 conv=notrunc 2>/dev/null")
    before = lab.root("spark1", f"sha256sum {place}")
    run = pack(lab, source, "--limit", "spark1")
    assert run.returncode != 0
    assert "first row 7, expected 0" in run.output
    assert "set replace to true" in run.output
    assert lab.root("spark1", f"sha256sum {place}") == before
    lab.root("spark1", f"mv /data/kept {place}")
    pack(lab, source, "--limit", "spark1").assert_ok().assert_unchanged()


def test_a_full_disk_is_told_and_leaves_what_is_there(lab: LabUnderTest, source: Path) -> None:
    pack(lab, source, "--limit", "spark4").assert_ok()
    lab.root("spark4", "rm /data/engram/engram-l14-r3of4.*")
    before = lab.root("spark4", "cd /data/engram; sha256sum engram-l1-*")
    lab.cli("fill", "spark4", "/data")
    try:
        run = pack(lab, source, "--limit", "spark4")
    finally:
        lab.cli("empty", "spark4", "/data")
    assert run.returncode != 0
    size = 4096 + 264 * (ROWS[1] - ROWS[1] * 3 // 4)
    assert f"/data/engram needs {size} bytes more" in run.output
    assert "Traceback" not in run.output
    assert lab.root("spark4", "cd /data/engram; sha256sum engram-l1-*") == before
    pack(lab, source, "--limit", "spark4").assert_ok()
    assert_packed(lab, "spark4")


def test_a_disk_that_fills_up_meanwhile_ends_the_work_well(lab: LabUnderTest, source: Path) -> None:
    lab.root("spark4", "rm /data/engram/engram-*")
    # Whoever takes the rest of the disk does so while the first table is packed.
    fill = (
        "nohup timeout 300 sh -c 'until ls /data/engram/engram-l1-*.partial; do sleep 0.02; done; "
        "fallocate -l $(($(df -B1 --output=avail /data | tail -1) - 5000000)) /data/rest' "
        ">/dev/null 2>&1 &"
    )
    lab.root("spark4", fill)
    try:
        run = pack(lab, source, "--limit", "spark4")
    finally:
        lab.root("spark4", "rm -f /data/rest")
    assert run.returncode != 0
    assert "engram-l14-r3of4.partial needs" in run.output
    assert "Make room" in run.output
    files = lab.root("spark4", "ls /data/engram")
    assert "engram-l1-r3of4.bin" in files
    assert "engram-l14-r3of4.bin" not in files
    pack(lab, source, "--limit", "spark4").assert_ok()
    assert_packed(lab, "spark4")


def test_a_directory_that_is_read_only_is_told(lab: LabUnderTest, source: Path) -> None:
    lab.root("spark1", "rm /data/engram/engram-l1-*")
    mount = "mount --bind /data/engram /data/engram && mount -o remount,bind,ro /data/engram"
    lab.root("spark1", mount)
    try:
        run = pack(lab, source, "--limit", "spark1")
    finally:
        lab.root("spark1", "umount /data/engram")
    assert run.returncode != 0
    assert "/data/engram is read-only" in run.output
    pack(lab, source, "--limit", "spark1").assert_ok()
    assert_packed(lab, "spark1")


def test_a_serving_rank_is_not_disturbed(lab: LabUnderTest, source: Path) -> None:
    lab.root("spark3", "systemd-run --unit=sparkfleet-rank@sparks.service sleep 600")
    try:
        pack(lab, source, "--limit", "spark3").assert_ok().assert_unchanged()
        lab.root("spark3", "mv /data/engram/engram-l1-r2of4.bin /data/kept")
        run = pack(lab, source, "--limit", "spark3")
        assert run.returncode != 0
        assert "sparkfleet-rank@sparks.service is serving" in run.output
        pack(lab, source, "--limit", "spark3", "-e", "engram_pack_force=true").assert_ok()
    finally:
        lab.root("spark3", "systemctl stop sparkfleet-rank@sparks.service; rm -f /data/kept")
    assert_packed(lab, "spark3")


def test_memory_is_no_place_for_rows(lab: LabUnderTest, source: Path) -> None:
    run = pack(
        lab,
        source,
        *("--limit", "spark2"),
        *("-e", "spark_engram_dir=/dev/shm/engram", "-e", "engram_pack_any_filesystem=false"),
    )
    assert run.returncode != 0
    assert "(tmpfs)" in run.output
    assert "expected a disk" in run.output
    assert set(lab.everywhere("ls /dev/shm").values()) == {""}


def test_a_model_without_tables_is_left_alone(
    lab: LabUnderTest, source: Path, tmp_path: Path
) -> None:
    import yaml

    told = yaml.safe_load((source / "facts.yml").read_text())
    told["engram"]["tables"] = []
    lab_checkpoint.write_facts(tmp_path / "facts.yml", told)
    before = lab.everywhere(STATE)
    run_playbook(
        PACK, lab.inventory, "-e", f"spark_model={tmp_path}/facts.yml"
    ).assert_ok().assert_unchanged()
    assert lab.everywhere(STATE) == before
