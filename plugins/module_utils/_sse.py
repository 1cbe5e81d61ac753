# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Server-sent events as the HTML standard defines them, from bytes in any portions."""

from __future__ import annotations

import codecs
import re
from typing import NamedTuple

_PIECE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")


class Event(NamedTuple):
    """One dispatched event; `name` is "message" where the stream gives none."""

    name: str
    data: str


class Decoder:
    r"""Turns bytes into events, by section 9.2.6 of the HTML standard.

    Lines end with LF, CR or CRLF; a portion may end inside a character, a line or a CRLF. Comments
    dispatch nothing, nor does an event without data. An event that the end of the stream cuts off
    is never dispatched; `unfinished` tells of it.

    >>> decoder = Decoder()
    >>> decoder.feed(b": ping\r\n\r\ndata:a\r") + decoder.feed(b"\ndata: b\n\n")
    [Event(name='message', data='a\nb')]
    """

    def __init__(self) -> None:
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._first = True
        self._after_cr = False
        self._line = ""
        self._name = ""
        self._data: list[str] = []

    @property
    def unfinished(self) -> bool:
        """Whether the stream would be cut inside an event if it ended now."""
        return bool(self._line or self._data or self._text.getstate()[0])

    def feed(self, portion: bytes) -> list[Event]:
        """The events that this portion completes."""
        text = self._text.decode(portion)
        if self._first and text:
            self._first = False
            text = text.removeprefix("\ufeff")
        events = []
        for piece in _PIECE.findall(text):
            second_half = self._after_cr and piece == "\n"
            self._after_cr = piece.endswith("\r")
            if second_half:
                continue
            body = piece.rstrip("\r\n")
            self._line += body
            if body != piece:
                event = self._end_of_line()
                if event:
                    events.append(event)
        return events

    def _end_of_line(self) -> Event | None:
        line, self._line = self._line, ""
        if line:
            field, _colon, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                self._data.append(value)
            elif field == "event":
                self._name = value
            return None
        event = Event(self._name or "message", "\n".join(self._data)) if self._data else None
        self._name, self._data = "", []
        return event
