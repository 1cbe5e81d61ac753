# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Grafana dashboard of the role monitoring, from a list of panels.

    python tools/dashboard.py > roles/monitoring/files/dashboard.json

A test holds the file against this program, and each query against the metrics that there are.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NamedTuple

# The time until the first token below which that share of requests stayed.
_FIRST = "histogram_quantile({share}, sum by (cell, le) (rate({name}[5m])))"
HERE = 'cell=~"$cell", instance=~"$instance"'
CELL = 'cell=~"$cell"'
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_SENT = "node_infiniband_port_data_transmitted_bytes_total"
_WIDTH = 24  # of the page, in Grafana's columns
Steps = tuple[tuple[float | None, str], ...]
_STATES = [
    {"type": "value", "options": {"0": {"text": "no", "color": "red", "index": 0}}},
    {"type": "value", "options": {"1": {"text": "yes", "color": "green", "index": 1}}},
]
_BELOW = {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []}
# What a kind of panel is told, so that nothing depends on what a Grafana takes for usual.
_OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {"legend": _BELOW, "tooltip": {"mode": "multi", "sort": "none"}},
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "textMode": "auto",
    },
    "state-timeline": {
        "legend": _BELOW,
        "mergeValues": True,
        "showValue": "never",
        "rowHeight": 0.9,
    },
}
_COLORS = {"timeseries": "palette-classic", "stat": "thresholds", "state-timeline": "thresholds"}


class Panel(NamedTuple):
    """A panel: queries with the legend of each. `kind` and `unit` are Grafana's; `note` explains.

    `steps` are the colours of a value, each with the number from which on it holds.
    """

    title: str
    queries: tuple[tuple[str, str], ...]
    kind: str = "timeseries"
    unit: str = "short"
    width: int = 8
    note: str = ""
    low: float | None = None  # where the axis begins and ends, if not where the values do
    high: float | None = None
    decimals: int | None = None
    steps: Steps = ((None, "green"),)
    height: int = 7  # of its whole line


class Row(NamedTuple):
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


def _sglang(name: str) -> str:
    return f"sglang:{name}{{{CELL}}}"


