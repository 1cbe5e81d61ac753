# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_wait
short_description: Wait until a cell serves, and say what is wrong with one that does not
version_added: 0.1.0
description:
  - Runs on all hosts of a cell at once, each looking at its own rank, and ends on all of them
    together. A cell is ready when the container of every rank runs, the lines that prove the boot
    are in their logs, and the head has answered a real completion.
  - The first rank that ends, or prints a fatal line, ends the wait, and is shown with cause, remedy
    and the lines around it. Meanwhile a line tells where every rank is, whenever that changes.
  - It needs as many forks as the cell has hosts. With less, a rank without a turn is not seen, and
    its end not noticed before the time is over.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
attributes:
  check_mode:
    description:
      - Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
    details:
      - Looks once and waits for nothing.
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: none
options:
  settings:
    description: The result of P(sparkfleet.cluster.rank_settings#filter) for this host.
    type: dict
    required: true
  cell:
    description: What the cell is called.
    type: str
    required: true
  hosts:
    description: All hosts of the cell.
    type: list
    elements: str
    required: true
  proofs:
    description:
      - What the log must show, from C(checks) of P(sparkfleet.cluster.serving_plan#filter). The
        form is that of M(sparkfleet.cluster.engine_boot_info).
    type: list
    elements: dict
    default: []
  fatals:
    description: What the log must not show, from the same place.
    type: list
    elements: dict
    default: []
  pool_tokens_asked:
    description: How many tokens the KV pool was to hold.
    type: int
  served_name:
    description: The model that the head is asked for an answer of.
    type: str
    required: true
  answer_timeout:
    description: How long the head may take to answer, in seconds.
    type: float
    default: 120
  pool_tokens_least:
    description: How many tokens the KV pool must hold.
    type: int
  ready_timeout:
    description: After how many seconds a cell that is not ready counts as broken.
    type: float
    default: 3600
  interval:
    description: How many seconds lie between two looks.
    type: float
    default: 2
"""

EXAMPLES = r"""
---
- name: Wait until the cell serves
  sparkfleet.cluster.sglang_wait:
    settings: "{{ settings }}"
    cell: sparks
    hosts: "{{ groups['sparks'] }}"
    proofs: "{{ serving.checks.proofs }}"
    fatals: "{{ serving.checks.fatals }}"
    served_name: "{{ serving.model.served_name }}"
  become: true
"""

RETURN = r"""
seconds:
  description: How long it took.
  returned: always
  type: float
  sample: 171.4
stage:
  description: Where the rank of this host is.
  returned: always
  type: str
  sample: ready
pool_tokens:
  description: How many tokens the KV pool holds, as far as this rank tells.
  returned: always
  type: int
  sample: 6490112
boot:
  description:
    - Of the last result of M(sparkfleet.cluster.sglang_boot_info) its C(state), C(status),
      C(problems), and of its C(log) C(stage) and C(pool).
  returned: always
  type: dict
notes:
  description: What is worth knowing and no reason to fail.
  returned: always
  type: list
  elements: str
"""
