# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Names of systemd units that are made of paths."""

from __future__ import annotations

_KEPT = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:_.")


def escape_path(path: str) -> str:
    r"""A path as `systemd-escape --path` writes it, by the rule of systemd.unit(5).

    >>> escape_path("/models/DeepSeek-V4.1-Flash"), escape_path("/a b/"), escape_path("/")
    ('models-DeepSeek\\x2dV4.1\\x2dFlash', 'a\\x20b', '-')
    """
    parts = [part for part in path.split("/") if part]
    if not parts:
        return "-"
    raw = "/".join(parts).encode("utf-8", "surrogateescape")
    return "".join(
        "-"
        if byte == ord("/")
        else chr(byte)
        if byte in _KEPT and not (position == 0 and byte == ord("."))
        else f"\\x{byte:02x}"
        for position, byte in enumerate(raw)
    )


def mount_unit(path: str) -> str:
    r"""The only name under which systemd takes a unit that mounts at `path`.

    >>> mount_unit("/srv/spark/checkpoint")
    'srv-spark-checkpoint.mount'
    """
    return f"{escape_path(path)}.mount"
