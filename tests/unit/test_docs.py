# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages keep to what there is: links, variables, playbooks, commands and generated tables.

UPDATE_GOLDEN=1 writes generated tables anew. Every command of README and the quick start is run by
what RUN_BY names; here it is held to that, and to what can be seen without a lab.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import statistics
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.no_change import missed as missed_no_change
from benchmarks.packing import missed as missed_packing
from tests.support import pages
from tests.support.playbook import ROOT, ansible_env

PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "roles").glob("*/README.md"),
    ]
)
# Every host that a page sends its reader to.
ELSEWHERE = {"github.com"}
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```+)(\S*)\n(.*?)^\1$", re.MULTILINE | re.DOTALL)
# What runs the commands of a mark, and those without one by their first words.
RUN_BY_PLACE = {"sparks": "tests/lab/test_readme.py", "head": "tests/lab/test_readme.py"}
RUN_BY = {
    "make demo": "tests/lab/test_readme.py",
    "make test": ".ci/run",
    "ansible-galaxy collection": "tests/dist/test_dist.py",
    "ansible-doc": "tests/dist/test_dist.py",
    "ansible-playbook sparkfleet.cluster": "tests/dist/test_dist.py",
}
PROFILES = ROOT / "roles/sglang/files/profiles"

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def prose(page: Path) -> str:
    """A page without its blocks of code, in which nothing is a link."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of headings, as forges and the site make them."""
    found = set()
    for heading in re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found


@each_page
def test_links_lead_somewhere(page):
    for target in LINK.findall(prose(page)):
        if target.startswith("https://"):
            assert target.split("/")[2] in ELSEWHERE, f"{target} leads to a host that is not listed"
            continue
        place, _hash, anchor = target.partition("#")
        path = (page.parent / place).resolve() if place else page
        assert path.exists(), f"{target} is not there"
        assert path.is_relative_to(ROOT)
        if anchor:
            assert anchor in anchors(path), f"{place or page.name} has no heading #{anchor}"


@each_page
def test_pages_begin_with_their_only_title(page):
    text = prose(page)
    assert text.startswith("# ")
    assert len(re.findall(r"^# ", text, re.MULTILINE)) == 1


def known_variables() -> set[str]:
    found: set[str] = set()
    for path in (ROOT / "roles").glob("*/meta/argument_specs.yml"):
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
        for entry in spec.values():
            found |= set(entry["options"])
    return found


def known_settings() -> set[str]:
    found: set[str] = set()
    for path in PROFILES.glob("*.yml"):
        found |= set(yaml.safe_load(path.read_text(encoding="utf-8")).get("settings", {}))
    return found


@pytest.mark.parametrize("name", ["migration", "operations", "quick-start", "troubleshooting"])
def test_guides_name_variables_that_there_are(name):
    text = (ROOT / f"docs/{name}.md").read_text(encoding="utf-8")
    variables = known_variables()
    roles = sorted({path.parents[1].name for path in ROOT.glob("roles/*/meta/argument_specs.yml")})
    begun = re.compile(rf"\b(?:{'|'.join(roles)})_[a-z_]+\b")
    modules = {path.stem for path in (ROOT / "plugins/modules").glob("*.py")}
    assert set(begun.findall(text)) <= variables | modules | set(roles)


def test_the_migration_names_settings_that_there_are():
    text = (ROOT / "docs/migration.md").read_text(encoding="utf-8")
    named = set()
    for row in re.findall(r"\| settings? (`.*`)", text):
        named |= set(re.findall(r"`([a-z_]+)`", row))
    assert named
    assert named <= known_settings()


@each_page
def test_playbooks_that_are_named_are_there(page):
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"ansible-playbook sparkfleet\.cluster\.(\w+)", text))
    named |= set(re.findall(r"playbooks/([a-z_]+)\.yml", text))
    assert named <= {path.stem for path in (ROOT / "playbooks").glob("*.yml")}


@pytest.mark.parametrize("page", pages.PAGES)
def test_a_verb_is_a_playbook(page):
    """The first column of tables that tell what playbooks do."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for table in re.findall(r"^\| playbook \|.*\n\|[-| ]+\|\n((?:\|.*\n)+)", text, re.MULTILINE):
        for row in table.splitlines():
            for name in re.findall(r"`(\w+)`", row.split("|")[1]):
                assert (ROOT / f"playbooks/{name}.yml").exists(), name


@pytest.mark.parametrize("command", pages.commands(), ids=lambda command: command.line)
def test_a_command_is_run_by_a_test_and_can_be_typed(command, tmp_path):
    words = shlex.split(command.line, comments=True)
    if command.place:
        program = (ROOT / RUN_BY_PLACE[command.place]).read_text(encoding="utf-8")
        assert f'place == "{command.place}"' in program
    else:
        (runs,) = [place for start, place in RUN_BY.items() if command.line.startswith(start)]
        assert " ".join(words) in (ROOT / runs).read_text(encoding="utf-8")
    if words[0] == "make":
        shown = ["make", "--dry-run", "--no-print-directory", *words[1:]]
        subprocess.run(shown, cwd=ROOT, check=True, capture_output=True)
    if command.place == "sparks":
        env = ansible_env(tmp_path)
        parse = [*words, "--syntax-check"]
        subprocess.run(parse, cwd=ROOT, env=env, check=True, capture_output=True)


def test_the_inventory_that_readme_shows_is_the_one_that_is_there():
    """Hosts, addresses and user; the file explains more variables, with their defaults."""
    for page in pages.PAGES:
        (block,) = [text for _fence, kind, text in FENCE.findall(page_text(page)) if kind == "yaml"]
        shown = yaml.safe_load(block)["sparks"]
        file = yaml.safe_load((ROOT / "inventories/sparks.yml").read_text(encoding="utf-8"))[
            "sparks"
        ]
        assert shown["hosts"] == file["hosts"]
        assert shown["vars"]["ansible_user"] == file["vars"]["ansible_user"]
        assert shown["vars"]["spark_topology"] == "ring"


def page_text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def table(*rows: list[str]) -> str:
    lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "".join(
        f"| {' | '.join(' '.join(cell.split()).replace('|', chr(92) + '|') for cell in line)} |\n"
        for line in lines
    )


def signatures() -> str:
    """What a boot is held against, of every profile."""
    found: dict[str, tuple[str, str]] = {}
    for path in sorted(PROFILES.glob("*.yml")):
        profile = yaml.safe_load(path.read_text(encoding="utf-8"))
        for name, entry in profile.get("fatals", {}).items():
            found[name] = (entry["cause"], entry["remedy"])
    return table(["signature", "cause", "remedy"], *([name, *told] for name, told in found.items()))


def fetched() -> str:
    """What roles bring from outside, from their own pins."""
    rows = []
    for path in sorted((ROOT / "roles/spark/files/models").glob("*.yml")):
        facts = yaml.safe_load(path.read_text(encoding="utf-8"))
        pin = f"revision `{facts['revision']}`"
        check = "index, headers and sizes, always; hashes with `checkpoint_hashes`"
        rows.append([f"checkpoint of `{facts['repository']}`", "`checkpoint`", pin, check])
    lock = ROOT / "roles/checkpoint/files/requirements.txt"
    rows.append(["the hub's downloader", "`checkpoint`", "versions and hashes below", "pip"])
    assert "--hash=sha256:" in lock.read_text(encoding="utf-8")
    builds: dict[tuple[str, str], list[str]] = {}
    for path in sorted(PROFILES.glob("*.yml")):
        build = yaml.safe_load(path.read_text(encoding="utf-8")).get("image", {}).get("build", {})
        if "commit" in build:
            builds.setdefault((build["repository"], build["commit"]), []).append(path.stem)
    for repository, commit in builds:
        rows.append([f"image, from {repository}", "`sglang_image`", f"commit `{commit}`", "git"])
    nccl = yaml.safe_load((ROOT / "roles/nccl/defaults/main.yml").read_text(encoding="utf-8"))
    commit = nccl["nccl_build_commit"]
    source = f"NCCL, from {nccl['nccl_build_repository']}, with `nccl_source: build`"
    rows.append([source, "`nccl`", f"commit `{commit}`", "git; patches by SHA-256"])
    url = ["NCCL, from your `nccl_url`", "`nccl`", "`nccl_sha256`, which is required", "SHA-256"]
    return table(["what", "role", "pinned by", "checked by"], *rows, url)


def downloader() -> str:
    lock = (ROOT / "roles/checkpoint/files/requirements.txt").read_text(encoding="utf-8")
    rows = []
    for entry in lock.replace("\\\n", " ").splitlines():
        if entry.strip() and not entry.startswith("#"):
            name, hashes = entry.split("==")[0], re.findall(r"--hash=sha256:(\w{64})", entry)
            assert hashes, f"{name} is not pinned by a hash"
            version, _semicolon, when = entry.split("--hash")[0].split("==", 1)[1].partition(";")
            condition = f"`{when.strip()}`" if when.strip() else ""
            rows.append([name, version.strip(), condition, str(len(hashes))])
    return table(["package", "version", "where", "hashes"], *rows)


def measured(name: str) -> Any:
    return json.loads((ROOT / f"docs/performance/{name}.json").read_text(encoding="utf-8"))


def machine(found: Any) -> str:
    it = found["machine"]
    return (
        f"Measured on {it['when']}: {it['cpu']}, {it['cpus']} CPUs, {it['memory_gib']} GiB, Linux "
        f"{it['kernel']}, Python {it['python']}, load {it['load']}.\n"
    )


def planning() -> str:
    found = measured("planning")
    assert max(times["1024"] for times in found["seconds"].values()) <= found["bar_seconds"]
    sizes = list(found["seconds"]["fabric, ring"])
    rows = [
        [kind, *(f"{times[size]:.4f}" for size in sizes)]
        for kind, times in found["seconds"].items()
    ]
    return f"{machine(found)}\n{table(['hosts', *sizes], *rows)}"


def gids() -> str:
    found = measured("gids")
    rows = [
        [words, f"{found[name]['fastest']:.1f}", f"{found[name]['median']:.1f}"]
        for name, words in (
            ("walk_and_choice", "reading and choosing, CPU"),
            ("program", "the program with its Python, CPU"),
            ("python_alone", "Python alone, CPU"),
            ("program_wall", "the program, on the clock"),
        )
    ]
    return f"{machine(found)}\n{table(['milliseconds', 'fastest', 'median'], *rows)}"


def no_change() -> str:
    if not (ROOT / "docs/performance/no_change.json").exists():
        return "Not measured yet.\n"
    found = measured("no_change")
    cells = found["cells"]
    assert not any(cell["changed"] for cell in cells.values())
    rows = []
    for name, cell in cells.items():
        setup, site = (statistics.median(cell[f"{what}_seconds"]) for what in ("setup", "site"))
        it = cell["machine"]
        figures = [f"{setup:.1f}", f"{site:.1f}", f"{cell['multiple']:.1f}", str(cell["tasks"])]
        rows.append([name, *figures, str(cell["after_ready_seconds"]), str(it["load"])])
    titles = ["cell", "`setup`, s", "`site.yml`, s", "multiple", "tasks", "after ready, s", "load"]
    first = next(iter(cells.values()))
    stages = [
        [stage, *(f"{cell['stage_seconds'][stage]:.1f}" for cell in cells.values())]
        for stage in first["stage_seconds"]
    ]
    return (
        f"{machine(first)}\n{table(titles, *rows)}\n{verdicts(missed_no_change(cells))}\n"
        f"{table(['seconds of the stage', *cells], *stages)}"
    )


def packing() -> str:
    found = measured("packing")
    names = {"pack": "`engram_pack`", "dd": "`dd conv=fsync`", "loop": "numpy loop"}
    rows = [
        [
            words,
            f"{found['seconds'][name]:.1f}",
            f"{max(run['cached_share'] for run in found['runs'][name]):.0%}",
        ]
        for name, words in names.items()
    ]
    titles = [f"{found['bytes'] / 1e9:.2f} GB", "seconds, median", "left in the page cache"]
    return (
        f"{machine(found)}\n{table(titles, *rows)}\n"
        f"{found['to_loop']:.2f} times the loop (bar {found['bars']['to_loop']}), "
        f"{found['to_dd']:.2f} times `dd` (bar {found['bars']['to_dd']}); "
        f"{found['pack_peak_rss'] / 2**20:.0f} MiB of memory at most; looking at a packed file "
        f"again takes {found['recheck_seconds']:.2f} s. {verdicts(missed_packing(found))}"
    )


def verdicts(missed: list[str]) -> str:
    return f"Missed: {'; '.join(missed)}.\n" if missed else "All bars are met.\n"


@pytest.mark.parametrize(
    ("page", "make"),
    [
        ("performance", planning),
        ("performance", gids),
        ("performance", no_change),
        ("performance", packing),
        ("troubleshooting", signatures),
        ("fetched", fetched),
        ("fetched", downloader),
    ],
)
def test_a_table_is_that_of_its_source(page, make):
    path = ROOT / f"docs/{page}.md"
    text = path.read_text(encoding="utf-8")
    mark = f"<!-- {make.__name__} -->\n"
    assert text.count(mark) == 1
    before, _mark, rest = text.partition(mark)
    _old, end, after = rest.partition("<!-- end -->\n")
    wanted = f"{before}{mark}\n{make()}\n{end}{after}"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(wanted, encoding="utf-8")
        text = wanted
    assert text == wanted, f"the table {make.__name__} is out of date; next: UPDATE_GOLDEN=1"


def test_the_index_of_decisions_is_whole():
    text = (ROOT / "docs/decisions/README.md").read_text(encoding="utf-8")
    for path in (ROOT / "docs/decisions").glob("0*.md"):
        assert f"({path.name})" in text


def test_every_picture_of_the_quick_start_is_one_that_is_drawn():
    """The pictures themselves are held against the renderer in test_fabric_picture.py."""
    text = (ROOT / "docs/quick-start.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\(pictures/([\w-]+)\.svg\)", text))
    drawn = {path.stem for path in (ROOT / "docs/pictures").glob("*.svg")}
    assert {"pair", "triangle", "ring-of-4", "switch-of-4"} <= shown <= drawn
