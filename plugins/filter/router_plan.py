# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: router_plan
short_description: The cells behind a router, from the inventory
version_added: 0.1.0
description:
  - Finds head and address of the entry of each cell, gives it a loopback port, and says what
    forbids a router for them, before any host is contacted.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
positional: _input
options:
  _input:
    description: The names of the inventory groups that are cells.
    type: list
    elements: str
    required: true
  groups:
    description: The groups of the inventory.
    type: dict
    required: true
  hostvars:
    description: The variables of all hosts.
    type: dict
    required: true
  first_port:
    description: The loopback port of the first cell. The others follow.
    type: int
    default: 18001
"""

EXAMPLES = r"""
---
- name: See who is behind the router
  ansible.builtin.debug:
    msg: "{{ ['cell_a', 'cell_b'] | sparkfleet.cluster.router_plan(groups, hostvars) }}"
"""

RETURN = r"""
_value:
  description: Cells and problems.
  type: dict
  contains:
    cells:
      description: For each cell C(name), C(port), and C(url) of its entry.
      type: list
      elements: dict
    heads:
      description: By name of the cell, the host with its file of keys. None for one that is open.
      type: dict
    problems:
      description: Sentences. Nothing may be done if there are any.
      type: list
      elements: str
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _router_settings
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain

_READ = ("ansible_host", "spark_group", "spark_api_port", "entry_tls", "entry_open")


def router_plan(
    cells: Any, groups: Mapping[str, Any], hostvars: Mapping[str, Any], first_port: int = 18001
) -> dict[str, Any]:
    if isinstance(cells, str) or not isinstance(cells, Sequence):
        raise AnsibleTemplatePluginError(f"router_plan: {cells!r} is no list of names of groups")
    names = [str(cell) for cell in cells]
    known = {name: [str(host) for host in groups.get(name, ())] for name in names}
    known[_router_settings.GROUP] = [str(h) for h in groups.get(_router_settings.GROUP, ())]
    # Of the heads only these: others may not be readable without what only their play has.
    heads = {members[0] for members in known.values() if members}
    values = {
        head: {name: plain(hostvars[head][name]) for name in _READ if name in hostvars[head]}
        for head in heads
    }
    return _router_settings.router_plan(names, known, values, int(first_port))


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"router_plan": router_plan}
