"""Builds the artifact of the last commit into .cache/dist, and checks it as Galaxy would.

``dist.py build`` leaves the artifact with its SHA-256 beside it. What is in
the working tree and not committed is not in it. ``dist.py importer`` runs galaxy-importer on it,
which wants the URL of a repository: the environment variable REPOSITORY, where galaxy.yml has none.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
from pathlib import Path

from tools import installed

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / ".cache" / "dist"
IMPORTER = "galaxy-importer==0.4.44"


def build(repository: str = "") -> Path:
    """Build the artifact of HEAD, look at what is in it, and say where it is.

    Args:
        repository: written into its galaxy.yml, which names none while there is none.
    """
    commit = subprocess.run(
        ["git", "archive", "--format=tar", "HEAD"], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tempfile.TemporaryDirectory(prefix="sparkfleet-dist-") as directory:
        base = Path(directory).resolve()
        source = base / "source"
        with tarfile.open(fileobj=io.BytesIO(commit)) as archive:
            archive.extractall(source, filter="data")
        if repository:
            with (source / "galaxy.yml").open("a", encoding="utf-8") as stream:
                stream.write(f"repository: {repository}\n")
        env = installed.environment(base)
        collection = installed.install(base, env, source)
        (artifact,) = base.glob("*.tar.gz")
        shutil.rmtree(DIST, ignore_errors=True)
        DIST.mkdir(parents=True)
        target = DIST / f"sparkfleet-cluster-{installed.version(collection)}.tar.gz"
        shutil.move(artifact, target)
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    (DIST / f"{target.name}.sha256").write_text(f"{digest}  {target.name}\n", encoding="utf-8")
    print(f"{target} ({target.stat().st_size / 1024:.0f} KiB)\nsha256 {digest}")
    return target


def importer() -> None:
    """Run galaxy-importer, in an environment of its own, on the artifact."""
    artifact = build(os.environ.get("REPOSITORY", ""))
    place = ROOT / ".cache" / "importer"
    stamp = place / IMPORTER
    if not stamp.exists():
        venv.create(place, with_pip=True, clear=True)
        pip = [str(place / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, IMPORTER, "setuptools<81"], check=True)
        stamp.touch()
    with tempfile.TemporaryDirectory(prefix="sparkfleet-importer-") as directory:
        base = Path(directory).resolve()
        env = installed.environment(base)
        env["PATH"] = f"{place / 'bin'}{os.pathsep}{env['PATH']}"
        done = subprocess.run(
            [str(place / "bin/python"), "-m", "galaxy_importer.main", str(artifact)],
            cwd=base,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    print(done.stdout)
    marks = ("ERROR:", "WARNING:")
    told = [line for line in done.stdout.splitlines() if line.startswith(marks)]
    if done.returncode or told:
        raise installed.CheckError(
            "galaxy-importer complains:\n" + "\n".join(told or ["see above"])
        )


def main() -> int:
    """Do what the command line names."""
    verbs = sys.argv[1:]
    if verbs not in (["build"], ["importer"]):
        print("usage: dist.py build|importer", file=sys.stderr)
        return 2
    try:
        if verbs == ["build"]:
            build()
        else:
            importer()
    except (installed.CheckError, subprocess.CalledProcessError) as error:
        print(f"dist.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
