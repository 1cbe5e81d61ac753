# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""STAND-IN that answers to the name of SGLang. It computes no model and holds no weights.

Started exactly as the engine of a rank is, it checks all that the rank was given, meets the other
ranks, prints the lines that prove a boot with its own values, and serves the API on rank 0 with
answers made by rules. Standard library only.
"""

BANNER = "STAND-IN ENGINE of the sparkfleet laboratory: not SGLang, computes no model"
