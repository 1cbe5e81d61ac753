# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: entry_proxy
short_description: Put a door with keys before an engine that listens on loopback
version_added: 0.1.0
description:
  - Runs an instance of nginx of its own, as the unit C(sparkfleet-entry.service) with the files in
    C(/etc/sparkfleet/entry). A site's own nginx is not touched.
  - It compares keys, passes the paths of the API and nothing else, and streams both ways without
    keeping anything. The engine never sees a key, and logs show its name only.
  - The new configuration is tried before it replaces the old one, and loaded without breaking
    streams that run. In the end the door itself is asked, without a key and with one.
  - All that forbids it is told at once, before anything is changed.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
attributes:
  check_mode:
    description:
      - Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
    details:
      - Without nginx on the host its configuration cannot be tried, so that a run in check mode
        says less than one without.
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: full
    details:
      - The contents of files with keys are never shown.
requirements:
  - nginx >= 1.19.5 (on the host; the module says so if it is missing)
options:
  state:
    description:
      - With V(present) the entry runs as described and answers. With V(absent) it is gone, except
        for O(key_file) and the package.
    type: str
    choices: [present, absent]
    default: present
  instance:
    description:
      - Which entry of the host. V(entry) is that of a cell. V(router-entry) is that of a router,
        with the unit C(sparkfleet-router-entry.service) and files of its own.
    type: str
    choices: [entry, router-entry]
    default: entry
  cells:
    description:
      - For a router, the cells behind it. Each gets a port on C(127.0.0.1), where all is passed to
        the cell's own entry with the cell's key, which neither clients nor the router know.
      - While the file C(/var/lib/sparkfleet/router-entry/drained/NAME) exists, new requests to the
        cell NAME are answered with status 503.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Its name.
        type: str
        required: true
      port:
        description: The port for it on C(127.0.0.1).
        type: int
        required: true
      url:
        description: The address of its entry. The certificate of C(https) must be a known one.
        type: str
        required: true
  cell_keys:
    description:
      - By name of the cell, a key of its entry, or the text of a file of keys, of which the first
        is taken.
    type: dict
    default: {}
  port:
    description: The TCP port that the entry listens on.
    type: int
    default: 8000
  addresses:
    description: The addresses of the host that the entry listens on.
    type: list
    elements: str
    default: [0.0.0.0]
  engine_port:
    description: The TCP port of the engine on C(127.0.0.1).
    type: int
    default: 8888
  open:
    description: Let everybody in without a key.
    type: bool
    default: false
  keys:
    description:
      - Names and keys that O(key_file) is to hold, and no others. Each key has 16 characters or
        more out of letters, digits and C(._~+/-), with C(=) at its end only.
      - Without it the keys in O(key_file) are used as they are, and where there is no such file a
        key called V(default) is generated.
    type: dict
    default: {}
  key_file:
    description: The file of keys on the host, with lines of the form C(name:key), for root alone.
    type: path
    default: /etc/sparkfleet/keys
  paths:
    description:
      - Paths that are passed to the engine with a right key. One that ends with C(/) stands for all
        below it.
      - C(/health) is passed without a key. What changes the engine below C(/v1/) is not passed.
    type: list
    elements: str
    default: [/v1/]
  body_mib:
    description: How large a request may be, in MiB.
    type: int
    default: 256
  timeout:
    description: For how many seconds the engine may say nothing in the middle of a request.
    type: int
    default: 3600
  workers:
    description: How many processes of nginx do the work.
    type: int
    default: 4
  tls:
    description:
      - V(off) speaks plain HTTP. V(self-signed) makes a certificate for O(tls_names), renewed by a
        run in the last month of its ten years. V(given) uses O(tls_certificate) and
        O(tls_certificate_key).
    type: str
    choices: ["off", self-signed, given]
    default: "off"
  tls_certificate:
    description: The certificate on the host, with those between it and a known one behind it.
    type: path
    default: ""
  tls_certificate_key:
    description: The private key on the host, without a passphrase.
    type: path
    default: ""
  tls_names:
    description: Host names and addresses that clients use, for O(tls=self-signed).
    type: list
    elements: str
    default: []
  force:
    description:
      - Install nginx or replace the unit although a rank serves. Both make systemd read its units
        again, which takes a GPU from containers that were given it by a hook of the runtime.
    type: bool
    default: false
