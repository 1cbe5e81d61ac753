# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The watch of a head, with false nodes behind it, and what it has on a node."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import (
    _cell_lock,
    _rank,
    _recovery_install,
    _recovery_node,
    _recovery_watch,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command

from tests.unit import ranks
from tests.unit.plugins.module_utils.test_recovery import DIED, FRESH, LINK, RANK, SILENT, STOPPED

HOSTS = ["spark1", "spark2", "spark3"]
LIMITS = {
    "attempts": 2,
    "window": 600,
    "cooldown": 900,
    "ready_timeout": 1200,
    "canary_failures": 3,
    "start_at_boot": True,
}


class Node:
    """A head whose engine, ranks and clock a test decides about."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.clock = 1_000_000.0
        self.canary: dict[str, Any] = {**SILENT, "counter": None}
        self.ranks: dict[str, Any] = {host: dict(RANK) for host in HOSTS}
        self.ranks["spark1"]["ready"] = True
        self.asked: list[tuple[str, str]] = []
        self.said: list[str] = []
        self.automatic = True
        self.refuses: dict[tuple[str, str], str] = {}
        monkeypatch.setattr(_recovery_node, "ask", lambda *_what: self.canary)
        monkeypatch.setattr(
            _recovery_node,
            "evidence",
            lambda *_what, canary=None, **_more: {**self.ranks["spark1"], "canary": canary},
        )
        for verb in ("stop", "start"):
            monkeypatch.setattr(
                _recovery_node, verb, lambda *_what, verb=verb: self.act("spark1", verb)
            )

    def act(self, host: str, verb: str) -> str:
        self.asked.append((host, verb))
        return self.refuses.get((host, verb), "")

    def run(self, argv: Sequence[str], timeout: float) -> Command:
        *_options, where, verb = argv
        host = f"spark{where.rpartition('.')[2]}"
        if host not in self.ranks or where.startswith("root@10.9"):
            return Command(255, "", "ssh: connect to host: No route to host")
        if verb == "evidence":
            return Command(0, json.dumps(self.ranks[host]), "")
        return Command(0, self.act(host, verb) + "\n", "")

    def look(self) -> dict[str, Any]:
        settings = {
            "cell": "sparks",
            "automatic": self.automatic,
            "hosts": [
                {"name": f"spark{n}", "addresses": [f"10.9.0.{n}", f"10.20.0.{n}"]}
                for n in (1, 2, 3)
            ],
            "model": "m",
            "engine_port": 1,
            "canary_timeout": 1,
            "disk_least": 0,
            "fatals": [],
            "limits": LIMITS,
            "start_seconds": 5,
        }
        self.clock += 30
        watch = _recovery_watch.Watch(
            settings, self.run, self.said.append, str(self.root), lambda: self.clock
        )
        return watch.look()

    def serves(self) -> None:
        self.canary = {"answered": True, "seconds": 0.2, "detail": "answered", "counter": None}

    def read(self, name: str) -> Any:
        return json.loads((self.root / f"var/lib/sparkfleet/recovery/{name}.json").read_text())


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    return Node(tmp_path, monkeypatch)


ORDER = [
    ("spark1", "stop"),
    ("spark2", "stop"),
    ("spark3", "stop"),
    ("spark2", "start"),
    ("spark3", "start"),
    ("spark1", "start"),
]


def ordered(asked: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Workers are asked at once; their order means nothing."""
    return [asked[0], *sorted(asked[1:3]), *sorted(asked[3:5]), *asked[5:]]


def test_a_dead_cell_is_started_again_in_order_and_counted(node: Node) -> None:
    node.ranks["spark2"].update(DIED)
    state = node.look()
    assert ordered(node.asked) == ORDER
    assert (state["state"], state["restarts"]) == ("waiting", 1)
    assert [one["who"] for one in node.read("sparks")["attempts"]] == ["the watch"]
    assert node.read("sparks")["pending"] is None
    node.serves()
    assert node.look()["state"] == "serving"
    assert len(node.asked) == 6


def test_a_fault_that_stays_ends_at_the_bound(node: Node) -> None:
    node.ranks["spark2"].update(DIED)
    for _time in range(20):
        state = node.look()
    assert len(node.asked) == 2 * 6
    assert (state["state"], state["restarts"]) == ("blocked", 2)
    assert "which is the bound" in state["reasons"][0]
    assert sum("starting the cell again" in line for line in node.said) == 2


