"""The tests of a link, at both ends, with programs that only seem to run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _link_detached, _link_rdma
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    Command,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_rdma import (
    Settings,
    collect,
    error_counters,
    has_rdma,
    measure,
    serve,
    steps,
    timeout,
    why_not,
    with_gids,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._tree import Tree

from tests.unit.sysfs import build, fixture

SETTINGS = Settings(
    port=18515,
    duration=3,
    message_size=65536,
    queue_pairs=4,
    latency_iterations=1000,
    grace=10,
)
TWINS: list[dict[str, Any]] = [
    {
        "domain": 0,
        "hca": "rocep1s0f0",
        "address": "10.20.0.11",
        "peer_address": "10.20.0.12",
        "gid_index": 3,
    },
    {
        "domain": 2,
        "hca": "roceP2p1s0f0",
        "address": "10.20.1.11",
        "peer_address": "10.20.1.12",
        "gid_index": 4,
    },
]
BANDWIDTH = """\
 Mtu             : 4096[B]
 GID index       : 3
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 65536      601234           0.00               {gbps}   \t\t0.213070
"""
LATENCY = """\
 Mtu             : 4096[B]
 #bytes #iterations  t_min[usec]  t_max[usec]  t_typical[usec]  t_avg[usec]  99% percentile[usec]
 2       1000          1.42           1.93         1.47               1.47           1.57
