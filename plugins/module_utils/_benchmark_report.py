# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What a benchmark came to, for people: tables, Markdown, a picture, and two runs side by side.

A run is a mapping with `cell`, `written`, `url`, `model`, `stand_in`, `configuration` (a hash,
empty where it is not known) and `points`, as ``openai_benchmark`` measures them, each with a
`kind`, decode or prefill.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

try:
    import drawsvg as draw  # type: ignore[import-untyped]
except ImportError:  # picture() tells it
    draw = None

FORMAT = 1
Run = Mapping[str, Any]
# What is shown of a kind: heading, name of the figure, decimals.
_COLUMNS = {
    "decode": (
        ("tokens/s, all streams", "total_tokens_per_second", 1),
        ("tokens/s, one stream", "decode_tokens_per_second", 1),
        ("between tokens, ms", "itl_seconds", 1),
        ("to the first, s", "ttft_seconds", 2),
    ),
    "prefill": (
        ("tokens/s read", "prefill_tokens_per_second", 0),
        ("to the first, s", "ttft_seconds", 2),
    ),
}
_MAIN = {"decode": "total_tokens_per_second", "prefill": "prefill_tokens_per_second"}
_TITLES = {"decode": "Decode by streams at once", "prefill": "Prefill by length of the prompt"}
_SANS = "system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
_INK, _QUIET, _LINE, _BAR = "#0f172a", "#64748b", "#cbd5e1", "#3b6fb6"


class ReportError(ValueError):
    """A run that cannot be compared; the text is for people."""


def configuration_hash(hosts: Mapping[str, Mapping[str, Any]]) -> str:
    """One word for the launch of all ranks and their images; empty where one is not known.

    Args:
        hosts: by name, `settings`, the digest of the launch that runs, and `image`, the digest of
            what is in it.
    """
    known = [one.get("settings") and one.get("image") for one in hosts.values()]
    if not known or not all(known):
        return ""
    told = {name: [one["settings"], one["image"]] for name, one in hosts.items()}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]


def kind_of(point: Mapping[str, Any]) -> str:
    """An answer of one token measures reading, a longer one writing."""
    return "prefill" if point["output_tokens_wanted"] == 1 else "decode"


# --- tables ---------------------------------------------------------------------------------------


def table(run: Run) -> list[str]:
    """The run for a terminal."""
    configuration = run["configuration"] or "unknown"
    lines = [f"Benchmark of {run['cell']}: {run['model']} at {run['url']}"]
    lines.append(f"configuration {configuration}, {run['written']}")
    if run["stand_in"]:
        lines.append("STAND-IN: the server computes no model, so its speeds mean nothing")
    for kind in _COLUMNS:
        rows = _rows(run, kind)
        if len(rows) > 1:
            lines += ["", _TITLES[kind], *_aligned(rows)]
    return [*lines, *_notes(run)]


def markdown(run: Run) -> str:
    """The run as a page, the configuration beside every number."""
    lines = [
        f"# Benchmark of {run['cell']}",
        "",
        f"{run['model']} at {run['url']}, {run['written']}.",
    ]
    if run["stand_in"]:
        lines += ["", "**The server is a stand-in that computes no model: speeds mean nothing.**"]
    for kind in _COLUMNS:
        rows = _rows(run, kind)
        if len(rows) > 1:
            rows = [
                [*row, run["configuration"] or "unknown" if number else "configuration"]
                for number, row in enumerate(rows)
            ]
            lines += ["", f"## {_TITLES[kind]}", "", *_page(rows)]
    notes = list(_notes(run))
    return "\n".join([*lines, *(["", *(f"- {note}" for note in notes)] if notes else []), ""])


def _rows(run: Run, kind: str) -> list[list[str]]:
    first = "streams" if kind == "decode" else "prompt, tokens"
    rows = [[first, *(heading for heading, _name, _digits in _COLUMNS[kind])]]
    rows += [
        [_axis(point), *(_ranged(point, name, digits) for _said, name, digits in _COLUMNS[kind])]
        for point in run["points"]
        if point["kind"] == kind
    ]
    return rows


def _axis(point: Mapping[str, Any]) -> str:
    if point["kind"] == "decode":
        return str(point["streams"])
    counted = point["prompt_tokens"]
    return f"{counted:.0f}" if counted else f"about {point['prompt_tokens_wanted']}"


def _ranged(point: Mapping[str, Any], name: str, digits: int) -> str:
    """The median with the least and the most, where those differ from it."""
    factor = 1000 if name == "itl_seconds" else 1
    values = [point.get(name + end) for end in ("", "_low", "_high")]
    if values[0] is None:
        return "-"
    shown = [f"{(value or 0) * factor:.{digits}f}" for value in values]
    return shown[0] if shown[1] == shown[2] else f"{shown[0]} ({shown[1]} to {shown[2]})"


def _notes(run: Run) -> Iterator[str]:
    for point in run["points"]:
        where = f"{point['kind']} {_axis(point)}"
        if point["failures"]:
            yield f"{where}: {len(point['failures'])} without an answer: {point['failures'][0]}"
        if (point.get("cached_tokens") or 0) > 0.05 * (point["prompt_tokens"] or 1):
            yield f"{where}: {point['cached_tokens']:.0f} tokens came from the prefix cache"
        short = point["output_tokens"]
        if short is not None and short < 0.9 * point["output_tokens_wanted"]:
            yield f"{where}: answers ended after {short:.0f} tokens"
    texts = {point["text"] for point in run["points"]}
    if texts:
        yield f"prompts: {' and '.join(sorted(texts))}, another one for every request"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    ]


