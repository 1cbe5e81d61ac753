# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of the stand-in engine: Python, and the package ``sglang`` of this folder."""

from __future__ import annotations

from pathlib import Path

from lab.image import Image

REFERENCE = "sparkfleet-standin:lab"
_SOURCE = Path(__file__).with_name("sglang")
_PLACE = "usr/lib/python3/dist-packages/sglang"


def image() -> Image:
    """As of the files of this checkout."""
    return Image(
        reference=REFERENCE,
        name="standin",
        suite="trixie",
        files={f"{_PLACE}/{p.name}": p.read_bytes() for p in sorted(_SOURCE.glob("*.py"))},
        labels={"sparkfleet.standin": "computes no model"},
    )
