# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_neighbours_info
short_description: Hear who is really behind each fabric port
version_added: 0.1.0
description:
  - Tells for each fabric port of a node whether it is there, up and has a carrier, and the MAC
    address of everybody that is heard on it, with or without IP addresses.
  - Needs two tasks, because both ends of a cable have to be at work at the same time, but Ansible
    runs a task on no more hosts at a time than it has forks. With O(stage=start) the node begins to
    shout (broadcast frames of the local experimental EtherType C(0x88B5)) and to listen, and goes
    on when the task is over. With O(stage=collect) it listens a little longer, stops and returns
    what it heard. Between the two tasks every host of the play must have finished the first, which
    the C(linear) strategy sees to; C(serial) and the C(free) strategy do not.
  - What was heard comes from frames that arrived in the meantime. A neighbour table is not looked
    at, and LLDP is only reported, because both tell of a cable for a while after it has been
    pulled.
  - Judges nothing. P(sparkfleet.cluster.link_cables#filter) makes cables of the results of all
    hosts.
  - Both stages do the same in check mode, except that no port is raised. Needs root.
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
  stage:
    description: Whether to begin, or to end and return what was heard.
    type: str
    choices: [start, collect]
    required: true
  run:
    description:
      - A text that no other run has, the same for all hosts and both stages, like
        C({{ now(utc=true).isoformat() }}).
      - Frames of other runs, for example of another cell on the same switch, are told from those of
        this one by it.
    type: str
    required: true
  ports:
    description: The fabric ports. The default is what they are called on DGX OS.
    type: list
    elements: dict
    default:
      - {netdev: enp1s0f0np0, cage: 0, domain: 0}
      - {netdev: enP2p1s0f0np0, cage: 0, domain: 2}
      - {netdev: enp1s0f1np1, cage: 1, domain: 0}
      - {netdev: enP2p1s0f1np1, cage: 1, domain: 2}
    suboptions:
      netdev:
        description: The name of the network interface.
        type: str
        required: true
      cage:
        description: The cage, V(0) is the one nearest the RJ45.
        type: int
        choices: [0, 1]
        required: true
      domain:
        description: The PCI domain, which tells the two twins of a cage apart.
        type: int
        required: true
      hca:
        description:
          - The RDMA device. Not used, so that C(devices) of a plan can be given as they are.
        type: str
  seconds:
    description:
      - How long to listen on after O(stage=collect) has begun. Frames are sent four times a second.
        It ends sooner where no port of O(expected) was raised, every port with a carrier has heard
        another host of the run, and nobody new was heard for a second.
      - A switch that runs the spanning tree protocol on its ports needs 30 seconds and more.
    type: float
    default: 3
  raise_ports:
    description:
      - Raise ports that are administratively down, and lower them again when O(stage=collect) ends.
        Without it they are reported as down. Only O(stage=start) looks at it.
      - A port takes some seconds to get a carrier. Where one was raised, O(stage=collect) waits for
        it, until O(settle) is over.
    type: bool
    default: false
  settle:
    description: Seconds after O(stage=start) in which ports that were raised get their carrier.
    type: float
    default: 10
  expected:
    description:
      - Netdevs that are to have a cable. Once all of them have a carrier, others that were raised
        are not waited for, which mostly have no cable at all. By default every raised port is.
    type: list
    elements: str
  lifetime:
    description:
      - Seconds after which the node stops by itself where O(stage=collect) never comes. The start
        on all hosts, one after another, must fit into it.
    type: float
    default: 300
"""

EXAMPLES = r"""
---
- name: Choose a name for this run
  ansible.builtin.set_fact:
    run: "{{ now(utc=true).isoformat() }}"
  run_once: true

- name: Shout and listen on every host
  sparkfleet.cluster.fabric_neighbours_info:
    stage: start
    run: "{{ run }}"
  become: true

- name: Collect what was heard
  sparkfleet.cluster.fabric_neighbours_info:
    stage: collect
    run: "{{ run }}"
  become: true
  register: heard
"""

RETURN = r"""
probed:
  description: Whether this host shouted and listened.
  returned: always
  type: bool
why:
  description: Why it did not; null where it did.
  returned: always
  type: str
ports:
  description: One entry for each of O(ports).
  returned: O(stage=collect)
  type: list
  elements: dict
  contains:
    netdev:
      description: The network interface.
      type: str
    cage:
      description: As given.
      type: int
    domain:
      description: As given.
      type: int
    state:
      description:
        - C(missing), C(down) (administratively), C(no-carrier) or C(up). With O(raise_ports) it is
          the state while the port was raised.
      type: str
    raised:
      description: Whether the port was raised for the probe.
      type: bool
    carrier_seen:
      description: Whether it had a carrier at any time while the host listened.
      type: bool
    mac:
      description: Its own MAC address, null where it is missing.
      type: str
    mtu:
      description: Its MTU in bytes, null where it is missing.
      type: int
    speed_mbps:
      description:
        - What the driver says, in Mb/s. On a Spark each twin claims the rate of the cage. Null when
          unknown.
      type: int
    heard:
      description: The sources of all frames that came in, except of IP.
      type: list
      elements: dict
      contains:
        mac:
          description: The MAC address of the sender, which may be the other twin of this host.
          type: str
        frames:
          description: How many frames came from there.
          type: int
        probes:
          description: How many of them were probes of this run.
          type: int
        other_runs:
          description: How many of them were probes of another run.
          type: int
macs:
  description: The MAC address of every network interface of the host, by name.
  returned: O(stage=collect)
  type: dict
  sample: {"enP7s7": "02:00:00:00:00:01"}
lldp:
  description:
    - What lldpd says, one entry for each neighbour of each port. Null with the reason in
      RV(lldp_why) where lldpd is not there, which is how DGX OS comes.
  returned: O(stage=collect)
  type: list
  elements: dict
  contains:
    netdev:
      description: The port of this host.
      type: str
    chassis_name:
      description: What the neighbour calls itself.
      type: str
    chassis_id:
      description: The identity of the neighbour.
      type: str
    chassis_description:
      description: What the neighbour says it is.
      type: str
    port_id:
      description: The port at the other end.
      type: str
    port_description:
      description: What the other end calls its port.
      type: str
    mac:
      description: The port at the other end, where it is a MAC address.
      type: str
    age_seconds:
      description:
        - How long lldpd has known the neighbour. It says nothing of when it was heard last.
      type: int
lldp_why:
  description: Why there is nothing from lldpd.
  returned: O(stage=collect)
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    Missing,
    run_command,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_lldp import ask_lldpd
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_probe import (
    PORTS,
    collect,
    start,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._tree import Tree


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "stage": {"type": "str", "choices": ["start", "collect"], "required": True},
            "run": {"type": "str", "required": True},
            "ports": {
                "type": "list",
                "elements": "dict",
                "default": list(PORTS),
                "options": {
                    "netdev": {"type": "str", "required": True},
                    "cage": {"type": "int", "choices": [0, 1], "required": True},
                    "hca": {"type": "str"},
                    "domain": {"type": "int", "required": True},
                },
            },
            "seconds": {"type": "float", "default": 3.0},
            "raise_ports": {"type": "bool", "default": False},
            "settle": {"type": "float", "default": 10.0},
            "expected": {"type": "list", "elements": "str"},
            "lifetime": {"type": "float", "default": 300.0},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    tree = Tree()
    if wanted["stage"] == "start":
        why = start(
            wanted["ports"],
            wanted["run"],
            raise_ports=wanted["raise_ports"] and not module.check_mode,
            lifetime=wanted["lifetime"],
            tree=tree,
        )
        module.exit_json(changed=False, probed=why is None, why=why)
    result = collect(
        wanted["ports"],
        wanted["run"],
        seconds=wanted["seconds"],
        settle=wanted["settle"],
        expected=wanted["expected"],
        tree=tree,
    )
    lldp = ask_lldpd(lambda argv: run_command(argv, timeout=5))
    unknown = isinstance(lldp, Missing)
    module.exit_json(
        changed=False,
        **result,
        lldp=None if unknown else lldp,
        lldp_why=str(lldp) if unknown else None,
    )


if __name__ == "__main__":
    main()
