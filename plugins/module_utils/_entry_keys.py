# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The file of API keys: one `name:key` a line. No message of this module ever contains a key."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import NamedTuple

# What RFC 6750 allows in a bearer token. It needs no quoting anywhere.
_KEY = re.compile(r"[A-Za-z0-9._~+/-]+=*")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
SHORTEST = 16


class Key(NamedTuple):
    """A key and the name that logs and reports show for it. Several keys may have one name."""

    name: str
    key: str


class KeysError(Exception):
    """A file of keys that cannot be used; the text is for people and tells no key."""


def parse(text: str, where: str) -> list[Key]:
    """The keys of a file; empty lines and lines with `#` before them do not count.

    Raises:
        KeysError: with every line that is wrong, by its number.
    """
    found: list[Key] = []
    wrong: list[str] = []
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("#"):
            continue
        name, colon, key = line.partition(":")
        entry = Key(name.strip(), key.strip())
        reason = _fault(entry) if colon else "expected name:key"
        if not reason and entry.key in {known.key for known in found}:
            reason = "the same key again"
        if reason:
            wrong.append(f"line {number}: {reason}")
        found.append(entry)
    if wrong:
        raise KeysError(f"{where}: {'; '.join(wrong)}")
    if not found:
        raise KeysError(f"{where} has no key; expected lines of the form name:key")
    return found


def pick(text: str, name: str, where: str) -> str:
    """The key to send: that of a name, else the first. A file with nothing but a key will do.

    Raises:
        KeysError: there is none.
    """
    lines = [line for line in map(str.strip, text.splitlines()) if line and line[0] != "#"]
    if len(lines) == 1 and ":" not in lines[0] and not name:
        if not _KEY.fullmatch(lines[0]):
            raise KeysError(f"{where} holds characters that no key has")
        return lines[0]
    for entry in parse(text, where):
        if not name or entry.name == name:
            return entry.key
    raise KeysError(f"{where} has no key of the name {name}")


def render(keys: Sequence[Key]) -> str:
    return "".join(f"{entry.name}:{entry.key}\n" for entry in keys)


def generate(name: str) -> Key:
    """A new key of 256 random bits."""
    return Key(name, f"sk-{secrets.token_urlsafe(32)}")


def _fault(entry: Key) -> str:
    if not _NAME.fullmatch(entry.name):
        return "a name has letters, digits and . _ @ - only, at most 64"
    if not _KEY.fullmatch(entry.key):
        return "a key has letters, digits and . _ ~ + / - only, and = at its end"
    if len(entry.key) < SHORTEST:
        return f"a key shorter than {SHORTEST} characters can be guessed"
    return ""
