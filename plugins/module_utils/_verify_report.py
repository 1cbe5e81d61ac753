# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What came out of a verification, for a terminal, a page, and a program that reads JUnit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree as ET

_WORDS = {"not_applicable": "not applicable"}
_VERDICTS = ("passed", "failed", "not_applicable", "skipped")
_UNITS = {
    "ttft_seconds": "{:.2f} s to the first token",
    "decode_tokens_per_second": "{:.1f} tokens/s decoding",
    "prefill_tokens_per_second": "{:.0f} tokens/s prefill",
    "load_seconds": "{:.0f} s to load",
}

Check = Mapping[str, Any]


class Line(NamedTuple):
    """A line for the terminal; `verdict` is None for one that belongs to no check."""

    text: str
    verdict: str | None = None


def failures(result: Mapping[str, Any], optional: Sequence[str] = ()) -> list[str]:
    """The checks that failed and must not, as sentences with what to do next."""
    return [
        f"{check['name']}: {_printable(check['detail'])}{_remedy(check)}"
        for check in result["checks"]
        if check["verdict"] == "failed" and check["name"] not in optional
    ]


def summary(result: Mapping[str, Any]) -> str:
    """How many checks came out how.

    >>> summary({"checks": [{"verdict": "passed"}, {"verdict": "not_applicable"}]})
    '1 passed, 0 failed, 1 not applicable'
    """
    verdicts = [check["verdict"] for check in result["checks"]]
    return ", ".join(
        f"{verdicts.count(verdict)} {_word(verdict)}"
        for verdict in _VERDICTS
        if verdict in verdicts or verdict in _VERDICTS[:2]
    )


def table(result: Mapping[str, Any], cell: str, optional: Sequence[str] = ()) -> list[Line]:
    """The verification as lines of text."""
    lines = [Line(f"Verification of {_what(result)}, cell {cell}")]
    names = max(len(check["name"]) for check in result["checks"])
    words = max(len(_word(check["verdict"])) for check in result["checks"])
    for check in result["checks"]:
        verdict = check["verdict"]
        head = f"  {_word(verdict):{words}}  {check['name']:{names}}  "
        note = " (optional)" if check["name"] in optional else ""
        took = f" [{check['seconds']:.1f} s]" if check["seconds"] >= 0.1 else ""
        lines.append(Line(f"{head}{_printable(check['detail'])}{note}{took}", verdict))
        if verdict == "failed" and check["remedy"]:
            lines.append(Line(f"{' ' * len(head)}next: {_printable(check['remedy'])}", verdict))
    lines += [Line(f"  {text}", "failed") for text in _banners(result)]
    return [*lines, Line(summary(result), "passed" if result["passed"] else "failed")]


def markdown(result: Mapping[str, Any], cell: str, written: str) -> str:
    """The verification as a page. `written` is when."""
    rows = [
        "| {} | {} | {} | {} |".format(
            check["name"],
            _word(check["verdict"]),
            _cell(check["detail"] + _remedy(check)),
            _cell(", ".join(figures(check["figures"]))),
        )
        for check in result["checks"]
    ]
    return "\n".join(
        [
            f"# Verification of {_cell(_what(result))}",
            "",
            f"Cell {cell}, {written}: {summary(result)}.",
            "",
            *(f"**{text}**\n" for text in _banners(result)),
            "| check | verdict | found | measured |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def junit(result: Mapping[str, Any], cell: str, written: str) -> str:
    """The verification as JUnit XML. What was not done is skipped there, never passed."""
    checks = result["checks"]
    counts = {
        "tests": len(checks),
        "failures": sum(check["verdict"] == "failed" for check in checks),
        "skipped": sum(check["verdict"] in ("not_applicable", "skipped") for check in checks),
    }
    numbers = {name: str(count) for name, count in counts.items()}
    took = f"{sum(check['seconds'] for check in checks):.2f}"
    root = ET.Element("testsuites", {**numbers, "time": took})
    suite = ET.SubElement(
        root,
        "testsuite",
        {"name": f"verify {cell}", **numbers, "errors": "0", "time": took, "timestamp": written},
    )
    for check in checks:
        case = ET.SubElement(
            suite,
            "testcase",
            {"classname": "verify", "name": check["name"], "time": f"{check['seconds']:.2f}"},
        )
        said = _printable(check["detail"] + _remedy(check))
        if check["verdict"] == "failed":
            ET.SubElement(case, "failure", {"type": check["cause"], "message": said})
        elif check["verdict"] != "passed":
            message = f"{_word(check['verdict'])}: {said}"
            ET.SubElement(case, "skipped", {"message": message})
        output = "\n".join([said, *figures(check["figures"])])
        ET.SubElement(case, "system-out").text = output
    ET.indent(root)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _what(result: Mapping[str, Any]) -> str:
    return _printable(f"{result['model'] or 'no model'} at {result['url']}")


def _banners(result: Mapping[str, Any]) -> Iterable[str]:
    if result["stand_in"]:
        yield "A STAND-IN: the server says that its model only stands in for one."
    if result["open"]:
        yield "OPEN: whoever reaches the port may use it, without a key."


def figures(measured: Mapping[str, Any]) -> list[str]:
    """Figures in words; one that the server did not allow to be measured is unknown."""
    said = []
    for name, value in measured.items():
        form = _UNITS.get(name, name.replace("_", " ") + " {}")
        said.append(f"{name}: unknown" if value is None else form.format(value))
    return said


def _remedy(check: Check) -> str:
    return f"; {check['remedy']}" if check["verdict"] == "failed" and check["remedy"] else ""


def _word(verdict: str) -> str:
    return _WORDS.get(verdict, verdict)


def _cell(text: str) -> str:
    return _printable(text).replace("|", "\\|")


def _printable(text: str) -> str:
    """Servers may say anything; a terminal and XML bear less."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in " ".join(text.split()))
