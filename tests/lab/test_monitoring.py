# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Monitoring on a container lab: real node_exporter and Prometheus, a scripted engine on the head.

The packages of both come from the distribution's archive over the controller, since nodes of a lab
reach nothing outside it. RDMA is files, computed from the real addresses of real interfaces.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support import packages
from tests.support.labs import ROOT, LabUnderTest
from tests.support.playbook import (
    Run,
    assert_check_changes_nothing,
    assert_idempotent,
    run_playbook,
)
from tests.unit import ranks

pytestmark = pytest.mark.containers

MONITORING = ROOT / "playbooks/monitoring.yml"
ENGINE = ROOT / "tests/support/openai_server.py"
FOLDER = "/var/lib/prometheus/node-exporter"
STATE = f"""
find /etc/sparkfleet /usr/local/lib/sparkfleet /etc/systemd/system -type f ! -name '*.pyc' \
  2>/dev/null | sort | xargs -r sha256sum
systemctl show -p ActiveState -p ActiveEnterTimestamp sparkfleet-metrics.timer \
  prometheus-node-exporter sparkfleet-prometheus prometheus
ls {FOLDER} 2>&1
"""


@pytest.fixture(scope="module")
def cell(
    make_lab: Callable[..., LabUnderTest], tmp_path_factory: pytest.TempPathFactory
) -> LabUnderTest:
    lab = make_lab("monitoring", "containers", "--bare", "--cabling", "pair", "--hosts", "2")
    both = ["spark1", "spark2"]
    wanted = {"prometheus-node-exporter": both, "prometheus": ["spark1"]}
    packages.install(lab, tmp_path_factory.mktemp("packages"), wanted)
    lab.root("spark1", "systemctl disable --now prometheus || true")  # as where the role installs
    for number, host in enumerate(("spark1", "spark2"), 11):
        for twin, netdev in enumerate(("enp1s0f0np0", "enP2p1s0f0np0")):
            lab.root(
                host,
                f"ip link set {netdev} mtu 9000 up; "
                f"ip addr add 10.20.{twin}.{number}/24 dev {netdev}",
            )
    lab.put("spark1", "/opt/openai_server.py", ENGINE.read_bytes())
    lab.root(
        "spark1", "systemd-run --quiet --unit=engine python3 /opt/openai_server.py --port 8888"
    )
    rank(lab)
    return lab


