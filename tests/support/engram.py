# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What packed Engram rows must hold, told from the lab's checkpoint and not from the packer."""

from __future__ import annotations

import hashlib

from lab.checkpoint import SCALE, WEIGHT, table_bytes


def packed_digest(layer: int, rows: int, rank: int, ranks: int = 4) -> str:
    """The sha256 of all rows in the file of a rank, without its header of 4096 bytes."""
    low, high = rows * rank // ranks, rows * (rank + 1) // ranks
    weight = memoryview(table_bytes(1, layer, "weight", low, high - low))
    scale = memoryview(table_bytes(1, layer, "scale", low, high - low))
    made = hashlib.sha256()
    for k in range(high - low):
        made.update(weight[WEIGHT * k : WEIGHT * (k + 1)])
        made.update(scale[SCALE * k : SCALE * (k + 1)])
    return made.hexdigest()
