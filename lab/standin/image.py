# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of the stand-in engine: Python, and the package ``sglang`` of this folder."""

from __future__ import annotations

import platform
from pathlib import Path

from lab.image import Image
from lab.standin.library import library

REFERENCE = "sparkfleet-standin:lab"
_SOURCE = Path(__file__).with_name("sglang")
_PLACE = "usr/lib/python3/dist-packages/sglang"
# Where torch finds NCCL in the real image, and a patched one is bound over it.
_NCCL = "opt/sglang/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"


def image() -> Image:
    """As of the files of this checkout."""
    return Image(
        reference=REFERENCE,
        name="standin",
        suite="trixie",
        files={
            **{f"{_PLACE}/{p.name}": p.read_bytes() for p in sorted(_SOURCE.glob("*.py"))},
            _NCCL: library("STAND-IN, computes nothing", machine=platform.machine()),
        },
        labels={"sparkfleet.standin": "computes no model"},
    )
