# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: roce_gid_info
short_description: Choose the RoCE v2 GID of each RDMA port by its meaning
version_added: 0.1.0
description:
  - Reads every RDMA port of a node from sysfs, with its GID table, and chooses for each the one
    entry that is RoCE v2, maps an IPv4 address outside 169.254.0.0/16, lies on the netdev of the
    port and, where O(expected) declares it, in the subnet of the link.
  - The number of the slot is an outcome, never an assumption. It differs between nodes and between
    the two twins of one cable, and it moves when addresses come and go.
  - No such entry, or more than one, is a problem with a code and a message. Nothing is guessed, no
    number is fallen back to, and RV(nccl_env) is empty as long as a selected port has a problem.
  - Changes nothing. The same choice runs on a node without Ansible, at each launch of an engine,
    from the one file C(plugins/module_utils/_roce_gid.py) of this collection; C(--help) shows how.
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
  hcas:
    description:
      - The HCAs to use, in the syntax of C(NCCL_IB_HCA), or a list of full names. Their order is
        kept.
      - V(=) before the text wants full names, V(^) excludes, V(^=) excludes full names. Otherwise
        names are prefixes, so V(mlx5_1) takes C(mlx5_10) as well. Case counts. An entry may carry a
        port, as in V(=mlx5_0:1). At most 32.
      - A port named in full must be usable. One that only fits a prefix, or is not excluded, is
        passed over when it is down or not a port of the fabric, as NCCL passes it over.
      - Without it the HCAs of O(expected) are meant, and without those every fabric port that is
        up. An empty text counts as none, as it does for NCCL.
    type: raw
  expected:
    description:
      - What the plan says about the links. Only the entries of selected HCAs count.
    type: list
    elements: dict
    default: []
    suboptions:
      hca:
        description: The full name of the HCA.
        type: str
        required: true
      subnet:
        description: The IPv4 subnet of the link, or the address of the port with its prefix length.
        type: str
      netdev:
        description:
          - The network interface that carries the address, where it is not the netdev of the port,
            for example a VLAN.
        type: str
  policy:
    description:
      - V(auto) exports address family, RoCE version and address range, by which NCCL (2.21 and
        newer) finds the slot of each HCA itself, and no index. The range is the smallest prefix
        over the subnets of all links, since NCCL takes one range for all its HCAs; where no subnet
        is declared it covers the addresses. An entry NCCL would find in that range before the right
        one is a problem.
      - V(pin) exports the index, and only where all selected HCAs agree in it.
      - V(verify) checks O(index) against every selected HCA and exports it.
    type: str
    choices: [auto, pin, verify]
    default: auto
  index:
    description: The number of the slot to verify. Required with O(policy=verify), refused without.
    type: int
  required:
    description:
      - Fail when there is a problem with the selection.
      - Otherwise a port without a valid GID is data, and the module succeeds.
    type: bool
    default: false
  sysfs:
    description:
      - Where sysfs is mounted.
      - Device nodes, the tags of VLANs and the interfaces of this network namespace are looked for
        in C(dev) and C(proc) beside it. Where there is no directory C(dev) beside it, nothing is
        said about device nodes.
    type: path
    default: /sys
seealso:
  - name: NCCL environment variables
    description: The meaning of the variables in RV(nccl_env).
    link: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
"""

EXAMPLES = r"""
---
- name: Show what the two twins of cage 0 have
  sparkfleet.cluster.roce_gid_info:
    hcas: "=rocep1s0f0,roceP2p1s0f0"
  register: found

- name: Stop before an engine starts on the wrong GID
  sparkfleet.cluster.roce_gid_info:
    expected:
      - hca: rocep1s0f0
        subnet: 10.20.0.0/24
      - hca: roceP2p1s0f0
        subnet: 10.20.1.0/24
    required: true
  register: found

- name: Write the environment of the engine
  ansible.builtin.copy:
    content: |
      {% for name, value in found.nccl_env.items() %}
      {{ name }}={{ value }}
      {% endfor %}
    dest: /etc/my-engine.env
    mode: "0644"

- name: One number for a consumer that cannot do without
  sparkfleet.cluster.roce_gid_info:
    hcas: [rocep1s0f0, roceP2p1s0f0]
    policy: pin
    required: true

- name: Is the number somebody wrote down still right?
  sparkfleet.cluster.roce_gid_info:
    hcas: "=rocep1s0f0,roceP2p1s0f0"
    policy: verify
    index: 3
    required: true
