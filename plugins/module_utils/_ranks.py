# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Whether a rank is at work on a node."""

from __future__ import annotations

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import NOT_FOUND, Runner

RANKS = "sparkfleet-rank@*.service"


def serving(run: Runner, pattern: str = RANKS) -> tuple[list[str], str]:
    """The units of ranks that are at work on this node, and why that is unknown if it is."""
    states = "active,activating,reloading,deactivating"
    done = run(["systemctl", "list-units", "--plain", "--no-legend", f"--state={states}", pattern])
    if done.rc == NOT_FOUND or "not been booted with systemd" in done.err:
        return [], ""  # without systemd there is no unit; a controller may be such a machine
    if done.rc != 0:
        return [], f"systemctl list-units: {done.complaint}"
    return [line.split()[0] for line in done.out.splitlines() if line.strip()], ""
