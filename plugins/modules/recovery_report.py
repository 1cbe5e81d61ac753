# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: recovery_report
short_description: Judge a cell by the evidence of its ranks, and show what was found
version_added: 0.1.0
description:
  - Decides whether a cell serves, is to be waited for, may be started again or must not be, and
    shows every rank with what was found.
  - Runs on the controller alone; call it with C(run_once).
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
  hosts:
    description: Its hosts in rank order, the head first.
    type: list
    elements: str
    required: true
  found:
    description:
      - By host, the results of M(sparkfleet.cluster.recovery_info). A host without C(evidence)
        counts as one that cannot be reached.
    type: dict
    required: true
  limits:
    description:
      - C(attempts), C(window), C(cooldown), C(ready_timeout) and C(canary_failures), as the role
        C(recovery) documents them.
    type: dict
    default: {}
  asked:
    description: Whether the cell is wanted up even where it was stopped.
    type: bool
    default: false
"""

EXAMPLES = r"""
---
- name: Judge the cell
  sparkfleet.cluster.recovery_report:
    cell: sparks
    hosts: "{{ groups.sparks }}"
    found: "{{ found }}"
  run_once: true
  register: verdict
"""

RETURN = r"""
state:
  description: V(serving), V(waiting), V(dead), V(wedged), V(blocked) or V(stopped).
  returned: success
  type: str
  sample: dead
action:
  description: V(none), V(wait), V(restart) or V(refuse).
  returned: success
  type: str
  sample: restart
reasons:
  description: Why, as sentences.
  returned: success
  type: list
  elements: str
remedy:
  description: What to do next.
  returned: success
  type: str
missing:
  description: The hosts that cannot be reached.
  returned: success
  type: list
  elements: str
lines:
  description: What was shown.
  returned: success
  type: list
  elements: str
"""
