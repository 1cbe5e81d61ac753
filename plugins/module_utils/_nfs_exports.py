# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Lines of exports(5) and of `exportfs -v`: read, written, and held against each other."""

from __future__ import annotations

import ipaddress
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

OWN = "/etc/exports.d/sparkfleet.exports"
WORLD = "*"

_HEADER = "# Written by the role sparkfleet.cluster.nfs_share; changes are lost.\n"
_PATH = re.compile(r'\s*(?:"((?:[^"\\]|\\.)*)"|(\S+))')
_CLIENT = re.compile(r"([^\s(]*)(?:\(([^)]*)\)?)?(?:\s+|$)")
_ACTIVE = re.compile(r"^(?P<path>\S.*?)\s+(?P<client>[^\s(]+)\((?P<options>[^)]*)\)$")


class Problem(NamedTuple):
    """Something that forbids a share; `code` is stable, the message is for people."""

    code: str
    message: str


class Export(NamedTuple):
    """One directory for one client. `client` is WORLD where anybody may come."""

    path: str
    client: str
    options: tuple[str, ...]
    where: str = ""  # file and line
    line: str = ""


def wanted_options(uid: int, gid: int) -> tuple[str, ...]:
    """Read-only, with mounts below, and everybody as the one account that was tried."""
    return (
        "ro",
        "sync",
        "crossmnt",
        "no_subtree_check",
        "root_squash",
        "all_squash",
        f"anonuid={uid}",
        f"anongid={gid}",
    )


def render(path: str, clients: Iterable[str], options: Sequence[str]) -> str:
    """The text of our file: one line for each client."""
    place = "".join(_escape(char) for char in path)
    return _HEADER + "".join(f"{place} {client}({','.join(options)})\n" for client in clients)


def _escape(char: str) -> str:
    if char.isspace() or char in '"#\\':
        return "".join(f"\\{byte:03o}" for byte in char.encode())
    return char


def parse_exports(text: str, name: str) -> list[Export]:
    """All entries of a file in the syntax of exports(5); what has none is passed over."""
    found: list[Export] = []
    number, pending, first = 0, "", 0
    for raw in text.splitlines():
        number += 1
        first = first if pending else number
        if raw.endswith("\\"):
            pending += raw[:-1] + " "
            continue
        line, pending = pending + raw, ""
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found += _entries(line, f"{name}:{first}")
    return found


def _entries(line: str, where: str) -> list[Export]:
    match = _PATH.match(line)
    if not match:
        return []
    path = _unescape(match.group(1) if match.group(1) is not None else match.group(2))
    rest = line[match.end() :].split(" #", maxsplit=1)[0].strip()
    common: tuple[str, ...] = ()
    found = []
    for client, options in _CLIENT.findall(rest):
        if client.startswith("-"):
            common = _split(client[1:])
        elif client or options:
            found.append(
                Export(_normal(path), client or WORLD, (*common, *_split(options)), where, line)
            )
    return found or [Export(_normal(path), WORLD, common, where, line)]


def parse_table(text: str) -> list[Export]:
    """What `exportfs -v` prints; a long path stands on a line of its own before its client."""
    joined = re.sub(r"\n[ \t]+", " ", text)
    found = []
    for line in joined.splitlines():
        match = _ACTIVE.match(line.strip())
        if match:
            client = match["client"]
            found.append(
                Export(
                    _normal(match["path"]),
                    WORLD if client == "<world>" else client,
                    _split(match["options"]),
                    "exportfs -v",
                    line.strip(),
                )
            )
    return found


def conflicts(
    foreign: Iterable[Export], path: str, clients: Iterable[str]
) -> tuple[dict[str, Export], list[Problem]]:
    """Lines of others about our directory: those for our clients, and sentences about the rest.

    Two lines for one path and client are a "duplicated export entry", of which the first stays
    effective whatever ours says.
    """
    twice: dict[str, Export] = {}
    open_ones: list[Problem] = []
    for entry in foreign:
        if entry.path != path:
            continue
        if entry.client == WORLD:
            open_ones.append(
                Problem(
                    "world",
                    f"{entry.where} gives {path} to everybody: {entry.line.strip()!r}. A blank "
                    "before the parenthesis does that. Correct the line, then exportfs -ra",
                )
            )
        elif entry.client in clients:
            twice.setdefault(entry.client, entry)
    return twice, open_ones


