# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cell_guard
short_description: Refuse an inventory or a call that would end in half a cell
version_added: 0.1.0
description:
  - Checks the inventory of a cell before any of its hosts is contacted. The group must exist and
    have at least two hosts, every variable that the collection reads for a whole cell must have the
    form it needs, and no two hosts may share address and port.
  - Unless O(whole=false), it also refuses a play that does not run on every host of the cell at
    once, be it for C(--limit), for C(serial) or for a host that has failed before.
  - All problems are reported together, each as a sentence that names host, variable and remedy.
  - Runs on the controller alone. Call it with C(run_once), and again in every play that needs all
    hosts.
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
  group:
    description: The inventory group whose hosts make up the cell, in rank order.
    type: str
    default: sparks
  whole:
    description: Whether the step needs every host of the cell at once.
    type: bool
    default: true
  group_from_command_line:
    description:
      - Set this in a playbook that takes its hosts from C(spark_group).
      - A play chooses its hosts before any variable of the inventory exists, so a C(spark_group)
        set in the inventory alone would make the plays miss the cell. It is then refused.
    type: bool
    default: false
"""

EXAMPLES = r"""
---
- name: Refuse half a cell
  sparkfleet.cluster.cell_guard:
    group: sparks
  run_once: true
"""

RETURN = r"""
hosts:
  description: The hosts of the cell in rank order.
  returned: success
  type: list
  elements: str
  sample: [spark1, spark2, spark3, spark4]
msg:
  description: Everything that is wrong, one sentence a line.
  returned: failure
  type: str
"""
