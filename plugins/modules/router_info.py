# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: router_info
short_description: Which cells a router sends requests to, and whether they answer
version_added: 0.1.0
description:
  - Asks the router of this host for its cells, and each healthy one for a completion, through the
    port by which the router reaches it. In the end the router itself is asked for one.
  - A cell that does not answer yet is a warning, as the others serve. One that answers health and
    no completion is a problem, and so is it when none answers. Problems do not fail the module.
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
  wait:
    description: For how many seconds all cells that are not drained are waited for.
    type: float
    default: 0
  timeout:
    description: How many seconds a completion may take.
    type: float
    default: 120
"""

EXAMPLES = r"""
---
- name: See whether all cells serve
  sparkfleet.cluster.router_info:
    wait: 30
  become: true
  register: router
"""

RETURN = r"""
cells:
  description: The cells, in the order of the inventory.
  returned: success
  type: list
  elements: dict
  contains:
    cell:
      description: Its name.
      type: str
    healthy:
      description: Whether the router sends requests to it.
      type: bool
    drained:
      description: Whether new requests are kept from it.
      type: bool
    requests:
      description: How many requests run on it.
      type: int
    model:
      description: The name of the model that it serves. Empty if it was not asked.
      type: str
    reason:
      description: Why it answered no completion. Empty if it did, or was not asked.
      type: str
problems:
  description: Why the router is not ready. Empty if it is.
  returned: success
  type: list
  elements: str
"""

import functools

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _router_node
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "wait": {"type": "float", "default": 0},
            "timeout": {"type": "float", "default": 120},
        },
        supports_check_mode=True,
    )
    timeout = module.params["timeout"]
    try:
        settings = _router_node.read_settings()
        cells = _router_node.Cells(functools.partial(run_command, timeout=20), settings)
        _router_node.until(cells.complete, module.params["wait"], 0.5)
        state = cells.state(timeout)
        problems, warnings = _router_node.judge(state)
        if not problems:
            port = settings["router"]["port"]
            model = next(one["model"] for one in state if one["model"])
            reason = _router_node.complete(f"http://127.0.0.1:{port}", timeout, model)
            if reason:
                problems.append(
                    f"the cells answer and the router does not ({reason}); look at: "
                    "journalctl -u sparkfleet-router.service"
                )
    except (_router_node.RouterError, OSError) as error:
        module.fail_json(msg=str(error))
    for warning in warnings:
        module.warn(warning)
    module.exit_json(changed=False, cells=state, problems=problems)


if __name__ == "__main__":
    main()
