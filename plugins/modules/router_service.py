# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: router_service
short_description: Run SGLang's router for several cells
version_added: 0.1.0
description:
  - Runs the router as the unit C(sparkfleet-router.service) on loopback, from the version that is
    installed in C(/usr/local/lib/sparkfleet/router/VERSION), with its settings in
    C(/etc/sparkfleet/router/settings.json). It knows no key.
  - A router that runs is told of cells that come and go. It is started anew for other changes only,
    and ends when the requests that run have ended.
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
  state:
    description: With V(present) the router runs as described. With V(absent) it is gone.
    type: str
    choices: [present, absent]
    default: present
  version:
    description: The version of the package C(sglang-router).
    type: str
    default: 0.3.2
  cells:
    description:
      - The cells behind it, by name the port on C(127.0.0.1), as in
        O(sparkfleet.cluster.entry_proxy#module:cells).
    type: dict
    default: {}
  port:
    description: The TCP port of the router on C(127.0.0.1).
    type: int
    default: 8889
  policy:
    description: How a cell is chosen for a request.
    type: str
    choices: [round_robin, random, power_of_two, cache_aware]
    default: round_robin
  metrics_address:
    description: The address on which metrics are told.
    type: str
    default: 127.0.0.1
  metrics_port:
    description: The TCP port for that.
    type: int
    default: 29000
  request_timeout:
    description: How long a request may take as a whole, in seconds.
    type: int
    default: 3600
  body_mib:
    description: How large a request may be, in MiB.
    type: int
    default: 256
  stop_grace:
    description: How long a router that is stopped waits for requests that run, in seconds.
    type: int
    default: 600
  health_interval:
    description: Seconds between two questions about the health of a cell.
    type: int
    default: 5
  health_timeout:
    description: Seconds in which a cell has to answer that.
    type: int
    default: 5
  circuit_breaker:
    description:
      - Take cells out of rotation by their answers as well. Version 0.3.2 counts answers of 400 and
        422 as failures, so that ten bad requests of one client close a healthy cell to everybody.
    type: bool
    default: false
  patience:
    description: Seconds in which a started router has to answer.
    type: float
    default: 30
"""

EXAMPLES = r"""
---
- name: Run the router
  sparkfleet.cluster.router_service:
    cells: {cell_a: 18001, cell_b: 18002}
  become: true
"""

RETURN = r"""
actions:
  description: What was done, or in check mode what would be done.
  returned: success
  type: list
  elements: str
  sample: [write /etc/sparkfleet/router/settings.json, tell the router its cells]
packages:
  description: Packages that are missing to install the version.
  returned: success
  type: list
  elements: str
  sample: [python3-venv]
missing:
  description: Whether the version is not installed yet.
  returned: success
  type: bool
"""

import functools
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils import (
    _router_node,
    _router_settings,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command

_STOP = 3700  # seconds, longer than systemd waits


def _present(
    module: AnsibleModule, service: _router_node.Service, params: dict[str, Any]
) -> dict[str, Any]:
    wrong = _router_settings.faults(params)
    if wrong:
        raise _router_node.RouterError("; ".join(wrong))
    packages, missing = service.needs(params["version"])
    result: dict[str, Any] = {"packages": packages, "missing": missing}
    if module.check_mode:
        return {**result, "actions": service.plan(params)}
    if missing:
        raise _router_node.RouterError(
            f"sglang-router {params['version']} is not installed; use the role router"
        )
    return {**result, "actions": service.apply(params, params["patience"])}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "version": {"type": "str", "default": "0.3.2"},
            "cells": {"type": "dict", "default": {}},
            "port": {"type": "int", "default": 8889},
            "policy": {
                "type": "str",
                "choices": list(_router_settings.POLICIES),
                "default": "round_robin",
            },
            "metrics_address": {"type": "str", "default": "127.0.0.1"},
            "metrics_port": {"type": "int", "default": 29000},
            "request_timeout": {"type": "int", "default": 3600},
            "body_mib": {"type": "int", "default": 256},
            "stop_grace": {"type": "int", "default": 600},
            "health_interval": {"type": "int", "default": 5},
            "health_timeout": {"type": "int", "default": 5},
            "circuit_breaker": {"type": "bool", "default": False},
            "patience": {"type": "float", "default": 30},
        },
        supports_check_mode=True,
    )
    service = _router_node.Service(functools.partial(run_command, timeout=_STOP))
    try:
        if module.params["state"] == "absent":
            result: dict[str, Any] = {"actions": service.absent(module.check_mode)}
        else:
            cells = {name: int(port) for name, port in module.params["cells"].items()}
            result = _present(module, service, {**module.params, "cells": cells})
    except (_router_node.RouterError, OSError, TypeError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(result["actions"]), **result)


if __name__ == "__main__":
    main()