def test_without_leave_it_only_marks(node: Node) -> None:
    node.automatic = False
    node.ranks["spark1"].update(DIED, ready=False)
    state = node.look()
    assert (state["state"], state["action"]) == ("dead", "restart")
    assert node.asked == []
    assert node.read("sparks-state")["state"] == "dead"


def test_an_engine_that_is_silent_is_wedged_after_some_looks(node: Node) -> None:
    assert [node.look()["state"] for _time in range(3)] == ["waiting", "waiting", "waiting"]
    assert ordered(node.asked) == ORDER  # the third look restarts and says so


def test_an_engine_that_is_late_and_at_work_is_not_wedged(node: Node) -> None:
    for count in range(9):
        node.canary = {**SILENT, "counter": float(count)}
        assert node.look()["failures"] == 1
    for _time in range(2):
        node.look()
    assert ordered(node.asked) == ORDER  # its counters stand still at last


def test_a_cause_is_refused_until_it_is_gone(node: Node) -> None:
    node.ranks["spark2"].update(DIED, causes=[LINK])
    for _time in range(5):
        assert node.look()["state"] == "blocked"
    assert node.asked == []
    node.ranks["spark2"]["causes"] = []
    node.look()
    assert ordered(node.asked) == ORDER


def test_nobody_is_disturbed_who_works_on_the_cell(node: Node) -> None:
    node.ranks["spark2"].update(DIED)
    path = _cell_lock.file_of("sparks", str(node.root))
    ann = _cell_lock.Holder("ann@desk", "site.yml", 100, 7, since=0.0)  # her clock is another one
    _cell_lock.change(path, lambda _found: ann)
    os.utime(path, (node.clock, node.clock))
    state = node.look()
    assert (state["state"], state["action"]) == ("dead", "wait")
    assert state["reasons"][0] == "ann@desk works on it: site.yml"
    assert node.asked == []
    _cell_lock.change(path, lambda _found: None)
    assert node.look()["state"] == "waiting"
    assert ordered(node.asked) == ORDER


def test_a_run_that_broke_off_does_not_keep_the_watch_away_for_ever(node: Node) -> None:
    node.ranks["spark2"].update(DIED)
    path = _cell_lock.file_of("sparks", str(node.root))
    _cell_lock.change(path, lambda _found: _cell_lock.Holder("ann@desk", "site.yml", 1, 7, 0.0))
    os.utime(path, (node.clock, node.clock))
    node.clock += LIMITS["ready_timeout"] - 60
    node.look()
    assert node.asked == []
    node.look()
    assert ordered(node.asked) == ORDER


def test_a_node_that_does_not_come_back_is_waited_for(node: Node) -> None:
    for host in HOSTS:
        node.ranks[host].update(FRESH)
    gone = node.ranks.pop("spark3")
    for _time in range(5):
        state = node.look()
    assert [line for line in node.said if "10.20.0.3" in line] == [
        "spark3 at 10.20.0.3: ssh: connect to host: No route to host"
    ]
    assert (state["state"], state["reasons"][0]) == ("waiting", "spark3 cannot be reached")
    assert node.asked == []
    assert not (node.root / "var/lib/sparkfleet/recovery/sparks.json").exists()
    node.ranks["spark3"] = gone
    node.look()
    assert ordered(node.asked) == ORDER


def test_a_cell_stopped_by_hand_stays_so_also_after_a_reboot(node: Node) -> None:
    for host in HOSTS:
        node.ranks[host].update(STOPPED)
    assert node.look()["state"] == "stopped"
    for host in HOSTS:
        node.ranks[host].update(FRESH)
    assert node.look()["state"] == "stopped"
    assert node.asked == []


def test_a_restart_that_fails_half_way_goes_no_further(node: Node) -> None:
    node.ranks["spark3"].update(DIED)
    node.refuses["spark2", "start"] = "docker create: no space left on device"
    node.look()
    assert ("spark1", "start") not in node.asked
    assert "start: spark2: docker create: no space left on device" in node.said


def test_without_a_record_nothing_is_restarted(node: Node) -> None:
    node.ranks["spark2"].update(DIED)
    folder = node.root / "var/lib/sparkfleet"
    folder.mkdir(parents=True)
    (folder / "recovery").write_text("no directory")
    node.look()
    assert node.asked == []
    assert any("cannot be written" in line for line in node.said)


def test_a_state_that_stays_is_written_once_a_minute(node: Node) -> None:
    node.serves()
    checked = set()
    for _time in range(10):
        node.look()
        checked.add(node.read("sparks-state")["checked"])
    assert len(checked) == 5


