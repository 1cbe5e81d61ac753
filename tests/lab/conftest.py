# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labs for tests: made through the command line as a person makes them, removed in any case."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from tests.support.labs import LabUnderTest, lab_name


@pytest.fixture(scope="session")
def make_lab() -> Iterator[Callable[..., LabUnderTest]]:
    """``make_lab(name, backend, *options_of_up)``: a lab that is gone after the session.

    With LAB_KEEP=1 labs stay, for a look around and for the next session.
    """
    made: list[LabUnderTest] = []

    def make(name: str, backend: str, *options: str) -> LabUnderTest:
        lab = LabUnderTest(lab_name(name))
        made.append(lab)
        lab.cli("--backend", backend, "up", *options)
        return lab

    yield make
    for lab in () if os.environ.get("LAB_KEEP") else made:
        lab.cli("down", check=False)
