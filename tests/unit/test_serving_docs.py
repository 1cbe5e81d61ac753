"""The tables in docs/serving.md are those of the plan; UPDATE_GOLDEN=1 writes them anew."""

from __future__ import annotations

import os

import pytest
import yaml

from tests.support.playbook import ROOT
from tests.unit.servings import serving

DOCS = ROOT / "docs" / "serving.md"
LAUNCHES = {
    "dsv41-tp3": (3, "triangle"),
    "dsv41-tp4-base": (4, "switch"),
    "dsv41-tp4": (4, "switch"),
    "dsv41-tp8": (8, "switch"),
}


def memory() -> str:
    columns: dict[str, dict[str, float]] = {}
    for name, (hosts, topology) in LAUNCHES.items():
        items = serving(name, hosts, topology)["memory"]
        column = {item["item"]: item["bytes"] / 2**30 for item in items}
        columns[name] = {**column, "in all, of 121.7": sum(column.values())}
    items = list(dict.fromkeys(item for column in columns.values() for item in column))
    items = [item for item in items if not item.startswith("in all")] + ["in all, of 121.7"]
    rows = [["item", *(f"`{name}`" for name in columns)], ["---", *["---:"] * len(columns)]]
    rows += [
        [item, *(f"{column[item]:.1f}" if item in column else "" for column in columns.values())]
        for item in items
    ]
    return table(rows)


def differences() -> str:
    told = yaml.safe_load((DOCS.parent / "launch_differences.yml").read_text(encoding="utf-8"))
    rows = [["entry", "published", "here", "why"], ["---"] * 4]
    rows += [
        [f"`{entry['entry']}`", cell(entry["theirs"]), cell(entry["ours"]), entry["reason"]]
        for entry in told
    ]
    return table(rows)


def cell(values: list[str]) -> str:
    if not values:
        return "-"
    words = [f"`{value}`" if value else "given" for value in values]
    return ", ".join(words) if len(set(words)) == len(words) else f"{words[0]}, twice"


def table(rows: list[list[str]]) -> str:
    return "".join(f"| {' | '.join(' '.join(word.split()) for word in row)} |\n" for row in rows)


@pytest.mark.parametrize("make", [memory, differences], ids=["memory", "differences"])
def test_a_table_is_that_of_the_plan(make):
    text = DOCS.read_text(encoding="utf-8")
    mark = f"<!-- {make.__name__} -->\n"
    assert text.count(mark) == 1
    before, _mark, rest = text.partition(mark)
    _old, end, after = rest.partition("<!-- end -->\n")
    wanted = f"{before}{mark}{make()}{end}{after}"
    if os.environ.get("UPDATE_GOLDEN"):
        DOCS.write_text(wanted, encoding="utf-8")
        text = wanted
    assert text == wanted, f"the table {make.__name__} of docs/serving.md is out of date"


def test_every_profile_is_in_the_documentation():
    text = DOCS.read_text(encoding="utf-8")
    for path in (ROOT / "roles/sglang/files/profiles").glob("*.yml"):
        assert f"`{path.stem}`" in text
