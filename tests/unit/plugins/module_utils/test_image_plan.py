"""Who gets an image from whom, and every reason for which nothing is done."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_plan import fabric_plan
from ansible_collections.sparkfleet.cluster.plugins.module_utils._image_plan import (
    Wish,
    image_plan,
)

HOSTS = [f"spark{number}" for number in range(1, 5)]
RING = fabric_plan([{"name": name} for name in HOSTS], "ring", management_interface="enP7s7")
COMMIT = "c" * 40
WISH: dict[str, Any] = {
    "reference": "engine:1",
    "source": "build",
    "builder": "spark1",
    "repository": "https://example.org/engine",
    "commit": COMMIT,
    "dockerfile": "Dockerfile",
    "args": {},
    "archive": "",
    "force": False,
}
INPUTS = Wish(**WISH).inputs
OTHER = "sha256:" + "9" * 64
UNIT = "sparkfleet-rank@sparks.service"


def image(exists: bool = True, **more: Any) -> dict[str, Any]:
    return {
        "exists": exists,
        "content": "sha256:" + "1" * 64 if exists else None,
        "architecture": "arm64" if exists else None,
        "labels": {"io.sparkfleet.build": INPUTS} if exists else {},
        "size": 5 << 30,
        "node_architecture": "arm64",
        "store": "classic",
        "zstd": True,
        "serving": [],
        "problems": [],
        **more,
    }


def plan(
    cell: dict[str, dict[str, Any]] | None = None,
    saved: dict[str, Any] | None = None,
    **wish: Any,
) -> dict[str, Any]:
    images = {host: image() for host in HOSTS} | (cell or {})
    return image_plan(images, RING, Wish(**{**WISH, **wish}), saved)


BARE = {host: image(exists=False) for host in HOSTS}
STALE = {host: image(labels={"io.sparkfleet.build": "old"}) for host in HOSTS}
ARCHIVE: dict[str, Any] = {
    "path": "/a.tar",
    "problems": [],
    "images": [{"tags": ["engine:1"], "architecture": "arm64", "content": OTHER}],
}
LOADED = {"source": "archive", "archive": "/a.tar"}


@pytest.mark.parametrize(
    ("cell", "wish", "obtain", "receivers"),
    [
        ({}, {}, [], []),
        (BARE, {}, ["spark1"], HOSTS[1:]),
        (STALE, {}, ["spark1"], HOSTS[1:]),
        ({"spark3": image(exists=False)}, {}, [], ["spark3"]),
        ({"spark3": image(content=OTHER)}, {}, [], ["spark3"]),
        ({}, {"commit": "d" * 40}, ["spark1"], HOSTS[1:]),
        ({}, {"args": {"A": "1"}}, ["spark1"], HOSTS[1:]),
        ({}, {"dockerfile": "docker/Dockerfile.roce"}, ["spark1"], HOSTS[1:]),
        # the commit names the content, wherever it is fetched from
        ({}, {"repository": "https://mirror.example.org/engine"}, [], []),
        ({"spark2": image(exists=False)}, {"builder": "spark3"}, [], ["spark2"]),
        (BARE, {"source": "pull", "reference": "r/e@sha256:" + "a" * 64}, HOSTS, []),
        ({}, {"source": "present"}, [], []),
    ],
)
def test_who_gets_it_from_whom(
    cell: dict[str, Any], wish: dict[str, Any], obtain: list[str], receivers: list[str]
) -> None:
    found = plan(cell, **wish)
    assert (found["problems"], found["obtain"], found["receivers"]) == ([], obtain, receivers)


def test_receivers_of_an_archive() -> None:
    found = plan({"spark2": image(content=OTHER)}, ARCHIVE, **LOADED)
    assert (found["obtain"], found["receivers"]) == (["spark1"], ["spark3", "spark4"])
    done = {host: image(content=OTHER) for host in HOSTS}
    found = plan(done, ARCHIVE, **LOADED)
    assert (found["problems"], found["obtain"], found["receivers"]) == ([], [], [])


def test_neighbours_use_their_own_cable_and_others_a_routed_address() -> None:
    found = plan(BARE)
    ports = RING["hosts"]["spark1"]["ports"]
    own = {port["address"]: port["peer"]["host"] for port in ports}
    assert own[found["addresses"]["spark2"]] == "spark2"
    assert own[found["addresses"]["spark4"]] == "spark4"
    assert found["addresses"]["spark3"] == RING["hosts"]["spark3"]["nfs_server_address"]
    assert found["listen"] == sorted(set(found["addresses"].values()))
    for builder in HOSTS[1:]:
        addresses = {port["address"] for port in RING["hosts"][builder]["ports"]}
        assert set(plan(BARE, builder=builder)["listen"]) <= addresses


def test_compressed_only_where_all_can() -> None:
    assert plan(BARE)["compress"] is True
    assert plan({**BARE, "spark2": image(exists=False, zstd=False)})["compress"] is False
    assert plan()["compress"] is False


@pytest.mark.parametrize(
    ("cell", "archive", "wish", "told"),
    [
        ({}, None, {"reference": ""}, ["no image is named: set spark_image"]),
        ({}, None, {"reference": "UPPER case"}, ["'UPPER case', which is no reference"]),
        ({}, None, {"reference": "--help"}, ["'--help', which is no reference"]),
        ({}, None, {"repository": ""}, ["sglang_image_repository is empty"]),
        ({}, None, {"commit": "main"}, ["sglang_image_commit is 'main'"]),
        ({}, None, {"commit": "c" * 39}, ["expected a whole commit of 40"]),
        ({}, None, {"dockerfile": "/etc/passwd"}, ["'/etc/passwd', expected a path inside"]),
        ({}, None, {"dockerfile": "a/../../b"}, ["'a/../../b', expected a path inside"]),
        ({}, None, {"source": "pull"}, ["expected name@sha256:..."]),
        ({}, None, {"reference": "e@sha256:" + "a" * 64}, ["has a tag, no digest"]),
        ({}, None, {"source": "archive"}, ["sglang_image_archive is empty"]),
        ({}, None, {"builder": "spark9"}, ["the builder 'spark9' is not among", "spark1..spark4"]),
        (
            {
                "spark2": image(problems=[{"code": "docker-down", "message": "no Docker"}]),
                "spark3": image(problems=[{"code": "docker-absent", "message": "none at all"}]),
            },
            None,
            {},
            ["spark2: no Docker.", "spark3: none at all."],
        ),
        (
            {"spark2": image(exists=False), "spark4": image(content=OTHER)},
            None,
            {"source": "present"},
            ["engine:1 is not on spark2", "spark4 has another engine:1 than spark1"],
        ),
        (
            {"spark4": image(architecture="amd64")},
            None,
            {"source": "present"},
            ["engine:1 is made for amd64, but spark4 is arm64: it would end with 'exec format"],
        ),
        (
            {"spark3": image(exists=False, node_architecture="amd64")},
            None,
            {},
            ["engine:1 is made for arm64, but spark3 is amd64"],
        ),
        (
            BARE,
            {**ARCHIVE, "images": [{**ARCHIVE["images"][0], "architecture": "amd64"}]},
            LOADED,
            [f"engine:1 is made for amd64, but {host} is arm64" for host in HOSTS],
        ),
        (
            BARE,
            {**ARCHIVE, "images": [{"tags": ["x:1"], "architecture": "arm64", "content": OTHER}]},
            LOADED,
            ["/a.tar has no image engine:1, but x:1"],
        ),
        (
            BARE,
            {"path": "/a.tar", "images": [], "problems": [{"code": "x", "message": "it is cut"}]},
            LOADED,
            ["it is cut."],
        ),
        (
            {**BARE, "spark1": image(exists=False, serving=[UNIT])},
            None,
            {},
            [f"spark1 is serving ({UNIT}) and would have to build engine:1"],
        ),
        (
            {"spark1": image(serving=[UNIT]), "spark2": image(exists=False, serving=[UNIT])},
            None,
            {},
            ["spark1 is serving", "would have to send", "spark2 is serving", "to receive"],
        ),
    ],
)
def test_nothing_is_done_for_a_reason(
    cell: dict[str, Any], archive: dict[str, Any] | None, wish: dict[str, Any], told: list[str]
) -> None:
    problems = "\n".join(plan(cell, archive, **wish)["problems"])
    for sentence in told:
        assert sentence in problems


def test_a_serving_cell_with_the_right_image_is_left_alone() -> None:
    assert plan({host: image(serving=[UNIT]) for host in HOSTS})["problems"] == []
    forced = plan({**BARE, "spark1": image(exists=False, serving=[UNIT])}, force=True)
    assert forced["problems"] == [] and forced["obtain"] == ["spark1"]


def test_a_build_for_another_processor_is_seen_before_it_is_sent() -> None:
    built = {**BARE, "spark1": image(architecture="amd64")}
    problems = plan(built)["problems"]
    assert len(problems) == 4 and all("is made for amd64" in problem for problem in problems)
