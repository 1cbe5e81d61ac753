# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The picture of a fabric for a terminal, at most a hundred columns wide."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_cabling import End
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_picture import (
    Box,
    Link,
    Picture,
    shortened,
)

WIDTH = 100


def fabric_text(picture: Picture) -> str:
    """Hosts below each other, as boxes. A cable that was not found is dashed."""
    body = _switch(picture) if picture.switch else _chain(picture)
    lines = [f"{picture.title}, {picture.details}", "", *body]
    if picture.unplanned:
        lines += ["", "Found, but not planned:"]
        for cable in picture.unplanned:
            ends = [*map(_place, cable)] + ["switch"] * (len(cable) == 1)
            lines += textwrap.wrap(f"  {' ━━━ '.join(ends)}", WIDTH, subsequent_indent="  ")
    if picture.problems:
        lines.append("")
        for problem in picture.problems:
            lines += textwrap.wrap(
                problem, WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False
            )
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _chain(picture: Picture) -> Iterator[str]:
    """A pair, or a ring whose last cable goes back up at the left."""
    last = len(picture.boxes) - 1
    closing = picture.link(last, 0) if last > 1 else None
    back, rail = _strokes(closing.found) if closing else (" ", " ")
    for host, box in enumerate(picture.boxes):
        before = picture.link(host - 1, host) if host else None
        after = picture.link(host, host + 1) if host < last else None
        left = rail if host else " "
        top, bottom = _frame(picture, box)
        if before:
            yield f"{left} {top}  {_strokes(before.found)[1]} {_second(before)}"
            across = _strokes(before.found)[0]
            yield f"{rail} │{_ports(picture, host, before)}├{across * 2}┘ {before.rate() or ''}"
        else:
            yield f"{left} {top}"
            if closing:
                yield f"┌{back}┤{_ports(picture, host, closing)}│"
        if after:
            across, down = _strokes(after.found)
            yield f"{rail} │{_ports(picture, host, after)}├{across * 2}┐ {_title(after)}"
            yield f"{rail} {bottom}  {down} {after.subnets[0]}"
        elif closing:
            yield f"└{back}┤{_ports(picture, host, closing)}│"
            yield f"  {bottom}"
            one, other = closing.ends
            yield f"    {_place(one)} to {_place(other)}: {_title(closing)}"
            yield f"    {'  '.join(closing.subnets)}  {closing.rate() or ''}"
        else:
            yield f"{rail} {bottom}"


def _switch(picture: Picture) -> Iterator[str]:
    """Hosts with one cable each to a switch below them."""
    (link,) = picture.links
    for host, box in enumerate(picture.boxes):
        end = picture.end(link, host)
        across = _strokes(link.there.get(end))[0]
        top, bottom = _frame(picture, box)
        yield f"{top}{'  │' if host else ''}"
        corner = "┤" if host else "┐"
        yield f"│{_ports(picture, host, link)}├{across * 2}{corner} {link.rate(end) or ''}"
        yield f"{bottom}  │"
    words = f" switch  {'  '.join(link.subnets)} "
    indent = " " * (len(bottom) - 1)
    yield f"{indent}╭──┴{'─' * (len(words) - 3)}╮"
    yield f"{indent}│{words}│"
    yield f"{indent}╰{'─' * len(words)}╯"


def _strokes(found: bool | None) -> tuple[str, str]:
    """How a cable runs across and down."""
    return ("╌", "╎") if found is False else ("─", "│")


def _title(link: Link) -> str:
    state = {True: ", found", False: ", not found", None: ""}[link.found]
    return f"cable {link.number}{state}"


def _second(link: Link) -> str:
    return link.subnets[1] if len(link.subnets) > 1 else ""


def _place(end: End) -> str:
    return f"{shortened(end.host, 24)} cage {end.cage}"


def _frame(picture: Picture, box: Box) -> tuple[str, str]:
    """The upper edge of a box, with the name in it, and the lower one."""
    inside = len(_ports(picture, 0, picture.links[0]))
    rank = f" rank {box.rank}{', head' if box.rank == 0 else ''} "
    name = f" {shortened(box.name, inside - len(rank) - 4)} "
    fill = "─" * (inside - len(name) - len(rank) - 1)
    return f"╭{name}{fill}{rank}─╮", f"╰{'─' * inside}╯"


def _ports(picture: Picture, host: int, link: Link) -> str:
    """The end of a cable at a host, with its addresses; equally long for all hosts."""
    cage = picture.end(link, host).cage
    every = [
        port.address for box in picture.boxes for ports in box.ports.values() for port in ports
    ]
    width = max(map(len, every))
    addresses = "  ".join(port.address.ljust(width) for port in picture.boxes[host].ports[cage])
    return f" cage {cage}  {addresses:<22} "
