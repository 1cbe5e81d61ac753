# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What a node tells node_exporter about its links, its rank and its cell, as text files.

Facts in, samples out: nothing here reads more than what it is given. Cell and host are no labels;
they come from who scrapes. The figures of memory and disk are node_exporter's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

# Every metric there is: its type and what it says.
FAMILIES: dict[str, tuple[str, str]] = {
    "sparkfleet_last_run_timestamp_seconds": ("gauge", "When these metrics were written."),
    "sparkfleet_question_failed": ("gauge", "Whether a question had no answer in time."),
    "sparkfleet_gid_index": ("gauge", "Slot of the RoCE v2 GID that is right now, by HCA."),
    "sparkfleet_gid_valid": ("gauge", "Whether exactly one GID of the HCA is the link's."),
    "sparkfleet_gid_index_at_start": ("gauge", "Slot of that GID when the rank was started."),
    "sparkfleet_gid_drift": ("gauge", "Whether the slot is another one than at the start."),
    "sparkfleet_link_up": ("gauge", "Whether the port of a planned link is active."),
    "sparkfleet_link_rate_bits_per_second": ("gauge", "Signalling rate of the port."),
    "sparkfleet_link_rate_planned_bits_per_second": ("gauge", "What it should be at least."),
    "sparkfleet_link_mtu_bytes": ("gauge", "MTU of the network interface of the port."),
    "sparkfleet_link_mtu_planned_bytes": ("gauge", "What it should be."),
    "sparkfleet_cable_as_planned": ("gauge", "Whether the planned peer answers on the port."),
    "sparkfleet_shards": ("gauge", "Engram tables this rank needs."),
    "sparkfleet_shards_good": ("gauge", "Those of them with the right header and size."),
    "sparkfleet_rank_info": ("gauge", "1; the rank that this node has."),
    "sparkfleet_rank_wanted": ("gauge", "Whether it should run: nobody stopped it."),
    "sparkfleet_rank_up": ("gauge", "Whether its unit is active."),
    "sparkfleet_rank_started_timestamp_seconds": ("gauge", "When it was started last."),
    "sparkfleet_rank_starts_total": ("counter", "Starts of the rank that were seen."),
    "sparkfleet_rank_served": ("gauge", "Whether the cell has answered since that start."),
    "sparkfleet_pool_tokens_asked": ("gauge", "Tokens the KV pool was to hold."),
    "sparkfleet_pool_tokens_granted": ("gauge", "Tokens it holds."),
    "sparkfleet_canary_good": ("gauge", "Whether a completion of one token came in time."),
    "sparkfleet_canary_seconds": ("gauge", "How long the last one took that came."),
    "sparkfleet_canary_limit_seconds": ("gauge", "From when on it counts as slow."),
    "sparkfleet_cell_state": ("gauge", "1; what the watch of the cell calls it."),
    "sparkfleet_recovery_attempts": ("gauge", "Restarts on record for the recovery."),
    "sparkfleet_recovery_open": ("gauge", "Whether their bound is reached: no more for now."),
}


class Sample(NamedTuple):
    """A value of a metric of `FAMILIES`; the labels are in the order they are written."""

    name: str
    value: float
    labels: Mapping[str, str] = {}


def render(samples: Iterable[Sample]) -> str:
    r"""The text format of Prometheus, families together.

    >>> print(render([Sample("sparkfleet_shards", 2)]), end="")
    # HELP sparkfleet_shards Engram tables this rank needs.
    # TYPE sparkfleet_shards gauge
    sparkfleet_shards 2
    """
    by: dict[str, list[str]] = {}
    for sample in samples:
        labels = ",".join(f'{name}="{_escaped(text)}"' for name, text in sample.labels.items())
        line = f"{sample.name}{{{labels}}}" if labels else sample.name
        by.setdefault(sample.name, []).append(f"{line} {sample.value:.17g}\n")
    told = []
    for name, (kind, meaning) in FAMILIES.items():
        if name in by:
            told += [f"# HELP {name} {meaning}\n", f"# TYPE {name} {kind}\n", *by.pop(name)]
    if by:
        raise KeyError(f"{', '.join(by)}: no such family")
    return "".join(told)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# --- links ----------------------------------------------------------------------------------------


