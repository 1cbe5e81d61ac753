# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The artifact in an environment that has never seen a checkout: what README tells to type works.

Needs PyPI, or its mirror, for an empty environment with ansible-core and the filters' libraries.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

import pytest

from tests.support.playbook import ROOT

# As README has them.
INSTALL = "ansible-galaxy collection install sparkfleet-cluster-*.tar.gz"
DOCTOR = "ansible-playbook sparkfleet.cluster.doctor -i my-inventory"
TELL = "ansible-doc sparkfleet.cluster.preflight_info"

BUILDER = "ansible-builder==3.2.0"
NOT_OURS = (
    "lab/",
    "tests/",
    "tools/",
    "molecule/",
    "benchmarks/",
    "Makefile",
    ".git",
    "collections",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an empty environment, the artifact in it, installed."""
    subprocess.run([sys.executable, "-m", "tools.dist", "build"], cwd=ROOT, check=True)
    home = tmp_path_factory.mktemp("home")
    (artifact,) = (ROOT / ".cache/dist").glob("*.tar.gz")
    (home / artifact.name).write_bytes(artifact.read_bytes())
    venv.create(home / "venv", with_pip=True)
    wanted = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
    core = [line for line in wanted.splitlines() if line.startswith("ansible-core==")]
    subprocess.run(
        [str(home / "venv/bin/pip"), "install", "--quiet", "--disable-pip-version-check", *core]
        + ["-r", str(ROOT / "meta/requirements.txt")],
        check=True,
    )
    (home / "my-inventory").write_text(
        "sparks:\n"
        "  vars: {ansible_connection: local, spark_topology: pair}\n"
        "  hosts: {spark1: {ansible_host: 192.0.2.11}, spark2: {ansible_host: 192.0.2.12}}\n",
        encoding="utf-8",
    )
    assert run(home, INSTALL).returncode == 0
    return home


def run(home: Path, command: str) -> subprocess.CompletedProcess[str]:
    keep = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TMPDIR") if name in os.environ}
    path = f"{home / 'venv/bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=home,
        env={"LC_ALL": "C.UTF-8", **keep, "HOME": str(home), "PATH": path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )


def test_the_artifact_holds_what_users_use_and_no_more(place):
    (artifact,) = place.glob("*.tar.gz")
    with tarfile.open(artifact) as archive:
        names = archive.getnames()
    assert not [name for name in names if name.startswith(NOT_OURS)]
    assert not [name for name in names if "__pycache__" in name or name.endswith((".pyc", "~"))]
    for name in ("README.md", "CHANGELOG.rst", "LICENSE", "meta/runtime.yml", "playbooks/site.yml"):
        assert name in names
    assert "plugins/plugin_utils/cell_page.html.j2" in names
    assert artifact.stat().st_size < 2 * 2**20


def test_its_digest_is_told(place):
    (artifact,) = (ROOT / ".cache/dist").glob("*.tar.gz")
    checked = subprocess.run(
        ["sha256sum", "--check", f"{artifact.name}.sha256"], cwd=artifact.parent, check=False
    )
    assert checked.returncode == 0


def test_every_playbook_is_found_by_name(place):
    for playbook in sorted((ROOT / "playbooks").glob("*.yml")):
        tracked = subprocess.run(
            ["git", "cat-file", "-e", f"HEAD:playbooks/{playbook.name}"], cwd=ROOT, check=False
        )
        if tracked.returncode == 0:
            name = f"sparkfleet.cluster.{playbook.stem}"
            done = run(place, f"ansible-playbook {name} --syntax-check -i my-inventory")
            assert done.returncode == 0, done.stdout


def test_site_looks_at_nodes_and_refuses_what_is_no_spark(place):
    """The same machine twice: preflight runs whole, and says what is wrong."""
    done = run(place, "ansible-playbook sparkfleet.cluster.site -i my-inventory --check")
    assert done.returncode == 2, done.stdout
    assert "cell sparks is not ready" in done.stdout
    assert "identity" in done.stdout
    assert "Traceback" not in done.stdout


def test_doctor_tells_and_keeps_its_report(place):
    done = run(place, DOCTOR)
    assert done.returncode == 2, done.stdout
    assert "Not ready: put right what failed, then run again." in done.stdout
    assert (place / ".local/state/sparkfleet/preflight-sparks.json").is_file()


def test_documentation_is_there(place):
    done = run(place, f"{TELL} | cat")
    assert "sparkfleet.cluster.preflight_info" in done.stdout
    assert done.returncode == 0


def test_execution_environments_get_the_libraries_of_the_filters(place):
    """What ansible-builder finds in an installed collection, by its own program."""
    pip = [str(place / "venv/bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, BUILDER], check=True)
    done = run(place, "ansible-builder introspect ~/.ansible/collections")
    assert done.returncode == 0, done.stdout
    for line in (ROOT / "meta/requirements.txt").read_text(encoding="utf-8").split():
        assert f"{line}  # from collection sparkfleet.cluster" in done.stdout


def test_an_execution_environment_is_defined_by_the_docs(place):
    """The context of its image is made and has the artifact in it; no image is built here."""
    pip = [str(place / "venv/bin/pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, BUILDER], check=True)
    definition = ROOT / "docs/execution-environment.yml"
    here = place / "environment"
    here.mkdir()
    (artifact,) = place.glob("*.tar.gz")
    (here / "sparkfleet-cluster.tar.gz").write_bytes(artifact.read_bytes())
    (here / definition.name).write_bytes(definition.read_bytes())
    done = run(place, "cd environment && ansible-builder create")
    assert done.returncode == 0, done.stdout
    asked = (here / "context/_build/requirements.yml").read_text(encoding="utf-8")
    named = re.search(r"name: (collections/\S+)", asked)
    assert named
    assert (here / "context/_build" / named[1]).read_bytes() == artifact.read_bytes()


def release(clone: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for role in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{role}_NAME": "Somebody", f"GIT_{role}_EMAIL": "somebody@example.com"}
    return subprocess.run(
        ["make", "--old-file=setup", "release", *words],
        cwd=clone,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
        check=False,
    )


def test_a_release_is_one_command(tmp_path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    assert "make release VERSION=1.0.0" in release(clone).stdout
    (clone / "new").touch()
    assert "not committed" in release(clone, "VERSION=1.0.0").stdout
    (clone / "new").unlink()
    done = release(clone, "VERSION=1.0.0")
    assert done.returncode == 0, done.stdout
    told = (clone / "CHANGELOG.rst").read_text(encoding="utf-8")
    assert "v1.0.0\n======" in told
    assert "has not run on a DGX Spark yet" in told
    assert not list((clone / "changelogs/fragments").glob("*.yml"))
    show = ["git", "show", "1.0.0:galaxy.yml"]
    galaxy = subprocess.run(show, cwd=clone, capture_output=True, text=True, check=True).stdout
    assert "\nversion: 1.0.0\n" in galaxy
