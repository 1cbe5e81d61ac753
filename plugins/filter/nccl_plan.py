# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: nccl_plan
short_description: Which ranks of a cell have to get which NCCL
version_added: 0.1.0
description:
  - Holds the installed libraries against each other and against the one that is to be installed.
  - Refuses nothing by itself. RV(_value.problems) says in sentences why nothing may be done.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
positional: _input
options:
  _input:
    description: By host, the result of M(sparkfleet.cluster.nccl_library_info).
    type: dict
    required: true
  wish:
    description:
      - Where the library comes from. V(source) is V(none), V(file), V(url) or V(build); the others
        of its keys are V(file), V(url), V(sha256), V(version), V(repository), V(commit),
        V(patches), V(image), V(gencode) and V(force).
    type: dict
    required: true
  candidate:
    description: The result of M(sparkfleet.cluster.nccl_library_info) for the one to install.
    type: dict
"""

EXAMPLES = r"""
---
- name: Plan
  ansible.builtin.set_fact:
    plan: "{{ libraries | sparkfleet.cluster.nccl_plan({'source': 'none'}) }}"
"""

RETURN = r"""
_value:
  description: What is to be done.
  type: dict
  contains:
    install:
      description: Hosts that have to get the library.
      type: list
      elements: str
    inputs:
      description: Digest of what decides a build.
      type: str
    problems:
      description: Why nothing may be done.
      type: list
      elements: str
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nccl_plan import (
    SOURCES,
    Wish,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nccl_plan import (
    nccl_plan as plan,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain


def nccl_plan(libraries: Any, wish: Any, candidate: Any = None) -> dict[str, Any]:
    libraries, wish = plain(libraries), plain(wish)
    for name, value in (("libraries", libraries), ("wish", wish)):
        if not isinstance(value, Mapping):
            raise AnsibleTemplatePluginError(f"nccl_plan: {name} is not a dictionary")
    if wish.get("source") not in SOURCES:
        known = ", ".join(SOURCES)
        raise AnsibleTemplatePluginError(f"nccl_plan: source is not one of {known}")
    try:
        wanted = Wish(**wish)
    except TypeError as error:
        raise AnsibleTemplatePluginError(f"nccl_plan: {error}") from error
    return plan(libraries, wanted, plain(candidate))


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"nccl_plan": nccl_plan}
