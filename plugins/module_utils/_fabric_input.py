# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Read plain data that people write, and keep everything that is wrong with it.

Values arrive as YAML and the command line leave them: numbers may be text, and text with digits and
colons may have become a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import suggestion

try:
    from netaddr import AddrFormatError, IPNetwork
except ImportError:  # told by require_netaddr() when it is needed
    HAS_NETADDR = False
else:
    HAS_NETADDR = True


class PlanError(ValueError):
    """Why something is refused: `problems` are sentences, each with its place and remedy."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(dict.fromkeys(problems))
        several = "".join(f"\n- {problem}" for problem in self.problems)
        text = f"{len(self.problems)} problems:{several}"
        super().__init__(text if len(self.problems) > 1 else "".join(self.problems))


def require_netaddr() -> None:
    """Say in one line what is missing on the controller.

    Raises:
        PlanError: netaddr cannot be imported.
    """
    if not HAS_NETADDR:
        remedy = "install it for the Python that runs Ansible: python3 -m pip install netaddr."
        raise PlanError([f"the Python library netaddr is missing on the controller; {remedy}"])


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    """Whether a value is a list, of whatever kind Ansible hands out."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


class Reader:
    """Reads one value at a time. None is the default; so is, for the time being, a wrong value."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def number(self, where: str, value: Any, low: int, high: int, default: int) -> int:
        """A whole number, which may be written as text."""
        if value is None:
            return default
        text = str(value).strip()
        if isinstance(value, bool) or not text.isdecimal() or not low <= int(text) <= high:
            self.problems.append(f"{where} is {value!r}, expected a number from {low} to {high}.")
            return default
        return int(text)

    def word(self, where: str, value: Any, choices: Sequence[str], default: str) -> str:
        """One of several words."""
        if value is None:
            return default
        if not isinstance(value, str) or value not in choices:
            hint = suggestion(value, choices) if isinstance(value, str) else ""
            expected = f"{', '.join(choices[:-1])} or {choices[-1]}"
            self.problems.append(f"{where} is {value!r}, expected {expected}{hint}.")
            return default
        return value

    def name(self, where: str, value: Any, form: re.Pattern[str], what: str, default: str) -> str:
        """Text of a certain form."""
        if value is None:
            return default
        if not isinstance(value, str) or not form.fullmatch(value):
            quote = "" if isinstance(value, str) else "; if YAML made that of a name, quote it"
            self.problems.append(f"{where} is {value!r}, expected {what}{quote}.")
            return default
        return value

    def network(self, where: str, value: Any, example: str) -> IPNetwork | None:
        """A network, or an address."""
        try:
            if isinstance(value, str):
                return IPNetwork(value.strip())
            quote = "; quote it"
        except (AddrFormatError, ValueError):
            quote = ""
        self.problems.append(f"{where} is {value!r}, expected a network like {example}{quote}.")
        return None

    def keys(self, where: str, record: Mapping[str, Any], known: Sequence[str]) -> None:
        """Nothing but known keys: a misspelt one would be ignored in silence."""
        self.problems += [
            f"{where}: nothing reads {key!r}{suggestion(key, known)}; there are {', '.join(known)}."
            for key in record
            if key not in known
        ]
