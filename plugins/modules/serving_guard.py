# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: serving_guard
short_description: Plan the launch of a cell, or refuse it with every reason
version_added: 0.1.0
description:
  - Computes the variable C(spark_serving) of the role P(sparkfleet.cluster.spark#role) once. A
    profile, a setting or a memory that cannot work ends the play here, with all reasons and the
    nearest settings that do, before anything on a node is touched.
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
options: {}
"""

EXAMPLES = r"""
---
- name: Plan the launch
  sparkfleet.cluster.serving_guard:
  run_once: true
  register: planned
"""

RETURN = r"""
plan:
  description: The result of P(sparkfleet.cluster.serving_plan#filter).
  returned: success
  type: dict
"""
