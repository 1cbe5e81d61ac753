# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_library_info
short_description: Tell which NCCL a library is, and what containers would load
version_added: 0.1.0
description:
  - Reads processor, build id, version and SHA-256 of a library without loading it, and looks for
    the marks of patches in it. A mark tells that a patch is there; identity is the SHA-256.
  - With O(image) two throw-away containers of it are started, without network and GPU, to see that
    the library bound over O(container_path) is the only NCCL a program could load.
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
  path:
    description: The library.
    type: path
    required: true
  markers:
    description: Texts that the patches leave in the library.
    type: list
    elements: str
    default: []
  machine:
    description: What it has to be made for, as C(uname -m) says it. The default is this machine.
    type: str
    default: ""
  image:
    description: The image whose containers the library is bound into.
    type: str
    default: ""
  container_path:
    description: The NCCL in the image that it is bound over.
    type: str
    default: ""
  timeout:
    description: Seconds that each container may take.
    type: int
    default: 120
"""

EXAMPLES = r"""
---
- name: Look at the library
  sparkfleet.cluster.nccl_library_info:
    path: /usr/local/lib/sparkfleet/nccl/libnccl.so.2
    markers: [SWITCHLESS_RING_ONLY]
  register: library
"""

RETURN = r"""
path:
  description: The library.
  returned: always
  type: str
exists:
  description: Whether it is there.
  returned: always
  type: bool
size:
  description: Its bytes.
  returned: always
  type: int
sha256:
  description: Its digest.
  returned: always
  type: str
machine:
  description: What it is made for.
  returned: always
  type: str
  sample: aarch64
node_machine:
  description: What this machine is.
  returned: always
  type: str
  sample: aarch64
build_id:
  description: The id its linker gave it.
  returned: always
  type: str
  sample: 05cb631cff46c79fc7e655496f951df1229cfb3f
version:
  description: The version of NCCL.
  returned: always
  type: str
  sample: 2.30.7+cuda13.0
markers:
  description: For each of O(markers) whether it is in the library.
  returned: always
  type: dict
serving:
  description: Units of ranks that are at work on this machine.
  returned: always
  type: list
  elements: str
problems:
  description: All that keeps the library from being used.
  returned: always
  type: list
  elements: dict
  contains:
    code:
      description:
        - "V(missing), V(unreadable), V(not-elf), V(truncated), V(wrong-machine), V(not-nccl),
          V(markers-missing), V(ranks-unknown)."
      type: str
    message:
      description: What was found and what was expected.
      type: str
visible:
  description: What containers see.
  returned: when O(image) is given and the library has no problem
  type: dict
  contains:
    libraries:
      description: The SHA-256 of every NCCL that a program could load, by path.
      type: dict
    problems:
      description: "V(no-look), V(no-target), V(not-bound), V(second-nccl), V(preload)."
      type: list
      elements: dict
"""

import platform
from functools import partial

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nccl_library import library_facts
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nccl_visible import visible
from ansible_collections.sparkfleet.cluster.plugins.module_utils._ranks import serving


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "markers": {"type": "list", "elements": "str", "default": []},
            "machine": {"type": "str", "default": ""},
            "image": {"type": "str", "default": ""},
            "container_path": {"type": "str", "default": ""},
            "timeout": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    params = module.params
    machine = platform.machine()
    facts = library_facts(params["path"], params["markers"], params["machine"] or machine)
    units, unknown = serving(run_command)
    if unknown:
        facts["problems"].append({"code": "ranks-unknown", "message": unknown})
    if params["image"] and not facts["problems"]:
        run = partial(run_command, timeout=params["timeout"])
        target = params["container_path"]
        facts["visible"] = visible(params["image"], target, params["path"], facts["sha256"], run)
    module.exit_json(changed=False, node_machine=machine, serving=units, **facts)


if __name__ == "__main__":
    main()
