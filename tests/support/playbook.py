"""Runs playbooks the way a user does, as a process of their own, and says what they did.

Neither the developer's own Ansible settings nor the checkout's ansible.cfg reach the run,
and facts are not injected as variables: what works here works for somebody who has neither.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COLLECTIONS = ROOT / "collections"


@dataclass(frozen=True)
class HostStats:
    """The recap line of one host: how many tasks ended in which way."""

    ok: int
    changed: int
    failures: int
    unreachable: int
    skipped: int
    rescued: int
    ignored: int


@dataclass(frozen=True)
class Note:
    """One task result worth telling: it changed, failed or could not reach its host."""

    host: str
    task: str
    action: str
    message: str

    def __str__(self) -> str:
        return f"{self.host}: {self.task} ({self.action}) {self.message}".rstrip()


@dataclass(frozen=True)
class Run:
    """Outcome of one ansible command; ``hosts`` is empty when it ended before the first task."""

    command: Sequence[str]
    returncode: int
    output: str
    hosts: Mapping[str, HostStats] = field(default_factory=dict)
    changed: Sequence[Note] = ()
    failed: Sequence[Note] = ()

    def assert_ok(self) -> Run:
        """Fail unless the run ended well on at least one host."""
        assert self.returncode == 0, f"exit code {self.returncode}\n{self._evidence(self.failed)}"
        assert self.hosts, f"the run did nothing on any host\n{self._evidence(())}"
        return self

    def assert_unchanged(self) -> Run:
        """Fail when any task reported a change, naming each."""
        assert not self.changed, f"tasks changed something\n{self._evidence(self.changed)}"
        return self

    def _evidence(self, notes: Sequence[Note]) -> str:
        return "\n".join([*map(str, notes), " ".join(self.command), self.output])


def ansible_env(directory: Path) -> dict[str, str]:
    """Environment for an ansible command; ``directory`` takes all it writes on the controller."""
    config = directory / "ansible.cfg"
    config.touch()
    return {
        **{k: v for k, v in os.environ.items() if not k.startswith("ANSIBLE_")},
        "ANSIBLE_CONFIG": str(config),
        "ANSIBLE_COLLECTIONS_PATH": str(COLLECTIONS),
        "ANSIBLE_INJECT_FACT_VARS": "False",
        "ANSIBLE_NOCOLOR": "True",
        "ANSIBLE_PIPELINING": "True",
        "ANSIBLE_TIMEOUT": "60",  # emulated machines are slow to answer sudo
        "XDG_STATE_HOME": str(directory),
    }


def run_playbook(
    playbook: Path | str,
    inventory: Path | str,
    *args: str,
    env: Mapping[str, str] | None = None,
    cwd: Path = Path("/"),
    timeout: float = 600,
) -> Run:
    """Run ``ansible-playbook`` and return what it did; ``args`` are appended to the command.

    Args:
        playbook: file, or full name of a playbook of the checkout's collection.
        inventory: file, or a comma separated list of hosts.
        args: further command line arguments.
        env: environment variables added for this run.
        cwd: working directory, by default one that has nothing to do with the checkout.
        timeout: seconds after which the run is ended and the test fails.

    Raises:
        subprocess.TimeoutExpired: the run did not end in time.
    """
    with tempfile.TemporaryDirectory(prefix="sparkfleet-run-") as directory:
        record = Path(directory) / "record.json"
        command = [sys.executable, "-m", "ansible", "playbook", "-i", str(inventory)]
        command += [*args, str(playbook)]
        process = subprocess.run(
            command,
            env={
                **ansible_env(Path(directory)),
                "ANSIBLE_CALLBACK_PLUGINS": str(Path(__file__).parent / "callback_plugins"),
                "ANSIBLE_CALLBACKS_ENABLED": "record",
                "SPARKFLEET_RECORD": str(record),
                **(env or {}),
            },
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout,
            check=False,
        )
        done = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {}
    return Run(
        command=command,
        returncode=process.returncode,
        output=process.stdout,
        hosts={name: HostStats(**stats) for name, stats in done.get("hosts", {}).items()},
        changed=[Note(**note) for note in done.get("changed", [])],
        failed=[Note(**note) for note in done.get("failed", [])],
    )


def assert_idempotent(playbook: Path | str, inventory: Path | str, *args: str) -> tuple[Run, Run]:
    """Run a playbook twice: both must end well and the second must change nothing."""
    first = run_playbook(playbook, inventory, *args).assert_ok()
    second = run_playbook(playbook, inventory, *args).assert_ok().assert_unchanged()
    return first, second


def assert_check_changes_nothing(
    playbook: Path | str, inventory: Path | str, *args: str, witness: Callable[[], object]
) -> Run:
    """Run a playbook with ``--check --diff``: it must end well and leave the world as it was.

    ``witness`` returns whatever tells the state of the hosts (contents, times, units) and is called
    before and after. The run may well report what it would change; ``assert_unchanged`` on the
    returned run adds that it must not, for hosts that are converged already.
    """
    before = witness()
    run = run_playbook(playbook, inventory, "--check", "--diff", *args).assert_ok()
    after = witness()
    assert after == before, f"--check changed the hosts: {before!r} became {after!r}\n{run.output}"
    return run
