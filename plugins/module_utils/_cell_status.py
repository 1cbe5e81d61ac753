# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""How a cell is, and what a run has shown of it, on one screen.

Everything comes from results of other modules. What is not known is written as `-` or left out, and
what was stood in for, skipped or not measured has a line of its own.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import fold_hosts

WIDTH = 110
HEADINGS = ("rank", "host", "unit", "container", "image", "GIDs", "links", "doing")
_LABEL = 9

Result = Mapping[str, Any]


def status_lines(
    cell: str,
    hosts: Sequence[Mapping[str, Any]],
    *,
    api: Result | None = None,
    fabric: Result | None = None,
    verify: Result | None = None,
) -> list[str]:
    """One screen about a cell.

    Args:
        cell: what it is called.
        hosts: in rank order `name`, and the results `rank` (of sglang_rank_info), `boot` (of
            sglang_boot_info) and `gids` (of roce_gid_info), each of which may be missing.
        api: the result of openai_probe with its canary alone.
        fabric: the last report of the links.
        verify: the last report of a verification.
    """
    rows = [row(number, host) for number, host in enumerate(hosts)]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    lines = [f"Cell {cell}", ""]
    for texts in (HEADINGS, *rows):
        cells = (text.ljust(width) for text, width in zip(texts, widths, strict=True))
        lines.append("  ".join(cells).rstrip())
    lines.append("")
    lines += _labelled("pool", _pool(hosts))
    lines += _labelled("links", _links(fabric))
    lines += _labelled("API", _api(api))
    lines += _labelled("verified", _verified(verify))
    for problem in rank_problems(hosts):
        lines += textwrap.wrap(problem, WIDTH, initial_indent="- ", subsequent_indent="  ")
    return lines


def summary_lines(
    cell: str, *, serving: Result | None = None, head: str = "", **results: Result | None
) -> list[str]:
    """What a run of all stages came to, as lines; arguments as of `summary`."""
    lines = [f"Cell {cell}" + (f": {serving['model']}, {serving['profile']}" if serving else "")]
    for label, texts in summary(serving=serving, head=head, **results).items():
        lines += _labelled(label, texts)
    return lines


def summary(
    *,
    preflight: Result | None = None,
    fabric: Result | None = None,
    tables: Mapping[str, Result] | None = None,
    serving: Result | None = None,
    entry: Result | None = None,
    verify: Result | None = None,
    head: str = "",
) -> dict[str, list[str]]:
    """What a run of all stages came to; stages that were not part of it are named as such.

    Args:
        preflight: the result of preflight_report.
        fabric: the result of the link_verdict filter.
        tables: the results of engram_pack, by host.
        serving: `profile` and `model` of what is served.
        entry: `url`, `key_file`, `keys` and `open` of the entry.
        verify: the results of openai_probe, with `checks`, and `stand_in` for an engine of a lab.
        head: the host with the key.

    Returns:
        Sentences by what they are: endpoint, key, proven, measured, open, stand-in, left out.
    """
    proven: list[str] = []
    measured: list[str] = []
    not_shown: list[str] = []
    if preflight:
        counts = preflight["summary"]
        proven.append(f"{len(counts['ok'])} of {counts['checks']} checks of the nodes passed")
        for status, word in (("warn", "warned"), ("unknown", "unknown"), ("skip", "skipped")):
            if counts[status]:
                not_shown.append(f"checks of the nodes, {word}: {', '.join(counts[status])}")
    if fabric:
        _tell_links(fabric, proven, measured, not_shown)
    if tables:
        shards = [shard for result in tables.values() for shard in result.get("shards", ())]
        whole = sum(shard["state"] == "complete" for shard in shards)
        if shards:
            proven.append(f"{whole} of {len(shards)} Engram files complete")
    if verify:
        _tell_checks(verify, proven, measured, not_shown)
    stages = {
        "preflight": preflight,
        "roce_fabric": fabric,
        "sglang": serving,
        "entry": entry,
        "verify": verify,
    }
    left_out = [name for name, result in stages.items() if not result]
    stand_in = "the engine, which computes no model: its answers and speeds mean nothing"
    told = {
        "endpoint": [entry["url"]] if entry else [],
        "key": [_key(entry, head)] if entry else [],
        "proven": proven,
        "measured": measured,
        "open": not_shown,
        "stand-in": [stand_in] if verify and verify.get("stand_in") else [],
        "left out": [", ".join(left_out)] if left_out else [],
    }
    return {label: texts for label, texts in told.items() if texts}


def row(number: int, host: Mapping[str, Any]) -> tuple[str, ...]:
    """What is known of a rank, under `HEADINGS`; `-` where nothing is."""
    rank, boot = host.get("rank") or {}, host.get("boot") or {}
    unit, container, image = (rank.get(part) or {} for part in ("unit", "container", "image"))
    state = unit.get("state", "-") if unit.get("known") else "absent" if unit else None
    state = state or boot.get("state") or "-"
    runs = "-" if not container else "running" if container.get("running") else "none"
    content = str(image.get("content") or "").rpartition(":")[2]
    gids, links = _ports(host.get("gids") or {})
    stage = ((boot.get("log") or {}).get("stage") or {}).get("name") or boot.get("status") or "-"
    return (str(number), host["name"], state, runs, content[:12] or "-", gids, links, stage)


