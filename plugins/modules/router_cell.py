# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: router_cell
short_description: Take a cell out of the rotation of a router, or bring it back
version_added: 0.1.0
description:
  - Runs on the host of the router. A drained cell gets no new requests, also after a restart of the
    router; those that run go on.
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
  name:
    description: The cell.
    type: str
    required: true
  state:
    description:
      - With V(drained) it gets no requests, and none runs there any more. The last cell that
        answers is never drained.
      - With V(serving) it gets them, and the router finds it healthy.
    type: str
    choices: [drained, serving]
    required: true
  timeout:
    description:
      - How many seconds running requests may take to end, or the router to find the cell healthy.
        A cell on which requests still run then stays in rotation, and the module fails.
    type: float
    default: 600
"""

EXAMPLES = r"""
---
- name: Keep requests from a cell
  sparkfleet.cluster.router_cell:
    name: cell_a
    state: drained
  become: true
"""

RETURN = r"""
cell:
  description: The cell.
  returned: success
  type: str
"""

import functools

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _router_node
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["drained", "serving"], "required": True},
            "timeout": {"type": "float", "default": 600},
        },
        supports_check_mode=True,
    )
    name, timeout = module.params["name"], module.params["timeout"]
    try:
        cells = _router_node.Cells(
            functools.partial(run_command, timeout=20), _router_node.read_settings()
        )
        if name not in cells.names:
            raise _router_node.RouterError(
                f"no cell {name} is behind the router, only {', '.join(cells.names)}"
            )
        act = cells.drain if module.params["state"] == "drained" else cells.restore
        changed = act(name, timeout, module.check_mode)
    except (_router_node.RouterError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=changed, cell=name)


if __name__ == "__main__":
    main()
