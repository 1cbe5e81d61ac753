# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: link_schedule
short_description: What to try on which host to prove the links of a plan
version_added: 0.1.0
description:
  - Makes the links of a plan, the pings of each host, and the rounds in which links are measured.
  - A link is a cable, or the way through a switch between any two hosts. In a round every host is
    part of one link at most, so that no measurement disturbs another, and one of the two hosts
    sends to the other. So a ring of an even number of hosts takes four rounds, an odd one six, and
    a switch about twice as many as there are hosts.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
positional: _input
options:
  _input:
    description: The result of P(sparkfleet.cluster.fabric_plan#filter).
    type: dict
    required: true
"""

EXAMPLES = r"""
---
- name: Try full frames over every link
  sparkfleet.cluster.fabric_ping_info:
    checks: "{{ (plan | sparkfleet.cluster.link_schedule).pings[inventory_hostname] }}"
  become: true
  register: pings
"""

RETURN = r"""
_value:
  description: Links, pings and rounds.
  type: dict
  contains:
    links:
      description: Every link, in the order of the cables.
      type: list
      elements: dict
      contains:
        link:
          description: Its number, from 0.
          type: int
        ends:
          description: Its two ends, like C(spark1:0).
          type: list
          elements: str
        hosts:
          description: Its two hosts.
          type: list
          elements: str
        mtu:
          description: The MTU of its ports in bytes.
          type: int
        twins:
          description:
            - For each C(domain) the C(ports) at both ends, with C(host), C(netdev), C(hca) and
              C(address).
          type: list
          elements: dict
    pings:
      description: For each host O(sparkfleet.cluster.fabric_ping_info#module:checks).
      type: dict
    rounds:
      description:
        - For each round C(hosts), by name of the hosts that are part of it, with C(link), C(role)
          (C(server) or C(client)) and O(sparkfleet.cluster.fabric_rdma_test#module:twins).
      type: list
      elements: dict
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_schedule import (
    link_schedule as schedule,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain


def link_schedule(plan: Any) -> dict[str, Any]:
    plan = plain(plan)
    if not (isinstance(plan, Mapping) and {"fabric", "hosts"} <= set(plan)):
        raise AnsibleTemplatePluginError("link_schedule: the plan is not what fabric_plan returns")
    return schedule(plan)


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"link_schedule": link_schedule}
