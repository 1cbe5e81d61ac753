# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The image of the real engine: the Debian whose Python it was installed with, and one help.

The engine itself, some 7 GB, is in the cache of the lab once. Nodes see it as /opt/sglang, and the
profile binds it from there into the container of every rank.
"""

from __future__ import annotations

import re
from pathlib import Path

from lab.image import Image
from lab.system import CACHE, LabError

INSTALLED = CACHE / "sglang"  # seen by nodes as /opt/sglang
REFERENCE = "sparkfleet-sglang:lab"
# {Python: the Debian that has it}; compiled packages fit the Python they were installed with.
_SUITES = {"3.11": "bookworm", "3.13": "trixie"}
# SGLang on a CPU imports this, and calls it never.
_HELP = '''"""Stands where vLLM would be: SGLang imports this on a CPU and never calls it."""


def rotary_embedding(*_arguments: object) -> None:
    raise NotImplementedError("this is not vLLM")
'''


def image() -> Image:
    """The image that fits the engine in the cache.

    Raises:
        LabError: there is none, or no Debian has the Python it was installed with.
    """
    packages = INSTALLED / "site-packages"
    if not packages.is_dir():
        raise LabError(f"the engine is not installed in {INSTALLED}; next: lab sglang")
    python = _python(packages.resolve())
    if python not in _SUITES:
        known = " or ".join(_SUITES)
        raise LabError(
            f"the engine in {INSTALLED} was installed with Python {python}, and no Debian of the "
            f"lab has that; remove the folder and install it with Python {known}"
        )
    return Image(
        reference=REFERENCE,
        name="sglang",
        suite=_SUITES[python],
        packages=["libstdc++6", "util-linux"],  # it asks lscpu for cores
        files={
            "usr/lib/python3/dist-packages/vllm/__init__.py": b"",
            "usr/lib/python3/dist-packages/vllm/_custom_ops.py": _HELP.encode(),
        },
        labels={"sparkfleet.lab": "the real SGLang is bound into this image"},
    )


def _python(packages: Path) -> str:
    """Of .../lib/python3.11/site-packages, 3.11."""
    found = re.fullmatch(r"python(\d+\.\d+)", packages.parent.name)
    return found[1] if found else "?"
