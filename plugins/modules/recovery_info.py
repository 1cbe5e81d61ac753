# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: recovery_info
short_description: Gather what the rank of a node can tell when a cell is judged
version_added: 0.1.0
description:
  - Looks at the unit, the container, the log, the links and their GIDs, the inputs and the disk of
    a rank. On the head it asks the engine for a real completion, since C(/health) proves little.
  - Whatever is wrong is data, and the module succeeds. Nothing that is dead hangs it.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
attributes:
  check_mode:
    description:
      - Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: none
options:
  cell:
    description: What the cell is called.
    type: str
    required: true
  fatals:
    description:
      - The lines its log must not show, as P(sparkfleet.cluster.serving_plan#filter) gives them.
    type: list
    elements: dict
    default: []
  engine_port:
    description:
      - Where the engine of the head listens on loopback. Without it no completion is asked for.
    type: int
  model:
    description: The name of the model to ask.
    type: str
    default: ""
  canary_timeout:
    description: How many seconds a completion of one token may take.
    type: float
    default: 30
  canary_tries:
    description: How many completions may fail in a row before the engine counts as silent.
    type: int
    default: 3
  disk_least_mib:
    description: How many MiB have to be free where a rank writes.
    type: int
    default: 512
"""

EXAMPLES = r"""
---
- name: Look at every rank
  sparkfleet.cluster.recovery_info:
    cell: sparks
    fatals: "{{ spark_serving.checks.fatals }}"
    engine_port: "{{ 8888 if inventory_hostname == groups.sparks[0] else omit }}"
    model: deepseek-v4.1-flash
  become: true
  register: found
"""

RETURN = r"""
evidence:
  description:
    - "What the rank is like: C(installed), C(unit), C(container), C(stage), C(doing), C(ready),
      C(problems), C(fatals), C(silent), C(causes), C(notes), C(gids), C(canary)."
    - C(causes) is what keeps it from starting, each with a C(code) and a C(message), and of a link
      the host at its other end as C(peer).
  returned: always
  type: dict
record:
  description: Of earlier restarts, V(null) where there was none. It is on the head.
  returned: always
  type: dict
state:
  description: What the watch of the head noted last, V(null) where there is none.
  returned: always
  type: dict
"""

import functools

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _recovery_node as node
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engine_boot import PatternError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cell": {"type": "str", "required": True},
            "fatals": {"type": "list", "elements": "dict", "default": []},
            "engine_port": {"type": "int"},
            "model": {"type": "str", "default": ""},
            "canary_timeout": {"type": "float", "default": 30},
            "canary_tries": {"type": "int", "default": 3},
            "disk_least_mib": {"type": "int", "default": 512},
        },
        supports_check_mode=True,
    )
    given = module.params
    canary = None
    if given["engine_port"]:
        canary = node.ask(
            given["engine_port"], given["model"], given["canary_timeout"], given["canary_tries"]
        )
    try:
        found = node.evidence(
            given["cell"],
            functools.partial(run_command, timeout=60),
            fatals=given["fatals"],
            canary=canary,
            disk_least=given["disk_least_mib"] << 20,
        )
    except PatternError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=False,
        evidence=found,
        record=node.read_json(node.RECORD.format(cell=given["cell"])),
        state=node.read_json(node.STATE.format(cell=given["cell"])),
    )


if __name__ == "__main__":
    main()
