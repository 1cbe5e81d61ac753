# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: fabric_plan
short_description: Plan cables, addresses, routes and NCCL settings of the fabric of a cell
version_added: 0.1.0
description:
  - Computes the whole fabric of a cell of DGX Sparks from what the inventory says, and from nothing
    else. So the plan of one host is right even when the others are not part of the run.
  - Cable V(k) owns two subnets of the pool, number V(2k) for the twins in PCI domain 0 and V(2k+1)
    for those in domain 2, and every host has V(.11) plus its rank in them. Through a switch, all
    hosts share the first two subnets. With the default pool, cable V(1) is V(10.20.2.0/24) and
    V(10.20.3.0/24).
  - A host that is added at the end of a ring takes over the cable that closed it. The first host
    gets another address on its end of the closing cable, which is in new subnets. No other address
    changes, and neither does any when O(twins) changes.
  - A ring of three or more hosts gets routes, so that every host reaches every address of the
    fabric, the shorter way round and the same way back. Only TCP/IP takes them; RDMA does not.
  - A ring of two hosts has one cable. A second one would add no bandwidth, because both share the
    PCIe lanes.
  - An option that is null or empty text has its default.
  - Refuses with every reason at once.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
requirements:
  - netaddr >= 1.3 (Python library, on the controller)
positional: _input, topology
options:
  _input:
    description:
      - The hosts in rank order; the first is the head. Each is a name, or a mapping with the keys
        described here.
    type: list
    elements: raw
    required: true
    suboptions:
      name:
        description: The name of the host.
        type: str
        required: true
      cage:
        description: The cage whose cable goes to the switch, where this host has another than
          O(cage).
        type: int
        choices: [0, 1]
      ports:
        description:
          - Names that are not those of DGX OS, as a list of mappings. V(cage) (0 or 1) and
            V(domain) (0 or 2) say which port, V(netdev) and V(hca) what it is called.
        type: list
        elements: dict
  topology:
    description:
      - V(pair) is two hosts and one cable, V(triangle) three hosts, each cabled to both others,
        V(ring) any number of hosts, each cabled to the next and the last to the first, V(switch)
        any number of hosts with one cable each to a switch.
    type: str
    choices: [pair, triangle, ring, switch]
    required: true
  cabling:
    description:
      - V(rotation) connects O(cage) of each host to the other cage of the next host. V(matching)
        connects equal cages, O(cage) for the first cable and the other one for the next; it needs
        an even number of hosts.
      - Or the cables themselves, as a list of pairs of V(host:cage). Their order decides the
        subnets. They must make one ring, and the hosts must be listed in its order, because NCCL
        connects each rank to the next.
      - The default is V(matching) for a pair and V(rotation) else. A switch has no cabling.
    type: raw
  cage:
    description:
      - The cage of the first host that its first cable is in, or the one that goes to the switch.
      - V(0) is the cage nearest the RJ45 connector, V(1) the outer one.
    type: int
    choices: [0, 1]
    default: 0
  pool:
    description: The IPv4 network that all addresses come from.
    type: str
    default: 10.20.0.0/16
  prefix_length:
    description:
      - The prefix length of every subnet, V(8) to V(31). Ranks for which a small subnet has no room
        are numbered V(.1) and V(.2) by the ends of their cable.
    type: int
    default: 24
  cell:
    description:
      - The number of this cell, from 0, where several cells share O(pool). Each then has an equal
        share of it.
      - Cell V(0) has the same addresses as a cell without a number, which has the whole pool for
        itself.
    type: int
  cell_prefix_length:
    description:
      - The prefix length of the share of a cell. The default is O(prefix_length) minus 5, or the
        whole pool if that is smaller; it has room for sixteen cables.
    type: int
  twins:
    description:
      - Whether the ports in both PCI domains get addresses, or only the V(first) of each cage, in
        domain 0.
    type: str
    choices: [both, first]
    default: both
  mtu:
    description: The MTU of every port in bytes, V(1280) to V(9216). RoCE needs V(9000) for its own
      4096.
    type: int
    default: 9000
  management_interface:
    description: The interface that ranks find each other by. It is the same on every host.
    type: str
    default: enP7s7
  management_networks:
    description: Networks or addresses of the management LAN, one or a list. The fabric must not
      overlap them.
    type: raw
  reserved_networks:
    description:
      - Other networks that the fabric must not overlap, as a list, or as a mapping from a name for
        messages to a network or several. A mapping is added to the default; give V(Docker) to
        change it.
      - Name the RV(_value.fabric.range) of other cells here if they have a pool of their own.
    type: raw
    default:
      Docker: 172.17.0.0/16
  nccl:
    description:
      - Which NCCL the ranks load. V(stock) is that of NVIDIA, version 2.30.7 or newer. The others
        are published patches of it for rings without a switch; V(dual-pci-domain) is the one that
        uses both twins there.
      - The default is V(stock) where every two hosts share a cable or the switch, and
        V(switchless-cycle) else.
    type: str
    choices: [stock, switchless-cycle, skip-tree-pat, dual-pci-domain]
  nccl_prefix_length:
    description:
      - The number of bits in which NCCL compares subnets, where it can not be as in
        O(prefix_length), the default. Links that are equal in so many bits are refused.
    type: int
  devices:
    description:
      - What was found on the hosts, as a mapping from the name of a host to what
        M(sparkfleet.cluster.roce_gid_info) returned. Ports get the names found, unless the host has
        O(_input[].ports) for them. A port that the plan needs and that was not found is refused.
    type: dict