def link_samples(
    ports: Sequence[Mapping[str, Any]],
    devices: Sequence[Mapping[str, Any]],
    *,
    mtu: int,
    rate_gbps: float,
) -> list[Sample]:
    """What the planned ports of this node are like.

    Args:
        ports: of the plan, each with `hca`, `netdev`, `cage`.
        devices: the ``devices`` of ``roce_gids``.
        mtu: in bytes, as planned.
        rate_gbps: what a port should have at least.
    """
    found = {device["hca"]: device for device in devices}
    samples = []
    for port in ports:
        labels = _port_labels(port)
        device = found.get(port["hca"], {})
        up = device.get("state") == "ACTIVE"
        samples.append(Sample("sparkfleet_link_up", up, labels))
        samples.append(Sample("sparkfleet_link_mtu_planned_bytes", mtu, labels))
        samples.append(
            Sample("sparkfleet_link_rate_planned_bits_per_second", rate_gbps * 1e9, labels)
        )
        if device.get("netdev_mtu") is not None:
            samples.append(Sample("sparkfleet_link_mtu_bytes", device["netdev_mtu"], labels))
        # Without a cable a rate is meaningless.
        if up and device.get("rate_gbps") is not None:
            rate = device["rate_gbps"] * 1e9
            samples.append(Sample("sparkfleet_link_rate_bits_per_second", rate, labels))
        index = device.get("gid_index")
        samples.append(Sample("sparkfleet_gid_valid", index is not None, labels))
        if index is not None:
            samples.append(Sample("sparkfleet_gid_index", index, labels))
    return samples


def cable_samples(
    ports: Sequence[Mapping[str, Any]], neighbours: Sequence[Mapping[str, Any]]
) -> list[Sample]:
    """Whether the planned peer answers on each port; through a switch there is no planned peer.

    Each link is a subnet of its own, so an address that answers there is at its other end.

    Args:
        ports: of the plan.
        neighbours: of ``ip -json neigh``, after each peer was sent something.
    """
    answering = {
        (one.get("dev"), one.get("dst"))
        for one in neighbours
        if one.get("lladdr") and "FAILED" not in one.get("state", ())
    }
    return [
        Sample(
            "sparkfleet_cable_as_planned",
            (port["netdev"], port["peer"]["address"]) in answering,
            {
                **_port_labels(port),
                "peer": f"{port['peer']['host']} cage {port['peer']['cage']}",
            },
        )
        for port in ports
        if port.get("peer")
    ]


def drift_samples(
    ports: Sequence[Mapping[str, Any]],
    devices: Sequence[Mapping[str, Any]],
    started: float,
    memory: MutableMapping[str, Any],
) -> list[Sample]:
    """The GIDs a running rank was started with against those of now.

    The engine resolves GIDs when it starts, within the half minute in which `memory` notes them.

    Args:
        ports: of the plan.
        devices: the ``devices`` of ``roce_gids``.
        started: when the rank was, in seconds of the epoch.
        memory: what earlier runs noted; the slots are, once for each start.
    """
    now = {
        device["hca"]: device["gid_index"]
        for device in devices
        if device.get("gid_index") is not None
    }
    noted = memory.get("gids")
    if not noted or noted["started"] != started:
        noted = memory["gids"] = {"started": started, "slots": now}
    samples = []
    for port in ports:
        first, labels = noted["slots"].get(port["hca"]), _port_labels(port)
        if first is not None:
            samples.append(Sample("sparkfleet_gid_index_at_start", first, labels))
            # None now: its address is gone, which is drift as well.
            drift = now.get(port["hca"]) != first
            samples.append(Sample("sparkfleet_gid_drift", drift, labels))
    return samples


def _port_labels(port: Mapping[str, Any]) -> dict[str, str]:
    return {"hca": port["hca"], "netdev": port["netdev"], "cage": str(port["cage"])}


# --- the rank and the cell ------------------------------------------------------------------------


