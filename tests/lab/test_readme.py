# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whoever types what README and the quick start show reaches a green report.

`make demo` first, then every command for Sparks and for the head, in the order of the pages and as
it stands there, on the lab that the demo left. What is added to a line says how this lab is
reached, how small it is, and what takes the place of engine, weights and NCCL. Every other command
is run by the test that tests/unit/test_docs.py names.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.labs import ROOT, LabUnderTest
from tests.support.pages import commands
from tests.support.playbook import run_playbook

pytestmark = pytest.mark.containers

DEMO = "make demo"
# The head as the pages name it.
HEAD = "192.0.2.11"


@pytest.fixture(scope="module")
def demo(make_lab: Callable[..., LabUnderTest]) -> tuple[LabUnderTest, str]:
    """The lab that `make demo` leaves, and what it printed; the tools are there already."""
    lab = make_lab("readme", "containers", "--bare")
    env = {**os.environ, "LAB_NAME": lab.name}
    done = subprocess.run(
        [*shlex.split(DEMO), "--old-file=setup"],
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return lab, done.stdout


def test_the_demo_says_what_was_proven_and_leaves_its_lab(demo: tuple[LabUnderTest, str]) -> None:
    lab, said = demo
    assert "stand-in" in said
    assert "The lab stays up." in said
    assert lab.root("spark1", "systemctl is-active sparkfleet-rank@sparks") == "active"


def test_commands_for_sparks_do_what_they_say(
    demo: tuple[LabUnderTest, str], tmp_path: Path
) -> None:
    lab, _said = demo
    more = lab.instead_of_sparks(tmp_path)
    env = {"XDG_STATE_HOME": str(tmp_path)}
    lines = [command.line for command in commands() if command.place == "sparks"]
    different = dict.fromkeys(tuple(shlex.split(line, comments=True)) for line in lines)
    assert len(different) > 5
    for line in different:
        program, playbook, option, inventory, *rest = line
        assert (program, option) == ("ansible-playbook", "-i")
        run = run_playbook(ROOT / playbook, ROOT / inventory, *rest, *more, env=env, timeout=900)
        assert run.assert_ok().hosts["spark4"].ok, line
    page = (tmp_path / "sparkfleet/cell-sparks.html").read_text(encoding="utf-8")
    assert "spark4" in page


def test_the_endpoint_answers_as_shown(demo: tuple[LabUnderTest, str]) -> None:
    lab, _said = demo
    head = lab.lab.hosts[0]
    key = "KEY=$(sed 's/^[^:]*://;q' /etc/sparkfleet/keys)"
    lines = [command.line for command in commands() if command.place == "head"]
    assert lines
    for line in lines:
        assert HEAD in line
        answer = json.loads(lab.root(head.name, f"{key}; {line.replace(HEAD, head.address)}"))
        assert answer["choices"][0]["message"]["content"], line
