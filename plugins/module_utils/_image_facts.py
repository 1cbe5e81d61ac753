# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What a container image is, told so that two nodes can be compared.

The id of an image is no measure: with Docker's classic store it is the digest of the configuration,
with the containerd store that of the manifest, and new installations of Docker 29 have the latter
while upgraded ones keep the former (docker/cli issue 6670). Layers, architecture and configuration
are the same in both.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tarfile
from collections.abc import Mapping
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    Command,
    Runner,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._ranks import serving

BUILD_LABEL = "io.sparkfleet.build"
# What Docker calls the processors it runs on, by what the kernel calls them.
ARCHITECTURES = {"aarch64": "arm64", "x86_64": "amd64"}
# Of the configuration, what a container started from the image depends on.
_CONFIGURATION = (
    "Cmd",
    "Entrypoint",
    "Env",
    "ExposedPorts",
    "Labels",
    "Shell",
    "StopSignal",
    "User",
    "Volumes",
    "WorkingDir",
)
_MANIFEST_LIMIT = 1 << 24  # bytes; manifests and configurations have some kilobytes


def content(
    architecture: str, system: str, layers: list[str], configuration: Mapping[str, Any]
) -> str:
    """A digest that is equal exactly for images that behave alike, whatever stores them."""
    kept = {name: configuration[name] for name in _CONFIGURATION if configuration.get(name)}
    told = json.dumps([architecture, system, layers, kept], sort_keys=True)
    return "sha256:" + hashlib.sha256(told.encode()).hexdigest()


def image_facts(reference: str, run: Runner) -> dict[str, Any]:
    """An image on this node, and what the node can do with images.

    Returns:
        `exists`, and of an image that does `content`, `architecture`, `labels`, `size` (bytes) and
        `id`; of the node its `node_architecture`, `store` (classic or containerd), `zstd` (whether
        it can compress), `serving` (units of ranks), and `problems` as {code, message}.
    """
    facts: dict[str, Any] = {
        "reference": reference,
        "exists": False,
        "content": None,
        "architecture": None,
        "labels": {},
        "size": 0,
        "id": None,
        "node_architecture": node_architecture(),
        "store": None,
        "zstd": shutil.which("zstd") is not None,
        "serving": [],
        "problems": [],
    }
    facts["serving"], unknown = serving(run)
    if unknown:
        facts["problems"].append({"code": "ranks-unknown", "message": unknown})
    asked = run(["docker", "info", "--format", "{{json .}}"])
    # The client tells about itself and ends well where the daemon does not answer.
    told = json.loads(asked.out) if asked.rc == 0 else {}
    if asked.rc != 0 or told.get("ServerErrors"):
        facts["problems"].append(_no_docker(asked))
        return facts
    containerd = "io.containerd.snapshotter" in json.dumps(told.get("DriverStatus"))
    facts["store"] = "containerd" if containerd else "classic"
    if not reference:
        return facts
    found = run(["docker", "image", "inspect", reference])
    if found.rc != 0:
        if "No such image" not in found.err and "no such image" not in found.err:
            message = f"docker image inspect {reference}: {found.complaint}"
            facts["problems"].append({"code": "inspect-failed", "message": message})
        return facts
    described = json.loads(found.out)[0]
    configuration = described.get("Config") or {}
    facts.update(
        exists=True,
        id=described["Id"],
        architecture=described["Architecture"],
        labels=configuration.get("Labels") or {},
        size=described.get("Size", 0),
        content=content(
            described["Architecture"],
            described["Os"],
            list((described.get("RootFS") or {}).get("Layers") or []),
            configuration,
        ),
    )
    return facts


def _no_docker(asked: Command) -> dict[str, str]:
    if asked.rc == NOT_FOUND:
        message = "there is no docker on the node. Install Docker (a Spark comes with it)"
        return {"code": "docker-absent", "message": message}
    message = f"the Docker daemon does not answer: {asked.complaint}. See: systemctl status docker"
    return {"code": "docker-down", "message": message}


def node_architecture() -> str:
    """This machine's processor in Docker's words."""
    machine = platform.machine()
    return ARCHITECTURES.get(machine, machine)


def archive_facts(path: str) -> dict[str, Any]:
    """The images in an archive of `docker save`, without unpacking it.

    Returns:
        `images`, for each its `tags`, `content` and `architecture`; the `size` of the file in
        bytes; `problems` as {code, message}.
    """
    facts: dict[str, Any] = {"path": path, "size": 0, "images": [], "problems": []}
    try:
        facts["size"] = os.stat(path).st_size
        # Plain only: in a compressed file the description could not be found without reading all.
        with tarfile.open(path, "r:") as archive:
            facts["images"] = [
                _archived(archive, entry) for entry in _json(archive, "manifest.json")
            ]
    except OSError as error:
        _add(facts, "archive-unreadable", f"{path}: {error.strerror}")
    except (tarfile.TarError, KeyError, ValueError, TypeError) as error:
        _add(
            facts,
            "archive-foreign",
            f"{path} is not what docker save writes, or it is compressed ({error}). Expected a "
            "plain tar file with manifest.json; unpack a compressed one with zstd -d or gunzip",
        )
    return facts


def _add(facts: dict[str, Any], code: str, message: str) -> None:
    facts["problems"].append({"code": code, "message": message})


def _archived(archive: tarfile.TarFile, entry: Mapping[str, Any]) -> dict[str, Any]:
    described = _json(archive, entry["Config"])
    return {
        "tags": list(entry.get("RepoTags") or []),
        "architecture": described["architecture"],
        "content": content(
            described["architecture"],
            described["os"],
            list(described["rootfs"]["diff_ids"]),
            described.get("config") or {},
        ),
    }


def _json(archive: tarfile.TarFile, name: str) -> Any:
    member = archive.getmember(name)
    stream = archive.extractfile(member)
    if stream is None or member.size > _MANIFEST_LIMIT:
        raise ValueError(f"{name} has {member.size} bytes and is no description")
    return json.loads(stream.read())