def rank_samples(
    settings: Mapping[str, Any],
    unit: Mapping[str, bool],
    told: Mapping[str, Any],
    memory: MutableMapping[str, Any],
) -> list[Sample]:
    """Whether the rank should run and does.

    Args:
        settings: those installed for the rank.
        unit: `active`, `enabled` and `failed`, as systemd says.
        told: what the starter of the rank wrote down, empty where it never ran since the boot.
        memory: what earlier runs noted; starts are counted there.
    """
    started = told.get("started")
    if started is not None and started != memory.get("started"):
        memory["started"] = started
        memory["starts"] = memory.get("starts", 0) + 1
    # Workers end by themselves when their head is stopped; stopping them then forgets the failure.
    wanted = unit["active"] or (unit["failed"] if told.get("stage") else unit["enabled"])
    labels = {"rank": str(settings["rank"]), "head": str(int(settings["head"]))}
    samples = [
        Sample("sparkfleet_rank_info", 1, labels),
        Sample("sparkfleet_rank_wanted", wanted),
        Sample("sparkfleet_rank_up", unit["active"]),
        Sample("sparkfleet_rank_starts_total", memory.get("starts", 0)),
    ]
    if started is not None:
        samples.append(Sample("sparkfleet_rank_started_timestamp_seconds", started))
    return samples


def shard_samples(settings: Mapping[str, Any], problems: Sequence[str]) -> list[Sample]:
    """How many Engram tables are as the rank needs them.

    Args:
        settings: those installed for the rank.
        problems: the codes that ``_rank.check`` found.
    """
    wanted = len(settings["engram"]["tables"]) if settings.get("engram") else 0
    # Without the directory there is one problem for all of them.
    bad = wanted if "mount-missing" in problems else len(problems)
    return [
        Sample("sparkfleet_shards", wanted),
        Sample("sparkfleet_shards_good", max(0, wanted - bad)),
    ]


def pool_samples(pool: Mapping[str, Any]) -> list[Sample]:
    """The KV pool, as far as the engine has told of it."""
    return [
        Sample(f"sparkfleet_pool_tokens_{name}", pool[name])
        for name in ("asked", "granted")
        if pool.get(name) is not None
    ]


def canary_samples(
    seconds: float | None, limit: float, started: float | None, memory: MutableMapping[str, Any]
) -> list[Sample]:
    """What came of a completion of one token.

    Args:
        seconds: how long it took, None where none came in time.
        limit: from when on it counts as slow, in seconds.
        started: when the rank was, in seconds of the epoch.
        memory: what earlier runs noted; that the cell served is, once for each start.
    """
    if seconds is not None:
        memory["served"] = started
    samples = [
        Sample("sparkfleet_canary_good", seconds is not None),
        Sample("sparkfleet_canary_limit_seconds", limit),
        Sample("sparkfleet_rank_served", memory.get("served", 0) == started),
    ]
    if seconds is not None:
        samples.append(Sample("sparkfleet_canary_seconds", seconds))
    return samples


def recovery_samples(
    record: Mapping[str, Any], state: Mapping[str, Any], now: float
) -> list[Sample]:
    """What the recovery of the cell has on record; nothing where there is none.

    Args:
        record: its restarts, `attempts`, and `open_until` when no more are made.
        state: what it calls the cell, `state`.
        now: seconds of the epoch.
    """
    samples = []
    if isinstance(record.get("attempts"), list):
        samples.append(Sample("sparkfleet_recovery_attempts", len(record["attempts"])))
        until = record.get("open_until")
        held = isinstance(until, (int, float)) and now < until
        samples.append(Sample("sparkfleet_recovery_open", held))
    if isinstance(state.get("state"), str):
        samples.append(Sample("sparkfleet_cell_state", 1, {"state": state["state"]}))
    return samples


def engine_page(text: str) -> str:
    r"""SGLang's own metrics, and nothing else of the page it serves them on.

    >>> engine_page("# TYPE python_gc gauge\\npython_gc 1\nsglang:num_running_reqs 2\n")
    'sglang:num_running_reqs 2\n'
    """
    return "".join(
        f"{line}\n"
        for line in text.splitlines()
        if line.startswith(("sglang", "# HELP sglang", "# TYPE sglang"))
    )