def rank(lab: LabUnderTest) -> None:
    """A rank as its starter would leave it, with a unit that does nothing."""
    settings = ranks.settings(
        rank=0,
        ranks=1,
        head=True,
        engram={"path": "/engram", "tables": [{"layer": 1, "rows": ranks.ROWS // 4}]},
        container={
            "mounts": [{"source": "/srv/engram", "target": "/engram", "read_only": True}],
            "command": ["--max-total-tokens", "8192"],
        },
    )
    table = ranks.engram(1, 0, ranks.ROWS // 4).replace(
        ranks.ROWS.to_bytes(8, "little"), (ranks.ROWS // 4).to_bytes(8, "little")
    )
    lab.root("spark1", "mkdir -p /srv/engram /etc/sparkfleet/sparks /run/sparkfleet/sparks")
    lab.root("spark1", "mkdir -p /var/log/sparkfleet")
    lab.put("spark1", "/srv/engram/engram-l1-r0of1.bin", table)
    lab.put("spark1", "/etc/sparkfleet/sparks/rank.json", json.dumps(settings).encode())
    told = json.dumps({"stage": "running", "started": time.time()})
    lab.put("spark1", "/run/sparkfleet/sparks/rank.json", told.encode())
    lab.put("spark1", "/var/log/sparkfleet/sparks-rank.log", b"max_total_num_tokens=4096, x\n")
    unit = b"[Service]\nExecStart=/bin/sleep infinity\n"
    lab.put("spark1", "/run/systemd/system/sparkfleet-rank@.service", unit)
    lab.root("spark1", "systemctl daemon-reload; systemctl start sparkfleet-rank@sparks")


def given(**variables: Any) -> tuple[str, ...]:
    usual = {"spark_topology": "pair", "monitoring_server": "spark1"}
    return ("-e", json.dumps({**usual, **variables}))


def play(lab: LabUnderTest, *words: str, **variables: Any) -> Run:
    return run_playbook(MONITORING, lab.inventory, *given(**variables), *words)


def refresh(lab: LabUnderTest, host: str = "spark1") -> dict[str, float]:
    """What the next run of the writer tells, through node_exporter."""
    unit = "sparkfleet-metrics.service"
    lab.root(
        host, f"systemctl start {unit} || {{ journalctl -n 20 -o cat -u {unit} >&2; exit 1; }}"
    )
    return values_of(lab.root(host, FETCH))


FETCH = """python3 -c 'import urllib.request as u
print(u.urlopen("http://127.0.0.1:9100/metrics", timeout=20).read().decode())'"""


def values_of(page: str) -> dict[str, float]:
    """Ours and those of node_exporter, by name and labels."""
    lines = [line for line in page.splitlines() if line.startswith(("sparkfleet_", "node_"))]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def named(told: dict[str, float], name: str, *labels: str) -> float:
    found = [
        value
        for key, value in told.items()
        if key.partition("{")[0] == f"sparkfleet_{name}" and all(label in key for label in labels)
    ]
    assert len(found) == 1, (name, labels, sorted(told))
    return found[0]


def test_check_changes_nothing_on_a_bare_node(cell: LabUnderTest) -> None:
    assert_check_changes_nothing(
        MONITORING, cell.inventory, *given(), witness=lambda: cell.everywhere(STATE)
    )


def test_it_is_set_up_once(cell: LabUnderTest) -> None:
    assert_idempotent(MONITORING, cell.inventory, *given())
    before = cell.everywhere(STATE)
    play(cell, "--check", "--diff").assert_ok().assert_unchanged()
    assert cell.everywhere(STATE) == before


def test_a_healthy_head_tells_all(cell: LabUnderTest) -> None:
    told = refresh(cell)
    for netdev in ("enp1s0f0np0", "enP2p1s0f0np0"):
        assert named(told, "link_up", netdev) == 1
        assert named(told, "link_mtu_bytes", netdev) == 9000
        assert named(told, "gid_valid", netdev) == 1
        assert named(told, "cable_as_planned", netdev) == 1
    for name in ("rank_up", "rank_wanted", "canary_good", "rank_served", "shards_good"):
        assert named(told, name) == 1, name
    assert named(told, "pool_tokens_granted") == 4096
    assert named(told, "pool_tokens_asked") == 8192
    assert told["node_textfile_scrape_error"] == 0
    assert any(name.startswith("node_memory_MemAvailable") for name in told)
    used = cell.root("spark1", "systemctl show -p CPUUsageNSec --value sparkfleet-metrics.service")
    print(f"CPU of one run: {used} ns")


def test_faults_are_told_and_the_running_rank_is_not_disturbed(cell: LabUnderTest) -> None:
    cell.root("spark1", "ip link set enP2p1s0f0np0 mtu 1500")
    # The slot of an address moves when it is taken away and something else comes first.
    cell.root("spark1", "ip addr del 10.20.0.11/24 dev enp1s0f0np0")
    cell.root("spark1", "ip addr add 10.99.0.1/24 dev enp1s0f0np0")
    time.sleep(2)  # the tables of a lab follow the kernel's addresses
    cell.root("spark1", "ip addr add 10.20.0.11/24 dev enp1s0f0np0; rm /srv/engram/engram-l1*")
    cell.root("spark2", "ip addr del 10.20.1.12/24 dev enP2p1s0f0np0")
    cell.root("spark1", "ip neigh flush all")
    time.sleep(3)
    told = refresh(cell)
    assert named(told, "link_mtu_bytes", "enP2p1s0f0np0") == 1500
    assert named(told, "shards_good") == 0
    assert named(told, "gid_drift", "enp1s0f0np0") == 1
    assert named(told, "gid_drift", "enP2p1s0f0np0") == 0
    assert named(told, "cable_as_planned", "enP2p1s0f0np0") == 0
    assert named(told, "cable_as_planned", "enp1s0f0np0") == 1
    assert named(told, "rank_up") == 1


def test_a_silent_engine_is_told(cell: LabUnderTest) -> None:
    cell.root("spark1", "systemctl kill -s SIGSTOP engine")
    begin = time.monotonic()
    told = refresh(cell)
    assert time.monotonic() - begin < 40
    assert named(told, "canary_good") == 0
    assert named(told, "rank_served") == 1
    cell.root("spark1", "systemctl kill -s SIGCONT engine")
    assert named(refresh(cell), "canary_good") == 1


def test_prometheus_asks_both_nodes_and_alerts(cell: LabUnderTest) -> None:
    ask = (
        "python3 -c 'import urllib.request as u, sys; "
        'print(u.urlopen("http://127.0.0.1:9090/api/v1/" + sys.argv[1]).read().decode())\' '
    )
    until = time.monotonic() + 150
    while True:
        rows = json.loads(cell.root("spark1", f"{ask} query?query=up"))["data"]["result"]
        alerts = json.loads(cell.root("spark1", f"{ask} alerts"))["data"]["alerts"]
        names = {alert["labels"]["alertname"] for alert in alerts}
        if len(rows) == 2 and "SparkfleetShardMissing" in names:
            break
        assert time.monotonic() < until, (rows, names)
        time.sleep(5)
    assert {(row["metric"]["instance"], row["value"][1]) for row in rows} == {
        ("spark1", "1"),
        ("spark2", "1"),
    }
    assert {row["metric"]["cell"] for row in rows} == {"sparks"}
    assert "SparkfleetTwinMtu" in names


def test_a_wrong_server_and_wrong_rules_are_refused(cell: LabUnderTest) -> None:
    run = play(cell, monitoring_server="nowhere")
    assert run.returncode != 0
    assert "monitoring_server is nowhere, expected the name of a host" in run.output
    before = cell.everywhere(STATE)
    run = play(cell, monitoring_targets={"sparkfleet": ["spark1:29000"]})  # a job twice
    assert run.returncode != 0
    assert "does not pass /usr/bin/promtool" in run.output
    assert cell.everywhere(STATE) == before


def test_absent_takes_all_of_it_away(cell: LabUnderTest) -> None:
    assert_idempotent(MONITORING, cell.inventory, *given(monitoring_state="absent"))
    left = cell.root(
        "spark1",
        f"ls {FOLDER} /usr/local/lib/sparkfleet /etc/sparkfleet /etc/systemd/system"
        " /var/lib/sparkfleet 2>/dev/null; systemctl is-active prometheus-node-exporter",
        check=False,
    )
    assert "metrics" not in left
    assert "prometheus" not in left.replace(FOLDER, "")
    assert left.endswith("active"), "node_exporter is the distribution's, and stays"
