# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""A client's end of a share: one mount by systemd, read from mountinfo and never touched.

Nothing here looks at a file below the mount point once something may be mounted there: a hard mount
whose server is gone would never answer.
"""

from __future__ import annotations

import glob
import ipaddress
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    Missing,
    Runner,
    ask_all,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_exports import Problem
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_host import (
    Folder,
    Outcome,
    ShareError,
    changed_text,
    must,
    serving,
    units,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._systemd_name import mount_unit

UNITS = "/etc/systemd/system"
SERVICE = "sparkfleet-checkpoint.service"
RDMA_PORT = 20049
# How long one try to mount may take. A server that boots is tried again and again.
MOUNT_SECONDS = 100

_MARK = "# Written by the role sparkfleet.cluster.nfs_share; changes are lost.\n"
_OCTAL = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """One line of mountinfo. `options` are those of the mount and of its file system."""

    path: str
    fstype: str
    source: str
    options: frozenset[str]

    @property
    def nfs(self) -> bool:
        return self.fstype in {"nfs", "nfs4"}

    def __str__(self) -> str:
        return f"{self.source} ({self.fstype}) on {self.path}"


class Wanted(NamedTuple):
    """A mount as it should be."""

    path: str
    address: str
    port: int
    export: str
    transport: str
    options: tuple[str, ...]

    @property
    def source(self) -> str:
        return f"{self.address}:{self.export}"


def parse_mountinfo(text: str) -> list[Mount]:
    """Every mount of a process, in the order in which they were made (proc(5))."""
    found = []
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        first, last = left.split(), right.split()
        if not separator or len(first) < 6 or len(last) < 2:
            continue
        options = [*first[5].split(","), *(last[2].split(",") if len(last) > 2 else [])]
        found.append(Mount(_plain(first[4]), last[0], _plain(last[1]), frozenset(options)))
    return found


def mount_of(mounts: Iterable[Mount], path: str) -> Mount | None:
    """The mount that a path is on: of the deepest mount points the last one."""
    best: Mount | None = None
    for mount in mounts:
        inside = mount.path in {"/", path} or path.startswith(mount.path + "/")
        if inside and (best is None or len(mount.path) >= len(best.path)):
            best = mount
    return best


def differences(mount: Mount, wanted: Wanted) -> list[str]:
    """Why a mount is another than wanted. Sizes are left out: a small server lowers them."""
    told = []
    if mount.source != wanted.source:
        told.append(f"it is {mount.source}, expected {wanted.source}")
    must_have = ["ro", "hard", "vers=4.2", f"proto={wanted.transport}"]
    if wanted.transport == "tcp" and wanted.port != 2049:
        must_have.append(f"port={wanted.port}")
    lacking = [option for option in must_have if option not in mount.options]
    if lacking:
        told.append(f"it lacks {','.join(lacking)}")
    return told


def unit_texts(wanted: Wanted, cell: str) -> dict[str, str]:
    """The two units of a mount, by path.

    A mount unit gives up after one try that failed, so a service starts it until that works,
    however much later than this node the server or the fabric comes up. Neither is ordered before
    remote-fs.target, which logins wait for. Nothing was written, so the mount may be detached
    lazily, also from a server that is gone.
    """
    options = ["ro", "hard", "nfsvers=4.2", f"proto={wanted.transport}"]
    if wanted.transport == "rdma":
        options.append(f"port={RDMA_PORT}")
    elif wanted.port != 2049:
        options.append(f"port={wanted.port}")
    options += wanted.options
    where = wanted.path.replace("%", "%%")
    mount = f"""{_MARK}
[Unit]
Description=Checkpoint of {cell}
DefaultDependencies=no
After=network.target
Conflicts=umount.target
Before=umount.target

[Mount]
What={wanted.source.replace("%", "%%")}
Where={where}
Type=nfs4
Options={",".join(options)},retry=1
TimeoutSec={MOUNT_SECONDS}
LazyUnmount=yes
"""
    quoted = where.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    service = f"""{_MARK}
