# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who hears whom at layer 2: what is plugged in, whatever the addresses say."""

from __future__ import annotations

import json
from pathlib import Path

from lab.cabling import cables
from tests.support.labs import ROOT, LabUnderTest

_NEIGHBOURS = Path(ROOT, "tests/lab/neighbours.py")
Heard = dict[tuple[str, int], set[str]]


def heard(lab: LabUnderTest, seconds: float = 2) -> Heard:
    """What every cage hears, its own twin included: {(host, cage): {"spark2:1"}}."""
    script = f"python3 - {seconds} <<'EOF'\n{_NEIGHBOURS.read_text()}\nEOF"
    found: Heard = {}
    for host, text in lab.everywhere(script).items():
        for cage, name in json.loads(text):
            found.setdefault((host, cage), set()).add(name)
    return found


def expected_to_hear(cabling: str, hosts: int) -> Heard:
    """A segment carries both twins of all its ends, so everybody hears everybody on it."""
    return {
        (f"spark{end.host + 1}", end.cage): {
            f"spark{other.host + 1}:{other.cage}" for other in cable.ends
        }
        for cable in cables(cabling, hosts)
        for end in cable.ends
    }
