# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings the real engine to the nodes of a lab: itself, the image around it, and the toy model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from lab import checkpoint
from lab.sglang import image, model
from lab.spec import Lab
from lab.system import CACHE, LabError, step

_TOOL = Path(__file__).parents[2] / "tools" / "real_engine.py"


def engine() -> Path:
    """The packages of the real SGLang in the cache, installed where they are missing.

    Raises:
        LabError: they cannot be installed; the reason was printed.
    """
    done = subprocess.run([sys.executable, _TOOL], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise LabError("the real SGLang is not installed; what stands above says why")
    python = Path(done.stdout.strip())
    packages = next(python.parents[1].glob("lib/python*/site-packages"))
    # Relative, since nodes see the folder in another place.
    aside = image.INSTALLED / ".site-packages"
    aside.unlink(missing_ok=True)
    aside.symlink_to(packages.relative_to(image.INSTALLED))
    return aside.replace(image.INSTALLED / "site-packages")


def put(lab: Lab) -> None:
    """Put image and model on every host; the engine itself is seen by all of them."""
    if lab.backend != "containers":
        raise LabError("the real engine needs hosts that are containers; this lab has machines")
    with step("looking for the real SGLang (7 GB, minutes where it is not there yet)"):
        engine()
    image.image().load(lab, [host.name for host in lab.hosts])
    directory = CACHE / model.SERVED_NAME
    model.make(directory)
    for host in lab.hosts:
        checkpoint.put(lab, host, directory)