def test_the_key_of_the_head_can_do_three_things(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    done: list[str] = []

    def stop(*_what: Any) -> str:
        done.append("stop")
        return ""

    monkeypatch.setattr(_recovery_node, "stop", stop)
    monkeypatch.setattr(_recovery_node, "evidence", lambda *_what, **_more: {"installed": True})
    for verb in ("", "sh -c id", "stop; id", "restart"):
        assert _recovery_watch.obey("sparks", verb, lambda *_what: None, said.append) == 2
    assert all(line.startswith("refused: ") for line in said)
    assert done == []
    assert _recovery_watch.obey("sparks", "stop", lambda *_what: None, said.append) == 0
    assert done == ["stop"]


def test_the_key_is_used_only_towards_who_is_known() -> None:
    words = " ".join(_recovery_watch.ssh_command("10.20.0.2", "stop"))
    assert words.endswith("root@10.20.0.2 stop")
    for option in ("StrictHostKeyChecking=yes", "BatchMode=yes", "IdentitiesOnly=yes", "-F none"):
        assert option in words


# --- on a node ------------------------------------------------------------------------------------


def test_the_program_runs_without_ansible(tmp_path: Path) -> None:
    packed = _recovery_install.program()
    assert packed == _recovery_install.program()
    path = tmp_path / "recovery.pyz"
    path.write_bytes(packed)
    done = subprocess.run(
        [sys.executable, "-I", "-S", str(path), "look", "no-such-cell"],
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 78, done.stderr
    assert "no-such-cell.json cannot be read" in done.stderr
    asked = subprocess.run(
        [sys.executable, "-I", "-S", str(path), "rank", "sparks"],
        capture_output=True,
        check=False,
        text=True,
        env={"SSH_ORIGINAL_COMMAND": "sh"},
    )
    assert (asked.returncode, asked.stdout) == (
        2,
        "refused: 'sh' is none of evidence, stop, start\n",
    )


class Systemd:
    """Keeps which units are enabled and active below a root."""

    def __init__(self, root: Path, *, at_work: bool = False) -> None:
        self.root = root
        self.at_work = at_work
        self.stale = False
        self.did: list[str] = []
        self.active: set[str] = set()

    def __call__(self, argv: Sequence[str]) -> Command:
        words = [word for word in argv[1:] if not word.startswith("-")]
        verb, name = words[0], words[-1]
        if verb == "show" and "timer" in name:
            return Command(0, f"NeedDaemonReload={'yes' if self.stale else 'no'}\n", "")
        if verb == "show":
            state = "active" if self.at_work else "inactive"
            return Command(0, f"LoadState=loaded\nActiveState={state}\n", "")
        if verb == "is-active":
            return Command(0 if name in self.active else 3, "", "")
        self.did.append(" ".join(argv[1:]))
        target = "timers.target" if "timer" in name else "multi-user.target"
        link = self.root / f"etc/systemd/system/{target}.wants/{name}"
        if verb == "enable":
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to("/nowhere")
        if verb == "disable":
            link.unlink(missing_ok=True)
            self.active.discard(name)
        if verb == "start":
            self.active.add(name)
        return Command(0, "", "")


def test_the_watch_is_installed_once_changed_and_removed(tmp_path: Path) -> None:
    systemd = Systemd(tmp_path)
    watch = _recovery_install.Installation("sparks", systemd, str(tmp_path))
    given: dict[str, Any] = {"interval": 30, "at_boot": True}
    foreseen, _diff, _note = watch.present({"cell": "sparks"}, really=False, **given)
    assert list(tmp_path.iterdir()) == []
    actions, diff, _note = watch.present({"cell": "sparks"}, really=True, **given)
    assert actions == foreseen
    assert len(actions) == 7
    assert {one["after_header"].rpartition("/")[2] for one in diff} == {
        "sparks.json",
        "sparkfleet-watch@sparks.service",
        "sparkfleet-watch@sparks.timer",
    }
    assert watch.present({"cell": "sparks"}, really=True, **given) == ([], [], "")
    mode = (tmp_path / "etc/sparkfleet/recovery/sparks.json").stat().st_mode
    assert mode & 0o777 == 0o600
    # Where the watch starts the ranks, they do not start by themselves.
    actions, _diff, _note = watch.present(
        {"cell": "sparks", "more": 1}, interval=30, at_boot=False, really=True
    )
    assert actions == [
        "write /etc/sparkfleet/recovery/sparks.json",
        "disable sparkfleet-rank@sparks.service",
    ]
    assert watch.absent(really=False) == watch.absent(really=True)
    assert watch.absent(really=True) == []
    assert not list(tmp_path.rglob("*watch*"))


def test_systemd_is_not_made_to_reload_while_a_rank_is_at_work(tmp_path: Path) -> None:
    """E03."""
    systemd = Systemd(tmp_path, at_work=True)
    watch = _recovery_install.Installation("sparks", systemd, str(tmp_path))
    _actions, _diff, note = watch.present({}, interval=30, at_boot=True, really=True)
    assert note == ""  # what systemd has not seen yet it reads when it is asked to start it
    systemd.stale = True
    _actions, _diff, note = watch.present({}, interval=60, at_boot=True, really=True)
    assert "next start" in note
    assert not any("daemon-reload" in line for line in systemd.did)
    assert watch.present({}, interval=60, at_boot=True, really=True) == ([], [], "")
    assert all("--root=/" in line for line in systemd.did if "able" in line)
    systemd.at_work = False
    _actions, _diff, note = watch.present({}, interval=90, at_boot=True, really=True)
    assert note == ""
    assert "daemon-reload" in systemd.did


@pytest.mark.parametrize(
    ("path", "text", "keyed"),
    [
        ("etc/sparkfleet/recovery/ssh/id_ed25519", "key", True),
        ("etc/ssh/sshd_config.d/20-sparkfleet-recovery-sparks.conf", "Match", True),
        (
            "root/.ssh/authorized_keys",
            "ssh-rsa A me\nssh-ed25519 B sparkfleet-recovery@sparks\n",
            True,
        ),
        ("root/.ssh/authorized_keys", "ssh-ed25519 B sparkfleet-recovery@others\n", False),
    ],
)
def test_a_key_that_is_left_is_seen(tmp_path: Path, path: str, text: str, *, keyed: bool) -> None:
    place = tmp_path / path
    place.parent.mkdir(parents=True)
    place.write_text(text)
    watch = _recovery_install.Installation("sparks", Systemd(tmp_path), str(tmp_path))
    assert watch.keyed() is keyed


def test_a_worker_has_no_timer(tmp_path: Path) -> None:
    watch = _recovery_install.Installation("sparks", Systemd(tmp_path), str(tmp_path))
    actions, _diff, _note = watch.present({}, interval=0, at_boot=False, really=True)
    assert [action for action in actions if "watch" in action] == []


# --- what a node tells ----------------------------------------------------------------------------


class Rank:
    """A node with the rank of `tests.unit.ranks`, whose unit and starter say what a test wants."""

    def __init__(self, root: Path) -> None:
        self.root = root
        ranks.node(root)
        self.settings = ranks.settings(gid=None, gpu="none")
        self.put("etc/sparkfleet/sparks/rank.json", json.dumps(self.settings))
        self.state = "active"
        self.told: dict[str, Any] = {"stage": "running", "settings": "x", "started": 5.0, "pid": 0}

    def put(self, path: str, text: str) -> None:
        place = self.root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def run(self, argv: Sequence[str]) -> Command:
        if argv[0] == "systemctl":
            return Command(0, f"LoadState=loaded\nActiveState={self.state}\nExecMainStatus=1\n", "")
        return Command(1, "", "no such container")

    def evidence(self, **options: Any) -> dict[str, Any]:
        self.put("run/sparkfleet/sparks/rank.json", json.dumps(self.told))
        return _recovery_node.evidence("sparks", self.run, root=str(self.root), **options)


@pytest.fixture
def rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rank:
    monkeypatch.setattr(_recovery_node, "_silent", lambda _settings: "")
    return Rank(tmp_path)


def test_a_rank_that_runs_has_nothing_to_tell(rank: Rank) -> None:
    found = rank.evidence()
    assert found["installed"] is True
    assert (found["unit"]["state"], found["stage"], found["started"]) == ("active", "running", 5.0)
    assert found["causes"] == found["notes"] == found["fatals"] == []


def test_a_node_without_a_rank_says_so(tmp_path: Path) -> None:
    found = _recovery_node.evidence(
        "sparks", lambda _argv: Command(0, "LoadState=not-found\n", ""), root=str(tmp_path)
    )
    assert found["installed"] is False
    assert found["causes"] == []


def test_a_lost_table_and_a_full_disk_are_causes(rank: Rank) -> None:
    (rank.root / "srv/engram/engram-l1-r1of4.bin").unlink()
    found = rank.evidence(disk_least=1 << 60)
    codes = {cause["code"]: cause["message"] for cause in found["causes"]}
    assert set(codes) == {"engram-missing", "disk-full"}
    assert "expected" in codes["disk-full"]
    assert "next: du -xh" in codes["disk-full"]


def test_what_the_log_says_is_told_of_a_start_that_was_not_stopped(rank: Rank) -> None:
    rank.put("var/log/sparkfleet/sparks-rank.log", "CUDA out of memory\n")
    fatals = [
        {"name": "oom", "pattern": "out of memory", "cause": "c", "remedy": "r", "weak": False},
        {"name": "weak", "pattern": "CUDA", "cause": "", "remedy": "", "weak": True},
    ]
    rank.state = "failed"
    rank.told.update(stage="ended", ended=7.0, problems=["exit status 1"])
    found = rank.evidence(fatals=fatals)
    assert [fatal["name"] for fatal in found["fatals"]] == ["oom"]
    assert (found["ended"], found["problems"]) == (7.0, ["exit status 1"])
    rank.told.update(stage="stopped")
    assert rank.evidence(fatals=fatals)["fatals"] == []


def test_a_slot_that_moved_is_noted_while_it_runs(rank: Rank, monkeypatch: Any) -> None:
    monkeypatch.setattr(
        _recovery_node, "_links", lambda *_what: {"causes": [], "slots": {"rocep1s0f0": 5}}
    )
    rank.told["gids"] = {"rocep1s0f0": 3}
    moved = "the GID of rocep1s0f0 moved from slot 3 to 5, for its next start"
    assert rank.evidence()["notes"] == [moved]
    rank.state = "failed"
    assert rank.evidence()["notes"] == []


def test_a_start_notes_its_slots_where_they_can_be_had(tmp_path: Path) -> None:
    said = {"devices": [{"hca": "rocep1s0f0", "gid_index": 3, "selected": True}]}
    said["devices"].append({"hca": "mlx5_9", "gid_index": None, "selected": False})
    program = tmp_path / "gid.py"
    program.write_text(f"import sys; assert sys.argv[-1] == 'json'; print({json.dumps(said)!r})")
    assert _rank.Rank._slots([sys.executable, str(program)]) == {"rocep1s0f0": 3}
    program.write_text("print('no JSON')")
    assert _rank.Rank._slots([sys.executable, str(program)]) == {}


def test_a_link_is_named_with_the_other_end_of_its_cable(rank: Rank) -> None:
    rank.settings.update(gid=ranks.settings()["gid"])
    rank.put("etc/sparkfleet/sparks/rank.json", json.dumps(rank.settings))
    (rank.root / "sys/class/infiniband").mkdir(parents=True)
    causes = rank.evidence()["causes"]
    assert causes
    assert all("found" in cause["message"] for cause in causes)


# --- the canary -----------------------------------------------------------------------------------


class Engine(BaseHTTPRequestHandler):
    """Answers, or sleeps, or counts tokens, by what the class is told."""

    sleeps = 0.0
    tokens = 10

    def log_message(self, *_what: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(self.sleeps)
        message = {"role": "assistant", "content": "yes"}
        self._send(json.dumps({"choices": [{"message": message, "finish_reason": "length"}]}))

    def do_GET(self) -> None:
        self._send(
            f'sglang:num_running_reqs{{model_name="m"}} 1.0\n'
            f'sglang:prompt_tokens_total{{model_name="m"}} {self.tokens}\n'
            f'sglang:generation_tokens_total{{model_name="m"}} 5\n'
        )

    def _send(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())


@pytest.fixture
def engine() -> Iterator[tuple[type[Engine], int]]:
    class Own(Engine):
        pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Own)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Own, server.server_address[1]
    server.shutdown()
    server.server_close()


def test_a_completion_is_what_counts(engine: tuple[type[Engine], int]) -> None:
    _handler, port = engine
    found = _recovery_node.ask(port, "m", 5)
    assert found["answered"] is True
    assert 0 < found["seconds"] < 5


def test_an_engine_that_is_late_tells_how_far_it_is(engine: tuple[type[Engine], int]) -> None:
    handler, port = engine
    handler.sleeps = 1.0
    begun = time.monotonic()
    found = _recovery_node.ask(port, "m", 0.2, tries=2)
    assert time.monotonic() - begun < 3
    assert (found["answered"], found["counter"]) == (False, 15.0)
    assert "no complete answer" in found["detail"]


def test_nobody_listening_is_not_asked_again() -> None:
    found = _recovery_node.ask(9, "m", 5, tries=3)
    assert (found["answered"], found["counter"]) == (False, None)
    assert "nothing listens" in found["detail"]
