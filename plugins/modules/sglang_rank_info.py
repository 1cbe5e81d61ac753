# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_rank_info
short_description: Find out whether the rank of a node can start, or runs as planned
version_added: 0.1.0
description:
  - Looks at the image, the mounts, the checkpoint and the Engram tables, the ports, the container,
    the unit and the files of a rank, and finds out by a throw-away container how it gets the GPU.
  - Whatever is wrong is data, and the module succeeds. A mount that does not answer does not hang
    it.
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
  settings:
    description: The result of P(sparkfleet.cluster.rank_settings#filter) for this host.
    type: dict
    required: true
  timeout:
    description: How long mounts may take to answer, in seconds.
    type: float
    default: 30
"""

EXAMPLES = r"""
---
- name: Look at the rank of every host
  sparkfleet.cluster.sglang_rank_info:
    settings: "{{ settings }}"
  become: true
  register: found
"""

RETURN = r"""
problems:
  description: Why the rank cannot start. Each has a C(code) and a C(message) with the next command.
  returned: always
  type: list
  elements: dict
running:
  description: Whether its unit is active and its container runs.
  returned: always
  type: bool
settings:
  description: A digest of the settings the running container was started with.
  returned: always
  type: str
gpu:
  description: In which way a container gets the GPU, V(null) if in none.
  returned: always
  type: str
  sample: runtime
equal:
  description: Digests of what must be the same on every rank, by name.
  returned: always
  type: dict
image:
  description: The image on this node.
  returned: always
  type: dict
unit:
  description: The unit of the rank.
  returned: always
  type: dict
container:
  description: The container of the rank.
  returned: always
  type: dict
differs:
  description: The files of the rank that are not there or not as they should be.
  returned: always
  type: list
  elements: str
"""

import functools

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_node import rank_facts
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_unit import Installation


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "settings": {"type": "dict", "required": True},
            "timeout": {"type": "float", "default": 30},
        },
        supports_check_mode=True,
    )
    settings = module.params["settings"]
    # A container that is started on a busy node takes its time.
    run = functools.partial(run_command, timeout=120)
    facts = rank_facts(settings, run, deadline=module.params["timeout"])
    files = Installation(settings, facts["gpu"])
    module.exit_json(changed=False, differs=files.differing(), **facts)


if __name__ == "__main__":
    main()