ROWS = (
    Row(
        "Cell",
        (
            Panel(
                "Answers",
                ((f"sparkfleet_canary_good{{{CELL}}}", "{{cell}}"),),
                "stat",
                "bool",
                4,
                "A completion of one token through the engine. /health says 200 for a wedged cell.",
            ),
            Panel(
                "Ranks up",
                ((f"sum by (cell) (sparkfleet_rank_up{{{CELL}}})", "{{cell}}"),),
                "stat",
                width=4,
                # How many there should be is not known here, so that no number of them is green.
                steps=((None, "red"), (1, "text")),
            ),
            Panel(
                "Alerts",
                ((f'count(ALERTS{{{CELL}, alertstate="firing"}}) or vector(0)', "firing"),),
                "stat",
                width=4,
                steps=((None, "green"), (1, "red")),
            ),
            Panel(
                "Time of one token",
                (
                    (f"sparkfleet_canary_seconds{{{CELL}}}", "{{cell}}"),
                    (f"sparkfleet_canary_limit_seconds{{{CELL}}}", "{{cell}} slow"),
                ),
                unit="s",
                width=6,
                low=0,
            ),
            Panel(
                "KV pool",
                (
                    (f"sparkfleet_pool_tokens_granted{{{CELL}}}", "{{cell}} granted"),
                    (f"sparkfleet_pool_tokens_asked{{{CELL}}}", "{{cell}} asked"),
                ),
                width=6,
                note="The engine takes silently what the memory allows.",
            ),
            Panel(
                "Starts of ranks",
                ((f"increase(sparkfleet_rank_starts_total{{{HERE}}}[1h])", "{{instance}}"),),
                low=0,
                decimals=0,
            ),
            Panel(
                "Restarts on record",
                (
                    (f"sparkfleet_recovery_attempts{{{CELL}}}", "{{cell}}"),
                    (f"sparkfleet_recovery_open{{{CELL}}}", "{{cell}} bound reached"),
                ),
                low=0,
                decimals=0,
            ),
            Panel(
                "Engram tables missing",
                (
                    (
                        f"sparkfleet_shards{{{HERE}}} - sparkfleet_shards_good{{{HERE}}}",
                        "{{instance}}",
                    ),
                ),
                low=0,
                decimals=0,
            ),
        ),
    ),
    Row(
        "Engine",
        (
            Panel(
                "Tokens",
                (
                    (f"rate({_sglang('generation_tokens_total')}[2m])", "{{cell}} written"),
                    (f"rate({_sglang('prompt_tokens_total')}[2m])", "{{cell}} read"),
                ),
                unit="suffix: tok/s",
                low=0,
            ),
            Panel(
                "Requests",
                (
                    (_sglang("num_running_reqs"), "{{cell}} running"),
                    (_sglang("num_queue_reqs"), "{{cell}} waiting"),
                ),
                low=0,
                decimals=0,
            ),
            Panel(
                "Time to the first token",
                tuple(
                    (
                        _FIRST.format(
                            share=share, name=_sglang("time_to_first_token_seconds_bucket")
                        ),
                        f"{{{{cell}}}} {name}",
                    )
                    for share, name in ((0.5, "median"), (0.95, "95 %"))
                ),
                unit="s",
                low=0,
            ),
            Panel(
                "Pool in use",
                ((_sglang("token_usage"), "{{cell}}"),),
                unit="percentunit",
                low=0,
                high=1,
            ),
            Panel(
                "Prefix cache",
                ((_sglang("cache_hit_rate"), "{{cell}}"),),
                unit="percentunit",
                low=0,
                high=1,
            ),
            Panel("Tokens accepted at once", ((_sglang("spec_accept_length"), "{{cell}}"),)),
        ),
    ),
    Row(
        "Fabric",
        (
            Panel(
                "Links up",
                ((f"sparkfleet_link_up{{{HERE}}}", "{{instance}} {{netdev}}"),),
                "state-timeline",
                "bool",
                12,
                height=12,  # a ring of four Sparks has 16 links
            ),
            Panel(
                "Cables as planned",
                (
                    (
                        f"sparkfleet_cable_as_planned{{{HERE}}}",
                        "{{instance}} {{netdev}} to {{peer}}",
                    ),
                ),
                "state-timeline",
                "bool",
                12,
                height=12,  # a ring of four Sparks has 16 links
            ),
            Panel(
                "Link rate",
                (
                    (
                        f"sparkfleet_link_rate_bits_per_second{{{HERE}}}",
                        "{{instance}} {{netdev}}",
                    ),
                ),
                unit="bps",
                width=12,
                low=0,
            ),
            Panel(
                "MTU",
                ((f"sparkfleet_link_mtu_bytes{{{HERE}}}", "{{instance}} {{netdev}}"),),
                unit="none",
                width=12,
                low=0,
            ),
            Panel(
                "GID slot",
                (
                    (f"sparkfleet_gid_index{{{HERE}}}", "{{instance}} {{hca}}"),
                    (f"sparkfleet_gid_index_at_start{{{HERE}}}", "{{instance}} {{hca}} at start"),
                ),
                unit="none",
                width=12,
                decimals=0,
                note="It may move. The engine goes on; its next start takes the new one.",
            ),
            Panel(
                "RDMA out",
                (
                    (
                        f"8 * rate({_SENT}{{{HERE}}}[2m])",
                        "{{instance}} {{device}}",
                    ),
                ),
                unit="bps",
                width=12,
                low=0,
            ),
        ),
    ),
    Row(
        "Memory and disk",
        (
            Panel(
                "Memory available",
                ((f"node_memory_MemAvailable_bytes{{{HERE}}}", "{{instance}}"),),
                unit="bytes",
                low=0,
                note="Of the node, which the GPU of a Spark shares: NVML reports none of its own.",
            ),
            Panel(
                "Waiting for memory (PSI)",
                (
                    (
                        f"rate(node_pressure_memory_stalled_seconds_total{{{HERE}}}[2m])",
                        "{{instance}} all",
                    ),
                    (
                        f"rate(node_pressure_memory_waiting_seconds_total{{{HERE}}}[2m])",
                        "{{instance}} some",
                    ),
                ),
                unit="percentunit",
                low=0,
            ),
            Panel(
                "Disk left",
                (
                    (
                        f'node_filesystem_avail_bytes{{{HERE}, fstype!~"tmpfs|overlay|nfs4?"}}',
                        "{{instance}} {{mountpoint}}",
                    ),
                ),
                unit="bytes",
                low=0,
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """What Grafana imports."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row in ROWS:
        place = {"x": 0, "y": top, "w": _WIDTH, "h": 1}
        panels.append({"type": "row", "title": row.title, "gridPos": place, "collapsed": False})
        top, left, height = top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > _WIDTH:
                top, left = top + height, 0
            height = panel.height
            place = {"x": left, "y": top, "w": panel.width, "h": height}
            panels.append(_panel(panel, place))
            left += panel.width
        top += height
    for number, made in enumerate(panels, 1):
        made["id"] = number
    return {
        "uid": "sparkfleet",
        "title": "Sparkfleet",
        "tags": ["sparkfleet"],
        "timezone": "browser",
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {
            "list": [
                {"name": "datasource", "type": "datasource", "query": "prometheus"},
                _variable("cell", "sparkfleet_last_run_timestamp_seconds"),
                _variable("instance", f"sparkfleet_last_run_timestamp_seconds{{{CELL}}}"),
            ]
        },
        "panels": panels,
    }


def _panel(panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    truth = panel.unit == "bool"
    steps = [{"color": color, "value": value} for value, color in panel.steps]
    axis = {"min": panel.low, "max": panel.high, "decimals": panel.decimals}
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.note,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {
            "defaults": {
                "unit": "short" if truth else panel.unit,
                "mappings": _STATES if truth else [],
                "color": {"mode": _COLORS[panel.kind]},
                "thresholds": {"mode": "absolute", "steps": steps},
                **{name: value for name, value in axis.items() if value is not None},
            },
            "overrides": [],
        },
        "options": _OPTIONS[panel.kind],
        "targets": [
            {
                "refId": chr(65 + number),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend,
            }
            for number, (query, legend) in enumerate(panel.queries)
        ],
    }


def _variable(name: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {name})"
    return {
        "name": name,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "A"},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "current": {"text": "All", "value": "$__all"},
    }


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    sys.stdout.write(text())
