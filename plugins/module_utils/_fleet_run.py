# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The command that does for one cell what was asked for all, and what its output tells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

# Options of ansible-playbook with one value that a run for a cell has as well.
_VALUES = {
    "private_key_file": "--private-key",
    "remote_user": "--user",
    "connection": "--connection",
    "timeout": "--timeout",
    "ssh_common_args": "--ssh-common-args",
    "sftp_extra_args": "--sftp-extra-args",
    "scp_extra_args": "--scp-extra-args",
    "ssh_extra_args": "--ssh-extra-args",
    "connection_password_file": "--connection-password-file",
    "become_method": "--become-method",
    "become_user": "--become-user",
    "become_password_file": "--become-password-file",
    "forks": "--forks",
}
_LISTS = {
    "inventory": "--inventory",
    "extra_vars": "--extra-vars",
    "vault_ids": "--vault-id",
    "vault_password_files": "--vault-password-file",
    "tags": "--tags",
    "skip_tags": "--skip-tags",
    "module_path": "--module-path",
}
_FLAGS = {
    "become": "--become",
    "check": "--check",
    "diff": "--diff",
    "flush_cache": "--flush-cache",
    "force_handlers": "--force-handlers",
}
# Runs for several cells have no terminal to ask at.
_ASKING = {
    "ask_pass": "--connection-password-file",
    "become_ask_pass": "--become-password-file",
    "ask_vault_pass": "--vault-password-file",
}
_RECAP = re.compile(r"^\S+\s+: ok=\d+\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)")
_TOLD = re.compile(r"^\[ERROR\]: |^\s+msg: |^fatal: ")


def problems(
    options: Mapping[str, Any], cells: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> list[str]:
    """Why it cannot be done for all cells, as sentences.

    Args:
        options: of the command line of this run, as Ansible keeps them.
        cells: names of inventory groups.
        groups: of the inventory.
    """
    said = [
        f"{len(cells)} cells cannot be asked for a password one beside the other; give it in a "
        f"file, with {instead}, instead of a question at the terminal"
        for name, instead in _ASKING.items()
        if options.get(name)
    ]
    if options.get("subset"):
        said.append(
            f"--limit {options['subset']} would leave half a cell; name the cells instead, with "
            '-e fleet_cells=["NAME"] in JSON'
        )
    if options.get("step") or options.get("start_at_task"):
        said.append(
            "--step and --start-at-task are for one cell; use -e spark_group=NAME with site"
        )
    if not cells:
        said.append(
            "router_cells names no cell; give the names of the inventory groups that are cells, "
            "for all hosts, such as router_cells: [cell_a, cell_b]"
        )
    said += [
        f"the inventory has no group {cell} with hosts, which is named among the cells"
        for cell in cells
        if not groups.get(cell)
    ]
    owner: dict[str, str] = {}
    for cell in dict.fromkeys(cells):
        for host in groups.get(cell, ()):
            if owner.setdefault(host, cell) != cell:
                said.append(f"{host} is in {owner[host]} and in {cell}; a node has one rank")
    return said


def command(python: str, options: Mapping[str, Any], playbook: str, cell: str) -> list[str]:
    """What runs the playbook for one cell as it would have been run for all."""
    argv = [python, "-m", "ansible", "playbook"]
    for name, option in _LISTS.items():
        for value in options.get(name) or ():
            argv += [option, str(value)]
    for name, option in _VALUES.items():
        if options.get(name):
            argv += [option, str(options[name])]
    argv += [option for name, option in _FLAGS.items() if options.get(name)]
    verbosity = int(options.get("verbosity") or 0)
    if verbosity:
        argv.append("-" + "v" * verbosity)
    return [*argv, "--extra-vars", f"spark_group={cell}", playbook]


def changed(lines: Sequence[str]) -> bool:
    """Whether a run changed anything, by its recap."""
    return any(int(found[1]) for line in lines if (found := _RECAP.match(line)))


def cause(lines: Sequence[str], most: int = 6) -> str:
    """What a run that failed said last about it."""
    found = [line.strip() for line in lines if _TOLD.match(line)]
    return "\n".join(found[-most:]) or "\n".join(line.rstrip() for line in lines[-most:])
