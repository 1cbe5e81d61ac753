# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Which NCCL libraries a program in a container could load.

An image brings NCCL in a Python package, where torch finds it by a path of its own, whatever
LD_LIBRARY_PATH says. So a library of ours is bound over that very file. Any second one that the
loader could find ends the engine with "Duplicate NCCL runtime found".
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Runner

# Run by the shell of the image with the directory of the library as its argument. It looks where
# the loader looks and where Python packages lie: all of an image would take a minute.
PROBE = r"""
for directory in $(printf '%s' "$LD_LIBRARY_PATH" | tr ':' ' ') \
    $(cat /etc/ld.so.conf /etc/ld.so.conf.d/*.conf 2>/dev/null | grep '^/') \
    /lib /usr/lib /usr/local/lib /lib/*-linux-gnu /usr/lib/*-linux-gnu \
    /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib "$1" \
    /usr/lib/python3*/*-packages/nvidia/nccl/lib \
    /usr/local/lib/python3*/*-packages/nvidia/nccl/lib \
    /opt/*/lib/python3*/*-packages/nvidia/nccl/lib
do
    for file in "$directory"/libnccl.so*
    do
        [ -f "$file" ] || continue
        real=$(readlink -f "$file")
        case "$seen" in *" $real "*) continue ;; esac
        seen="$seen $real "
        set -- "$1" $(sha256sum "$real")
        echo "file $2 $real"
    done
done
echo "path $LD_LIBRARY_PATH"
echo "preload $LD_PRELOAD"
"""
_FILE = re.compile(r"file ([0-9a-f]{64}) (/.*)")


class Seen(NamedTuple):
    """What the probe saw: libraries by path, and the two variables of the loader."""

    libraries: dict[str, str]  # path to SHA-256
    path: str
    preload: str


def read(text: str) -> Seen:
    """What the probe printed."""
    libraries: dict[str, str] = {}
    values = {"path": "", "preload": ""}
    for line in text.splitlines():
        found = _FILE.fullmatch(line)
        if found:
            libraries[found[2]] = found[1]
            continue
        word, _space, value = line.partition(" ")
        if word in values:
            values[word] = value
    return Seen(libraries, **values)


def judge(before: Seen, bound: Seen, target: str, sha256: str) -> list[dict[str, str]]:
    """Why not exactly the bound library would be loaded, as {code, message}.

    Args:
        before: the image as it is.
        bound: the image with our library bound over `target`.
        target: the path in the image.
        sha256: of our library.
    """
    problems: list[dict[str, str]] = []

    def problem(code: str, message: str) -> None:
        problems.append({"code": code, "message": message})

    if target not in before.libraries:
        there = ", ".join(sorted(before.libraries)) or "none anywhere"
        problem(
            "no-target",
            f"the image has no NCCL at {target}, which ours is bound over (found: {there}). Set "
            "the container_path of the profile to the one that torch loads",
        )
    elif bound.libraries.get(target) != sha256:
        problem(
            "not-bound",
            f"{target} is {str(bound.libraries.get(target))[:12]} in the container although ours "
            f"({sha256[:12]}) is bound over it",
        )
    others = sorted(set(bound.libraries) - {target})
    if others:
        problem(
            "second-nccl",
            f"beside {target} a program could load {', '.join(others)}. Exactly one may be "
            "visible: take the others out of the image, or out of LD_LIBRARY_PATH",
        )
    if "nccl" in bound.preload:
        problem("preload", f"LD_PRELOAD of the image is {bound.preload}: it would win over ours")
    return problems


def visible(image: str, target: str, library: str, sha256: str, run: Runner) -> dict[str, Any]:
    """Start two throw-away containers, without network and GPU, and judge what they see."""
    seen: list[Seen] = []
    name = f"sparkfleet-nccl-{os.getpid()}"
    binding = f"type=bind,source={library},target={target},readonly"
    for mounts in ([], ["--mount", binding]):
        done = run(_container(name, image, target, mounts))
        if done.rc != 0:
            run(["docker", "rm", "--force", name])  # one that took too long is still there
            message = f"a container of {image} could not look: {done.complaint}"
            return {"libraries": {}, "problems": [{"code": "no-look", "message": message}]}
        seen.append(read(done.out))
    before, bound = seen
    problems = judge(before, bound, target, sha256)
    return {"libraries": bound.libraries, "problems": problems}


def _container(name: str, image: str, target: str, mounts: Sequence[str]) -> list[str]:
    return [
        *("docker", "run", "--rm", "--name", name, "--pull", "never", "--network", "none"),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "0:0"),
        *(*mounts, "--entrypoint", "/bin/sh", image),
        *("-c", PROBE, "probe", os.path.dirname(target)),
    ]
