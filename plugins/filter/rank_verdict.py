# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rank_verdict
short_description: Whether the ranks of a cell may start, must start again, or neither
version_added: 0.1.0
description:
  - Takes together what M(sparkfleet.cluster.sglang_rank_info) found on every host of a cell.
  - What must be the same on all ranks and is not, is a problem that names the hosts that differ.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
positional: _input, settings
options:
  _input:
    description: The results of M(sparkfleet.cluster.sglang_rank_info), by host, in rank order.
    type: dict
    required: true
  settings:
    description: The results of P(sparkfleet.cluster.rank_settings#filter), by host.
    type: dict
    required: true
"""

EXAMPLES = r"""
---
- name: Refuse what cannot start
  ansible.builtin.fail:
    msg: "{{ verdict.problems | join('\n') }}"
  vars:
    verdict: "{{ facts_by_host | sparkfleet.cluster.rank_verdict(settings_by_host) }}"
  when: verdict.problems | length > 0
"""

RETURN = r"""
_value:
  description: The verdict.
  type: dict
  contains:
    problems:
      description: Why the cell must not start, as sentences; the same of several hosts once.
      type: list
      elements: str
    serving:
      description: Whether every rank runs as planned.
      type: bool
    reasons:
      description: Why a rank does not, by host.
      type: dict
    at_work:
      description: The hosts whose rank is at work, in the order of stopping them, the head first.
      type: list
      elements: str
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _rank_verdict
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain


def rank_verdict(facts: Any, settings: Any) -> dict[str, Any]:
    try:
        return _rank_verdict.rank_verdict(plain(facts), plain(settings))
    except (KeyError, TypeError, AttributeError) as error:
        raise AnsibleTemplatePluginError(
            f"rank_verdict: these are not results of sglang_rank_info and rank_settings: {error}"
        ) from error


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"rank_verdict": rank_verdict}