"""

RETURN = r"""
devices:
  description: Every port of every RDMA device, in the order of PCI addresses, selected or not.
  returned: always
  type: list
  elements: dict
  contains:
    hca:
      description: The name of the RDMA device.
      type: str
      sample: rocep1s0f0
    port:
      description: The number of the port, 1 on a Spark. V(null) for a device without any.
      type: int
      sample: 1
    netdev:
      description: The network interface of the port, V(null) if there is none or more than one.
      type: str
      sample: enp1s0f0np0
    netdevs:
      description: All network interfaces of the device, without the stand-ins of virtual functions.
      type: list
      elements: str
      sample: [enp1s0f0np0]
    domain:
      description: The PCI domain, V(0) or V(2) for the twins of a cage on a Spark.
      type: int
      sample: 0
    cage:
      description:
        - The QSFP cage, from the label of the port or the PCI function. V(0) is the one next to the
          RJ45 socket. V(null) for anything that does not stand for one cage.
      type: int
      sample: 0
    state:
      description: The logical state. NCCL uses V(ACTIVE) ports only.
      type: str
      sample: ACTIVE
    physical_state:
      description: The physical state.
      type: str
      sample: LinkUp
    rate_gbps:
      description: The signalling rate in Gb/s. Without a cable it is meaningless, or V(null).
      type: float
      sample: 200
    link_layer:
      description: The link layer.
      type: str
      sample: Ethernet
    netdev_mtu:
      description: The MTU of RV(devices[].netdev).
      type: int
      sample: 9000
    active_mtu:
      description:
        - The active RoCE MTU as the mlx5 driver computes it from the MTU of the netdev. It is not
          read from the device, since sysfs does not show it. V(null) for other drivers.
      type: int
      sample: 4096
    firmware:
      description: The version of the firmware.
      type: str
      sample: 28.45.4028
    pcie:
      description: The PCI function and its link, V(null) for a software device.
      type: dict
      contains:
        address:
          description: The PCI address.
          type: str
          sample: "0000:01:00.0"
        speed_gts:
          description: The speed of the link in GT/s per lane.
          type: float
          sample: 32
        width:
          description: The lanes of the link.
          type: int
          sample: 4
        max_speed_gts:
          description: The speed both ends are capable of.
          type: float
          sample: 32
        max_width:
          description: The lanes the function is capable of.
          type: int
          sample: 16
    gids:
      description: The filled slots of the GID table.
      type: list
      elements: dict
      contains:
        index:
          description: The number of the slot.
          type: int
          sample: 3
        gid:
          description: The GID as the kernel writes it.
          type: str
          sample: "0000:0000:0000:0000:0000:ffff:0a14:000b"
        address:
          description: The address it stands for. V(null) for text that is no GID.
          type: str
          sample: 10.20.0.11
        type:
          description: V(RoCE v2) or V(IB/RoCE v1). V(null) if unknown or not readable.
          type: str
          sample: RoCE v2
        netdev:
          description: The network interface that has the address. V(null) if not readable.
          type: str
          sample: enp1s0f0np0
    gid_index:
      description: The slot that was chosen, V(null) where there is none.
      type: int
      sample: 3
    gid_address:
      description: The address in it, V(null) where there is none.
      type: str
      sample: 10.20.0.11
    selected:
      description: Whether the port is in RV(hcas).
      type: bool
      sample: true
    problem:
      description:
        - The gravest problem of the port, V(null) if it has none. A port that was not asked for can
          have one without harm, such as a cage without a cable.
      type: dict
      contains:
        code:
          description: See RV(problems[].code).
          type: str
          sample: wrong-subnet
        message:
          description: What was found, what was expected, where, and what to do next.
          type: str
hcas:
  description: The selected ports in the order asked for, as NCCL is told them.
  returned: always
  type: list
  elements: str
  sample: [rocep1s0f0, roceP2p1s0f0]
common_gid_index:
  description: The slot in which all selected ports agree, V(null) if they do not.
  returned: always
  type: int
  sample: 3
nccl_env:
  description:
    - The environment for NCCL, by O(policy). Empty if there is any problem. HCAs are always
      exported with V(=) and their full names.
    - Leave C(NCCL_IB_GID_INDEX) out where it is not in here. An empty one counts as 0.
  returned: always
  type: dict
  sample:
    NCCL_IB_HCA: =rocep1s0f0,roceP2p1s0f0
    NCCL_IB_ADDR_FAMILY: AF_INET
    NCCL_IB_ROCE_VERSION_NUM: "2"
    NCCL_IB_ADDR_RANGE: 10.20.0.0/23
problems:
  description: All that keeps the selection from being used. Empty on a healthy node.
  returned: always
  type: list
  elements: dict
  contains:
    code:
      description:
        - A stable name for the kind of problem.
        - "On the node: V(rdma-stack-absent), V(sysfs-unreadable), V(no-rdma-device)."
        - "On the selection: V(hca-not-found), V(no-hca-selected), V(too-many-hcas),
          V(gid-index-differs)."
        - "On the device: V(vanished), V(virtual-function), V(foreign-device), V(zero-node-guid),
          V(bonded), V(no-netdev), V(no-device-node), V(no-gid-table), V(gid-unreadable)."
        - "On the port: V(not-ethernet), V(port-down), V(port-not-active)."
        - "On the choice: V(gid-type-unreadable), V(unknown-gid-type), V(only-v1), V(no-ipv4),
          V(ipv6-only), V(link-local-only), V(wrong-netdev), V(wrong-subnet), V(ambiguous),
          V(duplicate-address), V(index-empty), V(index-wrong), V(nccl-takes-another)."
      type: str
      sample: ambiguous
    message:
      description: What was found, what was expected, where, and what to do next.
      type: str
    hca:
      description: The HCA it is about, V(null) if it is about no single one.
      type: str
      sample: rocep1s0f0
    port:
      description: The port it is about.
      type: int
      sample: 1
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._roce_gid import (
    POLICIES,
    InputError,
    lines,
    roce_gids,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "hcas": {"type": "raw"},
            "expected": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "hca": {"type": "str", "required": True},
                    "subnet": {"type": "str"},
                    "netdev": {"type": "str"},
                },
            },
            "policy": {"type": "str", "choices": list(POLICIES), "default": "auto"},
            "index": {"type": "int"},
            "required": {"type": "bool", "default": False},
            "sysfs": {"type": "path", "default": "/sys"},
        },
        required_if=[("policy", "verify", ["index"])],
        supports_check_mode=True,
    )
    wanted = dict(module.params)
    required = wanted.pop("required")
    try:
        result = roce_gids(**wanted)
    except InputError as error:
        module.fail_json(msg=str(error))
    if required and result["problems"]:
        module.fail_json(msg="\n".join(lines(result["problems"])), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
