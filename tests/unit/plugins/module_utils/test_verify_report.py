"""A verification as a table, a page and JUnit: what was not done is never passed in any of them."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.action import verify_report
from ansible_collections.sparkfleet.cluster.plugins.module_utils._verify_report import (
    failures,
    junit,
    markdown,
    summary,
    table,
)
from ansible_collections.sparkfleet.cluster.plugins.modules import openai_probe
from ansible_collections.sparkfleet.cluster.plugins.modules import verify_report as documented

from tests.support.playbook import ROOT


def check(name: str, verdict: str, detail: str = "fine", **more: Any) -> dict[str, Any]:
    base = {"cause": "", "remedy": "", "figures": {}, "seconds": 0.0}
    return {"name": name, "verdict": verdict, "detail": detail, **base, **more}


RESULT: dict[str, Any] = {
    "url": "http://127.0.0.1:8000",
    "model": "m",
    "stand_in": True,
    "open": True,
    "passed": False,
    "checks": [
        check("serves", "passed", seconds=1.25),
        check("speed", "failed", "9 tokens/s\x1b[2J", remedy="look | here", cause="slow"),
        check("vision", "failed", "refused", cause="no-images"),
        check("chat", "not_applicable", "needs a model", figures={"ttft_seconds": None}),
        check("load", "skipped", "nobody told", figures={"load_seconds": 171.2}),
    ],
}


def test_the_table_tells_everything_once():
    lines = [line.text for line in table(RESULT, "sparks", ["vision"])]
    assert lines == [
        "Verification of m at http://127.0.0.1:8000, cell sparks",
        "  passed          serves  fine [1.2 s]",
        "  failed          speed   9 tokens/s\ufffd[2J",
        "                          next: look | here",
        "  failed          vision  refused (optional)",
        "  not applicable  chat    needs a model",
        "  skipped         load    nobody told",
        "  A STAND-IN: the server says that its model only stands in for one.",
        "  OPEN: whoever reaches the port may use it, without a key.",
        "1 passed, 2 failed, 1 not applicable, 1 skipped",
    ]


def test_what_may_fail_is_no_failure():
    assert failures(RESULT) == ["speed: 9 tokens/s\ufffd[2J; look | here", "vision: refused"]
    assert failures(RESULT, ["speed", "vision"]) == []


def test_junit_counts_what_was_not_done_as_skipped():
    root = ET.fromstring(junit(RESULT, "sparks", "2026-01-01T00:00:00Z"))
    assert (root.get("tests"), root.get("failures"), root.get("skipped")) == ("5", "2", "2")
    cases = {case.get("name"): [part.tag for part in case] for case in root.iter("testcase")}
    assert cases == {
        "serves": ["system-out"],
        "speed": ["failure", "system-out"],
        "vision": ["failure", "system-out"],
        "chat": ["skipped", "system-out"],
        "load": ["skipped", "system-out"],
    }


def test_the_page_keeps_its_table_whatever_a_server_says():
    page = markdown(RESULT, "sparks", "2026-01-01T00:00:00Z")
    assert "| speed | failed | 9 tokens/s\ufffd[2J; look \\| here |  |" in page
    assert "| chat | not applicable | needs a model | ttft_seconds: unknown |" in page
    assert "**OPEN: whoever reaches the port may use it, without a key.**" in page
    assert "171 s to load" in page


def test_an_all_passed_summary_still_says_that_none_failed():
    assert summary({"checks": [check("serves", "passed")]}) == "1 passed, 0 failed"


def test_the_documentation_is_that_of_the_code():
    told = yaml.safe_load(documented.DOCUMENTATION)["options"]
    shape = {
        name: {
            key: value
            for key, value in option.items()
            if key in ("type", "elements", "required", "default")
        }
        for name, option in told.items()
    }
    assert shape == verify_report.ARGUMENTS


@pytest.mark.parametrize("name", ["thinking_on", "thinking_off", "checks", "needle_share"])
def test_the_role_and_the_module_have_the_same_defaults(name):
    role = yaml.safe_load((ROOT / "roles/verify/defaults/main.yml").read_text())
    module = yaml.safe_load(openai_probe.DOCUMENTATION)["options"]
    assert role[f"verify_{name}"] == module[name]["default"]
