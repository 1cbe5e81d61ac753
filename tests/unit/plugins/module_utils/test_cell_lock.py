# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who may take a cell, and that two who come at the same moment do not both get it."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _cell_lock
from ansible_collections.sparkfleet.cluster.plugins.module_utils._cell_lock import Holder, Locked

ANN = Holder("ann@desk", "site.yml", 100, 7, since=1000.0)
LATER = ANN._replace(pid=200, born=9, since=2000.0)
BOB = Holder("bob@desk2", "playbooks/upgrade.yml", 100, 7, since=1700.0)


def take(found: Holder | None, mine: Holder, *, alive: bool = True, force: bool = False) -> Holder:
    return _cell_lock.take("cell_a", found, mine, alive=lambda _holder: alive, force=force)


def test_nobody_holds_it():
    assert take(None, ANN) == ANN


def test_a_run_holds_it_again_and_lets_go_as_often():
    twice = take(ANN, ANN._replace(since=1200.0))
    assert (twice.depth, twice.since) == (2, 1000.0)
    once = _cell_lock.give(twice, ANN)
    assert once == ANN
    assert _cell_lock.give(once, ANN) is None


def test_a_run_of_the_same_owner_that_is_gone_is_replaced():
    assert take(ANN, LATER, alive=False) == LATER


@pytest.mark.parametrize(
    ("mine", "told"),
    [
        (LATER, "ann@desk works on the cell cell_a since 17 min: site.yml (process 100)."),
        (
            BOB._replace(since=1040.0),
            "ann@desk works on the cell cell_a since 40 s: site.yml (process 100 there).",
        ),
    ],
)
def test_somebody_else_is_refused_and_told_who_has_it(mine, told):
    with pytest.raises(Locked) as refused:
        # whether a process of another controller lives is not asked: the same number means nothing
        take(ANN, mine, alive=mine.owner == ANN.owner)
    assert told in str(refused.value) and "-e cell_lock_break=true" in str(refused.value)


def test_it_can_be_broken_and_the_old_holder_cannot_let_go_of_it_then():
    assert take(ANN, BOB, force=True) == BOB
    assert _cell_lock.give(BOB, ANN) == BOB
    assert _cell_lock.give(None, ANN) is None


def test_a_file_that_is_none_does_not_lock(tmp_path: Path):
    path = _cell_lock.file_of("cell_a", str(tmp_path))
    assert path == f"{tmp_path}/var/lib/sparkfleet/lock/cell_a.json"
    assert _cell_lock.change(path, None, ANN) is None
    assert _cell_lock.read(path) == ANN
    Path(path).write_text('{"owner": "ann', encoding="utf-8")
    assert _cell_lock.read(path) is None
    assert _cell_lock.change(path, None, BOB) is None
    assert _cell_lock.change(path, BOB, None) == BOB
    assert not Path(path).exists()


def test_of_many_at_the_same_moment_one_gets_it(tmp_path: Path):
    path = _cell_lock.file_of("cell_a", str(tmp_path))
    crowd = [ANN._replace(pid=number) for number in range(1, 41)]
    with ThreadPoolExecutor(16) as pool:
        before = list(pool.map(lambda one: _cell_lock.change(path, None, one), crowd))
    assert before.count(None) == 1
    winner = crowd[before.index(None)]
    assert _cell_lock.read(path) == winner
    assert set(before) == {None, winner}


def test_a_process_is_known_by_its_number_and_its_beginning():
    own = ANN._replace(pid=os.getpid(), born=_cell_lock.born(os.getpid()))
    assert own.born > 0 and _cell_lock.alive(own)
    assert not _cell_lock.alive(own._replace(born=own.born + 1))  # the number was given again
    assert _cell_lock.alive(own._replace(born=0))  # nobody could tell
    child = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"],
        check=True,
        capture_output=True,
        text=True,
    )
    assert not _cell_lock.alive(own._replace(pid=int(child.stdout)))
