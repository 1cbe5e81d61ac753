# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The head's end of a share, against a stand-in for exportfs and systemd in a root of its own."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _nfs_exports as exports
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _nfs_server as server
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import NOT_FOUND, Command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_host import (
    Outcome,
    ShareError,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_server import (
    SERVER,
    Server,
)

CLIENTS = ["10.20.0.12", "10.20.2.13"]
ROOT = os.geteuid() == 0


class Head:
    """A node: its files are real, its exportfs and systemctl are not.

    Args:
        refused: words that make the stand-in's exportfs complain about a line, and leave it out.
        lying: what it leaves out without a word when it is not a trial.
    """

    def __init__(self, path: Path) -> None:
        self.root = path / "root"
        for folder in ("etc/exports.d", "run", "proc/fs/nfsd", "proc/self"):
            (self.root / folder).mkdir(parents=True)
        self.checkpoint = path / "checkpoint"
        self.checkpoint.mkdir()
        for parent in (self.checkpoint, path, *list(path.parents)[:3]):
            if parent.stat().st_uid == os.getuid() and parent != Path("/tmp"):
                parent.chmod(0o755)
        (self.checkpoint / "config.json").write_text("{}")
        (self.checkpoint / "config.json").chmod(0o644)
        self.ran: list[str] = []
        self.refused = "10.20.0.300"
        self.lying = ""
        self.installed = True
        self.active = False
        self.enabled = False
        self.table: list[exports.Export] = []
        self.params: dict[str, Any] = {
            "path": str(self.checkpoint),
            "clients": CLIENTS,
            "account": "nobody" if ROOT else str(os.getuid()),
            "adopt": False,
            "rdma": False,
            "port": 2049,
            "missing_ok": False,
        }

    @property
    def own(self) -> str | None:
        path = self.root / exports.OWN[1:]
        return path.read_text() if path.exists() else None

    def write(self, path: str, text: str) -> None:
        (self.root / path.lstrip("/")).write_text(text)

    def start(self) -> None:
        self.active = True
        ports = "tcp 2049\n"
        if (self.root / server.SETTINGS[1:]).exists():
            ports = f"rdma 20049\n{ports}"
        self.write("/proc/fs/nfsd/portlist", ports)
        self.write("/proc/fs/nfsd/versions", "-3 +4 +4.1 +4.2\n")

    def reach(self, *, check: bool = False, **params: Any) -> Outcome:
        self.ran.clear()
        node = Server(str(self.root), self.run, check=check, deadline=20)
        return node.present({**self.params, **params})

    def absent(self, *, check: bool = False) -> Outcome:
        self.ran.clear()
        return Server(str(self.root), self.run, check=check).absent()

    # --- stand-ins ---

    def run(self, argv: Sequence[str]) -> Command:
        words = list(argv)
        self.ran.append(" ".join(words[:2]))
        if words[0] == "unshare":
            found, said = self._read(Path(words[-1]) / "exports.d", "")
            return Command(0, f"rc {bool(said):d}\n{self._listing(found)}", said)
        if words[0] == "exportfs":
            if not self.installed:
                return Command(NOT_FOUND, "", "exportfs: command not found")
            if words[1] == "-v":
                return Command(0, self._listing(self.table), "")
            self.table, said = self._read(self.root / "etc/exports.d", self.lying)
            return Command(1 if said else 0, "", said)
        if words[:2] == ["systemctl", "show"]:
            active = "active" if self.active else "inactive"
            enabled = "enabled" if self.enabled else "disabled"
            text = f"LoadState=loaded\nActiveState={active}\nUnitFileState={enabled}\n"
            return Command(0, text, "")
        if words == ["systemctl", "enable", SERVER]:
            self.enabled = True
        elif words == ["systemctl", "start", SERVER]:
            self.start()
        else:
            raise AssertionError(words)
        return Command(0, "", "")

    def _read(self, folder: Path, lying: str) -> tuple[list[exports.Export], str]:
        files = [self.root / "etc/exports", *sorted(folder.glob("*.exports"))]
        found, said = [], ""
        for path in files:
            for entry in exports.parse_exports(path.read_text() if path.exists() else "", "x"):
                if self.refused in entry.line:
                    said = f"exportfs: Failed to resolve {self.refused}\n"
                elif not (lying and lying in entry.line):
                    found.append(entry)
        return found, said

    @staticmethod
    def _listing(table: Sequence[exports.Export]) -> str:
        return "".join(
            f"{e.path}\n\t\t{e.client.replace('*', '<world>')}(sync,{','.join(e.options)})\n"
            for e in table
        )


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


def codes(outcome: Outcome) -> list[str]:
    return [problem.code for problem in outcome.problems]


def told(outcome: Outcome) -> str:
    return "\n".join(problem.message for problem in outcome.problems)


def test_a_share_and_again(head: Head) -> None:
    first = head.reach()
    assert codes(first) == []
    assert list(first.actions) == [
        f"write {exports.OWN}",
        "exportfs -ra",
        f"systemctl enable {SERVER}",
        f"systemctl start {SERVER}",
    ]
    assert head.own
    assert [e.client for e in head.table] == CLIENTS
    assert first.values["paths"] == dict.fromkeys(CLIENTS, str(head.checkpoint))
    assert list(first.values["files"]) == ["config.json"]
    second = head.reach()
    assert (second.actions, second.diff, codes(second)) == ([], [], [])
    assert head.ran == ["exportfs -v", "systemctl show"], "a second run only looks"


def test_check_mode_says_the_same_and_does_nothing(head: Head) -> None:
    outcome = head.reach(check=True)
    assert outcome.actions == head.reach(check=True).actions
    assert head.own is None
    assert head.table == []
    assert not head.active
    assert [entry["after_header"] for entry in outcome.diff] == [exports.OWN]
    assert outcome.actions == head.reach().actions


def test_check_mode_where_nothing_is_there_yet(head: Head) -> None:
    head.installed = False
    there: dict[str, Any] = {"path": str(head.checkpoint / "later"), "missing_ok": True}
    outcome = head.reach(check=True, **there)
    assert codes(outcome) == []
    assert f"write {exports.OWN}" in outcome.actions
    assert codes(head.reach(check=True, **(there | {"missing_ok": False}))) == ["no-directory"]
    assert codes(head.reach(**there)) == ["no-directory"], "only check mode may do without"
    with pytest.raises(ShareError, match="nfs-kernel-server"):
        head.reach()


def test_a_table_that_lost_our_line_is_renewed(head: Head) -> None:
    head.reach()
    head.table.clear()
    assert list(head.reach().actions) == ["exportfs -ra"]
    assert [e.client for e in head.table] == CLIENTS


def test_an_address_that_is_none_never_reaches_exportfs(head: Head) -> None:
    outcome = head.reach(clients=["10.20.0.300", "spark2"])
    assert codes(outcome) == ["client", "client"]
    assert head.ran == []
    assert codes(head.reach(clients=[])) == ["client"]


def test_what_exportfs_does_not_take_is_refused_before_it_is_written(head: Head) -> None:
    head.reach()
    before, table = head.own, list(head.table)
    head.refused = "10.20.4.14"
    outcome = head.reach(clients=[*CLIENTS, "10.20.4.14"])
    assert codes(outcome) == ["refused"]
    assert "is not exported to 10.20.4.14" in told(outcome)
    assert "exportfs says: exportfs: Failed to resolve 10.20.4.14" in told(outcome)
    assert (head.own, head.table) == (before, table)
    assert "exportfs -ra" not in head.ran


def test_exports_of_others_that_would_be_lost_are_a_reason_to_refuse(head: Head) -> None:
    """Somebody broke his file after it was exported: -ra would take his clients away."""
    head.write("/etc/exports", "/home 10.0.0.1(rw,broken)\n")
    head.table = exports.parse_exports("/home 10.0.0.1(rw)", "x")
    head.refused = "broken"
    outcome = head.reach()
    assert codes(outcome) == ["refused"]
    assert "/home would no longer be exported to 10.0.0.1" in told(outcome)
    assert head.own is None


def test_the_old_file_returns_when_the_table_is_not_as_tried(head: Head) -> None:
    head.reach()
    before = head.own
    head.lying = "10.20.4.14"
    with pytest.raises(ShareError, match=r"not exported to 10\.20\.4\.14.*as it was"):
        head.reach(clients=[*CLIENTS, "10.20.4.14"])
    assert head.own == before
    assert [e.client for e in head.table] == CLIENTS


def test_lines_of_others_for_our_clients(head: Head) -> None:
    line = f"{head.checkpoint} {CLIENTS[0]}(ro,all_squash)\n"
    head.write("/etc/exports.d/theirs.exports", line)
    outcome = head.reach()
    assert codes(outcome) == ["duplicate"]
    assert "/etc/exports.d/theirs.exports:1" in told(outcome)
    adopted = head.reach(adopt=True)
    assert codes(adopted) == []
    assert any("stands for ours" in text for text in adopted.warnings)
    assert head.own is not None
    assert CLIENTS[0] not in head.own
    assert CLIENTS[1] in head.own
    assert head.reach(adopt=True).actions == []


def test_a_writable_line_is_never_adopted(head: Head) -> None:
    head.write("/etc/exports", f"{head.checkpoint} {CLIENTS[0]}(rw,no_root_squash)\n")
    outcome = head.reach(adopt=True)
    assert codes(outcome) == ["duplicate", "duplicate"]
    assert "writable" in told(outcome)
    assert head.own is None


def test_a_pseudo_root_of_others_changes_what_clients_mount(head: Head) -> None:
    head.write("/etc/exports", f"{head.checkpoint.parent} {CLIENTS[0]}(ro,fsid=0)\n")
    paths = head.reach().values["paths"]
    assert paths == {CLIENTS[0]: "/checkpoint", CLIENTS[1]: str(head.checkpoint)}
    head.write("/etc/exports", f"/data {CLIENTS[0]}(ro,fsid=0)\n")
    assert codes(head.reach()) == ["pseudo-root"]


def test_several_problems_at_once(head: Head) -> None:
    head.write("/etc/exports", f"{head.checkpoint} {CLIENTS[0]} (ro)\n")
    assert codes(head.reach(account="no-such-account")) == ["account", "world", "duplicate"]


@pytest.mark.parametrize("name", ["root", "0"])
def test_clients_are_never_root(head: Head, name: str) -> None:
    assert codes(head.reach(account=name)) == ["account"]


# --- who may read ---


@pytest.mark.skipif(not ROOT, reason="only root can try as somebody else")
def test_files_and_parents_that_the_account_cannot_read(head: Head) -> None:
    """A home of 0750 with files of 0600: listed by root, unreadable for clients."""
    (head.checkpoint / "config.json").chmod(0o600)
    outcome = head.reach()
    assert codes(outcome) == ["files"]
    assert "1 file of" in told(outcome)
    assert "config.json (mode 0600, root:root)" in told(outcome)
    assert f"chmod -R a+rX {head.checkpoint})." not in told(outcome)
    assert "nfs_share_account" not in told(outcome), "root is no remedy"
    daemon = pwd.getpwnam("daemon")
    os.chown(head.checkpoint / "config.json", daemon.pw_uid, daemon.pw_gid)
    assert "set nfs_share_account to daemon" in told(head.reach())
    assert codes(head.reach(account="daemon")) == []
    assert head.own is not None
    assert f"anonuid={daemon.pw_uid}" in head.own
    head.checkpoint.chmod(0o750)
    outcome = head.reach(account="daemon")
    assert codes(outcome) == ["parent"]
    assert f"{head.checkpoint} (mode 0750, root:root) is not traversable for daemon" in told(
        outcome
    )


@pytest.mark.skipif(ROOT, reason="root reads everything")
def test_files_that_nobody_can_read(head: Head) -> None:
    (head.checkpoint / "config.json").chmod(0)
    assert codes(head.reach()) == ["files"]


def test_links_out_of_the_directory(head: Head, tmp_path: Path) -> None:
    """As in a cache of huggingface_hub: clients would find them dangling."""
    blobs = tmp_path / "blobs"
    blobs.mkdir(mode=0o755)
    (blobs / "abc").write_text("x")
    (head.checkpoint / "model.safetensors").symlink_to("../blobs/abc")
    (head.checkpoint / "inside").symlink_to("config.json")
    outcome = head.reach()
    assert codes(outcome) == ["links-leave"]
    assert f"1 file of {head.checkpoint} are links" in told(outcome)
    assert f"really needed: {blobs}" in told(outcome)


def test_a_directory_that_is_a_link_is_shared_by_its_own_name(head: Head, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(head.checkpoint)
    paths = head.reach(path=str(tmp_path / "link")).values["paths"]
    assert paths[CLIENTS[0]] == str(head.checkpoint)


def test_nfs_is_not_shared_again(head: Head) -> None:
    line = f"9 1 0:5 / {head.checkpoint} ro - nfs4 10.0.0.9:/x ro,hard\n"
    head.write("/proc/self/mountinfo", line)
    assert codes(head.reach()) == ["on-nfs"]


# --- the server ---


def test_a_server_in_a_container(head: Head) -> None:
    head.write("/proc/fs/nfsd/portlist", "tcp 2049\n")
    outcome = head.reach()
    assert codes(outcome) == ["foreign-server"]
    assert head.own is None


@pytest.mark.parametrize(
    ("ports", "versions", "params", "code"),
    [
        ("tcp 2049\n", "-3 +4 +4.1 +4.2", {}, None),  # without rpcbind and version 3
        ("tcp 2049\n", "+3 +4 +4.1 -4.2", {}, "version"),
        ("tcp 2050\n", "+4 +4.1 +4.2", {}, "port"),
        ("tcp 2050\n", "+4 +4.1 +4.2", {"port": 2050}, None),
        ("", "", {}, "port"),
    ],
)
def test_what_the_server_offers(
    head: Head, ports: str, versions: str, params: Mapping[str, Any], code: str | None
) -> None:
    head.reach()
    head.write("/proc/fs/nfsd/portlist", ports)
    head.write("/proc/fs/nfsd/versions", versions)
    for check in (True, False):
        assert codes(head.reach(check=check, **params)) == ([code] if code else [])


def test_rdma_now_and_after_the_next_start(head: Head) -> None:
    head.reach()
    listener = head.root / "proc/fs/nfsd/portlist"
    outcome = head.reach(check=True, rdma=True)
    assert list(outcome.actions) == [f"write {server.SETTINGS}", "listen on rdma 20049"]
    assert codes(outcome) == []
    # The stand-in's file forgets what it listened on; the kernel's does not.
    assert codes(head.reach(rdma=True)) == ["port"]
    assert listener.read_text() == "rdma 20049\n"
    assert "systemctl restart" not in head.ran
    head.start()
    assert head.reach(rdma=True).actions == []
    head.write("/proc/fs/nfsd/portlist", "tcp 2049\n")  # after a restart without the setting
    assert list(head.reach(check=True, rdma=True).actions) == ["listen on rdma 20049"]
    assert list(head.reach().actions) == [f"remove {server.SETTINGS}"]


def test_only_what_is_ours_is_taken_back(head: Head) -> None:
    head.write("/etc/exports", "/home 10.0.0.1(rw)\n")
    head.reach(rdma=True)
    assert head.absent(check=True).actions == [
        f"remove {exports.OWN}",
        f"remove {server.SETTINGS}",
        "exportfs -ra",
    ]
    assert head.own is not None
    head.absent()
    assert head.own is None
    assert [(e.path, e.client) for e in head.table] == [("/home", "10.0.0.1")]
    assert head.active, "it may serve others"
    assert head.absent().actions == []
