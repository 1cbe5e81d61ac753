# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The emulated GID table: the kernel's slot rules, one line of events at a time.

Events: ``+a`` / ``-a`` add or remove an address, ``hold`` / ``free`` a queue pair that keeps what
is removed meanwhile, ``gone`` the netdev leaves. Result: the slots from 2 on that are not empty.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

GUEST = Path(__file__).resolve().parents[3] / "lab/guest/usr/lib/sparklab"
MAC = "52:54:00:00:01:10"
ADDRESSES = {
    "A": "10.100.0.1",
    "B": "169.254.7.1",
    "C": "10.9.9.9",
    "P": "fe80::1234:5678:9abc:def0",  # stable-privacy link-local
    "L": "fe80::5054:ff:fe00:110",  # link-local made from the MAC: the default GID itself
}


@pytest.fixture(scope="module")
def gids() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sparklab_gids", GUEST / "gids.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def played(gids: ModuleType, events: str) -> str:
    table = gids.GidTable()
    table.set_mac(MAC, "enp1s0f0np0")
    for event in events.split():
        if event in ("hold", "free"):
            table.hold(event == "hold")
        elif event == "gone":
            table.clear()
        else:
            act = table.add if event[0] == "+" else table.remove
            act(ADDRESSES[event[1]], "enp1s0f0np0")
    names = {gids.address_gid(address): name for name, address in ADDRESSES.items()}
    return " ".join(
        f"{slot}:{names[entry[0]]}{entry[1][-2:]}"
        for slot, entry in enumerate(table.slots)
        if entry and slot > 1
    )


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("", ""),
        ("+A", "2:Av1 3:Av2"),
        ("+L +A", "2:Av1 3:Av2"),
        ("+P +A", "2:Pv1 3:Pv2 4:Av1 5:Av2"),
        ("+B +A", "2:Bv1 3:Bv2 4:Av1 5:Av2"),
        ("+B +A -B", "4:Av1 5:Av2"),
        ("+B +A -B +C", "2:Cv1 3:Cv2 4:Av1 5:Av2"),
        ("+A -A +A", "2:Av1 3:Av2"),
        ("+A +A", "2:Av1 3:Av2"),
        ("+A hold -A +A", "4:Av1 5:Av2"),
        ("+A hold -A +A free", "4:Av1 5:Av2"),
        ("+A hold -A +A free +C", "2:Cv1 3:Cv2 4:Av1 5:Av2"),
        ("+A gone", ""),
        ("-A", ""),
    ],
)
def test_slots_after_events(gids: ModuleType, events: str, expected: str) -> None:
    assert played(gids, events) == expected


def test_text_of_a_gid_is_the_long_form_of_sysfs(gids: ModuleType) -> None:
    assert gids.address_gid("10.20.0.11") == "0000:0000:0000:0000:0000:ffff:0a14:000b"
    assert gids.address_gid("fd93::b") == "fd93:0000:0000:0000:0000:0000:0000:000b"
    assert gids.default_gid("4c:bb:47:2c:11:22") == "fe80:0000:0000:0000:4ebb:47ff:fe2c:1122"


def test_a_full_table_drops_what_does_not_fit(gids: ModuleType) -> None:
    table = gids.GidTable()
    for number in range(200):
        table.add(f"10.1.{number}.1", "enp1s0f0np0")
    assert len(table.slots) == gids.LENGTH
    assert all(table.slots[2:])
