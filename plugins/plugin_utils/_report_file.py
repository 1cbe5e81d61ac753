# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This plugin utility is private to the sparkfleet.cluster collection.
"""Reports that a run leaves on the controller. That one cannot be written fails nothing."""

from __future__ import annotations

from ansible.utils.display import Display
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import write_whole

display = Display()


def keep(path: str, text: str, complaint: str = "Not written") -> list[str]:
    """Write a report and say where it is; warn where it cannot be written.

    Returns:
        The path, in a list that is empty where there is no file.
    """
    try:
        write_whole(path, text)
    except OSError as error:
        display.warning(f"{complaint}: {path}: {error.strerror}")
        return []
    display.display(f"Report: {path}")
    return [path]
