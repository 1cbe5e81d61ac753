"""How messages are worded, and that ansible-core's containers are left behind."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain
from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import (
    fold_hosts,
    gib,
    suggestion,
)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["spark1"], "spark1"),
        (["spark1", "spark2"], "spark1, spark2"),
        (["spark1", "spark2", "spark3"], "spark1..spark3"),
        (["spark9", "spark10", "spark11"], "spark9..spark11"),
        (["spark08", "spark09", "spark10"], "spark08..spark10"),
        (["spark09", "spark010", "spark011"], "spark09, spark010, spark011"),
        (["spark1", "spark2", "spark4"], "spark1, spark2, spark4"),
        (["b1", "a2", "a3", "a4", "head"], "b1, a2..a4, head"),
        (["a1", "b2", "c3"], "a1, b2, c3"),
        (["x", "y"], "x, y"),
    ],
)
def test_folding(names: list[str], text: str) -> None:
    assert fold_hosts(names) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 GiB"),
        (2**29, "0.5 GiB"),
        (2**30, "1 GiB"),
        (9.96 * 2**30, "10.0 GiB"),
        (130664235008, "122 GiB"),
    ],
)
def test_sizes(size: float, text: str) -> None:
    assert gib(size) == text


def test_suggestions() -> None:
    assert suggestion("gpus", ["gpu", "docker"]) == " (did you mean gpu?)"
    assert suggestion("zzz", ["gpu", "docker"]) == ""


class Foreign(Mapping[Any, Any]):
    """A mapping that is no dict, as hostvars are."""

    def __getitem__(self, key: Any) -> Any:
        return {1: ("a", 2.5)}[key]

    def __iter__(self) -> Iterator[Any]:
        return iter([1])

    def __len__(self) -> int:
        return 1


class Tagged(str):
    """A text that is more than a text."""


def test_plain_values() -> None:
    value = plain({"a": Foreign(), Tagged("b"): [Tagged("c"), True, None, 3], "d": object})
    assert value == {"a": {"1": ["a", 2.5]}, "b": ["c", True, None, 3], "d": str(object)}
    assert {type(key) for key in value} == {str}
    assert type(value["b"][0]) is str
    assert type(value["a"]) is dict
    json.dumps(value)
