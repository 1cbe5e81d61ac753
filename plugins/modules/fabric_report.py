# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_report
short_description: Show how a fabric is cabled and what its links were found to do
version_added: 0.1.0
description:
  - Prints the cabling as a drawing, as it was planned and as it was found, and below it the table
    of the links, where they were tried.
  - Keeps the same as a JSON file and a picture (SVG) on the controller. That these cannot be
    written is a warning and fails nothing.
  - Judges nothing. It runs on the controller alone; call it with C(run_once).
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
requirements:
  - drawsvg >= 2.4 (Python library, on the controller; for the picture only)
attributes:
  check_mode:
    description:
      - Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
    details:
      - Shows the same, and writes no files.
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: none
options:
  cell:
    description: What the cell is called.
    type: str
    required: true
  plan:
    description: The result of P(sparkfleet.cluster.fabric_plan#filter).
    type: dict
    required: true
  cables:
    description: The result of P(sparkfleet.cluster.link_cables#filter).
    type: dict
    required: true
  verdict:
    description: The result of P(sparkfleet.cluster.link_verdict#filter), once links were tried.
    type: dict
  keep:
    description: Whether the files are written. Give false where nothing was measured.
    type: bool
    default: true
  path:
    description:
      - The path of the files without their endings C(.json) and C(.svg).
      - The default is C(sparkfleet/fabric-<cell>) where programs of the user keep state,
        C($XDG_STATE_HOME) or C(~/.local/state).
    type: path
    default: ""
"""

EXAMPLES = r"""
---
- name: Show what is plugged where
  sparkfleet.cluster.fabric_report:
    cell: sparks
    plan: "{{ plan }}"
    cables: "{{ heard | sparkfleet.cluster.link_cables(plan=plan) }}"
  run_once: true
"""

RETURN = r"""
files:
  description: The files that were written.
  returned: always
  type: list
  elements: str
  sample: [/home/me/.local/state/sparkfleet/fabric-sparks.json]
"""
