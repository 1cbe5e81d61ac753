# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _inventory as inventory

display = Display()


class ActionModule(ActionBase):
    """Hand inventory and play to the pure rules; refuse with everything they complain about."""

    _requires_connection = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _validation, options = self.validate_argument_spec(
            argument_spec={
                "group": {"type": "str", "default": inventory.DEFAULT_GROUP},
                "whole": {"type": "bool", "default": True},
                "group_from_command_line": {"type": "bool", "default": False},
            }
        )
        group = options["group"]
        groups = {name: list(hosts) for name, hosts in variables.get("groups", {}).items()}
        members = groups.get(group, [])

        problems = inventory.check_group(groups, group)
        if options["group_from_command_line"] and not problems:
            problems += self._group_of_plays(group)
        values = {host: self._values(variables["hostvars"][host]) for host in members}
        for complaint in inventory.check_variables(values):
            problems.append(str(complaint))
            # The warning shows the file and the line where the value stands; a failure cannot.
            display.warning(str(complaint), obj=values[complaint.hosts[0]][complaint.variable])
        problems += inventory.check_addresses(values)
        if options["whole"]:
            problems += inventory.check_whole(
                members,
                variables.get("ansible_play_hosts_all", []),
                variables.get("ansible_play_hosts", []),
                variables.get("ansible_play_batch", []),
                variables.get("ansible_limit"),
            )
        for warning in inventory.unknown_variables(name for one in values.values() for name in one):
            display.warning(warning)

        if problems:
            return {**result, "failed": True, "changed": False, "msg": "\n".join(problems)}
        return {**result, "changed": False, "hosts": members}

    def _group_of_plays(self, group: str) -> list[str]:
        """Plays choose their hosts before any variable of the inventory exists."""
        given = self._task.get_variable_manager().extra_vars.get(
            "spark_group", inventory.DEFAULT_GROUP
        )
        if given == group:
            return []
        return [
            (
                f"spark_group is {group!r} in the inventory, but the plays run on {given!r}: they "
                "choose their hosts before the inventory's variables exist. "
                f"Use -e spark_group={group} instead."
            )
        ]

    def _values(self, hostvars: Mapping[str, Any]) -> dict[str, Any]:
        names = [
            name
            for name in hostvars
            if name in inventory.VARIABLES or name.startswith(inventory.OWN_PREFIX)
        ]
        values: dict[str, Any] = {}
        for name in names:
            try:
                values[name] = hostvars[name]
            except AnsibleError as error:
                values[name] = inventory.Unreadable(str(error))
        return values
