"""Each alert fires for its fault, for nothing else, and clears again: as promtool judges it.

A healthy cell of two nodes is told by what our writer tells in tests of its own; a fault replaces
some of its series from minute 10 to minute 25.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.module_utils._metrics import FAMILIES

from tests.support.playbook import ROOT

RULES = ROOT / "roles/monitoring/files/alerts.yml"
STEP, BEFORE, DURING, AFTER = 30, 20, 30, 40  # seconds, and steps of them
HEAD = 'job="sparkfleet", cell="sparks", instance="spark1"'
WORKER = HEAD.replace("spark1", "spark2")
PORT = 'hca="rocep1s0f0", netdev="enp1s0f0np0", cage="0"'
HEALTHY: dict[str, str] = {}
for _node in (HEAD, WORKER):
    HEALTHY |= {
        f"up{{{_node}}}": "1",
        f"sparkfleet_last_run_timestamp_seconds{{{_node}}}": "time",
        f"sparkfleet_rank_wanted{{{_node}}}": "1",
        f"sparkfleet_rank_up{{{_node}}}": "1",
        f"sparkfleet_rank_started_timestamp_seconds{{{_node}}}": "0",
        f"sparkfleet_link_up{{{_node}, {PORT}}}": "1",
        f"sparkfleet_link_rate_bits_per_second{{{_node}, {PORT}}}": "2e11",
        f"sparkfleet_link_rate_planned_bits_per_second{{{_node}, {PORT}}}": "2e11",
        f"sparkfleet_link_mtu_bytes{{{_node}, {PORT}}}": "9000",
        f"sparkfleet_link_mtu_planned_bytes{{{_node}, {PORT}}}": "9000",
        f'sparkfleet_cable_as_planned{{{_node}, {PORT}, peer="spark2 cage 1"}}': "1",
        f"sparkfleet_gid_drift{{{_node}, {PORT}}}": "0",
        f"sparkfleet_shards{{{_node}}}": "2",
        f"sparkfleet_shards_good{{{_node}}}": "2",
        f'node_filesystem_avail_bytes{{{_node}, fstype="ext4", mountpoint="/"}}': "5e11",
        f'node_filesystem_size_bytes{{{_node}, fstype="ext4", mountpoint="/"}}': "1e12",
        f"node_memory_MemAvailable_bytes{{{_node}}}": "2e10",
        f"node_memory_MemTotal_bytes{{{_node}}}": "1.3e11",
        f"node_pressure_memory_stalled_seconds_total{{{_node}}}": "0",
    }
HEALTHY |= {
    f"sparkfleet_rank_served{{{HEAD}}}": "1",
    f"sparkfleet_canary_good{{{HEAD}}}": "1",
    f"sparkfleet_canary_seconds{{{HEAD}}}": "0.2",
    f"sparkfleet_canary_limit_seconds{{{HEAD}}}": "5",
    f"sparkfleet_pool_tokens_asked{{{HEAD}}}": "7000000",
    f"sparkfleet_pool_tokens_granted{{{HEAD}}}": "6999808",  # whole pages
    f'sparkfleet_cell_state{{{HEAD}, state="serving"}}': "1",
    f"sparkfleet_recovery_open{{{HEAD}}}": "0",
}
# A fault: what tells it, by name of metric or whole series; "gone" is a series that ends.
FAULTS: list[tuple[str, str, dict[str, str]]] = [
    ("SparkfleetNoMetrics", "node off", {f"up{{{WORKER}}}": "0"}),
    (
        "SparkfleetNoMetrics",
        "timer stopped",
        {f"sparkfleet_last_run_timestamp_seconds{{{WORKER}}}": "0"},
    ),
    (
        "SparkfleetNoMetrics",
        "no file",
        {f"sparkfleet_last_run_timestamp_seconds{{{WORKER}}}": "gone"},
    ),
    ("SparkfleetCellDead", "wedged, /health 200", {f"sparkfleet_canary_good{{{HEAD}}}": "0"}),
    (
        "SparkfleetCellDead",
        "seen by the watch",
        {
            f'sparkfleet_cell_state{{{HEAD}, state="serving"}}': "gone",
            f'sparkfleet_cell_state{{{HEAD}, state="wedged"}}': "1",
        },
    ),
    ("SparkfleetRankDown", "died", {f"sparkfleet_rank_up{{{WORKER}}}": "0"}),
    ("SparkfleetRestartBoundReached", "", {f"sparkfleet_recovery_open{{{HEAD}}}": "1"}),
    ("SparkfleetGidDrift", "", {f"sparkfleet_gid_drift{{{HEAD}, {PORT}}}": "1"}),
    (
        "SparkfleetLinkDown",
        "and so no rate, and no peer",
        {
            f"sparkfleet_link_up{{{HEAD}, {PORT}}}": "0",
            f"sparkfleet_link_rate_bits_per_second{{{HEAD}, {PORT}}}": "gone",
            f'sparkfleet_cable_as_planned{{{HEAD}, {PORT}, peer="spark2 cage 1"}}': "0",
        },
    ),
    (
        "SparkfleetLinkSlow",
        "",
        {f"sparkfleet_link_rate_bits_per_second{{{HEAD}, {PORT}}}": "1e11"},
    ),
    ("SparkfleetTwinMtu", "", {f"sparkfleet_link_mtu_bytes{{{WORKER}, {PORT}}}": "1500"}),
    (
        "SparkfleetCableWrong",
        "",
        {f'sparkfleet_cable_as_planned{{{HEAD}, {PORT}, peer="spark2 cage 1"}}': "0"},
    ),
    ("SparkfleetShardMissing", "", {f"sparkfleet_shards_good{{{WORKER}}}": "1"}),
    ("SparkfleetCanarySlow", "", {f"sparkfleet_canary_seconds{{{HEAD}}}": "9"}),
    ("SparkfleetPoolClamped", "", {f"sparkfleet_pool_tokens_granted{{{HEAD}}}": "6500000"}),
    (
        "SparkfleetDiskLow",
        "",
        {f'node_filesystem_avail_bytes{{{HEAD}, fstype="ext4", mountpoint="/"}}': "4e10"},
    ),
    (
        "SparkfleetMemoryPressure",
        "F13: the cgroup sees nothing, MemAvailable does",
        {f"node_memory_MemAvailable_bytes{{{HEAD}}}": "1.2e9"},
    ),
    (
        "SparkfleetMemoryPressure",
        "stalls",
        {f"node_pressure_memory_stalled_seconds_total{{{WORKER}}}": "stalls"},
    ),
]
# What looks like a fault and is none.
INNOCENT = {
    "stopped by hand": {
        **{f"sparkfleet_rank_{word}{{{HEAD}}}": "0" for word in ("wanted", "up")},
        **{f"sparkfleet_rank_{word}{{{WORKER}}}": "0" for word in ("wanted", "up")},
        f"sparkfleet_rank_served{{{HEAD}}}": "gone",
        f"sparkfleet_canary_good{{{HEAD}}}": "gone",
    },
    "booting for a quarter of an hour": {
        f"sparkfleet_rank_served{{{HEAD}}}": "0",
        f"sparkfleet_canary_good{{{HEAD}}}": "0",
        f"sparkfleet_rank_started_timestamp_seconds{{{HEAD}}}": "600",
    },
}

pytestmark = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: Debian's package prometheus"
)


def series(fault: Mapping[str, str]) -> list[dict[str, str]]:
    found = []
    for name in dict.fromkeys([*HEALTHY, *fault]):
        steps = BEFORE + DURING + AFTER
        values = []
        for number in range(steps):
            usual = HEALTHY.get(name, "gone")
            value = fault.get(name, usual) if BEFORE <= number < BEFORE + DURING else usual
            if value == "stalls":
                value = str((number - BEFORE) * STEP / 2)
            values.append({"gone": "_", "time": str(number * STEP)}.get(value, value))
        # A counter does not fall when its fault ends.
        if fault.get(name) == "stalls":
            values[BEFORE + DURING :] = [values[BEFORE + DURING - 1]] * AFTER
        found.append({"series": name, "values": " ".join(values)})
    return found


def firing(folder: Path, fault: Mapping[str, str], expected: str | None) -> None:
    """Let promtool see whether this fires during the fault, and nothing before and after it."""

    def at(step: int, names: list[str]) -> dict[str, Any]:
        return {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{step * STEP}s",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in names],
        }

    test = {
        "interval": f"{STEP}s",
        "input_series": series(fault),
        "promql_expr_test": [
            at(BEFORE - 1, []),
            at(BEFORE + DURING - 1, [expected] if expected else []),
            at(BEFORE + DURING + AFTER - 1, []),
        ],
    }
    place = folder / "test.yml"
    content = {"rule_files": [str(RULES)], "evaluation_interval": f"{STEP}s", "tests": [test]}
    place.write_text(yaml.safe_dump(content), encoding="utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", str(place)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("alert", "fault"),
    [pytest.param(alert, fault, id=f"{alert} {why}".strip()) for alert, why, fault in FAULTS],
)
def test_an_alert_fires_for_its_fault_and_clears(
    tmp_path: Path, alert: str, fault: dict[str, str]
) -> None:
    firing(tmp_path, fault, alert)


@pytest.mark.parametrize("case", INNOCENT)
def test_nothing_fires_for(tmp_path: Path, case: str) -> None:
    firing(tmp_path, INNOCENT[case], None)


def test_every_alert_has_its_fault_and_says_what_to_do() -> None:
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"][0]["rules"]
    assert {rule["alert"] for rule in rules} == {alert for alert, _why, _fault in FAULTS}
    for rule in rules:
        assert set(rule["annotations"]) == {"summary", "next"}, rule["alert"]
        assert rule["labels"]["severity"] in {"critical", "warning"}


def test_the_rules_ask_for_what_is_told() -> None:
    asked = set(re.findall(r"sparkfleet_\w+", RULES.read_text(encoding="utf-8")))
    assert asked <= set(FAMILIES)
    assert {name.partition("{")[0] for name in HEALTHY if name.startswith("spark")} <= set(FAMILIES)


def test_the_page_tells_of_each() -> None:
    page = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    for name, (_kind, meaning) in FAMILIES.items():
        assert f"| `{name}` | {meaning} |" in page
    for alert, _why, _fault in FAULTS:
        assert f"| `{alert}` |" in page