"""
GIDS = "sys/class/infiniband/{}/ports/1/gid_table"
Answer = Callable[[Sequence[str]], Command]


@pytest.fixture
def spark(tmp_path: Path) -> Tree:
    """The files of a Spark whose programs can use its RDMA devices."""
    return Tree(str(build(tmp_path, fixture("spark")["files"])))


def answer(argv: Sequence[str]) -> Command:
    """Every program succeeds."""
    if argv[0] == "ib_write_bw":
        return Command(0, BANDWIDTH.format(gbps="98.02" if int(argv[5]) > 18520 else "111.71"), "")
    return Command(0, LATENCY if argv[0] == "ib_write_lat" else "", "")


def failing(condition: Callable[[str], bool], error: str = "Failed status 12") -> Answer:
    return lambda argv: Command(1, "", error) if condition(" ".join(argv)) else answer(argv)


def test_steps_have_ports_of_their_own() -> None:
    tests = steps(2, SETTINGS)
    assert [[(test.kind, test.twin) for test in step] for step in tests] == [
        [("rping", 0)],
        [("latency", 0)],
        [("bandwidth", 0)],
        [("rping", 1)],
        [("latency", 1)],
        [("bandwidth", 1)],
        [("bandwidth", 0), ("bandwidth", 1)],
    ]
    assert [test.port for step in tests for test in step] == list(range(18515, 18523))
    assert len(steps(1, SETTINGS)) == 3


@pytest.mark.parametrize(
    ("step", "server", "client"),
    [
        (
            0,
            "rping -s -a 10.20.0.11 -p 18515 -C 10 -S 8192 -V",
            "rping -c -a 10.20.0.12 -I 10.20.0.11 -p 18515 -C 10 -S 8192 -V",
        ),
        (
            1,
            "ib_write_lat -F -d rocep1s0f0 -p 18516 -x 3 -s 2 -n 1000",
            "ib_write_lat -F -d rocep1s0f0 -p 18516 -x 3 -s 2 -n 1000 10.20.0.12",
        ),
        (
            2,
            "ib_write_bw -F -d rocep1s0f0 -p 18517 -x 3 -s 65536 -q 4 -t 32 -D 3 --report_gbits",
            (
                "ib_write_bw -F -d rocep1s0f0 -p 18517 -x 3 -s 65536 -q 4 -t 32 -D 3 "
                "--report_gbits 10.20.0.12"
            ),
        ),
        (
            5,
            "ib_write_bw -F -d roceP2p1s0f0 -p 18520 -x 4 -s 65536 -q 4 -t 32 -D 3 --report_gbits",
            (
                "ib_write_bw -F -d roceP2p1s0f0 -p 18520 -x 4 -s 65536 -q 4 -t 32 -D 3 "
                "--report_gbits 10.20.1.12"
            ),
        ),
    ],
)
def test_command_lines(step: int, server: str, client: str) -> None:
    test = steps(2, SETTINGS)[step][0]
    assert " ".join(test.argv(TWINS[test.twin], SETTINGS, server=True)) == server
    assert " ".join(test.argv(TWINS[test.twin], SETTINGS, server=False)) == client


def test_a_link_that_is_right(spark: Tree) -> None:
    found = measure(TWINS, SETTINGS, spark, answer)
    assert found["twins"][0] == {
        "domain": 0,
        "hca": "rocep1s0f0",
        "gid_index": 3,
        "rping": {"ok": True, "error": None},
        "latency": {
            "ok": True,
            "error": None,
            "mtu": 4096,
            "gid_index": None,
            "typical_us": 1.47,
            "p99_us": 1.57,
        },
        "bandwidth": {"ok": True, "error": None, "mtu": 4096, "gid_index": 3, "gbps": 111.71},
    }
    assert found["together"] == {
        "ok": True,
        "error": None,
        "gbps": 196.04,
        "each": [98.02, 98.02],
    }
    assert [hca["name"] for hca in found["hcas"]] == ["roceP2p1s0f0", "rocep1s0f0"]
    assert found["hcas"][1]["pcie_width"] == 4


def test_one_twin_has_no_total(spark: Tree) -> None:
    assert measure(TWINS[:1], SETTINGS, spark, answer)["together"] is None


def test_after_a_failure_the_twin_is_left_alone(spark: Tree) -> None:
    """Every further program would take its whole time to fail."""
    found = measure(TWINS, SETTINGS, spark, failing(lambda line: "18516" in line))
    assert found["twins"][0]["latency"] == {"ok": False, "error": "Failed status 12"}
    assert found["twins"][0]["bandwidth"]["error"] == "not tried, because latency failed"
    assert found["together"] == {"ok": False, "error": "not tried, because latency failed"}
    assert found["twins"][1]["bandwidth"]["ok"]


def test_rping_says_nothing_about_perftest(spark: Tree) -> None:
    found = measure(TWINS, SETTINGS, spark, failing(lambda line: line.startswith("rping")))
    assert [twin["rping"]["ok"] for twin in found["twins"]] == [False, False]
    assert found["together"]["ok"]


def test_one_of_two_failing_together_fails_both(spark: Tree) -> None:
    found = measure(TWINS, SETTINGS, spark, failing(lambda line: "-p 18522" in line))
    assert found["together"] == {"ok": False, "error": "Failed status 12"}


def test_twins_together_run_at_the_same_time(spark: Tree) -> None:
    def slow(argv: Sequence[str]) -> Command:
        if int(argv[argv.index("-p") + 1]) >= 18521:
            time.sleep(0.8)
        return answer(argv)

    began = time.monotonic()
    measure(TWINS, SETTINGS, spark, slow)
    assert 0.8 <= time.monotonic() - began < 1.6


def test_a_server_that_does_not_listen_yet_is_tried_again(
    spark: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_link_rdma, "_PAUSE", 0)
    calls: list[str] = []

    def late(argv: Sequence[str]) -> Command:
        calls.append(argv[0])
        if len(calls) < 3:
            return Command(1, "", "cma event RDMA_CM_EVENT_REJECTED, error 8")
        return answer(argv)

    assert measure(TWINS[:1], SETTINGS, spark, late)["twins"][0]["rping"]["ok"]
    calls.clear()
    found = measure(TWINS[:1], SETTINGS, spark, failing(lambda _: True, "Couldn't connect to x"))
    assert found["twins"][0]["rping"]["error"] == "Couldn't connect to x"


@pytest.mark.parametrize(
    "error",
    [
        " Did not detect devices \n If device exists, check if driver is up\n",
        "No RDMA devices were detected",
        "Unable to find the Infiniband/RoCE device",
    ],
)
def test_devices_that_programs_cannot_use_are_not_measured(spark: Tree, error: str) -> None:
    found = measure(TWINS, SETTINGS, spark, failing(lambda _: True, error))
    assert found.keys() == {"why", "usable"} and not found["usable"]
    assert "programs cannot use the RDMA devices" in found["why"]
    assert error.splitlines()[0].strip() in found["why"]


def test_errors_that_are_counted_meanwhile(spark: Tree, tmp_path: Path) -> None:
    counters = tmp_path / "sys/class/infiniband/rocep1s0f0/ports/1/hw_counters"
    counters.mkdir(parents=True, exist_ok=True)
    (counters / "out_of_sequence").write_text("100\n")
    (counters / "packet_seq_err").write_text("0\n")
    assert error_counters(TWINS, spark)["rocep1s0f0"] == {
        "out_of_sequence": 100,
        "packet_seq_err": 0,
    }

    def lossy(argv: Sequence[str]) -> Command:
        (counters / "out_of_sequence").write_text("112\n")
        return answer(argv)

    errors = {hca["name"]: hca["errors"] for hca in measure(TWINS, SETTINGS, spark, lossy)["hcas"]}
    assert errors == {"rocep1s0f0": {"out_of_sequence": 12}, "roceP2p1s0f0": None}


@pytest.mark.parametrize(
    ("files", "missing", "why"),
    [
        ({}, None, None),
        ({"sys/class/infiniband": None}, None, "no RDMA stack; on a Spark: modprobe mlx5_ib"),
        (
            {"sys/class/infiniband/roceP2p1s0f0": None},
            None,
            "there is no RDMA device roceP2p1s0f0; rdma link",
        ),
        ({"dev/infiniband": None}, None, "has no /dev/infiniband/uverbs"),
        ({"sys/class/infiniband_verbs": None}, None, "has no device node in /dev/infiniband"),
        (
            {GIDS.format("rocep1s0f0"): "enp1s0f0np0: 0 LL v1, 1 LL v2, 2 10.20.0.11 v1"},
            None,
            "rocep1s0f0 has no RoCE v2 GID of 10.20.0.11; roce_gid_info",
        ),
        ({}, "ib_write_lat", "ib_write_lat is not installed; apt install perftest"),
        ({}, "rping", "rping is not installed; apt install rdmacm-utils"),
    ],
)
def test_why_a_host_cannot_measure(
    tmp_path: Path, files: dict[str, Any], missing: str | None, why: str | None
) -> None:
    # The fixture has one port for both devices, so its table has the addresses of both.
    table = "enp1s0f0np0: 0 LL v1, 1 LL v2, 3 10.20.0.11 v2, 5 10.20.1.11 v2"
    changes: dict[str, Any] = {f"files/{GIDS.format('rocep1s0f0')}": table}
    changes.update({f"files/{path}": value for path, value in files.items()})
    tree = Tree(str(build(tmp_path, fixture("spark", changes)["files"])))

    def command(argv: Sequence[str]) -> Command:
        return Command(NOT_FOUND if argv[0] == missing else 0, "", "")

    assert has_rdma(tree) == ("sys/class/infiniband" not in files)
    found = why_not(with_gids(TWINS, tree), tree, command)
    assert found == why if why is None or found is None else why in found


@pytest.mark.parametrize(
    ("table", "index"),
    [
        ("dev: 0 LL v1, 1 LL v2, 2 10.20.0.11 v1, 3 10.20.0.11 v2", 3),
        ("dev: 0 LL v1, 1 LL v2, 2 10.20.0.11 v1, 6 10.20.0.11 v2", 6),  # after a hole
        ("dev: 1 10.20.0.11 v2", 1),  # Soft-RoCE
        ("dev: 2 10.20.0.99 v1, 3 10.20.0.99 v2, 4 10.20.0.11 v1, 5 10.20.0.11 v2", 5),
        ("dev: 2 10.20.0.11 ?, 5 10.20.0.11 v2", 5),
        ("dev: 2 10.20.0.11 v1", None),
        ("dev: 0 LL v1, 1 LL v2", None),
        (None, None),
    ],
)
def test_the_gid_of_the_own_address(tmp_path: Path, table: str | None, index: int | None) -> None:
    changes = {f"files/{GIDS.format('rocep1s0f0')}": table} if table else {}
    tree = Tree(str(build(tmp_path, fixture("spark", changes)["files"])))
    (found,) = with_gids(TWINS[:1], tree)
    assert found["gid_index"] == index
    assert found["hca"] == "rocep1s0f0"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory first on the path, with programs that wait as servers do."""
    folder = tmp_path / "programs"
    folder.mkdir()
    for name in ("rping", "ib_write_bw", "ib_write_lat"):
        program(folder / name, "sleep 60")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(_link_rdma, "_NAME", f"test-{time.monotonic_ns()}")
    return folder


