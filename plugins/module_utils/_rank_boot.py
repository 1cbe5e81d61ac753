# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""A cell that boots, seen from all of its ranks: ready, broken, or still at it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._engine_boot import STAGES
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_verdict import fold_sentences

_GRACE = 20.0  # seconds that required lines may be late once the head has answered
_LINES = 12


class Verdict(NamedTuple):
    """`state` is booting, ready or failed; `problems` holds sentences by host, the first first."""

    state: str
    problems: dict[str, list[str]]
    notes: list[str]


def judge(
    ranks: Mapping[str, Mapping[str, Any]],
    expected: Sequence[str],
    *,
    elapsed: float,
    timeout: float,
    pool_least: int | None = None,
) -> Verdict:
    """Judge what is known about every rank.

    Args:
        ranks: by host what ``sglang_boot_info`` returned last, with `time` (s) when that was.
        expected: the hosts that must be among them before anything is called ready.
        elapsed: seconds since the wait began.
        timeout: seconds after which a cell that is not ready counts as broken.
        pool_least: how many tokens the KV pool must hold.
    """
    broken = {host: _broken(host, one, pool_least) for host, one in ranks.items()}
    broken = {host: lines for host, lines in broken.items() if lines}
    if broken:
        # Who printed a cause comes before who only lost the others, whatever the clocks say.
        order = sorted(
            broken,
            key=lambda host: (not _severe(ranks[host]), ranks[host]["ended"] or float("inf")),
        )
        after = {host: _short(broken[host], ranks[host], order[0]) for host in order[1:]}
        return Verdict("failed", {order[0]: broken[order[0]], **after}, [])
    notes = fold_sentences(note for host, one in ranks.items() for note in _notes(host, one))
    absent = [host for host in expected if host not in ranks]
    heads = [one for one in ranks.values() if one["head"]]
    answered = [one["answered"] for one in heads if one["answered"]]
    if answered and not absent and all(one["state"] == "active" for one in ranks.values()):
        late = {host: _unproven(host, one) for host, one in ranks.items()}
        late = {host: lines for host, lines in late.items() if lines}
        if not late:
            return Verdict("ready", {}, notes)
        grace = max(one["time"] for one in ranks.values()) - min(answered)
        if grace > _GRACE or elapsed > timeout:
            return Verdict("failed", late, notes)
    if elapsed > timeout:
        return Verdict("failed", _slow(ranks, expected, timeout), notes)
    return Verdict("booting", {}, notes)


def _broken(host: str, one: Mapping[str, Any], pool_least: int | None) -> list[str]:
    """What is wrong with a rank for good."""
    who = f"rank {one['rank']} ({host})"
    lines = []
    if one["state"] not in ("active", "activating", "reloading"):
        stage = one["log"]["stage"]["name"]
        during = f" (stage: {stage})" if stage and stage != "ready" else ""
        why = "; ".join(one["problems"]) or one["status"] or f"its unit is {one['state']}"
        ended = f"ended{during}" if one["ended"] else "does not run"
        lines.append(f"{who} {ended}: {why}")
    severe = _severe(one)
    if severe or lines:
        # A weak signature is worth showing only beside something else.
        shown = severe or [fatal for fatal in one["log"]["fatals"] if fatal["weak"]]
        firsts: dict[str, Mapping[str, Any]] = {}
        for fatal in shown:
            firsts.setdefault(fatal["name"], fatal)
        lines += [
            f"{who} printed in line {fatal['number']}: {fatal['line']} "
            f"[{fatal['name']}] Cause: {fatal['cause']} Remedy: {fatal['remedy']}"
            for fatal in list({fatal["name"]: fatal for fatal in reversed(shown)}.values())[-2:][
                ::-1
            ]
        ]
        if shown:
            lines += [f"    {line}" for line in shown[0]["context"]]
        elif lines:
            lines += [f"    {line}" for line in one["tail"][-_LINES:]]
    granted = one["log"]["pool"]["granted"]
    if one["head"] and pool_least and granted is not None and granted < pool_least:
        lines.append(
            f"{who} has a KV pool of {granted} tokens, expected {pool_least} or more, which one "
            "prompt of the whole context takes; next: lower context_length, or free memory"
        )
    if one["answer_problem"]:
        lines.append(f"{who} does not answer: {one['answer_problem']}")
    if one["limit_problem"]:
        lines.append(f"{who}: {one['limit_problem']}")
    return lines


