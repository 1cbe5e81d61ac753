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
  - A run that ends on the way cannot let go. The next run of its owner takes the cell again, and so
    does anybody on the same controller, as the process is gone. Others are told who holds it since
    when.
  - A run may hold a cell several times, as a playbook that imports others does, and has to let go
    as often.
  - With C(--check) nothing is taken, and somebody else is only a warning.
  - A host that cannot be asked, or where nothing can be written, is a warning, too. Whatever
    follows there says more of it, and may be what mends it.
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
  mine:
    description: For the module alone. Who this run is. The action gives it.
    type: json
  gone:
    description: For the module alone. Who may be replaced. The action gives it.
    type: json
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
  returned: when the host could be asked
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
            "mine": {"type": "json"},
            "gone": {"type": "json"},
        },
        supports_check_mode=True,
    )
    path = _cell_lock.file_of(module.params["cell"])
    mine, gone = (
        _cell_lock.as_holder(json.loads(module.params[name] or "null")) for name in ("mine", "gone")
    )
    if mine is None:
        module.fail_json(msg="who this run is can only be said by the action of the same name")
    try:
        if module.check_mode:
            found = _cell_lock.read(path)
        elif module.params["state"] == "held":
            found = _cell_lock.change(path, lambda found: _cell_lock.take(found, mine, gone))
        else:
            found = _cell_lock.change(path, lambda found: _cell_lock.give(found, mine))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or path}: {error.strerror}")
    module.exit_json(changed=False, found=found._asdict() if found else None)


if __name__ == "__main__":
    main()
