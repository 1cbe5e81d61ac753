# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What the log of a starting engine says.

Patterns are run over whole texts, not line by line, because a boot with NCCL at INFO prints a lot.
A log that grows is read piece by piece: the result of one piece is where the next one goes on.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

BEFORE, AFTER = 5, 12  # lines of context around a fatal line; a traceback comes after it
SHOWN = 400  # characters of a line
PER_NAME, IN_ALL = 3, 20  # how many fatal lines are kept

# Where a boot is, by what SGLang prints, in the branch of the images as well as in 0.5.23. The last
# of these lines in the log decides.
STAGES = (
    ("starting", r"server_args=(?:ServerArgs\(|\{)"),
    ("rendezvous", r"Init (?:torch distributed|parallel) begin"),
    ("connected", r"Init (?:torch distributed|parallel) ends"),
    ("loading", r"Load weight begin|Loading safetensors|% Completed \| [0-9]+/[0-9]+"),
    ("loaded", r"Load weight end"),
    ("memory pool", r"Memory pool end|KV Cache is allocated|max_total_num_tokens="),
    ("graphs", r"Capture .*(?i:graph).* begin|Capturing batches|Capture .*\bbs[ =]\["),
    ("warm-up", r"Application startup complete|Uvicorn running on|Starting warm-?up"),
    ("ready", r"The server is fired up and ready to roll|^.*Ready: API on port"),
)
_STAGES = tuple((name, re.compile(pattern, re.MULTILINE)) for name, pattern in STAGES)
_SHARDS = re.compile(r"% Completed \| ([0-9]+)/([0-9]+)")
_ENGRAM = re.compile(
    r"^.*Exact (\w+) Engram layer=([0-9]+).*rows=\[([0-9]+), ?([0-9]+)\).*packed=(True|False)",
    re.MULTILINE,
)
_RANK = re.compile(r"\brank=([0-9]+)")
_POOL = {
    "granted": re.compile(r"max_total_num_tokens=([0-9]+)"),
    "chunked_prefill_size": re.compile(r"max_total_num_tokens=.*?chunked_prefill_size=([0-9]+)"),
    "max_running_requests": re.compile(r"max_total_num_tokens=.*?max_running_requests=([0-9]+)"),
    "context_length": re.compile(r"max_total_num_tokens=.*?context_len=([0-9]+)"),
    "full_tokens": re.compile(r"bytes_per_full_token=.*?full_token=([0-9]+)"),
    "bytes_per_token": re.compile(r"bytes_per_full_token=([0-9]+(?:\.[0-9]+)?)"),
    "asked": re.compile(r"server_args=.*?\bmax_total_tokens'?[=:] ?([0-9]+)"),
}
_GRAPHS = re.compile(r"Capture .*?\bbs[ =]\[([0-9, ]+)\]")
_SPECULATION = re.compile(r"gamma=([0-9]+), verify_num_draft_tokens=([0-9]+)")
_NCCL_VERSION = re.compile(r"NCCL version ([0-9]+(?:\.[0-9]+)+)")
_NCCL_NETWORK = re.compile(r"NCCL INFO .*Using network (\w+)")
_NCCL_LINES = re.compile(
    r"^.*(?:NCCL_SWITCHLESS_RING_ONLY set|NCCL_SKIP_TREE_CONNECT set|Connected all (?:rings|trees)"
    r"|(?:Tree|PAT) transport setup disabled|SWITCHLESS: |ListenerRouting|overriding dev).*$",
    re.MULTILINE,
)
_SUPPRESSED = re.compile(r"Suppressed ([0-9]+) messages from (\S+)")
# Keys that the engine prints with its arguments; nothing of a line is shown with them in it.
_SECRET = re.compile(
    r"((?<![A-Za-z0-9_])(?:(?:admin_)?api_key|(?:hf_)?token|password)['\"]?\s*[=:]\s*['\"]?"
    r"|--(?:admin-)?api-key[ =]|Bearer\s+)[^\s'\",)]+",
    re.IGNORECASE,
)
_LINE_ENDS = re.compile(r"\r\n|\r|\n")


