# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cell is judged by the evidence of all its ranks, and started again within a bound."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._recovery import (
    WATCH,
    Limits,
    Verdict,
    begin,
    bound,
    finish,
    forget,
    hold,
    judge,
    lines,
)

HOSTS = ["spark1", "spark2", "spark3"]
NOW = 1_000_000.0
LIMITS = Limits(
    attempts=2, window=600, cooldown=900, ready_timeout=1200, canary_failures=3, start_at_boot=True
)
RANK: dict[str, Any] = {
    "installed": True,
    "unit": {"state": "active", "exit_status": 0},
    "container": True,
    "stage": "running",
    "doing": "ready",
    "ready": False,
    "started": NOW - 5000,
    "ended": None,
    "problems": [],
    "fatals": [],
    "silent": "",
    "causes": [],
    "notes": [],
    "canary": None,
}
SILENT = {"answered": False, "seconds": None, "detail": "no complete answer within 30 s"}
FATAL = {"name": "oom", "line": "CUDA out of memory", "cause": "Too little.", "remedy": "Lower it."}
LINK = {"code": "port-down", "message": "rocep1s0f0: found port 1 DOWN (its cable goes to spark2)"}
LINK["peer"] = "spark2"


def cell(**changes: dict[str, Any]) -> dict[str, Any]:
    """Evidence of all ranks of a cell that is silent; `spark2={...}` changes one of them."""
    ranks = {host: copy.deepcopy(RANK) for host in HOSTS}
    ranks["spark1"].update(canary=SILENT, ready=True)
    for host, change in changes.items():
        ranks[host].update(change)
    return ranks


def unit(state: str, status: int = 0) -> dict[str, Any]:
    return {"unit": {"state": state, "exit_status": status}}


DIED = {**unit("failed", 137), "stage": "ended", "ended": NOW - 20, "problems": ["exit status 137"]}
STOPPED = {**unit("inactive"), "stage": "stopped", "ready": False}
FRESH = {**unit("inactive"), "stage": "", "started": None, "ready": False}


def look(ranks: dict[str, Any], **options: Any) -> Verdict:
    return judge(ranks, HOSTS, **{"now": NOW, "limits": LIMITS, **options})


