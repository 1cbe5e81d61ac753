# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Docker engine that runs container nodes: one that is there already, else one of our own.

Our own is started without a bridge and without touching the machine's firewall or forwarding,
keeps its images in the cache, and is ended when the last lab that needs it is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lab.system import CACHE, LabError, need_programs, step

if TYPE_CHECKING:
    from docker import DockerClient

RUN = Path("/run/sparkfleet-lab")
SOCKET = RUN / "docker.sock"
_PIDFILE = RUN / "docker.pid"
_LOG = RUN / "dockerd.log"


def running() -> DockerClient | None:
    """A client of the engine that answers now, our own first: where it runs, labs stand on it.

    Only engines behind a socket of this machine count: a node is wired through its process.
    """
    try:
        import docker
        from docker.errors import DockerException
        from requests import RequestException
    except ImportError as error:
        raise LabError(
            "the Python package 'docker' is missing: run 'make setup' and use .venv/bin/python"
        ) from error
    ours, machines = f"unix://{SOCKET}", "unix:///var/run/docker.sock"
    for address in (ours, os.environ.get("DOCKER_HOST", ""), machines):
        if not address.startswith("unix://") or not Path(address[7:]).is_socket():
            continue
        try:
            client = docker.DockerClient(base_url=address, version="auto", timeout=120)
        except (DockerException, RequestException):  # a socket that nobody serves any more
            continue
        return client
    return None


def ensure() -> DockerClient:
    """A client of a usable engine; starts our own where none runs.

    :raises LabError: the running engine cannot be used, or ours does not start.
    """
    client = running() or _start()
    options = client.info().get("SecurityOptions") or []
    if any("rootless" in option for option in options):
        raise LabError(
            "the Docker engine of this machine is rootless: its containers cannot be wired. "
            "Unset DOCKER_HOST, or stop it, and the lab starts an engine of its own"
        )
    return client


def _start() -> DockerClient:
    need_programs({"dockerd": "docker.io", "containerd": "containerd", "runc": "runc"})
    RUN.mkdir(parents=True, exist_ok=True)
    with step("starting a Docker engine for the lab"), _LOG.open("ab") as log:
        engine = subprocess.Popen(
            ["dockerd", "--host", f"unix://{SOCKET}", "--pidfile", str(_PIDFILE)]
            + ["--data-root", str(CACHE / "engine"), "--exec-root", str(RUN / "exec")]
            + ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"]
            + ["--log-level=warn"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        for _attempt in range(300):
            client = running()
            if client is not None:
                return client
            if engine.poll() is not None:
                break
            time.sleep(0.2)
    tail = "\n".join(_LOG.read_text(errors="replace").splitlines()[-8:])
    raise LabError(f"dockerd does not start; its log {_LOG} ends with:\n{tail}")


def stop() -> None:
    """End our own engine (never the machine's) when it runs no container any more."""
    try:
        pid = int(_PIDFILE.read_text())
        mine = b"dockerd" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (OSError, ValueError):
        return
    client = running()
    if not mine or (client is not None and client.containers.list(all=True)):
        return
    os.kill(pid, signal.SIGTERM)
    for _attempt in range(150):
        if not Path(f"/proc/{pid}").exists():
            break
        time.sleep(0.1)
    else:
        os.kill(pid, signal.SIGKILL)
