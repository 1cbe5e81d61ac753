# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What a node has of its rank: image, inputs, container, unit, and how a GPU is asked for."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils import _engine_boot, _rank
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    Missing,
    Runner,
    ask_all,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._image_facts import image_facts
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_settings import unit_name

_LISTEN, _JOINED = "0A", "01"  # of /proc/net/tcp
_UNIT_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "ExecMainStatus",
    "MainPID",
    "UnitFileState",
    "NeedDaemonReload",
    "StatusText",
)


def rank_facts(
    settings: Mapping[str, Any], run: Runner, *, root: str = "/", deadline: float = 30
) -> dict[str, Any]:
    """Everything that decides whether a rank can start, or runs as it should.

    Args:
        settings: as they should be, with the way to ask for a GPU still "auto" if it is wanted.
        run: runs a command for a bounded time.
        root: where the file system of the node begins.
        deadline: in seconds, for what may hang on a dead mount.

    Returns:
        `image` (as image_facts), `unit`, `container`, `running`, `settings` (the digest a running
        container has), `gpu` (the way found), `equal` (what must be the same on all ranks, by
        name), `problems` as {code, message}.
    """
    facts: dict[str, Any] = {"problems": [], "equal": {}}
    facts["image"] = image_facts(settings["container"]["image"], run)
    facts["unit"] = unit_facts(settings["cell"], run)
    facts["container"] = container_facts(settings, run)
    facts["running"] = facts["unit"]["active"] and facts["container"]["running"]
    facts["settings"] = facts["container"]["settings"] if facts["running"] else None
    problems = facts["problems"]
    _judge_image(facts["image"], settings, problems)
    if facts["container"]["foreign"]:
        problems.append(
            _problem(
                "foreign-container",
                f"found a container called {settings['container']['name']} that is not of this "
                "cell; next: look at it with docker inspect, and rename or remove it",
            )
        )
    if not facts["running"]:
        problems += _ports(settings, root)
    answers = ask_all(
        {
            "inputs": lambda: [
                problem._asdict() for problem in _rank.check(settings, root, installed=False)
            ],
            "equal": lambda: equal_facts(settings, root),
        },
        deadline,
    )
    for name, answer in answers.items():
        if isinstance(answer, Missing):
            problems.append(
                _problem(
                    "inputs-silent",
                    f"found no answer about the mounts of the rank ({name}: {answer}), as with a "
                    "dead NFS server; next: findmnt -t nfs4, and the playbook share",
                )
            )
    if not isinstance(answers["inputs"], Missing):
        problems += answers["inputs"]
    if not isinstance(answers["equal"], Missing):
        facts["equal"] = answers["equal"]
    if facts["image"]["content"]:
        facts["equal"]["image"] = facts["image"]["content"]
    facts["gpu"] = None
    if facts["running"] and facts["container"]["gpu"]:
        facts["gpu"] = facts["container"]["gpu"]
    elif settings["gpu"] == "none":
        facts["gpu"] = "none"
    elif facts["image"]["exists"]:
        facts["gpu"], problem = find_gpu(settings["container"]["image"], run)
        problems += [problem] if problem else []
    return facts


def _problem(code: str, message: str) -> dict[str, str]:
    return {"code": code, "message": message}


def _judge_image(
    image: Mapping[str, Any], settings: Mapping[str, Any], problems: list[dict[str, str]]
) -> None:
    problems += image["problems"]
    if image["problems"]:
        return
    reference = settings["container"]["image"]
    if not image["exists"]:
        problems.append(
            _problem(
                "image-missing",
                f"found no image {reference}; next: run the playbook build, which brings it",
            )
        )
    elif image["architecture"] != image["node_architecture"]:
        problems.append(
            _problem(
                "image-architecture",
                f"found {reference} for {image['architecture']}, expected one for "
                f"{image['node_architecture']} (it would end with: exec format error); "
                "next: build or pull it for this processor, with the playbook build",
            )
        )


def unit_facts(cell: str, run: Runner) -> dict[str, Any]:
    """The unit of the rank, as systemd sees it."""
    argv = ["systemctl", "show", *(f"--property={name}" for name in _UNIT_PROPERTIES)]
    done = run([*argv, unit_name(cell)])
    values = dict(line.split("=", 1) for line in done.out.splitlines() if "=" in line)
    state = values.get("ActiveState", "unknown")
    return {
        "name": unit_name(cell),
        "known": values.get("LoadState") == "loaded",
        "state": state,
        "active": state == "active",
        "at_work": state in ("active", "activating", "deactivating", "reloading"),
        "enabled": values.get("UnitFileState") == "enabled",
        "result": values.get("Result", ""),
        "exit_status": int(values.get("ExecMainStatus") or 0),
        "reload_needed": values.get("NeedDaemonReload") == "yes",
        "status": values.get("StatusText", ""),
    }


