# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Files that change as a whole: what a run leaves on the controller, and settings of nodes."""

from __future__ import annotations

import os
import tempfile


def default_path(name: str) -> str:
    """Where programs of a user keep state, whatever the working directory and the project are."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "sparkfleet", name)


def write_whole(path: str, text: str, mode: int | None = None) -> None:
    """Write a file as a whole or not at all, and never readable by more than it should be.

    With a mode it is a setting of a node: it gets that mode, and is on the disk before it counts.

    Raises:
        OSError: it cannot be written; what was there before is untouched.
    """
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    # The leading dot keeps daemons from reading it before it is whole.
    handle, aside = tempfile.mkstemp(prefix=f".{os.path.basename(path)}-", dir=directory)
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as stream:
            stream.write(text)
            if mode is not None:
                os.fchmod(stream.fileno(), mode)
                stream.flush()
                os.fsync(stream.fileno())
        os.replace(aside, path)
    except OSError:
        os.unlink(aside)
        raise
