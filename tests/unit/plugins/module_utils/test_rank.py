# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The starter of a rank: what it refuses, what it asks Docker for, how it watches and ends."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _rank

from tests.unit import ranks

# --- what a rank needs ---


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return ranks.node(tmp_path)


def codes(root: Path, **changes: Any) -> list[str]:
    return [problem.code for problem in _rank.check(ranks.settings(**changes), str(root))]


def test_a_right_node_has_no_problem(root):
    assert codes(root) == []


@pytest.mark.parametrize(
    ("path", "content", "code"),
    [
        ("srv/checkpoint/model.safetensors.index.json", b"<html>", "index-unreadable"),
        ("srv/checkpoint/model.safetensors.index.json", b"[]", "index-unreadable"),
        ("srv/checkpoint/model.safetensors.index.json", None, "index-unreadable"),
        ("srv/checkpoint/model-1.safetensors", None, "weights-missing"),
        ("srv/checkpoint/model-2.safetensors", b"", "weights-unreadable"),
        ("srv/engram/engram-l1-r1of4.bin", None, "engram-missing"),
        ("srv/engram/engram-l1-r1of4.bin", b"short", "engram-foreign"),
        ("srv/engram/engram-l1-r1of4.bin", ranks.engram(low=0, high=250), "engram-foreign"),
        ("srv/engram/engram-l1-r1of4.bin", ranks.engram()[:-1], "engram-size"),
        ("srv/engram/engram-l1-r1of4.bin", ranks.engram() + b"x", "engram-size"),
        ("lib/libnccl.so.2", None, "mount-missing"),
        (
            "proc/driver/nvidia/version",
            b"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release\n",
            "driver-mismatch",
        ),
    ],
)
def test_what_is_missing_or_foreign_is_refused(root, path, content, code):
    (root / "usr/lib/aarch64-linux-gnu").mkdir(parents=True)
    (root / "usr/lib/aarch64-linux-gnu/libnvidia-ml.so.580.126.09").touch()
    target = root / path
    if content is None:
        target.unlink()
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    assert codes(root) == [code]
    for problem in _rank.check(ranks.settings(), str(root)):
        assert "next: " in problem.message
        assert "found" in problem.message


def test_all_problems_are_told_at_once(root):
    (root / "srv/engram/engram-l1-r1of4.bin").unlink()
    (root / "srv/checkpoint/model-1.safetensors").unlink()
    (root / "lib/libnccl.so.2").unlink()
    assert codes(root) == ["mount-missing", "weights-missing", "engram-missing"]


def test_an_empty_directory_is_no_mount(root):
    """C14: the directory is there, the server's is not mounted on it."""
    assert codes(root, checkpoint_filesystem="nfs") == ["wrong-filesystem"]
    mounted = "23 22 0:50 / /srv/checkpoint ro - nfs4 10.20.0.11:/srv rw\n"
    with (root / "proc/self/mountinfo").open("a") as info:
        info.write(mounted)
    assert codes(root, checkpoint_filesystem="nfs") == []
    with (root / "proc/self/mountinfo").open("a") as info:  # the last one covers it
        info.write("24 23 8:1 / /srv/checkpoint rw - ext4 /dev/sda rw\n")
    assert codes(root, checkpoint_filesystem="nfs") == ["wrong-filesystem"]


def test_directories_that_are_written_to_can_still_be_made(root):
    (root / "var/lib/state").rmdir()
    assert codes(root) == ["mount-missing"]
    assert _rank.check(ranks.settings(), str(root), installed=False) == []


def test_without_a_gpu_nobody_asks_for_its_driver(root):
    (root / "proc/driver/nvidia").mkdir(parents=True)
    (root / "proc/driver/nvidia/version").write_text("NVRM version: Kernel Module  1.2.3  x\n")
    (root / "usr/lib/x").mkdir(parents=True)
    (root / "usr/lib/x/libnvidia-ml.so.2.3.4").touch()
    assert codes(root, gpu="none") == []
    assert codes(root) == ["driver-mismatch"]


# --- the container ---


