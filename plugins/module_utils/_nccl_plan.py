# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Which ranks have to get which NCCL, and why that may not be."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import fold_hosts

SOURCES = ("none", "file", "url", "build")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Wish:
    """Where the library comes from, and which it has to be."""

    source: str
    file: str = ""
    url: str = ""
    sha256: str = ""
    version: str = ""
    repository: str = ""
    commit: str = ""
    patches: Sequence[Mapping[str, str]] = ()
    image: str = ""
    gencode: str = ""
    force: bool = False

    @property
    def inputs(self) -> str:
        """A digest of all that decides a build."""
        patches = [patch.get("sha256", "") for patch in self.patches]
        told = json.dumps([self.commit, patches, self.image, self.gencode])
        return hashlib.sha256(told.encode()).hexdigest()[:16]

    def problems(self) -> Iterator[str]:
        """What cannot be wished for."""
        if self.source == "file" and not self.file:
            yield "nccl_file is empty: give the path of the library on the controller."
        if self.source == "url":
            if not self.url:
                yield "nccl_url is empty: give the address of the library."
            if not _SHA256.fullmatch(self.sha256):
                yield (
                    f"nccl_sha256 is {self.sha256!r}, expected the 64 hexadecimal digits of the "
                    "library: what an address serves can change. See: sha256sum libnccl.so.2"
                )
        elif self.sha256 and not _SHA256.fullmatch(self.sha256):
            yield f"nccl_sha256 is {self.sha256!r}, expected 64 hexadecimal digits."
        if self.source == "build":
            yield from self._build_problems()

    def _build_problems(self) -> Iterator[str]:
        if not self.repository:
            yield "nccl_build_repository is empty: give the git repository of NCCL."
        if not _COMMIT.fullmatch(self.commit):
            yield f"nccl_build_commit is {self.commit!r}, expected 40 hexadecimal digits."
        if not self.patches:
            yield (
                "nccl_build_patches is empty, and stock NCCL does not work here: give the patches, "
                "each with url or path and its sha256."
            )
        for number, patch in enumerate(self.patches):
            if ("url" in patch) == ("path" in patch):
                yield f"nccl_build_patches[{number}]: expected either url or path."
            if not _SHA256.fullmatch(patch.get("sha256", "")):
                yield (
                    f"nccl_build_patches[{number}]: sha256 is {patch.get('sha256', '')!r}, "
                    "expected 64 hexadecimal digits."
                )


def nccl_plan(
    libraries: Mapping[str, Mapping[str, Any]],
    wish: Wish,
    candidate: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Who gets the library.

    Args:
        libraries: for each host what `nccl_library_info` says of the installed one.
        wish: where it comes from.
        candidate: what it says of the one to install; None where there is none (yet).

    Returns:
        `install`, the hosts that get it; `problems` as sentences; `inputs` of a build.
    """
    problems = list(wish.problems())
    install: list[str] = []
    for host, library in libraries.items():
        problems += [
            f"{host}: {problem['message']}."
            for problem in library["problems"]
            if problem["code"] == "ranks-unknown"
        ]
    if wish.source == "none":
        problems += _unusable(libraries)
        problems += _version("the installed library", next(iter(libraries.values()), {}), wish)
    elif candidate is not None and not problems:
        problems += [f"{problem['message']}." for problem in candidate["problems"]]
        problems += _version(candidate["path"], candidate, wish)
        if wish.sha256 and candidate["sha256"] not in (None, wish.sha256):
            problems.append(
                f"{candidate['path']} has the SHA-256 {candidate['sha256']}, expected nccl_sha256 "
                f"{wish.sha256}."
            )
        install = [
            host for host, library in libraries.items() if library["sha256"] != candidate["sha256"]
        ]
        problems += _other_machines(libraries, candidate)
    if not wish.force:
        problems += [
            f"{host} is serving ({', '.join(libraries[host]['serving'])}) and would get another "
            "NCCL. Stop the cell first (playbook stop), or set nccl_force."
            for host in install
            if libraries[host]["serving"]
        ]
    return {"install": install, "problems": problems, "inputs": wish.inputs}


def _unusable(libraries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for host, library in libraries.items():
        for problem in library["problems"]:
            if problem["code"] != "ranks-unknown":
                yield (
                    f"{host}: {problem['message']}. This cell needs a patched NCCL: set "
                    "nccl_source to file, url or build."
                )
        for problem in library.get("visible", {}).get("problems", ()):
            yield f"{host}: {problem['message']}."
    by_digest: dict[str, list[str]] = {}
    for host, library in libraries.items():
        if library["sha256"]:
            by_digest.setdefault(library["sha256"], []).append(host)
    if len(by_digest) > 1:
        told = "; ".join(f"{fold_hosts(h)}: {digest[:16]}" for digest, h in by_digest.items())
        yield (
            f"the ranks have different NCCL libraries ({told}). Set nccl_source to file, url or "
            "build, which brings the same to all."
        )


def _version(name: str, library: Mapping[str, Any], wish: Wish) -> Iterator[str]:
    found = library.get("version")
    if wish.version and found and found.partition("+")[0] != wish.version:
        yield (
            f"{name} is NCCL {found}, but the profile is made for {wish.version}: bring that one, "
            "or change nccl.version in the profile."
        )


def _other_machines(
    libraries: Mapping[str, Mapping[str, Any]], candidate: Mapping[str, Any]
) -> Iterator[str]:
    """The candidate was held against one host's machine; another host may be another one."""
    others = [
        host
        for host, library in libraries.items()
        if candidate["machine"] and library["node_machine"] != candidate["machine"]
    ]
    told = any(problem["code"] == "wrong-machine" for problem in candidate["problems"])
    if others and not told:
        made = f"{candidate['path']} is made for {candidate['machine']}"
        yield f"{made}, but {fold_hosts(others)} not."
