# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: rank_settings
short_description: What is installed on the nodes of a cell for their ranks
version_added: 0.1.0
description:
  - Makes the settings of every rank from the plans, for M(sparkfleet.cluster.sglang_rank) and the
    modules that look at a rank. They are what the starter of the rank reads on its node.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
positional: _input
options:
  _input:
    description: The result of P(sparkfleet.cluster.serving_plan#filter).
    type: dict
    required: true
  fabric:
    description: The result of P(sparkfleet.cluster.fabric_plan#filter).
    type: dict
    required: true
  tables:
    description: The Engram tables of the model, with C(layer) and C(rows) of each.
    type: list
    elements: dict
    required: true
  rendezvous_port:
    description: The TCP port on the head where the ranks meet.
    type: int
    required: true
  checkpoint_filesystem:
    description:
      - The kind of file system the checkpoint must be on, as the beginning of its name, such as
        V(nfs). Empty for any.
    type: str
    default: ""
  accept_limits:
    description: Whether an engine that may lock little memory is only noted.
    type: bool
    default: false
  gid_wait:
    description: How long links may take to come up at a start, in seconds.
    type: int
    default: 180
  stop_grace:
    description: How long the engine may take to end, in seconds.
    type: int
    default: 30
  log_bytes:
    description: After how many bytes a file of the log is closed.
    type: int
    default: 67108864
  log_keep:
    description: How many closed files are kept.
    type: int
    default: 5
"""

EXAMPLES = r"""
---
- name: See whether the rank of this host runs as planned
  sparkfleet.cluster.sglang_rank_info:
    settings: "{{ settings_by_host[inventory_hostname] }}"
  vars:
    settings_by_host: >-
      {{ serving | sparkfleet.cluster.rank_settings(fabric=fabric, tables=[],
         rendezvous_port=20000) }}
"""

RETURN = r"""
_value:
  description: The settings by host, made of nothing but plain data.
  type: dict
"""

from collections.abc import Callable
from typing import Any

from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _rank_settings
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain


def rank_settings(serving: Any, **options: Any) -> dict[str, Any]:
    serving, options = plain(serving), plain(options)
    try:
        return {
            host: _rank_settings.rank_settings(serving, host, **options)
            for host in serving["hosts"]
        }
    except (KeyError, TypeError) as error:
        raise AnsibleTemplatePluginError(
            f"rank_settings: the plans are not what serving_plan and fabric_plan return: {error}"
        ) from error


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"rank_settings": rank_settings}
