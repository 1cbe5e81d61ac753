# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The files of a checkpoint on disk: links resolved, traces of the hub's downloader understood.

The hub's downloader keeps `.cache/huggingface/download/<file>.metadata` in the directory it fills
(commit, etag, time), and `*.incomplete` files beside them. In its own cache a snapshot is a farm of
links to blobs called by their etags, over one hop or, in newer ones, two.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

_CACHE = os.path.join(".cache", "huggingface", "download")
_NOT_OURS = (".cache", ".git")
# <name or hash of it>.<etag>.incomplete, and of newer downloaders, which never go on with one,
# <hash>.<etag>.<number>.incomplete.
_NEVER_RESUMED = re.compile(r"\.[0-9a-f]{8}\.incomplete$")
_ENDING = re.compile(r"\.[^.]+(\.[0-9a-f]{8})?\.incomplete$")
_PARTIAL = re.compile(r"\..+\.[0-9]+-[0-9]+\.part")  # of a copy, see _checkpoint_copy
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1 << 24  # bytes hashed at once


class File(NamedTuple):
    """A file of the tree; `path` is where its data really is."""

    path: str
    size: int = 0
    mtime: float = 0.0
    fault: str = ""  # code of what is wrong with it: link-loop, link-dangling, not-a-file ...
    reason: str = ""


class Tree:
    """Everything below a directory, read once.

    Attributes:
        absent: why there is nothing to look at; empty if there is.
        files: by name relative to the directory, without the downloader's own.
        directories: those that really hold the data.
        root: what all of these have in common.
        revisions: by commit, the files of it, as far as the downloader tells.
        etags: of files, as far as it tells.
        unfinished: partial downloads that are newer than the file they are for, by that file.
        leftovers: paths of partial downloads and copies, and of caches in the directory.
        unfinished_bytes: what partial downloads and copies take that can be continued.
        device: of the file system; 0 if absent.
        free: bytes free there, or where the directory would be made.
    """

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self.files: dict[str, File] = {}
        self.directories: list[str] = []
        self.root = os.path.realpath(path)
        self.revisions: dict[str, list[str]] = {}
        self.etags: dict[str, str] = {}
        self.unfinished: dict[str, str] = {}
        self.leftovers: list[str] = []
        self.unfinished_bytes = 0
        self.device = 0
        self.free = _free(self.root)
        self.absent = _absent(path)
        if self.absent:
            return
        self.device = os.stat(path).st_dev
        self._walk("")
        places = {os.path.dirname(file.path) for file in self.files.values() if not file.fault}
        self.directories = sorted(places | {os.path.realpath(path)})
        self.root = os.path.commonpath(self.directories)
        self._read_cache()
        self._read_downloads()

    @property
    def revision(self) -> str | None:
        return next(iter(self.revisions)) if len(self.revisions) == 1 else None

    def look(self, name: str) -> File | None:
        """A name the walk did not list as a file: a directory, or nothing."""
        place = os.path.join(self._path, name)
        return _resolve(place) if os.path.lexists(place) else None

    def _walk(self, below: str) -> None:
        try:
            entries = sorted(os.scandir(os.path.join(self._path, below)), key=lambda e: e.name)
        except OSError as error:
            self.files[below] = File(below, fault="unreadable", reason=str(error.strerror))
            return
        for entry in entries:
            name = os.path.join(below, entry.name)
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _NOT_OURS:
                    self._walk(name)
                continue
            if _PARTIAL.fullmatch(entry.name):
                self.leftovers.append(entry.path)
                self.unfinished_bytes += entry.stat(follow_symlinks=False).st_blocks * 512
                continue
            file = _resolve(entry.path)
            # A link to a directory is not followed: nobody who loads weights looks behind it.
            if file.fault != "not-a-file":
                self.files[name] = file

    def _read_cache(self) -> None:
        """In a cache of the hub the revision is the directory, and the etag a name on the way."""
        snapshot = os.path.realpath(self._path)
        parent, commit = os.path.split(snapshot)
        if os.path.basename(parent) != "snapshots" or not _COMMIT.fullmatch(commit):
            return
        self.revisions[commit] = sorted(self.files)
        for name in self.files:
            place = os.path.join(snapshot, name)
            if os.path.islink(place):
                self.etags[name] = os.path.basename(os.readlink(place))

    def _read_downloads(self) -> None:
        caches = os.path.join(self._path, ".cache")
        if os.path.isdir(caches):
            self.leftovers += [
                os.path.join(caches, name)
                for name in sorted(os.listdir(caches))
                if name != "huggingface"
            ]
        folder = os.path.join(self._path, _CACHE)
        partial: dict[str, tuple[str, os.stat_result]] = {}
        for place, _folders, names in os.walk(folder):
            for name in sorted(names):
                path = os.path.join(place, name)
                if name.endswith(".metadata"):
                    self._read_metadata(
                        os.path.relpath(path, folder).removesuffix(".metadata"), path
                    )
                elif name.endswith(".incomplete"):
                    start = os.path.relpath(os.path.join(place, _ENDING.sub("", name)), folder)
                    with contextlib.suppress(OSError):  # a download that runs renames them
                        partial[path] = (start, os.stat(path))
        self._read_partial(partial)

    def _read_metadata(self, name: str, path: str) -> None:
        try:
            with open(path, encoding="utf-8") as stream:
                commit, etag, when = (stream.readline().strip() for _line in range(3))
            changed = os.stat(os.path.join(self._path, name)).st_mtime
            if not _COMMIT.fullmatch(commit) or changed - 1 > float(when):
                return  # the downloader does not believe it either
        except (OSError, ValueError):
            return
        self.revisions.setdefault(commit, []).append(name)
        self.etags[name] = etag

    def _read_partial(self, partial: Mapping[str, tuple[str, os.stat_result]]) -> None:
        """Partial downloads carry the name of the file, or in newer versions a hash of it."""
        whole = [name for name, file in self.files.items() if not file.fault]
        called = {name: name for name in whole}
        for name in whole:
            start, last = os.path.split(name)
            digest = hashlib.sha1(f"{last}.metadata".encode(), usedforsecurity=False).digest()
            called[os.path.join(start, base64.urlsafe_b64encode(digest).decode())] = name
        for path, (start, stat) in partial.items():
            self.leftovers.append(path)
            if not _NEVER_RESUMED.search(path):
                self.unfinished_bytes += stat.st_blocks * 512
            name = called.get(start, "")
            if not name or self.files[name].mtime < stat.st_mtime:
                self.unfinished[name or os.path.basename(path)] = path


