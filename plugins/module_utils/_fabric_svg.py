# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The picture of a fabric as SVG.

Hosts stand in two rows with their cages between them: a ring runs along the upper row to the right
and along the lower one back. The cage that leads to the host before and the one that leads to the
next are on the sides where these hosts are.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_cabling import (
    CAGES,
    Cable,
    End,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import PlanError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_picture import (
    Box,
    Link,
    Picture,
    Rate,
    shortened,
)

try:
    import drawsvg as draw  # type: ignore[import-untyped]
except ImportError:  # fabric_svg() tells it
    draw = None

_SANS = "system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
_MONO = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"
_WHITE, _INK, _QUIET, _FAINT, _LINE = "#ffffff", "#0f172a", "#64748b", "#94a3b8", "#cbd5e1"
_PLANNED, _FOUND, _MISSING, _WRONG = "#475569", "#15803d", "#b45309", "#c81e1e"
_STATE = {None: _PLANNED, True: _FOUND, False: _MISSING}

# All sizes are in pixels.
_MARGIN, _TITLE = 36, 88
_WIDTH, _HEIGHT = 252, 124  # of a card
_GAP = 72  # between the cards of a row
_BETWEEN = 288  # between the rows; more where they are wired criss-cross
_CROSSING = 72
_PLUG = 10  # how far a plug sticks out of its card
_HANG = 72  # how far a cable between neighbours of a row hangs down

Point = tuple[float, float]
Curve = tuple[Point, Point, Point, Point]  # a cubic Bezier curve


class Socket(NamedTuple):
    """Where a cage is drawn, and whether its cable leaves downwards (1) or upwards (-1)."""

    x: float
    y: float
    way: int

    @property
    def plug(self) -> Point:
        """Where the cable begins."""
        return self.x, self.y + self.way * _PLUG


def fabric_svg(picture: Picture) -> str:
    """The picture as the text of an SVG file, always the same for the same picture.

    Raises:
        PlanError: drawsvg cannot be imported.
    """
    if draw is None:
        remedy = "install it for the Python that runs Ansible: python3 -m pip install drawsvg."
        raise PlanError([f"the Python library drawsvg is missing on the controller; {remedy}"])
    return _Drawing(picture).svg()


class _Drawing:
    """Cables lie below cards, and both below labels, so each kind is collected by itself."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._cables: list[Any] = []
        self._cards: list[Any] = []
        self._labels: list[Any] = []
        self._taken: list[tuple[Point, float, float]] = []  # centre, width and height of labels
        self._sockets: dict[End, Socket] = {}
        count = len(picture.boxes)
        one_row = count <= 3 if picture.switch else count == 2
        extra = _CROSSING if picture.unplanned else 0
        self._upper = count if one_row else (count + 1) // 2
        self._pitch = _WIDTH + _GAP
        row = self._upper * self._pitch - _GAP
        self._width = max(row + 2 * _MARGIN, 640)
        self._left = (self._width - row) / 2
        self._right = self._left + row
        self._middle = _TITLE + _HEIGHT + (124 if one_row else (_BETWEEN + extra) / 2)
        self._bottom = self._middle + (extra if one_row else (_BETWEEN + extra) / 2 + _HEIGHT)

    def svg(self) -> str:
        picture = self._picture
        for host, box in enumerate(picture.boxes):
            self._card(host, box)
        for link in picture.links:
            if picture.switch:
                self._switch(link)
            else:
                self._cable(link)
        for cable in picture.unplanned:
            self._unplanned(cable)
        head = [
            _text(picture.title, _MARGIN, 42, 20, weight="bold"),
            _text(picture.details, _MARGIN, 64, 13, _QUIET),
        ]
        foot = list(self._legend()) + list(self._problems())
        height = self._bottom + 24
        drawing = draw.Drawing(self._width, height, role="img", aria_label=picture.title)
        drawing.append(draw.Rectangle(0, 0, self._width, height, fill=_WHITE))
        drawing.extend([*self._cables, *self._cards, *self._labels, *head, *foot])
        return str(drawing.as_svg())

    def _place(self, host: int) -> tuple[float, float, int]:
        """The upper left corner of a card, and the way its cables go."""
        if host < self._upper:
            return self._left + host * self._pitch, _TITLE, 1
        lower = len(self._picture.boxes) - self._upper
        column = host - self._upper
        if not self._picture.switch:
            column = lower - 1 - column
        indent = (self._upper - lower) / 2
        return self._left + (indent + column) * self._pitch, self._bottom - _HEIGHT, -1

    def _sides(self, host: int) -> tuple[int, int]:
        """The cages on the left and on the right side of a card."""
        picture = self._picture
        if picture.switch:
            return CAGES
        last = len(picture.boxes) - 1
        if host == last == 1:  # of a pair
            onward = 1 - picture.end(picture.links[0], host).cage
        else:
            onward = picture.end(picture.link(host, (host + 1) % (last + 1)), host).cage
        return (1 - onward, onward) if host < self._upper else (onward, 1 - onward)

    def _card(self, host: int, box: Box) -> None:
        x, y, way = self._place(host)
        edge = "#2563eb" if box.rank == 0 else _LINE
        card = draw.Rectangle(
            x, y, _WIDTH, _HEIGHT, rx=10, fill="#f8fafc", stroke=edge, stroke_width=1.5
        )
        card.append_title(box.name)
        rank = f"rank {box.rank}{' · head' if box.rank == 0 else ''}"
        name, rule, ports = (26, 38, 56) if way > 0 else (_HEIGHT - 14, _HEIGHT - 38, 32)
        self._cards += [
            card,
            _text(
                shortened(box.name, 22 - len(rank) * 2 // 3), x + 14, y + name, 15, weight="bold"
            ),
            _text(rank, x + _WIDTH - 14, y + name, 12, _QUIET, anchor="end"),
            draw.Line(x + 1, y + rule, x + _WIDTH - 1, y + rule, stroke=_LINE),
        ]
        for side, cage in enumerate(self._sides(host)):
            centre = x + (side + 0.5) * _WIDTH / 2
            socket = Socket(centre, y + (_HEIGHT if way > 0 else 0), way)
            self._sockets[End(box.name, cage)] = socket
            used = cage in box.ports
            self._cards += [
                draw.Rectangle(
                    *(centre - 30, socket.y - _PLUG, 60, 2 * _PLUG),
                    rx=4,
                    fill=_PLANNED if used else _WHITE,
                    stroke=_PLANNED if used else _LINE,
                ),
                _text(
                    f"cage {cage}",
                    *(centre, socket.y + 4, 11, _WHITE if used else _FAINT),
                    weight="bold",
                    anchor="middle",
                ),
            ]
            for twin, port in enumerate(box.ports.get(cage, ())):
                line = y + ports + 30 * twin
                self._cards += [
                    _text(port.address, centre, line, 12, font=_MONO, anchor="middle"),
                    _text(port.netdev, centre, line + 13, 10, _QUIET, font=_MONO, anchor="middle"),
                ]
            if not used:
                self._cards.append(
                    _text("not used", centre, y + ports + 20, 11, _FAINT, anchor="middle")
                )

    def _cable(self, link: Link) -> None:
        one, other = (self._sockets[end] for end in link.ends)
        curve = _curve(one, other, _HANG)
        about = f"cable {link.number}: {link.ends[0]} to {link.ends[1]}"
        self._stroke(curve, _STATE[link.found], about, dashed=link.found is False)
        spot = [_along(curve, 0.5)]
        if link.found is False:
            self._label(spot, _MISSING, f"cable {link.number}, expected")
        else:
            colour = _STATE[link.found]
            self._label(spot, colour, f"cable {link.number}", link.subnets, link.rate())

    def _switch(self, link: Link) -> None:
        box = self._left, self._middle - 22, self._right - self._left, 44
        centre = (self._left + self._right) / 2
        words = " · ".join(["switch", *link.subnets])
        self._cards += [
            draw.Rectangle(*box, rx=8, fill=_PLANNED),
            _text(words, centre, self._middle + 5, 13, _WHITE, font=_MONO, anchor="middle"),
        ]
        for end in link.ends:
            there = link.there.get(end)
            curve = self._to_switch(end)
            self._stroke(curve, _STATE[there], f"{end} to the switch", dashed=there is False)
            if rate := link.rate(end):
                self._label([_along(curve, 0.5)], _STATE[there], "", (), rate)

    def _to_switch(self, end: End) -> Curve:
        x, y = self._sockets[end].plug
        edge = self._middle - 22 * self._sockets[end].way
        return (x, y), (x, (2 * y + edge) / 3), (x, (y + 2 * edge) / 3), (x, edge)

    def _unplanned(self, cable: Cable) -> None:
        """As it was found: to a cage, to the switch, or to something that is not in the picture."""
        ours = [end for end in cable if end in self._sockets]
        words = " to ".join(f"{shortened(end.host, 14)}:{end.cage}" for end in cable)
        spots = [0.5 + side * step / 50 for step in range(18) for side in (1, -1)]
        if self._picture.switch and len(cable) == 1:
            curves = [self._to_switch(cable[0])]
            words += " to switch"
        elif len(ours) == len(cable) == 2:
            curves = [_curve(self._sockets[ours[0]], self._sockets[ours[1]], _HANG + 56)]
        else:
            # Several cages that hear each other meet in a point.
            sockets = [self._sockets[end] for end in ours]
            x = sum(socket.x for socket in sockets) / len(sockets)
            y = self._middle if len(ours) > 1 else sockets[0].y + sockets[0].way * 60
            curves = [(s.plug, (s.x, (s.plug[1] + y) / 2), (x, y), (x, y)) for s in sockets]
            spots = [1.0]
            if len(ours) > 1:
                words = f"{len(cable)} hear each other"
        for curve in curves:
            self._stroke(curve, _WRONG, f"found: {' to '.join(map(str, cable))}", dashed=False)
        self._label([_along(curves[0], at) for at in spots], _WRONG, words, optional=True)

    def _stroke(self, curve: Curve, colour: str, about: str, dashed: bool) -> None:
        (x, y), *rest = curve
        points = [value for point in rest for value in point]
        # A wider white line below lifts a cable off those it crosses.
        for stroke, width, dash in (
            (_WHITE, 9, None),
            (colour, 3 if dashed else 4, "9 6" if dashed else None),
        ):
            path = draw.Path(fill="none", stroke=stroke, stroke_width=width)
            if dash:
                path.args["stroke-dasharray"] = dash
            path.M(x, y).C(*points)
            path.append_title(about)
            self._cables.append(path)

    def _label(
        self,
        spots: Sequence[Point],
        colour: str,
        title: str,
        lines: Sequence[str] = (),
        rate: Rate | None = None,
        optional: bool = False,
    ) -> None:
        """On the first spot that is free; if there is none, on the first, or nowhere."""
        wide = max(
            *(len(line) * 6.9 + 20 for line in lines),
            (len(title) + (len(str(rate)) + 2 if rate and title else 0)) * 6.9 + 20,
            len(str(rate or "")) * 7 + 16,
        )
        high = 24 + 15 * len(lines)
        colour = _WRONG if rate and rate.ok is False else colour
        free = [spot for spot in spots if self._free(spot, wide, high)]
        if optional and not free:
            return
        x, y = (free or spots)[0]
        self._taken.append(((x, y), wide, high))
        top = y - high / 2
        self._labels.append(
            draw.Rectangle(
                x - wide / 2, top, wide, high, rx=6, fill=_WHITE, stroke=colour, stroke_width=1.5
            )
        )
        if title:
            side, anchor = (x - wide / 2 + 10, "start") if rate else (x, "middle")
            self._labels.append(
                _text(title, side, top + 16, 11, colour, weight="bold", anchor=anchor)
            )
        if rate:
            side, anchor = (x + wide / 2 - 10, "end") if title else (x, "middle")
            shade = {True: _FOUND, False: _WRONG, None: _INK}[rate.ok]
            self._labels.append(
                _text(str(rate), side, top + 16, 11, shade, weight="bold", anchor=anchor)
            )
        for number, line in enumerate(lines):
            self._labels.append(
                _text(line, x, top + 31 + 15 * number, 11, font=_MONO, anchor="middle")
            )

    def _free(self, spot: Point, wide: float, high: float) -> bool:
        return all(
            abs(spot[0] - x) * 2 >= wide + other_wide + 12
            or abs(spot[1] - y) * 2 >= high + other_high + 12
            for (x, y), other_wide, other_high in self._taken
        )

    def _legend(self) -> Iterator[Any]:
        """What the strokes mean, where there is more than the plan."""
        states = {there for link in self._picture.links for there in link.there.values()}
        kinds = [
            (colour, words, dash)
            for there, colour, words, dash in (
                (True in states, _FOUND, "as planned", None),
                (False in states, _MISSING, "expected, not found", "9 6"),
                (bool(self._picture.unplanned), _WRONG, "found, not planned", None),
            )
            if there
        ]
        if not kinds:
            return
        self._bottom += 40
        x = float(_MARGIN)
        for colour, words, dash in kinds:
            stroke = draw.Line(
                x, self._bottom - 4, x + 36, self._bottom - 4, stroke=colour, stroke_width=4
            )
            if dash:
                stroke.args["stroke-dasharray"] = dash
            yield stroke
            yield _text(words, x + 46, self._bottom, 12)
            x += 46 + len(words) * 7 + 36

    def _problems(self) -> Iterator[Any]:
        if not self._picture.problems:
            return
        self._bottom += 10
        columns = int((self._width - 2 * _MARGIN) / 7)
        for problem in self._picture.problems:
            for number, line in enumerate(textwrap.wrap(problem, columns - 2)):
                self._bottom += 19
                if number == 0:
                    yield _text("•", _MARGIN, self._bottom, 12, _WRONG)
                yield _text(line, _MARGIN + 14, self._bottom, 12)


def _text(
    words: str,
    x: float,
    y: float,
    size: float,
    colour: str = _INK,
    *,
    font: str = _SANS,
    weight: str = "normal",
    anchor: str = "start",
) -> Any:
    return draw.Text(
        words, size, x, y, fill=colour, font_family=font, font_weight=weight, text_anchor=anchor
    )


def _curve(one: Socket, other: Socket, hang: float) -> Curve:
    """A cable between two sockets; of one row, it hangs so far off the row."""
    (x1, y1), (x2, y2) = one.plug, other.plug
    if one.way == other.way:
        # The middle of the curve lies at three quarters of its handles.
        reach = one.way * hang / 0.75
        return (x1, y1), (x1, y1 + reach), (x2, y2 + reach), (x2, y2)
    half = (y2 - y1) / 2
    return (x1, y1), (x1, y1 + half), (x2, y2 - half), (x2, y2)


def _along(curve: Curve, at: float) -> Point:
    """A point of a curve, from 0 at its beginning to 1 at its end."""
    weights = ((1 - at) ** 3, 3 * at * (1 - at) ** 2, 3 * at**2 * (1 - at), at**3)
    x = sum(weight * point[0] for weight, point in zip(weights, curve, strict=True))
    y = sum(weight * point[1] for weight, point in zip(weights, curve, strict=True))
    return x, y
