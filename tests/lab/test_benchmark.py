# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cell that serves through the stand-in engine, measured and told of: no speed means a thing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.lab.test_monitoring import FETCH, named, values_of
from tests.lab.test_serve import Cell, make_cell
from tests.support import packages
from tests.support.labs import ROOT, LabUnderTest
from tests.support.playbook import run_playbook

pytestmark = pytest.mark.containers

SMALL = {"benchmark_streams": [1, 4], "benchmark_prompts": [1024], "benchmark_output_tokens": 32}


@pytest.fixture(scope="module")
def ring(make_lab: Callable[..., LabUnderTest], tmp_path_factory: pytest.TempPathFactory) -> Cell:
    lab = make_lab("bench", "containers", "--bare")
    cell = make_cell(lab, tmp_path_factory.mktemp("bench"), "ring")
    cell.serve().assert_ok()
    return cell


def test_check_mode_asks_nothing(ring: Cell, tmp_path: Path) -> None:
    report = str(tmp_path / "run")
    playbook = ROOT / "playbooks/benchmark.yml"
    words = ring.words(**SMALL, benchmark_report_path=report)
    run_playbook(playbook, ring.lab.inventory, "--check", *words).assert_ok().assert_unchanged()
    assert list(tmp_path.iterdir()) == []


def test_a_cell_is_measured_and_compared(ring: Cell, tmp_path: Path) -> None:
    report = str(tmp_path / "before")
    run = ring.play("benchmark", **SMALL, benchmark_report_path=report).assert_ok()
    run.assert_unchanged()
    assert "STAND-IN" in run.output
    kept = json.loads((tmp_path / "before.json").read_text())
    assert len(kept["configuration"]) == 12
    assert set(kept["hosts"]) == set(ring.hosts)
    assert kept["stand_in"]
    decode = [point for point in kept["points"] if point["kind"] == "decode"]
    assert [point["streams"] for point in decode] == [1, 4]
    for point in kept["points"]:
        assert point["failures"] == []
        assert point["answered"] == 3 * point["streams"]
        assert point["ttft_seconds"] > 0
    (prefill,) = (point for point in kept["points"] if point["kind"] == "prefill")
    assert 900 < prefill["prompt_tokens"] < 1150
    again = ring.play(
        "benchmark",
        **SMALL,
        benchmark_report_path=str(tmp_path / "after"),
        benchmark_compare=f"{report}.json",
    ).assert_ok()
    assert "Compared with" in again.output
    after = json.loads((tmp_path / "after.json").read_text())
    assert after["configuration"] == kept["configuration"], "the same launch has the same hash"


def test_a_server_that_is_not_there_is_named(ring: Cell) -> None:
    run = ring.play("benchmark", **SMALL, benchmark_url="http://127.0.0.1:1")
    assert run.returncode != 0
    assert "nothing listens at http://127.0.0.1:1" in run.output
    assert "Traceback" not in run.output


def test_metrics_of_a_real_rank(ring: Cell, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the starter of a rank writes down is what the metrics read."""
    exporter = {"prometheus-node-exporter": ring.hosts}
    packages.install(ring.lab, tmp_path_factory.mktemp("packages"), exporter)
    ring.play("monitoring").assert_ok()
    for host in ring.hosts:
        ring.lab.root(host, "systemctl start sparkfleet-metrics.service")
        told = values_of(ring.lab.root(host, FETCH))
        assert named(told, "rank_up") == named(told, "rank_wanted") == 1
        assert named(told, "shards") == named(told, "shards_good") == 2
        assert named(told, "rank_starts_total") == 1
        drifts = [value for name, value in told.items() if "gid_drift" in name]
        assert drifts == [0] * 4
        cables = [value for name, value in told.items() if "cable_as_planned" in name]
        assert cables == [1] * 4
    head = values_of(ring.lab.root(ring.hosts[0], FETCH))
    assert named(head, "canary_good") == named(head, "rank_served") == 1
    assert named(head, "pool_tokens_granted") > 0
    ring.play("stop").assert_ok()
    ring.lab.root("spark2", "systemctl start sparkfleet-metrics.service")
    told = values_of(ring.lab.root("spark2", FETCH))
    assert named(told, "rank_up") == named(told, "rank_wanted") == 0, "stopped by hand"
