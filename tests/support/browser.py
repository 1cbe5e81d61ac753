# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Programs of the distribution that tests need here, and Chromium without a screen."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def need(program: str, *packages: str) -> str:
    """Install the packages if this program is missing; elsewhere than with apt the test fails."""
    if not shutil.which(program):
        if not shutil.which("apt-get"):
            pytest.fail(f"{program} is missing; next: install {' '.join(packages)}")
        apt = ["apt-get", "-q", "-y", "-o", "DPkg::Lock::Timeout=300"]
        sudo = [] if os.getuid() == 0 else ["sudo"]
        subprocess.run([*sudo, *apt, "update"], check=True)
        install = [*apt, "install", "--no-install-recommends", *packages]
        subprocess.run([*sudo, *install], check=True)
    return program


def look(address: str, *options: str, network: str = "") -> subprocess.CompletedProcess[str]:
    """Open a page in Chromium, which reaches no other host than the one of `network`."""
    hidden = "MAP * ~NOTFOUND" + (f", EXCLUDE {network}" if network else "")
    return subprocess.run(
        [need("chromium", "chromium", "fonts-dejavu-core"), "--headless", "--no-sandbox"]
        + ["--disable-gpu", "--hide-scrollbars", f"--host-resolver-rules={hidden}", *options]
        + [address],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
