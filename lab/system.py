# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine the lab runs on: commands, packages, progress, locks."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

STATE = Path(os.environ.get("LAB_STATE", "/var/lib/sparkfleet-lab"))
CACHE = Path(os.environ.get("LAB_CACHE", "/var/cache/sparkfleet-lab"))


class LabError(Exception):
    """Something a person can act on; the text is printed as it is, without a traceback."""


def run(
    argv: Sequence[str | Path],
    *,
    check: bool = True,
    text: str | None = None,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command, capture its output.

    :raises LabError: it failed (with the command and its last words), is missing, or timed out.
    """
    words = [str(word) for word in argv]
    try:
        done = subprocess.run(
            words,
            check=False,
            input=text,
            stdin=subprocess.DEVNULL if text is None else None,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, **env} if env else None,
        )
    except FileNotFoundError as error:
        raise LabError(f"{words[0]} is not installed on this machine") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"no answer within {timeout:.0f} s: {_short(words)}") from error
    if check and done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-8:]
        raise LabError("\n".join([f"exit code {done.returncode}: {_short(words)}", *said]))
    return done


def _short(words: Sequence[str]) -> str:
    line = shlex.join(words)
    return line if len(line) < 300 else f"{line[:300]} ..."


def say(text: str) -> None:
    print(text, flush=True)


@contextlib.contextmanager
def step(title: str) -> Iterator[None]:
    """Print what is being done, then how long it took."""
    print(f"{title} ...", end=" ", flush=True)
    started = time.monotonic()
    try:
        yield
    except BaseException:
        print("FAILED", flush=True)
        raise
    print(f"{time.monotonic() - started:.1f} s", flush=True)


def become_root() -> None:
    """Network namespaces, mounts and the engine need root: start again through sudo."""
    if os.geteuid() == 0:
        return
    if not shutil.which("sudo"):
        raise LabError("the lab needs root, and sudo is not installed; run this as root")
    keep = [f"{name}={os.environ[name]}" for name in os.environ if name.startswith("LAB_")]
    os.execvp("sudo", ["sudo", *keep, sys.executable, "-m", "lab", *sys.argv[1:]])


def owner() -> tuple[int, int]:
    """Who asked for the lab (through sudo, perhaps): that person must read the ssh key."""
    return int(os.environ.get("SUDO_UID", "0")), int(os.environ.get("SUDO_GID", "0"))


def need_programs(programs: Mapping[str, str]) -> None:
    """Install the distribution packages of missing programs ({program: package}).

    Packages that bring a daemon must not start it: the lab starts its own, and ends it.
    """
    path = f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin"
    os.environ["PATH"] = path
    missing = sorted({package for name, package in programs.items() if not shutil.which(name)})
    if not missing:
        return
    if not shutil.which("apt-get"):
        raise LabError(f"please install: {' '.join(missing)} (no apt-get here to do it)")
    with step(f"installing {' '.join(missing)}"), _no_service_starts():
        apt = {"DEBIAN_FRONTEND": "noninteractive", "NEEDRESTART_SUSPEND": "1"}
        run(["apt-get", "update", "-q"], env=apt, check=False)
        run(
            ["apt-get", "install", "-qy", "--no-install-recommends", *missing],
            env=apt,
            timeout=1200,
        )


@contextlib.contextmanager
def _no_service_starts() -> Iterator[None]:
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """One command at a time on one thing; the kernel lets go when a process dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another lab command ({path.name})")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_atomic(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file so that a reader sees the old or the new text, never half of it."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(text)
    aside.chmod(mode)
    aside.replace(path)
