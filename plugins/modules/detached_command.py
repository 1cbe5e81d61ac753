# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: detached_command
short_description: Run long work on a node that no lost connection can end
version_added: 0.1.0
description:
  - Leaves a command to the systemd of the node, as a transient unit C(sparkfleet-<name>.service),
    and watches it with short connections. The run of Ansible may break and be repeated meanwhile;
    the same work is then watched again and not started twice.
  - Start the work on all hosts in one task and watch it in the next, so that it runs everywhere at
    once whatever the number of forks.
  - What the command prints is in C(/var/log/sparkfleet/<name>.log) on the node. While it is
    watched, its last line is shown as progress.
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
    details:
      - Shows the command that is started.
options:
  name:
    description: What the work is called, in lower-case letters, digits and dashes.
    type: str
    required: true
  stage:
    description:
      - V(start) starts the command, unless it is running already.
      - V(watch) waits for its end, shows progress, fails if the command failed, and forgets it.
      - V(status) tells how it stands. V(clear) ends and forgets it; its log stays.
    type: str
    choices: [start, watch, status, clear]
    required: true
  argv:
    description: The command and its arguments. No shell is involved.
    type: list
    elements: str
  chdir:
    description: The directory it runs in.
    type: path
    default: /
  environment_variables:
    description: Variables it gets beyond those that systemd gives. They are no place for secrets.
    type: dict
    default: {}
  stdin:
    description:
      - What it reads from its standard input. May be secret, is kept in a file of the user until
        the work is forgotten.
    type: str
    default: ""
  timeout:
    description: Seconds after which V(watch) gives up. The work goes on.
    type: int
    default: 7200
  patience:
    description: Seconds for which V(watch) bears with a node that cannot be reached.
    type: int
    default: 300
"""

EXAMPLES = r"""
---
- name: Start pulling everywhere
  sparkfleet.cluster.detached_command:
    name: pull
    stage: start
    argv: [docker, pull, registry.example.org/engine:1]
  become: true

- name: Wait for it
  sparkfleet.cluster.detached_command:
    name: pull
    stage: watch
  become: true
"""

RETURN = r"""
state:
  description: V(absent), V(running), V(succeeded) or V(failed).
  returned: always
  type: str
  sample: running
rc:
  description: The exit status of the command, once it ended.
  returned: when there is such work
  type: int
  sample: 0
last:
  description: The last line the command printed.
  returned: when there is such work
  type: str
  sample: "Step 3/20 : RUN make"
tail:
  description: The last thirty lines.
  returned: when there is such work
  type: list
  elements: str
log:
  description: The log on the node.
  returned: always
  type: str
  sample: /var/log/sparkfleet/pull.log
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._detached import (
    Detached,
    DetachedError,
    Job,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "stage": {
                "type": "str",
                "choices": ["start", "watch", "status", "clear"],
                "required": True,
            },
            "argv": {"type": "list", "elements": "str"},
            "chdir": {"type": "path", "default": "/"},
            "environment_variables": {"type": "dict", "default": {}},
            "stdin": {"type": "str", "default": "", "no_log": True},
            "timeout": {"type": "int", "default": 7200},
            "patience": {"type": "int", "default": 300},
        },
        required_if=[("stage", "start", ["argv"])],
        supports_check_mode=True,
    )
    try:
        result = _act(module)
    except (DetachedError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


def _act(module: AnsibleModule) -> dict[str, Any]:
    params = module.params
    work = Detached(params["name"], run_command)
    result: dict[str, Any] = {"log": work.log}
    if params["stage"] == "start":
        job = Job(
            params["name"],
            params["argv"],
            params["chdir"],
            {key: str(value) for key, value in params["environment_variables"].items()},
            params["stdin"],
        )
        changed = True if module.check_mode else work.start(job)
        result.update(changed=changed, state="absent" if module.check_mode else "running")
        if changed:
            result["diff"] = {"before": "", "after": f"{' '.join(job.argv)}\n"}
        return result
    found = work.status()
    changed = False
    if params["stage"] == "clear":
        changed = found["state"] != "absent"
        if not module.check_mode:
            work.clear()
    return {**result, **found, "changed": changed}


if __name__ == "__main__":
    main()