def container_facts(settings: Mapping[str, Any], run: Runner) -> dict[str, Any]:
    """The container with the name of the rank, and whether it is the rank's."""
    facts: dict[str, Any] = {
        "exists": False,
        "foreign": False,
        "running": False,
        "settings": None,
        "image_id": None,
        "gpu": None,
        "pid": 0,
    }
    done = run(["docker", "container", "inspect", settings["container"]["name"]])
    if done.rc != 0:
        return facts
    found = json.loads(done.out)[0]
    labels = found["Config"].get("Labels") or {}
    facts.update(
        exists=True,
        foreign=labels.get(_rank.LABEL_CELL) != settings["cell"],
        running=bool(found["State"]["Running"]),
        settings=labels.get(_rank.LABEL_SETTINGS),
        image_id=found["Image"],
        gpu=labels.get(_rank.LABEL_GPU),
        pid=found["State"]["Pid"],
    )
    return facts


def _ports(settings: Mapping[str, Any], root: str) -> list[dict[str, str]]:
    """The ports that the rank will listen on are free."""
    wanted = {settings["engine_port"]: "the engine"}
    if settings["head"]:
        wanted[settings["rendezvous_port"]] = "the rendezvous of the ranks"
    taken = listening(root)
    return [
        _problem(
            "port-taken",
            f"found somebody listening on TCP port {port}, which {use} needs; "
            f"next: ss -ltnp 'sport = :{port}' names the program; end it, or change the port",
        )
        for port, use in wanted.items()
        if port in taken
    ]


def listening(root: str = "/") -> set[int]:
    """The TCP ports somebody listens on."""
    return {here for here, _there, state in _sockets(root) if state == _LISTEN}


def _unjoined(settings: Mapping[str, Any], root: str) -> str:
    """What a rank lacks to meet the others, empty where it lacks nothing.

    torch.distributed keeps a connection of every rank to the store at the init address.
    """
    port = settings["rendezvous_port"]
    if settings["ranks"] == 1:
        return ""
    if settings["head"]:
        return "" if port in listening(root) else f"nobody listens on TCP port {port}"
    joined = any(there == port and state == _JOINED for _here, there, state in _sockets(root))
    return "" if joined else f"no connection to TCP port {port} of the head"


def _sockets(root: str) -> Iterator[tuple[int, int, str]]:
    """Local port, remote port and state of every TCP socket."""
    for name in ("tcp", "tcp6"):
        try:
            with open(os.path.join(root, "proc/net", name), encoding="ascii") as stream:
                rows = [line.split() for line in stream.readlines()[1:]]
        except OSError:
            continue
        for row in rows:
            here, there = (int(end.rpartition(":")[2], 16) for end in row[1:3])
            yield here, there, row[3]


def equal_facts(settings: Mapping[str, Any], root: str = "/") -> dict[str, str]:
    """What must be the same on every rank, as digests: files the plan cannot know."""
    found: dict[str, str] = {}
    for mount in settings["container"]["mounts"]:
        source = os.path.join(root, mount["source"].lstrip("/"))
        if mount["target"] == settings["model_path"]:
            for name in ("config.json", "model.safetensors.index.json"):
                _hash_into(found, f"{name} of the checkpoint", os.path.join(source, name))
        elif mount["source"].endswith("libnccl.so.2"):
            _hash_into(found, "NCCL library", source)
        elif mount["target"] == "/state":
            for name in ("dspark_sps.json", "dspark_sts.json"):
                _hash_into(found, f"table {name}", os.path.join(source, name))
    version = os.path.join(root, "proc/driver/nvidia/version")
    _hash_into(found, "NVIDIA driver", version)
    return found


