"""Event streams by the HTML standard, whole and cut into single bytes."""

from __future__ import annotations

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._sse import Decoder, Event

LEGAL = [
    (b"data: a\n\n", ["a"]),
    (b"data:a\n\n", ["a"]),
    (b"data:  a\n\n", [" a"]),
    (b":\n\n: ping\r\n\r\ndata:x\r\n\r\ndata: [DONE]\n\n", ["x", "[DONE]"]),
    (b'data: {"a":\ndata: 1}\n\n', ['{"a":\n1}']),
    (b"data: a\r\rdata: b\r\r", ["a", "b"]),
    (b"data\n\n", [""]),
    (b"id: 7\nretry: 10\nunknown: x\n\n", []),
    (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
    (b"data: \xe2\x82\xac\n\n", ["\u20ac"]),
    (b"data: a\xc2\x85b\xe2\x80\xa8c\x0cd\n\n", ["a\x85b\u2028c\x0cd"]),
    (b"data: a\n\n\n\n\ndata: b\n\n", ["a", "b"]),
]


@pytest.mark.parametrize(("stream", "wanted"), LEGAL)
@pytest.mark.parametrize("size", [1, 2, 3, 1000])
def test_legal_framing_in_any_portions(stream, wanted, size):
    decoder = Decoder()
    found = []
    for start in range(0, len(stream), size):
        found += decoder.feed(stream[start : start + size])
    assert [event.data for event in found] == wanted
    assert not decoder.unfinished


def test_an_event_has_the_name_that_was_given_to_it_alone():
    stream = b"event: error\ndata: x\n\ndata: y\n\n"
    assert Decoder().feed(stream) == [Event("error", "x"), Event("message", "y")]


@pytest.mark.parametrize("cut", [b"data: a", b"data: a\n", b"data: a\n\ndat", b"data: \xe2\x82"])
def test_what_the_end_cuts_off_is_told(cut):
    decoder = Decoder()
    decoder.feed(cut)
    assert decoder.unfinished


def test_bytes_that_are_no_utf8_are_replaced():
    assert Decoder().feed(b"data: \xff\n\n") == [Event("message", "\ufffd")]