class PatternError(ValueError):
    """A pattern that is no regular expression."""


@dataclass(frozen=True)
class _Text:
    """A piece of a log, and where its lines begin."""

    text: str
    first: int  # number of its first line in the log, from 1
    starts: Sequence[int]

    @classmethod
    def of(cls, text: str, first: int) -> _Text:
        starts = [0, *(match.end() for match in re.finditer("\n", text))]
        return cls(text, first, starts)

    def line_at(self, position: int) -> int:
        """The number of the line that a position is in, within this piece, from 0."""
        return bisect_right(self.starts, position) - 1

    def lines(self) -> list[str]:
        """Its lines, without their ends."""
        lines = self.text.split("\n")
        return lines[:-1] if lines[-1] == "" else lines


def examine(
    text: str,
    *,
    proofs: Sequence[Mapping[str, Any]] = (),
    fatals: Sequence[Mapping[str, Any]] = (),
    head: bool = True,
    asked: int | None = None,
    start: str | None = None,
    previous: Mapping[str, Any] | None = None,
    incomplete: bool = False,
    source: str = "",
) -> dict[str, Any]:
    """Turn the next piece of a log into facts about the boot.

    Args:
        text: the piece. A last line without an end is expected again in the next piece.
        proofs: what the log must show, as `serving_plan` gives it.
        fatals: what it must not show.
        head: whether the log is that of the head, of which more is asked.
        asked: how many tokens the KV pool was to hold, if the log does not say.
        start: a pattern of the line with which a boot begins; what is before the last one of them
            belongs to another boot.
        previous: the result of the piece before.
        incomplete: whether something between the pieces was not read.
        source: the unit whose messages journald may have dropped; any where it is empty.

    Raises:
        PatternError: naming the pattern.
    """
    text = _LINE_ENDS.sub("\n", text)  # progress bars end their lines with a carriage return
    before: Mapping[str, Any] = previous or {}
    first = int(before.get("lines", 0)) + 1
    if start:
        found = [match.start() for match in _compile("start", start).finditer(text)]
        if found:
            cut = text.rfind("\n", 0, found[-1]) + 1
            first += text.count("\n", 0, cut)
            text, before = text[cut:], {}
    # A last line without an end is read again with its rest: it counts for nothing but fatal lines.
    piece = _Text.of(text[: text.rfind("\n") + 1], first)
    dropped = sum(
        int(count)
        for count, unit in _SUPPRESSED.findall(piece.text)
        if not source or unit.rstrip(".") == source
    )
    suppressed = int(before.get("suppressed", 0)) + dropped
    incomplete = incomplete or bool(before.get("incomplete", False))
    seen = _proofs(piece, proofs, before, head=head, doubtful=bool(suppressed) or incomplete)
    fatal = _fatals(_Text.of(text, first), fatals, before)
    return {
        "lines": first - 1 + len(piece.lines()),
        "suppressed": suppressed,
        "incomplete": incomplete,
        "stage": _stage(piece, before),
        "engram": _engram(piece, before),
        "pool": _pool(piece, before, asked),
        "graphs": _graphs(piece, before),
        "speculation": _speculation(piece, before),
        "nccl": _nccl(piece, before),
        "proofs": seen,
        "proven": _proven(seen),
        "fatals": fatal,
        "failed": any(not entry["weak"] for entry in fatal),
    }


def _compile(name: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern, re.MULTILINE)
    except re.error as error:
        raise PatternError(f"the pattern of {name} is no regular expression: {error}") from error


def shown(line: str) -> str:
    """A line as it may be shown: not too long, and without keys.

    >>> shown("server_args=ServerArgs(api_key='sk-1', port=1)")
    "server_args=ServerArgs(api_key='***', port=1)"
    """
    line = _SECRET.sub(r"\1***", line.strip())
    return line if len(line) <= SHOWN else f"{line[:SHOWN]} ..."