def _hash_into(found: dict[str, str], name: str, path: str) -> None:
    try:
        digest = hashlib.sha256()
        with open(path, "rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                digest.update(block)
    except OSError:
        return
    found[name] = digest.hexdigest()[:16]


# --- the GPU --------------------------------------------------------------------------------------


def gpu_ways(info: Mapping[str, Any]) -> list[str]:
    """The ways to ask for a GPU that an engine may understand, the surest first.

    Args:
        info: what ``docker info`` says. Docker 28.3 lists CDI devices; before, a runtime in CDI
            mode refuses the flag, which is then found out by trying.
    """
    devices = [str(device.get("ID", "")) for device in info.get("DiscoveredDevices") or []]
    ways = []
    if any(device.startswith("nvidia.com/gpu") for device in devices):
        ways.append("cdi")
    if "nvidia" in (info.get("Runtimes") or {}):
        ways.append("runtime")
    return [*ways, "gpus"]


def find_gpu(image: str, run: Runner) -> tuple[str | None, dict[str, str] | None]:
    """The first way in which a throw-away container of the image sees a GPU."""
    asked = run(["docker", "info", "--format", "{{json .}}"])
    if asked.rc != 0:
        return None, None  # a problem of the image already
    tried = []
    for way in gpu_ways(json.loads(asked.out)):
        argv: Sequence[str] = [
            *("docker", "run", "--rm", "--pull", "never", "--network", "none"),
            *_rank.GPU_WAYS[way],
            *("--entrypoint", "nvidia-smi", image, "-L"),
        ]
        done = run(argv)
        if done.rc == 0 and "GPU 0" in done.out:
            return way, None
        tried.append(f"{way}: {done.complaint}")
    return None, _problem(
        "no-gpu",
        f"found no way to give a container the GPU ({'; '.join(tried)}); expected "
        "nvidia-smi -L to list it; next: nvidia-smi -L on the host, then nvidia-ctk runtime "
        "configure --runtime=docker",
    )


# --- a rank that boots or runs --------------------------------------------------------------------


def boot_facts(
    settings: Mapping[str, Any],
    run: Runner,
    *,
    proofs: Sequence[Mapping[str, Any]],
    fatals: Sequence[Mapping[str, Any]],
    pool_asked: int | None = None,
    root: str = "/",
    max_bytes: int = 16 << 20,
) -> dict[str, Any]:
    """Where a rank is: its unit, what its starter says, what its log shows, its limits.

    Args:
        settings: of the rank.
        run: runs a command for a bounded time.
        proofs: what the log must show.
        fatals: what it must not show.
        pool_asked: how many tokens the KV pool was to hold.
        root: where the file system of the node begins.
        max_bytes: how much of the log is read.

    Returns:
        `rank`, `head`, `state` and `status` of the unit, `problems` (sentences of the starter),
        `ended` (when it ended, None if it did not), `log` (as ``examine``), `log_path`, `tail` (the
        last lines), `unjoined` (what it lacks to meet the others, empty for nothing),
        `limit_problem` and `limit_note`.
    """
    unit = unit_facts(settings["cell"], run)
    told = _told(settings["cell"], root)
    path = _boot_log(settings, root)
    read = _engine_boot.read_log(os.path.join(root, path.lstrip("/")), 0, max_bytes)
    text, _offset, skipped = read or ("", 0, 0)
    if told.get("settings") is None:
        text, skipped = "", 0  # no start yet, so whatever is there is older
    log = _engine_boot.examine(
        text,
        proofs=proofs,
        fatals=fatals,
        head=bool(settings["head"]),
        asked=pool_asked,
        incomplete=skipped > 0,
    )
    done = told.get("stage") in ("ended", "refused", "stopped")
    lines = [_engine_boot.shown(line) for line in text.splitlines()[-20:]]
    return {
        "rank": settings["rank"],
        "head": bool(settings["head"]),
        "state": unit["state"],
        "status": str(told.get("stage", "")),
        "problems": list(told.get("problems", ())),
        "ended": told.get("ended", told.get("since")) if done else None,
        "log": log,
        "log_path": path,
        "tail": lines,
        "unjoined": _unjoined(settings, root),
        **_limits(settings, int(told.get("pid") or 0) if unit["active"] else 0, root),
    }


def _told(cell: str, root: str) -> dict[str, Any]:
    """What the starter of the rank wrote down, nothing where it never ran since the node booted."""
    path = os.path.join(root, _rank.STATE.format(cell=cell).lstrip("/"))
    try:
        with open(path, encoding="utf-8") as stream:
            found = json.load(stream)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _boot_log(settings: Mapping[str, Any], root: str) -> str:
    """The file with the beginning of the current start."""
    path = str(settings["log"]["path"])
    boot = _rank.boot_log(path)
    return boot if os.path.exists(os.path.join(root, boot.lstrip("/"))) else path


def _limits(settings: Mapping[str, Any], pid: int, root: str) -> dict[str, str]:
    """What the kernel really gave the engine: with little locked memory NCCL falls to sockets."""
    found = {"limit_problem": "", "limit_note": ""}
    if pid <= 0 or settings["container"]["ulimits"].get("memlock") != -1:
        return found
    try:
        with open(os.path.join(root, f"proc/{pid}/limits"), encoding="ascii") as stream:
            line = next(line for line in stream if line.startswith("Max locked memory"))
    except (OSError, StopIteration):
        return found
    value = line[len("Max locked memory") :].split()[0]
    if value == "unlimited":
        return found
    text = (
        f"found a limit of {value} bytes of locked memory on the engine, expected unlimited: RDMA "
        "cannot register its buffers, and NCCL falls back to sockets at about 1 GB/s"
    )
    if settings["accept_limits"]:
        return {**found, "limit_note": f"{text} (accepted by sglang_accept_limits)"}
    return {**found, "limit_problem": f"{text}; next: docker inspect, and the runtime's settings"}
