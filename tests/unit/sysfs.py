"""Builds trees of small files, as sysfs and procfs have them, from a few lines of YAML.

A mapping is a directory, a text is a file. Two texts mean more: ``-> target`` is a link, and
``! EINVAL`` is a file that opens and whose reading ends with that error of the kernel, for real.
A file called ``gid_table`` stands for the three directories of an RDMA port's GIDs; see there.
"""

from __future__ import annotations

import errno
import functools
import ipaddress
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

FIXTURES = Path(__file__).parent / "fixtures"
# Files of every Linux that open, and whose reading fails like this.
FAILING = {"EINVAL": Path("/sys/class/net/lo/speed"), "EIO": Path("/proc/self/mem")}


@functools.cache
def _loaded(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FIXTURES / f"{name}.yml").read_text(encoding="utf-8"))
    return loaded


def fixture(name: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Load a fixture and change it: ``{"a/b/c": value}``, where None takes the entry away.

    A key that a part of the path does not have yet is made.
    """
    loaded = deepcopy(_loaded(name))
    for path, value in (changes or {}).items():
        *parents, last = path.split("/")
        place = loaded
        for parent in parents:
            place = place.setdefault(parent, {})
        if value is None:
            del place[last]
        else:
            place[last] = value
    return loaded


def build(root: Path, files: Mapping[str, Any]) -> Path:
    """Make the files below a directory and return it."""
    for name, content in files.items():
        path = root / name
        if name == "gid_table":
            build(root, gid_table(content))
        elif isinstance(content, Mapping):
            path.mkdir(parents=True, exist_ok=True)
            build(path, content)
        elif content.startswith("-> "):
            path.symlink_to(content.removeprefix("-> "))
        elif content.startswith("! "):
            path.symlink_to(_failing(content.removeprefix("! ")))
        else:
            path.write_text(content, encoding="utf-8")
    return root


def gid_table(text: str, slots: int = 8) -> dict[str, Any]:
    """Write ``gids`` and ``gid_attrs`` of a port as the kernel shows them.

    ``enp1s0f0np0: 0 LL v1, 1 LL v2, 3 10.20.0.11 v2, 4 10.20.0.11 v2 vlan100`` is the netdev and
    the filled slots: number, address, type, and the netdev where it is another. LL and LP are
    link-local addresses, made from the MAC and for privacy. A type of ``?`` cannot be read, and
    ``_`` in one is a blank. An empty slot reads as zeros, its attributes fail with EINVAL.
    """
    netdev, _colon, rest = text.partition(":")
    gids = dict.fromkeys(map(str, range(slots)), f"{':'.join(['0000'] * 8)}\n")
    types = dict.fromkeys(gids, "! EINVAL")
    ndevs = dict.fromkeys(gids, "! EINVAL")
    for entry in filter(None, map(str.strip, rest.split(","))):
        slot, address, kind, *other = entry.split()
        gids[slot] = f"{_gid(_LINK_LOCAL.get(address, address))}\n"
        if kind != "?":
            types[slot] = _TYPES.get(kind, kind.replace("_", " ")) + "\n"
            ndevs[slot] = f"{other[0] if other else netdev}\n"
    return {"gids": gids, "gid_attrs": {"types": types, "ndevs": ndevs}}


_LINK_LOCAL = {"LL": "fe80::4ebb:47ff:fe2c:1122", "LP": "fe80::1234:5678:9abc:def0"}
_TYPES = {"v1": "IB/RoCE v1", "v2": "RoCE v2"}


def _gid(address: str) -> str:
    raw = ipaddress.ip_address(address).packed
    if len(raw) == 4:
        raw = bytes(10) + b"\xff\xff" + raw
    return ":".join(raw[k : k + 2].hex() for k in range(0, 16, 2))


@functools.cache
def _failing(name: str) -> Path:
    target = FAILING[name]
    try:
        target.read_text(encoding="utf-8")
    except OSError as error:
        if error.errno == getattr(errno, name):
            return target
    pytest.skip(f"reading {target} does not end with {name} on this machine")