def _page(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return [lines[0], "|" + "---:|" * len(rows[0]), *lines[1:]]


# --- two runs -------------------------------------------------------------------------------------


def compare(before: Run, after: Run) -> list[list[str]]:
    """Both runs point by point, a heading first. Ranges that overlap are called the same.

    Raises:
        ReportError: one of them is no run, or they have no point in common.
    """
    for run in (before, after):
        if not isinstance(run, Mapping) or run.get("format") != FORMAT:
            raise ReportError(f"it is no result of this benchmark (format {FORMAT})")
    earlier = {_key(point): point for point in before["points"]}
    rows = [["", "tokens/s before", "now", "change", "verdict"]]
    for point in after["points"]:
        other = earlier.get(_key(point))
        name = _MAIN[point["kind"]]
        if other is None or not point.get(name) or not other.get(name):
            continue
        overlap = (
            point[f"{name}_low"] <= other[f"{name}_high"]
            and other[f"{name}_low"] <= point[f"{name}_high"]
        )
        faster = "faster" if point[name] > other[name] else "slower"
        rows.append(
            [
                f"{point['kind']} {point['streams']} x {point['prompt_tokens_wanted']}",
                _ranged(other, name, 1),
                _ranged(point, name, 1),
                f"{100 * (point[name] / other[name] - 1):+.1f} %",
                "the same, within the ranges" if overlap else faster,
            ]
        )
    if len(rows) == 1:
        raise ReportError("the two runs have no measured point in common")
    return rows


def comparison_lines(before: Run, after: Run) -> list[str]:
    """The same for people, with what else differs. Raises as `compare` does."""
    rows = compare(before, after)
    lines = [f"Compared with {before['written']}"]
    lines += [
        f"{name}: {before.get(name) or 'unknown'} then, {after.get(name) or 'unknown'} now"
        for name in ("model", "configuration", "url", "stand_in")
        if before.get(name) != after.get(name)
    ]
    return [*lines, *_aligned(rows)]


def comparison_markdown(before: Run, after: Run) -> str:
    """The same as a page. Raises as `compare` does."""
    lines = comparison_lines(before, after)
    rows = compare(before, after)
    return "\n".join(["", "## " + lines[0], "", *lines[1 : -len(rows)], "", *_page(rows), ""])


def _key(point: Mapping[str, Any]) -> tuple[Any, ...]:
    names = ("kind", "streams", "prompt_tokens_wanted", "output_tokens_wanted", "text")
    return tuple(point[name] for name in names)


# --- picture --------------------------------------------------------------------------------------


def picture(run: Run) -> Any:
    """A drawing with a panel for each kind that was measured; its bars carry their ranges.

    Raises:
        ReportError: drawsvg is not installed, or nothing was measured.
    """
    if draw is None:
        raise ReportError("the picture needs drawsvg: pip install drawsvg")
    panels = {
        kind: [point for point in run["points"] if point["kind"] == kind and point.get(_MAIN[kind])]
        for kind in _MAIN
    }
    panels = {kind: points for kind, points in panels.items() if points}
    if not panels:
        raise ReportError("nothing was measured that could be drawn")
    width, height = 440, 330
    drawing = draw.Drawing(width * len(panels), height + 40)
    drawing.append(draw.Rectangle(0, 0, "100%", "100%", fill="white"))
    for number, (kind, points) in enumerate(panels.items()):
        _panel(drawing, number * width, width, height, kind, points)
    said = f"{run['model']}, configuration {run['configuration'] or 'unknown'}, {run['written']}"
    said += ", STAND-IN: no model" if run["stand_in"] else ""
    _write(drawing, said, 11, 20, height + 24, fill=_QUIET)
    return drawing


def _panel(
    drawing: Any, left: float, width: float, height: float, kind: str, points: Sequence[Any]
) -> None:
    name = _MAIN[kind]
    top, bottom, inner = 64.0, height - 36.0, width - 70.0
    most = float(max(point[f"{name}_high"] for point in points))
    _write(drawing, _TITLES[kind], 15, left + 20, 28, fill=_INK, font_weight="bold")
    _write(drawing, "tokens per second: median, least and most", 11, left + 20, 46, fill=_QUIET)
    drawing.append(draw.Line(left + 50, bottom, left + 50 + inner, bottom, stroke=_LINE))
    step = inner / len(points)
    for number, point in enumerate(points):

        def level(value: float) -> float:
            return bottom - (bottom - top - 16) * value / most

        middle = left + 50 + step * (number + 0.5)
        high, size = level(point[name]), min(44.0, step * 0.6)
        drawing.append(
            draw.Rectangle(middle - size / 2, high, size, bottom - high, fill=_BAR, rx=2)
        )
        ends = level(point[f"{name}_low"]), level(point[f"{name}_high"])
        drawing.append(draw.Line(middle, ends[0], middle, ends[1], stroke=_INK, stroke_width=1.5))
        digits = 0 if point[name] >= 100 else 1
        _write(
            drawing,
            f"{point[name]:.{digits}f}",
            11,
            middle,
            ends[1] - 6,
            fill=_INK,
            text_anchor="middle",
        )
        _write(drawing, _axis(point), 11, middle, bottom + 16, fill=_QUIET, text_anchor="middle")


def _write(drawing: Any, text: str, size: float, x: float, y: float, **style: Any) -> None:
    drawing.append(draw.Text(text, size, x, y, font_family=_SANS, **style))
