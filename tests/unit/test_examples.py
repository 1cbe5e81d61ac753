# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Each role alone, in a fleet with groups and names of its own: it works or refuses by a sentence.

The Sparks of that fleet are this machine, unprepared; its other host cannot be reached and must not
be asked.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.playbook import ROOT, run_playbook
from tests.unit.test_conventions import assert_parses, assert_works_or_refuses

EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.yml") if path.stem != "inventory")
INVENTORY = ROOT / "examples/inventory.yml"

each_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """The inventory, with local connections to the Sparks."""
    told: dict[str, Any] = yaml.safe_load(INVENTORY.read_text(encoding="utf-8"))
    told["gpu_cell"]["vars"] |= {
        "ansible_connection": "local",
        "ansible_become": False,
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    path = tmp_path / "fleet.yml"
    path.write_text(yaml.safe_dump(told, sort_keys=False), encoding="utf-8")
    return path


def test_examples_name_roles_that_there_are_and_fit_on_a_hand() -> None:
    assert EXAMPLES
    for example in EXAMPLES:
        (play,) = yaml.safe_load(example.read_text(encoding="utf-8"))
        assert play["roles"] == [f"sparkfleet.cluster.{example.stem}"]
        assert (ROOT / "roles" / example.stem).is_dir()
        assert f"({example.name})" in (ROOT / "examples/README.md").read_text(encoding="utf-8")


@each_example
def test_an_example_parses_with_its_inventory(example: Path) -> None:
    assert_parses(run_playbook(example, INVENTORY, "--syntax-check"))


@each_example
def test_an_example_changes_nothing_and_touches_nobody_else(example: Path, fleet: Path) -> None:
    run = run_playbook(example, fleet, "--check")
    assert_works_or_refuses(run)
    assert "www.example.org" not in run.output
    assert set(run.hosts) <= {"gpu-a", "gpu-b", "gpu-c", "localhost"}