@pytest.mark.parametrize(
    ("ranks", "options", "state", "action", "told"),
    [
        # A completion is what counts, whatever else is found.
        (cell(spark1={"canary": {**SILENT, "answered": True}}), {}, "serving", "none", ""),
        (
            cell(spark1={"canary": {**SILENT, "answered": True}}, spark2={"causes": [LINK]}),
            {},
            "serving",
            "none",
            "",
        ),
        (cell(spark2=DIED), {}, "dead", "restart", "spark2 ended: exit status 137"),
        (cell(spark1={**DIED, "ready": False}), {}, "dead", "restart", "spark1 ended"),
        # Alive and silent: only after some completions in a row.
        (cell(), {"failures": 2}, "waiting", "wait", "2 of 3 times"),
        (cell(), {"failures": 3}, "wedged", "restart", "no complete answer"),
        (
            cell(spark2={"silent": "no complete answer"}),
            {"failures": 3},
            "wedged",
            "restart",
            "spark2 runs, but its engine does not answer",
        ),
        (cell(spark2={"fatals": [FATAL]}), {}, "wedged", "restart", "Lower it."),
        # A boot takes its time, and no longer.
        (
            cell(spark1={"ready": False, "started": NOW - 60}),
            {"failures": 9},
            "waiting",
            "wait",
            "boots, since 60 s",
        ),
        (cell(spark1={"ready": False}), {"failures": 9}, "wedged", "restart", "no complete"),
        (
            cell(spark1={**FRESH}, spark2={"started": NOW - 20}, spark3=unit("activating")),
            {},
            "waiting",
            "wait",
            "boots",
        ),
        (
            cell(spark1={"ready": False, "started": NOW - 9}, spark3=DIED),
            {},
            "dead",
            "restart",
            "spark3 ended",
        ),
        # Whoever stopped it meant it.
        (cell(spark1=STOPPED), {}, "stopped", "none", "stopped"),
        (cell(spark1=STOPPED, spark2=STOPPED, spark3=STOPPED), {}, "stopped", "none", "stopped"),
        (
            cell(spark1=STOPPED, spark2=STOPPED, spark3=STOPPED),
            {"asked": True},
            "dead",
            "restart",
            "spark1 is stopped",
        ),
        (
            cell(spark1=FRESH, spark2=FRESH, spark3=FRESH),
            {},
            "dead",
            "restart",
            "not started since",
        ),
        (
            cell(spark1=FRESH, spark2=FRESH, spark3=FRESH),
            {"before": "stopped"},
            "stopped",
            "none",
            "",
        ),
        (
            cell(spark1=FRESH, spark2=FRESH, spark3=FRESH),
            {"limits": LIMITS._replace(start_at_boot=False)},
            "stopped",
            "none",
            "not to start with its nodes",
        ),
        (cell(spark2=STOPPED), {}, "dead", "restart", "spark2 is stopped"),
        (cell(spark2=FRESH), {}, "dead", "restart", "spark2 is not started since it booted"),
        # What persists is named, and costs no attempt.
        (cell(spark2={**DIED, "causes": [LINK]}), {}, "blocked", "refuse", "goes to spark2"),
        (
            cell(spark3={"installed": False}),
            {},
            "blocked",
            "refuse",
            "spark3 has no rank installed",
        ),
    ],
)
def test_verdicts(
    ranks: dict[str, Any], options: dict[str, Any], state: str, action: str, told: str
) -> None:
    verdict = look(ranks, **options)
    assert (verdict.state, verdict.action) == (state, action)
    assert told in " / ".join(verdict.reasons)


@pytest.mark.parametrize("gone", HOSTS)
def test_a_rank_that_is_missing_is_waited_for_by_name(gone: str) -> None:
    ranks = cell(spark1=FRESH, spark2=FRESH, spark3=FRESH)
    del ranks[gone]
    verdict = look(ranks)
    assert (verdict.state, verdict.action) == ("waiting", "wait")
    assert f"{gone} cannot be reached" in verdict.reasons


def test_a_link_without_its_node_is_no_cause_of_its_own() -> None:
    """The cable of a node without power has no link; a pulled one hides the node behind it."""
    ranks = cell(spark1={**DIED, "causes": [LINK]})
    del ranks["spark2"]
    verdict = look(ranks)
    assert (verdict.state, verdict.action) == ("waiting", "wait")
    assert verdict.reasons[0] == "spark2 cannot be reached"
    assert "port 1 DOWN" in verdict.reasons[1]


def test_a_link_between_others_is_named_although_a_rank_is_missing() -> None:
    ranks = cell(spark1={**DIED, "causes": [LINK]})
    del ranks["spark3"]
    verdict = look(ranks)
    assert (verdict.state, verdict.action) == ("blocked", "refuse")
    assert "port 1 DOWN" in verdict.reasons[0]
    assert "spark3 cannot be reached" in verdict.reasons


def test_who_printed_a_cause_comes_before_who_lost_the_others() -> None:
    lost = {**DIED, "ended": NOW - 90}
    verdict = look(cell(spark1={**lost, "ready": False}, spark3={**DIED, "fatals": [FATAL]}))
    assert verdict.reasons[0].startswith("spark3 printed: CUDA out of memory [oom]")


def restarted(times: list[float], record: Any = None) -> Any:
    for at in times:
        record = finish(begin(record, at, LIMITS, who=WATCH, reasons=["dead"]))
    return record


