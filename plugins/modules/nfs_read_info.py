# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nfs_read_info
short_description: Prove that a checkpoint can be read where a rank reads it
version_added: 0.1.0
description:
  - Reads the index of a checkpoint and the last byte of every shard that it names, or of its single
    C(model.safetensors), from the server and not from memory, and compares names, sizes and times
    of all files with those of the server. So a mount that is stale, half copied, or of another
    server is recognised.
  - Runs in a child process with a deadline. A server that is gone is a problem that names the
    mount, not a task that hangs.
  - Changes nothing.
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
    description: The directory of the checkpoint.
    type: path
    required: true
  source:
    description:
      - What has to be mounted there, as C(address:path). Without it any directory will do.
    type: str
  expected:
    description: RV(sparkfleet.cluster.nfs_export#module:files) of the server.
    type: dict
  deadline:
    description:
      - Seconds to wait. For 90 s and more after a restart of its server, the grace period, NFS lets
        nobody open a file.
    type: float
    default: 180
  port:
    description: The TCP port of the server.
    type: int
    default: 2049
  required:
    description: Fail when there is a problem. Otherwise problems are data.
    type: bool
    default: true
seealso:
  - module: sparkfleet.cluster.nfs_export
  - module: sparkfleet.cluster.nfs_mount
"""

EXAMPLES = r"""
---
- name: Read the ends of all shards
  sparkfleet.cluster.nfs_read_info:
    path: /srv/spark/checkpoint
    source: 10.20.0.11:/srv/spark/checkpoint
  become: true
"""

RETURN = r"""
shards:
  description: How many shards could be read.
  returned: always
  type: int
  sample: 48
bytes:
  description: Their size in bytes.
  returned: always
  type: int
  sample: 510310549975
problems:
  description: What is wrong. Empty where a rank can read everything.
  returned: always
  type: list
  elements: dict
  contains:
    code:
      description:
        - "A stable name: V(not-mounted), V(no-answer), V(no-index), V(bad-index), V(stale),
          V(missing), V(extra), V(empty), V(unreadable), V(size), V(time)."
      type: str
      sample: size
    file:
      description: The file it is about, or the directory.
      type: str
      sample: model-00048-of-00048.safetensors
    message:
      description: What was found, and what was expected.
      type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_read import prove


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "source": {"type": "str"},
            "expected": {"type": "dict"},
            "deadline": {"type": "float", "default": 180},
            "port": {"type": "int", "default": 2049},
            "required": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    found = prove(
        wanted["path"], wanted["source"], wanted["expected"], wanted["deadline"], wanted["port"]
    )
    if wanted["required"] and found["problems"]:
        told = [problem["message"] for problem in found["problems"]]
        shown = told[:10] + [f"and {len(told) - 10} more"] * (len(told) > 10)
        module.fail_json(msg=f"{wanted['path']}: " + "\n".join(shown), **found)
    module.exit_json(changed=False, **found)


if __name__ == "__main__":
    main()
