"""A benchmark for people: numbers beside what was measured, and two runs side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.module_utils import (
    _benchmark_report as report,
)

from tests.support.playbook import Run, run_playbook


def point(
    streams: int = 1, *, rate: float = 100.0, output: int = 256, **more: Any
) -> dict[str, Any]:
    names = ("total_tokens_per_second", "decode_tokens_per_second", "prefill_tokens_per_second")
    made: dict[str, Any] = {
        "streams": streams,
        "prompt_tokens_wanted": 512,
        "output_tokens_wanted": output,
        "prompt_tokens": 520.0,
        "output_tokens": float(output),
        "cached_tokens": 0,
        "model": "m",
        "stand_in": False,
        "text": "made prose",
        "failures": [],
    }
    for name in (*names, "itl_seconds", "ttft_seconds"):
        value = 0.01 if name.endswith("_seconds") else rate
        made |= {name: value, f"{name}_low": value * 0.98, f"{name}_high": value * 1.02}
    return {**made, **more}


def run(*points: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "format": 1,
        "cell": "sparks",
        "written": "2026-11-30T12:00:00Z",
        "url": "http://h",
        "model": "m",
        "stand_in": False,
        "configuration": "0f3c2a9be1d4",
        "points": [{**one, "kind": report.kind_of(one)} for one in points],
        **more,
    }


def test_the_configuration_stands_beside_every_number() -> None:
    page = report.markdown(run(point(1), point(8), point(output=1)))
    rows = [line for line in page.splitlines() if line.startswith("| ") and "102" in line]
    assert len(rows) == 3
    assert all(row.endswith("| 0f3c2a9be1d4 |") for row in rows)
    assert "## Prefill by length of the prompt" in page
    unknown = report.markdown(run(point(), configuration=""))
    assert "| unknown |" in unknown


def test_what_is_wrong_with_a_point_is_told() -> None:
    lines = "\n".join(
        report.table(
            run(
                point(2, failures=["no-answer: none", "cut: broke"]),
                point(4, cached_tokens=400),
                point(8, output_tokens=20.0),
                stand_in=True,
            )
        )
    )
    assert "decode 2: 2 without an answer: no-answer: none" in lines
    assert "decode 4: 400 tokens came from the prefix cache" in lines
    assert "decode 8: answers ended after 20 tokens" in lines
    assert "STAND-IN" in lines
    assert "made prose, another one for every request" in lines


def test_figures_that_are_not_known_are_dashes() -> None:
    names = [name for name in point() if name.endswith(("_second", "_seconds"))]
    unknown: dict[str, Any] = dict.fromkeys(names)
    told = report.table(run(point(1, **unknown)))
    assert told[-2].split() == ["1", "-", "-", "-", "-"]


def test_the_hash_is_that_of_every_launch_and_image() -> None:
    hosts = {name: {"settings": f"s-{name}", "image": "sha256:1"} for name in ("a", "b")}
    first = report.configuration_hash(hosts)
    assert len(first) == 12
    for change in ({"settings": "other"}, {"image": "sha256:2"}):
        assert report.configuration_hash({**hosts, "b": {**hosts["b"], **change}}) != first
    assert report.configuration_hash({**hosts, "b": {"settings": None, "image": "x"}}) == ""
    assert report.configuration_hash({}) == ""


def test_two_runs_side_by_side() -> None:
    before = run(point(1, rate=100), point(8, rate=300), point(16, rate=400))
    after = run(
        point(1, rate=101), point(8, rate=330), point(16, rate=200), configuration="eeee2a9be1d4"
    )
    rows = report.compare(before, after)
    assert [row[-1] for row in rows[1:]] == ["the same, within the ranges", "faster", "slower"]
    assert [row[3] for row in rows[1:]] == ["+1.0 %", "+10.0 %", "-50.0 %"]
    told = report.comparison_lines(before, after)
    assert "configuration: 0f3c2a9be1d4 then, eeee2a9be1d4 now" in told
    assert "| decode 8 x 512 |" in report.comparison_markdown(before, after)


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ({}, "no result of this benchmark"),
        (["x"], "no result of this benchmark"),
        (run(point(1), format=2), "format 1"),
        (run(point(2)), "no measured point in common"),
    ],
)
def test_what_cannot_be_compared(before: Any, told: str) -> None:
    with pytest.raises(report.ReportError, match=told):
        report.compare(before, run(point(1)))


def test_the_picture_shows_each_point(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("drawsvg")
    svg = report.picture(run(point(1, rate=87.7), point(16, rate=357), point(output=1))).as_svg()
    texts = {
        "".join(one.itertext()) for one in ET.fromstring(svg).iter() if one.tag.endswith("text")
    }
    assert {"87.7", "357", "16", "520"} <= texts
    assert any("configuration 0f3c2a9be1d4" in text for text in texts)
    with pytest.raises(report.ReportError, match="nothing was measured"):
        report.picture(run())
    monkeypatch.setattr(report, "draw", None)
    with pytest.raises(report.ReportError, match="pip install drawsvg"):
        report.picture(run(point()))


# --- through Ansible ------------------------------------------------------------------------------


def show(folder: Path, *words: str, **arguments: Any) -> Run:
    ranks = {"spark1": {"settings": "s", "image": {"content": "sha256:1"}}}
    task = {
        "name": "Show it",
        "sparkfleet.cluster.benchmark_report": {
            "cell": "sparks",
            "url": "http://h",
            "points": [point(1), point(8, rate=300), point(output=1)],
            "ranks": ranks,
            "path": str(folder / "run"),
            **arguments,
        },
    }
    play = {"name": "P", "hosts": "localhost", "gather_facts": False, "tasks": [task]}
    place = folder / "play.yml"
    place.write_text(yaml.safe_dump([play]), encoding="utf-8")
    return run_playbook(place, "localhost,", *words)


def test_files_and_a_comparison(tmp_path: Path) -> None:
    shown = show(tmp_path).assert_ok()
    assert "Decode by streams at once" in shown.output
    kept = json.loads((tmp_path / "run.json").read_text())
    assert len(kept["configuration"]) == 12
    assert [one["kind"] for one in kept["points"]] == ["decode", "decode", "prefill"]
    assert (tmp_path / "run.svg").exists()
    assert "![The same as bars](run.svg)" in (tmp_path / "run.md").read_text()
    assert (tmp_path / "run.png").exists() or "No PNG beside the SVG" in shown.output
    (tmp_path / "run.json").rename(tmp_path / "before.json")
    again = show(tmp_path, compare=str(tmp_path / "before.json")).assert_ok()
    assert "the same, within the ranges" in again.output
    assert "## Compared with" in (tmp_path / "run.md").read_text()


def test_refusals_and_check_mode(tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    told = show(tmp_path, compare=str(bad))
    assert told.returncode != 0
    assert "expected the JSON file of an earlier benchmark" in told.output
    assert "Traceback" not in told.output
    show(tmp_path, "--check").assert_ok()
    assert not (tmp_path / "run.json").exists()
    assert show(tmp_path, points=[{}]).assert_ok()
