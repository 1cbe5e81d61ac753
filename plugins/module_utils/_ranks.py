# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Whether a rank is at work on a node."""

from __future__ import annotations

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import NOT_FOUND, Runner
from ansible_collections.sparkfleet.cluster.plugins.module_utils._systemd import (
    ask_at_work,
    read_names,
)


def serving(run: Runner) -> tuple[list[str], str]:
    """The units of ranks that are at work on this node, and why that is unknown if it is."""
    done = ask_at_work(run)
    if done.rc == NOT_FOUND or "not been booted with systemd" in done.err:
        return [], ""  # without systemd there is no unit; a controller may be such a machine
    if done.rc != 0:
        return [], f"systemctl list-units: {done.complaint}"
    return read_names(done.out), ""
