# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cell_report
short_description: Show a cell on one screen
version_added: 0.1.0
description:
  - With O(hosts), shows how the cell is now, and what the last reports on the controller say of its
    links and its answers.
  - Without, shows what the run that called it has proven and measured, and what it left open.
  - Everything is taken from results of other modules. It judges nothing, runs on the controller
    alone, and is called with C(run_once).
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
  cell:
    description: What the cell is called.
    type: str
    required: true
  head:
    description: The host with the entry.
    type: str
    default: ""
  hosts:
    description:
      - The hosts in rank order, each with C(name) and, as far as there are any, the results C(rank)
        of M(sparkfleet.cluster.sglang_rank_info), C(boot) of M(sparkfleet.cluster.sglang_boot_info)
        and C(gids) of M(sparkfleet.cluster.roce_gid_info).
    type: list
    elements: dict
    default: []
  api:
    description: The result of M(sparkfleet.cluster.openai_probe), for how the cell is now.
    type: dict
  preflight:
    description: The result of M(sparkfleet.cluster.preflight_report).
    type: dict
  fabric:
    description: The result of P(sparkfleet.cluster.link_verdict#filter).
    type: dict
  tables:
    description: The results of M(sparkfleet.cluster.engram_pack), by host.
    type: dict
    default: {}
  serving:
    description: What is served, as C(model) and C(profile).
    type: dict
  entry:
    description: The endpoint, as the role entry tells it in C(entry_result).
    type: dict
  verify:
    description: The result of M(sparkfleet.cluster.openai_probe) with all checks.
    type: dict
  fabric_path:
    description:
      - The report of the links on the controller, without its ending. By default where
        M(sparkfleet.cluster.fabric_report) writes it.
    type: path
    default: ""
  verify_path:
    description:
      - The report of the last verification on the controller, without its ending. By default where
        M(sparkfleet.cluster.verify_report) writes it.
    type: path
    default: ""
"""

EXAMPLES = r"""
---
- name: Tell what came of it
  sparkfleet.cluster.cell_report:
    cell: sparks
    head: spark1
    fabric: "{{ roce_fabric_result }}"
    entry: "{{ hostvars.spark1.entry_result }}"
  run_once: true
"""

RETURN = r"""
lines:
  description: What was shown.
  returned: always
  type: list
  elements: str
"""
