"""The dashboard is the one its program makes, and asks Prometheus for what is told.

How it looks is tried by tests/dashboard, with the components of Grafana.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.module_utils._metrics import FAMILIES

from lab.standin.sglang.api import Metrics
from tests.support.playbook import ROOT
from tools import dashboard

FILE = ROOT / "roles/monitoring/files/dashboard.json"
QUERIES = [
    (panel.title, query)
    for row in dashboard.ROWS
    for panel in row.panels
    for query, _legend in panel.queries
]
# Of node_exporter; that it tells these is seen in the lab.
NODE = {
    "node_infiniband_port_data_transmitted_bytes_total",
    "node_memory_MemAvailable_bytes",
    "node_pressure_memory_stalled_seconds_total",
    "node_pressure_memory_waiting_seconds_total",
    "node_filesystem_avail_bytes",
}


def test_the_file_is_what_the_program_makes() -> None:
    made = f"python tools/dashboard.py > {FILE.relative_to(ROOT)}"
    assert FILE.read_text(encoding="utf-8") == dashboard.text(), made


def test_panels_lie_beside_each_other() -> None:
    taken: dict[tuple[int, int], str] = {}
    panels = json.loads(FILE.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                other = taken.setdefault((x, y), panel["title"])
                assert other == panel["title"], f"{other} and {panel['title']} overlap"


def test_every_metric_is_told_by_somebody() -> None:
    engine = set(re.findall(r"^# TYPE (sglang:\w+)", Metrics("m").text(), re.MULTILINE))
    engine |= {f"{name}_bucket" for name in engine}
    known = {*FAMILIES, *engine, *NODE}
    used = {
        name
        for _title, query in QUERIES
        for name in re.findall(r"\b(?:sparkfleet_|sglang:|node_)\w+", query)
    }
    assert used <= known, used - known
    assert used >= NODE


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: Debian's package prometheus"
)
def test_every_query_parses(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{number}", "expr": query.replace("$cell", ".*").replace("$instance", "")}
        for number, (_title, query) in enumerate(QUERIES)
    ]
    place = tmp_path / "rules.yml"
    place.write_text(yaml.safe_dump({"groups": [{"name": "g", "rules": rules}]}))
    done = subprocess.run(
        ["promtool", "check", "rules", str(place)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