def _absent(path: str) -> str:
    try:
        if not os.path.isdir(path):
            return "no such directory" if not os.path.exists(path) else "not a directory"
        with os.scandir(path) as entries:
            return "" if any(entry.name != ".cache" for entry in entries) else "nothing in it"
    except OSError as error:
        return str(error.strerror)


def _free(path: str) -> int:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    stat = os.statvfs(path)
    return stat.f_bavail * stat.f_frsize


def _resolve(place: str) -> File:
    try:
        path = os.path.realpath(place, strict=True)
        stat = os.stat(path)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return File(place, fault="link-loop", reason="a link that leads to itself")
        if error.errno == errno.ENOENT and os.path.islink(place):
            target = os.path.realpath(place)
            return File(
                place, fault="link-dangling", reason=f"a link to {target}, which does not exist"
            )
        return File(place, fault="unreadable", reason=str(error.strerror))
    if not os.path.isfile(path):
        kind = "a directory" if os.path.isdir(path) else "no regular file"
        return File(path, fault="not-a-file", reason=f"{kind}, expected a file")
    return File(path, stat.st_size, stat.st_mtime)


# --- hashes ---


def verify_hashes(
    tree: Tree, wanted: Iterable[str], sha256: Mapping[str, str], workers: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Hash files and compare with what is known.

    Args:
        tree: the files.
        wanted: files whose hash is to be told although nothing is known of them.
        sha256: known hashes, beside the etags of the hub: SHA-256 of what it keeps as large files,
            Git's own hash of the others.
        workers: how many files at once.

    Returns:
        Hashes by file, and what is wrong by file.
    """
    known = {**tree.etags, **sha256}
    names = sorted(
        name
        for name in {*wanted, *known}
        if name in tree.files
        and not tree.files[name].fault
        and (name in wanted or _is_hash(known[name]))
    )
    with ThreadPoolExecutor(max(1, workers)) as pool:
        found = pool.map(lambda name: _hash(tree.files[name], known.get(name, "")), names)
        told = dict(zip(names, found, strict=True))
    wrong = {}
    for name, digest in told.items():
        if not _is_hash(digest):
            wrong[name] = digest
        elif _is_hash(known.get(name, "")) and digest != known[name]:
            wrong[name] = f"its hash is {digest}, expected {known[name]}"
    return {name: digest for name, digest in told.items() if _SHA256.fullmatch(digest)}, wrong


def _is_hash(text: str) -> bool:
    return bool(_SHA256.fullmatch(text) or _COMMIT.fullmatch(text))


def _hash(file: File, like: str) -> str:
    """SHA-256, or Git's blob hash where what it is compared with is one."""
    if _COMMIT.fullmatch(like):
        state: Any = hashlib.sha1(b"blob %d\0" % file.size, usedforsecurity=False)
    else:
        state = hashlib.sha256()
    try:
        with open(file.path, "rb", buffering=0) as stream:
            # What was hashed is not kept in memory: on these nodes that is the engine's.
            done = 0
            while chunk := stream.read(_CHUNK):
                state.update(chunk)
                os.posix_fadvise(stream.fileno(), done, len(chunk), os.POSIX_FADV_DONTNEED)
                done += len(chunk)
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return str(state.hexdigest())


# --- access ---


def unreadable_as(path: str, uid: int, gid: int) -> list[dict[str, Any]]:
    """Open every file as another account; becomes that account for good, so only in a child.

    Returns:
        Problems: directories that it cannot pass and files that it cannot read.
    """
    tree = Tree(path)
    if tree.absent:
        return []
    places = [file.path for file in tree.files.values() if not file.fault]
    parents = _parents([os.path.join(os.path.abspath(path), ""), *places])
    if os.geteuid() != uid or os.getegid() != gid:
        try:
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        except OSError as error:
            text = f"reading as account {uid}:{gid} cannot be tried: {error.strerror}; become root"
            return [{"code": "read-as", "file": None, "message": text}]
    problems: list[dict[str, Any]] = []
    shut = [place for place in parents if _shut(place)]
    if shut:
        # What lies below a directory that cannot be passed says nothing more.
        first = [place for place in shut if os.path.dirname(place) not in shut]
        problems += [
            {
                "code": "not-traversable",
                "file": place,
                "message": f"{place} cannot be entered by account {uid}:{gid}; give others the "
                "right to (chmod o+x), or move the checkpoint",
            }
            for place in first
        ]
    closed = [place for place in places if not _opens(place)]
    if closed:
        problems.append(
            {
                "code": "unreadable-as",
                "file": closed[0],
                "message": f"{len(closed)} of {len(places)} files cannot be read by account "
                f"{uid}:{gid}, as {closed[0]}; make them readable (chmod -R o+rX), or export them "
                "as their owner",
            }
        )
    return problems


def _parents(places: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for place in places:
        parent = os.path.dirname(place)
        chain = []
        while parent not in found:
            chain.append(parent)
            if parent == "/":
                break
            parent = os.path.dirname(parent)
        found.update(dict.fromkeys(reversed(chain)))
    return list(found)


def _shut(place: str) -> bool:
    return not os.access(place, os.X_OK)


def _opens(place: str) -> bool:
    try:
        with open(place, "rb", buffering=0) as stream:
            stream.read(1)
    except OSError:
        return False
    return True
