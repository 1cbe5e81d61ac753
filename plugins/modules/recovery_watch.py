# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: recovery_watch
short_description: Install the watch of a cell on a node, or remove it
version_added: 0.1.0
description:
  - On the head a timer of systemd looks at the cell. On every node of a cell that recovers
    automatically there is the program that the head may call.
  - Never makes systemd read its units again while a rank is at work, because that takes the GPU
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
  cell:
    description: What the cell is called.
    type: str
    required: true
  state:
    description: With V(absent) the watch is gone. The record of restarts stays.
    type: str
    choices: [present, absent]
    default: present
  settings:
    description:
      - What the watch is to know; the role C(recovery) makes it. Needed with O(state=present).
    type: dict
  interval:
    description: Seconds between two looks, on the head; V(0) elsewhere.
    type: int
    default: 0
  rank_at_boot:
    description: Whether the rank of this node starts by itself with the node.
    type: bool
    default: true
"""

EXAMPLES = r"""
---
- name: Watch the cell from its head
  sparkfleet.cluster.recovery_watch:
    cell: sparks
    settings: "{{ settings }}"
    interval: 30
  become: true
"""

RETURN = r"""
actions:
  description: What was done, or would be done in check mode.
  returned: always
  type: list
  elements: str
  sample: [write /usr/local/lib/sparkfleet/recovery.pyz, start sparkfleet-watch@sparks.timer]
keyed:
  description: Whether this node has the key of an automatic watch, or lets it in.
  returned: always
  type: bool
"""

import functools

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_unit import UnitError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._recovery_install import (
    Installation,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cell": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "settings": {"type": "dict"},
            "interval": {"type": "int", "default": 0},
            "rank_at_boot": {"type": "bool", "default": True},
        },
        required_if=[("state", "present", ["settings"])],
        supports_check_mode=True,
    )
    given = module.params
    watch = Installation(given["cell"], functools.partial(run_command, timeout=60))
    really = not module.check_mode
    try:
        if given["state"] == "absent":
            actions = watch.absent(really=really)
            module.exit_json(changed=bool(actions), actions=actions, keyed=watch.keyed())
        actions, diff, note = watch.present(
            given["settings"],
            interval=given["interval"],
            at_boot=given["rank_at_boot"],
            really=really,
        )
    except (UnitError, OSError) as error:
        module.fail_json(msg=str(error))
    if note:
        module.warn(note)
    module.exit_json(changed=bool(actions), actions=actions, diff=diff, keyed=watch.keyed())


if __name__ == "__main__":
    main()
