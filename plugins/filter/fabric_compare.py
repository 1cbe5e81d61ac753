# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: fabric_compare
short_description: Hold the cables that were really found against the plan of a fabric
version_added: 0.1.0
description:
  - Names every cage that is not wired as planned, with what it is wired to and what was expected.
  - Says which plugs to move, and which plan would match the cables as they are, if there is one.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
positional: _input, observed
options:
  _input:
    description: What P(sparkfleet.cluster.fabric_plan#filter) returned.
    type: dict
    required: true
  observed:
    description:
      - The cables that were found, as a list of lists of V(host:cage), or of mappings with such a
        list as V(ends).
      - A cable may be listed several times, as its two ends and both twins see it. Cages that hear
        each other through a switch may be listed together or in pairs.
      - Two cages of one host are no cable; a port hears the other twin of its own cage.
    type: list
    elements: raw
    required: true
seealso:
  - plugin: sparkfleet.cluster.fabric_diagram
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Refuse a fabric that is not wired as planned
  ansible.builtin.assert:
    that: compared.ok
    fail_msg: "{{ (compared.problems + compared.advice) | join('\n') }}"
  vars:
    compared: "{{ plan | sparkfleet.cluster.fabric_compare(found) }}"
    found:
      - [spark1:0, spark2:0]
      - [spark2:1, spark3:1]
"""

RETURN = r"""
_value:
  description: How the cables agree with the plan.
  type: dict
  contains:
    ok:
      description: Whether all cables of the plan are there.
      type: bool
    problems:
      description: What is not, in sentences.
      type: list
      elements: str
      sample: [cage 1 of spark2 is wired to spark4 cage 0, expected spark3 cage 1]
    unused:
      description: Cables that the plan does not use and that do no harm, in sentences.
      type: list
      elements: str
    advice:
      description: What to do to the cables or to the plan, in sentences.
      type: list
      elements: str
      sample:
        - To wire spark2 as planned, exchange its two plugs.
        - "To plan for the cables as they are: topology ring, cabling matching."
    suggestion:
      description:
        - The V(hosts), V(topology), V(cabling) and V(cage) to give to
          P(sparkfleet.cluster.fabric_plan#filter) for a plan of the cables as they are. Null where
          nothing is wrong and where there is no such plan.
      type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _fabric_compare
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import PlanError


def fabric_compare(plan: Any, observed: Any) -> dict[str, Any]:
    try:
        return _fabric_compare.fabric_compare(plan, observed)
    except PlanError as error:
        raise AnsibleTemplatePluginError(str(error)) from error


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"fabric_compare": fabric_compare}
