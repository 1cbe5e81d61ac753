# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands that README and the quick start tell their readers to type.

Blocks of commands are marked console. A comment before one says on what its commands run:
``on: sparks`` on the Sparks of the inventory, ``on: head`` as root on the head of the cell. Without
a mark they run on the machine of whoever reads.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tests.support.playbook import ROOT

PAGES = ("README.md", "docs/quick-start.md")
CONSOLE = re.compile(r"(?:<!-- on: (\w+) -->\n)?^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Command(NamedTuple):
    """A line to type, with continuations joined; ``place`` is what the mark names, or nothing."""

    page: str
    place: str
    line: str


def commands() -> list[Command]:
    """All of them, in the order in which they are read."""
    return [
        Command(page, place, line)
        for page in PAGES
        for place, block in CONSOLE.findall((ROOT / page).read_text(encoding="utf-8"))
        for line in block.replace("\\\n", " ").splitlines()
        if line.strip()
    ]
