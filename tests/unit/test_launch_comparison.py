"""The published launch for four Sparks against ours, entry by entry.

Every difference is deliberate and has its reason in docs/launch_differences.yml, from which the
table in docs/serving.md comes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from tests.support.playbook import ROOT
from tests.unit.servings import serving

PUBLISHED = json.loads(
    (ROOT / "tests/unit/fixtures/serving/published_launch.json").read_text(encoding="utf-8")
)
DIFFERENCES = yaml.safe_load((ROOT / "docs/launch_differences.yml").read_text(encoding="utf-8"))
PLAN = serving("dsv41-tp4")
RANK = PLAN["hosts"]["spark2"]
# What the reader of the published launch puts in for its variables, on the second machine.
VARIABLES = {
    "NODE_RANK": "1",
    "NODE_IP": RANK["container"]["env"]["HOST_IP"],
    "GID_INDEX": "3",
    "NCCL_CONTAINER_DIR": "/nccl",
}
Entries = dict[str, list[str]]


def collect(pairs: Iterable[tuple[str, str]]) -> Entries:
    entries: Entries = {}
    for name, value in pairs:
        entries.setdefault(name, []).append(value)
    return entries


def theirs() -> Entries:
    def pairs() -> Iterator[tuple[str, str]]:
        yield "image", PUBLISHED["image"]
        for option in PUBLISHED["docker"]:
            name, _space, value = option.partition(" ")
            if name == "-v":
                _source, target, mode = value.split(":")
                yield f"mount {target}", mode
            else:
                yield f"docker {name}", value
        for variable in PUBLISHED["env"]:
            name, _equals, value = variable.partition("=")
            yield f"env {name}", value
        for argument in PUBLISHED["command"]:
            name, _space, value = argument.partition(" ")
            yield f"command {name}", value

    def expand(text: str) -> str:
        if text.startswith("'"):  # the shell expands nothing there
            return text
        return re.sub(r"\$\{(\w+)\}", lambda found: VARIABLES[found.group(1)], text)

    return collect((name, expand(value)) for name, value in pairs())


def ours() -> Entries:
    spec: Mapping[str, Any] = RANK["container"]

    def pairs() -> Iterator[tuple[str, str]]:
        yield "image", spec["image"]
        if spec["gpus"]:
            yield "docker --gpus", "all"
        if spec["privileged"]:
            yield "docker --privileged", ""
        yield "docker --network", spec["network_mode"]
        yield "docker --ipc", spec["ipc_mode"]
        yield "docker --shm-size", spec["shm_size"]
        yield "docker --oom-score-adj", str(spec["oom_score_adj"])
        yield "docker --entrypoint", " ".join(spec["entrypoint"])
        for name in spec["capabilities"]:
            yield "docker --cap-add", name
        for device in spec["devices"]:
            yield "docker --device", f"{device}:{device}"
        for name, limit in spec["ulimits"].items():
            yield "docker --ulimit", f"{name}={limit}:{limit}" if limit < 0 else f"{name}={limit}"
        for mount in spec["mounts"]:
            yield f"mount {mount['target']}", "ro" if mount["read_only"] else "rw"
        for name, value in spec["env"].items():
            yield f"env {name}", value
        words = spec["command"]
        for at, word in enumerate(words):
            if word.startswith("-"):
                value = words[at + 1] if at + 1 < len(words) else "-"
                yield f"command {word}", "" if value.startswith("-") else value

    return collect(pairs())


def same(one: list[str], other: list[str]) -> bool:
    """Whether values are equal; 0.80 and 0.8 are."""
    return [_number(value) for value in one] == [_number(value) for value in other]


def _number(value: str) -> str | float:
    try:
        return float(value)
    except ValueError:
        return value


def test_every_difference_is_deliberate_and_every_deliberate_one_is_there():
    one, other = theirs(), ours()
    found = {
        name: {"theirs": one.get(name, []), "ours": other.get(name, [])}
        for name in sorted({*one, *other})
        if not same(one.get(name, []), other.get(name, []))
    }
    told = {
        difference["entry"]: {"theirs": difference["theirs"], "ours": difference["ours"]}
        for difference in DIFFERENCES
    }
    assert len(told) == len(DIFFERENCES)
    assert found == told
    assert all(difference["reason"].endswith(".") for difference in DIFFERENCES)


def test_the_comparison_sees_the_whole_launch():
    one = theirs()
    assert sum(name.startswith("env ") for name in one) == 108
    assert sum(name.startswith("command ") for name in one) == 32
    assert sum(name.startswith(("docker ", "mount ")) for name in one) == 12