"""

EXAMPLES = r"""
---
- name: A door with a generated key
  sparkfleet.cluster.entry_proxy:
    tls: self-signed
    tls_names: [spark1, 192.0.2.11]
  become: true

- name: Two keys out of a vault
  sparkfleet.cluster.entry_proxy:
    keys:
      alice: "{{ vault_key_of_alice }}"
      backup-job: "{{ vault_key_of_backup_job }}"
  become: true
"""

RETURN = r"""
actions:
  description: What was done, or in check mode what would be done.
  returned: always
  type: list
  elements: str
  sample: [change /etc/sparkfleet/entry/keys.map, systemctl reload sparkfleet-entry.service]
key_names:
  description: The names of the keys.
  returned: success
  type: list
  elements: str
  sample: [default]
packages:
  description: Packages that are missing on the host.
  returned: success
  type: list
  elements: str
  sample: [nginx]
problems:
  description: All that forbids the entry. Empty on success.
  returned: always
  type: list
  elements: dict
  contains:
    code:
      description:
        - A stable name for the kind of problem.
        - V(settings), V(keys), V(open-with-keys), V(tls), V(port-taken), V(no-systemd),
          V(no-nginx), V(serving), V(refused-by-nginx), V(failed), V(not-answering).
      type: str
      sample: port-taken
    message:
      description: What was found, what was expected, where, and what to do next.
      type: str
"""

import functools
import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._entry_config import Place
from ansible_collections.sparkfleet.cluster.plugins.module_utils._entry_proxy import Entry


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "instance": {
                "type": "str",
                "choices": ["entry", "router-entry"],
                "default": "entry",
            },
            "cells": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    "name": {"type": "str", "required": True},
                    "port": {"type": "int", "required": True},
                    "url": {"type": "str", "required": True},
                },
            },
            "cell_keys": {"type": "dict", "default": {}, "no_log": True},
            "port": {"type": "int", "default": 8000},
            "addresses": {"type": "list", "elements": "str", "default": ["0.0.0.0"]},
            "engine_port": {"type": "int", "default": 8888},
            "open": {"type": "bool", "default": False},
            "keys": {"type": "dict", "default": {}, "no_log": True},
            "key_file": {"type": "path", "default": "/etc/sparkfleet/keys", "no_log": False},
            "paths": {"type": "list", "elements": "str", "default": ["/v1/"]},
            "body_mib": {"type": "int", "default": 256},
            "timeout": {"type": "int", "default": 3600},
            "workers": {"type": "int", "default": 4},
            "tls": {"type": "str", "choices": ["off", "self-signed", "given"], "default": "off"},
            "tls_certificate": {"type": "path", "default": ""},
            "tls_certificate_key": {"type": "path", "default": "", "no_log": False},
            "tls_names": {"type": "list", "elements": "str", "default": []},
            "force": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    if os.geteuid() != 0:
        module.fail_json(msg="the entry is root's; set become to true", problems=[], actions=[])
    params = module.params
    entry = Entry(
        functools.partial(run_command, timeout=60),
        check=module.check_mode,
        place=Place(params["instance"]),
    )
    try:
        outcome = entry.present(params) if params["state"] == "present" else entry.absent()
    except OSError as error:
        module.fail_json(
            msg=f"{error.filename}: {error.strerror}; run again when that is repaired",
            problems=[],
            actions=[],
        )
    for warning in outcome.warnings:
        module.warn(warning)
    result: dict[str, Any] = {
        "changed": bool(outcome.actions),
        "actions": list(outcome.actions),
        "diff": list(outcome.diff),
        "key_names": list(outcome.keys),
        "packages": list(outcome.packages),
        "problems": [problem._asdict() for problem in outcome.problems],
    }
    if outcome.problems:
        module.fail_json(msg="\n".join(one.message for one in outcome.problems), **result)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
