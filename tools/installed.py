"""Checks the collection as its users get it: built, installed somewhere else, then looked at.

``installed.py lint|sanity|docs|syntax`` builds the artifact from this checkout, installs it into a
temporary directory without a network, refuses an artifact that holds anything unexpected, and runs
the named check there. So nothing passes only because it lies in a checkout.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXPECTED = {
    "CHANGELOG.rst",
    "FILES.json",
    "LICENSE",
    "MANIFEST.json",
    "README.md",
    "changelogs",
    "docs",
    "examples",
    "extensions",
    "meta",
    "playbooks",
    "plugins",
    "roles",
}
# ansible-test bootstraps pip in its environments with a script it downloads from a host of its own;
# a script lying here already is used instead, and Python brings pip along. Core 2.19 wants the
# first, later ones the second.
PIP_BOOTSTRAP = [
    Path.home() / f".ansible/test/cache/get_pip_{version}.py" for version in ("24_2", "25_2")
]


class CheckError(Exception):
    """A check that did not pass; the text is for the person who reads the log."""


def call(*command: str, cwd: Path, env: dict[str, str]) -> None:
    """Run one command with its output shown; a failure ends the check."""
    print("$ " + " ".join(command), flush=True)
    returncode = subprocess.run(command, cwd=cwd, env=env, check=False).returncode
    if returncode != 0:
        raise CheckError(f"{command[0]} ended with exit code {returncode}")


def environment(base: Path) -> dict[str, str]:
    """The environment of a user who has nothing but what is installed below ``base``."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("ANSIBLE_")}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    env["ANSIBLE_CONFIG"] = str(base / "ansible.cfg")  # nobody's settings
    (base / "ansible.cfg").touch()
    env["ANSIBLE_COLLECTIONS_PATH"] = str(base)
    return env


def version(collection: Path) -> str:
    """The version of an installed collection."""
    manifest = json.loads((collection / "MANIFEST.json").read_text(encoding="utf-8"))
    return str(manifest["collection_info"]["version"])


def install(base: Path, env: dict[str, str], source: Path = ROOT) -> Path:
    """Build the artifact of ``source``, install it below ``base``, return the collection there."""
    call(
        "ansible-galaxy",
        "collection",
        "build",
        str(source),
        "--output-path",
        str(base),
        cwd=base,
        env=env,
    )
    (artifact,) = base.glob("*.tar.gz")
    call(
        *("ansible-galaxy", "collection", "install", "--offline", "--no-deps", "--force"),
        *("--collections-path", str(base), str(artifact)),
        cwd=base,
        env=env,
    )
    collection = base / "ansible_collections" / "sparkfleet" / "cluster"
    unexpected = sorted(p.name for p in collection.iterdir() if p.name not in EXPECTED)
    links = sorted(str(p.relative_to(collection)) for p in collection.rglob("*") if p.is_symlink())
    if unexpected or links:
        raise CheckError(
            f"the artifact holds {', '.join(unexpected + links)}, which no user of it needs; "
            "next: add it to build_ignore in galaxy.yml, or to EXPECTED in tools/installed.py"
        )
    return collection


def lint(collection: Path, env: dict[str, str]) -> None:
    """ansible-lint with the checkout's own settings."""
    colour = [] if sys.stdout.isatty() else ["--nocolor"]
    call(
        "ansible-lint",
        *colour,
        "--config-file",
        str(ROOT / ".ansible-lint"),
        cwd=collection,
        env=env,
    )


def sanity(collection: Path, env: dict[str, str]) -> None:
    """All of ansible-test's sanity tests, with the Python that runs us."""
    for script in PIP_BOOTSTRAP:
        if not script.exists():
            script.parent.mkdir(parents=True, exist_ok=True)
            script.write_text(
                "import ensurepip\n\nensurepip.bootstrap(default_pip=True)\n", encoding="utf-8"
            )
    (collection / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "config.yml", collection / "tests")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    call("ansible-test", "sanity", "--color", "no", "--python", python, cwd=collection, env=env)


def docs(collection: Path, env: dict[str, str]) -> None:
    """Changelog fragments, then the documentation of every plugin and role."""
    call("antsibull-changelog", "lint", cwd=collection, env=env)
    call("antsibull-docs", "lint-collection-docs", "--plugin-docs", ".", cwd=collection, env=env)


def syntax(collection: Path, env: dict[str, str]) -> None:
    """Every playbook by its full name, from a directory that is neither checkout nor collection."""
    inventory = collection.parents[2] / "inventory"
    inventory.write_text("[sparks]\nspark1\nspark2\n", encoding="utf-8")
    for playbook in sorted((collection / "playbooks").glob("*.yml")):
        name = f"sparkfleet.cluster.{playbook.stem}"
        call(
            "ansible-playbook",
            name,
            "--syntax-check",
            "-i",
            str(inventory),
            cwd=inventory.parent,
            env=env,
        )


CHECKS = {"lint": lint, "sanity": sanity, "docs": docs, "syntax": syntax}


def main() -> int:
    """Run the checks named on the command line, in that order, on one installed copy."""
    names = sys.argv[1:]
    if not names or set(names) - set(CHECKS):
        print(f"usage: installed.py {'|'.join(CHECKS)} ...", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="sparkfleet-installed-") as directory:
        base = Path(directory).resolve()
        env = environment(base)
        try:
            collection = install(base, env)
            for name in names:
                CHECKS[name](collection, env)
        except CheckError as error:
            print(f"installed.py: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
