# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: sglang_boot_info
short_description: Where the rank of a node is on its way to serving
version_added: 0.1.0
description:
  - Looks once at the unit of a rank, at what its starter says and at its log.
  - On the head, once the log says that the engine is up, asks for one real completion, because a
    health check proves no more than a process.
  - P(sparkfleet.cluster.sglang_wait#module) calls it again and again on all hosts of a cell.
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
  proofs:
    description:
      - What the log must show, from C(checks) of P(sparkfleet.cluster.serving_plan#filter). The
        form is that of M(sparkfleet.cluster.engine_boot_info).
    type: list
    elements: dict
    default: []
  fatals:
    description: What the log must not show, from the same place.
    type: list
    elements: dict
    default: []
  pool_tokens_asked:
    description: How many tokens the KV pool was to hold.
    type: int
  served_name:
    description: The model that the head is asked for an answer of.
    type: str
    required: true
  answer_timeout:
    description: How long the head may take to answer, in seconds.
    type: float
    default: 120
"""

EXAMPLES = r"""
---
- name: Where is the rank of every host?
  sparkfleet.cluster.sglang_boot_info:
    settings: "{{ settings }}"
    proofs: "{{ serving.checks.proofs }}"
    fatals: "{{ serving.checks.fatals }}"
    served_name: "{{ serving.model.served_name }}"
  become: true
"""

RETURN = r"""
rank:
  description: Which rank it is.
  returned: always
  type: int
head:
  description: Whether it is the head.
  returned: always
  type: bool
state:
  description: The state of its unit.
  returned: always
  type: str
  sample: active
status:
  description: What its starter is doing, or did last.
  returned: always
  type: str
  sample: running
problems:
  description: What its starter complains about.
  returned: always
  type: list
  elements: str
ended:
  description: When it ended, in seconds of the epoch. V(null) while it has not.
  returned: always
  type: float
log:
  description: The facts of M(sparkfleet.cluster.engine_boot_info) about its log.
  returned: always
  type: dict
log_path:
  description: The file with the beginning of this start.
  returned: always
  type: str
tail:
  description: The last lines of the log.
  returned: always
  type: list
  elements: str
unjoined:
  description: What it lacks to meet the other ranks, a connection to the head; empty for nothing.
  returned: always
  type: str
answered:
  description: When the head answered, in seconds of the epoch. V(null) if it did not, or is none.
  returned: always
  type: float
answer_problem:
  description: Why the head does not answer although it should.
  returned: always
  type: str
limit_problem:
  description: What the kernel does not let the engine do.
  returned: always
  type: str
limit_note:
  description: The same, where it was accepted.
  returned: always
  type: str
time:
  description: When this was, in seconds of the epoch.
  returned: always
  type: float
"""

import functools
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engine_boot import PatternError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_answers import reply_of
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_http import (
    Client,
    ProbeError,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_node import boot_facts


def answer(port: int, model: str, deadline: float) -> str:
    """Ask for one real completion; returns why there is none, or nothing."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Say hello."}],
        "max_tokens": 64,
        "temperature": 0,
    }
    client = Client(f"http://127.0.0.1:{port}")
    try:
        reply = reply_of(client.call("/v1/chat/completions", body, deadline=deadline))
    except ProbeError as error:
        return f"{error}{'; next: ' + error.remedy if error.remedy else ''}"
    return "" if reply.content or reply.reasoning else "the completion is empty"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "settings": {"type": "dict", "required": True},
            "proofs": {"type": "list", "elements": "dict", "default": []},
            "fatals": {"type": "list", "elements": "dict", "default": []},
            "pool_tokens_asked": {"type": "int", "no_log": False},
            "served_name": {"type": "str", "required": True},
            "answer_timeout": {"type": "float", "default": 120},
        },
        supports_check_mode=True,
    )
    options = module.params
    settings = options["settings"]
    try:
        facts = boot_facts(
            settings,
            functools.partial(run_command, timeout=60),
            proofs=options["proofs"],
            fatals=options["fatals"],
            pool_asked=options["pool_tokens_asked"],
        )
    except PatternError as error:
        module.fail_json(msg=str(error))
    facts.update(answered=None, answer_problem="", time=time.time())
    ready = facts["state"] == "active" and facts["log"]["stage"]["name"] == "ready"
    if settings["head"] and ready:
        told = answer(settings["engine_port"], options["served_name"], options["answer_timeout"])
        facts.update(answered=None if told else time.time(), answer_problem=told)
    module.exit_json(changed=False, **facts)


if __name__ == "__main__":
    main()
