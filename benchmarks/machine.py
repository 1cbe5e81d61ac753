# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""On what something was measured, and bars that show what came out."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import drawsvg  # type: ignore[import-untyped]


def machine() -> dict[str, Any]:
    """The machine as it is at this moment; `load` above `cpus` means that others were at work."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": model,
        "cpus": os.cpu_count(),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 1),
        "when": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def bars(title: str, rows: Sequence[tuple[str, float, str]], path: Path) -> None:
    """Draw rows of label, length and value as a picture of horizontal bars."""
    left, width, step = 270, 380, 24
    top = max((length for _label, length, _value in rows), default=0) or 1
    style = {"font_family": "system-ui, 'DejaVu Sans', sans-serif", "fill": "#0f172a"}
    picture = drawsvg.Drawing(left + width + 110, 54 + step * len(rows), role="img")
    picture.append(drawsvg.Rectangle(0, 0, picture.width, picture.height, fill="white"))
    picture.append(drawsvg.Text(title, 14, 14, 26, font_weight="bold", **style))
    for number, (label, length, value) in enumerate(rows):
        y = 44 + number * step
        long = width * length / top
        picture.append(drawsvg.Text(label, 12, left - 10, y + 12, text_anchor="end", **style))
        picture.append(drawsvg.Rectangle(left, y, max(long, 1), 16, rx=3, fill="#3b6fb6"))
        picture.append(drawsvg.Text(value, 12, left + long + 6, y + 12, **style))
    picture.save_svg(str(path))
