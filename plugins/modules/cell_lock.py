# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cell_lock
short_description: Hold a cell, so that two operators do not change it at once
version_added: 0.1.0
description:
  - Notes on a host who works on a cell, in C(/var/lib/sparkfleet/lock/CELL.json), and refuses to
    whoever comes meanwhile. Call it for the head, or with C(delegate_to) that.
  - A run that ends on the way cannot let go. Its owner takes the cell again with the next run, as
    the process is gone. Anybody else is told who holds it since when.
  - A run may hold a cell several times, as a playbook that imports others does, and has to let go
    as often.
  - With C(--check) nothing is taken, and somebody else is only a warning.
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
  cell:
    description: The cell.
    type: str
    required: true
  state:
    description: Hold it, or let go of it.
    type: str
    choices: [held, released]
    default: held
  force:
    description: Take it whoever holds it.
    type: bool
    default: false
  expected:
    description: For the module alone. What the file has to have still. The action gives it.
    type: json
  wanted:
    description: For the module alone. What it is to have then. The action gives it.
    type: json
  look:
    description: For the module alone. Only read. The action gives it.
    type: bool
    default: false
"""

EXAMPLES = r"""
---
- name: Hold the cell
  sparkfleet.cluster.cell_lock:
    cell: sparks
  delegate_to: "{{ groups.sparks | first }}"
  become: true
  run_once: true
"""

RETURN = r"""
found:
  description: Who held it before, with C(owner), C(playbook), C(pid), C(since). None if nobody did.
  returned: success
  type: dict
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _cell_lock


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cell": {"type": "str", "required": True},
            "state": {"type": "str", "choices": ["held", "released"], "default": "held"},
            "force": {"type": "bool", "default": False},
            "expected": {"type": "json"},
            "wanted": {"type": "json"},
            "look": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    path = _cell_lock.file_of(module.params["cell"])
    expected, wanted = (
        _cell_lock.as_holder(json.loads(module.params[name] or "null"))
        for name in ("expected", "wanted")
    )
    try:
        if module.params["look"] or module.check_mode:
            found = _cell_lock.read(path)
        else:
            found = _cell_lock.change(path, expected, wanted)
    except OSError as error:
        module.fail_json(
            msg=f"{error.filename}: {error.strerror}; the lock of a cell is root's, set become"
        )
    module.exit_json(changed=False, found=found._asdict() if found else None)


if __name__ == "__main__":
    main()
