# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What is wrong with a cell, and whether it may be started again.

A tensor-parallel group is one thing with several bodies: it is judged by a real completion and by
the evidence of all of its ranks, and it is started again as a whole or not at all. How often is
bounded by a record that survives reboots; a cause that persists is named and costs no attempt.

The same rules serve the playbook, on the controller, and the watch, on the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

FORMAT = 1
WATCH = "the watch"  # who writes the attempts that nobody typed
AT_WORK = ("active", "activating", "reloading")
_JUST_STARTED = 120.0  # seconds in which whoever starts a cell gets from its workers to its head
_RECOVER = "ansible-playbook sparkfleet.cluster.recover"
_LOGS = "ansible-playbook sparkfleet.cluster.logs"

Rank = Mapping[str, Any]


class Limits(NamedTuple):
    """`attempts` in `window` seconds, then none for `cooldown` seconds.

    A boot may take `ready_timeout` seconds. A cell whose engine has come up counts as wedged after
    `canary_failures` unanswered completions in a row. Without `start_at_boot` a cell that was not
    started since its head booted stays as it is.
    """

    attempts: int = 3
    window: float = 3600
    cooldown: float = 3600
    ready_timeout: float = 3600
    canary_failures: int = 3
    start_at_boot: bool = True


class Verdict(NamedTuple):
    """What is to be known of a cell.

    `state` is serving, waiting, dead, wedged, blocked or stopped, `action` none, wait, restart or
    refuse. `found` holds a few words by host.
    """

    state: str
    action: str
    reasons: list[str]
    remedy: str
    found: dict[str, str]


SERVING = Verdict("serving", "none", [], "", {})


def judge(
    ranks: Mapping[str, Rank],
    expected: Sequence[str],
    *,
    record: Mapping[str, Any] | None = None,
    now: float,
    limits: Limits,
    who: str = WATCH,
    failures: int = 0,
    before: str = "",
    asked: bool = False,
    held: str = "",
) -> Verdict:
    """Judge a cell.

    Args:
        ranks: by host, what ``evidence`` returned; a host that did not answer is missing.
        expected: all hosts of the cell, the head first.
        record: of earlier restarts, as ``begin`` makes it.
        now: seconds of the epoch.
        limits: what is allowed.
        who: whose verdict it is; a restart of somebody else that is under way is waited for.
        failures: unanswered completions in a row, this one included.
        before: the state of the last verdict, which tells a cell that was stopped before a reboot.
        asked: whether a person wants it up, even where it was stopped.
        held: who works on the cell with a playbook, and is not to be disturbed.
    """
    found = {host: describe(ranks.get(host)) for host in expected}

    def say(state: str, action: str, reasons: Sequence[str], remedy: str = "") -> Verdict:
        return Verdict(state, action, list(reasons), remedy, found)

    missing = [host for host in expected if host not in ranks]
    away = [f"{host} cannot be reached" for host in missing]
    head = ranks.get(expected[0])
    if head is None:
        return say("waiting", "wait", away, "power it on, or look at its network")
    if head["canary"] and head["canary"]["answered"]:
        return SERVING._replace(found=found)
    bare = [host for host, one in ranks.items() if not one["installed"]]
    if bare:
        reasons = [f"{host} has no rank installed" for host in bare]
        remedy = "ansible-playbook sparkfleet.cluster.serve"
        return say("blocked", "refuse", [*reasons, *away], remedy)
    foreign, interrupted = _pending(record, who, now, limits)
    if foreign:
        return say("waiting", "wait", [foreign, *away])
    if not asked and not interrupted and _stopped(ranks, head, before, limits):
        reasons = ["it was stopped, or not to start with its nodes"]
        return say("stopped", "none", reasons, f"{_RECOVER} -e recovery_start=true")
    boots = _boots(ranks, head, now, limits)
    if boots:
        return say("waiting", "wait", [boots, *away])
    wedged = all(one["unit"]["state"] == "active" for one in ranks.values()) and not missing
    if wedged and head["ready"] and not _fatals(ranks) and failures < limits.canary_failures:
        reasons = [*_silence(head), f"so far {failures} of {limits.canary_failures} times in a row"]
        return say("waiting", "wait", reasons)
    state = "wedged" if wedged else "dead"
    reasons = [*_reasons(ranks, interrupted), *_silence(head)]
    causes = [(cause, host) for host, one in ranks.items() for cause in one["causes"]]
    told = [f"{host}: {cause['message']}" for cause, host in causes]
    # A cable to a node without power has no link.
    if any(cause.get("peer") not in missing for cause, _host in causes):
        return say("blocked", "refuse", [*told, *away, *reasons], f"mend that, then {_RECOVER}")
    if missing:
        reasons = [*away, *told, *reasons]
        return say("waiting", "wait", reasons, "power it on, or look at its network and cables")
    closed = bound(record, now, limits)
    if closed:
        return say("blocked", "refuse", [closed, *reasons], _next_by_hand())
    if held:
        return say(state, "wait", [held, *reasons])
    return say(state, "restart", reasons, _RECOVER)


