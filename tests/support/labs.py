# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A lab as tests see it: through its command line and ssh, as a person does."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lab import spec, ssh

ROOT = Path(__file__).resolve().parents[2]


def lab_name(name: str) -> str:
    """A lab of the family that `lab down --family` removes after a run that crashed."""
    return f"{os.environ.get('LAB_NAME') or 'test'}-{name}"


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

    def instead_of_sparks(self, folder: Path) -> list[str]:
        """What is added to a command for Sparks, after its inventory, to run it on this lab.

        It says how the lab is reached, how small it is, and what takes the place of engine, weights
        and NCCL; `folder` takes a file of it.
        """
        hosts = {host.name: {"ansible_host": host.name} for host in self.lab.hosts}
        names = folder / "reached-by-name.yml"
        names.write_text(json.dumps({"sparks": {"hosts": hosts}}), encoding="utf-8")
        variables = self.lab.state / "standin.yml"
        return ["-i", str(self.inventory), "-i", str(names), "-e", f"@{variables}"]

    def cli(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "lab", "--name", self.name, *words],
            cwd=ROOT,
            capture_output=True,
            check=False,
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

    def put(self, host: str, path: str, data: bytes) -> None:
        """Write a file of any size as root on a host."""
        self._pipe(host, f"cat >{shlex.quote(path)}", data)

    def get(self, host: str, path: str) -> bytes:
        """Read a file of any size as root on a host."""
        return self._pipe(host, f"cat {shlex.quote(path)}", b"")

    def _pipe(self, host: str, script: str, data: bytes) -> bytes:
        argv = ssh.command(self.lab, self.lab.host(host), ["sudo", "-n", "sh", "-c", script])
        return subprocess.run(
            argv, input=data, stdout=subprocess.PIPE, check=True, timeout=180
        ).stdout

    def reaches_soon(self, host: str, address: str) -> bool:
        """Whether a ping is answered within ten seconds: networkd takes a moment for a carrier."""
        return any(self.reaches(host, address) for _attempt in range(5))

    def reaches(self, host: str, address: str, size: int = 56) -> bool:
        """Whether one unfragmented ping of that payload is answered."""
        script = f"ping -c1 -W2 -M do -s {size} {address} >/dev/null && echo yes || echo no"
        return self.root(host, script) == "yes"
