# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Labs for tests: made through the command line as a person makes them, removed in any case."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab import spec, ssh

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class LabUnderTest:
    """One running lab; every method goes through the lab's own command line or ssh."""

    name: str

    @property
    def lab(self) -> spec.Lab:
        found = spec.load(self.name)
        assert found is not None
        return found

    @property
    def inventory(self) -> Path:
        return self.lab.state / "inventory.yml"

    def cli(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "lab", "--name", self.name, *words],
            cwd=ROOT,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if check:
            assert done.returncode == 0, f"lab {' '.join(words)}:\n{done.stdout}{done.stderr}"
        return done

    def root(self, host: str, script: str, *, check: bool = True, timeout: float = 180) -> str:
        """What a shell script prints that runs as root on a host."""
        done = ssh.root(self.lab, self.lab.host(host), script, check=check, timeout=timeout)
        return done.stdout.strip()

    def everywhere(self, script: str, *, timeout: float = 180) -> dict[str, str]:
        """The same script on every host at once: {host: output}."""
        names = [host.name for host in self.lab.hosts]
        with ThreadPoolExecutor() as pool:
            said = pool.map(lambda name: self.root(name, script, timeout=timeout), names)
            return dict(zip(names, said, strict=True))

    def reaches(self, host: str, address: str, size: int = 56) -> bool:
        """Whether one unfragmented ping of that payload is answered."""
        script = f"ping -c1 -W2 -M do -s {size} {address} >/dev/null && echo yes || echo no"
        return self.root(host, script) == "yes"


@pytest.fixture(scope="session")
def make_lab() -> Iterator[Callable[..., LabUnderTest]]:
    """``make_lab(name, backend, *options_of_up)``: a lab that is gone after the session."""
    made: list[LabUnderTest] = []

    def make(name: str, backend: str, *options: str) -> LabUnderTest:
        lab = LabUnderTest(f"{os.environ.get('LAB_TEST_PREFIX', 't-')}{name}")
        made.append(lab)
        lab.cli("--backend", backend, "up", *options)
        return lab

    yield make
    for lab in made:
        lab.cli("down", check=False)
