# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cell on one screen: whole, half known, and as a run of all stages left it."""

from __future__ import annotations

from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._cell_status import (
    WIDTH,
    status_lines,
    summary_lines,
)

PORT = {"cage": 0, "state": "ACTIVE", "gid_index": 3, "rate_gbps": 200.0}
DOWN = {"cage": 1, "state": "DOWN", "gid_index": None, "rate_gbps": None}
PING = {"ping": {"there": True, "back": True}}
VERDICT: dict[str, Any] = {
    "links": [{"gbps": 195.84, "twins": [PING]}, {"gbps": 196.03, "twins": [PING]}],
    "problems": [],
    "failures": [],
}
UNMEASURED: dict[str, Any] = {
    "links": [{"gbps": None, "twins": [PING]}],
    "problems": [{"severity": "unknown", "message": "not measured: no RDMA stack."}],
    "failures": [],
}


def host(name: str, **parts: Any) -> dict[str, Any]:
    """A rank that serves."""
    rank = {
        "unit": {"known": True, "state": "active"},
        "container": {"running": True},
        "image": {"content": "sha256:0123456789abcdef"},
        "problems": [],
    }
    pool = {"asked": 8_000_000, "granted": 6_490_112}
    boot = {"log": {"stage": {"name": "ready"}, "pool": pool}, "problems": []}
    gids = {"devices": [PORT, PORT, DOWN, {**PORT, "cage": None}], "problems": []}
    return {"name": name, "rank": rank, "boot": boot, "gids": gids, **parts}


def test_a_cell_that_serves() -> None:
    lines = status_lines(
        "sparks",
        [host("spark1"), host("spark2")],
        api={
            "url": "http://127.0.0.1:8000",
            "checks": [{"verdict": "passed", "detail": "one token in 0.2 s"}],
        },
        fabric={"verdict": VERDICT},
        verify={
            "written": "2026-11-30T16:00:00Z",
            "stand_in": True,
            "checks": [{"verdict": "passed"}, {"verdict": "not_applicable"}],
        },
    )
    assert lines == [
        "Cell sparks",
        "",
        "rank  host    unit    container  image         GIDs  links         doing",
        "0     spark1  active  running    0123456789ab  3 3   2 x 200 Gb/s  ready",
        "1     spark2  active  running    0123456789ab  3 3   2 x 200 Gb/s  ready",
        "",
        "pool      6,490,112 tokens granted of 8,000,000 asked for",
        "links     2 of 2 links carry full frames on every twin, both ways",
        "          RDMA over 2 links, the slowest 195.84 Gb/s",
        "API       http://127.0.0.1:8000 answers: one token in 0.2 s",
        (
            "verified  1 passed, 1 not applicable, against a stand-in for the engine "
            "(2026-11-30T16:00:00Z)"
        ),
    ]


def test_hosts_of_which_nothing_is_known_do_not_hide_the_others() -> None:
    problem = {"message": "rocep1s0f0 has no GID " + "of its subnet " * 12}
    troubled = host("spark3", rank={}, boot={}, gids={"devices": [], "problems": [problem]})
    absent = host("spark4", rank={"unit": {"known": False}})
    small = host("spark5")
    small["boot"] = {"log": {"pool": {"asked": 8_000_000, "granted": 5}}, "status": "waiting"}
    lines = status_lines("sparks", [host("spark1"), {"name": "spark2"}, troubled, absent, small])
    rows = [line.split() for line in lines[3:8]]
    assert rows[1] == ["1", "spark2", "-", "-", "-", "-", "-", "-"]
    assert rows[3][2:5] == ["absent", "-", "-"]
    assert rows[4][-1] == "waiting"
    text = "\n".join(lines)
    assert "6,490,112 tokens granted of 8,000,000 asked for (spark1, spark4)" in text
    assert "5 tokens granted of 8,000,000 asked for (spark5)" in text
    assert "- spark3: rocep1s0f0 has no GID" in text
    assert "links     not tried yet; next: ansible-playbook sparkfleet.cluster.fabric" in text
    assert "verified  never; next: ansible-playbook sparkfleet.cluster.verify" in text
    assert max(map(len, lines)) <= WIDTH


def test_an_api_that_does_not_answer_is_loud() -> None:
    check = {"verdict": "failed", "detail": "no answer within 30 s"}
    lines = status_lines("sparks", [host("spark1")], api={"url": "http://x", "checks": [check]})
    lines += status_lines("sparks", [host("spark1")], api={"failed": True, "msg": "no key file"})
    assert "API       not asked: no key file" in lines
    assert "API       http://x DOES NOT ANSWER: no answer within 30 s" in lines


def summary(**parts: Any) -> list[str]:
    kinds = ("ok", "warn", "unknown", "skip", "fail", "note")
    preflight = {"summary": {"checks": 3, **{kind: [] for kind in kinds}}}
    preflight["summary"] |= {"ok": ["disk", "clock"], "warn": ["swap"]}
    figures = {"decode_tokens_per_second": 87.71}
    whole: dict[str, Any] = {
        "preflight": preflight,
        "fabric": VERDICT,
        "tables": {"spark1": {"shards": [{"state": "complete"}, {"state": "complete"}]}},
        "serving": {"model": "deepseek-v4.1-flash", "profile": "dsv41-tp4-ring"},
        "entry": {
            "url": "http://192.0.2.11:8000/v1",
            "key_file": "/etc/sparkfleet/keys",
            "key_names": ["default"],
        },
        "verify": {
            "checks": [
                {"name": "chat", "verdict": "passed"},
                {"name": "speed", "verdict": "passed", "figures": figures},
            ]
        },
        "head": "spark1",
    }
    return summary_lines("sparks", **{**whole, **parts})


def test_a_run_of_all_stages() -> None:
    assert summary() == [
        "Cell sparks: deepseek-v4.1-flash, dsv41-tp4-ring",
        "endpoint  http://192.0.2.11:8000/v1",
        "key       /etc/sparkfleet/keys on spark1 (default)",
        "proven    2 of 3 checks of the nodes passed",
        "          2 of 2 links carry full frames on every twin, both ways",
        "          2 of 2 Engram files complete",
        "          answers: chat, speed",
        "measured  RDMA over 2 links, the slowest 195.84 Gb/s",
        "          87.7 tokens/s decoding",
        "open      checks of the nodes, warned: swap",
    ]


def test_what_was_not_shown_is_told() -> None:
    toy = {"model": "tiny", "profile": "lab"}
    verdicts = ("failed", "not_applicable", "skipped")
    checks = [{"name": f"a-{verdict}", "verdict": verdict} for verdict in verdicts]
    text = "\n".join(
        summary(
            fabric=UNMEASURED,
            serving=toy,
            preflight=None,
            entry={"url": "http://x/v1", "open": True},
            verify={"checks": checks, "stand_in": True},
        )
    )
    assert "RDMA: not measured: no RDMA stack." in text
    assert "answers, failed: a-failed" in text
    assert "answers, not applicable to this engine: a-not_applicable" in text
    assert "answers, skipped: a-skipped" in text
    assert "stand-in  the engine, which computes no model" in text
    assert "key       none: the entry is open to everybody who reaches it" in text
    assert "left out  preflight" in text
