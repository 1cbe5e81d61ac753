# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: recovery_attempt
short_description: Keep the record of how often a cell was started again
version_added: 0.1.0
description:
  - The record is a file on the head that survives reboots, so that nobody starts a cell again
    without a bound, neither a person nor the watch.
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
    description: What the cell is called.
    type: str
    required: true
  state:
    description:
      - V(begun) counts an attempt, before anything is stopped. V(held) keeps the watch away while
        the cell is started for another reason. V(finished) ends either. V(forgotten) empties the
        record, for a person who has found the cause, and holds it for them.
    type: str
    choices: [begun, held, finished, forgotten]
    required: true
  who:
    description: Who is at it.
    type: str
    default: a playbook
  reasons:
    description: Why.
    type: list
    elements: str
    default: []
  limits:
    description:
      - With O(state=begun), C(attempts) in C(window) seconds, after which there is none for
        C(cooldown) seconds.
    type: dict
    default: {}
"""

EXAMPLES = r"""
---
- name: Count the attempt
  sparkfleet.cluster.recovery_attempt:
    cell: sparks
    state: begun
    reasons: [spark2 ended]
    limits: {attempts: 3, window: 3600, cooldown: 3600}
  become: true
"""

RETURN = r"""
record:
  description: The record as it is now, or would be in check mode.
  returned: always
  type: dict
"""

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _recovery
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _recovery_node as node


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "cell": {"type": "str", "required": True},
            "state": {
                "type": "str",
                "choices": ["begun", "held", "finished", "forgotten"],
                "required": True,
            },
            "who": {"type": "str", "default": "a playbook"},
            "reasons": {"type": "list", "elements": "str", "default": []},
            "limits": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    given = module.params
    path = node.RECORD.format(cell=given["cell"])
    before = node.read_json(path)
    after: dict[str, Any] | None = before
    if given["state"] == "begun":
        try:
            limits = _recovery.Limits(**given["limits"])
        except TypeError as error:
            module.fail_json(msg=f"limits: {error}")
        after = _recovery.begin(
            before, time.time(), limits, who=given["who"], reasons=given["reasons"]
        )
    elif given["state"] == "held":
        after = _recovery.hold(before, time.time(), who=given["who"])
    elif before and given["state"] == "finished":
        after = _recovery.finish(before, who=given["who"])
    elif given["state"] == "forgotten":
        after = _recovery.forget(before, time.time(), who=given["who"])
    if after is not None and after != before and not module.check_mode:
        try:
            node.write_json(path, after)
        except OSError as error:
            module.fail_json(
                msg=f"{path} cannot be written: {error.strerror}; nothing is started again "
                f"without a record; next: df -h {path}"
            )
    module.exit_json(changed=after != before, record=after)


if __name__ == "__main__":
    main()
