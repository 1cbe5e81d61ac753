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
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _cell_lock
from ansible_collections.sparkfleet.cluster.plugins.module_utils._cell_lock import Holder, Locked

ANN = Holder("ann@desk", "site.yml", 100, 7, since=1000.0, place="boot 1")
LATER = ANN._replace(pid=200, born=9, since=2000.0)
BOB = Holder("bob@desk2", "playbooks/upgrade.yml", 100, 7, since=1700.0, place="boot 3")
CAT = LATER._replace(owner="cat@desk")


def refuse(found: Holder, mine: Holder, *, alive: bool = True, force: bool = False) -> str:
    """Why it may not be taken, empty if it may."""
    try:
        _cell_lock.refuse("cell_a", found, mine, alive=lambda _holder: alive, force=force)
    except Locked as refusal:
        return str(refusal)
    return ""


def test_nobody_holds_it():
    assert _cell_lock.take(None, ANN) == ANN


def test_a_run_holds_it_again_and_lets_go_as_often():
    twice = _cell_lock.take(ANN, ANN._replace(since=1200.0))
    assert (twice.depth, twice.since) == (2, 1000.0)
    once = _cell_lock.give(twice, ANN)
    assert once == ANN
    assert _cell_lock.give(once, ANN) is None


@pytest.mark.parametrize(
    ("mine", "alive", "may"),
    [
        (LATER, False, True),
        (LATER, True, False),
        (LATER._replace(place="boot 2"), False, True),  # the controller was restarted
        (CAT, False, True),
        (CAT, True, False),
        # whether a process of another controller lives is not asked: its number means nothing
        (BOB, False, False),
        (BOB._replace(place=""), False, False),
    ],
)
def test_a_run_that_is_gone_is_followed_by_whoever_can_know_it(mine, alive, may):
    assert (refuse(ANN, mine, alive=alive) == "") == may
    assert _cell_lock.take(ANN, mine) == ANN
    assert _cell_lock.take(ANN, mine, gone=ANN) == mine
    assert _cell_lock.take(ANN, mine, gone=LATER) == ANN  # another one came in between


def test_a_place_that_nobody_told_is_no_common_one():
    nowhere = ANN._replace(place="")
    assert refuse(nowhere, BOB._replace(place=""), alive=False)


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
    refusal = refuse(ANN, mine)
    assert told in refusal and "-e cell_lock_break=true" in refusal


def test_it_can_be_broken_and_the_old_holder_cannot_let_go_of_it_then():
    assert refuse(ANN, BOB, force=True) == ""
    assert _cell_lock.give(BOB, ANN) == BOB
    assert _cell_lock.give(None, ANN) is None


def test_a_file_that_is_none_does_not_lock(tmp_path: Path):
    path = _cell_lock.file_of("cell_a", str(tmp_path))
    assert path == f"{tmp_path}/var/lib/sparkfleet/lock/cell_a.json"
    assert _cell_lock.change(path, lambda _found: ANN) is None
    assert _cell_lock.read(path) == ANN
    Path(path).write_text('{"owner": "ann', encoding="utf-8")
    assert _cell_lock.read(path) is None
    assert _cell_lock.change(path, lambda _found: BOB) is None
    assert _cell_lock.read(path) == BOB


def test_nothing_is_left_of_a_lock_that_nobody_has(tmp_path: Path):
    path = _cell_lock.file_of("cell_a", str(tmp_path))
    lib = tmp_path / "var/lib"
    assert _cell_lock.change(path, lambda found: _cell_lock.give(found, ANN)) is None
    assert not lib.exists()
    _cell_lock.change(path, lambda _found: ANN)
    assert _cell_lock.change(path, lambda found: _cell_lock.give(found, ANN)) == ANN
    assert list(lib.iterdir()) == []
    other = lib / "sparkfleet/watch"
    other.mkdir(parents=True)
    _cell_lock.change(path, lambda _found: ANN)
    _cell_lock.change(path, lambda found: _cell_lock.give(found, ANN))
    assert list((lib / "sparkfleet").iterdir()) == [other]


def test_of_many_at_the_same_moment_one_gets_it_and_then_the_next(tmp_path: Path):
    """The directory comes and goes meanwhile."""
    path = _cell_lock.file_of("cell_a", str(tmp_path))
    crowd = [ANN._replace(pid=number) for number in range(1, 41)]

    def come_and_go(one: Holder) -> int:
        got = 0
        for _time in range(20):
            if _cell_lock.change(path, lambda found: _cell_lock.take(found, one)) is None:
                assert _cell_lock.read(path) == one
                _cell_lock.change(path, lambda found: _cell_lock.give(found, one))
                got += 1
        return got

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(come_and_go, crowd)) > 1
    assert not Path(path).exists()


def test_a_folder_that_is_taken_away_while_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = _cell_lock.file_of("cell_a", str(tmp_path))
    really, gone = os.makedirs, [FileExistsError(), FileNotFoundError()]

    def make(*args: Any, **more: Any) -> None:
        if gone:
            raise gone.pop()
        really(*args, **more)

    monkeypatch.setattr(os, "makedirs", make)
    assert _cell_lock.change(path, lambda found: _cell_lock.take(found, ANN)) is None
    assert _cell_lock.read(path) == ANN


def test_a_file_in_the_way_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_cell_lock, "_PATIENCE", 0.0)
    path = _cell_lock.file_of("cell_a", str(tmp_path))
    folder = Path(path).parent
    folder.parent.mkdir(parents=True)
    folder.touch()
    with pytest.raises(FileExistsError):
        _cell_lock.change(path, lambda found: _cell_lock.take(found, ANN))


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
