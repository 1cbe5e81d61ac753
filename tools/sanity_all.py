"""Runs ansible-test sanity on every supported ansible-core, each with a Python of its own.

An interpreter that is not on this machine (on PATH, or kept by pyenv) is named at the end, and the
whole has then not passed: what was not run proves nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MATRIX = (("2.19", "3.11"), ("2.20", "3.12"), ("2.21", "3.13"))


def interpreter(version: str) -> str | None:
    """A Python of this version that starts; version managers leave names that do not."""
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python{version}"))
    for candidate in (shutil.which(f"python{version}"), *map(str, kept)):
        if candidate:
            asked = [candidate, "-c", "import sys; print(sys._base_executable)"]
            done = subprocess.run(asked, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                return done.stdout.strip()
    return None


def environment(core: str, python: str) -> Path:
    """An environment with the newest release of this core; made once."""
    place = ROOT / ".cache" / "sanity" / f"{core}-{Path(python).name}"
    if not (place / "whole").exists():
        shutil.rmtree(place, ignore_errors=True)
        subprocess.run([python, "-m", "venv", str(place)], check=True)
        pip = [str(place / "bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, f"ansible-core=={core}.*"], check=True)
        (place / "whole").touch()
    return place


def main() -> int:
    """Run them all before telling of any."""
    told = []
    for core, version in MATRIX:
        python = interpreter(version)
        if python is None:
            told.append((core, version, f"NOT RUN: no python{version} on PATH or in pyenv"))
            continue
        print(f"\n--- ansible-core {core}, Python {version}", flush=True)
        python = str(environment(core, python) / "bin" / "python")
        done = subprocess.run([python, "tools/installed.py", "sanity"], cwd=ROOT, check=False)
        told.append((core, version, "passed" if done.returncode == 0 else "FAILED"))
    print()
    for core, version, verdict in told:
        print(f"ansible-core {core}, Python {version}: {verdict}")
    return 0 if all(verdict == "passed" for *_names, verdict in told) else 1


if __name__ == "__main__":
    sys.exit(main())
