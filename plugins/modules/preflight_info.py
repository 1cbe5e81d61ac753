# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_info
short_description: Read everything a deployment depends on from one node
version_added: 0.1.0
description:
  - Reads operating system, kernel, GPU and driver, Docker, RDMA devices, memory, disks, limits,
    Python, network, name resolution, listening ports and automatic upgrades of a node in one round
    trip.
  - Judges nothing. M(sparkfleet.cluster.preflight_report) does that for the whole cell.
  - A value that cannot be read is C(null), with the reason under C(why) beside it. No probe can
    hang the module, not even below a hard NFS mount whose server is gone.
  - Never fails for what is wrong with a node. A node that cannot be reached, that refuses to give
    root or whose Python does not start is described in RV(problems), and as much as possible is
    read by other means.
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
  management_interface:
    description:
      - The network interface that should carry the management address of this node.
      - Only passed on to the judgement, like the other requirements below.
    type: str
    required: true
  disk:
    description: Directories that will hold much data, whether they exist yet or not.
    type: list
    elements: dict
    default: []
    suboptions:
      purpose:
        description: What will lie there, in a word or two.
        type: str
        required: true
      path:
        description: The absolute path of the directory.
        type: path
        required: true
      gib:
        description: How much will lie there, in GiB.
        type: float
        required: true
      where:
        description:
          - Which nodes need that much.
          - With V(split) each node needs an equal share.
        type: str
        choices: [each, head, split]
        default: each
  ports:
    description: TCP ports that are to be free, or in use by this deployment.
    type: list
    elements: dict
    default: []
    suboptions:
      port:
        description: The port number.
        type: int
        required: true
      purpose:
        description: What will listen there.
        type: str
        required: true
  names:
    description: Host names to resolve on the node, besides its own.
    type: list
    elements: str
    default: []
  deadline:
    description: Seconds to wait for the slowest probe. The module takes at most twice as long.
    type: float
    default: 30
"""

EXAMPLES = r"""
---
- name: Read what preflight needs to know
  sparkfleet.cluster.preflight_info:
    management_interface: enP7s7
    disk:
      - purpose: checkpoint
        path: /srv/models
        gib: 500
        where: head
    ports:
      - port: 8000
        purpose: API
    names: "{{ groups['sparks'] }}"
  become: true
  register: preflight_probe
"""

RETURN = r"""
probe:
  description:
    - What was read, one dictionary per section. V(null) when nothing could be read at all.
  returned: always
  type: dict
  sample:
    memory:
      available: 120795955200
      swap_total: 17179869184
      total: 130664235008
      why: {}
wanted:
  description: The requirements of this node, as given.
  returned: always
  type: dict
clock:
  description:
    - The node's clock when the module started and when it ended, and the controller's clock before
      and after the call, as seconds since the epoch. The four bound how far the clocks are apart.
  returned: always
  type: dict
  sample:
    after: 1790000001.9
    before: 1790000000.1
    end: 1790000001.8
    start: 1790000001.2
problems:
  description: What kept the module from running as asked, as a list. Empty on a healthy node.
  returned: always
  type: list
  elements: dict
  contains:
    check:
      description: The preflight check it belongs to.
      type: str
      sample: sudo
    found:
      description: What happened, in one line.
      type: str
      sample: sudo asks for a password
    fix:
      description: What to do about it.
      type: str
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_probe import (
    Machine,
    probe,
)


def main() -> None:
    start = time.time()
    module = AnsibleModule(
        argument_spec={
            "management_interface": {"type": "str", "required": True},
            "disk": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "purpose": {"type": "str", "required": True},
                    "path": {"type": "path", "required": True},
                    "gib": {"type": "float", "required": True},
                    "where": {
                        "type": "str",
                        "choices": ["each", "head", "split"],
                        "default": "each",
                    },
                },
            },
            "ports": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "port": {"type": "int", "required": True},
                    "purpose": {"type": "str", "required": True},
                },
            },
            "names": {"type": "list", "elements": "str", "default": []},
            "deadline": {"type": "float", "default": 30.0},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    found = probe(
        Machine(),
        paths=[entry["path"] for entry in wanted["disk"]],
        names=wanted["names"],
        ports=[entry["port"] for entry in wanted["ports"]],
        deadline=wanted["deadline"],
    )
    module.exit_json(
        changed=False,
        probe=found,
        wanted={name: wanted[name] for name in ("management_interface", "disk", "ports", "names")},
        clock={"start": start, "end": time.time()},
        problems=[],
    )


if __name__ == "__main__":
    main()
