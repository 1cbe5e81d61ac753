# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A client's end of a share, against a stand-in for systemd in a root of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _nfs_mount as mounting
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_host import (
    Outcome,
    ShareError,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_mount import (
    SERVICE,
    UNITS,
    Client,
)

WHERE = "/srv/spark/check-point"
UNIT = r"srv-spark-check\x2dpoint.mount"
OPTIONS = "rw,vers=4.2,rsize=262144,wsize=262144,hard,proto=tcp,nconnect=8,addr=10.20.0.11"
ROOT_MOUNT = "22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw"


def line(source: str, where: str = WHERE, fstype: str = "nfs4", options: str = OPTIONS) -> str:
    return f"99 22 0:55 / {where} ro,relatime shared:7 - {fstype} {source} {options}"


class Node:
    """Files are real; systemctl mounts by writing mountinfo."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("etc/systemd/system", "proc/self", "srv/spark"):
            (root / folder).mkdir(parents=True)
        self.lines = [ROOT_MOUNT]
        self.ran: list[str] = []
        self.serving = ""
        self.enabled = False
        self.refuses = ""
        self.kernel_options = OPTIONS
        self.params: dict[str, Any] = {
            "path": WHERE,
            "address": "10.20.0.11",
            "export": "/data/models",
            "port": 2049,
            "transport": "tcp",
            "hops": 1,
            "options": ["nconnect=8", "rsize=1048576"],
            "cell": "sparks",
            "local": None,
            "rank_units": ["sparkfleet-rank@*.service"],
            "force": False,
        }
        self.tell()

    def tell(self) -> None:
        (self.root / "proc/self/mountinfo").write_text("\n".join(self.lines) + "\n")

    def mounted(self) -> list[str]:
        return [mount.source for mount in self.client().mounts() if mount.path != "/"]

    def client(self, *, check: bool = False) -> Client:
        return Client(str(self.root), self.run, check=check)

    def reach(self, *, check: bool = False, **params: Any) -> Outcome:
        self.ran.clear()
        return self.client(check=check).present({**self.params, **params})

    def absent(self, *, check: bool = False, **params: Any) -> Outcome:
        self.ran.clear()
        return self.client(check=check).absent({**self.params, **params})

    def files(self) -> dict[str, str]:
        folder = self.root / UNITS[1:]
        return {path.name: path.read_text() for path in folder.iterdir()}

    def run(self, argv: Sequence[str]) -> Command:
        words = list(argv)
        self.ran.append(" ".join(words))
        verb = words[1]
        if verb == "show":
            state = "enabled" if self.enabled else "disabled"
            block = f"LoadState=loaded\nActiveState=active\nUnitFileState={state}\n"
            return Command(0, "\n".join([block] * 2), "")
        if verb == "list-units":
            return Command(0, self.serving, "")
        if words[0] == "journalctl":
            return Command(0, f"Mounting...\n{self.refuses}\nFailed with result\n", "")
        name = words[-1]
        if verb == "enable":
            self.enabled = True
        elif verb == "disable":
            self.enabled = False
        elif verb == "stop":
            where = self._setting(name, "Where")
            self.lines = [text for text in self.lines if text.split()[4] != where]
        elif verb == "start" and name.endswith(".mount"):
            if self.refuses:
                return Command(1, "", "Job failed. See journalctl")
            what, where = self._setting(name, "What"), self._setting(name, "Where")
            self.lines.append(line(what, where, options=self.kernel_options))
        elif words[0] == "umount":
            self.lines = [text for text in self.lines if text.split()[4] != name]
        self.tell()
        return Command(0, "", "")

    def _setting(self, name: str, key: str) -> str:
        text = self.files().get(name, f"{key}=nowhere")
        return next(row.split("=", 1)[1] for row in text.splitlines() if row.startswith(f"{key}="))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def codes(outcome: Outcome) -> list[str]:
    return [problem.code for problem in outcome.problems]


def told(outcome: Outcome) -> str:
    return "\n".join(problem.message for problem in outcome.problems)


def changing(node: Node) -> list[str]:
    return [words for words in node.ran if "show" not in words and "list-units" not in words]


def test_a_mount_and_again(node: Node) -> None:
    first = node.reach()
    assert codes(first) == []
    assert set(node.files()) == {UNIT, SERVICE}
    assert node.mounted() == ["10.20.0.11:/data/models"]
    assert node.enabled
    second = node.reach()
    assert (second.actions, second.diff, codes(second)) == ([], [], [])
    assert changing(node) == []


def test_the_units(node: Node) -> None:
    node.reach()
    lines = node.files()[UNIT].splitlines()
    assert "What=10.20.0.11:/data/models" in lines
    assert f"Where={WHERE}" in lines
    assert "Options=ro,hard,nfsvers=4.2,proto=tcp,nconnect=8,rsize=1048576,retry=1" in lines
    assert "DefaultDependencies=no" in lines, "logins wait for remote-fs.target"
    service = node.files()[SERVICE].splitlines()
    assert f'ExecStart=/usr/bin/systemctl start "{WHERE}"' in service
    assert "Restart=on-failure" in service
    assert "StartLimitIntervalSec=0" in service


def test_characters_that_mean_something_to_systemd(node: Node) -> None:
    wanted, problems = mounting.read_wanted(node.params | {"path": '/a b/100%/"$x\\'})
    assert problems == []
    assert wanted is not None
    mount, service = mounting.unit_texts(wanted, "sparks").values()
    assert 'Where=/a b/100%%/"$x\\' in mount
    assert 'start "/a b/100%%/\\"$$x\\\\"' in service


def test_check_mode_says_the_same_and_does_nothing(node: Node) -> None:
    outcome = node.reach(check=True)
    assert node.files() == {}
    assert changing(node) == []
    assert outcome.actions == node.reach().actions
    assert "mount 10.20.0.11:/data/models on /srv/spark/check-point" in outcome.actions


@pytest.mark.parametrize(
    ("change", "source", "words"),
    [
        (
            {"address": "10.20.1.11"},
            "10.20.1.11:/data/models",
            "it is 10.20.0.11:/data/models, expected 10.20.1.11:/data/models",
        ),
        ({"export": "/models"}, "10.20.0.11:/models", "expected 10.20.0.11:/models"),
        ({"options": ["nconnect=4"]}, "10.20.0.11:/data/models", f"write {UNITS}/{UNIT}"),
        ({"transport": "rdma"}, "10.20.0.11:/data/models", "it lacks proto=rdma"),
    ],
)
def test_a_change_is_a_new_mount_and_no_second_one(
    node: Node, change: dict[str, Any], source: str, words: str
) -> None:
    node.reach()
    outcome = node.reach(**change)
    assert words in outcome.actions if words.startswith("write") else words in str(outcome.actions)
    assert node.mounted() == [source]
    assert f"systemctl stop {UNIT}" in node.ran


@pytest.mark.parametrize("option", ["hard", "vers=4.2", "proto=tcp"])
def test_a_mount_that_somebody_changed(node: Node, option: str) -> None:
    node.reach()
    node.lines[1] = line("10.20.0.11:/data/models", options=OPTIONS.replace(option, "soft"))
    node.tell()
    assert f"it lacks {option}" in node.reach().actions
    assert node.reach().actions == []


def test_a_mount_that_is_gone_is_made_again(node: Node) -> None:
    node.reach()
    node.lines = [ROOT_MOUNT]
    node.tell()
    assert list(node.reach().actions) == [f"mount 10.20.0.11:/data/models on {WHERE}"]
    assert node.mounted() == ["10.20.0.11:/data/models"]


def test_another_place_takes_the_old_one_away(node: Node) -> None:
    node.reach()
    outcome = node.reach(path="/srv/spark/other")
    assert f"unmount {WHERE}" in outcome.actions
    assert set(node.files()) == {"srv-spark-other.mount", SERVICE}
    assert len(node.mounted()) == 1
    assert node.enabled


def test_nothing_is_changed_under_a_rank(node: Node) -> None:
    node.reach()
    node.serving = "sparkfleet-rank@sparks.service loaded active running Rank\n"
    assert codes(node.reach()) == []
    before = node.files()
    for outcome in (node.reach(address="10.20.1.11"), node.absent()):
        assert codes(outcome) == ["serving"]
        assert "sparkfleet-rank@sparks.service is serving" in told(outcome)
        assert changing(node) == []
    assert node.files() == before
    assert codes(node.reach(address="10.20.1.11", force=True)) == []
    assert node.mounted() == ["10.20.1.11:/data/models"]


def test_stacked_mounts(node: Node) -> None:
    node.lines += [line("10.20.0.11:/srv/models"), line("10.20.1.11:/srv/models")]
    node.tell()
    outcome = node.reach()
    assert codes(outcome) == ["stacked"]
    assert "10.20.0.11:/srv/models, 10.20.1.11:/srv/models" in told(outcome)
    assert f"umount {WHERE}" in told(outcome)
    assert changing(node) == []


def test_what_others_put_there(node: Node) -> None:
    node.lines.append(line("/dev/nvme1n1", fstype="xfs", options="rw"))
    node.tell()
    (node.root / "etc/fstab").write_text(
        f"# {WHERE}\nUUID=1 / ext4 defaults 0 1\n10.0.0.9:/x {WHERE} nfs ro 0 0\n"
    )
    outcome = node.reach()
    assert codes(outcome) == ["occupied", "fstab"]
    assert "/dev/nvme1n1 (xfs)" in told(outcome)
    assert "'10.0.0.9:/x /srv/spark/check-point nfs ro 0 0'" in told(outcome)


def test_a_link_is_no_mount_point(node: Node) -> None:
    (node.root / "data").mkdir()
    (node.root / "srv/spark").rmdir()
    (node.root / "srv/spark").symlink_to(node.root / "data")
    outcome = node.reach()
    assert codes(outcome) == ["link"]
    assert f"{node.root}/data/check-point" in told(outcome)


def test_files_that_a_mount_hides(node: Node) -> None:
    folder = node.root / WHERE[1:]
    folder.mkdir()
    (folder / "model.safetensors").write_text("x")
    (warning,) = node.reach(check=True).warnings
    assert "which the mount hides" in warning


def test_options_that_the_kernel_did_not_take(node: Node) -> None:
    (warning,) = node.reach().warnings
    assert warning == f"{WHERE}: asked for rsize=1048576, got rsize=262144"
    assert node.reach().actions == [], "and that is no reason to mount again and again"


def test_a_mount_that_is_refused_says_why(node: Node) -> None:
    node.refuses = "mount.nfs4: access denied by server while mounting 10.20.0.11:/data/models"
    with pytest.raises(ShareError, match="access denied by server while mounting"):
        node.reach()
    node.refuses = ""
    assert list(node.reach().actions) == [f"mount 10.20.0.11:/data/models on {WHERE}"]


@pytest.mark.parametrize(
    ("params", "code", "words"),
    [
        ({"transport": "rdma", "hops": 2}, "rdma-hops", "10.20.0.11 is 2 hops away"),
        ({"path": "models"}, "path", "'models'"),
        ({"path": "/"}, "path", "mount point is /"),
        ({"export": "models"}, "path", "'models'"),
        ({"path": "/a\nb"}, "path", "no absolute path"),
        ({"address": "spark1"}, "address", "'spark1'"),
        ({"options": ["soft"]}, "option", "always mounted ro,hard"),
        ({"options": ["rw"]}, "option", "'rw'"),
        ({"options": ["nfsvers=3"]}, "option", "'nfsvers=3'"),
        ({"options": ["nconnect=8,rw"]}, "option", "no mount option"),
    ],
)
def test_a_wish_that_cannot_be(node: Node, params: dict[str, Any], code: str, words: str) -> None:
    outcome = node.reach(**params)
    assert code in codes(outcome)
    assert words in told(outcome)
    assert (node.files(), node.ran) == ({}, [])


# --- taking it back ---


def test_only_what_is_ours_is_taken_back(node: Node) -> None:
    node.reach()
    theirs = node.root / UNITS[1:] / "srv-x.mount"
    theirs.write_text("[Mount]\nWhat=10.0.0.9:/x\nWhere=/srv/x\n")
    node.lines.append(line("10.0.0.9:/x", "/srv/x"))
    node.tell()
    assert len(node.absent(check=True).actions) == 4
    assert len(node.files()) == 3
    node.absent()
    assert set(node.files()) == {"srv-x.mount"}
    assert node.mounted() == ["10.0.0.9:/x"]
    assert not node.enabled
    assert node.absent().actions == []


def test_a_mount_that_systemd_cannot_stop_is_detached(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server is gone: systemctl stop has no answer in time."""
    node.reach()
    whole = node.run

    def run(argv: Sequence[str]) -> Command:
        if list(argv)[:2] == ["systemctl", "stop"]:
            return Command(None, "", "systemctl did not answer within 1 s")
        return whole(argv)

    monkeypatch.setattr(node, "run", run)
    node.absent()
    assert f"umount -i -l {WHERE}" in node.ran
    assert node.mounted() == []


@pytest.mark.parametrize("verb", ["reach", "absent"])
def test_a_leftover_mount_where_a_local_copy_belongs(node: Node, verb: str) -> None:
    node.lines.append(line("10.0.0.9:/x", "/srv/local"))
    node.tell()
    outcome = getattr(node, verb)(local="/srv/local/models")
    assert codes(outcome) == ["not-local"]
    assert "10.0.0.9:/x (nfs4) on /srv/local" in told(outcome)


def test_our_own_leftover_goes_by_itself(node: Node) -> None:
    node.reach()
    assert codes(node.absent(local=WHERE)) == []
    assert node.mounted() == []


def test_our_own_leftover_moves_by_itself(node: Node) -> None:
    """From mode nfs to both: the place of the local copy is free afterwards."""
    node.reach()
    assert codes(node.reach(path=f"{WHERE}-shared", local=WHERE)) == []
    assert node.mounted() == ["10.20.0.11:/data/models"]


def test_mountinfo_as_the_kernel_writes_it() -> None:
    text = (
        "22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
        r"40 22 0:33 / /srv/a\040b ro,relatime shared:2 master:1 - nfs4 10.0.0.1:/x\040y ro,hard"
        "\n41 22 0:34 / /none rw - tmpfs  rw\n"
        "torn line\n"
    )
    root, nfs, *_rest = mounting.parse_mountinfo(text)
    assert (root.path, root.nfs) == ("/", False)
    assert (nfs.path, nfs.source, nfs.nfs) == ("/srv/a b", "10.0.0.1:/x y", True)
    assert {"ro", "hard", "relatime"} <= nfs.options
    assert mounting.mount_of([root, nfs], "/srv/a b/c") == nfs
    assert mounting.mount_of([root, nfs], "/srv/a bc") == root
