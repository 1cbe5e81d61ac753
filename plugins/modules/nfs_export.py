# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nfs_export
short_description: Share a directory read-only with the kernel's NFS server
version_added: 0.1.0
description:
  - Exports one directory to a list of addresses, read-only, everybody squashed to one account,
    in C(/etc/exports.d/sparkfleet.exports). Never edits another file and never restarts the server.
  - Before anything is written, that account has opened every file, links were seen not to lead out
    of the directory, lines of others for the same directory were refused or adopted, and
    C(exportfs) itself has read all files, the new one among them, apart from the live table.
  - Afterwards the active table is read back. If it is not as asked for, the old file returns.
  - Where somebody declared an NFSv4 root (C(fsid=0)), RV(paths) tells what clients have to mount.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
requirements:
  - On the node C(nfs-kernel-server) and C(unshare) of util-linux.
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
  - In check mode the package does not have to be there.
options:
  state:
    description:
      - With V(absent) our lines and settings are taken back. The server goes on, for others.
    type: str
    choices: [present, absent]
    default: present
  path:
    description: The directory. Required with O(state=present). Links are resolved.
    type: path
  clients:
    description: The IPv4 addresses that clients come from. Required with O(state=present).
    type: list
    elements: str
    default: []
  account:
    description: The account of this node, or its uid, that every client reads as. Not root.
    type: str
    default: nobody
  adopt:
    description:
      - Whether a line of another file for O(path) and one of O(clients) stands for ours. It is
        refused otherwise, and in any case when it is writable or lets root be root.
    type: bool
    default: false
  rdma:
    description: Whether the server listens for RDMA on port 20049 as well, now and at each start.
    type: bool
    default: false
  port:
    description: The TCP port that the server has to listen on.
    type: int
    default: 2049
  missing_ok:
    description:
      - Whether in check mode the directory may be missing, because an earlier task has only said
        that it would make it.
    type: bool
    default: false
  deadline:
    description: Seconds after which a look at the directory is given up.
    type: float
    default: 60
seealso:
  - module: sparkfleet.cluster.nfs_mount
  - module: sparkfleet.cluster.nfs_read_info
"""

EXAMPLES = r"""
---
- name: Share the checkpoint with two neighbours
  sparkfleet.cluster.nfs_export:
    path: /srv/spark/checkpoint
    clients: [10.20.0.12, 10.20.6.14]
    account: spark
  become: true

- name: Take it back
  sparkfleet.cluster.nfs_export:
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
    - write /etc/exports.d/sparkfleet.exports
    - exportfs -ra
paths:
  description: For each client the path that it has to mount.
  returned: state=present
  type: dict
  sample:
    10.20.0.12: /srv/spark/checkpoint
files:
  description:
    - For each file its size in bytes and when it was modified, in seconds since the epoch. Hidden
      files are left out.
  returned: state=present
  type: dict
  sample:
    config.json: [3912, 1790000000]
problems:
  description: Everything that forbade the share; the module has failed then.
  returned: always
  type: list
  elements: dict
  contains:
    code:
      description:
        - "A stable name: V(no-directory), V(on-nfs), V(unreadable), V(links-leave), V(parent),
          V(files), V(account), V(client), V(world), V(duplicate), V(pseudo-root), V(refused),
          V(foreign-server), V(port), V(rdma-port), V(version), V(failed)."
      type: str
      sample: files
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
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_server import Server


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "path": {"type": "path"},
            "clients": {"type": "list", "elements": "str", "default": []},
            "account": {"type": "str", "default": "nobody"},
            "adopt": {"type": "bool", "default": False},
            "rdma": {"type": "bool", "default": False},
            "port": {"type": "int", "default": 2049},
            "missing_ok": {"type": "bool", "default": False},
            "deadline": {"type": "float", "default": 60},
        },
        required_if=[("state", "present", ("path", "clients"))],
        supports_check_mode=True,
    )
    if os.geteuid() != 0:
        module.fail_json(msg="exports are root's; set become to true", problems=[])
    run = functools.partial(run_command, timeout=120.0)  # a server starts slowly on a busy node
    server = Server("/", run, check=module.check_mode, deadline=module.params["deadline"])
    try:
        present = module.params["state"] == "present"
        outcome = server.present(module.params) if present else server.absent()
    except (ShareError, OSError) as error:
        outcome = Outcome(problems=[Problem("failed", str(error))])
    for text in outcome.warnings:
        module.warn(text)
    module.exit_json(**outcome.result())


if __name__ == "__main__":
    main()
