# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Say what is wrong when Ansible cannot run a module on a host.

ansible-core reports these as text of several layers (ssh, sudo, the shell, its own wrapper). The
patterns below are the words those layers use, the most telling first.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Problem(NamedTuple):
    """What kept a module from running: the preflight check it belongs to, and both sides of it."""

    check: str
    found: str
    fix: str


_ALLOW_SUDO = (
    "add --ask-become-pass (-K) to the command, or let {user} use sudo without a password: "
    "{user} ALL=(ALL) NOPASSWD: ALL in /etc/sudoers.d/{user}"
)
_RUST_SUDO = (
    "set ansible_become_exe to the classic sudo (on Ubuntu /usr/bin/sudo.ws), "
    "or let {user} use sudo without a password"
)
_PYTHON = "set ansible_python_interpreter of this host to a Python 3.10 or newer that starts"
_PATTERNS: tuple[tuple[str, str, str, str], ...] = (
    (
        r"waiting for privilege escalation",
        "sudo",
        "sudo does not answer Ansible's prompt",
        _RUST_SUDO,
    ),
    (
        r"Missing \S+ password|a password is required|a terminal is required",
        "sudo",
        "sudo asks {user} for a password",
        _ALLOW_SUDO,
    ),
    (
        r"Incorrect \S+ password|Sorry, try again|Authentication failed",
        "sudo",
        "sudo refuses the password",
        "check ansible_become_password or what was typed at the prompt",
    ),
    (
        r"not in the sudoers file|may not run sudo|is not allowed to (?:execute|run)",
        "sudo",
        "{user} may not use sudo",
        "add {user} to the group sudo, or set ansible_user to one who may",
    ),
    (
        r"(?:sudo|su|doas): (?:command )?not found",
        "sudo",
        "sudo is not installed",
        "install sudo there",
    ),
    (
        r"Host key verification failed|REMOTE HOST IDENTIFICATION HAS CHANGED",
        "reachable",
        "the host key is unknown or has changed",
        "compare the key and accept it once with: ssh {host}",
    ),
    (
        r"Permission denied",
        "reachable",
        "ssh refuses the login as {user}",
        "set ansible_user and ansible_ssh_private_key_file, or copy your key with ssh-copy-id",
    ),
    (
        r"Could not resolve hostname|Name or service not known|failure in name resolution",
        "reachable",
        "its name cannot be resolved here",
        "set ansible_host to its management address",
    ),
    (
        r"Connection refused",
        "reachable",
        "nothing listens on its ssh port",
        "start sshd there, or correct ansible_host and ansible_port",
    ),
    (
        r"timed out|No route to host|Network is unreachable|Host is down",
        "reachable",
        "it does not answer",
        "check power, the management cable and ansible_host",
    ),
    (
        r"interpreter .* was not found|deserialization failed|No such file or directory|not found",
        "python",
        "Python {python} does not start",
        _PYTHON,
    ),
)


def diagnose(
    text: str, *, unreachable: bool, host: str, user: str | None, python: str | None
) -> Problem:
    """Name the problem behind a failure that ansible-core reported.

    `text` is everything it said; `unreachable` whether it blames the connection; the others are how
    the host was to be reached, None for what is not known.
    """
    known = {"host": host, "user": user or "the login user", "python": python or "there"}
    for pattern, check, found, fix in _PATTERNS:
        if unreachable and check == "python":
            continue
        if re.search(pattern, text, re.IGNORECASE):
            return Problem(check, found.format(**known), fix.format(**known))
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    if unreachable:
        return Problem("reachable", first, f"try: ssh {host}")
    return Problem("probe", first, "run again with -vvv to see everything the host said")