def test_the_container_is_asked_for_as_planned():
    argv = _rank.create_arguments(ranks.settings(), "/run/env", ["/dev/nvidia0"])
    text = " ".join(argv)
    for part in (
        "docker create --pull never --restart no --name sparkfleet-sparks-r1",
        "--label sparkfleet.rank=1",
        "--label sparkfleet.cell=sparks",
        "--network host --ipc host --shm-size 32g --oom-score-adj 800",
        "--ulimit memlock=-1:-1 --ulimit core=0:0",
        "--cap-add IPC_LOCK --device /dev/infiniband --device /dev/nvidia0",
        "--mount type=bind,source=/srv/checkpoint,target=/models/M,readonly",
        "--mount type=bind,source=/var/lib/state,target=/state ",
        "--runtime nvidia --env NVIDIA_VISIBLE_DEVICES=all",
        "--env-file /run/env --entrypoint python3 engine:1 -m sglang.launch_server --node-rank 1",
    ):
        assert part in text, part
    assert "--privileged" not in argv
    assert "-v" not in argv
    assert "NODE_RANK" not in text  # the environment is in no process list


@pytest.mark.parametrize(
    ("way", "words"),
    [("cdi", "--device nvidia.com/gpu=all"), ("gpus", "--gpus all"), ("none", "")],
)
def test_a_gpu_is_asked_for_in_the_way_of_the_node(way, words):
    text = " ".join(_rank.create_arguments(ranks.settings(gpu=way), "/e"))
    assert words in text
    assert ("gpu" in text.replace("sparkfleet.gpu", "")) == (way != "none")


def test_privileges_are_asked_for_only_when_wanted():
    asked = ranks.settings(container={"privileged": True})
    assert "--privileged" in _rank.create_arguments(asked, "/e")


def test_a_path_with_a_comma_stays_one_path():
    odd = [{"source": '/a,"b', "target": "/x", "read_only": True}]
    argv = _rank.create_arguments(ranks.settings(container={"mounts": odd}), "/e")
    assert argv[argv.index("--mount") + 1] == 'type=bind,"source=/a,""b",target=/x,readonly'


def test_a_changed_setting_changes_the_digest():
    assert _rank.digest(ranks.settings()) == _rank.digest(ranks.settings())
    assert _rank.digest(ranks.settings()) != _rank.digest(ranks.settings(stop_grace=6))


def test_an_environment_file_holds_no_second_line():
    assert _rank.environment_text({"B": "2=3", "A": ""}) == "A=\nB=2=3\n"
    with pytest.raises(ValueError, match="A cannot be in an environment file"):
        _rank.environment_text({"A": "1\nB=2"})


def test_gids_are_asked_for_by_the_plan():
    gid = ranks.settings()["gid"]
    assert _rank.gid_arguments(gid) == [
        *("--format", "env", "--policy", "auto", "--hcas", "=rocep1s0f0"),
        *("--expected", "rocep1s0f0=10.20.0.0/24"),
    ]


# --- the log ---


def test_the_beginning_of_a_start_stays(tmp_path):
    path = tmp_path / "logs/x-rank.log"
    log = _rank.Log(str(path), 100, 3)
    for number in range(60):
        log.write(f"line {number:03d}")
    log.close()
    boot = tmp_path / "logs/x-rank.boot.log"
    assert boot.read_text().startswith("line 000\nline 001")
    assert "line 059" in path.read_text()
    names = sorted(found.name for found in path.parent.iterdir())
    assert names == ["x-rank.boot.log", *(f"x-rank.log{end}" for end in ("", ".1", ".2", ".3"))]
    _rank.Log(str(path), 100, 3).close()
    assert not boot.exists()
    assert path.read_text() == ""
    assert "line 059" in Path(f"{path}.1").read_text()


# --- supervision, with a false Docker client ---

