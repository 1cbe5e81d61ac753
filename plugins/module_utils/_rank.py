# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Start one rank in its container and stay with it until it ends.

This file needs the standard library only. It is installed on the node as it is and is the main
process of the unit of the rank:

    rank.py run CELL      check what the rank needs, choose its GIDs, run the container
    rank.py check CELL    only check, and say what is missing
    rank.py clean CELL    remove a container that was left behind

The container runs detached and this program waits for it, so that a Docker daemon that restarts
with live-restore takes no rank with it, and a container that dies takes the unit with it. What it
prints goes to a file, for whoever looks for the proofs of a boot, and to the journal.

Exit status: 0 stopped when asked to; 78 something the rank needs is missing; else that of the
engine, or 1 where the engine ended by itself with 0.
"""

# Also runs without Ansible, whose run_command belongs to modules.
# pylint: disable=ansible-bad-function

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple, TextIO

SETTINGS = "/etc/sparkfleet/{cell}/rank.json"
STATE = "/run/sparkfleet/{cell}/rank.json"
GID_PROGRAM = "/usr/local/lib/sparkfleet/roce_gid.py"
LABEL_CELL, LABEL_SETTINGS, LABEL_GPU = (
    f"sparkfleet.{word}" for word in ("cell", "settings", "gpu")
)
MISSING = 78  # EX_CONFIG of sysexits.h
# How a GPU can be asked for; which one a node understands is found out when it is configured.
GPU_WAYS: dict[str, list[str]] = {
    "cdi": ["--device", "nvidia.com/gpu=all"],
    "runtime": ["--runtime", "nvidia", "--env", "NVIDIA_VISIBLE_DEVICES=all"]
    + ["--env", "NVIDIA_DRIVER_CAPABILITIES=compute,utility"],
    "gpus": ["--gpus", "all"],
    "none": [],
}
# What the packer of Engram tables writes first: magic, layer, first row, end, all rows, row bytes.
_ENGRAM = struct.Struct("<8s5Q")
_ENGRAM_MAGIC, _ENGRAM_START, _ENGRAM_ROW = b"DSV1EN41", 4096, 264
_INDEX = "model.safetensors.index.json"
_DRIVER = re.compile(r"Module.*?\s(\d+\.\d+(?:\.\d+)?)\s")


class Problem(NamedTuple):
    """Why a rank cannot start: a stable code, and a sentence with the next command."""

    code: str
    message: str


# --- what a rank needs ----------------------------------------------------------------------------


def check(settings: Mapping[str, Any], root: str = "/", *, installed: bool = True) -> list[Problem]:
    """Everything that a rank needs and does not find below `root`; reads, changes nothing.

    Without `installed`, directories that the container writes to may still be made.
    May block for as long as a dead NFS server does: whoever cannot wait calls it in a child.
    """
    mounts = settings["container"]["mounts"]
    found = [
        Problem(
            "mount-missing",
            f"found no {mount['source']}, which the container sees as {mount['target']}; "
            f"next: {_REMEDIES.get(_kind(settings, mount), 'run the playbook serve')}",
        )
        for mount in mounts
        if not os.path.exists(_below(root, mount["source"])) and (installed or mount["read_only"])
    ]
    sources = {_kind(settings, mount): mount["source"] for mount in mounts}
    if "checkpoint" in sources and os.path.isdir(_below(root, sources["checkpoint"])):
        found += _check_checkpoint(settings, root, sources["checkpoint"])
    if "engram" in sources and os.path.isdir(_below(root, sources["engram"])):
        found += _check_engram(settings, root, sources["engram"])
    if settings["gpu"] != "none":
        found += check_driver(root)
    return found


_REMEDIES = {
    "checkpoint": "run the playbook share, which provides the checkpoint",
    "engram": "run the playbook pack, which writes the Engram tables",
    "nccl": "run the playbook build, which installs the NCCL library",
}


def _kind(settings: Mapping[str, Any], mount: Mapping[str, Any]) -> str:
    """What a mount is for: checkpoint, engram, nccl or something else."""
    if mount["target"] == settings["model_path"]:
        return "checkpoint"
    if settings["engram"] and mount["target"] == settings["engram"]["path"]:
        return "engram"
    return "nccl" if mount["source"].endswith("libnccl.so.2") else mount["target"]


def _below(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))


def _check_checkpoint(settings: Mapping[str, Any], root: str, source: str) -> Iterator[Problem]:
    """The right file system is there, the index can be read, and the last byte of the last file."""
    wanted = settings["checkpoint_filesystem"]
    kind = filesystem(_below(root, "proc/self/mountinfo"), source)
    if wanted and not kind.startswith(wanted):
        yield Problem(
            "wrong-filesystem",
            f"found {source} on {kind or 'nothing known'}, expected a mount of {wanted}: the "
            "server's directory is not mounted there; next: run the playbook share",
        )
        return
    folder = _below(root, source)
    try:
        files = weight_files(folder)
    except (OSError, ValueError) as error:
        yield Problem(
            "index-unreadable",
            f"found no checkpoint in {source}: {_reason(error)}; next: run the playbook share",
        )
        return
    missing = [name for name in files if not os.path.exists(os.path.join(folder, name))]
    if missing:
        yield Problem(
            "weights-missing",
            f"found {len(files) - len(missing)} of {len(files)} files of the index in {source}, "
            f"missing {', '.join(missing[:3])}{' ...' if len(missing) > 3 else ''}; "
            "next: run the playbook share",
        )
        return
    try:
        with open(os.path.join(folder, files[-1]), "rb") as stream:
            stream.seek(-1, os.SEEK_END)
            stream.read(1)
    except OSError as error:
        yield Problem(
            "weights-unreadable",
            f"found {source}/{files[-1]} unreadable: {_reason(error)}; "
            "next: run the playbook share with nfs_share_state=checked",
        )


def weight_files(folder: str) -> list[str]:
    """The files of weights that the index of a checkpoint names, in order.

    Raises:
        OSError: there is no index, or it cannot be read.
        ValueError: it is no index.
    """
    index = os.path.join(folder, _INDEX)
    if not os.path.exists(index) and os.path.exists(os.path.join(folder, "model.safetensors")):
        return ["model.safetensors"]
    with open(index, encoding="utf-8") as stream:
        places = json.load(stream)
    if not (isinstance(places, dict) and isinstance(places.get("weight_map"), dict)):
        raise ValueError(f"{_INDEX} has no weight_map")
    return sorted(set(places["weight_map"].values()))


def filesystem(mountinfo: str, path: str) -> str:
    """The kind of file system a path is on, the last of several mounts on one place."""
    kind, longest = "", -1
    try:
        with open(mountinfo, encoding="utf-8", errors="replace") as stream:
            lines = stream.read().splitlines()
    except OSError:
        return ""
    for line in lines:
        fields, _separator, rest = line.partition(" - ")
        point = fields.split()[4].replace("\\040", " ") if len(fields.split()) > 4 else ""
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if point and inside and len(point) >= longest:
            kind, longest = rest.split()[0] if rest else "", len(point)
    return kind


def _check_engram(settings: Mapping[str, Any], root: str, source: str) -> Iterator[Problem]:
    """Each table has the header and the size of this rank; rows are the verifier's matter."""
    rank, ranks = settings["rank"], settings["ranks"]
    for table in settings["engram"]["tables"]:
        layer, rows = table["layer"], table["rows"]
        low, high = rows * rank // ranks, rows * (rank + 1) // ranks
        name = f"engram-l{layer}-r{rank}of{ranks}.bin"
        path = f"{source}/{name}"
        size = _ENGRAM_START + _ENGRAM_ROW * (high - low)
        expected = (_ENGRAM_MAGIC, layer, low, high, rows, _ENGRAM_ROW)
        try:
            with open(_below(root, path), "rb") as stream:
                head = stream.read(_ENGRAM.size)
                found_size = os.fstat(stream.fileno()).st_size
        except OSError as error:
            yield Problem(
                "engram-missing",
                f"found no Engram table {path}: {_reason(error)}; next: run the playbook pack",
            )
            continue
        found = _ENGRAM.unpack(head) if len(head) == _ENGRAM.size else ()
        if found != expected:
            told = (
                f"layer {found[1]} rows {found[2]}..{found[3]} of {found[4]}" if found else "none"
            )
            yield Problem(
                "engram-foreign",
                f"found in {path} the header of {told}, expected layer {layer} rows {low}..{high} "
                f"of {rows}; next: run the playbook pack on this host",
            )
        elif found_size != size:
            yield Problem(
                "engram-size",
                f"found {path} with {found_size} bytes, expected {size}; "
                "next: run the playbook pack on this host",
            )


