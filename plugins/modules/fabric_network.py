# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_network
short_description: Configure the fabric ports of one node, and take it back unless it is confirmed
version_added: 0.1.0
description:
  - Gives the fabric ports of a node their addresses, MTU and routes with one netplan file of its
    own, C(/etc/netplan/99-sparkfleet-fabric.yaml), and the kernel settings that twins on one cable
    and routes around a ring need with C(/etc/sysctl.d/60-sparkfleet-fabric.conf).
  - Where O(forward) is set, the unit C(sparkfleet-fabric-forward.service) lets the ports forward to
    each other, also where Docker drops what is forwarded, and again whenever Docker starts.
  - Where NetworkManager manages a port, C(/etc/NetworkManager/conf.d/60-sparkfleet-fabric.conf)
    keeps its addresses, and so its GIDs, while the peer is switched off.
  - Never edits another file and never touches another interface. C(netplan apply) would, so that
    C(networkctl) and C(nmcli) are told about the ports that differ. Another netplan file that
    addresses a port, also one that NetworkManager wrote, is a problem unless O(accept_foreign).
  - What is there, in files and in the kernel, is compared with what is asked for. Where nothing
    differs the network is not touched; what somebody changed by hand is put right.
  - A change is first checked with C(netplan generate) apart from the system. Then a timer is armed
    that undoes it after O(rollback_after) seconds. Only a later task with O(state=confirmed), over
    a connection of its own, takes the timer away.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
requirements:
  - On the node netplan (0.104 or newer) and the module yaml of Python, which it brings; systemd.
attributes:
  check_mode:
    description:
      - Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: full
notes:
  - Needs root.
  - The timer does not outlive a restart of the node. A change that was not confirmed before is then
    still in force, and still waits to be confirmed.
options:
  state:
    description:
      - With V(present) the ports are configured as given.
      - With V(confirmed) the last change is kept. Fails when it was undone meanwhile. All other
        options are ignored.
      - With V(absent) files, unit and settings are removed, and the ports are as they were.
    type: str
    choices: [present, confirmed, absent]
    default: present
  ports:
    description:
      - The ports, each with the keys C(netdev), C(address) (IPv4) and C(prefix) (its length).
      - Further keys are ignored, so that C(ports) of a host in the plan can be passed as it is.
      - Required with O(state=present).
    type: list
    elements: dict
    default: []
  routes:
    description: Routes to subnets of the fabric that no port of this node is in.
    type: list
    elements: dict
    default: []
    suboptions:
      to:
        description: The subnet, with its prefix length.
        type: str
        required: true
      via:
        description: The address of a neighbour.
        type: str
        required: true
      netdev:
        description: The port it is reached by; by default the one whose subnet has O(routes[].via).
        type: str
  mtu:
    description: The MTU of every port, in bytes.
    type: int
    default: 9000
  forward:
    description: Whether the ports forward to each other, as the nodes between others in a ring do.
    type: bool
    default: false
  management_interface:
    description: The interface the node is reached by. Required with O(state=present).
    type: str
  renderer:
    description:
      - Who manages the ports. V(auto) is who does so according to the node's other netplan files.
    type: str
    choices: [auto, networkd, NetworkManager]
    default: auto
  rollback_after:
    description: Seconds after which a change is undone that nobody confirmed.
    type: int
    default: 120
  timeout:
    description:
      - Seconds to wait until addresses, MTU and routes are really there. Then the change is undone.
    type: int
    default: 60
  accept_foreign:
    description: Whether other netplan files may address the ports as well.
    type: bool
    default: false
  rank_units:
    description: Patterns of units that use the fabric. Nothing is changed while one is active.
    type: list
    elements: str
    default: [sparkfleet-rank@*.service]
  force:
    description: Change the network although a rank uses it.
    type: bool
    default: false
"""

EXAMPLES = r"""
---
- name: Configure the fabric ports
  sparkfleet.cluster.fabric_network:
    ports: "{{ plan.hosts[inventory_hostname].ports }}"
    routes: "{{ plan.hosts[inventory_hostname].routes }}"
    forward: "{{ plan.hosts[inventory_hostname].forward }}"
    management_interface: enP7s7
  become: true
  register: fabric

- name: Leave the connection that may have survived the change by luck
  ansible.builtin.meta: reset_connection

- name: Keep what still lets us in
  sparkfleet.cluster.fabric_network:
    state: confirmed
  become: true
"""

RETURN = r"""
actions:
  description: What differs and what is done about it, in order. The same in check mode.
  returned: always
  type: list
  elements: str
  sample:
    - "enp1s0f0np0 is up, MTU 1500, no address, expected up, MTU 9000, 10.100.0.11/24"
    - write /etc/netplan/99-sparkfleet-fabric.yaml
    - netplan generate
    - networkctl reload
deadline:
  description:
    - When the change is undone that waits to be confirmed, in seconds since the epoch. V(null)
      where none waits.
  returned: always
  type: float
  sample: 1790000120.5
problems:
  description: Everything that forbade the change; the module has failed then and changed nothing.
  returned: always
  type: list
  elements: dict
  contains:
    code:
      description: A stable name.
      type: str
      sample: foreign-netplan
    message:
      description: What was found, where, and what to do next.
      type: str
"""

import functools
import os
import pkgutil
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _dead_man
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._node_change import Changer
from ansible_collections.sparkfleet.cluster.plugins.module_utils._node_files import (
    MODES,
    UNIT_NAME,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._node_state import Node


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {
                "type": "str",
                "choices": ["present", "confirmed", "absent"],
                "default": "present",
            },
            "ports": {"type": "list", "elements": "dict", "default": []},
            "routes": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "to": {"type": "str", "required": True},
                    "via": {"type": "str", "required": True},
                    "netdev": {"type": "str"},
                },
            },
            "mtu": {"type": "int", "default": 9000},
            "forward": {"type": "bool", "default": False},
            "management_interface": {"type": "str"},
            "renderer": {
                "type": "str",
                "choices": ["auto", "networkd", "NetworkManager"],
                "default": "auto",
            },
            "rollback_after": {"type": "int", "default": 120},
            "timeout": {"type": "int", "default": 60},
            "accept_foreign": {"type": "bool", "default": False},
            "rank_units": {
                "type": "list",
                "elements": "str",
                "default": ["sparkfleet-rank@*.service"],
            },
            "force": {"type": "bool", "default": False},
        },
        required_if=[("state", "present", ("ports", "management_interface"))],
        supports_check_mode=True,
    )
    if os.geteuid() != 0:
        module.fail_json(msg="the network of a node is root's; set become to true", problems=[])
    run = functools.partial(run_command, timeout=_dead_man.LONGEST_COMMAND)
    changer = Changer(
        node=Node("/", run, MODES, UNIT_NAME),
        dead_man=_dead_man.DeadMan(),
        run=run,
        root="/",
        source=pkgutil.get_data(_dead_man.__package__, "_dead_man.py") or b"",
        check=module.check_mode,
    )
    outcome = changer.reach(module.params)
    result: dict[str, Any] = {
        "changed": outcome.changed,
        "actions": list(outcome.actions),
        "diff": list(outcome.diff),
        "deadline": outcome.deadline,
        "problems": [problem._asdict() for problem in outcome.problems],
    }
    if outcome.problems:
        result["changed"] = False
        module.fail_json(msg="; ".join(p.message for p in outcome.problems), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
