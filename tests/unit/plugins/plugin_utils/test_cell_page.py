# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The page about a cell: whole by itself, of few and of many facts, and with hostile ones."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.action import cell_page as action
from ansible_collections.sparkfleet.cluster.plugins.filter.fabric_diagram import fabric_diagram
from ansible_collections.sparkfleet.cluster.plugins.modules import cell_page as documented
from ansible_collections.sparkfleet.cluster.plugins.plugin_utils._cell_page import page

from tests.support.playbook import run_playbook
from tests.unit.fabrics import plan
from tests.unit.servings import serving

HOSTILE = "<script>alert(1)</script>\"'><img src=//evil.example/x onerror=alert(2)>&"
WHEN = "2026-11-30 19:00 UTC"
PING = {"ping": {"there": True, "back": True}}
# What may stand alone in HTML, and the strokes of a picture.
VOID = {"meta", "rect", "path", "line", "br", "img", "link", "circle", "polygon"}


class Page(HTMLParser):
    """Tags, attributes and text of a page; fails where tags are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: list[str] = []
        self.sections: list[str | None] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"not closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag == "section":
            self.sections.append(dict(attrs).get("id"))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def verdict(text: str = "below the gate") -> dict[str, Any]:
    link = {"ends": ["spark1:0", "spark2:1"], "verdict": "failed", "gbps": 91.04, "latency_us": 2.0}
    problem = {"severity": "failure", "host": "spark1", "ends": link["ends"], "message": text}
    return {
        "links": [{**link, "twins": [PING, PING]}],
        "problems": [problem, problem],
        "failures": [text],
        "measured": [{"ends": link["ends"], "gbps": 91.04, "ok": False}],
        "gate": {"twin_gbps": 92.0, "both_gbps": 175.0, "latency_us": 0.0},
    }


def preflight(text: str = "1 GiB") -> dict[str, Any]:
    rows = [
        {"check": "disk", "host": f"spark{number}", "status": "fail", "found": text}
        | {"expected": "20 GiB or more", "fix": f"make room: {text}"}
        for number in (1, 2, 3)
    ]
    rows.append({**rows[0], "check": "clock", "status": "ok", "found": "within 5 s"})
    kinds: dict[str, list[str]] = {kind: [] for kind in ("warn", "unknown", "skip", "note")}
    return {"rows": rows, "summary": {**kinds, "checks": 2, "ok": ["clock"], "fail": ["disk"]}}


def verification(text: str = "no answer", **more: Any) -> dict[str, Any]:
    check = {"name": "chat", "verdict": "failed", "detail": text, "remedy": f"see {text}"}
    speed = {"name": "speed", "verdict": "passed", "detail": "fast", "remedy": ""}
    figures = {"decode_tokens_per_second": 87.71}
    checks = [{**check, "figures": {}}, {**speed, "figures": figures}]
    return {"checks": checks, "stand_in": False, "url": "x", "model": text, **more}


def benchmark(text: str) -> dict[str, Any]:
    points = [
        {"kind": "decode", "streams": 1, "total_tokens_per_second": 38.2},
        {"kind": "decode", "streams": 8, "total_tokens_per_second": 171.9},
        {"kind": "prefill", "prompt_tokens": 4096.0, "prefill_tokens_per_second": 2345.6},
        {"kind": "prefill", "prompt_tokens": 8192.0, "prefill_tokens_per_second": None},
    ]
    return {"model": text, "url": text, "configuration": text, "stand_in": False, "points": points}


def ranks(text: str = "no such image") -> list[dict[str, Any]]:
    rank = {"unit": {"known": True, "state": "failed"}, "problems": [{"message": text}]}
    return [{"name": "spark1", "rank": rank}]


def whole(text: str = "plain", cell: str = "sparks") -> str:
    fabric = plan(4, "ring")
    found = verdict(text)
    return page(
        cell,
        written=WHEN,
        plan=fabric,
        picture=fabric_diagram(fabric, "svg", fabric["cables"], found["measured"]),
        launch=serving("dsv41-tp4-ring", fabric=fabric, image=text),
        hosts=ranks(text),
        tables={"spark1": {"shards": [{"state": "complete"}, {"state": "missing"}]}},
        entry={"url": f"http://{text}/v1", "key_file": text, "key_names": [text]},
        preflight=preflight(text),
        fabric=found,
        verify=verification(text),
        benchmark=benchmark(text),
        head=text,
        times={"fabric": text},
    )


def test_everything_known_is_shown_with_what_to_do() -> None:
    shown = Page(whole())
    assert shown.sections == [
        *("summary", "problems", "fabric", "ranks", "answers", "benchmark", "nodes", "plan")
    ]
    for words in (
        "4 problems",
        "failed: disk of spark1..spark3 plain; expected 20 GiB or more Next: make room: plain",
        "failed: links of spark1 plain",
        "failed: rank on spark1 plain",
        "failed: check chat plain Next: see plain",
        "spark1:0 to spark2:1 failed 4 of 4 ways 91.0",
        "Demanded: 92 Gb/s over one twin, 175 over both.",
        "1 of 2 files complete",
        "87.7 tokens/s decoding",
        "(found plain)",
        "dsv41-tp4-ring",
        "--tp 4",
        "Ring of 4",
        "Writing, all streams together, tokens/s 1 stream 38.2 8 streams 171.9",
        "Reading a prompt, tokens/s 4,096 tokens 2,345.6",
    ):
        assert words in shown.text


def test_a_page_of_nothing_says_that_nothing_is_known() -> None:
    shown = Page(page("sparks", written=WHEN))
    for words in (
        "not verified",
        "None was found.",
        "The links were not tried. Next: ansible-playbook sparkfleet.cluster.fabric",
        "They were not looked at. Next: ansible-playbook sparkfleet.cluster.status",
        "Nobody asked it. Next: ansible-playbook sparkfleet.cluster.verify",
        "left out preflight, roce_fabric, sglang, entry, verify",
    ):
        assert words in shown.text
    assert shown.sections == ["summary", "problems", "fabric", "ranks", "answers"]


@pytest.mark.parametrize(
    ("verify", "badge"),
    [
        (verification(checks=[]), "verified"),
        (verification(checks=[], stand_in=True), "verified against a stand-in"),
        (verification(optional=["chat"]), "verified, with doubts"),
        (verification(), "1 problem"),
    ],
)
def test_the_badge_promises_no_more_than_was_proven(verify: Any, badge: str) -> None:
    shown = Page(page("sparks", written=WHEN, verify=verify))
    assert f"Cell sparks {badge} " in shown.text
    assert ("A stand-in was served" in shown.text) == bool(verify["stand_in"])


def test_a_page_asks_nothing_of_the_network_and_runs_nothing() -> None:
    text = whole()
    shown = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(shown.tags)
    names = {name for name, _value in shown.attributes}
    assert not {name for name in names if name.startswith("on")}
    assert not names & {"src", "srcset", "href", "xlink:href", "action", "data"}
    assert not re.search(r"url\(|@import", text)
    assert "default-src 'none'" in text


def test_what_others_wrote_stays_text() -> None:
    text = whole(HOSTILE, cell=HOSTILE)
    tame, hostile = Page(whole()), Page(text)
    assert hostile.tags == tame.tags
    assert [name for name, _ in hostile.attributes] == [name for name, _ in tame.attributes]
    assert hostile.words.count(f"Cell {HOSTILE}") == 1
    assert "<script" not in text


def test_a_hostile_host_stays_text_in_the_picture() -> None:
    fabric = json.loads(json.dumps(plan(4, "ring")).replace("spark2", json.dumps(HOSTILE)[1:-1]))
    text = page("sparks", written=WHEN, plan=fabric, picture=fabric_diagram(fabric, "svg"))
    shown = Page(text)
    assert not {"script", "img"} & set(shown.tags)
    assert not [name for name, _value in shown.attributes if name.startswith("on")]


def test_the_documentation_is_that_of_the_code() -> None:
    told = yaml.safe_load(documented.DOCUMENTATION)["options"]
    keys = ("type", "elements", "required", "default")
    assert {name: {key: option.get(key) for key in keys} for name, option in told.items()} == {
        name: {key: option.get(key) for key in keys} for name, option in action.ARGUMENTS.items()
    }


def play(directory: Path, *args: str, **options: Any) -> Any:
    playbook = directory / "play.yml"
    task = {"sparkfleet.cluster.cell_page": {"cell": "sparks", **options}}
    plays = [{"hosts": "localhost", "gather_facts": False, "tasks": [task]}]
    playbook.write_text(json.dumps(plays), encoding="utf-8")
    return run_playbook(
        playbook, "localhost,", *args, env={"XDG_STATE_HOME": str(directory / "state")}
    )


def test_pages_take_what_a_run_did_not_find_from_the_last_reports(tmp_path: Path) -> None:
    reports = tmp_path / "state/sparkfleet"
    where = reports / "cell-sparks.html"
    checked = play(tmp_path, "--check", entry={"url": "http://x/v1", "key_file": "k"})
    checked.assert_ok().assert_unchanged()
    assert not reports.exists()

    fabric = plan(4, "ring")
    play(tmp_path, hosts=ranks(), plan=fabric, tables={}).assert_ok().assert_unchanged()
    first = Page(where.read_text(encoding="utf-8"))
    assert "rank on spark1 no such image" in first.text
    assert "Ranks rank host" in first.text
    assert "Ring of 4" in first.text
    assert "as planned" not in first.text

    play(tmp_path, plan=fabric, fabric=verdict()).assert_ok()
    tried = Page(where.read_text(encoding="utf-8"))
    assert "as planned" in tried.text  # one link carried full frames, three were not tried
    assert "expected, not found" in tried.text

    kept = {"plan": plan(3, "triangle"), "cables": {"cables": []}, "verdict": verdict()}
    (reports / "fabric-sparks.json").write_text(json.dumps({"format": 1, **kept}))
    (reports / "preflight-sparks.json").write_text(json.dumps({"format": 1, **preflight()}))
    (reports / "benchmark-sparks.json").write_text(
        json.dumps({"format": 1, **benchmark("toy"), "stand_in": True})
    )
    (reports / "verify-sparks.json").write_text(json.dumps({"format": 99, **verification()}))
    run = play(tmp_path, verify=verification("timed out")).assert_ok()
    assert run.output.count("Report: ") == 1
    assert f"Report: {where}" in run.output
    second = Page(where.read_text(encoding="utf-8"))
    assert "Ranks (found 20" in second.text
    assert "Fabric (found 20" in second.text
    assert "Triangle" in second.text
    assert "disk of spark1..spark3" in second.text
    assert "check chat timed out" in second.text
    assert "toy at toy, configuration toy. A stand-in: these are no speeds." in second.text

    play(tmp_path).assert_ok()
    third = Page(where.read_text(encoding="utf-8"))
    assert "Nobody asked it." in third.text  # its report has a number that nobody knows


def test_a_page_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "page.html").mkdir()
    run = play(tmp_path, path=str(tmp_path / "page.html")).assert_ok()
    assert "The page is not written" in run.output
