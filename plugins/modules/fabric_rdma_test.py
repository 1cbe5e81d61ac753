# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_rdma_test
short_description: Measure one direction of a link of the fabric with RDMA
version_added: 0.1.0
description:
  - Runs C(rping), C(ib_write_lat) and C(ib_write_bw) from one host to another over one link, on
    each twin alone, then C(ib_write_bw) on all twins together, and returns what they measured.
  - Takes three tasks, and no more forks than one. With O(stage=serve) the server leaves its
    programs behind, waiting. With O(stage=measure) the client goes through the tests, sends, and
    returns the results. With O(stage=collect) the server ends what is left and returns what failed
    there. For the other direction, the hosts do the same the other way round.
  - The GID of each twin is the RoCE v2 one of its address, in whatever slot it is now.
  - A host can be part of one link at a time. P(sparkfleet.cluster.link_schedule#filter) puts the
    links of a plan into rounds, and P(sparkfleet.cluster.link_verdict#filter) judges the results.
  - Bounded in time, by O(duration) plus O(grace) for each program, and in memory, by
    O(message_size) times O(queue_pairs) for each twin. Takes bandwidth from whatever else uses the
    link, so it is not for a cell that serves.
  - Where there are no RDMA devices, or programs cannot use them, RV(measured) is false with the
    reason in RV(why). It never fails for what is wrong with a link.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
attributes:
  check_mode:
    description:
      - Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
    details:
      - In check mode nothing is measured, because a measurement is a load on the links.
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: none
options:
  stage:
    description: What this host does now.
    type: str
    choices: [serve, measure, collect]
    required: true
  link:
    description: The number of the link, which is returned with the results.
    type: int
    required: true
  twins:
    description: The twins of the link as this host sees them, in the same order on both hosts.
    type: list
    elements: dict
    required: true
    suboptions:
      domain:
        description: The PCI domain, which tells the twins apart.
        type: int
        required: true
      hca:
        description: The RDMA device of this host.
        type: str
        required: true
      address:
        description: The IPv4 address of this host.
        type: str
        required: true
      peer_address:
        description: The IPv4 address of the other host.
        type: str
        required: true
  port:
    description:
      - The first of up to eight TCP and RDMA ports in a row. Both hosts must have the same, and a
        firewall must let them pass.
    type: int
    default: 18515
  duration:
    description: How long each measurement of bandwidth takes, in seconds.
    type: int
    default: 3
  message_size:
    description: Bytes of a message.
    type: int
    default: 65536
  queue_pairs:
    description: How many queue pairs each program uses.
    type: int
    default: 4
  latency_iterations:
    description: How many times latency is measured.
    type: int
    default: 1000
  grace:
    description:
      - How long a program may take beyond its O(duration), in seconds. Emulated machines need more.
    type: float
    default: 10
"""

EXAMPLES = r"""
---
# part: what link_schedule says of this host in this round
- name: Let the servers of this round wait
  sparkfleet.cluster.fabric_rdma_test:
    stage: serve
    link: "{{ part.link }}"
    twins: "{{ part.twins }}"
  become: true
  when: part.role == 'server'

- name: Measure
  sparkfleet.cluster.fabric_rdma_test:
    stage: measure
    link: "{{ part.link }}"
    twins: "{{ part.twins }}"
  become: true
  when: part.role == 'client'
  register: measured

- name: End the servers
  sparkfleet.cluster.fabric_rdma_test:
    stage: collect
    link: "{{ part.link }}"
    twins: "{{ part.twins }}"
  become: true
  when: part.role == 'server'
  register: served
"""

RETURN = r"""
link:
  description: As given.
  returned: always
  type: int
stage:
  description: As given.
  returned: always
  type: str
measured:
  description: Whether this host could do its part.
  returned: always
  type: bool
why:
  description: Why it could not, null where it could.
  returned: always
  type: str
usable:
  description:
    - Whether this host has RDMA devices that programs can use. False is true of all its links.
  returned: when it cannot do its part
  type: bool
lost:
  description: Whether a measurement that had begun came to nothing, so that it has to be repeated.
  returned: when it did
  type: bool
twins:
  description:
    - One entry for each twin, with C(domain), C(hca), C(gid_index), and the results C(rping),
      C(latency) and C(bandwidth). A result has C(ok) and C(error).
  returned: O(stage=measure)
  type: list
  elements: dict
  sample:
    - domain: 0
      hca: rocep1s0f0
      gid_index: 3
      rping: {ok: true, error: null}
      latency: {ok: true, error: null, typical_us: 1.48, p99_us: 1.57, mtu: 4096, gid_index: 3}
      bandwidth: {ok: true, error: null, gbps: 111.71, mtu: 4096, gid_index: 3}
together:
  description:
    - The bandwidth of all twins together, with the sum in C(gbps) and the parts in C(each). Null
      for a single twin.
  returned: O(stage=measure)
  type: dict
  sample: {ok: true, error: null, gbps: 196.03, each: [98.02, 98.01]}
servers:
  description: What failed at the server, with C(kind), C(twin), C(together) and C(error).
  returned: O(stage=collect)
  type: list
  elements: dict
hcas:
  description:
    - The RDMA devices of this host with C(name), C(pcie_speed) in GT/s, C(pcie_width), C(fw_ver)
      and C(errors), the counters of lost or repeated packets that moved meanwhile. C(errors) is
      null where the driver has no such counters.
  returned: O(stage=measure) and O(stage=collect)
  type: list
  elements: dict
  sample:
    - name: rocep1s0f0
      pcie_speed: 32.0
      pcie_width: 4
      fw_ver: 28.45.4028
      errors: {}
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_rdma import (
    Settings,
    collect,
    has_rdma,
    measure,
    serve,
    timeout,
    why_not,
    with_gids,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._tree import Tree


def run(wanted: dict[str, Any], tree: Tree) -> dict[str, Any]:
    twins = with_gids(wanted["twins"], tree)
    settings = Settings(
        port=wanted["port"],
        duration=wanted["duration"],
        message_size=wanted["message_size"],
        queue_pairs=wanted["queue_pairs"],
        latency_iterations=wanted["latency_iterations"],
        grace=wanted["grace"],
    )
    why = why_not(twins, tree, run_command)
    result: dict[str, Any] = {}
    if why:
        return {"measured": False, "why": why, "usable": has_rdma(tree)}
    if wanted["stage"] == "serve":
        result = serve(twins, settings, tree)
    elif wanted["stage"] == "measure":
        limit = timeout(settings)
        result = measure(twins, settings, tree, lambda argv: run_command(argv, timeout=limit))
    else:
        result = collect()
    return {"measured": "why" not in result, "why": None, **result}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "stage": {
                "type": "str",
                "choices": ["serve", "measure", "collect"],
                "required": True,
            },
            "link": {"type": "int", "required": True},
            "twins": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "domain": {"type": "int", "required": True},
                    "hca": {"type": "str", "required": True},
                    "address": {"type": "str", "required": True},
                    "peer_address": {"type": "str", "required": True},
                },
            },
            "port": {"type": "int", "default": 18515},
            "duration": {"type": "int", "default": 3},
            "message_size": {"type": "int", "default": 65536},
            "queue_pairs": {"type": "int", "default": 4},
            "latency_iterations": {"type": "int", "default": 1000},
            "grace": {"type": "float", "default": 10.0},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    if module.check_mode:
        result: dict[str, Any] = {"measured": False, "why": "check mode does not load the links"}
    else:
        result = run(wanted, Tree())
    module.exit_json(changed=False, link=wanted["link"], stage=wanted["stage"], **result)


if __name__ == "__main__":
    main()
