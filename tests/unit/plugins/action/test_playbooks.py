"""Bad input through real playbook runs: one readable message, no traceback, nothing changed.

The hosts are this machine under other names, reached without ssh. What such a machine is not (a
Spark) is skipped, so that what remains is judged for real.
"""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_rules import CHECKS

from tests.support.playbook import ROOT, Run, run_playbook

SITE = ROOT / "playbooks" / "site.yml"
DOCTOR = ROOT / "playbooks" / "doctor.yml"
# Checks that do not depend on what the machine running the tests is.
NEUTRAL = {"cell", "reachable", "sudo", "python", "probe", "arch", "kernel"}
SKIP = ",".join(sorted(CHECKS.keys() - NEUTRAL))
SUDO = """#!/bin/sh
# Stands in for sudo -H -S -n -u root CMD; runs CMD as whoever runs the tests.
while [ "$1" != root ]; do shift; done
shift
exec "$@"
"""
SUDO_WITH_PASSWORD = """#!/bin/sh
echo 'sudo: a password is required' >&2
exit 1
"""


class Cell:
    """Playbook runs against one inventory, made of this machine under several names."""

    def __init__(self, tmp_path: Path, size: int) -> None:
        self.path = tmp_path
        self.sudo = self._program("sudo", SUDO)
        self.vars: dict[str, Any] = {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "ansible_become_exe": str(self.sudo),
        }
        self.hosts: dict[str, dict[str, Any]] = {f"spark{n}": {} for n in range(1, size + 1)}
        self.group = "sparks"
        self.extra = ""
        self.reports = tmp_path / "state"

    def _program(self, name: str, text: str) -> Path:
        path = self.path / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def sudo_with_password(self) -> str:
        return str(self._program("sudo-with-password", SUDO_WITH_PASSWORD))

    def run(
        self, playbook: Path | str = DOCTOR, *args: str, env: Mapping[str, str] | None = None
    ) -> Run:
        inventory = self.path / "inventory.yml"
        text = yaml.safe_dump({self.group: {"vars": self.vars, "hosts": self.hosts}}) + self.extra
        inventory.write_text(text)
        run = run_playbook(
            playbook,
            inventory,
            *args,
            env={
                "ANSIBLE_BECOME_ALLOW_SAME_USER": "True",
                "XDG_STATE_HOME": str(self.reports),
                **(env or {}),
            },
            timeout=120,
        )
        assert "Traceback" not in run.output
        assert not run.changed
        return run

    def refused(self, playbook: Path | str, *args: str) -> str:
        """Run and return the message of the one failure; nothing may have been contacted."""
        run = self.run(playbook, *args)
        assert run.returncode == 2, run.output
        (note,) = run.failed
        assert "Read every node" not in run.output
        return note.message


@pytest.fixture
def cell(tmp_path: Path) -> Cell:
    return Cell(tmp_path, size=4)


@pytest.fixture
def pair(tmp_path: Path) -> Cell:
    """For what does not depend on the number of hosts: half the time."""
    return Cell(tmp_path, size=2)


@pytest.mark.parametrize("limit", [(), ("--limit", "spark2")])
def test_no_group(cell: Cell, limit: tuple[str, ...]) -> None:
    """A play without hosts ends well in Ansible, and with --limit localhost is left out too."""
    cell.group = "dgx"
    message = cell.refused(SITE, *limit)
    assert "no group 'sparks'; it has dgx (4 hosts)" in message
    assert "-e spark_group=NAME" in message


def test_another_group(pair: Cell) -> None:
    pair.group = "dgx"
    run = pair.run(DOCTOR, "-e", "spark_group=dgx", "-e", f"preflight_skip={SKIP}")
    assert run.assert_ok().hosts["spark2"].ok > 0
    assert (pair.reports / "sparkfleet" / "preflight-dgx.json").exists()


def test_another_group_that_the_plays_cannot_know_of(cell: Cell) -> None:
    cell.group = "dgx"
    cell.extra = "all: {vars: {spark_group: dgx}}\n"
    assert "Use -e spark_group=dgx instead." in cell.refused(SITE)