def program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\necho $$ $0 $* >> {path.parent}/log\n{script}\n")
    path.chmod(0o755)


def running(folder: Path) -> int:
    """How many of the programs that were started still run; a zombie has no command line."""
    count = 0
    for line in (folder / "log").read_text().splitlines() if (folder / "log").exists() else []:
        with contextlib.suppress(OSError):
            count += bool(Path(f"/proc/{line.split()[0]}/cmdline").read_text())
    return count


def until_running(folder: Path, count: int, started: int) -> None:
    log = folder / "log"
    for _attempt in range(200):
        lines = log.read_text().splitlines() if log.exists() else []
        if (len(lines), running(folder)) == (started, count):
            return
        time.sleep(0.05)
    pytest.fail(f"{running(folder)} programs are running, not {count} of {started}")


def test_servers_wait_until_they_are_collected(spark: Tree, programs: Path) -> None:
    assert serve(TWINS, SETTINGS, spark) == {}
    until_running(programs, 8, started=8)
    found = collect()
    assert found["servers"] == []
    assert [hca["name"] for hca in found["hcas"]] == ["roceP2p1s0f0", "rocep1s0f0"]
    assert running(programs) == 0
    assert "is running: it was not started, or its time is over" in collect()["why"]


def test_servers_that_fail_say_why(spark: Tree, programs: Path) -> None:
    program(programs / "ib_write_lat", "echo 'Address already in use' >&2; exit 1")
    (programs / "rping").unlink()
    serve(TWINS, SETTINGS, spark)
    until_running(programs, 4, started=6)
    assert collect()["servers"] == [
        {"kind": kind, "twin": twin, "together": False, "error": error}
        for twin in (0, 1)
        for kind, error in (
            ("rping", "rping: No such file or directory"),
            ("latency", "Address already in use"),
        )
    ]


def test_servers_without_devices_were_no_part_of_it(spark: Tree, programs: Path) -> None:
    program(programs / "ib_write_lat", "echo 'Did not detect devices' >&2; exit 1")
    serve(TWINS, SETTINGS, spark)
    until_running(programs, 6, started=8)
    assert "cannot use the RDMA devices" in collect()["why"]


def test_servers_end_when_nobody_collects_them(spark: Tree, programs: Path) -> None:
    serve(TWINS, replace(SETTINGS, duration=0, grace=0.1), spark)
    until_running(programs, 0, started=8)
    assert isinstance(_link_detached.collect(_link_rdma._NAME), str)


def test_a_program_has_its_time_and_some_grace() -> None:
    assert timeout(SETTINGS) == 13
