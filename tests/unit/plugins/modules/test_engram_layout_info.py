# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The module around the layout: its parameters and its ways to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.sparkfleet.cluster.plugins.modules import engram_layout_info

from lab import checkpoint as lab_checkpoint

REAL = [{"layer": 1, "rows": 384006168}, {"layer": 14, "rows": 384016682}]


def call(capsys: pytest.CaptureFixture[str], **arguments: Any) -> dict[str, Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit) as ended:
        engram_layout_info.main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert bool(ended.value.code) == bool(answer.get("failed"))
    return answer


def test_sizes_alone(capsys):
    answer = call(capsys, tables=REAL, tp_size=4, rank=1)
    assert answer["bytes_total"] == 50689516424
    assert [shard["file"] for shard in answer["shards"]] == [
        "engram-l1-r1of4.bin",
        "engram-l14-r1of4.bin",
    ]
    assert [shard["state"] for shard in answer["shards"]] == [None, None]
    assert "bytes_free" not in answer


@pytest.mark.parametrize("check", [False, True])
def test_a_directory_with_nothing_in_it(capsys, tmp_path: Path, check: bool) -> None:
    directory = tmp_path / "not/there"
    answer = call(
        capsys, tables=REAL, tp_size=4, directory=str(directory), _ansible_check_mode=check
    )
    assert len(answer["shards"]) == 8
    assert {shard["state"] for shard in answer["shards"]} == {"absent"}
    assert answer["bytes_needed"] == answer["bytes_total"]
    assert (answer["fits"], answer["complete"]) == (answer["bytes_free"] > 202757 * 10**6, False)
    assert answer["shards"][0]["path"] == f"{directory}/engram-l1-r0of4.bin"
    assert not directory.exists()


def test_a_checkpoint(capsys, tmp_path: Path) -> None:
    lab_checkpoint.make(tmp_path, rows=(1003, 1006))
    answer = call(capsys, checkpoint=str(tmp_path), tp_size=4, rank=3)
    source = answer["shards"][1]["source"]
    data = Path(source["path"]).read_bytes()
    weights = data[source["weight_offset"] :][: source["weight_size"]]
    assert weights == lab_checkpoint.table_bytes(1, 14, "weight", 754, 252)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"tp_size": 4}, "one of the following is required: checkpoint, tables"),
        ({"tp_size": 0, "tables": REAL}, "tp_size is 0"),
        ({"tp_size": 2, "rank": 2, "tables": REAL}, "rank is 2, expected 0 to 1"),
        (
            {"tp_size": 2, "checkpoint": "/none"},
            "/none/model.safetensors.index.json does not exist",
        ),
    ],
)
def test_refusals(capsys, arguments, told):
    answer = call(capsys, **arguments)
    assert told in answer["msg"]