def _proofs(
    piece: _Text,
    proofs: Sequence[Mapping[str, Any]],
    before: Mapping[str, Any],
    *,
    head: bool,
    doubtful: bool,
) -> list[dict[str, Any]]:
    known = {entry["name"]: entry for entry in before.get("proofs", ())}
    result = []
    for proof in proofs:
        if proof.get("scope", "head") == "head" and not head:
            continue
        name = str(proof["name"])
        old: Mapping[str, Any] = known.get(name, {})
        matches = list(_compile(f"proof {name}", str(proof["pattern"])).finditer(piece.text))
        lines = sorted({piece.line_at(match.start()) for match in matches})
        count = int(old.get("count", 0)) + len(lines)
        wanted = int(proof.get("count") or 1)
        missing = "unknown" if doubtful else "missing"
        result.append(
            {
                "name": name,
                "status": "found" if count >= wanted else missing,
                "count": count,
                "wanted": wanted,
                "required": bool(proof.get("required", True)),
                "line": old.get("line") or (shown(piece.lines()[lines[0]]) if lines else None),
            }
        )
    return result


def _proven(proofs: Sequence[Mapping[str, Any]]) -> bool | None:
    """Whether all that is required was found; None where lines are missing that may have been."""
    states = {proof["status"] for proof in proofs if proof["required"]}
    if "missing" in states:
        return False
    return None if "unknown" in states else True


def _fatals(
    piece: _Text, fatals: Sequence[Mapping[str, Any]], before: Mapping[str, Any]
) -> list[dict[str, Any]]:
    lines = piece.lines()
    kept = [
        _longer(entry, piece.first, lines)
        for entry in before.get("fatals", ())
        if entry["number"] < piece.first
    ]
    taken = {(entry["name"], entry["number"]) for entry in kept}
    found: list[dict[str, Any]] = []
    for fatal in fatals:
        name = str(fatal["name"])
        hits = _compile(f"fatal signature {name}", str(fatal["pattern"])).finditer(piece.text)
        numbers = sorted({piece.line_at(match.start()) for match in hits})
        for at in numbers[:PER_NAME]:
            if (name, piece.first + at) in taken:
                continue
            begin = max(0, at - BEFORE)
            found.append(
                {
                    "name": name,
                    "cause": str(fatal.get("cause", "")),
                    "remedy": str(fatal.get("remedy", "")),
                    "weak": bool(fatal.get("weak", False)),
                    "number": piece.first + at,
                    "line": shown(lines[at]),
                    "context_from": piece.first + begin,
                    "context": [shown(line) for line in lines[begin : at + AFTER + 1]],
                }
            )
    order = {str(fatal["name"]): place for place, fatal in enumerate(fatals)}
    found.sort(key=lambda entry: (entry["number"], order[entry["name"]]))
    return [*kept, *found][:IN_ALL]


def _longer(entry: Mapping[str, Any], first: int, lines: Sequence[str]) -> dict[str, Any]:
    """A fatal line at the end of the piece before, with the lines that follow it."""
    end = entry["context_from"] + len(entry["context"])
    missing = entry["number"] + AFTER + 1 - end
    more = lines[:missing] if end == first and missing > 0 else []
    return {**entry, "context": [*entry["context"], *(shown(line) for line in more)]}


