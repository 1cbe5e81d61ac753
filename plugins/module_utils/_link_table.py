# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The verdict on the links as plain text: links with their twins, a matrix, and the problems."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import fold_hosts

WIDTH = 110

_LINK_WIDTH = 38
_VERDICTS = {"ok": "ok", "failed": "FAILED", "not measured": "not measured"}
_MARKS = {"ok": "", "failed": "!", "not measured": "?"}
_HEADINGS = ("link", "twin", "ping", "rping", "latency", "MTU", "there", "back", "verdict")
_WIDTHS = (4, 5, 5, 8, 5, 7, 7)  # of what stands between the link and the verdict


def render(judged: Mapping[str, Any]) -> str:
    """The result of `link_verdict` in lines of at most `WIDTH` characters."""
    links = judged["links"]
    hosts = list(judged["matrix"])
    lines = [*_wrap(_title(judged["gate"]), ""), "", *_links(links), ""]
    if any(link["gbps"] is not None for link in links):
        lines += [*_matrix(judged["matrix"], hosts), ""]
    for link in links:
        told = [problem for problem in link["problems"] if problem["severity"] != "unknown"]
        if told:
            lines += [_name(link["ends"]), *_problems(told), ""]
    unknown = list(_unknown(judged["problems"], hosts))
    return "\n".join([*lines, *unknown, *[""] * bool(unknown), _count(judged)])


def _problems(problems: Sequence[Mapping[str, str]]) -> Iterator[str]:
    for problem in problems:
        kind = "warning: " if problem["severity"] == "warning" else ""
        yield from _wrap(f"{kind}{problem['message']}", "- ")


def _unknown(problems: Sequence[Mapping[str, str]], hosts: Sequence[str]) -> Iterator[str]:
    """Why there are no measurements, each reason once with all hosts it is true of."""
    reasons: dict[str, set[str]] = {}
    for problem in problems:
        if problem["severity"] == "unknown":
            reasons.setdefault(problem["message"], set()).add(problem["host"])
    for message, its_hosts in reasons.items():
        names = fold_hosts(host for host in hosts if host in its_hosts)
        yield from _wrap(f"{names}: {message}", "- ")


def _title(gate: Mapping[str, float]) -> str:
    latency = f", at most {gate['latency_us']:g} us" if gate["latency_us"] else ""
    return (
        f"Links of the fabric. Bandwidth in Gb/s, expected {gate['twin_gbps']:g} or more over one "
        f"twin and {gate['both_gbps']:g} over both{latency}. 'There' is from the first end to "
        "the second, MTU that of RoCE."
    )


def _count(judged: Mapping[str, Any]) -> str:
    total = len(judged["links"])
    counts = (("passed", "ok"), ("failed", "failed"), ("not_measured", "not measured"))
    told = ", ".join(f"{len(judged[key])} {word}" for key, word in counts if judged[key])
    return f"{total} link{'s' * (total != 1)}: {told}." if total else "There are no links."


def _links(links: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    names = [_name(link["ends"]) for link in links]
    width = min(_LINK_WIDTH, max(map(len, [*names, _HEADINGS[0]])))
    yield _row(_HEADINGS, width)
    for link, name in zip(links, names, strict=True):
        rows = list(_twins(link))
        for place, row in enumerate(rows):
            verdict = _VERDICTS[link["verdict"]] if place == len(rows) - 1 else ""
            yield _row([_fit(name, width) if place == 0 else "", *row, verdict], width)


def _twins(link: Mapping[str, Any]) -> Iterator[list[str]]:
    for twin in link["twins"]:
        ping, rping = (
            "/".join(_word(twin[kind][way]) for way in ("there", "back"))
            for kind in ("ping", "rping")
        )
        latency = "-" if twin["latency_us"] is None else f"{_short(twin['latency_us'])} us"
        rates = [_rate(twin[way]) for way in ("there", "back")]
        mtu = str(twin["roce_mtu"] or "-")
        yield [str(twin["domain"]), ping, rping, latency, mtu, *rates]
    if len(link["twins"]) > 1:
        yield ["both", "", "", "", "", _rate(link["there"]), _rate(link["back"])]


def _matrix(matrix: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]) -> Iterator[str]:
    """Bandwidth from each host (row) to each other one (column), where it has room."""
    longest = max(map(len, hosts))
    width = max(longest, 8) + 2
    heads, names = list(hosts), [host.ljust(longest) for host in hosts]
    if longest + width * len(hosts) > WIDTH:
        width = 8
        heads = [str(rank) for rank in range(len(hosts))]
        names = [f"{_fit(host, 25).ljust(25)} {rank:2}" for rank, host in enumerate(hosts)]
    if len(names[0]) + width * len(hosts) > WIDTH:
        yield f"A matrix of {len(hosts)} hosts is too wide for this table."
        return
    yield " " * len(names[0]) + "".join(head.rjust(width) for head in heads)
    for name, here in zip(names, hosts, strict=True):
        cells = []
        for there in hosts:
            cell = matrix[here].get(there)
            text = _rate(cell["gbps"]) + _MARKS[cell["verdict"]] if cell else "."
            cells.append(text.rjust(width))
        yield f"{name}{''.join(cells)}"


def _row(cells: Sequence[str], width: int) -> str:
    first, *middle, verdict = cells
    told = [cell.rjust(size) for cell, size in zip(middle, _WIDTHS, strict=True)]
    return "  ".join([first.ljust(width), *told, verdict]).rstrip()


def _name(ends: Sequence[str]) -> str:
    return " - ".join(ends)


def _fit(text: str, width: int) -> str:
    """A text that is too long loses its middle."""
    if len(text) <= width:
        return text
    return f"{text[: width // 2 - 1]}...{text[len(text) - (width - width // 2 - 2) :]}"


def _word(value: bool | None) -> str:
    return "-" if value is None else "ok" if value else "no"


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value >= 10 else _short(value)


def _short(value: float) -> str:
    return f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _wrap(text: str, margin: str) -> list[str]:
    indent = " " * len(margin)
    return textwrap.wrap(
        text, WIDTH, initial_indent=margin, subsequent_indent=indent, break_on_hyphens=False
    )