def describe(one: Rank | None) -> str:
    """A rank in a few words, for a table."""
    if one is None:
        return "cannot be reached"
    if not one["installed"]:
        return "no rank installed"
    words = [str(one["unit"]["state"])]
    if one["unit"]["state"] == "failed" and one["unit"]["exit_status"]:
        words.append(f"with status {one['unit']['exit_status']}")
    if one["doing"] and one["unit"]["state"] in (*AT_WORK, "failed"):
        words.append(f"({one['doing']})")
    told = [" ".join(words)]
    told += [cause["code"] for cause in one["causes"]]
    told += [fatal["name"] for fatal in one["fatals"]]
    told += ["its engine does not answer"] if one["silent"] else []
    told += one["notes"]
    if one["canary"]:
        told.append(one["canary"]["detail"])
    return "; ".join(told)


def _stopped(ranks: Mapping[str, Rank], head: Rank, before: str, limits: Limits) -> bool:
    """Whether it is down because somebody wanted it.

    A unit whose engine ends by itself fails. One that is inactive was stopped, if it was started at
    all since its node booted; and the head is always stopped first.
    """
    if head["unit"]["state"] != "inactive":
        return False
    if head["stage"]:
        return True
    idle = not any(one["unit"]["state"] in (*AT_WORK, "failed") for one in ranks.values())
    return idle and (before == "stopped" or not limits.start_at_boot)


def _boots(ranks: Mapping[str, Rank], head: Rank, now: float, limits: Limits) -> str:
    """What a cell is doing that cannot be expected to answer yet, empty if it should answer."""
    states = [one["unit"]["state"] for one in ranks.values()]
    begun = max((one["started"] or 0.0 for one in ranks.values()), default=0.0)
    age = now - begun
    if "failed" in states or head["ready"] or _fatals(ranks):
        return ""
    if any(state not in AT_WORK for state in states) and age > _JUST_STARTED:
        return ""
    if not any(state in AT_WORK for state in states) or age > limits.ready_timeout:
        return ""
    return f"it boots, since {max(0.0, age):.0f} s"


def _fatals(ranks: Mapping[str, Rank]) -> list[str]:
    return [
        f"{host} printed: {fatal['line']} [{fatal['name']}] {fatal['cause']} {fatal['remedy']}"
        for host, one in ranks.items()
        for fatal in one["fatals"][:1]
    ]


def _silence(head: Rank) -> list[str]:
    return [f"no completion: {head['canary']['detail']}"] if head["canary"] else []


def _reasons(ranks: Mapping[str, Rank], interrupted: str) -> Iterator[str]:
    """Why it does not serve; whoever printed a cause comes before who only lost the others."""
    if interrupted:
        yield interrupted
    yield from _fatals(ranks)
    ended = [(one["ended"] or 0.0, host) for host, one in ranks.items()]
    for _when, host in sorted(ended):
        one = ranks[host]
        state = one["unit"]["state"]
        if state == "failed":
            yield f"{host} ended: {'; '.join(one['problems']) or describe(one)}"
        elif state == "inactive":
            yield f"{host} is {'stopped' if one['stage'] else 'not started since it booted'}"
        elif one["silent"]:
            yield f"{host} runs, but its engine does not answer: {one['silent']}"


# --- the bound ------------------------------------------------------------------------------------


_EMPTY: dict[str, Any] = {
    "format": FORMAT,
    "attempts": [],
    "total": 0,
    "open_until": None,
    "pending": None,
}