def test_several_problems_at_once(cell: Cell) -> None:
    """Every variable and every address is told in one run, with the file and the line."""
    cell.hosts["spark1"]["ansible_host"] = cell.hosts["spark2"]["ansible_host"] = "192.0.2.11"
    cell.hosts["spark3"]["spark_checkpoint_dir"] = "~/models"
    cell.hosts["spark4"]["spark_api_port"] = "{{ nowhere }}"
    cell.extra = "all: {vars: {spark_management_interface: 44:11:22:33:44:55}}\n"
    run = cell.run(SITE)
    assert run.returncode == 2
    (note,) = run.failed
    assert note.message == (
        "spark1..spark4: spark_management_interface is 34361833495: YAML read what stands there as "
        "a number; quote it.\n"
        "spark3: spark_checkpoint_dir is '~/models', which is no absolute path (~ would be root's "
        "home there).\n"
        "spark4: spark_api_port cannot be evaluated: 'nowhere' is undefined.\n"
        "spark1, spark2 have the same address 192.0.2.11 port 22; correct ansible_host, or "
        "ansible_port behind a gateway."
    )
    line = len(cell.path.joinpath("inventory.yml").read_text().splitlines())
    assert f"inventory.yml:{line}:" in run.output, "where the unquoted address stands"


def test_one_host(cell: Cell) -> None:
    cell.hosts = {"spark1": {}}
    assert "group 'sparks' has only spark1" in cell.refused(SITE)


def test_site_needs_the_whole_cell(cell: Cell) -> None:
    message = cell.refused(SITE, "--limit", "spark2")
    assert message.startswith("--limit spark2 leaves out spark1, spark3, spark4;")


def test_doctor_looks_at_some_hosts_and_says_so(cell: Cell) -> None:
    run = cell.run(DOCTOR, "--limit", "spark2", "-e", f"preflight_skip={SKIP}").assert_ok()
    assert "not looked at (--limit)" in run.output
    assert "and nothing to compare with" in run.output
    report = json.loads((cell.reports / "sparkfleet" / "preflight-sparks.json").read_text())
    assert list(report["results"]) == ["spark2"]
    assert report["summary"]["ready"] is True


PLAYS = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Fall over
      ansible.builtin.fail:
      when: inventory_hostname == (victim | default(''))
- hosts: sparks
  gather_facts: false
  serial: "{{ batch | default(0) }}"
  roles: [sparkfleet.cluster.preflight]