def test_the_bound_holds_until_the_cool_down_has_passed() -> None:
    assert look(cell(spark2=DIED), record=restarted([NOW - 50])).action == "restart"
    record = restarted([NOW - 50, NOW - 10])
    verdict = look(cell(spark2=DIED), record=record)
    assert (verdict.state, verdict.action) == ("blocked", "refuse")
    assert "2 times within 600 s, which is the bound; not again for 15 min" in verdict.reasons[0]
    assert "recovery_forget=true" in verdict.remedy
    later = NOW - 10 + LIMITS.cooldown
    assert bound(record, later - 1, LIMITS)
    assert not bound(record, later, LIMITS)
    assert len(restarted([later], record)["attempts"]) == 1
    assert restarted([later], record)["total"] == 3
    assert not bound(forget(record, NOW, who="me"), NOW, LIMITS)


def test_old_attempts_are_forgotten_and_those_of_a_clock_set_back_are_not() -> None:
    record = restarted([NOW - 700])
    assert len(restarted([NOW], record)["attempts"]) == 1
    assert bound(restarted([NOW + 5000, NOW + 5001]), NOW, LIMITS)


def test_a_cause_costs_no_attempt_even_where_the_bound_is_reached() -> None:
    record = restarted([NOW - 50, NOW - 10])
    verdict = look(cell(spark2={**DIED, "causes": [LINK]}), record=record)
    assert LINK["message"] in verdict.reasons[0]


def test_a_restart_of_somebody_else_is_waited_for() -> None:
    record = begin(None, NOW - 30, LIMITS, who="root@desk", reasons=[])
    verdict = look(cell(spark1=STOPPED, spark2=DIED), record=record)
    assert (verdict.state, verdict.action) == ("waiting", "wait")
    assert verdict.reasons == ["root@desk has been at it for 30 s"]


@pytest.mark.parametrize(("who", "age"), [(WATCH, 30), ("root@desk", 5000)])
def test_a_restart_that_was_cut_off_goes_on(who: str, age: float) -> None:
    """A power cut between stopping and starting leaves a cell that nobody wanted stopped."""
    record = begin(None, NOW - age, LIMITS, who=who, reasons=[])
    verdict = look(cell(spark1=FRESH, spark2=STOPPED, spark3=STOPPED), record=record)
    assert verdict.action == "restart"
    assert f"the restart that {who} began {age:.0f} s ago was cut off" in verdict.reasons


def test_a_hold_keeps_others_away_for_a_while_and_is_no_attempt() -> None:
    record = hold(restarted([NOW - 50]), NOW - 30, who="root@desk")
    assert (len(record["attempts"]), record["total"]) == (1, 1)
    assert look(cell(spark2=DIED), record=record).reasons == ["root@desk has been at it for 30 s"]
    # To who holds it, and once it was left behind, it means nothing.
    stopped = cell(spark1=STOPPED, spark2=STOPPED, spark3=STOPPED)
    assert look(stopped, record=record, who="root@desk").state == "stopped"
    assert look(stopped, record=hold(None, NOW - 5000, who="root@desk")).state == "stopped"
    assert look(cell(spark2=DIED), record=record, who="root@desk").action == "restart"
    assert finish(record)["pending"] is None
    # An attempt that is under way is not written over.
    begun = begin(None, NOW - 9, LIMITS, who=WATCH, reasons=[])
    assert hold(begun, NOW, who="root@desk") == begun
    assert finish(begun, who="root@desk") == begun
    assert finish(begun, who=WATCH)["pending"] is None
    # Nobody comes first after a person has forgotten.
    assert look(cell(spark2=DIED), record=forget(begun, NOW - 5, who="me")).action == "wait"


def test_a_verdict_on_a_screen() -> None:
    ranks = cell(spark2=DIED)
    del ranks["spark3"]
    shown = lines("sparks", look(ranks), HOSTS)
    assert shown[:6] == [
        "Cell sparks: waiting",
        "",
        "rank  host    found",
        "0     spark1  active (ready); no complete answer within 30 s",
        "1     spark2  failed with status 137 (ready)",
        "2     spark3  cannot be reached",
    ]
    assert shown[-1] == "To be waited for. Next: power it on, or look at its network and cables."
