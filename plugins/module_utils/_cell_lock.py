# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""One operator at a time: who holds a cell, and whether somebody else may take it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import write_whole

FOLDER = "/var/lib/sparkfleet/lock"
_PATIENCE = 5.0  # seconds in which a folder may come and go


class Holder(NamedTuple):
    """A run of ansible-playbook that holds a cell.

    Args:
        owner: `user@controller`.
        playbook: what was run there, as it was typed.
        pid: of its process on the controller.
        born: when that process began, in ticks after the controller did; 0 where that is unknown.
        since: when it took the cell, in seconds since 1970 by the controller's clock.
        depth: how often: a playbook that imports another one holds it twice meanwhile.
        place: where that number means a process; "" where that is unknown.
    """

    owner: str
    playbook: str
    pid: int
    born: int
    since: float
    depth: int = 1
    place: str = ""

    @property
    def run(self) -> str:
        """The same for the same run only."""
        return f"{self.owner} {self.pid} {self.born}"


class Locked(Exception):  # noqa: N818  # a refusal
    """Somebody else holds the cell; the text is for people."""


def parse(text: str) -> Holder | None:
    """The holder in a file; None for what is not one, such as a file that was cut off."""
    try:
        return Holder(**json.loads(text))
    except (ValueError, TypeError):
        return None


def take(found: Holder | None, mine: Holder, gone: Holder | None = None) -> Holder:
    """Who holds the cell now; somebody else stays, unless it is the one that has gone."""
    if found is None or found == gone:
        return mine
    return found._replace(depth=found.depth + 1) if found.run == mine.run else found


def refuse(
    cell: str, found: Holder, mine: Holder, *, alive: Callable[[Holder], bool], force: bool = False
) -> None:
    """Judge somebody else who holds the cell.

    Args:
        cell: for the message.
        found: who holds it.
        mine: who wants to.
        alive: whether that process of this controller still runs.
        force: take it whoever has it.

    Raises:
        Locked: it may not be taken.
    """
    own = found.owner == mine.owner
    near = own or bool(found.place and found.place == mine.place)
    if force or (near and not alive(found)):
        return  # a run that failed, or was ended, on the way
    ago = age(mine.since - found.since)
    where = f"process {found.pid}" if near else f"process {found.pid} there"
    raise Locked(
        f"{found.owner} works on the cell {cell} since {ago}: {found.playbook} ({where}). Wait for "
        "the end of that, or, if it has ended without letting go, take the cell with "
        "-e cell_lock_break=true"
    )


def give(found: Holder | None, mine: Holder) -> Holder | None:
    """What is to be in the file after letting go once; None for no file."""
    if found is None or found.run != mine.run:
        return found  # taken by somebody else meanwhile
    return found._replace(depth=found.depth - 1) if found.depth > 1 else None


def age(seconds: float) -> str:
    """For people.

    >>> age(40), age(300), age(7300), age(200000)
    ('40 s', '5 min', '2 h', '2 days')
    """
    for unit, size in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= (2 if unit == "days" else 1) * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


# --- the file, on the head ------------------------------------------------------------------------


@contextlib.contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Two who come at the same moment read and write one after the other."""
    patience = time.monotonic() + _PATIENCE
    while True:
        try:
            os.makedirs(folder, mode=0o755, exist_ok=True)
            guard = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except (FileExistsError, FileNotFoundError):
            # Whoever let go has just taken it away; what is in the way stays there.
            if time.monotonic() > patience:
                raise
            time.sleep(0.01)
            continue
        try:
            fcntl.flock(guard, fcntl.LOCK_EX)
            if _is_at(folder, guard):
                yield
                return
        finally:
            os.close(guard)


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def file_of(cell: str, root: str = "/") -> str:
    """The file that says who holds a cell."""
    return os.path.join(root, FOLDER.lstrip("/"), f"{cell}.json")


def read(path: str) -> Holder | None:
    """Who holds it by that file."""
    try:
        with open(path, encoding="utf-8") as stream:
            return parse(stream.read())
    except FileNotFoundError:
        return None


def change(path: str, decide: Callable[[Holder | None], Holder | None]) -> Holder | None:
    """Make the file what `decide` says of what it was. Returns what it was.

    Raises:
        OSError: it cannot be written.
    """
    folder = os.path.dirname(path)
    if decide(None) is None and not os.path.exists(path):
        return None
    with _alone(folder):
        found = read(path)
        wanted = decide(found)
        if wanted is None:
            with contextlib.suppress(OSError):
                os.unlink(path)
                os.rmdir(folder)
                os.rmdir(os.path.dirname(folder))  # of nodes that have nothing else of ours
        elif wanted != found:
            write_whole(path, json.dumps(wanted._asdict()) + "\n", 0o644)
        return found


# --- the process, on the controller ---------------------------------------------------------------


def born(pid: int, proc: str = "/proc") -> int:
    """When a process began; 0 where nobody tells."""
    try:
        with open(f"{proc}/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return int(stream.read().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def alive(holder: Holder, proc: str = "/proc") -> bool:
    """Whether the process of a holder on this controller still runs, and is the same one."""
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # somebody else's, and there
    began = born(holder.pid, proc)
    return not (holder.born and began and began != holder.born)


def place() -> str:
    """Where numbers of processes are those of this one: a boot of a kernel, and a namespace."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return f"{stream.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def as_holder(value: Mapping[str, Any] | None) -> Holder | None:
    """Of what a module returned."""
    return Holder(**value) if value else None
