# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: verify_report
short_description: Show what came out of a verification, and keep it
version_added: 0.1.0
description:
  - Prints the checks of M(sparkfleet.cluster.openai_probe) as a table.
  - Keeps the same on the controller as JSON, as JUnit XML, where what was not done is skipped, and
    as a page of Markdown. That these cannot be written is a warning and fails nothing.
  - Does not fail for a check that failed; RV(failures) tells of it.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
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
  result:
    description: The result of M(sparkfleet.cluster.openai_probe).
    type: dict
    required: true
  optional:
    description: Checks whose failure is shown and no more.
    type: list
    elements: str
    default: []
  path:
    description:
      - The path of the files without their endings C(.json), C(.xml) and C(.md).
      - The default is C(sparkfleet/verify-<cell>) where programs of the user keep state,
        C($XDG_STATE_HOME) or C(~/.local/state).
    type: path
    default: ""
"""

EXAMPLES = r"""
---
- name: See whether the endpoint works
  sparkfleet.cluster.openai_probe:
    url: http://127.0.0.1:8000
    key_file: /etc/sparkfleet/keys
  become: true
  register: probe

- name: Show it
  sparkfleet.cluster.verify_report:
    cell: sparks
    result: "{{ probe }}"
"""

RETURN = r"""
failures:
  description: What failed and must not, with what to do next.
  returned: always
  type: list
  elements: str
  sample: ["speed: 9.8 tokens/s, expected 15 tokens/s or more"]
summary:
  description: How many checks came out how.
  returned: always
  type: str
  sample: 12 passed, 0 failed
files:
  description: The files that were written.
  returned: always
  type: list
  elements: str
  sample: [/home/me/.local/state/sparkfleet/verify-sparks.json]
"""
