"""Which NCCL goes where, what containers see of it, and every refusal."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nccl_plan import Wish, nccl_plan
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nccl_visible import (
    PROBE,
    Seen,
    judge,
    read,
    visible,
)

OURS, STOCK = "a" * 64, "b" * 64
TARGET = "/opt/sglang/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"
PATCH = {"url": "https://example.org/a.patch", "sha256": "c" * 64}


def library(sha256: str | None = OURS, **more: Any) -> dict[str, Any]:
    missing = [{"code": "missing", "message": "there is no file /x"}]
    return {
        "path": "/x",
        "sha256": sha256,
        "machine": "aarch64",
        "node_machine": "aarch64",
        "version": "2.30.7+cuda13.0",
        "serving": [],
        "problems": [] if sha256 else missing,
        **more,
    }


CELL = {f"spark{number}": library() for number in range(1, 5)}
SERVING: dict[str, Any] = {"serving": ["sparkfleet-rank@sparks.service"]}


@pytest.mark.parametrize(
    ("libraries", "wish", "candidate", "told", "install"),
    [
        (CELL, Wish("none"), None, [], []),
        (CELL, Wish("file", file="/x"), library(), [], []),
        (
            {**CELL, "spark2": library(None), "spark3": library(STOCK)},
            Wish("file", file="/x"),
            library(),
            [],
            ["spark2", "spark3"],
        ),
        (
            {**CELL, "spark2": library(None)},
            Wish("none"),
            None,
            ["spark2: there is no file /x. This cell needs a patched NCCL: set nccl_source"],
            [],
        ),
        (
            {**CELL, "spark3": library(STOCK)},
            Wish("none"),
            None,
            [f"(spark1, spark2, spark4: {OURS[:16]}; spark3: {STOCK[:16]})"],
            [],
        ),
        (
            {**CELL, "spark3": library(STOCK, **SERVING), "spark4": library(**SERVING)},
            Wish("file", file="/x"),
            library(),
            ["spark3 is serving (sparkfleet-rank@sparks.service) and would get another NCCL"],
            ["spark3"],
        ),
        (
            {**CELL, "spark3": library(STOCK, **SERVING)},
            Wish("file", file="/x", force=True),
            library(),
            [],
            ["spark3"],
        ),
        (
            CELL,
            Wish("file", file="/x", version="2.29.1"),
            library(STOCK),
            ["/x is NCCL 2.30.7+cuda13.0, but the profile is made for 2.29.1"],
            list(CELL),
        ),
        (CELL, Wish("file", file="/x", sha256=STOCK), library(), ["expected nccl_sha256 bbb"], []),
        (
            {**CELL, "spark4": library(node_machine="x86_64")},
            Wish("file", file="/x"),
            library(),
            ["/x is made for aarch64, but spark4 not"],
            [],
        ),
        (CELL, Wish("file"), None, ["nccl_file is empty"], []),
        (CELL, Wish("url"), None, ["nccl_url is empty", "nccl_sha256 is ''"], []),
        (CELL, Wish("file", file="/x", sha256="123"), None, ["nccl_sha256 is '123'"], []),
        (
            CELL,
            Wish("build", commit="v2.30.7-1"),
            None,
            ["nccl_build_repository is empty", "nccl_build_commit is 'v2", "nccl_build_patches is"],
            [],
        ),
        (
            CELL,
            Wish("build", repository="r", commit="d" * 40, patches=[{**PATCH, "path": "/p"}]),
            None,
            ["nccl_build_patches[0]: expected either url or path"],
            [],
        ),
        (
            CELL,
            Wish("build", repository="r", commit="d" * 40, patches=[{"path": "/p"}]),
            None,
            ["nccl_build_patches[0]: sha256 is ''"],
            [],
        ),
        (
            {"spark1": library(visible={"problems": [{"code": "x", "message": "two of them"}]})},
            Wish("none"),
            None,
            ["spark1: two of them."],
            [],
        ),
    ],
)
def test_the_plan(
    libraries: dict[str, Any],
    wish: Wish,
    candidate: dict[str, Any] | None,
    told: list[str],
    install: list[str],
) -> None:
    plan = nccl_plan(libraries, wish, candidate)
    assert len(plan["problems"]) == len(told), plan["problems"]
    for sentence, problem in zip(told, plan["problems"], strict=True):
        assert sentence in problem
    assert plan["install"] == install


def test_all_that_decides_a_build_is_in_its_name() -> None:
    wish = {"repository": "r", "commit": "d" * 40, "patches": [PATCH], "gencode": "x", "image": "i"}
    named = {Wish("build", **wish).inputs}  # type: ignore[arg-type]
    for change in (
        {"commit": "e" * 40},
        {"patches": [{**PATCH, "sha256": "f" * 64}]},
        {"patches": [PATCH, PATCH]},
        {"gencode": "y"},
        {"image": "j"},
    ):
        named.add(Wish("build", **{**wish, **change}).inputs)  # type: ignore[arg-type]
    assert len(named) == 6
    moved = Wish("build", **{**wish, "repository": "mirror"})  # type: ignore[arg-type]
    assert moved.inputs in named


PIP = Seen({TARGET: STOCK}, "/usr/local/cuda/lib64", "")
BOUND = PIP._replace(libraries={TARGET: OURS})


@pytest.mark.parametrize(
    ("before", "bound", "told"),
    [
        (PIP, BOUND, {}),
        (
            PIP._replace(libraries={"/usr/lib/libnccl.so.2": STOCK}),
            Seen({"/usr/lib/libnccl.so.2": STOCK, TARGET: OURS}, "", ""),
            {"no-target": "(found: /usr/lib/libnccl.so.2)", "second-nccl": "/usr/lib/libnccl.so.2"},
        ),
        (PIP._replace(libraries={}), BOUND, {"no-target": "found: none anywhere"}),
        (PIP, PIP, {"not-bound": "although ours (aaaaaaaaaaaa)"}),
        (
            PIP,
            BOUND._replace(libraries={TARGET: OURS, "/nccl/libnccl.so.2": OURS}),
            {"second-nccl": "/nccl/libnccl.so.2"},
        ),
        (PIP, BOUND._replace(preload="/x/libnccl.so.2"), {"preload": "/x/libnccl.so.2"}),
    ],
)
def test_exactly_one_is_visible(before: Seen, bound: Seen, told: dict[str, str]) -> None:
    problems = judge(before, bound, TARGET, OURS)
    assert [problem["code"] for problem in problems] == list(told)
    for problem in problems:
        assert told[problem["code"]] in problem["message"]


def test_the_probe_sees_each_library_once(tmp_path: Path) -> None:
    """The shell script itself, run here: links are the file they lead to."""
    package, other = tmp_path / "package", tmp_path / "other"
    package.mkdir()
    other.mkdir()
    (package / "libnccl.so.2.30.7").write_bytes(b"one")
    (package / "libnccl.so.2").symlink_to("libnccl.so.2.30.7")
    (package / "libnccl.so").symlink_to("libnccl.so.2")
    (package / "libnccl.so.9").symlink_to("nowhere")
    (other / "libnccl.so.2").write_bytes(b"two")
    done = subprocess.run(
        ["/bin/sh", "-c", PROBE, "probe", str(package)],
        env={"PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": f"/nonexistent:{other}"},
        capture_output=True,
        text=True,
        check=True,
    )
    seen = read(done.stdout)
    mine = {path: sha for path, sha in seen.libraries.items() if path.startswith(str(tmp_path))}
    assert set(mine) == {str(package / "libnccl.so.2.30.7"), str(other / "libnccl.so.2")}
    assert len(set(mine.values())) == 2
    assert seen.path == f"/nonexistent:{other}"


def test_a_container_that_cannot_look_leaves_nothing_behind() -> None:
    asked: list[Sequence[str]] = []

    def run(argv: Sequence[str]) -> Command:
        asked.append(argv)
        return Command(None, "", "docker did not answer within 120 s")

    found = visible("engine:1", TARGET, "/x", OURS, run)
    assert [problem["code"] for problem in found["problems"]] == ["no-look"]
    assert asked[0][:2] == ("docker", "run") or list(asked[0][:2]) == ["docker", "run"]
    assert {"--network", "none", "--pull", "never"} <= set(asked[0])
    name = asked[0][asked[0].index("--name") + 1]
    assert asked[-1] == ["docker", "rm", "--force", name]
