# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: benchmark_report
short_description: Show what a benchmark came to, keep it, and compare it with an earlier one
version_added: 0.1.0
description:
  - Prints points of M(sparkfleet.cluster.openai_benchmark) as tables, medians with the least and
    the most, and keeps them on the controller as JSON, Markdown, SVG and PNG, each number beside a
    hash of the configuration that was measured.
  - The picture needs drawsvg on the controller, and the PNG its extra C(raster). Without these, and
    where files cannot be written, there is a warning.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
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
    description: What was measured is called.
    type: str
    required: true
  url:
    description: The endpoint.
    type: str
    required: true
  points:
    description: The C(point) of each result.
    type: list
    elements: dict
    required: true
  ranks:
    description:
      - The results of M(sparkfleet.cluster.sglang_rank_info) by host. The hash of the configuration
        is made from the launch that runs and the image of every one; if one is not known, it is
        empty.
    type: dict
    default: {}
  path:
    description:
      - The path of the files without their endings. The default is C(sparkfleet/benchmark-<cell>)
        where programs of the user keep state, C($XDG_STATE_HOME) or C(~/.local/state).
    type: path
    default: ""
  compare:
    description: The JSON file of an earlier benchmark.
    type: path
    default: ""
"""

EXAMPLES = r"""
---
- name: Show what came of it
  sparkfleet.cluster.benchmark_report:
    cell: sparks
    url: http://127.0.0.1:8888
    points: "{{ measured.results | map(attribute='point') }}"
    compare: before.json
"""

RETURN = r"""
configuration:
  description: The hash of all that was launched, empty where it is not known.
  returned: when something was measured
  type: str
  sample: 0f3c2a9be1d4
written:
  description: When this was.
  returned: when something was measured
  type: str
  sample: "2026-11-30T12:00:00Z"
comparison:
  description: The lines of the comparison.
  returned: always
  type: list
  elements: str
files:
  description: The files that were written.
  returned: always
  type: list
  elements: str
"""
