"""Builds trees of small files, as sysfs and procfs have them, from a few lines of YAML.

A mapping is a directory, a text is a file. Two texts mean more: ``-> target`` is a link, and
``! EINVAL`` is a file that opens and whose reading ends with that error of the kernel, for real.
"""

from __future__ import annotations

import errno
import functools
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
        if isinstance(content, Mapping):
            path.mkdir(parents=True, exist_ok=True)
            build(path, content)
        elif content.startswith("-> "):
            path.symlink_to(content.removeprefix("-> "))
        elif content.startswith("! "):
            path.symlink_to(_failing(content.removeprefix("! ")))
        else:
            path.write_text(content, encoding="utf-8")
    return root


@functools.cache
def _failing(name: str) -> Path:
    target = FAILING[name]
    try:
        target.read_text(encoding="utf-8")
    except OSError as error:
        if error.errno == getattr(errno, name):
            return target
    pytest.skip(f"reading {target} does not end with {name} on this machine")
