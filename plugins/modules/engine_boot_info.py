# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: engine_boot_info
short_description: Turn the log of a starting engine into facts
version_added: 0.1.0
description:
  - Says how far the boot of a rank is, which of the lines that prove a good one are there, which
    fatal signatures are, each with cause, remedy and the lines around it, and what the engine tells
    of its Engram tables, KV pool, CUDA graphs, speculation and NCCL.
  - Reads a bounded part of the log. Of a file, O(previous) makes it read only what is new.
  - Where lines may have been lost, because journald dropped some or the log is larger than
    O(max_bytes), a line that was not found is V(unknown), not V(missing).
  - Values of keys, tokens and passwords are not shown.
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
  source:
    description:
      - Where the log is. V(file) loses nothing. V(journal) is what journald kept of a unit,
        V(docker) what Docker kept of a container.
    type: str
    choices: [file, journal, docker]
    default: file
  path:
    description: The log file. Required with O(source=file).
    type: path
  unit:
    description: The systemd unit. Required with O(source=journal).
    type: str
  container:
    description: The name of the container. Required with O(source=docker).
    type: str
  proofs:
    description:
      - What the log must show, from C(checks) of P(sparkfleet.cluster.serving_plan#filter).
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: What is proven.
        type: str
        required: true
      pattern:
        description: A regular expression.
        type: str
        required: true
      scope:
        description: Whether every rank prints it, or the head only.
        type: str
        choices: [all, head]
        default: head
      count:
        description: On how many lines at least.
        type: int
        default: 1
      required:
        description: Whether a boot without it is none.
        type: bool
        default: true
  fatals:
    description: What the log must not show, from the same place.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: What went wrong.
        type: str
        required: true
      pattern:
        description: A regular expression.
        type: str
        required: true
      cause:
        description: Why.
        type: str
        default: ""
      remedy:
        description: What to do.
        type: str
        default: ""
      weak:
        description: Whether it says nothing by itself, because good boots show it too.
        type: bool
        default: false
  head:
    description: Whether this rank is the head, from which more is expected.
    type: bool
    default: true
  pool_tokens_asked:
    description: How many tokens the KV pool was to hold, where the log does not say.
    type: int
  start:
    description:
      - A regular expression of the line with which a boot begins. What is before the last one
        belongs to an earlier boot and does not count.
    type: str
  previous:
    description: RV(facts) of the call before, of the same file.
    type: dict
  offset:
    description: RV(offset) of the call before, or where in the file the boot begins.
    type: int
    default: 0
  max_bytes:
    description: How much of a log is read, half of it at its beginning and half at its end.
    type: int
    default: 16777216
  timeout:
    description: Seconds that journald or Docker may take.
    type: int
    default: 30
seealso:
  - plugin: sparkfleet.cluster.serving_plan
    plugin_type: filter
"""

EXAMPLES = r"""
---
- name: Look at the log of this rank
  sparkfleet.cluster.engine_boot_info:
    path: /var/log/sparkfleet/sparks-rank.log
    proofs: "{{ spark_serving.checks.proofs }}"
    fatals: "{{ spark_serving.checks.fatals }}"
    head: "{{ spark_serving.hosts[inventory_hostname].head }}"
  become: true
  register: boot

- name: Stop at the first fatal line
  ansible.builtin.assert:
    that: not boot.facts.failed
    fail_msg: "{{ boot.facts.fatals }}"

- name: Look at what is new since then
  sparkfleet.cluster.engine_boot_info:
    path: /var/log/sparkfleet/sparks-rank.log
    previous: "{{ boot.facts }}"
    offset: "{{ boot.offset }}"
    proofs: "{{ spark_serving.checks.proofs }}"
    fatals: "{{ spark_serving.checks.fatals }}"
  become: true
  register: boot
"""

RETURN = r"""
exists:
  description: Whether there is a log at all.
  returned: always
  type: bool
offset:
  description: Where in the file to go on. V(null) for other sources.
  returned: always
  type: int
skipped_bytes:
  description: How much between beginning and end of the log was not read.
  returned: always
  type: int
facts:
  description: What the log says about the boot.
  returned: always
  type: dict
  contains:
    stage:
      description:
        - C(name) is V(starting), V(rendezvous), V(connected), V(loading), V(loaded),
          V(memory pool), V(graphs), V(warm-up), V(ready), or null; C(shard) of C(shards) says how
          far loading is.
      type: dict
    engram:
      description: The Engram tables, with C(layer), C(rank), C(rows) (from, and up to but without),
        C(mode) and whether it is C(packed).
      type: list
      elements: dict
    pool:
      description:
        - The KV pool in tokens, C(asked) and C(granted), whether it was C(clamped), and
          C(chunked_prefill_size), C(max_running_requests), C(context_length), C(full_tokens) and
          C(bytes_per_token). Null where the log does not say.
      type: dict
    graphs:
      description: The batch sizes with a CUDA graph.
      type: list
      elements: int
    speculation:
      description: The C(block) that is drafted and the C(window) that is verified.
      type: dict
    nccl:
      description: Its C(version), its C(network), and the C(lines) about rings.
      type: dict
    proofs:
      description:
        - Each proof that is expected of this rank, with C(status) V(found), V(missing) or
          V(unknown), C(count) of C(wanted) lines, whether it is C(required), and the first C(line).
      type: list
      elements: dict
    proven:
      description: Whether all that is required was found; null where that cannot be known.
      type: bool
    fatals:
      description:
        - Each fatal line in the order of the log, with C(name), C(cause), C(remedy), C(weak), its
          C(number), the C(line), and the C(context) from line C(context_from) on.
      type: list
      elements: dict
    failed:
      description: Whether there is a fatal line that is not weak.
      type: bool
    suppressed:
      description: How many lines journald says it dropped.
      type: int
    incomplete:
      description: Whether a part of the log was not read.
      type: bool
    lines:
      description: How many lines were read so far.
      type: int
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    run_command,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engine_boot import (
    PatternError,
    examine,
    read_log,
)

# journald's own message about dropped lines; it is not one of the unit's.
DROPPED = "MESSAGE_ID=a596d6fe7bfa4994828e72309e95d61e"
LINE = 160  # bytes of a line of a log, about: how many lines are as much as max_bytes


def read_file(module: AnsibleModule) -> tuple[str | None, int | None, int]:
    """The new text of the file, where to go on, and how much was left out."""
    path, offset = module.params["path"], module.params["offset"]
    try:
        found = read_log(path, offset, module.params["max_bytes"])
    except OSError as error:
        module.fail_json(msg=f"{path} cannot be read: {error.strerror}.")
    return found or (None, 0, 0)


def read_journal(module: AnsibleModule) -> tuple[str | None, int | None, int]:
    """What journald kept of the unit since its last start, as one piece."""
    unit, lines = module.params["unit"], module.params["max_bytes"] // LINE
    full = unit if "." in unit else f"{unit}.service"
    argv = ["journalctl", "--no-pager", "--quiet", "--output=cat", "--boot", f"--lines={lines}"]
    argv += [f"_SYSTEMD_UNIT={full}", "+", DROPPED]
    answer = run_command(argv, timeout=module.params["timeout"])
    if answer.rc != 0:
        module.fail_json(
            msg=f"the journal of {full} cannot be read: {answer.complaint.rstrip('.')}."
        )
    left_out = 1 if answer.out.count("\n") >= lines else 0
    return answer.out or None, None, left_out


def read_container(module: AnsibleModule) -> tuple[str | None, int | None, int]:
    """What Docker kept of the container, as one piece."""
    name, lines = module.params["container"], module.params["max_bytes"] // LINE
    argv = ["docker", "logs", "--timestamps", f"--tail={lines}", name]
    answer = run_command(argv, timeout=module.params["timeout"])
    if answer.rc == NOT_FOUND:
        module.fail_json(msg=f"{answer.complaint}; is Docker installed here?")
    if answer.rc != 0:
        if "No such container" in answer.err:
            return None, None, 0
        module.fail_json(
            msg=f"the log of container {name} cannot be read: {answer.complaint.rstrip('.')}."
        )
    # Both streams as one, in the order of their stamps, which are all equally long.
    stamped = sorted((answer.out + answer.err).splitlines(), key=lambda line: line.split(" ")[0])
    text = "".join(f"{line.partition(' ')[2]}\n" for line in stamped)
    return text, None, 1 if len(stamped) >= lines else 0


READERS = {"file": read_file, "journal": read_journal, "docker": read_container}


def main() -> None:
    line = {"name": {"type": "str", "required": True}, "pattern": {"type": "str", "required": True}}
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "str", "choices": ["file", "journal", "docker"], "default": "file"},
            "path": {"type": "path"},
            "unit": {"type": "str"},
            "container": {"type": "str"},
            "proofs": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    **line,
                    "scope": {"type": "str", "choices": ["all", "head"], "default": "head"},
                    "count": {"type": "int", "default": 1},
                    "required": {"type": "bool", "default": True},
                },
            },
            "fatals": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {
                    **line,
                    "cause": {"type": "str", "default": ""},
                    "remedy": {"type": "str", "default": ""},
                    "weak": {"type": "bool", "default": False},
                },
            },
            "head": {"type": "bool", "default": True},
            "pool_tokens_asked": {"type": "int", "no_log": False},  # tokens of text, no secret
            "start": {"type": "str"},
            "previous": {"type": "dict"},
            "offset": {"type": "int", "default": 0},
            "max_bytes": {"type": "int", "default": 16777216},
            "timeout": {"type": "int", "default": 30},
        },
        required_if=[
            ("source", "file", ["path"]),
            ("source", "journal", ["unit"]),
            ("source", "docker", ["container"]),
        ],
        supports_check_mode=True,
    )
    params: dict[str, Any] = module.params
    text, offset, skipped = READERS[params["source"]](module)
    # Only a file is read on; the others end with a line, whatever their last byte is.
    ending = "" if params["source"] == "file" or not text or text.endswith("\n") else "\n"
    unit = params["unit"] or ""
    try:
        facts = examine(
            (text or "") + ending,
            proofs=params["proofs"],
            fatals=params["fatals"],
            head=params["head"],
            asked=params["pool_tokens_asked"],
            start=params["start"],
            previous=params["previous"] if params["source"] == "file" else None,
            incomplete=skipped > 0,
            source=unit if "." in unit or not unit else f"{unit}.service",
        )
    except PatternError as error:
        module.fail_json(msg=f"{error}.")
    module.exit_json(
        changed=False, exists=text is not None, offset=offset, skipped_bytes=skipped, facts=facts
    )


if __name__ == "__main__":
    main()
