"""Frames byte by byte. That they are heard is shown on the wires of the container lab."""

from __future__ import annotations

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_frames import (
    arp_claim,
    arp_request,
    mac_text,
    probe_frame,
    read_tag,
    tag_of,
)

OWN = bytes.fromhex("020000000110")
PEER = bytes.fromhex("020000000220")
TAG = tag_of("2026-11-30T12:00:00")


def test_a_probe_is_a_broadcast_of_the_experimental_ethertype() -> None:
    frame = probe_frame(OWN, TAG)
    assert frame[:14].hex() == "ffffffffffff" + OWN.hex() + "88b5"
    assert len(frame) == 60  # the minimum of Ethernet
    assert read_tag(frame) == TAG


def test_runs_are_told_apart() -> None:
    assert read_tag(probe_frame(OWN, tag_of("another"))) != TAG
    assert len(TAG) == 16


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        probe_frame(OWN, TAG)[:30],
        probe_frame(OWN, TAG).replace(b"\x88\xb5", b"\x88\xb6"),
        probe_frame(OWN, TAG).replace(b"SFLP\x01", b"SFLP\x02"),
        probe_frame(OWN, TAG).replace(b"SFLP", b"TOPO"),  # another program's, same EtherType
        arp_request(OWN, "10.20.0.11", "10.20.0.12"),
    ],
)
def test_other_frames_are_no_probes(frame: bytes) -> None:
    assert read_tag(frame) is None


def test_an_arp_request_as_it_goes_over_the_wire() -> None:
    assert arp_request(OWN, "10.20.0.11", "10.20.0.12")[:42].hex(" ", 2) == (
        "ffff ffff ffff 0200 0000 0110 0806 0001 0800 0604 0001 "
        "0200 0000 0110 0a14 000b 0000 0000 0000 0a14 000c"
    )


def reply(sender: bytes, address: str, operation: str = "0002") -> bytes:
    numbers = bytes(int(part) for part in address.split("."))
    head = OWN + sender + bytes.fromhex("0806000108000604" + operation)
    return head + sender + numbers + OWN + bytes([10, 20, 0, 11])


@pytest.mark.parametrize(
    ("frame", "claim"),
    [
        (reply(PEER, "10.20.0.12"), "02:00:00:00:02:20"),
        (reply(PEER, "10.20.0.13"), None),
        (reply(PEER, "10.20.0.12", "0001"), None),  # somebody else's question
        (reply(PEER, "10.20.0.12")[:30], None),
        (probe_frame(PEER, TAG), None),
    ],
)
def test_who_claims_an_address(frame: bytes, claim: str | None) -> None:
    assert arp_claim(frame, "10.20.0.12") == claim


def test_macs_as_text() -> None:
    assert mac_text(OWN) == "02:00:00:00:01:10"
