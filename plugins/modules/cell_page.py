# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cell_page
short_description: Leave all that is known of a cell on the controller as one page of HTML
version_added: 0.1.0
description:
  - Writes one page with what was proven, problems and what to do about them, the picture of the
    fabric with its links, ranks, answers of the endpoint, checks of the nodes, the plan and the
    launch. It holds no script and asks nothing of the network, and can be printed.
  - What the run that called it did not find out is taken from the last report on the controller and
    shown with its time. What nobody found out is said to be unknown.
  - That the page cannot be written is a warning and fails nothing. It judges nothing, runs on the
    controller alone, and is called with C(run_once).
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
requirements:
  - drawsvg >= 2.4 (Python library, on the controller; without it the fabric is drawn as text)
attributes:
  check_mode:
    description:
      - Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
    details:
      - Writes no files.
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
  plan:
    description: The result of P(sparkfleet.cluster.fabric_plan#filter).
    type: dict
    default: {}
  launch:
    description: The result of P(sparkfleet.cluster.serving_plan#filter).
    type: dict
    default: {}
  hosts:
    description: The ranks, as M(sparkfleet.cluster.cell_report) takes them.
    type: list
    elements: dict
    default: []
  tables:
    description: The results of M(sparkfleet.cluster.engram_pack), by host.
    type: dict
    default: {}
  entry:
    description: The endpoint, as the role entry tells it in C(entry_result).
    type: dict
    default: {}
  preflight:
    description: The result of M(sparkfleet.cluster.preflight_report).
    type: dict
    default: {}
  fabric:
    description: The result of P(sparkfleet.cluster.link_verdict#filter).
    type: dict
    default: {}
  verify:
    description: The result of M(sparkfleet.cluster.openai_probe) with all checks.
    type: dict
    default: {}
  optional:
    description: Checks of O(verify) whose failure is a warning.
    type: list
    elements: str
    default: []
  preflight_path:
    description: The report of M(sparkfleet.cluster.preflight_report), where it is not in its place.
    type: path
    default: ""
  fabric_path:
    description:
      - The report of M(sparkfleet.cluster.fabric_report) without its ending, where it is not in its
        place.
    type: path
    default: ""
  path:
    description:
      - The page. Beside it, with the ending C(.json), stands what the next page takes from this
        one.
      - The default is C(sparkfleet/cell-<cell>.html) where programs of the user keep state,
        C($XDG_STATE_HOME) or C(~/.local/state).
    type: path
    default: ""
"""

EXAMPLES = r"""
---
- name: Leave a page of the verification
  sparkfleet.cluster.cell_page:
    cell: sparks
    head: spark1
    verify: "{{ verify_answers }}"
  run_once: true
"""

RETURN = r"""
files:
  description: The files that were written.
  returned: always
  type: list
  elements: str
  sample: [/home/me/.local/state/sparkfleet/cell-sparks.html]
"""
