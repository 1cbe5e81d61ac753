# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_rank
short_description: Install, start, stop or remove the rank of a node
version_added: 0.1.0
description:
  - The rank is a unit of systemd that owns a container. Its files are the settings, the unit, and
    the programs that start the rank and choose its GIDs.
  - The unit is never changed while the rank is at work, because a reload of systemd takes the GPU
    away from a running container.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
attributes:
  check_mode:
    description:
      - Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: full
options:
  settings:
    description:
      - The result of P(sparkfleet.cluster.rank_settings#filter) for this host. To stop or remove a
        rank, C(cell) is enough.
    type: dict
    required: true
  gpu:
    description:
      - In which way a container gets the GPU, from M(sparkfleet.cluster.sglang_rank_info). Needed
        with O(state=present) where the settings want a GPU.
    type: str
    choices: [cdi, runtime, gpus, none]
  state:
    description:
      - V(present) installs, V(started) also starts and returns when the container runs, which is
        long before the engine answers. V(stopped) stops and removes the container. V(absent) also
        removes the files; what the engine keeps, and logs, stay.
    type: str
    choices: [present, started, stopped, absent]
    default: started
  enabled:
    description: Whether the unit starts with the node.
    type: bool
    default: true
"""

EXAMPLES = r"""
---
- name: Install the rank of this host
  sparkfleet.cluster.sglang_rank:
    settings: "{{ settings }}"
    gpu: "{{ found.gpu }}"
    state: present
  become: true

- name: Stop it
  sparkfleet.cluster.sglang_rank:
    settings: "{{ settings }}"
    state: stopped
  become: true
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode.
  returned: always
  type: list
  elements: str
  sample: [write /etc/sparkfleet/sparks/rank.json, start sparkfleet-rank@sparks.service]
"""

import functools
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _rank_unit
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_node import unit_facts
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_settings import unit_name


class Change:
    """Brings a rank into the state asked for, step by step."""

    def __init__(self, module: AnsibleModule) -> None:
        self._module = module
        self._settings: dict[str, Any] = module.params["settings"]
        self._cell = self._settings["cell"]
        # A start waits for the links, a stop for the engine to end.
        waits = (self._settings.get(name, 0) for name in ("gid_wait", "stop_grace"))
        seconds = sum(waits) + 300
        self._run = functools.partial(run_command, timeout=seconds)
        self._unit = unit_facts(self._cell, self._run)
        self._files = _rank_unit.Installation(self._settings, module.params["gpu"])
        self.actions: list[str] = []
        self.diff: list[dict[str, str]] = []

    def _do(self, text: str) -> bool:
        """Note an action; whether it is to be done."""
        self.actions.append(text)
        return not self._module.check_mode

    def present(self) -> None:
        if self._settings["gpu"] == "auto" and not self._module.params["gpu"]:
            raise _rank_unit.UnitError("gpu is needed, from sglang_rank_info")
        differing = self._files.differing()
        folders = self._files.missing_folders()
        unit_changed = self._files.unit_file in differing
        if unit_changed and self._unit["at_work"] and not self._module.check_mode:
            raise _rank_unit.UnitError(
                f"{self._unit['name']} is {self._unit['state']} and its unit has to change, which "
                "takes the GPU away from a running container; next: stop it first"
            )
        self.diff = self._files.diff()
        done = [self._do(f"write {path}") for path in [*folders, *differing]]
        if any(done):
            self._files.write()
        reload_needed = self._unit["reload_needed"] and not self._unit["at_work"]
        if (unit_changed or reload_needed) and self._do("reload systemd"):
            _rank_unit.act(self._run, "daemon-reload")
        enabled = self._module.params["enabled"]
        if enabled != self._files.enabled():
            verb = "enable" if enabled else "disable"
            if self._do(f"{verb} {unit_name(self._cell)}"):
                _rank_unit.act(self._run, "--no-reload", verb, unit_name(self._cell))

    def started(self) -> None:
        self.present()
        if not self._unit["active"] and self._do(f"start {unit_name(self._cell)}"):
            _rank_unit.start(self._cell, self._run)

    def stopped(self) -> None:
        if self._unit["at_work"] and self._do(f"stop {unit_name(self._cell)}"):
            _rank_unit.act(self._run, "stop", unit_name(self._cell))
        # Ranks that lost their head end by themselves, and are as wanted then.
        failed = unit_facts(self._cell, self._run)["state"] == "failed"
        if failed and self._do(f"forget the failure of {unit_name(self._cell)}"):
            _rank_unit.act(self._run, "reset-failed", unit_name(self._cell))

    def absent(self) -> None:
        self.stopped()
        name = unit_name(self._cell)
        if self._files.enabled() and self._do(f"disable {name}"):
            _rank_unit.act(self._run, "--no-reload", "disable", name)
        present = self._files.present()
        done = [self._do(f"remove {path}") for path in present]
        if any(done):
            self._files.remove()
        if self._files.unit_file in present and self._do("reload systemd"):
            _rank_unit.act(self._run, "daemon-reload")
            self._run(["systemctl", "reset-failed", name])


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "settings": {"type": "dict", "required": True},
            "gpu": {"type": "str", "choices": ["cdi", "runtime", "gpus", "none"]},
            "state": {
                "type": "str",
                "choices": ["present", "started", "stopped", "absent"],
                "default": "started",
            },
            "enabled": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    change = Change(module)
    try:
        getattr(change, module.params["state"])()
    except (_rank_unit.UnitError, OSError) as error:
        module.fail_json(msg=str(error), actions=change.actions)
    result: dict[str, Any] = {"changed": bool(change.actions), "actions": change.actions}
    if change.diff:
        result["diff"] = change.diff
    module.exit_json(**result)


if __name__ == "__main__":
    main()
