# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: fences_ruleset
short_description: The nftables table that keeps strangers from the ports of a cell
version_added: 0.1.0
description:
  - Makes from a plan the table C(inet sparkfleet) of a host. The engine is for the host itself, the
    rendezvous for the ranks of the cell, NFS for its clients, metrics for who monitors and, if
    O(clients) are given, the entry for those.
  - Only these ports are matched; everything else passes. A port of ssh is refused.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
positional: _input
options:
  _input:
    description: The result of P(sparkfleet.cluster.fabric_plan#filter).
    type: dict
    required: true
  host:
    description: One of its hosts.
    type: str
    required: true
  ports:
    description:
      - TCP ports by use, which are C(engine), C(rendezvous), C(nfs), C(exporter) and C(api). 0
        leaves one alone.
    type: dict
    required: true
  monitoring:
    description: Addresses and networks that read metrics.
    type: list
    elements: str
    default: []
  clients:
    description: Addresses and networks that may reach the entry. If empty, everybody may.
    type: list
    elements: str
    default: []
  more:
    description: Further ports, each with C(port), C(use) and the list C(sources).
    type: list
    elements: dict
    default: []
  ssh_port:
    description: The port by which Ansible comes in.
    type: int
    default: 22
"""

EXAMPLES = r"""
---
- name: Show what would be fenced
  ansible.builtin.debug:
    msg: >-
      {{ (plan | sparkfleet.cluster.fences_ruleset(inventory_hostname, ports={'engine': 8888,
         'rendezvous': 20000, 'nfs': 2049, 'exporter': 9100, 'api': 8000})).text }}
"""

RETURN = r"""
_value:
  description: The table.
  type: dict
  contains:
    text:
      description: The file that nftables reads.
      type: str
    mark:
      description: What the listed table contains where this text is in force.
      type: str
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fences import (
    Fence,
    FencesError,
    cell_fences,
    mark,
    ruleset,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain


def fences_ruleset(
    plan: Any,
    host: str,
    ports: Any,
    monitoring: Any = (),
    clients: Any = (),
    more: Any = (),
    ssh_port: int = 22,
) -> dict[str, str]:
    plan = plain(plan)
    if not (isinstance(plan, Mapping) and {"fabric", "hosts"} <= set(plan)):
        raise AnsibleTemplatePluginError("fences_ruleset: the plan is not what fabric_plan returns")
    try:
        fences = cell_fences(
            plan,
            str(host),
            ports={name: int(port) for name, port in plain(ports).items()},
            monitoring=plain(monitoring),
            clients=plain(clients),
        )
        extra = [
            Fence(int(one["port"]), str(one["use"]), list(one["sources"])) for one in plain(more)
        ]
        text = ruleset([*fences, *extra], {22, int(ssh_port)})
    except FencesError as error:
        raise AnsibleTemplatePluginError(f"fences_ruleset: {error}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise AnsibleTemplatePluginError(
            f"fences_ruleset: {type(error).__name__} {error} in its arguments"
        ) from error
    return {"text": text, "mark": mark(text)}


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"fences_ruleset": fences_ruleset}