def begin(
    record: Mapping[str, Any] | None,
    now: float,
    limits: Limits,
    *,
    who: str,
    reasons: Sequence[str],
) -> dict[str, Any]:
    """The record with one more attempt, which is to be on the disk before anything is stopped."""
    attempts = [*_recent(record, now, limits), {"at": now, "who": who, "reasons": list(reasons)}]
    full = len(attempts) >= limits.attempts
    return {
        "format": FORMAT,
        "attempts": attempts,
        "total": int((record or {}).get("total", 0)) + 1,
        "open_until": now + limits.cooldown if full else None,
        "pending": {"at": now, "who": who},
    }


def hold(record: Mapping[str, Any] | None, now: float, *, who: str) -> dict[str, Any]:
    """The record while somebody is at the cell for another reason, which is no attempt.

    An attempt that is under way, or was cut off, is not written over.
    """
    kept = {**_EMPTY, **(record or {})}
    if kept["pending"] and not kept["pending"].get("hold"):
        return kept
    return {**kept, "pending": {"at": now, "who": who, "hold": True}}


def finish(record: Mapping[str, Any], *, who: str = "") -> dict[str, Any]:
    """The record once all ranks were told to start; what somebody else is at stays."""
    pending = record["pending"]
    others = bool(who and pending and pending["who"] != who)
    return {**record, "pending": pending if others else None}


def forget(record: Mapping[str, Any] | None, now: float, *, who: str) -> dict[str, Any]:
    """The record as a person leaves it who takes the next attempts on themselves.

    It is held for them, or the watch would be first.
    """
    return hold({**_EMPTY, "total": int((record or {}).get("total", 0))}, now, who=who)


def bound(record: Mapping[str, Any] | None, now: float, limits: Limits) -> str:
    """Why there is no further attempt now, empty if there is one."""
    count = len(_recent(record, now, limits))
    until = (record or {}).get("open_until")
    if until is not None and now < until:
        left = (until - now) / 60
        return (
            f"started again {count} times within {limits.window:g} s, which is the bound; not "
            f"again for {left:.0f} min"
        )
    if count >= limits.attempts:
        return f"started again {count} times within {limits.window:g} s, which is the bound"
    return ""


def _recent(
    record: Mapping[str, Any] | None, now: float, limits: Limits
) -> list[Mapping[str, Any]]:
    """The attempts that count. One in the future, by a clock that was set back, does."""
    if not record:
        return []
    until = record["open_until"]
    if until is not None and now >= until:
        return []
    return [one for one in record["attempts"] if now - one["at"] < limits.window]


def _pending(
    record: Mapping[str, Any] | None, who: str, now: float, limits: Limits
) -> tuple[str, str]:
    """A restart that somebody else is at, and one that was cut off."""
    pending = (record or {}).get("pending")
    if not pending:
        return "", ""
    age = now - pending["at"]
    if pending["who"] != who and 0 <= age < limits.ready_timeout:
        return f"{pending['who']} has been at it for {age:.0f} s", ""
    if pending.get("hold"):
        return "", ""
    return "", f"the restart that {pending['who']} began {age:.0f} s ago was cut off"


def _next_by_hand() -> str:
    return f"{_LOGS}, then {_RECOVER} -e recovery_forget=true"


# --- for people -----------------------------------------------------------------------------------


def lines(cell: str, verdict: Verdict, expected: Sequence[str]) -> list[str]:
    """A verdict on one screen: a table of ranks, why, and what to do."""
    width = max(len("host"), *(len(host) for host in expected))
    told = [f"Cell {cell}: {verdict.state}", "", f"rank  {'host'.ljust(width)}  found"]
    told += [
        f"{number:<4}  {host.ljust(width)}  {verdict.found[host]}"
        for number, host in enumerate(expected)
    ]
    told += ["", *(f"- {reason}" for reason in verdict.reasons)]
    words = {
        "none": "Nothing to do.",
        "wait": "To be waited for.",
        "restart": "The whole cell is to be started again, in order.",
        "refuse": "Not started again.",
    }
    remedy = verdict.remedy if verdict.action in ("refuse", "wait", "none") else ""
    told.append(words[verdict.action] + (f" Next: {remedy}." if remedy else ""))
    return told