def _ports(gids: Result) -> tuple[str, str]:
    """The chosen GID slots, and how many ports are up at which rate."""
    ports = [port for port in gids.get("devices", ()) if port.get("cage") is not None]
    if not ports:
        return "-", "-"
    active = [port for port in ports if port["state"] == "ACTIVE"]
    slots = " ".join(
        "-" if port["gid_index"] is None else str(port["gid_index"]) for port in active
    )
    rates = {f"{port['rate_gbps']:g}" for port in active if port["rate_gbps"] is not None}
    return slots or "-", f"{len(active)} x {'/'.join(sorted(rates)) or '?'} Gb/s"


def _pool(hosts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Tokens asked for and granted, as every rank that tells says it."""
    told: dict[tuple[int | None, int | None], list[str]] = {}
    for host in hosts:
        pool = (((host.get("boot") or {}).get("log") or {}).get("pool")) or {}
        if pool.get("granted") is not None:
            told.setdefault((pool.get("asked"), pool["granted"]), []).append(host["name"])
    return [
        f"{granted:,} tokens granted"
        + (f" of {asked:,} asked for" if asked else "")
        + (f" ({fold_hosts(names)})" if len(told) > 1 else "")
        for (asked, granted), names in told.items()
    ]


def _links(fabric: Result | None) -> list[str]:
    if not fabric or not fabric.get("verdict"):
        return ["not tried yet; next: ansible-playbook sparkfleet.cluster.fabric"]
    proven: list[str] = []
    measured: list[str] = []
    not_shown: list[str] = []
    _tell_links(fabric["verdict"], proven, measured, not_shown)
    return [*proven, *measured, *not_shown]


def _tell_links(
    verdict: Result, proven: list[str], measured: list[str], not_shown: list[str]
) -> None:
    links = verdict["links"]
    whole = [link for link in links if all(all(twin["ping"].values()) for twin in link["twins"])]
    proven.append(f"{len(whole)} of {len(links)} links carry full frames on every twin, both ways")
    rates = [link["gbps"] for link in links if link["gbps"] is not None]
    if rates:
        measured.append(f"RDMA over {len(rates)} links, the slowest {min(rates):g} Gb/s")
    told = {
        problem["message"] for problem in verdict["problems"] if problem["severity"] == "unknown"
    }
    not_shown.extend(f"RDMA: {message}" for message in sorted(told))
    not_shown.extend(verdict.get("failures", ()))


def _tell_checks(
    verify: Result, proven: list[str], measured: list[str], not_shown: list[str]
) -> None:
    by: dict[str, list[str]] = {}
    for check in verify["checks"]:
        by.setdefault(check["verdict"], []).append(check["name"])
        figures = check.get("figures") or {}
        if figures.get("decode_tokens_per_second") is not None and check["name"] == "speed":
            measured.append(f"{figures['decode_tokens_per_second']:.1f} tokens/s decoding")
    if "passed" in by:
        proven.append(f"answers: {', '.join(by['passed'])}")
    for verdict, word in (
        ("failed", "failed"),
        ("not_applicable", "not applicable to this engine"),
        ("skipped", "skipped"),
    ):
        if verdict in by:
            not_shown.append(f"answers, {word}: {', '.join(by[verdict])}")


def _api(api: Result | None) -> list[str]:
    if not api:
        return []
    if "url" not in api:
        return [f"not asked: {api.get('msg', 'nobody could be')}"]
    first = api["checks"][0] if api.get("checks") else {"verdict": "failed", "detail": "no answer"}
    word = "answers" if first["verdict"] == "passed" else "DOES NOT ANSWER"
    return [f"{api['url']} {word}: {first['detail']}"]


def _verified(verify: Result | None) -> list[str]:
    if not verify:
        return ["never; next: ansible-playbook sparkfleet.cluster.verify"]
    verdicts = [check["verdict"] for check in verify["checks"]]
    counts = [
        f"{verdicts.count(verdict)} {word}"
        for verdict, word in (
            ("passed", "passed"),
            ("failed", "failed"),
            ("not_applicable", "not applicable"),
            ("skipped", "skipped"),
        )
        if verdict in verdicts
    ]
    stand_in = ", against a stand-in for the engine" if verify.get("stand_in") else ""
    return [f"{', '.join(counts)}{stand_in} ({verify['written']})"]


def _key(entry: Result, head: str) -> str:
    if entry.get("open"):
        return "none: the entry is open to everybody who reaches it"
    names = ", ".join(entry.get("key_names") or ())
    return f"{entry['key_file']} on {head}" + (f" ({names})" if names else "")


def rank_problems(hosts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What ranks, their boots and their GIDs complain about, each with the host before it."""
    for host in hosts:
        rank, gids = host.get("rank") or {}, host.get("gids") or {}
        told = [problem["message"] for problem in rank.get("problems", ())]
        told += [problem["message"] for problem in gids.get("problems", ())]
        told += (host.get("boot") or {}).get("problems", ())
        yield from (f"{host['name']}: {message}" for message in dict.fromkeys(told))


def _labelled(label: str, texts: Sequence[str]) -> Iterator[str]:
    """Texts under each other, with the label before the first."""
    for number, text in enumerate(texts):
        head = (label if number == 0 else "").ljust(_LABEL)
        yield from textwrap.wrap(
            text,
            WIDTH,
            initial_indent=f"{head} ",
            subsequent_indent=" " * (_LABEL + 1),
            break_on_hyphens=False,
        )
