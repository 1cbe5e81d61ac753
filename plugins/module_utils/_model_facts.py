# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What is known about a model: a file of the collection, or of the user in the same form."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import suggestion

ENDING = ".yml"


class ModelFactsError(ValueError):
    """There is no such file, or it is not in the form; the text tells every problem."""


def find(model: str, folder: str) -> str:
    """The path of the file of facts that `model` names.

    Args:
        model: the name of a file in `folder` without its ending, or the path of any other.
        folder: where the collection has its own.

    Raises:
        ModelFactsError: there is no such file.
    """
    if "/" in model or model.endswith((".yml", ".yaml")):
        path = os.path.abspath(os.path.expanduser(model))
        if os.path.isfile(path):
            return path
        raise ModelFactsError(f"there is no file {path} with facts about a model")
    names = sorted(
        name.removesuffix(ENDING) for name in os.listdir(folder) if name.endswith(ENDING)
    )
    if model in names:
        return os.path.join(folder, model + ENDING)
    raise ModelFactsError(
        f"no model is called {model!r}{suggestion(model, names)}; known are: {', '.join(names)}. "
        "For another one, give the path of your own file of facts, with a / in it."
    )


def check(told: Any, source: str) -> dict[str, Any]:
    """Check the content of a file of facts and give it all keys; what is not told is None.

    Raises:
        ModelFactsError: a key is unknown or missing, or a value not of its form; all of them.
    """
    if not isinstance(told, Mapping):
        raise ModelFactsError(f"{source}: expected a mapping of facts about a model")
    problems = _problems(told, _FIELDS, "")
    if told.get("served_name") is None:
        problems.append("served_name is missing")
    engram = told.get("engram") or {}
    if isinstance(engram, Mapping) and not problems:
        problems += _engram_problems(engram)
    if problems:
        raise ModelFactsError("\n".join(f"{source}: {problem}" for problem in problems))
    return {
        **dict.fromkeys(_FIELDS),
        **told,
        "engram": {**dict.fromkeys(_ENGRAM), "tables": [], **engram},
    }


Rule = tuple[Callable[[Any], bool], str]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value)


def _like(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


_COUNT: Rule = (_is_count, "a number above 0")
_FIELDS: Mapping[str, Rule] = {
    "served_name": (_like(r"\S+"), "a word"),
    "repository": (_like(r"[\w.-]+/[\w.-]+"), "organisation/name"),
    "revision": (_like(r"[0-9a-f]{40}"), "a full commit hash, so that it cannot move"),
    "weight_files": _COUNT,
    "weight_bytes": _COUNT,
    "config_sha256": (_like(r"[0-9a-f]{64}"), "64 hexadecimal digits"),
    "engram": (lambda value: isinstance(value, Mapping), "a mapping"),
    **dict.fromkeys(
        (
            "context_limit",
            "context_minimum",
            "layers",
            "draft_stages",
            "hidden_size",
            "attention_heads",
            "o_groups",
            "experts",
            "experts_per_token",
            "shared_experts",
            "expert_width",
            "draft_experts",
            "vocabulary",
            "sliding_window",
            "kv_page_tokens",
        ),
        _COUNT,
    ),
    "kv_bytes_per_token": (_is_number, "a number of bytes"),
    "weight_gib_per_rank": (
        lambda value: (
            isinstance(value, Mapping)
            and all(str(ranks).isdigit() and _is_number(gib) for ranks, gib in value.items())
        ),
        "a mapping of numbers of ranks to GiB",
    ),
    "draft_gib_per_rank": (_is_number, "a number of GiB"),
}
_ENGRAM: Mapping[str, Rule] = {
    "weight_bytes_per_row": _COUNT,
    "scale_bytes_per_row": _COUNT,
    "tables": (
        lambda value: isinstance(value, Sequence) and not isinstance(value, str),
        "a list of tables",
    ),
}
_TABLE: Mapping[str, Rule] = {
    "layer": (lambda value: value == 0 or _is_count(value), "the number of a layer"),
    "rows": _COUNT,
}


def _problems(told: Mapping[Any, Any], rules: Mapping[str, Rule], where: str) -> list[str]:
    found = []
    for name, value in told.items():
        if name not in rules:
            found.append(f"{where}{name} is unknown{suggestion(str(name), rules)}")
        elif value is not None and not rules[name][0](value):
            found.append(f"{where}{name} is {value!r}, expected {rules[name][1]}")
    return found


def _engram_problems(engram: Mapping[str, Any]) -> list[str]:
    found = _problems(engram, _ENGRAM, "engram.")
    if found or not engram.get("tables"):
        return found
    for name in ("weight_bytes_per_row", "scale_bytes_per_row"):
        if engram.get(name) is None:
            found.append(f"engram.{name} is missing")
    layers: list[Any] = []
    for number, table in enumerate(engram["tables"]):
        where = f"engram.tables[{number}]."
        if not isinstance(table, Mapping):
            found.append(f"{where[:-1]} is {table!r}, expected layer and rows")
            continue
        found += _problems(table, _TABLE, where)
        found += [f"{where}{name} is missing" for name in _TABLE if table.get(name) is None]
        if table.get("layer") in layers:
            found.append(f"{where}layer {table['layer']} has a table already")
        layers.append(table.get("layer"))
    return found
