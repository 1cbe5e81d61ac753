# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: fabric_diagram
short_description: Draw the cabling of a fabric
version_added: 0.1.0
description:
  - Draws hosts, cages, cables and addresses of a plan, as an SVG picture or as text for a terminal.
  - Where it is known what was found, cables are drawn as they were found and as they are expected.
    Where bandwidths were measured, they stand at the cables.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
requirements:
  - drawsvg >= 2.4 (Python library, on the controller; for O(format=svg) only)
positional: _input, format, observed, measured
options:
  _input:
    description: What P(sparkfleet.cluster.fabric_plan#filter) returned.
    type: dict
    required: true
  format:
    description:
      - V(svg) is a picture that needs nothing else, neither fonts nor scripts, V(text) is for a
        terminal of a hundred columns that shows Unicode.
    type: str
    choices: [svg, text]
    default: svg
  observed:
    description:
      - The cables that were found, as P(sparkfleet.cluster.fabric_compare#filter) takes them.
    type: list
    elements: raw
  measured:
    description:
      - Measured bandwidths, as a list of mappings. V(ends) are the two cages as V(host:cage),
        V(gbps) is what both twins together reached in the slower direction, in Gb/s, and V(ok),
        which may be left out, whether that is enough.
      - Through a switch, every host shows the best that it reached with any other.
    type: list
    elements: dict
seealso:
  - plugin: sparkfleet.cluster.fabric_plan
    plugin_type: filter
  - plugin: sparkfleet.cluster.fabric_compare
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Show the cabling
  ansible.builtin.debug:
    msg: "{{ (plan | sparkfleet.cluster.fabric_diagram('text')).splitlines() }}"

- name: Keep a picture of what was proven
  ansible.builtin.copy:
    content: "{{ plan | sparkfleet.cluster.fabric_diagram('svg', found, measured) }}"
    dest: /tmp/fabric.svg
    mode: "0644"
  vars:
    found: "{{ plan.cables }}"
    measured:
      - {ends: [spark1:0, spark2:1], gbps: 189.4, ok: true}
"""

RETURN = r"""
_value:
  description: The picture, the same for the same input.
  type: str
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import PlanError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_picture import Picture
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_svg import fabric_svg
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_text import fabric_text

_FORMATS = {"svg": fabric_svg, "text": fabric_text}


def fabric_diagram(
    plan: Any,
    format: Any = "svg",  # noqa: A002  the name that users write
    observed: Any = None,
    measured: Any = None,
) -> str:
    if format not in _FORMATS:
        raise AnsibleTemplatePluginError(f"format is {format!r}, expected svg or text.")
    try:
        return _FORMATS[format](Picture.of(plan, observed, measured))
    except PlanError as error:
        raise AnsibleTemplatePluginError(str(error)) from error


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"fabric_diagram": fabric_diagram}
