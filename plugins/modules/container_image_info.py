# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: container_image_info
short_description: Tell which container image a node has, comparably between nodes
version_added: 0.1.0
description:
  - Asks Docker about one image, and looks into an archive of C(docker save) without loading it.
  - Returns a digest of layers, architecture and configuration, RV(content), that is the same on all
    nodes with the same image. The id that Docker shows is not, since it depends on how the node
    stores images.
  - Uses the docker command, which is on every node that runs containers, unlike the Python library.
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
options:
  reference:
    description: The image, as C(name:tag) or C(name@sha256:...). Empty to ask about the node alone.
    type: str
    default: ""
  archive:
    description: The path of a plain tar file that C(docker save) wrote.
    type: path
  timeout:
    description: Seconds that Docker may take for an answer.
    type: int
    default: 60
"""

EXAMPLES = r"""
---
- name: See which image is there
  sparkfleet.cluster.container_image_info:
    reference: engine:1
  become: true
  register: image
"""

RETURN = r"""
reference:
  description: The image that was asked about.
  returned: always
  type: str
exists:
  description: Whether the node has it.
  returned: always
  type: bool
content:
  description: Digest of layers, architecture and configuration, V(null) where there is no image.
  returned: always
  type: str
  sample: sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
architecture:
  description: What the image is made for, in Docker's words.
  returned: always
  type: str
  sample: arm64
labels:
  description: Its labels.
  returned: always
  type: dict
size:
  description: Its size in bytes as Docker counts it.
  returned: always
  type: int
id:
  description: What Docker calls it on this node. Not comparable between nodes.
  returned: always
  type: str
node_architecture:
  description: What the node is, in Docker's words.
  returned: always
  type: str
  sample: arm64
store:
  description: How the node stores images, V(classic) or V(containerd).
  returned: always
  type: str
zstd:
  description: Whether the node can compress with zstd.
  returned: always
  type: bool
serving:
  description: Units of ranks that are at work on the node.
  returned: always
  type: list
  elements: str
  sample: [sparkfleet-rank@sparks.service]
problems:
  description: What keeps the node from having images, as RV(problems[].code) and text.
  returned: always
  type: list
  elements: dict
  contains:
    code:
      description: V(docker-absent), V(docker-down), V(inspect-failed) or V(ranks-unknown).
      type: str
    message:
      description: What was found and what to do.
      type: str
archive_facts:
  description: What is in the archive.
  returned: when O(archive) is given
  type: dict
  contains:
    path:
      description: The archive.
      type: str
    size:
      description: Its bytes.
      type: int
    images:
      description: Its images, each with RV(content), RV(architecture) and C(tags).
      type: list
      elements: dict
    problems:
      description: V(archive-unreadable) or V(archive-foreign), with the text.
      type: list
      elements: dict
"""

from functools import partial

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._image_facts import (
    archive_facts,
    image_facts,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "reference": {"type": "str", "default": ""},
            "archive": {"type": "path"},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    params = module.params
    facts = image_facts(params["reference"], partial(run_command, timeout=params["timeout"]))
    if params["archive"]:
        facts["archive_facts"] = archive_facts(params["archive"])
    module.exit_json(changed=False, **facts)


if __name__ == "__main__":
    main()
