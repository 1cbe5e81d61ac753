# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The head's end of a share: who may read the checkpoint, and the kernel's NFS server."""

from __future__ import annotations

import glob
import grp
import ipaddress
import os
import pwd
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils import _nfs_exports as exports
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    Missing,
    Runner,
    ask_all,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_exports import (
    OWN,
    Export,
    Problem,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_host import (
    Folder,
    Outcome,
    ShareError,
    changed_text,
    must,
    units,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_mount import (
    mount_of,
    parse_mountinfo,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_read import (
    files_below,
    manifest,
)

SETTINGS = "/etc/nfs.conf.d/sparkfleet.conf"
SERVER = "nfs-server.service"
RDMA_PORT = 20049

_SETTINGS_TEXT = (
    "# Written by the role sparkfleet.cluster.nfs_share; changes are lost.\n"
    f"[nfsd]\nrdma=y\nrdma-port={RDMA_PORT}\n"
)
# In a mount namespace of its own exportfs reads our new file and writes a table nobody uses.
_TRIAL = """
mount --bind "$1/exports.d" /etc/exports.d
mount --bind "$1/state" /var/lib/nfs
exportfs -ra
echo "rc $?"
exportfs -v
"""


class Account(NamedTuple):
    """Whom the server takes every client for."""

    name: str
    uid: int
    gid: int


def account(name: str) -> Account | Problem:
    """Look an account of this node up; its uid may stand for it."""
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
    except KeyError:
        return Problem(
            "account", f"there is no account {name!r} on this node; nfs_share_account names one"
        )
    if entry.pw_uid == 0:
        return Problem(
            "account",
            "clients would read as root here, whatever a file's mode says; name another account "
            "in nfs_share_account",
        )
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def denied(directory: str, who: Account) -> dict[str, Any]:
    """What an account cannot pass or read: `parents`, `files`, and how many files it tried.

    For a child process, which becomes that account (without further groups, as the server does),
    since only opening a file tells about access lists as well.
    """
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(who.gid, who.gid, who.gid)
        os.setresuid(who.uid, who.uid, who.uid)
    parents = []
    place = "/"
    for part in ["", *directory.strip("/").split("/")]:
        place = os.path.join(place, part)
        if not os.access(place, os.X_OK, effective_ids=True):
            parents.append(place)
            break  # what is behind it cannot even be asked for
    found: list[str] = []
    if not parents:
        try:
            names = list(files_below(directory))
        except OSError as error:
            return {"parents": [error.filename or directory], "files": []}
        for name in names:
            path = os.path.join(directory, name)
            try:
                handle = os.open(path, os.O_RDONLY)
            except OSError:
                found.append(name)
                continue
            os.close(handle)
    return {"parents": parents, "files": found}


def leaving(directory: str) -> list[list[str]]:
    """Links that lead out of a directory, each with the directory that is really needed."""
    found = []
    for name in files_below(directory):
        path = os.path.join(directory, name)
        real = os.path.realpath(path)
        if os.path.islink(path) and not real.startswith(directory.rstrip("/") + "/"):
            found.append([name, os.path.dirname(real)])
    return found


class Server:
    """Shares one directory of a node, or takes that back.

    Args:
        root: where its configuration is found; the directory itself is taken as it is.
        run: runs a command on it, for a bounded time.
        check: only say what would be done.
        deadline: seconds after which a look at the checkpoint is given up.
    """

    def __init__(self, root: str, run: Runner, *, check: bool, deadline: float = 60.0) -> None:
        self._folder = Folder(root)
        self._run = run
        self._check = check
        self._deadline = deadline

    def present(self, params: Mapping[str, Any]) -> Outcome:
        """Share `path` with `clients` as `account`, over RDMA as well if `rdma`, see `nfs_export`.

        Nothing is changed where there is a problem.
        """
        problems: list[Problem] = []
        path = os.path.realpath(params["path"])
        clients = list(dict.fromkeys(params["clients"]))
        problems += [
            Problem("client", f"{client!r} is no IPv4 address; an export names clients by address")
            for client in clients
            if not _is_address(client)
        ]
        if not clients:
            problems.append(Problem("client", "no client to share with: nobody would see it"))
        who = account(params["account"])
        values: dict[str, Any] = {"paths": {}, "files": {}}
        if isinstance(who, Problem):
            problems.append(who)
        else:
            found, told = self._survey(path, who, missing_ok=params["missing_ok"])
            problems += told
            values["files"] = found
        foreign = self._foreign()
        twice, open_ones = exports.conflicts(foreign, path, clients)
        warned = exports.warnings(foreign, path)
        if params["adopt"]:
            warned += [problem.message for problem in open_ones]
            problems += self._unfit(twice)
            warned += [f"{e.where} stands for ours: {e.line.strip()!r}" for e in twice.values()]
        else:
            problems += [*open_ones, *exports.duplicates(twice)]
        for client in clients:
            place, problem = exports.client_path(foreign, path, client)
            if problem:
                problems.append(problem)
            values["paths"][client] = place
        if problems or isinstance(who, Problem):
            return Outcome(problems=problems, warnings=warned, values=values)
        options = exports.wanted_options(who.uid, who.gid)
        ours = [client for client in clients if client not in twice]
        text = exports.render(path, ours, options) if ours else None
        wanted = dict.fromkeys(ours, options)
        return self._reach(path, text, wanted, params, Outcome(warnings=warned, values=values))

    def absent(self) -> Outcome:
        """Take our lines back. The server itself stays, since it may serve others."""
        steps = [path for path in (OWN, SETTINGS) if self._folder.text(path) is not None]
        actions = [f"remove {path}" for path in steps]
        diff = [changed_text(path, self._folder.text(path), None) for path in steps]
        if OWN in steps:
            actions.append("exportfs -ra")
        if not self._check:
            for path in steps:
                self._folder.put(path, None)
            done = self._run(["exportfs", "-ra"]) if OWN in steps else None
            # With an error in a line of others: what matters is that ours are gone.
            if done and done.rc not in {0, NOT_FOUND}:
                return Outcome(actions, diff, warnings=[f"exportfs -ra: {done.complaint}"])
        return Outcome(actions, diff)

    # --- looking ---

    def _survey(
        self, path: str, who: Account, *, missing_ok: bool
    ) -> tuple[dict[str, Any], list[Problem]]:
        mount = mount_of(parse_mountinfo(self._folder.text("/proc/self/mountinfo") or ""), path)
        if mount is not None and mount.nfs:
            told = f"{path} is itself on NFS ({mount}); the head shares what is on its own disk"
            return {}, [Problem("on-nfs", told)]
        if not os.path.isdir(path):
            there = f"{path} is no directory" if os.path.exists(path) else f"there is no {path}"
            told = (
                f"{there}; get the checkpoint first (role checkpoint), or set spark_checkpoint_dir"
            )
            allowed = self._check and missing_ok and not os.path.exists(path)
            return {}, [] if allowed else [Problem("no-directory", told)]
        answers = ask_all(
            {
                "files": lambda: manifest(path),
                "links": lambda: leaving(path),
                "denied": lambda: denied(path, who),
            },
            self._deadline,
        )
        lost = [f"{path}: {a}" for a in answers.values() if isinstance(a, Missing)]
        if lost:
            return {}, [Problem("unreadable", text) for text in dict.fromkeys(lost)]
        problems = []
        if answers["links"]:
            needed = sorted({target for _name, target in answers["links"]})
            problems.append(
                Problem(
                    "links-leave",
                    f"{_count(answers['links'], 'file')} of {path} are links to outside of it, "
                    f"which no client can follow; really needed: {', '.join(needed)}. Make them "
                    "files (cp -rL), or let the role checkpoint do it",
                )
            )
        problems += _denials(path, who, answers["denied"])
        return answers["files"], problems

    def _foreign(self) -> list[Export]:
        """The lines of others, in the order in which exportfs reads them."""
        found = exports.parse_exports(self._folder.text("/etc/exports") or "", "/etc/exports")
        for place in sorted(glob.glob(self._folder.path("/etc/exports.d/*.exports"))):
            name = f"/etc/exports.d/{os.path.basename(place)}"
            if name != OWN:
                found += exports.parse_exports(self._folder.text(name) or "", name)
        return found

    @staticmethod
    def _unfit(twice: Mapping[str, Export]) -> list[Problem]:
        return [
            Problem("duplicate", f"{entry.where} cannot be adopted: {why}: {entry.line.strip()!r}")
            for entry in twice.values()
            for why in exports.adoptable(entry)
        ]

    # --- changing ---

    def _reach(
        self,
        path: str,
        text: str | None,
        wanted: Mapping[str, Sequence[str]],
        params: Mapping[str, Any],
        known: Outcome,
    ) -> Outcome:
        actions: list[str] = []
        diff: list[dict[str, str]] = []
        settings = _SETTINGS_TEXT if params["rdma"] else None
        for place, content in ((SETTINGS, settings), (OWN, text)):
            before = self._folder.text(place)
            if before != content:
                actions.append(f"{'write' if content is not None else 'remove'} {place}")
                diff.append(changed_text(place, before, content))
        listed = self._run(["exportfs", "-v"])
        if listed.rc == NOT_FOUND:
            if self._check:  # an earlier task has only said that it would install it
                return known._replace(actions=[*actions, "exportfs -ra"], diff=diff)
            raise ShareError("there is no exportfs here; install the package nfs-kernel-server")
        table = exports.parse_table(must(listed, ["exportfs", "-v"]))
        rewritten = self._folder.text(OWN) != text
        if rewritten:
            told = self._trial(path, text, wanted, table)
            if told:
                return known._replace(problems=[Problem("refused", line) for line in told])
        if rewritten or exports.deviations(table, path, wanted):
            actions.append("exportfs -ra")
        server = units(self._run, [SERVER])[SERVER]
        ports = self._ports()
        if ports and not server.active:
            return known._replace(
                problems=[
                    Problem(
                        "foreign-server",
                        "the kernel's NFS server runs, but not by nfs-server.service: a container "
                        "has started it, and reads exports of its own. Stop that container first "
                        "(docker ps shows it)",
                    )
                ]
            )
        if not server.enabled:
            actions.append(f"systemctl enable {SERVER}")
        if not server.active:
            actions.append(f"systemctl start {SERVER}")
        listener = f"rdma {RDMA_PORT}"
        if params["rdma"] and server.active and listener not in ports:
            actions.append(f"listen on {listener}")
        if not self._check:
            self._apply(path, text, wanted, settings, actions)
        problems = self._wrong(params) if server.active or not self._check else []
        if self._check and f"listen on {listener}" in actions:
            problems = [problem for problem in problems if problem.code != "rdma-port"]
        return known._replace(actions=actions, diff=diff, problems=problems)

    def _trial(
        self,
        path: str,
        text: str | None,
        wanted: Mapping[str, Sequence[str]],
        table: Sequence[Export],
    ) -> list[str]:
        """What exportfs itself says about all files with the new one among them."""
        directory = self._folder.path("/etc/exports.d")
        if not os.path.isdir(directory):
            if self._check:
                return []
            os.mkdir(directory, 0o755)
        aside = tempfile.mkdtemp(prefix="sparkfleet-nfs-", dir=self._folder.path("/run"))
        try:
            os.mkdir(os.path.join(aside, "state"))
            shutil.copytree(directory, os.path.join(aside, "exports.d"))
            Folder(os.path.join(aside, "exports.d")).put(os.path.basename(OWN), text)
            words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _TRIAL]
            done = self._run([*words, "trial", aside])
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        answer, separator, listing = done.out.partition("\n")
        if done.rc != 0 or not separator or not answer.startswith("rc "):
            return [f"the new exports cannot be tried: {done.complaint}"]
        after = exports.parse_table(listing)
        told = exports.deviations(after, path, wanted)
        left = {(entry.path, entry.client) for entry in after}
        told += [
            f"{entry.path} would no longer be exported to {entry.client}"
            for entry in table
            if entry.path != path and (entry.path, entry.client) not in left
        ]
        complaint = next(iter(done.err.strip().splitlines()), "")
        return [f"{line}; exportfs says: {complaint}" if complaint else line for line in told]

    def _apply(
        self,
        path: str,
        text: str | None,
        wanted: Mapping[str, Sequence[str]],
        settings: str | None,
        actions: Sequence[str],
    ) -> None:
        self._folder.put(SETTINGS, settings)
        if "exportfs -ra" in actions:
            before = self._folder.text(OWN)
            self._folder.put(OWN, text)
            done = self._run(["exportfs", "-ra"])
            table = exports.parse_table(self._run(["exportfs", "-v"]).out)
            told = exports.deviations(table, path, wanted)
            if told:
                self._folder.put(OWN, before)
                self._run(["exportfs", "-ra"])
                raise ShareError(
                    f"{'; '.join(told)}; exportfs says: {done.complaint}. {OWN} is as it was"
                )
        for words in (["systemctl", "enable", SERVER], ["systemctl", "start", SERVER]):
            if " ".join(words) in actions:
                must(self._run(words), words)
        listener = f"listen on rdma {RDMA_PORT}"
        if listener in actions:
            # The setting counts from the server's next start on; this spares everybody a restart.
            try:
                with open(self._folder.path("/proc/fs/nfsd/portlist"), "w") as stream:
                    stream.write(f"rdma {RDMA_PORT}\n")
            except OSError as error:
                raise ShareError(f"nfsd does not listen on rdma: {error.strerror}") from error

    def _ports(self) -> list[str]:
        """What nfsd listens on, like `tcp 2049`; empty where it does not run."""
        text = self._folder.text("/proc/fs/nfsd/portlist") or ""
        return [line.strip() for line in text.splitlines() if line.strip()]

    def _wrong(self, params: Mapping[str, Any]) -> list[Problem]:
        """What keeps clients from a server that runs."""
        ports, problems = self._ports(), []
        if f"tcp {params['port']}" not in ports:
            problems.append(
                Problem(
                    "port",
                    f"nfsd does not listen on tcp {params['port']} (found: "
                    f"{', '.join(ports) or 'nothing'}); see [nfsd] in /etc/nfs.conf and "
                    f"journalctl -u {SERVER}",
                )
            )
        if params["rdma"] and f"rdma {RDMA_PORT}" not in ports:
            problems.append(
                Problem(
                    "rdma-port",
                    f"nfsd does not listen on rdma {RDMA_PORT} (found: {', '.join(ports)}); "
                    f"{SETTINGS} asks for it, see journalctl -u {SERVER}",
                )
            )
        versions = (self._folder.text("/proc/fs/nfsd/versions") or "").split()
        if ports and "+4.2" not in versions:
            problems.append(
                Problem(
                    "version",
                    f"nfsd does not speak NFS 4.2 (found: {' '.join(versions)}); remove what "
                    "switches it off in /etc/nfs.conf and restart it",
                )
            )
        return problems


def _denials(path: str, who: Account, found: Mapping[str, Any]) -> list[Problem]:
    problems = [
        Problem(
            "parent",
            f"{parent} ({_mode(parent)}) is not traversable for {who.name}, as whom clients would "
            f"read {path}. Let others pass (chmod a+x {parent}), keep the checkpoint in a "
            "directory of its own, or name an account in nfs_share_account that may pass",
        )
        for parent in found["parents"]
    ]
    files = found["files"]
    if files:
        first = os.path.join(path, files[0])
        problems.append(
            Problem(
                "files",
                f"{_count(files, 'file')} of {path} cannot be read by {who.name}, as whom clients "
                f"would read, the first is {files[0]} ({_mode(first)}). Let everybody read "
                f"(chmod -R a+rX {path}){_or_owner(first)}",
            )
        )
    return problems


def _or_owner(path: str) -> str:
    """A remedy only where the owner is not root, as whom clients never read."""
    try:
        owner = os.stat(path).st_uid
        name = pwd.getpwuid(owner).pw_name
    except (OSError, KeyError):
        return ""
    return f", or set nfs_share_account to {name}, who owns it" if owner else ""


def _mode(path: str) -> str:
    try:
        status = os.stat(path)
    except OSError as error:
        return error.strerror or str(error)
    owner, group = str(status.st_uid), str(status.st_gid)
    try:
        owner = pwd.getpwuid(status.st_uid).pw_name
        group = grp.getgrgid(status.st_gid).gr_name
    except KeyError:
        pass
    return f"mode {status.st_mode & 0o7777:04o}, {owner}:{group}"


def _count(items: Sequence[Any], word: str) -> str:
    return f"{len(items)} {word}{'' if len(items) == 1 else 's'}"


def _is_address(text: str) -> bool:
    try:
        ipaddress.IPv4Address(text)
    except ValueError:
        return False
    return True