seealso:
  - plugin: sparkfleet.cluster.fabric_compare
    plugin_type: filter
  - plugin: sparkfleet.cluster.fabric_diagram
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Plan a ring of four Sparks
  ansible.builtin.set_fact:
    plan: "{{ ['spark1', 'spark2', 'spark3', 'spark4'] | sparkfleet.cluster.fabric_plan('ring') }}"

- name: Plan the second of two rings in one pool
  ansible.builtin.set_fact:
    plan: "{{ groups['cell_b'] | sparkfleet.cluster.fabric_plan('ring', cell=1) }}"

- name: Plan a ring of four whose cables are what they are
  ansible.builtin.set_fact:
    plan: "{{ groups['sparks'] | sparkfleet.cluster.fabric_plan('ring', cabling=cables) }}"
  vars:
    cables:
      - [spark1:0, spark2:0]
      - [spark2:1, spark3:0]
      - [spark3:1, spark4:0]
      - [spark4:1, spark1:1]

- name: Plan a pair, one of which calls its devices otherwise
  ansible.builtin.set_fact:
    plan: "{{ ['spark1', other] | sparkfleet.cluster.fabric_plan('pair') }}"
  vars:
    other:
      name: spark2
      ports:
        - {cage: 0, domain: 0, hca: mlx5_0}
        - {cage: 0, domain: 2, hca: mlx5_2}
"""

RETURN = r"""
_value:
  description: The plan, made of nothing but dictionaries with text keys, lists, text, numbers,
    booleans and null.
  type: dict
  contains:
    fabric:
      description: What holds for the cell as a whole.
      type: dict
      contains:
        topology:
          description: As given.
          type: str
        cabling:
          description: V(rotation), V(matching), V(list) or V(switch).
          type: str
        range:
          description: The pool, or the share of the cell in it.
          type: str
          sample: 10.20.0.0/16
        prefix:
          description: The prefix length of every subnet.
          type: int
        domains:
          description: The PCI domains of the twins that are used.
          type: list
          elements: int
          sample: [0, 2]
        mtu:
          description: The MTU of every port in bytes.
          type: int
        head:
          description: The host with rank 0.
          type: str
        head_address:
          description: An address of the head that every host reaches.
          type: str
          sample: 10.20.0.11
    cables:
      description:
        - All cables, in the order that decides their subnets. A switch is one, with an end for
          each host.
      type: list
      elements: dict
      contains:
        cable:
          description: Its number, from 0.
          type: int
        ends:
          description: What it connects, as V(host) and V(cage).
          type: list
          elements: dict
        subnets:
          description: The V(subnet) of each V(domain).
          type: list
          elements: dict
    hosts:
      description: What each host needs to know, by name and in rank order.
      type: dict
      contains:
        rank:
          description: The rank, from 0.
          type: int
        ports:
          description: The ports that are used, by cage and domain.
          type: list
          elements: dict
          contains:
            netdev:
              description: The network interface.
              type: str
            hca:
              description: The RDMA device.
              type: str
            cage:
              description: The cage, 0 or 1.
              type: int
            domain:
              description: The PCI domain, 0 or 2.
              type: int
            address:
              description: The IPv4 address.
              type: str
            prefix:
              description: Its prefix length.
              type: int
            subnet:
              description: The subnet it is in.
              type: str
            cable:
              description: The number of the cable.
              type: int
            peer:
              description:
                - The port at the other end, with V(host), V(netdev), V(hca), V(cage), V(domain) and
                  V(address).
                - Null where the other end is a switch. Its peers are the ports of all other hosts
                  with the same V(subnet).
              type: dict
        devices:
          description: All ports of the host, used or not, with V(cage), V(domain), V(netdev) and
            V(hca).
          type: list
          elements: dict
        routes:
          description: Routes in a ring, V(to) a network V(via) an address on V(netdev).
          type: list
          elements: dict
        forward:
          description: Whether packets between other hosts pass this one, so that it must forward
            them.
          type: bool
        nfs_server_address:
          description: The address of the head to mount from. Null on the head.
          type: str
        nfs_source_address:
          description: The address that this host arrives from when it does. Null on the head.
          type: str
        nfs_hops:
          description: Over how many cables. NFS over RDMA works over one only.
          type: int
        nfs_client_sources:
          description: On the head, the addresses that exports must allow. Empty elsewhere.
          type: list
          elements: str
        peer_hcas:
          description: For each V(rank) on a common cable or switch, the V(hcas) that lead there.
          type: list
          elements: dict
        nccl_env:
          description: Environment variables for NCCL that follow from cables and addresses, as
            text.
          type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _fabric_plan
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import PlanError


def fabric_plan(hosts: Any, topology: Any = None, **options: Any) -> dict[str, Any]:
    try:
        return _fabric_plan.fabric_plan(hosts, topology, **options)
    except PlanError as error:
        raise AnsibleTemplatePluginError(str(error)) from error


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"fabric_plan": fabric_plan}
