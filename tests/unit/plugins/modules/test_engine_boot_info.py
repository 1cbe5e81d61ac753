"""The module around the reading of logs: its sources, its ways to end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    Command,
)
from ansible_collections.sparkfleet.cluster.plugins.modules import engine_boot_info

PROOFS = [{"name": "pool", "pattern": "max_total_num_tokens="}]
FATALS = [{"name": "exception", "pattern": "^Traceback", "cause": "A bug.", "remedy": "Read on."}]


def call(capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    given = {"proofs": PROOFS, "fatals": FATALS, **arguments}
    with patch_module_args(given), pytest.raises(SystemExit) as ended:
        engine_boot_info.main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert bool(ended.value.code) == bool(answer.get("failed"))
    assert not answer.get("changed")
    return answer


class Commands:
    """Answers one command, and keeps how it was asked."""

    def __init__(self, answer: Command) -> None:
        self.answer = answer
        self.argv: list[str] = []

    def __call__(self, argv: Sequence[str], timeout: float = 0) -> Command:
        self.argv = list(argv)
        return self.answer


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(rc: int, out: str = "", err: str = "") -> Commands:
        commands = Commands(Command(rc, out, err))
        monkeypatch.setattr(engine_boot_info, "run_command", commands)
        return commands

    return use


@pytest.mark.parametrize("check", [False, True])
def test_a_file_is_read_and_read_on(capsys, tmp_path: Path, check: bool):
    log = tmp_path / "rank.log"
    log.write_text("Load weight begin\n")
    first = call(capsys, path=str(log), _ansible_check_mode=check)
    assert (first["exists"], first["offset"]) == (True, 18)
    assert first["facts"]["stage"]["name"] == "loading"
    assert first["facts"]["proven"] is False
    with log.open("a") as more:
        more.write("max_total_num_tokens=512\nTraceback (most recent call last):\n")
    second = call(capsys, path=str(log), previous=first["facts"], offset=first["offset"])
    assert second["facts"]["lines"] == 3
    assert second["facts"]["proven"] is True
    assert second["facts"]["fatals"][0]["number"] == 3
    assert second["facts"]["fatals"][0]["cause"] == "A bug."
    assert second["facts"]["failed"]


def test_no_file_is_data(capsys, tmp_path: Path):
    answer = call(capsys, path=str(tmp_path / "none"))
    assert (answer["exists"], answer["offset"]) == (False, 0)
    assert answer["facts"]["proven"] is False


def test_a_directory_is_named(capsys, tmp_path: Path):
    assert call(capsys, path=str(tmp_path))["msg"] == (
        f"{tmp_path} cannot be read: Is a directory."
    )


def test_a_large_file_is_incomplete(capsys, tmp_path: Path):
    log = tmp_path / "rank.log"
    log.write_text("x\n" * 1000)
    answer = call(capsys, path=str(log), max_bytes=100)
    assert answer["skipped_bytes"] > 1800
    assert answer["facts"]["proven"] is None


def test_the_journal_of_a_unit(capsys, command):
    asked = command(0, "x\nSuppressed 7 messages from sparkfleet-rank@a.service\n")
    answer = call(capsys, source="journal", unit="sparkfleet-rank@a")
    assert asked.argv[-3:] == [
        "_SYSTEMD_UNIT=sparkfleet-rank@a.service",
        "+",
        "MESSAGE_ID=a596d6fe7bfa4994828e72309e95d61e",
    ]
    assert (answer["exists"], answer["offset"]) == (True, None)
    assert (answer["facts"]["suppressed"], answer["facts"]["proven"]) == (7, None)
    command(0, "x\nSuppressed 7 messages from sparkfleet-rank@b.service\n")
    assert call(capsys, source="journal", unit="sparkfleet-rank@a")["facts"]["proven"] is False


def test_a_journal_that_cannot_be_read(capsys, command):
    command(1, err="No journal files were found.\n")
    answer = call(capsys, source="journal", unit="x")
    assert answer["msg"] == (
        "the journal of x.service cannot be read: No journal files were found."
    )


def test_the_log_of_a_container_in_the_order_of_its_lines(capsys, command):
    asked = command(
        0,
        "2026-10-02T10:00:00.000000002Z Load weight begin\n"
        "2026-10-02T10:00:00.000000004Z max_total_num_tokens=5\n",
        "2026-10-02T10:00:00.000000001Z Init torch distributed begin\n"
        "2026-10-02T10:00:00.000000003Z Load weight end",
    )
    answer = call(capsys, source="docker", container="sparkfleet-a-r0")
    assert asked.argv[-1] == "sparkfleet-a-r0"
    assert answer["facts"]["stage"]["name"] == "memory pool"
    assert (answer["facts"]["lines"], answer["facts"]["proven"]) == (4, True)


@pytest.mark.parametrize(
    ("rc", "err", "exists"),
    [
        (1, "Error response from daemon: No such container: x\n", False),
        (1, "Cannot connect to the Docker daemon\n", None),
        (NOT_FOUND, "docker: command not found", None),
    ],
)
def test_a_container_without_a_log(capsys, command, rc, err, exists):
    command(rc, err=err)
    answer = call(capsys, source="docker", container="x")
    assert answer.get("exists") is exists
    if exists is None:
        assert err.strip() in answer["msg"]


@pytest.mark.parametrize("source", ["file", "journal", "docker"])
def test_a_source_needs_its_place(capsys, source):
    assert "missing" in call(capsys, source=source)["msg"]


def test_a_wrong_pattern_is_named(capsys, tmp_path: Path):
    answer = call(capsys, path=str(tmp_path / "x"), fatals=[{"name": "y", "pattern": "["}])
    assert answer["msg"].startswith("the pattern of fatal signature y is no regular expression")
