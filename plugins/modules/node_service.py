# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_service
short_description: Keep units of systemd, and the files that they read, as described
version_added: 0.1.0
description:
  - Writes files and units, tries them with the commands given before anything is replaced, and has
    the units run now and after each start of the node. Files that are as they should be, units that
    run and a O(probe) that shows what is expected are left alone.
  - Units are enabled without a word to systemd's manager. What does make it read its units again, a
    package or a changed unit, is refused while a rank serves, since it takes the GPU from a running
    container.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
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
  name:
    description: What the service is called.
    type: str
    required: true
  state:
    description: With V(absent) units are stopped, and all that is named here is removed.
    type: str
    choices: [present, absent]
    default: present
  files:
    description: The files that units read.
    type: list
    elements: dict
    default: []
    suboptions:
      path:
        description: Where it is.
        type: path
        required: true
      content:
        description: What is in it.
        type: str
        required: true
      mode:
        description: Its permissions.
        type: str
        default: "0644"
      shown:
        description: Whether a diff shows the content.
        type: bool
        default: true
  units:
    description: The texts of units, by their names. What C(WantedBy) in them says is made so.
    type: dict
    default: {}
  running:
    description:
      - The units that run now. Those of O(units) are stopped with O(state=absent). Others are only
        started.
    type: list
    elements: str
    default: []
  once:
    description: Units that are started once after a change, and have to end well.
    type: list
    elements: str
    default: []
  programs:
    description: The paths of programs that are needed, with the package that brings each.
    type: dict
    default: {}
  tests:
    description:
      - Commands that have to succeed before a file is replaced. C({folder}) in them stands for a
        directory with the new files.
    type: list
    elements: list
    default: []
  probe:
    description: A command that shows what is in force.
    type: list
    elements: str
    default: []
  expected:
    description: A text that the output of O(probe) has to contain.
    type: str
    default: ""
  leavings:
    description: Files and directories that the service writes, removed with it.
    type: list
    elements: path
    default: []
  force:
    description: Do what is refused while a rank serves.
    type: bool
    default: false
"""

EXAMPLES = r"""
---
- name: Say every minute that the node lives
  sparkfleet.cluster.node_service:
    name: pulse
    units:
      sparkfleet-pulse.service: |
        [Service]
        ExecStart=/bin/logger alive
      sparkfleet-pulse.timer: |
        [Timer]
        OnActiveSec=0
        OnUnitActiveSec=60
        [Install]
        WantedBy=timers.target
    running: [sparkfleet-pulse.timer]
  become: true
"""

RETURN = r"""
actions:
  description: What was done, or would be in check mode.
  returned: success
  type: list
  elements: str
  sample: [write /etc/sparkfleet/fences.nft, systemctl start sparkfleet-fences.service]
packages:
  description: Packages that are missing.
  returned: success
  type: list
  elements: str
  sample: [nftables]
"""

import functools
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._node_service import (
    File,
    NodeService,
    ServiceError,
    Wish,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "files": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "path": {"type": "path", "required": True},
                    "content": {"type": "str", "required": True},
                    "mode": {"type": "str", "default": "0644"},
                    "shown": {"type": "bool", "default": True},
                },
            },
            "units": {"type": "dict", "default": {}},
            "running": {"type": "list", "elements": "str", "default": []},
            "once": {"type": "list", "elements": "str", "default": []},
            "programs": {"type": "dict", "default": {}},
            "tests": {"type": "list", "elements": "list", "default": []},
            "probe": {"type": "list", "elements": "str", "default": []},
            "expected": {"type": "str", "default": ""},
            "leavings": {"type": "list", "elements": "path", "default": []},
            "force": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    if os.geteuid() != 0:
        module.fail_json(msg="units and their files are root's; set become to true")
    given = module.params
    wish = Wish(
        files={
            file["path"]: File(file["content"], int(file["mode"], 8), file["shown"])
            for file in given["files"]
        },
        **{name: given[name] for name in Wish._fields if name != "files"},
    )
    service = NodeService(given["name"], wish, functools.partial(run_command, timeout=90))
    try:
        if given["state"] == "present":
            outcome = service.present(check=module.check_mode, force=given["force"])
        else:
            outcome = service.absent(check=module.check_mode)
    except ServiceError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}; run again when that is repaired")
    module.exit_json(changed=bool(outcome.actions), **outcome._asdict())


if __name__ == "__main__":
    main()