def check_driver(root: str) -> list[Problem]:
    """The libraries of the driver are those of the kernel module that is loaded."""
    try:
        with open(_below(root, "proc/driver/nvidia/version"), encoding="utf-8") as stream:
            match = _DRIVER.search(stream.read())
    except OSError:
        return []
    libraries = glob.glob(_below(root, "usr/lib/*/libnvidia-ml.so.*.*"))
    versions = sorted({path.rpartition(".so.")[2] for path in libraries})
    if match is None or not versions or match[1] in versions:
        return []
    message = (
        f"found the NVIDIA module {match[1]} loaded and its libraries {', '.join(versions)} "
        "installed, expected one version: the driver was updated; next: reboot this host"
    )
    return [Problem("driver-mismatch", message)]


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


# --- the container --------------------------------------------------------------------------------


def digest(settings: Mapping[str, Any]) -> str:
    """What the container is labelled with: it runs with these settings and no others."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def create_arguments(
    settings: Mapping[str, Any], environment_file: str, devices: Sequence[str] = ()
) -> list[str]:
    """The command that makes the container.

    Args:
        settings: of the rank.
        environment_file: holds the environment, which is so in no process list.
        devices: device nodes of the GPU. Named like this they are in the cgroup of the container
            and survive a reload of systemd; what a runtime hook adds does not.
    """
    container = settings["container"]
    words = ["docker", "create", "--pull", "never", "--restart", "no", "--name", container["name"]]
    labels = {
        **container["labels"],
        LABEL_CELL: settings["cell"],
        LABEL_SETTINGS: digest(settings),
        LABEL_GPU: settings["gpu"],
    }
    for name, value in labels.items():
        words += ["--label", f"{name}={value}"]
    words += ["--network", container["network_mode"], "--ipc", container["ipc_mode"]]
    words += ["--shm-size", str(container["shm_size"])]
    words += ["--oom-score-adj", str(container["oom_score_adj"])]
    for name, value in container["ulimits"].items():
        words += ["--ulimit", f"{name}={value}:{value}"]
    for name in container["capabilities"]:
        words += ["--cap-add", name]
    for path in [*container["devices"], *devices]:
        words += ["--device", path]
    for mount in container["mounts"]:
        words += ["--mount", _mount(mount)]
    if container["privileged"]:
        words.append("--privileged")
    words += GPU_WAYS[settings["gpu"]]
    words += ["--log-driver", "local", "--log-opt", "max-size=20m", "--log-opt", "max-file=3"]
    words += ["--env-file", environment_file]
    entrypoint = container["entrypoint"]
    if entrypoint:
        words += ["--entrypoint", entrypoint[0]]
    return [*words, container["image"], *entrypoint[1:], *container["command"]]


def _mount(mount: Mapping[str, Any]) -> str:
    """A bind mount that fails where its source is missing, in the quoting of CSV."""
    parts = ["type=bind", f"source={mount['source']}", f"target={mount['target']}"]
    if mount["read_only"]:
        parts.append("readonly")
    quoted = [
        '"' + part.replace('"', '""') + '"' if set(part) & set(',"') else part for part in parts
    ]
    return ",".join(quoted)


def environment_text(environment: Mapping[str, str]) -> str:
    """The lines of an environment file. Raises ValueError for a value that does not fit a line."""
    for name, value in environment.items():
        if "\n" in value or "=" in name:
            raise ValueError(f"{name} cannot be in an environment file")
    return "".join(f"{name}={value}\n" for name, value in sorted(environment.items()))


def gid_arguments(gid: Mapping[str, Any]) -> list[str]:
    """What the program that chooses GIDs is asked."""
    words = ["--format", "env", "--policy", gid.get("policy", "auto"), "--hcas", gid["hcas"]]
    links = [
        f"{link['hca']}={link.get('subnet', '')}"
        + (f"@{link['netdev']}" if "netdev" in link else "")
        for link in gid.get("expected", [])
    ]
    return [*words, "--expected", *links] if links else words


# --- the log --------------------------------------------------------------------------------------


def boot_log(path: str) -> str:
    """Where the beginning of a start is once its log has grown."""
    return re.sub(r"\.log$", "", path) + ".boot.log"


class Log:
    """What a rank printed, one file a start, rotated; the beginning of the current start stays.

    ``<name>.log`` is the current file. When it grows over the limit the first time it becomes
    ``<name>.boot.log``, which holds the proofs of the boot until the next start.

    Args:
        path: of the current file.
        limit: bytes after which a file is closed.
        keep: how many closed files are kept, as ``<name>.log.1`` and so on, the newest first.
    """

    def __init__(self, path: str, limit: int, keep: int) -> None:
        self._path = path
        self.boot = boot_log(path)
        self._limit, self._keep = limit, keep
        os.makedirs(os.path.dirname(path), exist_ok=True)
        for old in (self.boot, path):
            if os.path.exists(old):
                self._shift(old)
        # open for as long as the rank lives
        self._stream = open(path, "ab")  # noqa: SIM115  # pylint: disable=consider-using-with
        self._written = 0

    def write(self, line: str) -> None:
        """Append a line. A full disk costs lines, never the rank."""
        data = line.encode(errors="replace") + b"\n"
        with contextlib.suppress(OSError):
            if self._written + len(data) > self._limit:
                self._rotate()
            self._stream.write(data)
            self._stream.flush()
            self._written += len(data)

    def _rotate(self) -> None:
        self._stream.close()
        if os.path.exists(self.boot):
            self._shift(self._path)
        else:
            os.replace(self._path, self.boot)
        self._stream = open(  # noqa: SIM115  # pylint: disable=consider-using-with
            self._path, "ab"
        )
        self._written = 0

    def _shift(self, newest: str) -> None:
        for number in range(self._keep - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        os.replace(newest, f"{self._path}.1")

    def close(self) -> None:
        self._stream.close()


# --- supervision ----------------------------------------------------------------------------------


class StartError(Exception):
    """The rank cannot start; every reason is a line."""


class Docker:
    """The Docker client, with a deadline for everything but waiting."""

    def run(self, *words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        """Run a command of it. One that does not answer counts as failed."""
        try:
            return subprocess.run(
                ["docker", *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                text=True,
                errors="replace",
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            said = f"docker {words[0]} did not answer within {timeout:g} s"
            return subprocess.CompletedProcess(words, 124, "", said)
        except OSError as error:
            return subprocess.CompletedProcess(words, 127, "", f"docker: {error.strerror}")

    def container(self, name: str) -> dict[str, Any] | None:
        """A container by name, None where there is none or the daemon does not answer."""
        done = self.run("container", "inspect", name)
        if done.returncode:
            return None
        found: dict[str, Any] = json.loads(done.stdout)[0]
        return found

    def remove_own(self, settings: Mapping[str, Any]) -> bool:
        """Remove what is left of an earlier start. Returns whether there was something.

        Raises:
            StartError: the name is taken by somebody else's container.
        """
        name = settings["container"]["name"]
        found = self.container(name)
        if found is None:
            return False
        labels = found["Config"].get("Labels") or {}
        if labels.get(LABEL_CELL) != settings["cell"]:
            raise StartError(
                f"found a container called {name} that is not of this cell; "
                f"next: look at it with docker inspect {name}, and rename or remove it"
            )
        done = self.run("rm", "--force", name)
        if done.returncode and self.container(name) is not None:
            raise StartError(
                f"the container {name} of an earlier start cannot be removed: {done.stderr.strip()}"
            )
        return True


class Rank:
    """One start of a rank, from its checks to the end of its container."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = settings
        self._docker = Docker()
        self._state_path = STATE.format(cell=settings["cell"])
        self._state: dict[str, Any] = {"settings": digest(settings), "started": time.time()}
        self._name = settings["container"]["name"]
        self._pid = 0
        self._stopping = threading.Event()
        self._ended = threading.Event()
        log = settings["log"]
        self._log = Log(log["path"], log["bytes"], log["keep"])

    def run(self) -> int:
        """Returns the exit status of the unit."""
        signal.signal(signal.SIGTERM, lambda *_what: self._stopping.set())
        try:
            self._prepare()
        except StartError as error:
            for line in str(error).splitlines():
                self._say(f"not started: {line}")
            self._tell("refused", problems=str(error).splitlines())
            return MISSING
        if self._stopping.is_set():
            self._remove()
            return 0
        self._tell("running")
        notify("READY=1", f"STATUS=rank {self._settings['rank']} runs")
        follower = threading.Thread(target=self._follow, daemon=True)
        follower.start()
        code = self._wait()
        if code is None:
            notify("STOPPING=1")
            self._tell("stopping")
            grace = self._settings["stop_grace"]
            self._docker.run("stop", "--time", str(grace), self._name, timeout=grace + 30)
        self._ended.set()
        follower.join(timeout=5)
        return self._finish(code)

    # --- before --------------------------------------------------------------------------------

    def _prepare(self) -> None:
        self._tell("checking")
        self._wait_for_all()
        environment = {**self._settings["container"]["env"], **self._gids()}
        self._tell("starting")
        place = os.path.join(os.path.dirname(self._state_path), "rank.env")
        _write(place, environment_text(environment), 0o600)
        if self._docker.remove_own(self._settings):
            self._say("removed the container of an earlier start")
        gpu = self._settings["gpu"]
        devices = _nvidia_nodes() if gpu in ("runtime", "gpus") else []
        argv = create_arguments(self._settings, place, devices)
        for words in (argv[1:], ["start", self._name]):
            done = self._docker.run(*words, timeout=120)
            if done.returncode:
                self._remove()
                raise StartError(f"docker {words[0]}: {' '.join(done.stderr.split())}")
        found = self._docker.container(self._name)
        self._pid = found["State"]["Pid"] if found else 0

    def _wait_for_all(self) -> None:
        """Find everything there, and wait only for a mount whose server may still boot."""
        deadline = time.monotonic() + self._settings["gid_wait"]
        told = False
        while problems := check(self._settings):
            late = [problem for problem in problems if problem.code == "wrong-filesystem"]
            over = time.monotonic() > deadline or self._stopping.is_set()
            if len(late) < len(problems) or over:
                raise StartError("\n".join(problem.message for problem in problems))
            if not told:
                self._say(f"waiting for the checkpoint: {late[0].message}")
                self._tell("waiting for the checkpoint", problems=[late[0].message])
                told = True
            self._stopping.wait(2)

    def _gids(self) -> dict[str, str]:
        """The environment that names the GIDs of now; waits for links that are still coming up."""
        gid = self._settings["gid"]
        if not gid:
            return {}
        argv = [sys.executable, "-I", GID_PROGRAM, *gid_arguments(gid)]
        deadline = time.monotonic() + self._settings["gid_wait"]
        told = ""
        while True:
            done = subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                text=True,
                timeout=60,
            )
            if done.returncode == 0:
                self._state["gids"] = self._slots(argv)
                return dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
            reasons = self._with_peers(done.stderr)
            if time.monotonic() > deadline or self._stopping.is_set() or done.returncode == 2:
                waited = f"after waiting {self._settings['gid_wait']:g} s: "
                raise StartError("\n".join(waited + reason for reason in reasons))
            if done.stderr != told:
                told = done.stderr
                for reason in reasons:
                    self._say(f"waiting for the fabric: {reason}")
                self._tell("waiting for the fabric", problems=reasons)
            self._stopping.wait(2)

    @staticmethod
    def _slots(argv: Sequence[str]) -> dict[str, int]:
        """By HCA, the slot of the GID of now: whoever looks later sees whether it moved."""
        done = subprocess.run(
            [*argv, "--format", "json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            text=True,
            timeout=60,
        )
        try:
            devices = json.loads(done.stdout)["devices"]
            return {one["hca"]: one["gid_index"] for one in devices if one["selected"]}
        except (ValueError, KeyError, TypeError):
            return {}  # a courtesy; the choice itself was made

    def _with_peers(self, text: str) -> list[str]:
        """What the choice of GIDs complains about, with who is at the other end of the cable."""
        peers = self._settings["gid"].get("peers", {})
        lines = text.strip().splitlines() or ["roce_gid.py ended without a word"]
        return [
            f"{line} (its cable goes to {peers[line.split()[0]]})"
            if line.split() and line.split()[0] in peers
            else line
            for line in lines
        ]

    # --- during --------------------------------------------------------------------------------

    def _wait(self) -> int | None:
        """The exit status of the engine, None where it was stopped or its status is lost."""
        while True:
            with subprocess.Popen(
                ["docker", "wait", self._name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            ) as waiter:
                while waiter.poll() is None:
                    if self._stopping.wait(0.5):
                        waiter.kill()
                        return None
                said = waiter.stdout.read().strip() if waiter.stdout else ""
            if said.isdecimal():
                return int(said)
            # No answer: the daemon is away. With live-restore the engine goes on meanwhile.
            if self._stopping.is_set():
                return None
            found = self._docker.container(self._name)
            if found is None and not _alive(self._pid):
                return 1
            if found is not None and not found["State"]["Running"]:
                return int(found["State"]["ExitCode"])
            self._say("the Docker daemon is away; the engine goes on, and so does this unit")
            self._stopping.wait(2)

    def _follow(self) -> None:
        """Copy what the engine prints to the log and the journal, once each, until it ends."""
        last = ""
        while True:
            ended = self._ended.is_set()
            since = ["--since", last] if last else []
            with subprocess.Popen(
                ["docker", "logs", "--follow", "--timestamps", *since, self._name],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as follower:
                for line in follower.stdout or ():
                    stamp, _space, text = line.rstrip("\r\n").partition(" ")
                    if not stamp[:4].isdecimal():  # the client's own words
                        continue
                    if last and stamp <= last:
                        continue
                    last = stamp
                    self._log.write(text)
                    _print(text)
            if ended or self._stopping.is_set():
                return
            self._ended.wait(1)

    # --- after ---------------------------------------------------------------------------------

    def _finish(self, code: int | None) -> int:
        if code is None:
            self._remove()
            self._tell("stopped")
            self._log.close()
            return 0
        found = self._docker.container(self._name)
        killed = bool(found and found["State"].get("OOMKilled"))
        reason = "killed for lack of memory" if killed else f"exit status {code}"
        self._say(f"the engine of rank {self._settings['rank']} ended by itself: {reason}")
        self._remove()
        ended = _epoch(found["State"].get("FinishedAt", "")) if found else None
        self._tell("ended", exit_status=code, problems=[reason], ended=ended or time.time())
        self._log.close()
        return code or 1

    def _remove(self) -> None:
        with contextlib.suppress(StartError):
            self._docker.remove_own(self._settings)
        if _alive(self._pid) and self._docker.run("version").returncode:
            os.kill(self._pid, signal.SIGKILL)  # the daemon is away and cannot do it

    def _say(self, line: str) -> None:
        self._log.write(f"sparkfleet: {line}")
        _print(line)

    def _tell(self, stage: str, **more: Any) -> None:
        """What this start is about, for whoever looks from outside."""
        self._state.pop("problems", None)
        self._state.update(stage=stage, since=time.time(), pid=self._pid)
        self._state.update(more)
        _write(self._state_path, json.dumps(self._state) + "\n", 0o644)
        notify(f"STATUS={stage}")


def _print(line: str, stream: TextIO | None = None) -> None:
    """A line for the journal or a person, at once."""
    stream = stream or sys.stdout
    stream.write(f"{line}\n")
    stream.flush()


def _epoch(stamp: str) -> float | None:
    """Seconds of the epoch of a time as Docker writes it, None where it is none.

    >>> _epoch("1970-01-01T00:01:00.123456789Z")
    60.123456
    """
    match = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,6})?\d*Z$", stamp)
    if match is None:
        return None
    whole = datetime.strptime(match[1], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc)
    return whole.timestamp() + float(match[2] or 0)


def _nvidia_nodes(folder: str = "/dev") -> list[str]:
    names = ("nvidia[0-9]*", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
    return sorted(path for name in names for path in glob.glob(os.path.join(folder, name)))


def _alive(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            return pid > 0 and stream.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


def notify(*lines: str) -> None:
    """Tell systemd; nothing where nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as unix:
        unix.connect("\0" + address[1:] if address.startswith("@") else address)
        unix.sendall("\n".join(lines).encode())


def _write(path: str, text: str, mode: int) -> None:
    """Replace a file as a whole."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    aside = f"{path}.{os.getpid()}"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    os.replace(aside, path)


# --- the program ----------------------------------------------------------------------------------


def _run(settings: Mapping[str, Any]) -> int:
    return Rank(settings).run()


def _check(settings: Mapping[str, Any]) -> int:
    problems = check(settings)
    for problem in problems:
        _print(f"{problem.code}: {problem.message}")
    return MISSING if problems else 0


def _clean(settings: Mapping[str, Any]) -> int:
    with contextlib.suppress(StartError):
        Docker().remove_own(settings)
    return 0


VERBS: dict[str, Callable[[Mapping[str, Any]], int]] = {
    "run": _run,
    "check": _check,
    "clean": _clean,
}


def main(arguments: Sequence[str]) -> int:
    """Returns the exit status."""
    if len(arguments) != 2 or arguments[0] not in VERBS:
        _print(__doc__ or "", sys.stderr)
        return 2
    path = SETTINGS.format(cell=arguments[1])
    try:
        with open(path, encoding="utf-8") as stream:
            settings = json.load(stream)
    except (OSError, ValueError) as error:
        _print(f"{path}: {_reason(error)}; next: run the playbook serve", sys.stderr)
        return MISSING
    if shutil.which("docker") is None:
        _print("there is no docker on this node", sys.stderr)
        return MISSING
    return VERBS[arguments[0]](settings)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