def duplicates(twice: Mapping[str, Export]) -> list[Problem]:
    return [
        Problem(
            "duplicate",
            f"{entry.where} exports {entry.path} to {client} already, and that line would stay "
            f"effective: {entry.line.strip()!r}. Remove it, or set nfs_share_adopt to true to use "
            "it as it is",
        )
        for client, entry in twice.items()
    ]


def adoptable(entry: Export) -> list[str]:
    """Why a line of others cannot stand for ours."""
    missing = []
    if "rw" in entry.options:
        missing.append("it is writable (rw)")
    if "no_root_squash" in entry.options:
        missing.append("root of a client is root here (no_root_squash)")
    return missing


def warnings(foreign: Iterable[Export], path: str) -> list[str]:
    """What others export that reaches further than it looks."""
    told = []
    for entry in foreign:
        bare = re.search(r"\S\s+\(", entry.line)
        if entry.client == WORLD and bare and entry.path != path:
            told.append(
                f"{entry.where} gives {entry.path} to everybody, because of the blank before the "
                f"parenthesis: {entry.line.strip()!r}"
            )
        if path != entry.path and _below(path, entry.path):
            told.append(
                f"{entry.where} exports {entry.path}, which {path} is part of, to {entry.client} "
                f"({','.join(entry.options) or 'default options'})"
            )
    return told


def client_path(
    foreign: Iterable[Export], path: str, client: str
) -> tuple[str | None, Problem | None]:
    """The path under which an NFSv4 client finds our directory.

    It is the directory's own, unless somebody declared a pseudo root (`fsid=0`) for this client:
    then all paths are relative to that (exports(5), nfs(5)).
    """
    for entry in foreign:
        if not {"fsid=0", "fsid=root"} & set(entry.options):
            continue
        matches = _matches(entry.client, client)
        if matches is False:
            continue
        if matches is None:
            return None, Problem(
                "pseudo-root",
                f"{entry.where} makes {entry.path} the NFSv4 root of {entry.client}, and whether "
                f"{client} is among them only a name service knows: {entry.line.strip()!r}. Name "
                "addresses there, or take fsid=0 away",
            )
        if not _below(path, entry.path):
            return None, Problem(
                "pseudo-root",
                f"{entry.where} makes {entry.path} the NFSv4 root of {client}, so that {path} "
                f"cannot be reached: {entry.line.strip()!r}. Take fsid=0 away, or move the "
                f"checkpoint below {entry.path}",
            )
        relative = posixpath.relpath(path, entry.path)
        return ("/" if relative == "." else f"/{relative}"), None
    return path, None


def deviations(
    table: Iterable[Export], path: str, wanted: Mapping[str, Sequence[str]]
) -> list[str]:
    """Where the active table is not what our file asks for.

    `exportfs -v` leaves out an anonymous id that is the usual one, and writes every option in its
    long form.
    """
    active = {entry.client: entry for entry in table if entry.path == path}
    told = []
    for client, options in wanted.items():
        if client not in active:
            told.append(f"{path} is not exported to {client}")
            continue
        usual = {"anonuid=65534", "anongid=65534"}
        lacking = sorted(set(options) - usual - set(active[client].options))
        if lacking:
            told.append(f"{path} is exported to {client} without {','.join(lacking)}")
    if WORLD in active:
        told.append(f"{path} is exported to everybody")
    return told


def _matches(pattern: str, address: str) -> bool | None:
    """Whether an address is among the clients an entry names; None where only names tell."""
    if pattern == WORLD:
        return True
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        return None


def _below(path: str, parent: str) -> bool:
    return parent in {"/", path} or path.startswith(parent + "/")


def _normal(path: str) -> str:
    return posixpath.normpath(path)


def _split(options: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in options.split(",") if word.strip())


def _unescape(text: str) -> str:
    raw = text.encode("utf-8", "surrogateescape")
    plain = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found.group(1), 8) & 255]), raw)
    return plain.decode("utf-8", "surrogateescape")
