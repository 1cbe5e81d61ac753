# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nfs_mount
short_description: Mount a shared checkpoint with systemd, and again whenever it has to
version_added: 0.1.0
description:
  - Writes a mount unit of systemd, and the service C(sparkfleet-checkpoint.service), which mounts
    it after each start of the node as soon as the server answers, however late that is.
  - What is mounted is read from C(mountinfo). Nothing touches a file below the mount point, so that
    a server that is gone holds nobody up.
  - Another server, export or transport is a new mount, never a second one on top. Several mounts on
    one place, another file system there and a line of C(/etc/fstab) for it are refused.
  - While a rank serves nothing is changed.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
requirements:
  - On the node C(nfs-common) and systemd.
attributes:
  check_mode:
    description:
      - Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: full
notes:
  - Needs root.
options:
  state:
    description: With V(absent) what this module wrote and mounted is taken back, nothing else.
    type: str
    choices: [present, absent]
    default: present
  path:
    description: Where to mount. Required with O(state=present). No part of it may be a link.
    type: path
  address:
    description: The IPv4 address of the server. Required with O(state=present).
    type: str
  export:
    description: The path to mount from it. Required with O(state=present).
    type: str
  port:
    description: The TCP port of the server. RDMA has its own, 20049.
    type: int
    default: 2049
  transport:
    description: V(rdma) reaches neighbours only.
    type: str
    choices: [tcp, rdma]
    default: tcp
  hops:
    description: How many cables away the server is.
    type: int
    default: 1
  options:
    description:
      - Further mount options. C(ro,hard,nfsvers=4.2) and the transport are always there.
    type: list
    elements: str
    default: [nconnect=8, rsize=1048576, wsize=1048576]
  cell:
    description: A name for the units' descriptions.
    type: str
    default: sparks
  local:
    description: A directory that must not be on NFS, such as the one a local copy is read from.
    type: path
  rank_units:
    description: Patterns of units that read the checkpoint. Nothing is changed while one is active.
    type: list
    elements: str
    default: [sparkfleet-rank@*.service]
  force:
    description: Change the mount although a rank reads from it.
    type: bool
    default: false
seealso:
  - module: sparkfleet.cluster.nfs_export
  - module: sparkfleet.cluster.nfs_read_info
"""

EXAMPLES = r"""
---
- name: Mount the checkpoint of the neighbour
  sparkfleet.cluster.nfs_mount:
    path: /srv/spark/checkpoint
    address: 10.20.0.11
    export: /srv/spark/checkpoint
  become: true

- name: Take it back
  sparkfleet.cluster.nfs_mount:
    state: absent
  become: true
"""

RETURN = r"""
actions:
  description: What differs and is done about it, in order. The same in check mode.
  returned: always
  type: list
  elements: str
  sample:
    - write /etc/systemd/system/srv-spark-checkpoint.mount
    - mount 10.20.0.11:/srv/spark/checkpoint on /srv/spark/checkpoint
source:
  description: What is mounted.
  returned: state=present
  type: str
  sample: 10.20.0.11:/srv/spark/checkpoint
problems:
  description: Everything that forbade the change; the module has failed then.
  returned: always
  type: list
  elements: dict
  contains:
    code:
      description:
        - "A stable name: V(path), V(address), V(option), V(rdma-hops), V(stacked), V(occupied),
          V(fstab), V(link), V(not-local), V(serving), V(failed)."
      type: str
      sample: stacked
    message:
      description: What was found, where, and what to do next.
      type: str
"""

import functools
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_exports import Problem
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_host import (
    Outcome,
    ShareError,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_mount import (
    MOUNT_SECONDS,
    Client,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "path": {"type": "path"},
            "address": {"type": "str"},
            "export": {"type": "str"},
            "port": {"type": "int", "default": 2049},
            "transport": {"type": "str", "choices": ["tcp", "rdma"], "default": "tcp"},
            "hops": {"type": "int", "default": 1},
            "options": {
                "type": "list",
                "elements": "str",
                "default": ["nconnect=8", "rsize=1048576", "wsize=1048576"],
            },
            "cell": {"type": "str", "default": "sparks"},
            "local": {"type": "path"},
            "rank_units": {
                "type": "list",
                "elements": "str",
                "default": ["sparkfleet-rank@*.service"],
            },
            "force": {"type": "bool", "default": False},
        },
        required_if=[("state", "present", ("path", "address", "export"))],
        supports_check_mode=True,
    )
    if os.geteuid() != 0:
        module.fail_json(msg="mounts are root's; set become to true", problems=[])
    run = functools.partial(run_command, timeout=MOUNT_SECONDS + 20.0)
    client = Client("/", run, check=module.check_mode)
    try:
        present = module.params["state"] == "present"
        outcome = (client.present if present else client.absent)(module.params)
    except (ShareError, OSError) as error:
        outcome = Outcome(problems=[Problem("failed", str(error))])
    for text in outcome.warnings:
        module.warn(text)
    module.exit_json(**outcome.result())


if __name__ == "__main__":
    main()
