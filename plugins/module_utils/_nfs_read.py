# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The proof that a checkpoint can be read where a rank reads it.

All of this may block for ever below a hard NFS mount, so that it runs in a child with a deadline.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Missing, ask_all
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_mount import parse_mountinfo

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"


def files_below(directory: str) -> Iterator[str]:
    """The files of a checkpoint, relative to it, in order.

    Hidden ones, where downloaders keep their notes, and lost+found are no part of it.
    """
    for folder, folders, names in os.walk(directory, onerror=_raise):
        folders[:] = sorted(f for f in folders if not f.startswith(".") and f != "lost+found")
        for name in sorted(names):
            if not name.startswith("."):
                yield os.path.relpath(os.path.join(folder, name), directory)


def _raise(error: OSError) -> None:
    raise error


def manifest(directory: str) -> dict[str, list[int]]:
    """For each file its size in bytes and when it was modified, in seconds since the epoch.

    Both are the same through NFS, so that another server's copy differs at least in the latter.

    Raises:
        OSError: a directory or a file cannot be read.
    """
    found = {}
    for name in files_below(directory):
        status = os.stat(os.path.join(directory, name))
        found[name] = [status.st_size, int(status.st_mtime)]
    return found


def prove(
    directory: str,
    source: str | None,
    expected: Mapping[str, Sequence[int]] | None,
    deadline: float,
    port: int = 2049,
    mountinfo: str = "/proc/self/mountinfo",
) -> dict[str, Any]:
    """`read_ends` in bounded time, and below the one mount that it is about.

    Args:
        directory: of the checkpoint, where `source` is mounted.
        source: `address:path` of the server, None for a directory of this node's own.
        expected: as in `read_ends`.
        deadline: in seconds. After a server's restart NFS delays opens for 90 s and more.
        port: of the server, to tell a dead one from one that still waits for its clients.
        mountinfo: of the process.
    """
    result: dict[str, Any] = {"shards": 0, "bytes": 0, "problems": []}
    if source is not None:
        with open(mountinfo, encoding="utf-8") as stream:
            here = [mount for mount in parse_mountinfo(stream.read()) if mount.path == directory]
        if [mount.source for mount in here] != [source]:
            found = ", ".join(map(str, here)) or "nothing"
            told = f"{source} is not what is mounted on {directory}; found: {found}"
            return {**result, "problems": [_problem("not-mounted", directory, told)]}
    answer = ask_all({"read": lambda: read_ends(directory, expected)}, deadline)["read"]
    if isinstance(answer, Missing):
        told = f"{directory} cannot be read: {answer}"
        if source is not None:
            told = f"{source} on {directory}: {answer}; {_server_says(source.split(':')[0], port)}"
        return {**result, "problems": [_problem("no-answer", directory, told)]}
    found_all: dict[str, Any] = answer
    return found_all


def _server_says(address: str, port: int) -> str:
    try:
        socket.create_connection((address, port), timeout=5).close()
    except OSError as error:
        return (
            f"{address} does not take connections on tcp {port} ({error.strerror or error}): "
            "is the head up, its nfs-server running, and the link there?"
        )
    return (
        f"{address} takes connections on tcp {port}: within two minutes after its restart that is "
        "the NFS grace period, so try again; else see journalctl -u nfs-server there"
    )


def read_ends(
    directory: str, expected: Mapping[str, Sequence[int]] | None = None
) -> dict[str, Any]:
    """Read the index and the last byte of every shard it names.

    Args:
        directory: of the checkpoint.
        expected: the manifest of where it comes from. Nothing is compared without.

    Returns:
        `shards`, how many could be read; `bytes`, their size; `problems`, each with `code`, `file`
        and `message`.
    """
    problems: list[dict[str, Any]] = []
    count = size = 0
    for name in _shards(directory, problems):
        try:
            length = _read_last_byte(os.path.join(directory, name))
        except OSError as error:
            problems.append(_unreadable(name, error))
            continue
        if length == 0:
            problems.append(_problem("empty", name, f"{name} is empty"))
            continue
        count, size = count + 1, size + length
    if expected is not None:
        problems += _differences(directory, expected, {p["file"] for p in problems})
    return {"shards": count, "bytes": size, "problems": problems}


def _shards(directory: str, problems: list[dict[str, Any]]) -> list[str]:
    try:
        with open(os.path.join(directory, INDEX), encoding="utf-8") as stream:
            names = set(json.load(stream)["weight_map"].values())
    except FileNotFoundError:
        if os.path.exists(os.path.join(directory, SINGLE)):
            return [SINGLE]
        problems.append(
            _problem("no-index", INDEX, f"there is neither {INDEX} nor {SINGLE} in {directory}")
        )
        return []
    except OSError as error:
        problems.append(_unreadable(INDEX, error))
        return []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problems.append(_problem("bad-index", INDEX, f"{INDEX} is no index of shards: {error!r}"))
        return []
    wrong = sorted(repr(n) for n in names if not isinstance(n, str) or "/" in n or n in {"", ".."})
    if wrong:
        told = f"{INDEX} names what is no file beside it: {', '.join(wrong)}"
        problems.append(_problem("bad-index", INDEX, told))
        return []
    return sorted(names)


def _read_last_byte(path: str) -> int:
    """The size of a file whose last byte could be read, from its server and not from memory."""
    handle = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(handle).st_size
        start = max(0, size - 4096)
        os.posix_fadvise(handle, start, 0, os.POSIX_FADV_DONTNEED)
        if size and len(os.pread(handle, 1, size - 1)) != 1:
            raise OSError(errno.EIO, "the last byte is missing")
        os.posix_fadvise(handle, start, 0, os.POSIX_FADV_DONTNEED)
        return size
    finally:
        os.close(handle)


def _differences(
    directory: str, expected: Mapping[str, Sequence[int]], told: set[str]
) -> list[dict[str, Any]]:
    """What is not as it is at the source, without the files that were complained about before."""
    problems = []
    try:
        here = set(files_below(directory))
    except OSError as error:
        return [_unreadable(error.filename or directory, error)]
    problems += [
        _problem("extra", name, f"{name} is here, but not at the source")
        for name in sorted(here - set(expected))
    ]
    for name, (size, modified) in expected.items():
        if name in told:
            continue
        try:
            # Opened, so that an NFS client asks its server for the attributes again.
            handle = os.open(os.path.join(directory, name), os.O_RDONLY)
            try:
                status = os.fstat(handle)
            finally:
                os.close(handle)
        except OSError as error:
            problems.append(_unreadable(name, error))
            continue
        if status.st_size != size:
            message = f"{name} has {status.st_size} bytes here, {size} at the source"
            problems.append(_problem("size", name, message))
        elif int(status.st_mtime) != modified:
            message = f"{name} was modified {int(status.st_mtime)} here, {modified} at the source"
            problems.append(_problem("time", name, message))
    return problems


_CODES = {
    errno.ESTALE: ("stale", "is stale: its server exports something else by now"),
    errno.ENOENT: ("missing", "is missing"),
    errno.EACCES: ("unreadable", "may not be read by the account that the server squashes to"),
    errno.EPERM: ("unreadable", "may not be read by the account that the server squashes to"),
}


def _unreadable(name: str, error: OSError) -> dict[str, Any]:
    code, words = _CODES.get(
        error.errno or 0, ("unreadable", f"cannot be read: {error.strerror or error}")
    )
    return _problem(code, name, f"{name} {words}")


def _problem(code: str, name: str, message: str) -> dict[str, Any]:
    return {"code": code, "file": name, "message": message}
