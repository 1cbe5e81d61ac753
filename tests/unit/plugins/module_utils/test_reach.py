"""What ansible-core says when a module cannot run, and what we make of it."""

from __future__ import annotations

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._reach import diagnose

CASES: list[tuple[str, bool, str, str, str]] = [
    (
        (
            "Task failed: Failed to connect to the host via ssh: ssh: connect to host 192.0.2.13 "
            "port 22: Connection timed out"
        ),
        *(True, "reachable", "it does not answer", "management cable"),
    ),
    ("ssh: connect to host x port 22: No route to host", True, "reachable", "not answer", "power"),
    ("ssh: connect to host x port 22: Connection refused", True, "reachable", "nothing", "sshd"),
    (
        "ssh: Could not resolve hostname spark3: Name or service not known",
        *(True, "reachable", "its name cannot be resolved here", "ansible_host"),
    ),
    (
        "Host key verification failed.",
        *(True, "reachable", "host key is unknown or has changed", "ssh spark3"),
    ),
    (
        "spark@192.0.2.13: Permission denied (publickey,password).",
        *(True, "reachable", "ssh refuses the login as spark", "ssh-copy-id"),
    ),
    (
        "sshpass was not there and the line fell silent",
        *(True, "reachable", "sshpass was not there and the line fell silent", "try: ssh spark3"),
    ),
    (
        "Timeout (12s) waiting for privilege escalation prompt: [sudo: authenticate] Password: ",
        *(True, "sudo", "sudo does not answer Ansible's prompt", "ansible_become_exe"),
    ),
    ("Missing sudo password", False, "sudo", "sudo asks spark for a password", "--ask-become-pass"),
    (
        "Module result deserialization failed.\nsudo: a password is required",
        *(False, "sudo", "sudo asks spark for a password", "NOPASSWD"),
    ),
    ("Incorrect sudo password", False, "sudo", "sudo refuses the password", "become_password"),
    ("spark is not in the sudoers file.", False, "sudo", "spark may not use sudo", "group sudo"),
    (
        "/bin/sh: 1: sudo: not found\nModule result deserialization failed.",
        *(False, "sudo", "sudo is not installed", "install sudo"),
    ),
    (
        (
            "/bin/sh: 1: /opt/python3.13: not found\nThe module interpreter '/opt/python3.13' was "
            "not found."
        ),
        *(False, "python", "Python /opt/python3.13 does not start", "ansible_python_interpreter"),
    ),
    (
        (
            "pyenv: python3.13: command not found\nModule result deserialization failed: No start "
            "of json char found"
        ),
        *(False, "python", "Python /opt/python3.13 does not start", "ansible_python_interpreter"),
    ),
    ("disk quota exceeded\nmore", False, "probe", "disk quota exceeded", "-vvv"),
    ("", False, "probe", "no reason given", "-vvv"),
]


@pytest.mark.parametrize(("said", "unreachable", "check", "found", "fix"), CASES)
def test_diagnoses(said: str, unreachable: bool, check: str, found: str, fix: str) -> None:
    problem = diagnose(
        said, unreachable=unreachable, host="spark3", user="spark", python="/opt/python3.13"
    )
    assert problem.check == check
    assert found in problem.found
    assert fix in problem.fix
    assert "\n" not in problem.found + problem.fix


def test_what_is_not_known_is_not_named() -> None:
    problem = diagnose("Missing sudo password", unreachable=False, host="a", user=None, python=None)
    assert problem.found == "sudo asks the login user for a password"
