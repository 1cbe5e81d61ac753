# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module around the inspection: bad data is a result, and nothing it may touch can hang it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.sparkfleet.cluster.plugins.modules import checkpoint_info

from lab import checkpoint


def call(capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit) as ended:
        checkpoint_info.main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0, answer
    assert answer["changed"] is False
    return answer


@pytest.mark.parametrize("check", [False, True])
def test_whole(capsys, tmp_path: Path, check: bool) -> None:
    facts = checkpoint.make(tmp_path / "c", rows=(5, 7))
    path = str(tmp_path / "c")
    answer = call(capsys, path=path, expected=facts, hashes="all", _ansible_check_mode=check)
    assert (answer["state"], answer["directory"], len(answer["hashes"])) == ("complete", path, 48)


def test_bad_data_is_a_result(capsys, tmp_path: Path) -> None:
    checkpoint.make(tmp_path, rows=(5, 7))
    (tmp_path / checkpoint.shard(1)).write_bytes(b"\0" * 64)
    answer = call(capsys, path=str(tmp_path))
    assert (answer["state"], answer["complete"]) == ("incomplete", False)
    assert answer["problems"][0]["code"] == "empty-header"


def test_nothing_there(capsys, tmp_path: Path) -> None:
    answer = call(capsys, path=str(tmp_path / "no"), read_as={"uid": 0, "gid": 0})
    assert answer["state"] == "absent"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_who_cannot_read_is_a_problem(capsys, tmp_path: Path) -> None:
    checkpoint.make(tmp_path, rows=(5, 7))
    (tmp_path / checkpoint.shard(1)).chmod(0o600)
    answer = call(capsys, path=str(tmp_path), read_as={"uid": 65534, "gid": 65534})
    assert answer["state"] == "incomplete"
    assert "unreadable-as" in {problem["code"] for problem in answer["problems"]}
    assert os.geteuid() == 0


@pytest.mark.parametrize(
    ("hashes", "advice"), [("none", "findmnt --target"), ("known", "longer timeout")]
)
def test_what_does_not_answer_is_stale(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashes: str, advice: str
) -> None:
    """Stands in for a read below a mount whose server is gone."""
    monkeypatch.setattr(checkpoint_info, "inspect", lambda **_: time.sleep(60))
    begun = time.monotonic()
    answer = call(capsys, path=str(tmp_path), timeout=1, hashes=hashes)
    assert time.monotonic() - begun < 10
    assert (answer["state"], answer["complete"]) == ("stale", False)
    assert advice in answer["problems"][0]["message"]


def test_what_nobody_thought_of_is_a_failure(
    capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_info, "inspect", lambda **_: {"yes": 1}["no"])
    with patch_module_args({"path": str(tmp_path)}), pytest.raises(SystemExit):
        checkpoint_info.main()
    answer = json.loads(capsys.readouterr().out)
    assert answer["failed"]
    assert answer["msg"] == f"{tmp_path} could not be looked at: KeyError: 'no'"