def _severe(one: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [fatal for fatal in one["log"]["fatals"] if not fatal["weak"]]


def _short(lines: list[str], one: Mapping[str, Any], first: str) -> list[str]:
    """Of a rank that only followed another, one line is enough."""
    return lines if _severe(one) or not one["ended"] else [f"{lines[0]}; {first} was first"]


def _unproven(host: str, one: Mapping[str, Any]) -> list[str]:
    missing = [
        proof
        for proof in one["log"]["proofs"]
        if proof["required"] and proof["status"] == "missing"
    ]
    return [
        f"rank {one['rank']} ({host}) answers, but its log does not show: {proof['name']} "
        f"({proof['count']} of {proof['wanted']} lines); next: look for it in {one['log_path']}, "
        "and whether the image and the profile belong together"
        for proof in missing
    ]


def _notes(host: str, one: Mapping[str, Any]) -> list[str]:
    notes = []
    pool = one["log"]["pool"]
    if one["head"] and pool["clamped"]:
        notes.append(
            f"{host}: the KV pool has {pool['granted']} tokens of the {pool['asked']} asked for; "
            "the engine took silently what the memory allowed"
        )
    unknown = [proof["name"] for proof in one["log"]["proofs"] if proof["status"] == "unknown"]
    if unknown:
        notes.append(f"{host}: lines were lost, so it is unknown whether it printed {unknown}")
    if one["limit_note"]:
        notes.append(f"{host}: {one['limit_note']}")
    return notes


def _slow(
    ranks: Mapping[str, Mapping[str, Any]], expected: Sequence[str], timeout: float
) -> dict[str, list[str]]:
    """Every rank, the one that is furthest behind first; the others may only wait for it."""
    found: dict[str, list[str]] = {}
    for host in sorted(expected, key=lambda host: _place(ranks.get(host))):
        one = ranks.get(host)
        if one is None:
            found[host] = [f"{host} said nothing within {timeout:g} s"]
            continue
        lack = f", with {one['unjoined']}" if _waits_for_others(one) and one["unjoined"] else ""
        line = (
            f"rank {one['rank']} ({host}) is not ready after {timeout:g} s; it got as far as: "
            f"{stage_text(one)}{lack}"
        )
        found[host] = [line, *(f"    {text}" for text in one["tail"][-3:])]
    first, *others = found
    found[first] += [found[host][0] for host in others]
    return found


def _waits_for_others(one: Mapping[str, Any]) -> bool:
    return bool(one["log"]["stage"]["name"] == "rendezvous")


def _place(one: Mapping[str, Any] | None) -> tuple[int, bool]:
    """How far a rank got."""
    if one is None:
        return -2, False
    names = [name for name, _pattern in STAGES]
    stage = one["log"]["stage"]["name"]
    reached = names.index(stage) if stage in names else -1
    return reached, not (_waits_for_others(one) and one["unjoined"])


def stage_text(one: Mapping[str, Any]) -> str:
    """Where a rank is, in a few words."""
    stage = one["log"]["stage"]
    if one["state"] == "activating" or not stage["name"]:
        return str(one["status"] or one["state"])
    if stage["name"] == "loading" and stage["shards"]:
        return f"loading {stage['shard']}/{stage['shards']}"
    if stage["name"] == "ready" and one["head"] and not one["answered"]:
        return "asked for a first answer"
    return str(stage["name"])


def progress(cell: str, ranks: Mapping[str, Mapping[str, Any]], elapsed: float, hosts: int) -> str:
    """A line about the boot: time, and where each rank is, equal ones together."""
    stages: dict[str, list[str]] = {}
    for one in sorted(ranks.values(), key=lambda one: one["rank"]):
        stages.setdefault(stage_text(one), []).append(str(one["rank"]))
    told = ", ".join(
        f"{'all ranks' if len(names) == hosts else 'rank ' + '+'.join(names)} {stage}"
        for stage, names in stages.items()
    )
    return f"{cell} {int(elapsed) // 60}:{int(elapsed) % 60:02d} {told}"
