# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Files that a run leaves on the controller for people and programs."""

from __future__ import annotations

import os
import tempfile


def default_path(name: str) -> str:
    """Where programs of a user keep state, whatever the working directory and the project are."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "sparkfleet", name)


def write_whole(path: str, text: str) -> None:
    """Write a file as a whole or not at all.

    Raises:
        OSError: it cannot be written; what was there before is untouched.
    """
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    handle, aside = tempfile.mkstemp(prefix=f".{os.path.basename(path)}-", dir=directory)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(aside, path)
    except OSError:
        os.unlink(aside)
        raise
