# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Three hours of two cells, as Prometheus has them: a ring of four, and a pair with faults.

Names and labels are those that nodes tell; the values are made up, so that each panel has
something to show. In the pair a link fails, and for a while the cell answers nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_plan import fabric_plan

STEP = 30
FROM = 1_767_604_080  # a moment of no meaning, so that pictures stay the same
BEFORE = 900  # seconds of samples before, for what a query looks back on
TO = FROM + 3 * 3600
CELLS = {
    "ring": (["spark1", "spark2", "spark3", "spark4"], "ring"),
    "pair": (["oak1", "oak2"], "pair"),
}
BROKEN = (TO - 3600, TO - 2400)  # in the pair

Course = Callable[[int], float]


class Series(NamedTuple):
    """A series: its name, its labels and its value at a time."""

    name: str
    labels: dict[str, str]
    at: Course


def steady(value: float) -> Course:
    return lambda now: value


def wave(middle: float, swing: float, shift: float = 0) -> Course:
    return lambda now: middle + swing * math.sin((now - FROM) / 1100 + shift)


def counting(rate: float, shift: float = 0) -> Course:
    """Grows by the rate, which swings by a quarter."""
    return lambda now: (
        rate * (now - FROM + 2 * BEFORE - 275 * math.cos((now - FROM) / 1100 + shift))
    )


def during_fault(then: float, usual: float) -> Course:
    return lambda now: then if BROKEN[0] <= now < BROKEN[1] else usual


def node(cell: str, host: str, number: int, ports: list[dict[str, Any]]) -> Iterator[Series]:
    """What the node_exporter of a node tells."""
    here = {"job": "sparkfleet", "cell": cell, "instance": host}
    faulty = host == "oak2"
    yield Series("sparkfleet_last_run_timestamp_seconds", here, lambda now: now)
    yield Series("sparkfleet_rank_up", here, steady(1))
    starts = (lambda now: 1 + (now >= BROKEN[0] + 300)) if cell == "pair" else steady(1)
    yield Series("sparkfleet_rank_starts_total", here, starts)
    yield Series("sparkfleet_shards", here, steady(8))
    yield Series("sparkfleet_shards_good", here, during_fault(6, 8) if faulty else steady(8))
    for twin, port in enumerate(ports):
        place = here | {name: str(port[name]) for name in ("hca", "netdev", "cage")}
        down = faulty and twin == 0
        yield Series("sparkfleet_link_up", place, during_fault(0, 1) if down else steady(1))
        peer = place | {"peer": f"{port['peer']['host']} cage {port['peer']['cage']}"}
        planned = during_fault(0, 1) if down else steady(1)
        yield Series("sparkfleet_cable_as_planned", peer, planned)
        rate = during_fault(math.nan, 2e11) if down else steady(2e11)
        yield Series("sparkfleet_link_rate_bits_per_second", place, rate)
        slow = host == "oak1" and twin == 1
        yield Series("sparkfleet_link_mtu_bytes", place, steady(1500 if slow else 9000))
        hca = here | {"hca": str(port["hca"])}
        moved = (lambda now: 3 + 2 * (now >= BROKEN[0])) if down else steady(3)
        yield Series("sparkfleet_gid_index", hca, moved)
        yield Series("sparkfleet_gid_index_at_start", hca, steady(3))
        device = here | {"device": str(port["hca"]), "port": "1"}
        sent = counting(4e9, number + twin)
        yield Series("node_infiniband_port_data_transmitted_bytes_total", device, sent)
    yield Series("node_memory_MemAvailable_bytes", here, wave(14e9, 2e9, number))
    for kind, share in (("stalled", 0.002), ("waiting", 0.006)):
        name = f"node_pressure_memory_{kind}_seconds_total"
        yield Series(name, here, counting(share, number))
    for mountpoint, left in (("/", 5e11), ("/srv/models", 1.9e12)):
        disk = here | {"device": "/dev/nvme0n1p2", "fstype": "ext4", "mountpoint": mountpoint}
        yield Series("node_filesystem_avail_bytes", disk, wave(left - 2e10 * number, 1e9))


def head(cell: str, host: str, number: int) -> Iterator[Series]:
    """What the head of a cell tells besides, of the cell and of its engine."""
    here = {"job": "sparkfleet", "cell": cell, "instance": host}
    faulty = cell == "pair"
    yield Series("sparkfleet_canary_good", here, during_fault(0, 1) if faulty else steady(1))
    yield Series("sparkfleet_canary_seconds", here, wave(0.4 + number / 10, 0.2))
    yield Series("sparkfleet_canary_limit_seconds", here, steady(5))
    yield Series("sparkfleet_pool_tokens_asked", here, steady(7_000_000))
    yield Series("sparkfleet_pool_tokens_granted", here, steady(6_500_000 if faulty else 6_999_808))
    tries = (lambda now: 1.0 * (now >= BROKEN[0] + 300)) if faulty else steady(0)
    yield Series("sparkfleet_recovery_attempts", here, tries)
    yield Series("sparkfleet_recovery_open", here, steady(0))
    if faulty:
        alert = {"alertname": "SparkfleetTwinMtu", "alertstate": "firing", "severity": "warning"}
        yield Series("ALERTS", here | alert | {"instance": "oak1"}, steady(1))
    engine = here | {"model_name": "model"}
    for name, course in {
        "generation_tokens_total": counting(90 - 30 * number, number),
        "prompt_tokens_total": counting(1400 - 500 * number, number),
        "num_running_reqs": lambda now: float(round(wave(8, 5, number)(now))),
        "num_queue_reqs": lambda now: float(max(0, round(wave(-1, 4, number)(now)))),
        "token_usage": wave(0.5, 0.3, number),
        "cache_hit_rate": wave(0.7, 0.1, number),
        "spec_accept_length": wave(2.6, 0.3, number),
    }.items():
        yield Series(f"sglang:{name}", engine, course)
    for bound, share in (("0.1", 0.1), ("1.0", 0.7), ("10.0", 0.98), ("60.0", 1.0), ("+Inf", 1.0)):
        name = "sglang:time_to_first_token_seconds_bucket"
        yield Series(name, engine | {"le": bound}, counting(2 * share ** (1 + number), number))


def series() -> Iterator[Series]:
    number = 0
    for cell, (hosts, cabling) in CELLS.items():
        plan = fabric_plan(hosts, cabling)
        yield from head(cell, hosts[0], list(CELLS).index(cell))
        for host in hosts:
            yield from node(cell, host, number, plan["hosts"][host]["ports"])
            number += 1


def text() -> str:
    """All of it in the text format of OpenMetrics; without a value there is no sample."""
    lines = []
    for name, labels, at in series():
        told = ",".join(f'{label}="{value}"' for label, value in labels.items())
        values = [(now, at(now)) for now in range(FROM - BEFORE, TO + 1, STEP)]
        lines += [
            f"{name}{{{told}}} {value:.10g} {now}\n"
            for now, value in values
            if not math.isnan(value)
        ]
    return "".join([*sorted(lines, key=lambda line: line.partition("{")[0]), "# EOF\n"])
