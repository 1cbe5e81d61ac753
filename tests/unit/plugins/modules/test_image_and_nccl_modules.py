"""The modules around images, NCCL and detached work: parameters, ways to end, secrets."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command
from ansible_collections.sparkfleet.cluster.plugins.modules import (
    container_image_info,
    detached_command,
    nccl_library_info,
)

from lab.standin.library import library


def call(
    module: ModuleType, capsys: pytest.CaptureFixture[str], **arguments: Any
) -> tuple[dict[str, Any], str]:
    with patch_module_args(arguments), pytest.raises(SystemExit) as ended:
        module.main()
    said = capsys.readouterr().out
    answer: dict[str, Any] = json.loads(said)
    assert bool(ended.value.code) == bool(answer.get("failed"))
    return answer, said


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that were asked; every one is missing on this node."""
    asked: list[list[str]] = []

    def run(argv: Sequence[str], timeout: float = 20.0) -> Command:
        asked.append(list(argv))
        return Command(127, "", f"{argv[0]}: command not found")

    for module in (container_image_info, detached_command, nccl_library_info):
        monkeypatch.setattr(module, "run_command", run)
    return asked


@pytest.mark.parametrize("check", [False, True])
def test_an_image_on_a_node_without_docker_is_data(
    asked: list[list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path, check: bool
) -> None:
    archive = str(tmp_path / "none.tar")
    answer, _said = call(
        container_image_info,
        capsys,
        reference="engine:1",
        archive=archive,
        _ansible_check_mode=check,
    )
    assert answer["changed"] is False and answer["exists"] is False
    assert [problem["code"] for problem in answer["problems"]] == ["docker-absent"]
    assert answer["archive_facts"]["problems"][0]["code"] == "archive-unreadable"


def test_a_library_is_looked_at_and_no_container_started_for_a_bad_one(
    asked: list[list[str]], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(library(machine=platform.machine()))
    wish = {"path": str(path), "image": "engine:1", "container_path": "/x/libnccl.so.2"}
    answer, _said = call(nccl_library_info, capsys, **wish, markers=["PATCH"])
    assert [problem["code"] for problem in answer["problems"]] == ["markers-missing"]
    assert "visible" not in answer and not [argv for argv in asked if argv[0] == "docker"]
    answer, _said = call(nccl_library_info, capsys, **wish)
    assert answer["problems"] == []
    assert [problem["code"] for problem in answer["visible"]["problems"]] == ["no-look"]


def test_detached_work_in_check_mode_starts_nothing(
    asked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    answer, _said = call(
        detached_command,
        capsys,
        name="job",
        stage="start",
        argv=["make", "all"],
        _ansible_check_mode=True,
    )
    assert answer["changed"] is True and asked == []
    assert answer["diff"]["after"] == "make all\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"name": "job", "stage": "start"}, "argv"),
        ({"name": "../x", "stage": "status"}, "expected lower-case letters"),
        ({"name": "job", "stage": "status"}, "systemctl: command not found"),
    ],
)
def test_detached_work_that_cannot_be_is_refused(
    asked: list[list[str]],
    capsys: pytest.CaptureFixture[str],
    arguments: dict[str, Any],
    told: str,
) -> None:
    answer, _said = call(detached_command, capsys, **arguments)
    assert answer["failed"] and told in answer["msg"]


def test_what_detached_work_reads_is_never_shown(
    asked: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    _answer, said = call(
        detached_command, capsys, name="job", stage="status", stdin="a-secret-of-this-transfer"
    )
    assert "a-secret-of-this-transfer" not in said
