# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The options that the modules of Engram share, and the shards that are meant by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Missing, ask_all
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_layout import (
    AbsentError,
    LayoutError,
    Table,
    find_tables,
    split,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_pack import Shard, Source

LAYOUT_OPTIONS: dict[str, dict[str, Any]] = {
    "tables": {
        "type": "list",
        "elements": "dict",
        "options": {
            "layer": {"type": "int", "required": True},
            "rows": {"type": "int", "required": True},
        },
    },
    "tp_size": {"type": "int", "required": True},
    "weight_bytes": {"type": "int", "default": 256},
    "scale_bytes": {"type": "int", "default": 8},
    "timeout": {"type": "float", "default": 60.0},
}


class SilentError(LayoutError):
    """The checkpoint does not answer, as on a mount whose server is gone or restarts."""


def wanted_shards(wish: Mapping[str, Any]) -> list[tuple[Shard, Source | None]]:
    """What the options of a module mean.

    Raises:
        AbsentError: there is no checkpoint.
        SilentError: it does not answer.
        LayoutError: they mean nothing that can be.
    """
    widths = (wish["weight_bytes"], wish["scale_bytes"])
    told = [Table(table["layer"], table["rows"]) for table in wish["tables"] or ()]
    checkpoint = wish["checkpoint"]
    if not checkpoint:
        return split(told, wish["tp_size"], wish["rank"], *widths)
    if told:
        split(told, wish["tp_size"], wish["rank"], *widths)  # says all that is wrong with them
    tables = _ask(checkpoint, wish.get("revision") or "", widths, wish["timeout"])
    expected = {table.layer: table.rows for table in told}
    found = {table.layer: table.rows for table in tables}
    problems = [
        f"the table of layer {layer} has {found.get(layer, 'no')} rows in {checkpoint}, expected "
        f"{expected.get(layer, 'no such table')}"
        for layer in sorted(expected.keys() | found.keys())
        if expected and expected.get(layer) != found.get(layer)
    ]
    if problems:
        raise LayoutError(*problems, "Is it the checkpoint of this model and revision?")
    return split(tables, wish["tp_size"], wish["rank"], *widths)


def _ask(checkpoint: str, revision: str, widths: tuple[int, int], timeout: float) -> list[Table]:
    """Read a checkpoint that may be on a mount whose server is gone."""

    def question() -> dict[str, Any]:
        try:
            return {"tables": find_tables(checkpoint, revision, *widths)}
        except LayoutError as error:
            return {"problems": error.problems, "absent": isinstance(error, AbsentError)}

    answer = ask_all({"checkpoint": question}, timeout)["checkpoint"]
    if isinstance(answer, Missing):
        raise SilentError(
            f"{checkpoint}: {answer}. If it is a mount, its server may be gone: "
            f"timeout 5 ls {checkpoint}"
        )
    if "problems" in answer:
        if answer["absent"]:
            raise AbsentError(*answer["problems"])
        raise LayoutError(*answer["problems"])
    return [Table(layer, rows, Source(*source)) for layer, rows, source in answer["tables"]]
