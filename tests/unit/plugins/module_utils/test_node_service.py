"""Services of a node: tried before they replace anything, and left alone while a rank serves."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._node_service import (
    File,
    NodeService,
    ServiceError,
    Wish,
)

UNIT = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"
PROGRAM = "/usr/sbin/tool"


class Node:
    """A systemd that does what it is told, in memory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.active: set[str] = set()
        self.ranks = ""
        self.shown = "in force"
        self.rejects = ""
        self.broken = False
        self.done: list[str] = []
        self.tried: list[str] = []

    def __call__(self, argv: Sequence[str]) -> Command:
        if argv[0] == "tool":
            if argv[1] == "show":
                return Command(0, self.shown, "")
            self.tried.append(Path(argv[1]).read_text(encoding="utf-8"))
            return Command(1 if self.rejects else 0, "", self.rejects)
        if argv[0] == "journalctl":
            return Command(0, "it says why\n", "")
        verb, name = argv[1], argv[-1]
        if verb == "list-units":
            return Command(0, self.ranks, "")
        if verb == "show":
            known = (self.root / "etc/systemd/system" / name).exists()
            state = "active" if name in self.active else "inactive"
            load = "loaded" if known else "not-found"
            return Command(0, f"Id={name}\nLoadState={load}\nActiveState={state}\n", "")
        self.done.append(" ".join(argv[1:]))
        if self.broken and verb != "stop":
            return Command(1, "", "Job failed")
        (self.active.discard if verb == "stop" else self.active.add)(name)
        return Command(0, "", "")

    def service(self, text: str = "one", unit: str = UNIT) -> NodeService:
        wish = Wish(
            files={"/etc/sparkfleet/a.conf": File(text, 0o640)},
            units={"a.service": unit},
            running=["a.service"],
            programs={PROGRAM: "toolbox"},
            tests=[["tool", "{folder}/a.conf"]],
            probe=["tool", "show"],
            expected="in force",
            leavings=["/var/lib/sparkfleet/a"],
        )
        return NodeService("a", wish, self, str(self.root))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    place = tmp_path / PROGRAM.lstrip("/")
    place.parent.mkdir(parents=True)
    place.touch()
    return Node(tmp_path)


def present(
    node: Node, text: str = "one", *, check: bool = False, force: bool = False
) -> list[str]:
    return node.service(text).present(check=check, force=force).actions


def test_it_is_written_enabled_and_started_once(node: Node) -> None:
    assert present(node) == [
        "write /etc/sparkfleet/a.conf",
        "write /etc/systemd/system/a.service",
        "enable a.service",
        "systemctl start a.service",
    ]
    assert node.tried == ["one"]
    assert (node.root / "etc/sparkfleet/a.conf").stat().st_mode & 0o777 == 0o640
    link = node.root / "etc/systemd/system/multi-user.target.wants/a.service"
    assert str(link.readlink()) == "/etc/systemd/system/a.service"
    node.done.clear()
    assert present(node) == []
    assert node.done == []


def test_check_says_the_same_and_does_nothing(node: Node) -> None:
    told = present(node, check=True)
    assert not (node.root / "etc").exists()
    assert node.done == []
    assert present(node) == told


def test_a_changed_file_is_loaded_and_shown(node: Node) -> None:
    present(node)
    outcome = node.service("two").present(check=False, force=False)
    assert outcome.actions[-1] == "systemctl reload-or-restart a.service"
    assert (outcome.diff[0]["before"], outcome.diff[0]["after"]) == ("one", "two")


def test_what_does_not_pass_its_test_replaces_nothing(node: Node) -> None:
    present(node)
    node.rejects = "line 1: nonsense"
    with pytest.raises(ServiceError, match=r"does not pass tool: line 1: nonsense; nothing was"):
        present(node, "two")
    assert (node.root / "etc/sparkfleet/a.conf").read_text() == "one"


def test_what_somebody_flushed_is_loaded_again(node: Node) -> None:
    present(node)
    node.shown = "nothing"
    with pytest.raises(ServiceError, match="does not show 'in force'"):
        present(node)
    assert node.done[-1] == "reload-or-restart a.service"


def test_a_run_that_broke_off_before_loading_is_made_good(node: Node) -> None:
    present(node)
    node.broken = True
    with pytest.raises(ServiceError, match="Job failed: it says why"):
        present(node, "two")
    node.broken = False
    assert present(node, "two") == ["systemctl reload-or-restart a.service"]
    assert present(node, "two") == []


def test_a_missing_package_is_named(node: Node) -> None:
    (node.root / PROGRAM.lstrip("/")).unlink()
    outcome = node.service().present(check=True, force=False)
    assert outcome.packages == ["toolbox"]
    with pytest.raises(ServiceError, match="packages toolbox are missing"):
        present(node)


def test_neither_package_nor_changed_unit_while_a_rank_serves(node: Node) -> None:
    present(node)
    node.ranks = "sparkfleet-rank@sparks.service loaded active running\n"
    changed = node.service(unit=UNIT.replace("true", "false"))
    with pytest.raises(ServiceError, match=r"sparkfleet-rank@sparks\.service serves"):
        changed.present(check=True, force=False)
    assert changed.present(check=False, force=True).actions[1:] == [
        "systemctl daemon-reload",
        "systemctl restart a.service",
    ]
    assert present(node, "two", force=True)  # back to the first unit
    assert present(node, "three")[-1] == "systemctl reload-or-restart a.service"  # a file may


def test_absent_takes_everything_and_nothing_else(node: Node) -> None:
    present(node)
    (node.root / "etc/sparkfleet/other").touch()
    (node.root / "var/lib/sparkfleet/a").mkdir()
    (node.root / "var/lib/sparkfleet/a/left").touch()
    told = node.service().absent(check=True).actions
    assert (node.root / "etc/sparkfleet/a.conf").exists()
    assert node.service().absent(check=False).actions == told
    assert told[0] == "systemctl stop a.service"
    left = [path for path in node.root.rglob("*") if not path.is_dir()]
    assert {path.name for path in left} == {"other", "tool"}
    assert node.service().absent(check=False).actions == []


def test_a_unit_of_somebody_else_is_only_started(node: Node) -> None:
    wish = Wish(files={"/etc/sparkfleet/a.conf": File("one")}, running=["other.service"])
    service = NodeService("b", wish, node, str(node.root))
    assert service.present(check=False, force=False).actions[-1] == "systemctl start other.service"
    node.done.clear()
    wish = wish._replace(files={"/etc/sparkfleet/a.conf": File("two")})
    NodeService("b", wish, node, str(node.root)).present(check=False, force=False)
    NodeService("b", wish, node, str(node.root)).absent(check=False)
    assert node.done == []


def test_what_has_to_end_well_is_started_after_each_change_until_it_does(node: Node) -> None:
    def service(text: str) -> NodeService:
        files = {"/etc/sparkfleet/a.conf": File(text)}
        return NodeService("b", Wish(files=files, once=["b.service"]), node, str(node.root))

    assert service("one").present(check=False, force=False).actions[-1] == (
        "systemctl start b.service"
    )
    assert service("one").present(check=False, force=False).actions == []
    node.broken = True
    with pytest.raises(ServiceError, match=r"start b\.service: Job failed: it says why"):
        service("two").present(check=False, force=False)
    node.broken = False
    assert service("two").present(check=False, force=False).actions == ["systemctl start b.service"]
