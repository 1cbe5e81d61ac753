# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_run
short_description: Run a playbook of the collection for several cells
version_added: 0.1.0
description:
  - Runs C(ansible-playbook) once for each cell, as a process of its own with C(-e spark_group=CELL)
    and all options of this run. So nothing of one cell gets into another, and every playbook stays
    one for a cell. Lines of output have the name of their cell before them.
  - Cells run beside each other, or with O(serial) one after the other, until one fails.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
attributes:
  check_mode:
    description:
      - Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
    details:
      - The runs for the cells have C(--check) then.
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: full
options:
  playbook:
    description: The name of a playbook of this collection, such as V(site).
    type: str
    required: true
  cells:
    description: The inventory groups that are cells.
    type: list
    elements: str
    required: true
  serial:
    description: One cell after the other, in this order, and none after one that failed.
    type: bool
    default: false
"""

EXAMPLES = r"""
---
- name: Deploy two cells
  sparkfleet.cluster.fleet_run:
    playbook: site
    cells: [cell_a, cell_b]
"""

RETURN = r"""
cells:
  description: What came of each cell.
  returned: always
  type: list
  elements: dict
  contains:
    cell:
      description: Its name.
      type: str
    rc:
      description: The status its run ended with. None if it was not begun.
      type: int
    seconds:
      description: How long it took.
      type: float
    changed:
      description: Whether it changed anything.
      type: bool
"""