"""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-e", "batch=1"), "serial leaves spark2..spark4 for later"),
        (("-e", "victim=spark3"), "spark3 failed or became unreachable earlier in this run"),
        (("--limit", "spark1,spark2"), "--limit spark1,spark2 leaves out spark3, spark4"),
    ],
)
def test_a_role_used_alone_is_guarded_too(cell: Cell, args: tuple[str, ...], words: str) -> None:
    playbook = cell.path / "plays.yml"
    playbook.write_text(PLAYS)
    run = cell.run(playbook, *args)
    assert run.returncode == 2
    assert run.failed[-1].message.startswith(words)
    assert "Read every node" not in run.output


def test_every_broken_host_is_a_row_of_one_table(cell: Cell) -> None:
    cell.hosts["spark1"]["ansible_become_exe"] = cell.sudo_with_password()
    cell.hosts["spark2"] |= {
        "ansible_connection": "ssh",
        "ansible_host": "127.0.0.1",
        "ansible_port": 1,
        "ansible_ssh_common_args": "-F none",
    }
    cell.hosts["spark3"]["ansible_python_interpreter"] = "/opt/nowhere/python3.13"
    run = cell.run(DOCTOR, "-e", f"preflight_skip={SKIP}")
    assert run.returncode == 2
    (note,) = run.failed
    assert note.message == (
        "cell sparks is not ready: reachable on spark2; sudo on spark1; python on spark3"
    )
    report = json.loads((cell.reports / "sparkfleet" / "preflight-sparks.json").read_text())
    failed = {row["check"]: row for row in report["rows"] if row["status"] == "fail"}
    assert failed["reachable"]["found"] == "nothing listens on its ssh port"
    assert failed["sudo"]["found"].startswith("sudo asks ")
    assert "--ask-become-pass" in failed["sudo"]["fix"]
    assert failed["python"]["found"] == "Python /opt/nowhere/python3.13 does not start"
    assert failed["python"]["fix"].startswith("set ansible_python_interpreter: /")
    for host in ("spark1", "spark3", "spark4"):
        assert report["results"][host]["probe"]["system"]["hostname"], "read by other means"
    assert report["summary"]["hosts"] == list(cell.hosts)


@pytest.mark.parametrize("injected", ["True", "False"])
def test_settings_given_as_text(pair: Cell, injected: str) -> None:
    """Values given with -e are text: a list is split and never searched, numbers are numbers."""
    run = pair.run(
        *(DOCTOR, "-e", f"preflight_skip={SKIP}", "-e", "preflight_clock_skew=7"),
        *("-e", "preflight_severity=kernel=warning", "-e", "preflight_memory_total_gib=1e6"),
        env={"ANSIBLE_INJECT_FACT_VARS": injected},
    )
    report = json.loads((pair.reports / "sparkfleet" / "preflight-sparks.json").read_text())
    assert run.assert_ok().assert_unchanged()
    assert set(report["summary"]["skip"]) == CHECKS.keys() - NEUTRAL
    assert {row["severity"] for row in report["rows"] if row["check"] == "kernel"} == {"warning"}


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("preflight_skip=gpus", "preflight_skip names the check 'gpus', which does not exist"),
        ("preflight_severity=swap=fatal", "preflight_severity sets swap to 'fatal'; use error,"),
        ("preflight_pcie_width=four", "preflight_pcie_width"),
    ],
)
def test_settings_that_make_no_sense(pair: Cell, setting: str, words: str) -> None:
    run = pair.run(DOCTOR, "-e", setting)
    assert run.returncode == 2
    assert words in run.failed[0].message


def test_check_mode_looks_and_writes_nothing(pair: Cell) -> None:
    only = ("--tags", "preflight")
    run = pair.run(SITE, "--check", "--diff", *only, "-e", f"preflight_skip={SKIP}")
    run.assert_ok().assert_unchanged()
    assert "Preflight of sparks" in run.output
    assert not pair.reports.exists()


def test_a_report_that_cannot_be_written_is_a_warning(pair: Cell) -> None:
    path = "/proc/nowhere/report.json"
    run = pair.run(
        DOCTOR, "-e", f"preflight_skip={SKIP}", "-e", f"preflight_report_path={path}"
    ).assert_ok()
    assert f"The preflight report is not written: {path}: No such file or directory" in run.output


def _ansible(*argv: str, cwd: str = "/") -> str:
    """Run an Ansible command that knows of no collection but what it finds itself."""
    program = Path(sys.executable).with_name(argv[0])
    return subprocess.run(
        [str(program), *argv[1:]],
        cwd=cwd,
        env={
            "PATH": f"{program.parent}:/usr/bin:/bin",
            "HOME": "/nonexistent",
            "ANSIBLE_LOCAL_TEMP": "/tmp",
            "ANSIBLE_COLLECTIONS_PATH": "/nonexistent",
            "LC_ALL": "C.UTF-8",
        },
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        timeout=60,
    ).stdout


def test_a_checkout_finds_its_collection_from_anywhere(tmp_path: Path) -> None:
    """Ansible ignores ansible.cfg in a directory anybody may write to, and in other directories."""
    checkout = tmp_path / "checkout"
    checkout.mkdir()
    for name in ("plugins", "roles", "playbooks", "inventories", "collections", "meta"):
        shutil.copytree(ROOT / name, checkout / name, symlinks=True)
    for name in ("site.yml", "sparks", "galaxy.yml", "ansible.cfg"):
        shutil.copy(ROOT / name, checkout / name, follow_symlinks=False)
    checkout.chmod(0o777)
    assert checkout.stat().st_mode & stat.S_IWOTH
    for cwd, prefix in (("/", f"{checkout}/"), (str(checkout), "")):
        listed = _ansible(
            *("ansible-playbook", f"{prefix}site.yml", "-i", f"{prefix}sparks", "--list-tasks"),
            cwd=cwd,
        )
        assert "sparkfleet.cluster.preflight : Judge the cell" in listed
        listed = _ansible(
            *("ansible-playbook", f"{prefix}playbooks/doctor.yml", "-i", f"{prefix}sparks"),
            "--list-tasks",
            cwd=cwd,
        )
        assert "sparkfleet.cluster.spark : Refuse half a cell" in listed


def test_the_link_and_the_inventory_give_the_same_variables() -> None:
    by_link, by_file = (
        _ansible("ansible-inventory", "-i", str(ROOT / name), "--list")
        for name in ("sparks", "inventories/sparks.yml")
    )
    assert by_link == by_file
    assert json.loads(by_link)["sparks"]["hosts"] == [f"spark{n}" for n in range(1, 5)]
