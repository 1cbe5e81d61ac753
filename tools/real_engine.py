"""Installs the real SGLang for a machine without GPUs, once, and prints where its Python is.

The environment has about 7 GB and lies in LAB_CACHE (/var/cache/sparkfleet-lab), under a name made
from tests/engine/requirements*.txt, so that a changed list makes a new one. Installing takes some
minutes and a good line; after that it costs nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

LISTS = Path(__file__).resolve().parent.parent / "tests" / "engine"
FULL, BARE = LISTS / "requirements.txt", LISTS / "requirements-bare.txt"
CACHE = Path(os.environ.get("LAB_CACHE", "/var/cache/sparkfleet-lab"))
NEEDED = 12 * 2**30  # bytes: the environment, and the packages while they are unpacked
PIP = ("-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check")


def environment() -> Path:
    """The directory of the environment for these lists and this Python, there or not."""
    version = "{}.{}".format(*sys.version_info[:2])
    made_from = FULL.read_bytes() + BARE.read_bytes() + version.encode()
    return CACHE / "sglang" / hashlib.sha256(made_from).hexdigest()[:12]


def python() -> Path:
    """The Python of the environment, which is installed where it is missing.

    Raises:
        RuntimeError: there is no room for it.
        subprocess.CalledProcessError: pip failed; what it printed was shown.
    """
    place = environment()
    program, stamp = place / "bin" / "python", place / "complete"
    if stamp.exists():
        return program
    shutil.rmtree(place, ignore_errors=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(CACHE).free
    if free < NEEDED:
        raise RuntimeError(
            f"{CACHE} has {free / 2**30:.0f} GiB free, the real SGLang needs {NEEDED / 2**30:.0f}; "
            "make room, or set LAB_CACHE to a larger disk"
        )
    base = getattr(sys, "_base_executable", sys.executable)
    subprocess.run([base, "-m", "venv", place], check=True)
    subprocess.run([program, *PIP, "-r", FULL], check=True)
    subprocess.run([program, *PIP, "--no-deps", "-r", BARE], check=True)
    stamp.touch()
    return program


if __name__ == "__main__":
    try:
        print(python())
    except (RuntimeError, subprocess.CalledProcessError) as error:
        sys.exit(f"real_engine: {error}")
