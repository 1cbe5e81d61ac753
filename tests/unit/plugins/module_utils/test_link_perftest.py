"""What perftest and rping print. The files were captured from perftest 6.24 over Soft-RoCE."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    Command,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_perftest import (
    complaint,
    last_row,
    no_device,
    not_listening,
    read_result,
)

CAPTURES = Path(__file__).parents[2] / "fixtures" / "link"


def capture(name: str) -> str:
    return (CAPTURES / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("program", "out", "told"),
    [
        ("ib_write_bw", capture("ib_write_bw"), {"mtu": 4096, "gid_index": 1, "gbps": 0.04}),
        (
            "ib_write_lat",
            capture("ib_write_lat"),
            {"mtu": 4096, "gid_index": 1, "typical_us": 1172.23, "p99_us": 9144.99},
        ),
        ("rping", "", {}),
        (
            # As published for a Spark with rdma_cm: no GID index, and a frequency in the table.
            "ib_write_bw",
            (
                " Mtu             : 1024[B]\n"
                " rdma_cm QPs     : ON\n"
                " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
                "Conflicting CPU frequency values detected: 1500.000000 != 3100.000000. CPU ...\n"
                " 65536      20000            111.72             111.71             0.213070\n"
            ),
            {"mtu": 1024, "gid_index": None, "gbps": 111.71},
        ),
        (
            # Older versions, and without --report_gbits: the MB are MiB.
            "ib_write_bw",
            (
                " #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n"
                " 65536      5000             2709.52            2709.48            0.043352\n"
            ),
            {"mtu": None, "gid_index": None, "gbps": 22.73},
        ),
        (
            "ib_write_bw",
            (
                "#bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]\n"
                "2          5000           0.10               0.09\n"
                "65536      1000           389.51             388.42\n"
            ),
            {"mtu": None, "gid_index": None, "gbps": 388.42},
        ),
    ],
)
def test_results(program: str, out: str, told: dict[str, Any]) -> None:
    assert read_result(program, Command(0, out, "")) == {"ok": True, "error": None, **told}


@pytest.mark.parametrize(
    ("program", "command", "error"),
    [
        # A firewall dropped UDP port 4791: the program ended with 0 all the same.
        (
            "ib_write_bw",
            Command(0, capture("ib_write_bw-dropped"), ""),
            "ib_write_bw got not one message through",
        ),
        ("ib_write_bw", Command(0, "", ""), "ib_write_bw ended without a result"),
        (
            "ib_write_bw",
            Command(
                1,
                " WARNING: BW peak won't be measured in this run.\n",
                "Couldn't connect to 10.100.0.1:18609\n"
                "Unable to open file descriptor for socket connection\n"
                " Unable to init the socket connection\n",
            ),
            "Couldn't connect to 10.100.0.1:18609",
        ),
        (
            "ib_write_bw",
            Command(
                1,
                "",
                " Completion with error at client\n"
                " Failed status 9: wr_id 2 syndrom 0x0\n"
                "scnt=1475, ccnt=963\n"
                " Failed to complete run_iter_bw function successfully\n",
            ),
            "Failed status 9: wr_id 2 syndrom 0x0",
        ),
        (
            "ib_write_bw",
            Command(
                1,
                " Data ex. method : Ethernet\n",
                "\n Found Incompatibility issue with GID types.\n"
                " Please Try to use a different IP version.\n\n",
            ),
            "Found Incompatibility issue with GID types.",
        ),
        (
            "rping",
            Command(255, "", "cma event RDMA_CM_EVENT_REJECTED, error 8\nconnect error -1\n"),
            "cma event RDMA_CM_EVENT_REJECTED, error 8",
        ),
        (
            "rping",
            Command(None, "", "rping did not answer within 13 s"),
            "rping did not answer with",
        ),
        ("rping", Command(NOT_FOUND, "", "rping: command not found"), "rping: command not"),
        ("rping", Command(3, "", ""), "exit status 3"),
    ],
)
def test_failures(program: str, command: Command, error: str) -> None:
    found = read_result(program, command)
    assert not found["ok"]
    assert found["error"].startswith(error)


def test_rows() -> None:
    assert last_row(capture("ib_write_lat"))["99.9% percentile[usec]"] == 26001.49
    assert last_row("no table\n 1 2 3\n") == {}
    assert last_row(" #bytes #iterations  BW peak[Gb/sec]\n 1 2\n") == {}


@pytest.mark.parametrize(
    ("rc", "err", "waiting"),
    [
        (1, "Couldn't connect to 10.100.0.1:18609", True),
        (255, "cma event RDMA_CM_EVENT_REJECTED, error 8", True),
        (0, "Couldn't connect to 10.100.0.1:18609", False),
        (None, "rping did not answer within 13 s", False),
        (1, "Failed status 12", False),
    ],
)
def test_nobody_listens_yet(rc: int | None, err: str, waiting: bool) -> None:
    assert not_listening(Command(rc, "", err)) == waiting


def test_devices_that_cannot_be_used() -> None:
    said = " Did not detect devices \n If device exists, check if driver is up\n"
    assert no_device(complaint(Command(1, "", said)))
    assert not no_device("Couldn't connect")
    assert not no_device(None)