FALSE_DOCKER = """\
#!{python}
# A Docker client whose containers are files: a name, and how the engine in it behaves.
import json, os, pathlib, signal, subprocess, sys, time
place = pathlib.Path(os.environ["FALSE_DOCKER"])
(place / "calls").open("a").write(" ".join(sys.argv[1:]) + "\\n")
words = sys.argv[1:]
if (place / "away").exists():
    print("Cannot connect to the Docker daemon", file=sys.stderr)
    sys.exit(1)
def load(name):
    try:
        return json.loads((place / f"{{name}}.json").read_text())
    except FileNotFoundError:
        print("Error: No such container: " + name, file=sys.stderr)
        sys.exit(1)
def save(name, state):
    (place / f"{{name}}.tmp").write_text(json.dumps(state))
    (place / f"{{name}}.tmp").replace(place / f"{{name}}.json")
def alive(pid):
    try:
        return open(f"/proc/{{pid}}/stat").read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
verb, name = words[0], words[-1]
if verb == "create":
    if (place / "create-fails").exists():
        print("docker: Error response from daemon: no such image", file=sys.stderr)
        sys.exit(1)
    name = words[words.index("--name") + 1]
    labels = dict(w.split("=", 1) for f, w in zip(words, words[1:]) if f == "--label")
    save(name, {{"labels": labels, "pid": 0}})
elif verb == "start":
    state = load(name)
    script = place / "engine"
    log = (place / "log").open("w")
    child = subprocess.Popen([sys.executable, str(script)], stdout=log, stderr=log,
                             stdin=subprocess.DEVNULL, start_new_session=True)
    save(name, {{**state, "pid": child.pid}})
elif verb == "container":
    state = load(name)
    running = alive(state["pid"])
    code = int((place / "code").read_text()) if (place / "code").exists() and not running else 0
    print(json.dumps([{{"Config": {{"Labels": state["labels"]}}, "Image": "sha256:1",
        "State": {{"Running": running, "Pid": state["pid"], "ExitCode": code,
                  "OOMKilled": False}}}}]))
elif verb == "wait":
    state = load(name)
    while alive(state["pid"]):
        if (place / "away").exists():
            sys.exit(1)
        time.sleep(0.05)
    print((place / "code").read_text() if (place / "code").exists() else "0")
elif verb == "logs":
    state = load(name)
    sent = 0
    while True:
        ended = not alive(state["pid"])
        lines = (place / "log").read_text().splitlines()
        for number in range(sent, len(lines)):
            print(f"2026-11-30T00:00:00.{{number:09d}}Z {{lines[number]}}", flush=True)
        sent = len(lines)
        if ended or (place / "away").exists():
            sys.exit(0)
        time.sleep(0.05)
elif verb == "stop":
    os.kill(load(name)["pid"], signal.SIGTERM)
    time.sleep(0.2)
elif verb == "rm":
    state = load(name)
    if state["pid"] and alive(state["pid"]):
        os.kill(state["pid"], signal.SIGKILL)
    (place / f"{{name}}.json").unlink()
"""


