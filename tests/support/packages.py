# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages of the distribution on nodes of a lab, which reach no archive themselves."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.support.labs import LabUnderTest


def install(lab: LabUnderTest, folder: Path, wanted: Mapping[str, Sequence[str]]) -> None:
    """Install each package on its hosts, without what it depends on; nothing is started by that.

    Args:
        lab: whose hosts get them.
        folder: an empty directory on this machine.
        wanted: hosts by the name of a package.
    """
    if shutil.which("apt-get") is None:
        pytest.skip(f"needs apt-get, whose archive has {', '.join(wanted)}")
    subprocess.run(["apt-get", "download", *wanted], cwd=folder, check=True, capture_output=True)
    for name, hosts in wanted.items():
        (package,) = folder.glob(f"{name}_*.deb")
        for host in hosts:
            lab.put(host, "/tmp/package.deb", package.read_bytes())
            lab.root(host, "echo exit 101 > /usr/sbin/policy-rc.d; chmod +x /usr/sbin/policy-rc.d")
            lab.root(host, "dpkg --force-depends --install /tmp/package.deb; rm /tmp/package.deb")
            lab.root(host, "rm /usr/sbin/policy-rc.d")
