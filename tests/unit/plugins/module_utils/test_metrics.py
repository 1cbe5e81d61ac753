"""What a node tells of links, rank and cell, from facts and from a node made of files."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _metrics, _rank
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_plan import fabric_plan
from ansible_collections.sparkfleet.cluster.plugins.module_utils._metrics import Sample
from ansible_collections.sparkfleet.cluster.plugins.module_utils._metrics_run import (
    MEMORY,
    RECOVERY,
    Collector,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._recovery import Limits, begin

from tests.support.openai_server import Server
from tests.unit import ranks

PLAN = fabric_plan(["spark1", "spark2", "spark3", "spark4"], "ring")
PORTS = PLAN["hosts"]["spark1"]["ports"]
FIRST = PORTS[0]


def device(**changes: Any) -> dict[str, Any]:
    good = {"state": "ACTIVE", "netdev_mtu": 9000, "rate_gbps": 200.0, "gid_index": 3}
    return {"hca": FIRST["hca"], **good, **changes}


def values(samples: Sequence[Sample]) -> dict[str, float]:
    """By name, without the metric that is the same for all of them."""
    found = {sample.name.removeprefix("sparkfleet_"): sample.value for sample in samples}
    assert len(found) == len(samples), "one port at a time"
    return found


def links(*devices: dict[str, Any]) -> dict[str, float]:
    return values(_metrics.link_samples([FIRST], devices, mtu=9000, rate_gbps=200))


def test_a_good_link() -> None:
    assert links(device()) == {
        "link_up": 1,
        "link_mtu_planned_bytes": 9000,
        "link_rate_planned_bits_per_second": 2e11,
        "link_mtu_bytes": 9000,
        "link_rate_bits_per_second": 2e11,
        "gid_valid": 1,
        "gid_index": 3,
    }


@pytest.mark.parametrize(
    ("devices", "changed"),
    [
        ([device(state="DOWN")], {"link_up": 0, "link_rate_bits_per_second": None}),
        ([device(netdev_mtu=1500)], {"link_mtu_bytes": 1500}),
        ([device(rate_gbps=100.0)], {"link_rate_bits_per_second": 1e11}),
        ([device(rate_gbps=None)], {"link_rate_bits_per_second": None}),
        ([device(gid_index=None)], {"gid_valid": 0, "gid_index": None}),
        (
            [device(hca="mlx5_0")],
            {
                "link_up": 0,
                "link_mtu_bytes": None,
                "link_rate_bits_per_second": None,
                "gid_valid": 0,
                "gid_index": None,
            },
        ),
    ],
)
def test_a_link_with_a_fault(devices: list[dict[str, Any]], changed: dict[str, Any]) -> None:
    expected = {**links(device()), **changed}
    assert links(*devices) == {name: one for name, one in expected.items() if one is not None}


@pytest.mark.parametrize(
    ("neighbour", "as_planned"),
    [
        ({"lladdr": "02:00:00:00:00:01", "state": ["REACHABLE"]}, 1),
        ({"lladdr": "02:00:00:00:00:01", "state": ["STALE"]}, 1),
        ({"state": ["INCOMPLETE"]}, 0),
        ({"lladdr": "02:00:00:00:00:01", "state": ["FAILED"]}, 0),
        ({"dst": "10.20.0.99", "lladdr": "02:00:00:00:00:01", "state": ["REACHABLE"]}, 0),
        ({"dev": "enp1s0f1np1", "lladdr": "02:00:00:00:00:01", "state": ["REACHABLE"]}, 0),
    ],
)
def test_who_is_at_the_other_end(neighbour: dict[str, Any], as_planned: int) -> None:
    entry = {"dst": "10.20.0.12", "dev": FIRST["netdev"], **neighbour}
    (sample,) = _metrics.cable_samples([FIRST], [entry])
    assert sample.value == as_planned
    assert sample.labels["peer"] == "spark2 cage 1"


def test_a_switch_has_no_planned_peer() -> None:
    plan = fabric_plan(["spark1", "spark2"], "switch")
    assert _metrics.cable_samples(plan["hosts"]["spark1"]["ports"], []) == []


def test_drift_is_told_until_the_next_start() -> None:
    memory: dict[str, Any] = {}

    def told(started: float, *devices: dict[str, Any]) -> dict[str, float]:
        return values(_metrics.drift_samples([FIRST], devices, started, memory))

    assert told(1.0, device()) == {"gid_index_at_start": 3, "gid_drift": 0}
    assert told(1.0, device(gid_index=5)) == {"gid_index_at_start": 3, "gid_drift": 1}
    assert told(1.0, device(gid_index=None)) == {"gid_index_at_start": 3, "gid_drift": 1}
    assert told(1.0, device()) == {"gid_index_at_start": 3, "gid_drift": 0}
    assert told(2.0, device(gid_index=5)) == {"gid_index_at_start": 5, "gid_drift": 0}


@pytest.mark.parametrize(
    ("state", "enabled", "stage", "wanted"),
    [
        ("active", True, "running", 1),
        ("active", False, "running", 1),
        ("failed", True, "ended", 1),
        ("failed", True, "refused", 1),
        ("inactive", True, "ended", 0),  # a worker whose head was stopped just before it
        ("inactive", True, "stopped", 0),
        ("inactive", True, None, 1),  # since the node started: it should have come by itself
        ("inactive", False, None, 0),
    ],
)
def test_a_rank_is_wanted_unless_somebody_stopped_it(
    state: str, enabled: bool, stage: str | None, wanted: int
) -> None:
    told = {"stage": stage, "started": 5.0} if stage else {}
    unit = {"active": state == "active", "enabled": enabled, "failed": state == "failed"}
    found = values(_metrics.rank_samples(ranks.settings(), unit, told, {}))
    assert found["rank_wanted"] == wanted
    assert found["rank_up"] == (state == "active")


def test_starts_are_counted_once() -> None:
    memory: dict[str, Any] = {}
    unit = {"active": True, "enabled": True, "failed": False}
    for started in (1.0, 1.0, 2.0, 2.0):
        told = {"stage": "running", "started": started}
        found = values(_metrics.rank_samples(ranks.settings(), unit, told, memory))
    assert found["rank_starts_total"] == 2


def test_a_canary_that_is_silent_after_it_once_sang() -> None:
    memory: dict[str, Any] = {}
    booting = values(_metrics.canary_samples(None, 5, 1.0, memory))
    assert booting == {"canary_good": 0, "canary_limit_seconds": 5, "rank_served": 0}
    assert values(_metrics.canary_samples(0.2, 5, 1.0, memory))["rank_served"] == 1
    wedged = values(_metrics.canary_samples(None, 5, 1.0, memory))
    assert wedged == {"canary_good": 0, "canary_limit_seconds": 5, "rank_served": 1}
    assert values(_metrics.canary_samples(None, 5, 2.0, memory))["rank_served"] == 0


def test_the_record_of_the_recovery() -> None:
    limits = Limits(attempts=2)
    once = begin(None, 100.0, limits, who="me", reasons=["it was dead"])
    assert values(_metrics.recovery_samples(once, {}, 101.0)) == {
        "recovery_attempts": 1,
        "recovery_open": 0,
    }
    twice = begin(once, 200.0, limits, who="me", reasons=["it was dead"])
    told = _metrics.recovery_samples(twice, {"state": "dead"}, 201.0)
    assert values(told) == {"recovery_attempts": 2, "recovery_open": 1, "cell_state": 1}
    assert told[-1].labels == {"state": "dead"}
    later = _metrics.recovery_samples(twice, {}, 201.0 + limits.cooldown)
    assert values(later)["recovery_open"] == 0
    assert _metrics.recovery_samples({}, {}, 1.0) == []
    assert _metrics.recovery_samples({"attempts": "?"}, {"state": None}, 1.0) == []


def test_labels_are_escaped_and_unknown_names_refused() -> None:
    text = _metrics.render([Sample("sparkfleet_cell_state", 1, {"state": 'a"b\\c\nd'})])
    assert text.splitlines()[-1] == r'sparkfleet_cell_state{state="a\"b\\c\nd"} 1'
    with pytest.raises(KeyError, match="sparkfleet_other: no such family"):
        _metrics.render([Sample("sparkfleet_other", 1)])


# --- a node ---------------------------------------------------------------------------------------


class Node:
    """A node below a directory, whose systemd says what it is told to say."""

    def __init__(self, root: Path, port: int) -> None:
        self.root = ranks.node(root)
        self.active = True
        self.settings = ranks.settings(
            rank=0,
            head=True,
            engine_port=port,
            container={"command": ["--served-model-name", "m", "--max-total-tokens", "4096"]},
        )
        (root / "srv/engram/engram-l1-r0of4.bin").write_bytes(ranks.engram(1, 0, ranks.ROWS // 4))
        self.put(_rank.SETTINGS.format(cell="sparks"), json.dumps(self.settings))
        self.tell("running", 100.0)
        self.put(
            "/var/log/sparkfleet/sparks-rank.log",
            "max_total_num_tokens=2048, chunked_prefill_size=1, max_running_requests=1, "
            "context_len=1\n",
        )
        (root / "prom").mkdir()

    def put(self, path: str, text: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")

    def tell(self, stage: str, started: float) -> None:
        told = json.dumps({"stage": stage, "started": started})
        self.put(_rank.STATE.format(cell="sparks"), told)

    def run(self, argv: Sequence[str]) -> Command:
        if argv[0] == "ip":
            return Command(0, "[]", "")
        state = "active" if self.active else "inactive"
        return Command(0, f"LoadState=loaded\nActiveState={state}\nUnitFileState=enabled\n", "")

    def collect(self, timeout: float = 5) -> dict[str, float]:
        given = {
            "cell": "sparks",
            "ports": [],
            "mtu": 9000,
            "rate_gbps": 200,
            "canary_timeout": timeout,
            "canary_limit": 5,
            "folder": "/prom",
        }
        Collector(given, self.run, str(self.root), lambda: 1000.0).collect()
        lines = (self.root / "prom/sparkfleet.prom").read_text(encoding="utf-8").splitlines()
        found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        return {name.removeprefix("sparkfleet_"): float(one) for name, one in found.items()}


@pytest.fixture
def engine() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def node(tmp_path: Path, engine: Server) -> Node:
    return Node(tmp_path, engine.server_address[1])


def test_a_serving_head_tells_all(node: Node) -> None:
    told = node.collect()
    assert told["canary_good"] == 1
    assert 0 < told["canary_seconds"] < 5
    assert told["rank_up"] == told["rank_wanted"] == told["rank_starts_total"] == 1
    assert told["shards"] == told["shards_good"] == 1
    assert (told["pool_tokens_asked"], told["pool_tokens_granted"]) == (4096, 2048)
    assert told["last_run_timestamp_seconds"] == 1000
    assert told['rank_info{rank="0",head="1"}'] == 1
    memory = json.loads((node.root / MEMORY.lstrip("/")).read_text())
    assert memory["pool"]["pool"]["granted"] == 2048
    # Known now, so that the log is not read again until the next start.
    (node.root / "var/log/sparkfleet/sparks-rank.log").unlink()
    assert node.collect()["pool_tokens_granted"] == 2048
    node.tell("running", 200.0)
    assert "pool_tokens_granted" not in node.collect()


def test_a_shard_that_is_short_or_gone(node: Node) -> None:
    table = node.root / "srv/engram/engram-l1-r0of4.bin"
    table.write_bytes(table.read_bytes()[:-1])
    assert node.collect()["shards_good"] == 0
    table.unlink()
    assert node.collect()["shards_good"] == 0
    table.parent.rename(node.root / "away")
    assert node.collect()["shards_good"] == 0


def test_a_silent_engine_costs_its_metrics_and_nothing_else(node: Node, engine: Server) -> None:
    node.collect()
    engine.fault = "hangs"
    begin = time.monotonic()
    told = node.collect(timeout=1)
    assert time.monotonic() - begin < 15
    assert told["canary_good"] == 0
    assert told["rank_served"] == 1
    assert told['question_failed{question="canary"}'] == 1
    assert told["shards_good"] == 1


def test_a_stopped_rank_is_asked_for_nothing(node: Node, engine: Server) -> None:
    node.active = False
    node.tell("stopped", 100.0)
    told = node.collect()
    assert (told["rank_wanted"], told["rank_up"]) == (0, 0)
    assert "canary_good" not in told
    assert engine.seen == []


def test_what_the_recovery_wrote_is_told_by_the_head(node: Node) -> None:
    record = begin(None, 900.0, Limits(attempts=1), who="me", reasons=["it was dead"])
    node.put(f"{RECOVERY}/sparks.json", json.dumps(record))
    node.put(f"{RECOVERY}/sparks-state.json", json.dumps({"state": "wedged"}))
    told = node.collect()
    assert told["recovery_open"] == told["recovery_attempts"] == 1
    assert told['cell_state{state="wedged"}'] == 1


def test_a_node_without_a_rank(tmp_path: Path) -> None:
    node = Node(tmp_path, 1)
    (tmp_path / _rank.SETTINGS.format(cell="sparks").lstrip("/")).unlink()
    node.active = False
    told = node.collect()
    assert "rank_up" not in told
    assert told["last_run_timestamp_seconds"] == 1000


def test_the_page_of_the_engine_comes_and_goes(node: Node, engine: Server) -> None:
    page = node.root / "prom/sparkfleet_engine.prom"
    page.write_text("sglang:num_running_reqs 7\n")
    node.collect()  # the scripted engine has no metrics
    assert not page.exists()


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: Debian's package prometheus"
)
def test_promtool_likes_what_is_written(node: Node) -> None:
    node.collect()
    text = (node.root / "prom/sparkfleet.prom").read_text()
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