class Node:
    """A node on which the starter runs as it does under systemd, with a false Docker client."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.docker = place / "docker"
        self.docker.mkdir()
        ranks.node(place / "root")
        programs = place / "bin"
        programs.mkdir()
        (programs / "docker").write_text(FALSE_DOCKER.format(python=sys.executable))
        (programs / "docker").chmod(0o755)
        self.engine("import time; print('up', flush=True); time.sleep(60)")
        self.gids("print('NCCL_IB_ADDR_FAMILY=AF_INET')")
        self.process: subprocess.Popen[str] | None = None

    def engine(self, text: str) -> None:
        """What the engine does; it writes its exit status to a file, as nobody waits for it."""
        body = textwrap.indent(textwrap.dedent(text), "    ")
        code = f"import pathlib\nplace = pathlib.Path({str(self.docker)!r})\n"
        code += f"try:\n{body}\nexcept SystemExit as ended:\n"
        code += "    (place / 'code').write_text(str(ended.code or 0))\n"
        (self.docker / "engine").write_text(code)

    def gids(self, text: str) -> None:
        (self.place / "roce_gid.py").write_text(text)

    def settings(self, **changes: Any) -> dict[str, Any]:
        root = self.place / "root"
        made = ranks.settings(gpu="none", **changes)
        for mount in made["container"]["mounts"]:
            mount["source"] = f"{root}{mount['source']}"
        made["log"]["path"] = str(self.place / "log/sparks-rank.log")
        return made

    def start(self, verb: str = "run", **changes: Any) -> subprocess.Popen[str]:
        (self.place / "settings.json").write_text(json.dumps(self.settings(**changes)))
        code = (
            "from ansible_collections.sparkfleet.cluster.plugins.module_utils import _rank\n"
            f"_rank.SETTINGS = {str(self.place / 'settings.json')!r}\n"
            f"_rank.STATE = {str(self.place / 'state.json')!r}\n"
            f"_rank.GID_PROGRAM = {str(self.place / 'roce_gid.py')!r}\n"
            f"raise SystemExit(_rank.main([{verb!r}, 'sparks']))\n"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            env={
                **os.environ,
                "PATH": f"{self.place / 'bin'}:{os.environ['PATH']}",
                "FALSE_DOCKER": str(self.docker),
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return self.process

    def until(self, stage: str, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while self.state().get("stage") != stage:
            assert time.monotonic() < deadline, (self.state(), self.log)
            time.sleep(0.05)

    def until_logged(self, line: str, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while line not in self.log:
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def state(self) -> dict[str, Any]:
        path = self.place / "state.json"
        found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
        return found

    @property
    def log(self) -> str:
        path = self.place / "log/sparks-rank.log"
        return path.read_text() if path.exists() else ""

    @property
    def calls(self) -> str:
        return (self.docker / "calls").read_text()

    def containers(self) -> list[str]:
        return sorted(path.stem for path in self.docker.glob("*.json"))

    def end(self) -> int:
        assert self.process is not None
        code = self.process.wait(timeout=30)
        if self.process.stdout:
            self.process.stdout.close()
        return code


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    if made.process and made.process.poll() is None:
        made.process.kill()
        made.end()
    for path in made.docker.glob("*.json"):
        pid = json.loads(path.read_text())["pid"]
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_rank_runs_until_it_is_stopped(node):
    process = node.start()
    node.until("running")
    node.until_logged("up")
    assert node.containers() == ["sparkfleet-sparks-r1"]
    environment = (node.place / "rank.env").read_text()
    assert "NCCL_IB_ADDR_FAMILY=AF_INET\n" in environment  # chosen at this start
    assert "NODE_RANK=1\n" in environment
    assert (node.place / "rank.env").stat().st_mode & 0o777 == 0o600
    process.send_signal(signal.SIGTERM)
    assert node.end() == 0
    assert node.containers() == []
    assert "stop --time 5 sparkfleet-sparks-r1" in node.calls
    assert node.state()["stage"] == "stopped"


@pytest.mark.parametrize(("ends", "code"), [("exit(7)", 7), ("exit(0)", 1), ("exit(137)", 137)])
def test_an_engine_that_ends_takes_the_unit_with_it(node, ends, code):
    node.engine(f"print('the last word', flush=True); {ends}")
    node.start()
    assert node.end() == code
    assert "the last word" in node.log
    assert "the engine of rank 1 ended by itself: exit status" in node.log
    assert node.state()["stage"] == "ended"
    assert node.containers() == []


def test_the_daemon_may_restart_under_a_running_engine(node):
    """F03 with live-restore: nothing happens, and no line is lost or doubled."""
    node.engine(
        """
        import time
        print('before', flush=True)
        while not (place / 'away').exists(): time.sleep(0.05)
        print('meanwhile', flush=True)
        while (place / 'away').exists(): time.sleep(0.05)
        print('after', flush=True)
        time.sleep(60)
        """
    )
    process = node.start()
    node.until("running")
    node.until_logged("before")
    (node.docker / "away").touch()
    node.until_logged("the Docker daemon is away")
    assert process.poll() is None
    (node.docker / "away").unlink()
    node.until_logged("after")
    assert [node.log.count(word + "\n") for word in ("before", "meanwhile", "after")] == [1, 1, 1]
    assert node.calls.count("create") == 1
    process.send_signal(signal.SIGTERM)
    assert node.end() == 0


def test_a_daemon_that_goes_with_the_engine_ends_the_unit(node):
    node.start()
    node.until("running")
    (node.docker / "away").touch()
    os.kill(node.state()["pid"], signal.SIGKILL)
    assert node.end() == 1


def test_what_an_earlier_start_left_is_removed(node):
    """F02: after a power cut the name is in use."""
    label = {"sparkfleet.cell": "sparks"}
    left = node.docker / "sparkfleet-sparks-r1.json"
    left.write_text(json.dumps({"labels": label, "pid": 0}))
    process = node.start()
    node.until("running")
    assert "removed the container of an earlier start" in node.log
    process.send_signal(signal.SIGTERM)
    assert node.end() == 0


def test_a_container_of_somebody_else_is_refused(node):
    left = node.docker / "sparkfleet-sparks-r1.json"
    left.write_text(json.dumps({"labels": {}, "pid": 0}))
    node.start()
    assert node.end() == _rank.MISSING
    assert "that is not of this cell" in node.state()["problems"][0]
    assert left.exists()
    node.start("clean")
    assert node.end() == 0
    assert left.exists()


def test_a_rank_without_its_inputs_is_not_started(node):
    (node.place / "root/srv/engram/engram-l1-r1of4.bin").unlink()
    node.start()
    assert node.end() == _rank.MISSING
    assert node.state()["stage"] == "refused"
    assert "not started: found no Engram table" in node.log
    assert not (node.docker / "calls").exists()


def test_a_container_that_cannot_be_made_is_told(node):
    (node.docker / "create-fails").touch()
    node.start()
    assert node.end() == _rank.MISSING
    assert node.state()["problems"] == [
        "docker create: docker: Error response from daemon: no such image"
    ]


def test_links_that_come_up_late_are_waited_for(node):
    """F20: the GID is there a moment after the node."""
    flag = node.place / "linked"
    node.gids(
        f"import os, sys\nif not os.path.exists({str(flag)!r}):\n"
        "    print('rocep1s0f0 port 1: port-down: found DOWN', file=sys.stderr); sys.exit(1)\n"
        "print('NCCL_IB_HCA==rocep1s0f0')\n"
    )
    node.start(gid_wait=60)
    node.until("waiting for the fabric")
    assert node.state()["problems"] == [
        "rocep1s0f0 port 1: port-down: found DOWN (its cable goes to spark3 cage 1)"
    ]
    flag.touch()
    node.until("running")
    assert "NCCL_IB_HCA==rocep1s0f0\n" in (node.place / "rank.env").read_text()


def test_links_that_stay_down_are_named_with_their_peer(node):
    node.gids("import sys; print('rocep1s0f0 port 1: port-down', file=sys.stderr); sys.exit(1)")
    node.start(gid_wait=0)
    assert node.end() == _rank.MISSING
    (problem,) = node.state()["problems"]
    assert problem.startswith("after waiting 0 s: rocep1s0f0 port 1: port-down")
    assert "spark3 cage 1" in problem


@pytest.mark.parametrize("wait", [0, 60])
def test_a_checkpoint_that_is_not_mounted_yet_is_waited_for(node, wait):
    """F20, C14: its server boots as well."""
    process = node.start(gid_wait=wait, checkpoint_filesystem="nfs")
    if wait:
        node.until("waiting for the checkpoint")
        assert "expected a mount of nfs" in node.state()["problems"][0]
        process.send_signal(signal.SIGTERM)
    assert node.end() == _rank.MISSING
    assert "expected a mount of nfs" in node.state()["problems"][0]


def test_a_stop_during_the_wait_is_heeded(node):
    node.gids("import sys; print('no link', file=sys.stderr); sys.exit(1)")
    process = node.start(gid_wait=300)
    node.until("waiting for the fabric")
    process.send_signal(signal.SIGTERM)
    assert node.end() in (0, _rank.MISSING)
    assert node.containers() == []


@pytest.mark.parametrize(
    ("stamp", "seconds"),
    [
        ("1970-01-01T00:01:00.123456789Z", 60.123456),
        ("1970-01-01T00:01:00.5Z", 60.5),
        ("1970-01-01T00:01:00Z", 60.0),
        ("", None),
        ("yesterday", None),
    ],
)
def test_times_of_docker_are_read(stamp, seconds):
    assert _rank._epoch(stamp) == seconds


def test_systemd_is_told(tmp_path, monkeypatch):
    import socket

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        _rank.notify("READY=1", "STATUS=runs")
        assert listener.recv(100) == b"READY=1\nSTATUS=runs"
    monkeypatch.delenv("NOTIFY_SOCKET")
    _rank.notify("READY=1")


def test_wrong_words_and_settings_end_without_a_traceback(tmp_path, monkeypatch, capsys):
    assert _rank.main(["run"]) == 2
    monkeypatch.setattr(_rank, "SETTINGS", str(tmp_path / "none.json"))
    assert _rank.main(["run", "sparks"]) == _rank.MISSING
    assert "next: run the playbook serve" in capsys.readouterr().err
    (tmp_path / "none.json").write_text("{")
    assert _rank.main(["run", "sparks"]) == _rank.MISSING


def test_the_program_needs_nothing_but_the_standard_library(node):
    """As it is installed: one file, an isolated interpreter, no collection."""
    copy = node.place / "rank.py"
    copy.write_text(Path(str(_rank.__file__)).read_text())
    done = subprocess.run(
        [sys.executable, "-I", str(copy), "check", "nobody"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == _rank.MISSING
    assert "/etc/sparkfleet/nobody/rank.json" in done.stderr
