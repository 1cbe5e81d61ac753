"""What an image is, from answers of Docker as both of its stores give them, and from archives."""

from __future__ import annotations

import copy
import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import NOT_FOUND, Command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._image_facts import (
    archive_facts,
    image_facts,
)

LAYERS = ["sha256:" + "1" * 64, "sha256:" + "2" * 64]
CONFIG = {
    "Env": ["PATH=/bin"],
    "Entrypoint": ["/bin/engine"],
    "Labels": {"io.sparkfleet.build": "abc"},
}
INSPECTED = {
    "Id": "sha256:" + "a" * 64,
    "Architecture": "arm64",
    "Os": "linux",
    "Size": 123,
    "RootFS": {"Type": "layers", "Layers": LAYERS},
    "Config": {**CONFIG, "Cmd": None, "Volumes": None, "Hostname": "", "Image": "sha256:old"},
}
CLASSIC = '{"DriverStatus": [["Backing Filesystem","extfs"],["Supports d_type","true"]]}'
CONTAINERD = '{"DriverStatus": [["driver-type","io.containerd.snapshotter.v1"]]}'
REFUSED = "Cannot connect to the Docker daemon"
IDLE = Command(0, "", "")


class Node:
    """A node whose commands answer what they are told to."""

    def __init__(self, image: Any, store: str = CLASSIC, units: Command = IDLE) -> None:
        self.image = image
        self.store: Command = Command(0, store, "")
        self.units = units

    def __call__(self, argv: Sequence[str]) -> Command:
        if argv[0] == "systemctl":
            return self.units
        if argv[1] == "info":
            return self.store
        if isinstance(self.image, Command):
            return self.image
        return Command(0, json.dumps([self.image]), "")


def changed(**fields: Any) -> dict[str, Any]:
    return {**copy.deepcopy(INSPECTED), **fields}


def content(image: Any, store: str = CLASSIC) -> str:
    facts = image_facts("engine:1", Node(image, store))
    assert facts["exists"] and facts["problems"] == []
    return str(facts["content"])


def test_the_same_image_is_the_same_in_both_stores() -> None:
    # The id differs, and so does how absent parts of the configuration are written.
    other = changed(Id="sha256:" + "b" * 64, Size=99, Config={**CONFIG, "Cmd": []})
    assert content(INSPECTED) == content(other, CONTAINERD)
    assert image_facts("engine:1", Node(other, CONTAINERD))["store"] == "containerd"
    assert image_facts("engine:1", Node(other))["store"] == "classic"


@pytest.mark.parametrize(
    "other",
    [
        changed(Architecture="amd64"),
        changed(RootFS={"Type": "layers", "Layers": LAYERS[:1]}),
        changed(RootFS={"Type": "layers", "Layers": LAYERS[::-1]}),
        changed(Config={**CONFIG, "Env": ["PATH=/sbin"]}),
        changed(Config={**CONFIG, "Entrypoint": None}),
        changed(Config={**CONFIG, "Labels": {}}),
        changed(Config={**CONFIG, "User": "1000"}),
    ],
)
def test_another_image_is_another(other: dict[str, Any]) -> None:
    assert content(other) != content(INSPECTED)


@pytest.mark.parametrize(
    "said", ["Error: No such image: engine:1", "Error response from daemon: no such image: x"]
)
def test_no_image_is_no_problem(said: str) -> None:
    facts = image_facts("engine:1", Node(Command(1, "", said)))
    assert (facts["exists"], facts["content"], facts["problems"]) == (False, None, [])


@pytest.mark.parametrize(
    ("store", "code", "told"),
    [
        (Command(NOT_FOUND, "", "docker: command not found"), "docker-absent", "no docker"),
        (Command(1, "", REFUSED), "docker-down", REFUSED),
        # Docker 26 ends with 0 then
        (Command(0, f'{{"ServerErrors": ["{REFUSED}"]}}', REFUSED), "docker-down", REFUSED),
        (Command(None, "", "docker did not answer within 60 s"), "docker-down", "60 s"),
    ],
)
def test_docker_that_does_not_answer_is_data(store: Command, code: str, told: str) -> None:
    node = Node(INSPECTED)
    node.store = store
    facts = image_facts("engine:1", node)
    assert [problem["code"] for problem in facts["problems"]] == [code]
    assert told in facts["problems"][0]["message"]


def test_an_answer_that_is_an_error_is_told() -> None:
    facts = image_facts("engine:1", Node(Command(1, "", "permission denied")))
    assert [problem["code"] for problem in facts["problems"]] == ["inspect-failed"]


def test_ranks_at_work_are_seen() -> None:
    line = "sparkfleet-rank@sparks.service loaded activating start-pre Rank\n"
    facts = image_facts("engine:1", Node(INSPECTED, units=Command(0, line, "")))
    assert facts["serving"] == ["sparkfleet-rank@sparks.service"]
    container = Command(1, "", "System has not been booted with systemd as init system (PID 1).")
    assert image_facts("engine:1", Node(INSPECTED, units=container))["problems"] == []
    unknown = image_facts("engine:1", Node(INSPECTED, units=Command(1, "", "Failed to connect")))
    assert [problem["code"] for problem in unknown["problems"]] == ["ranks-unknown"]


def archive(path: Path, files: dict[str, Any], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as sink:  # type: ignore[call-overload]
        for name, value in files.items():
            data = value if isinstance(value, bytes) else json.dumps(value).encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            sink.addfile(member, io.BytesIO(data))
    return path


SAVED: dict[str, Any] = {
    "layer.tar": b"x" * 5000,
    "config.json": {
        "architecture": "arm64",
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": LAYERS},
        "config": CONFIG,
    },
    "manifest.json": [{"Config": "config.json", "RepoTags": ["engine:1"], "Layers": []}],
}


def test_an_archive_has_the_content_of_what_is_loaded_from_it(tmp_path: Path) -> None:
    found = archive_facts(str(archive(tmp_path / "a.tar", SAVED)))
    assert found["problems"] == []
    (image,) = found["images"]
    assert image == {"tags": ["engine:1"], "architecture": "arm64", "content": content(INSPECTED)}


@pytest.mark.parametrize(
    ("files", "mode"),
    [
        (SAVED, "w:gz"),
        ({}, "w"),
        ({"manifest.json": b"{"}, "w"),
        ({"manifest.json": 7}, "w"),
        ({"manifest.json": [{"Config": "gone.json"}]}, "w"),
        ({"manifest.json": [{}]}, "w"),
        ({"manifest.json": ["x"]}, "w"),
        ({**SAVED, "config.json": {"architecture": "arm64"}}, "w"),
        ({**SAVED, "config.json": b"\xff\xfe"}, "w"),
    ],
)
def test_what_is_no_archive_is_data(tmp_path: Path, files: dict[str, Any], mode: str) -> None:
    path = archive(tmp_path / "a.tar", files, mode)
    found = archive_facts(str(path))
    assert [problem["code"] for problem in found["problems"]] == ["archive-foreign"]
    assert str(path) in found["problems"][0]["message"]


def test_an_archive_that_is_cut_or_gone_is_data(tmp_path: Path) -> None:
    path = archive(tmp_path / "a.tar", SAVED)
    path.write_bytes(path.read_bytes()[:3000])
    assert [p["code"] for p in archive_facts(str(path))["problems"]] == ["archive-foreign"]
    gone = archive_facts(str(tmp_path / "none"))["problems"]
    assert [problem["code"] for problem in gone] == ["archive-unreadable"]
    folder = archive_facts(str(tmp_path))["problems"]
    assert [problem["code"] for problem in folder] == ["archive-unreadable"]
