# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: image_plan
short_description: Who of a cell has to get an image, and from whom
version_added: 0.1.0
description:
  - Holds what every host has against what is wanted, and says who builds, pulls or loads the image
    and who then receives it from the builder, over which address of the fabric.
  - Refuses nothing by itself. RV(_value.problems) says in sentences why nothing may be done, such
    as an image of another architecture, a rank that is serving, or ranks that differ.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
positional: _input
options:
  _input:
    description: By host, the result of M(sparkfleet.cluster.container_image_info).
    type: dict
    required: true
  fabric:
    description: The result of P(sparkfleet.cluster.fabric_plan#filter).
    type: dict
    required: true
  reference:
    description: The image.
    type: str
    required: true
  source:
    description: Where it comes from.
    type: str
    choices: [build, pull, archive, present]
    required: true
  builder:
    description: The host that builds or loads it, and sends it to the others.
    type: str
    required: true
  repository:
    description: The git repository to build from.
    type: str
    default: ""
  commit:
    description: The commit to build, 40 hexadecimal digits.
    type: str
    default: ""
  dockerfile:
    description: The path of the Dockerfile in the repository.
    type: str
    default: Dockerfile
  args:
    description: Arguments of the build.
    type: dict
    default: {}
  archive:
    description: The path of the archive.
    type: str
    default: ""
  archive_facts:
    description: The result RV(sparkfleet.cluster.container_image_info#module:archive_facts).
    type: dict
  force:
    description: Work on hosts that are serving, too.
    type: bool
    default: false
"""

EXAMPLES = r"""
---
- name: Plan
  ansible.builtin.set_fact:
    plan: >-
      {{ images | sparkfleet.cluster.image_plan(spark_plan, reference='engine:1', source='present',
         builder='spark1') }}
"""

RETURN = r"""
_value:
  description: What is to be done.
  type: dict
  contains:
    obtain:
      description: Hosts that build, pull or load the image.
      type: list
      elements: str
    receivers:
      description: Hosts that receive it then.
      type: list
      elements: str
    addresses:
      description: For each receiver the address of the builder that it asks.
      type: dict
    listen:
      description: All of these addresses.
      type: list
      elements: str
    compress:
      description: Whether sender and receivers can all compress.
      type: bool
    bytes:
      description: About how large the image is.
      type: int
    inputs:
      description: Digest of what decides a build, kept as the label C(io.sparkfleet.build).
      type: str
    content:
      description: Content of the builder's image.
      type: str
    problems:
      description: Why nothing may be done.
      type: list
      elements: str
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._image_plan import (
    SOURCES,
    Wish,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._image_plan import (
    image_plan as plan,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain


def image_plan(
    images: Any,
    fabric: Any,
    *,
    reference: Any,
    source: Any,
    builder: Any,
    repository: Any = "",
    commit: Any = "",
    dockerfile: Any = "Dockerfile",
    args: Any = None,
    archive: Any = "",
    archive_facts: Any = None,
    force: Any = False,
) -> dict[str, Any]:
    images, fabric, args = plain(images), plain(fabric), plain(args or {})
    for name, value in (("images", images), ("fabric", fabric), ("args", args)):
        if not isinstance(value, Mapping):
            raise AnsibleTemplatePluginError(f"image_plan: {name} is not a dictionary")
    if source not in SOURCES:
        known = ", ".join(SOURCES)
        raise AnsibleTemplatePluginError(f"image_plan: source is {source!r}, expected {known}")
    wish = Wish(
        reference=str(reference or ""),
        source=str(source),
        builder=str(builder),
        repository=str(repository or ""),
        commit=str(commit or ""),
        dockerfile=str(dockerfile or ""),
        args={str(key): str(value) for key, value in args.items()},
        archive=str(archive or ""),
        force=bool(force),
    )
    return plan(images, fabric, wish, plain(archive_facts))


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"image_plan": image_plan}
