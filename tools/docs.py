"""Builds the documentation as a site: guides, roles, and the reference of every module and filter.

The reference is generated from the collection as it is built and installed. Guides and READMEs lie
in the site where they lie in the checkout, so that one relative link serves both. Every warning is
an error: a link into nowhere, a page in no list, an option without a description.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tools import installed

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "docs"
SITE = CACHE / "site"

# The order in which somebody reads them; pages that are not named follow by name.
FIRST = [
    "quick-start",
    "concepts",
    "migration",
    "operations",
    "troubleshooting",
    "security",
    "performance",
]
CONF = """\
project = "sparkfleet.cluster"
copyright = "The sparkfleet.cluster contributors, GPL-3.0-or-later"
version = release = "{version}"
extensions = ["myst_parser", "sphinx_antsibull_ext"]
html_theme = "furo"
html_title = "sparkfleet.cluster"
html_css_files = ["site.css"]
html_static_path = ["static"]
html_show_sphinx = False
html_copy_source = False
highlight_language = "none"
myst_heading_anchors = 4
"""
# What the generated pages refer to in Ansible's own documentation.
ELSEWHERE = """\
:orphan:

Of Ansible itself
=================

.. _action_plugins:

Action plugins
--------------

Code of a module that runs on the controller: `Action plugins
<https://docs.ansible.com/projects/ansible/latest/plugins/action.html>`__.

.. _common_return_values:

Common return values
--------------------

What every module returns: `Return values
<https://docs.ansible.com/projects/ansible/latest/reference_appendices/common_return_values.html>`__.

.. _ansible_configuration_settings:

Configuration settings
----------------------

`Settings of Ansible
<https://docs.ansible.com/projects/ansible/latest/reference_appendices/config.html>`__.
"""


def tools() -> Path:
    """Install what is needed beside .venv, once for each list, and say where."""
    wanted = ROOT / "tools" / "docs-requirements.txt"
    place, stamp = CACHE / "tools", CACHE / "tools.txt"
    if not stamp.exists() or stamp.read_bytes() != wanted.read_bytes():
        shutil.rmtree(place, ignore_errors=True)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-input"]
        command += ["--disable-pip-version-check", "--target", str(place), "-r", str(wanted)]
        subprocess.run(command, check=True)
        shutil.copy(wanted, stamp)
    return place


def toctree(caption: str, pages: list[str]) -> str:
    """One list of pages for the index."""
    head = [".. toctree::", "   :maxdepth: 1", f"   :caption: {caption}", ""]
    return "\n".join([*head, *(f"   {page}" for page in pages), ""])


def sources(collection: Path, source: Path) -> None:
    """Lay out pages, and all they link to, as they lie in the checkout; the index above them."""
    shutil.copytree(collection, source)
    shutil.copy(ROOT / "CONTRIBUTING.md", source)
    shutil.copytree(ROOT / "inventories", source / "inventories")
    names = sorted(path.stem for path in (source / "docs").glob("*.md"))
    guides = [name for name in FIRST if name in names]
    guides += [name for name in names if name not in FIRST]
    decisions = sorted(path.stem for path in (source / "docs/decisions").glob("*.md"))
    roles = sorted(path.parent.name for path in source.glob("roles/*/README.md"))
    (source / "index.rst").write_text(
        "\n".join(
            [
                ".. include:: README.md",
                "   :parser: myst_parser.sphinx_",
                "",
                toctree("Guides", [*(f"docs/{name}" for name in guides), "examples/README"]),
                toctree("Roles", [f"{role} <roles/{role}/README>" for role in roles]),
                toctree("Reference", ["reference/index"]),
                toctree("Decisions", [f"docs/decisions/{name}" for name in decisions]),
                toctree("Project", ["CHANGELOG", "CONTRIBUTING"]),
            ]
        ),
        encoding="utf-8",
    )


def build() -> None:
    """Build the site; ends with a CheckError where something is not as it should be."""
    place = tools()
    with tempfile.TemporaryDirectory(prefix="sparkfleet-docs-") as directory:
        base = Path(directory).resolve()
        env = installed.environment(base)
        collection = installed.install(base, env)
        source = base / "source"
        sources(collection, source)
        version = installed.version(collection)
        (source / "conf.py").write_text(CONF.format(version=version), encoding="utf-8")
        reference = source / "reference"
        reference.mkdir()
        (source / "static").mkdir()
        # The name of the collection in one line.
        css = ".sidebar-brand-text { font-size: 1.2rem; }\n"
        (source / "static" / "site.css").write_text(css, encoding="utf-8")
        (source / "ansible.rst").write_text(ELSEWHERE, encoding="utf-8")
        installed.call(
            *("antsibull-docs", "collection", "--use-current", "--squash-hierarchy"),
            *("--fail-on-error", "--dest-dir", str(reference), "sparkfleet.cluster"),
            cwd=base,
            env=env,
        )
        shutil.rmtree(SITE, ignore_errors=True)
        path = os.pathsep.join([str(place), env.get("PYTHONPATH", "")])
        installed.call(
            *(sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"),
            *(str(source), str(SITE)),
            cwd=base,
            env={**env, "PYTHONPATH": path},
        )
    print(f"The documentation: {SITE / 'index.html'}")


def main() -> int:
    """Build, and say in one line why not."""
    try:
        build()
    except (installed.CheckError, subprocess.CalledProcessError) as error:
        print(f"docs.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