def _last(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    match = None
    for found in pattern.finditer(text):
        match = found
    return match


def _stage(piece: _Text, before: Mapping[str, Any]) -> dict[str, Any]:
    stage = dict(before.get("stage") or {"name": None, "shard": None, "shards": None})
    best = -1
    for name, pattern in _STAGES:
        match = _last(pattern, piece.text)
        if match and match.start() >= best:
            best = match.start()
            stage["name"] = name
    shards = _last(_SHARDS, piece.text)
    if shards:
        stage["shard"], stage["shards"] = int(shards.group(1)), int(shards.group(2))
    return stage


def _engram(piece: _Text, before: Mapping[str, Any]) -> list[dict[str, Any]]:
    tables = {(entry["layer"], entry["rank"]): entry for entry in before.get("engram", ())}
    for match in _ENGRAM.finditer(piece.text):
        rank = _RANK.search(match.group(0))
        entry = {
            "layer": int(match.group(2)),
            "rank": int(rank.group(1)) if rank else None,
            "rows": [int(match.group(3)), int(match.group(4))],
            "mode": match.group(1),
            "packed": match.group(5) == "True",
        }
        tables[entry["layer"], entry["rank"]] = entry
    return sorted(tables.values(), key=lambda entry: (entry["layer"], entry["rank"] or 0))


def _pool(piece: _Text, before: Mapping[str, Any], asked: int | None) -> dict[str, Any]:
    pool: dict[str, Any] = dict(before.get("pool") or dict.fromkeys((*_POOL, "clamped")))
    for name, pattern in _POOL.items():
        match = _last(pattern, piece.text)
        if match:
            text = match.group(1)
            pool[name] = float(text) if "." in text else int(text)
    if pool["asked"] is None:
        pool["asked"] = asked
    if pool["asked"] and pool["granted"] is not None:
        # The engine rounds what it was asked for down to whole pages; only more than that is less.
        pool["clamped"] = pool["granted"] < pool["asked"] // 256 * 256
    return pool


def _graphs(piece: _Text, before: Mapping[str, Any]) -> list[int]:
    found = {int(size) for sizes in _GRAPHS.findall(piece.text) for size in sizes.split(",")}
    return sorted({*before.get("graphs", ()), *found})


def _speculation(piece: _Text, before: Mapping[str, Any]) -> dict[str, int] | None:
    match = _last(_SPECULATION, piece.text)
    if match:
        return {"block": int(match.group(1)), "window": int(match.group(2))}
    return before.get("speculation")


def _nccl(piece: _Text, before: Mapping[str, Any]) -> dict[str, Any]:
    nccl: dict[str, Any] = dict(before.get("nccl") or {"version": None, "network": None})
    for name, pattern in (("version", _NCCL_VERSION), ("network", _NCCL_NETWORK)):
        match = _last(pattern, piece.text)
        if match:
            nccl[name] = match.group(1)
    lines = dict.fromkeys(nccl.get("lines", ()))
    for match in _NCCL_LINES.finditer(piece.text):
        if len(lines) == IN_ALL:
            break
        lines[shown(match.group(0))] = None
    nccl["lines"] = list(lines)
    return nccl


# --- files ----------------------------------------------------------------------------------------


def read_log(path: str, offset: int, limit: int) -> tuple[str, int, int] | None:
    """Read what a file has from an offset on, at most `limit` bytes of its beginning and its end.

    Returns:
        The text, the offset to go on from, and how many bytes between were left out. None where
        there is no such file. A file that became shorter was rotated and is read from its start.
        A last line without an end is part of the text, but the next call reads it again.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        with open(path, "rb") as log:
            size = log.seek(0, 2)
            begin = log.seek(offset if 0 <= offset <= size else 0)
            if size - begin <= limit:
                data, skipped = log.read(size - begin), 0
            else:
                half = limit // 2
                data = _whole_lines(log.read(half), at_end=True)
                log.seek(size - half)
                tail = _whole_lines(log.read(half), at_end=False)
                skipped = size - begin - len(data) - len(tail)
                data += tail
    except FileNotFoundError:
        return None
    rest = len(data) - (data.rfind(b"\n") + 1)
    return data.decode("utf-8", "replace"), size - rest, skipped


def _whole_lines(data: bytes, *, at_end: bool) -> bytes:
    """Cut a line that is only there in part."""
    if at_end:
        return data[: data.rfind(b"\n") + 1]
    return data[data.find(b"\n") + 1 :]
