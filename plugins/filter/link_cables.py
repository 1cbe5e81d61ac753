# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: link_cables
short_description: Make cables of what all hosts heard on their fabric ports
version_added: 0.1.0
description:
  - Takes the results of M(sparkfleet.cluster.fabric_neighbours_info) from all hosts of a cell and
    finds out which cage is connected to which, by the MAC addresses of the hosts.
  - A port hears both twins of the cage at the other end and its own twin; all of them are one
    cable.
  - Where a host could not listen but lldpd runs there, what lldpd says is taken instead, with the
    problem C(lldp-only).
  - Whether the cables are the planned ones is told by P(sparkfleet.cluster.fabric_compare#filter).
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
positional: _input
options:
  _input:
    description: The results, by host name. Their order decides the order of what is returned.
    type: dict
    required: true
  plan:
    description:
      - The result of P(sparkfleet.cluster.fabric_plan#filter). With it a missing carrier is a
        problem where the plan has a cable, hosts without a result are named, cages that the plan
        leaves empty are nobody's concern, and a switch is expected where it plans one.
    type: dict
"""

EXAMPLES = r"""
---
# heard: registered with stage: collect on all hosts
- name: Which cage is connected to which?
  ansible.builtin.debug:
    msg: "{{ results | sparkfleet.cluster.link_cables(plan=plan) }}"
  vars:
    results: >-
      {{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'heard'))) }}
"""

RETURN = r"""
_value:
  description: Cables and problems.
  type: dict
  contains:
    cables:
      description: What is connected, in the form P(sparkfleet.cluster.fabric_compare#filter) reads.
      type: list
      elements: dict
      contains:
        ends:
          description: Two ends like C(spark1:0), host and cage. More than two are a switch.
          type: list
          elements: str
        twins:
          description:
            - For a cable, one entry for each pair of ports of the same PCI domain. C(heard) is
              C(both), C(first) (only the port of the first end hears the other), C(second) or
              C(none).
          type: list
          elements: dict
          sample: [{domain: 0, netdevs: [enp1s0f0np0, enp1s0f1np1], heard: both}]
    hosts:
      description:
        - For each host its C(ports) with C(netdev), C(cage), C(domain), C(mac), C(state), C(mtu),
          C(speed_mbps), the C(peers) heard there (like C(spark2:1)) and C(unknown) MAC addresses.
      type: dict
    problems:
      description: What does not add up. Empty when every port hears what it should.
      type: list
      elements: dict
      contains:
        code:
          description:
            - C(host-missing), C(not-probed), C(lldp-only), C(port-missing), C(port-down),
              C(no-carrier), C(twin-no-carrier), C(nobody-heard), C(twins-differ), C(twin-silent),
              C(one-way), C(loop), C(both-cages), C(switch), C(other-network), C(unknown-mac) or
              C(duplicate-mac).
          type: str
        host:
          description: The host it is about.
          type: str
        cage:
          description: The cage, null where it is about the whole host.
          type: int
        netdev:
          description: The port, null where it is about the cage or the host.
          type: str
        message:
          description: What was found, what it means, and what to do.
          type: str
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_cables import (
    link_cables as cables,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain


def link_cables(results: Any, plan: Any = None) -> dict[str, Any]:
    results, plan = plain(results), plain(plan)
    if not isinstance(results, Mapping) or not all(
        isinstance(r, Mapping) for r in results.values()
    ):
        raise AnsibleTemplatePluginError(
            "link_cables needs the results of fabric_neighbours_info by host name"
        )
    if plan is not None and not (isinstance(plan, Mapping) and {"fabric", "hosts"} <= set(plan)):
        raise AnsibleTemplatePluginError("link_cables: the plan is not what fabric_plan returns")
    return cables(results, plan)


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"link_cables": link_cables}
