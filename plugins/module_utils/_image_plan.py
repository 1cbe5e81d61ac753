# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What has to be done so that every rank of a cell has the same image: who gets it from where."""

from __future__ import annotations

import hashlib
import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._image_facts import BUILD_LABEL
from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import fold_hosts

SOURCES = ("build", "pull", "archive", "present")
_REFERENCE = re.compile(
    r"(?P<name>[a-z0-9][a-zA-Z0-9._:-]*(/[a-z0-9._-]+)*?)"
    r"(?P<tag>:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?P<digest>@sha256:[0-9a-f]{64})?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Wish:
    """Which image, and where from."""

    reference: str
    source: str
    builder: str
    repository: str
    commit: str
    dockerfile: str
    args: Mapping[str, str]
    archive: str
    force: bool

    @property
    def inputs(self) -> str:
        """A digest of all that decides what a build makes; the URL does not, the commit does."""
        told = json.dumps([self.commit, self.dockerfile, sorted(self.args.items())])
        return hashlib.sha256(told.encode()).hexdigest()[:24]

    def problems(self) -> Iterator[str]:
        """What cannot be wished for."""
        known = _REFERENCE.fullmatch(self.reference)
        if not self.reference:
            yield ("no image is named: set spark_image, or a profile that names one.")
        elif not known:
            yield f"the image is {self.reference!r}, which is no reference like name:tag."
        if self.source == "build":
            if not self.repository:
                yield (
                    "sglang_image_repository is empty: give the git repository to build from, or "
                    "another sglang_image_source."
                )
            if not _COMMIT.fullmatch(self.commit):
                yield (
                    f"sglang_image_commit is {self.commit!r}, expected a whole commit of 40 "
                    "hexadecimal digits: a branch or a tag can be another one tomorrow."
                )
            inside = posixpath.normpath(self.dockerfile)
            if not self.dockerfile or inside.startswith(("/", "..")):
                yield (
                    f"sglang_image_dockerfile is {self.dockerfile!r}, expected a path inside the "
                    "repository."
                )
        if known and self.source == "pull" and not known["digest"]:
            yield (
                f"the image is {self.reference!r}, expected name@sha256:..., since a tag can be "
                "another image tomorrow. See: docker buildx imagetools inspect NAME:TAG"
            )
        if known and self.source in ("build", "archive") and known["digest"]:
            yield (
                f"the image is {self.reference!r}, but what is built or loaded has a tag, no "
                "digest: name it like name:tag."
            )
        if self.source == "archive" and not self.archive:
            yield "sglang_image_archive is empty: give the path of an archive of docker save."


def image_plan(
    images: Mapping[str, Mapping[str, Any]],
    fabric: Mapping[str, Any],
    wish: Wish,
    archive: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Who has to get the image, and from whom.

    Args:
        images: for each host what `image_facts` says.
        fabric: the result of `fabric_plan`.
        wish: which image.
        archive: what `archive_facts` says of the archive, where there is one.

    Returns:
        `obtain`: hosts that build, pull or load it. `receivers`: hosts that get it from the builder
        then, with the `address` of the builder that each asks, and all addresses to `listen` on.
        `problems`: sentences; nothing may be done if there are any.
    """
    return _Plan(images, fabric, wish, archive).result()


class _Plan:
    def __init__(
        self,
        images: Mapping[str, Mapping[str, Any]],
        fabric: Mapping[str, Any],
        wish: Wish,
        archive: Mapping[str, Any] | None,
    ) -> None:
        self._images = images
        self._fabric = fabric
        self._wish = wish
        self._archived: Mapping[str, Any] | None = None
        self._problems = list(wish.problems())
        if wish.builder not in images:
            self._problems.append(
                f"the builder {wish.builder!r} is not among the hosts of this run: "
                f"{fold_hosts(images) or 'none'}."
            )
        for host, image in images.items():
            self._problems += [f"{host}: {problem['message']}." for problem in image["problems"]]
        if archive is not None:
            self._archived = self._in_archive(archive)

    def result(self) -> dict[str, Any]:
        wish = self._wish
        obtain: list[str] = []
        receivers: list[str] = []
        if not self._problems:
            obtain = self._obtain()
            receivers = self._receivers(obtain)
            self._problems += self._refusals(obtain, receivers)
        addresses = {host: self._address(host) for host in receivers}
        builder = self._images.get(wish.builder, {})
        return {
            "reference": wish.reference,
            "source": wish.source,
            "builder": wish.builder,
            "inputs": wish.inputs,
            "obtain": obtain,
            "receivers": receivers,
            "addresses": addresses,
            "listen": sorted(set(addresses.values())),
            "compress": all(self._images[host]["zstd"] for host in (wish.builder, *receivers))
            if receivers
            else False,
            "bytes": int(builder.get("size", 0)),
            "content": builder.get("content"),
            "problems": self._problems,
        }

    def _obtain(self) -> list[str]:
        wish = self._wish
        image = self._images[wish.builder]
        if wish.source == "pull":
            return [host for host, one in self._images.items() if not one["exists"]]
        if wish.source == "build":
            done = image["exists"] and image["labels"].get(BUILD_LABEL) == wish.inputs
            return [] if done else [wish.builder]
        if wish.source == "archive" and self._archived:
            same = image["content"] == self._archived["content"]
            return [] if same else [wish.builder]
        return []

    def _receivers(self, obtain: Sequence[str]) -> list[str]:
        """Hosts whose image is not the builder's; after a build all others, until they are seen."""
        wish = self._wish
        if wish.source not in ("build", "archive"):
            return []
        wanted = None if obtain else self._images[wish.builder]["content"]
        if obtain and self._archived:
            wanted = self._archived["content"]
        return [
            host
            for host, image in self._images.items()
            if host != wish.builder and (wanted is None or image["content"] != wanted)
        ]

    def _refusals(self, obtain: Sequence[str], receivers: Sequence[str]) -> Iterator[str]:
        wish = self._wish
        if wish.source == "present":
            missing = [host for host, image in self._images.items() if not image["exists"]]
            if missing:
                yield (
                    f"{wish.reference} is not on {fold_hosts(missing)}. Load it there, or let it "
                    "be built, pulled or loaded with sglang_image_source."
                )
        yield from self._differences(obtain, receivers)
        yield from self._wrong_architecture(obtain, receivers)
        if wish.force:
            return
        busy = {*obtain, *receivers}
        if receivers:
            busy.add(wish.builder)  # it reads the whole image, and memory is the GPU's on a Spark
        for host, image in self._images.items():
            if host in busy and image["serving"]:
                work = wish.source if host in obtain else "send"
                work = "receive" if host in receivers else work
                yield (
                    f"{host} is serving ({', '.join(image['serving'])}) and would have to {work} "
                    f"{wish.reference}. Stop the cell first (playbook stop), or set "
                    "sglang_image_force."
                )

    def _differences(self, obtain: Sequence[str], receivers: Sequence[str]) -> Iterator[str]:
        """Ranks that would keep another image than the builder's."""
        wish = self._wish
        reference = self._images[wish.builder]
        for host, image in self._images.items():
            settled = {host, wish.builder}.isdisjoint({*obtain, *receivers})
            if settled and image["exists"] and image["content"] != reference["content"]:
                yield (
                    f"{host} has another {wish.reference} than {wish.builder}: "
                    f"{_told(image)}, there {_told(reference)}. Remove it on the host that is "
                    f"wrong (docker image rm {wish.reference}), or choose an sglang_image_source "
                    "that brings the right one."
                )

    def _wrong_architecture(self, obtain: Sequence[str], receivers: Sequence[str]) -> Iterator[str]:
        wish = self._wish
        for host, image in self._images.items():
            node = image["node_architecture"]
            brought = None if obtain else self._images[wish.builder]["architecture"]
            if self._archived:
                brought = self._archived["architecture"]
            found = brought if host in receivers or host in obtain else image["architecture"]
            if found and found != node:
                yield (
                    f"{wish.reference} is made for {found}, but {host} is {node}: it would end "
                    "with 'exec format error'."
                )

    def _in_archive(self, archive: Mapping[str, Any]) -> Mapping[str, Any] | None:
        self._problems += [f"{problem['message']}." for problem in archive["problems"]]
        if archive["problems"]:
            return None
        for image in archive["images"]:
            if self._wish.reference in image["tags"]:
                found: Mapping[str, Any] = image
                return found
        tags = [tag for image in archive["images"] for tag in image["tags"]]
        self._problems.append(
            f"{archive['path']} has no image {self._wish.reference}, but "
            f"{', '.join(tags) or 'one without a tag'}."
        )
        return None

    def _address(self, receiver: str) -> str:
        """The builder's address on a cable to the receiver, else one that is routed."""
        hosts = self._fabric["hosts"]
        ports = hosts[self._wish.builder]["ports"]
        for port in ports:
            if (port.get("peer") or {}).get("host") == receiver:
                return str(port["address"])
        if self._wish.builder == self._fabric["fabric"]["head"]:
            return str(hosts[receiver]["nfs_server_address"])
        return str(ports[0]["address"])


def _told(image: Mapping[str, Any]) -> str:
    build = image["labels"].get(BUILD_LABEL)
    made = f", build {build[:12]}" if build else ""
    return f"content {str(image['content'])[:19]}{made}, {image['store']} store"
