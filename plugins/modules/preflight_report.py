# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: preflight_report
short_description: Judge what preflight read on all nodes of a cell
version_added: 0.1.0
description:
  - Takes what M(sparkfleet.cluster.preflight_info) returned for the hosts of a cell, applies every
    check, shows one table and writes one JSON file on the controller.
  - A broken rule is a failure, a warning or a note, by the severity of its check. What could not be
    read is C(unknown), shown as such and never taken for good. A skipped check is shown as skipped.
  - Does not fail for what it finds. RV(summary.ready) tells, and RV(msg) names the failed checks.
  - Runs on the controller alone. Call it with C(run_once).
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
attributes:
  check_mode:
    description:
      - Can run in C(check_mode) and return changed status prediction without modifying target.
      - The file is not written in check mode.
    support: full
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: none
options:
  cell:
    description: The name of the cell, for the heading and for the name of the file.
    type: str
    required: true
  members:
    description: All hosts of the cell in rank order. The first is the head.
    type: list
    elements: str
    required: true
  results:
    description:
      - The registered result of M(sparkfleet.cluster.preflight_info) for each host that was looked
        at.
      - Members without one are reported as not looked at.
    type: dict
    required: true
  settings:
    description: What the cell is held to.
    type: dict
    required: true
    suboptions:
      skip:
        description: Checks to leave out, by name.
        type: list
        elements: str
        default: []
      severity:
        description:
          - A mapping from check to V(error), V(warning) or V(info), where it is not to be as built
            in.
        type: dict
        default: {}
      rdma_netdevs:
        description: The network devices of the fabric, each of which must carry an RDMA device.
        type: list
        elements: str
        required: true
      pcie_width:
        description: The number of PCIe lanes each function of the network card must have.
        type: int
        required: true
      pcie_speed:
        description: The PCIe speed each function of the network card must have, in GT/s.
        type: float
        required: true
      memory_total_gib:
        description: The least memory of a node, in GiB.
        type: float
        required: true
      memory_available_gib:
        description:
          - The least memory that is available on a node on which nothing of ours runs, in GiB.
        type: float
        required: true
      swap_max_gib:
        description: The most swap space of a node, in GiB.
        type: float
        required: true
      images_gib:
        description: The least free space where Docker keeps its images, in GiB.
        type: float
        required: true
      clock_skew:
        description: How far the clocks of two nodes may be apart, in seconds.
        type: float
        required: true
  path:
    description:
      - The file to write on the controller.
      - If empty, C(sparkfleet/preflight-CELL.json) under E(XDG_STATE_HOME) or C(~/.local/state).
      - That it cannot be written is a warning.
    type: path
    default: ''
"""

EXAMPLES = r"""
---
- name: Judge the cell
  sparkfleet.cluster.preflight_report:
    cell: sparks
    members: "{{ groups['sparks'] }}"
    results: >-
      {{ dict(groups['sparks']
         | zip(groups['sparks'] | map('extract', hostvars, 'preflight_probe'))) }}
    settings:
      skip: [gpu_idle]
      rdma_netdevs: [enp1s0f0np0, enp1s0f1np1, enP2p1s0f0np0, enP2p1s0f1np1]
      pcie_width: 4
      pcie_speed: 32
      memory_total_gib: 115
      memory_available_gib: 100
      swap_max_gib: 16
      images_gib: 40
      clock_skew: 5
  run_once: true
  register: preflight_result
"""

RETURN = r"""
msg:
  description: Whether the cell is ready, and if not, which checks failed on which hosts.
  returned: always
  type: str
  sample: 'cell sparks is not ready: disk on spark3; driver on spark1, spark2'
path:
  description: The file that was written, V(null) when none was.
  returned: always
  type: str
rows:
  description: One entry per check and host, in the order of the checks.
  returned: success
  type: list
  elements: dict
  contains:
    check:
      description: The name of the check.
      type: str
    host:
      description: The host.
      type: str
    severity:
      description: V(error), V(warning) or V(info).
      type: str
    status:
      description: V(ok), V(fail), V(warn), V(note), V(unknown) or V(skip).
      type: str
    found:
      description: What was found, or why it is not known.
      type: str
    expected:
      description: What was expected. Empty where the check passed.
      type: str
    fix:
      description: What to do. Empty where the check passed.
      type: str
summary:
  description: The checks by the gravest status any host has.
  returned: success
  type: dict
  contains:
    ready:
      description: Whether no check failed.
      type: bool
    checks:
      description: The number of checks.
      type: int
    hosts:
      description: The hosts in the rows.
      type: list
      elements: str
    fail:
      description:
        - Names of failed checks. V(warn), V(unknown), V(note), V(ok) and V(skip) are alike.
      type: list
      elements: str
"""