[Unit]
Description=Mount the checkpoint of {cell} as soon as its server answers
Wants=network-online.target
After=network-online.target remote-fs.target
StartLimitIntervalSec=0

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/bin/systemctl start "{quoted}"
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
"""
    return {f"{UNITS}/{mount_unit(wanted.path)}": mount, f"{UNITS}/{SERVICE}": service}


def read_wanted(params: Mapping[str, Any]) -> tuple[Wanted | None, list[Problem]]:
    """What the parameters of `nfs_mount` ask for, or every reason why that cannot be."""
    problems = []
    for name in ("path", "export"):
        value = params[name]
        if not value.startswith("/") or any(ord(char) < 32 for char in value):
            problems.append(Problem("path", f"{name} is {value!r}, which is no absolute path"))
    if posixpath.normpath(params["path"]) == "/":
        problems.append(Problem("path", "the mount point is /, which everything else is below"))
    try:
        ipaddress.IPv4Address(params["address"])
    except ValueError:
        problems.append(Problem("address", f"{params['address']!r} is no IPv4 address"))
    bad = [
        option for option in params["options"] if not re.fullmatch(r"[A-Za-z0-9_.=:/-]+", option)
    ]
    ours = (
        "ro",
        "rw",
        "hard",
        "soft",
        "softerr",
        "nfsvers",
        "vers",
        "proto",
        "port",
        "minorversion",
    )
    fixed = [option for option in params["options"] if option.split("=")[0] in ours]
    problems += [Problem("option", f"{option!r} is no mount option") for option in bad]
    problems += [
        Problem("option", f"{option!r}: a checkpoint is always mounted ro,hard with NFS 4.2")
        for option in fixed
    ]
    if params["transport"] == "rdma" and params["hops"] > 1:
        problems.append(
            Problem(
                "rdma-hops",
                f"RDMA does not cross the Sparks between: {params['address']} is {params['hops']} "
                "hops away. Set nfs_share_transport to tcp for this host",
            )
        )
    if problems:
        return None, problems
    return Wanted(
        posixpath.normpath(params["path"]),
        params["address"],
        params["port"],
        params["export"],
        params["transport"],
        tuple(params["options"]),
    ), []


class Client:
    """Mounts a share on a node, or takes that back.

    Args:
        root: where its files are found.
        run: runs a command on it, for a bounded time.
        check: only say what would be done.
    """

    def __init__(self, root: str, run: Runner, *, check: bool) -> None:
        self._folder = Folder(root)
        self._run = run
        self._check = check

    def present(self, params: Mapping[str, Any]) -> Outcome:
        """Mount as `read_wanted` says; units of ours for another mount point go."""
        wanted, problems = read_wanted(params)
        if wanted is None:
            return Outcome(problems=problems)
        mounts = self.mounts()
        here = [mount for mount in mounts if mount.path == wanted.path]
        texts = unit_texts(wanted, params["cell"])
        before = {path: self._folder.text(path) for path in texts}
        written = [path for path, text in texts.items() if before[path] != text]
        unit = mount_unit(wanted.path)
        others = [path for path in self._own() if path not in texts]
        problems += self._on_nfs(params["local"], without=[self._where(path) for path in others])
        problems += self._occupied(wanted, here)
        problems += self._linked(wanted.path) if not here else []
        if problems:
            return Outcome(problems=problems)
        state = units(self._run, [unit, SERVICE])
        why = differences(here[0], wanted) if here else []
        unit_changed = f"{UNITS}/{unit}" in written
        stop = bool(here) and (bool(why) or unit_changed)
        actions = [*why] if stop else []
        actions += self._removal(others, mounts)
        actions += [f"write {path}" for path in written]
        if written or others:
            actions.append("systemctl daemon-reload")
        if stop:
            actions.append(f"unmount {wanted.path}")
        if stop or not here:
            actions.append(f"mount {wanted.source} on {wanted.path}")
        if not state[SERVICE].enabled:
            actions.append(f"systemctl enable {SERVICE}")
        warned = self._hidden(wanted.path, mounts) if not here else []
        diff = [changed_text(path, before[path], texts[path]) for path in written]
        diff += [changed_text(path, self._folder.text(path), None) for path in others]
        outcome = Outcome(actions, diff, warnings=warned, values={"source": wanted.source})
        if actions and not params["force"]:
            outcome = outcome._replace(problems=self._serving(params["rank_units"]))
        if outcome.problems or self._check or not actions:
            return outcome
        if stop:
            self._unmount(wanted.path, f"{UNITS}/{unit}")
        self._remove(others, mounts)
        for path in written:
            self._folder.put(path, texts[path])
        if written or others:
            self._do("systemctl", "daemon-reload")
        self._do("systemctl", "enable", SERVICE)
        if stop or not here:
            self._mount(wanted, unit)
        self._do("systemctl", "start", SERVICE)
        return outcome._replace(warnings=[*warned, *self._unlike(wanted)])

    def absent(self, params: Mapping[str, Any]) -> Outcome:
        """Unmount and remove what is ours; `local` must not be on NFS afterwards."""
        mounts, own = self.mounts(), self._own()
        actions = self._removal(own, mounts)
        if own:
            actions.append("systemctl daemon-reload")
        diff = [changed_text(path, self._folder.text(path), None) for path in own]
        outcome = Outcome(actions, diff)
        if own and not params["force"]:
            outcome = outcome._replace(problems=self._serving(params["rank_units"]))
        if not outcome.problems:
            ours = {self._where(path) for path in own}
            told = self._on_nfs(params["local"], without=ours)
            outcome = outcome._replace(problems=told)
        if outcome.problems or self._check or not own:
            return outcome
        self._remove(own, mounts)
        self._do("systemctl", "daemon-reload")
        return outcome

    def mounts(self) -> list[Mount]:
        """What is mounted now."""
        return parse_mountinfo(self._folder.text("/proc/self/mountinfo") or "")

    # --- looking ---

    def _own(self) -> list[str]:
        """The units that this role wrote; the service first, so that it does not mount again."""
        places = [SERVICE]
        places += sorted(
            os.path.basename(place) for place in glob.glob(self._folder.path(f"{UNITS}/*.mount"))
        )
        paths = [f"{UNITS}/{name}" for name in places]
        return [path for path in paths if (self._folder.text(path) or "").startswith(_MARK)]

    def _where(self, path: str) -> str | None:
        """The mount point of a unit."""
        found = re.search(r"^Where=(.*)$", self._folder.text(path) or "", re.MULTILINE)
        return found.group(1).replace("%%", "%") if found else None

    def _occupied(self, wanted: Wanted, here: Sequence[Mount]) -> list[Problem]:
        problems = []
        if len(here) > 1:
            problems.append(
                Problem(
                    "stacked",
                    f"{len(here)} mounts are stacked on {wanted.path}: "
                    f"{', '.join(mount.source for mount in here)}. Stop what uses them and run "
                    f"'umount {wanted.path}' until none is left",
                )
            )
        elif here and not here[0].nfs:
            problems.append(
                Problem(
                    "occupied",
                    f"{here[0]} is in the way; unmount it, or choose another place with "
                    "nfs_share_mount_dir",
                )
            )
        for line in (self._folder.text("/etc/fstab") or "").splitlines():
            words = line.split()
            if len(words) > 2 and words[0][0] != "#" and _plain(words[1]) == wanted.path:
                told = (
                    f"/etc/fstab mounts {wanted.path} as well: {line.strip()!r}; remove that line"
                )
                problems.append(Problem("fstab", told))
        return problems

    def _linked(self, path: str) -> list[Problem]:
        """A mount unit takes no path with a link in it (systemd.mount(5))."""
        place = self._folder.path(path)
        real = ask_all({"real": lambda: os.path.realpath(place)}, 5.0)["real"]
        if isinstance(real, Missing):
            told = f"{path} cannot be looked at: {real}; is it below another mount that is dead?"
        elif real != os.path.join(os.path.realpath(self._folder.path("/")), path.lstrip("/")):
            told = f"{path} is or lies behind a link to {real}; name that in nfs_share_mount_dir"
        else:
            return []
        return [Problem("link", told)]

    def _on_nfs(self, local: str | None, without: Iterable[str | None] = ()) -> list[Problem]:
        """A leftover of another mode: ranks would go on to read from the network unnoticed."""
        if not local:
            return []
        mount = mount_of(self.mounts(), posixpath.normpath(local))
        if mount is None or not mount.nfs or mount.path in without:
            return []
        return [
            Problem(
                "not-local",
                f"{local} has to be on this node's own disk, but is on {mount}; unmount that and "
                "remove it from /etc/fstab",
            )
        ]

    def _hidden(self, path: str, mounts: Sequence[Mount]) -> list[str]:
        """Whether local files will disappear behind the mount."""
        parent = mount_of(mounts, path)
        if parent is None or parent.nfs:
            return []
        names = ask_all({"names": lambda: os.listdir(self._folder.path(path))}, 5.0)["names"]
        if isinstance(names, Missing) or not names:
            return []
        what = f"{len(names)} entries of this node's own"
        return [f"{path} has {what}, which the mount hides and which still take space"]

    def _serving(self, patterns: Sequence[str]) -> list[Problem]:
        active = serving(self._run, patterns)
        if not active:
            return []
        return [
            Problem(
                "serving",
                f"{', '.join(active)} is serving from this checkpoint; stop the cell first, or set "
                "nfs_share_force to true",
            )
        ]

    def _removal(self, own: Sequence[str], mounts: Sequence[Mount]) -> list[str]:
        there = {mount.path for mount in mounts if mount.nfs}
        wheres = [self._where(path) for path in own]
        told = [f"unmount {where}" for where in wheres if where in there]
        return [*told, *(f"remove {path}" for path in own)]

    def _unlike(self, wanted: Wanted) -> list[str]:
        """Options that the kernel did not take, after the mount."""
        mount = mount_of(self.mounts(), wanted.path)
        lacking = [
            option
            for option in wanted.options
            if "=" in option and mount is not None and option not in mount.options
        ]
        if not lacking or mount is None:
            return []
        found = sorted(
            have
            for have in mount.options
            if have.split("=")[0] in {o.split("=")[0] for o in lacking}
        )
        return [f"{wanted.path}: asked for {','.join(lacking)}, got {','.join(found) or 'none'}"]

    # --- changing ---

    def _do(self, *words: str) -> None:
        must(self._run(words), words)

    def _mount(self, wanted: Wanted, unit: str) -> None:
        done = self._run(["systemctl", "start", unit])
        if done.rc == 0:
            return
        log = self._run(["journalctl", "-u", unit, "-o", "cat", "-n", "20", "--no-pager"]).out
        said = [line.strip() for line in log.splitlines() if line.startswith("mount.nfs")]
        raise ShareError(
            f"{wanted.source} cannot be mounted on {wanted.path}: "
            f"{said[-1] if said else done.complaint}; see journalctl -u '{unit}'"
        )

    def _unmount(self, where: str, path: str) -> None:
        """Detach a mount, also one whose server is gone."""
        self._run(["systemctl", "stop", os.path.basename(path)])
        for _mount in [mount for mount in self.mounts() if mount.path == where and mount.nfs]:
            # -i: without the helper of NFS, which may want to talk to the server.
            self._do("umount", "-i", "-l", where)

    def _remove(self, own: Sequence[str], mounts: Sequence[Mount]) -> None:
        there = {mount.path for mount in mounts if mount.nfs}
        for path in own:
            where = self._where(path)
            if where is None:
                self._do("systemctl", "disable", "--now", os.path.basename(path))
            elif where in there:
                self._unmount(where, path)
            self._folder.put(path, None)


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda found: chr(int(found.group(1), 8)), text)
