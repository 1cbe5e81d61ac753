# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: checkpoint_info
short_description: Tell whether a directory holds a whole checkpoint
version_added: 0.1.0
description:
  - Compares the index of a checkpoint with its files both ways, and reads the header of every
    safetensors file, without loading tensors. It takes about two seconds for the 48 files and
    95,000 tensors of DeepSeek-V4.1-Flash.
  - What the hub's downloader left says which revision the files are of, and whether a download is
    unfinished. Links are followed to where the data really is.
  - Bad data is a result and no failure, with a code, the file and the tensor for every problem.
  - A file system that does not answer, such as a mount whose server is gone, is RV(state=stale)
    after O(timeout).
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
  path:
    description: The directory of the checkpoint.
    type: path
    required: true
  expected:
    description:
      - The facts about the model, as P(sparkfleet.cluster.model_facts#filter) returns them. What is
        not told is not compared; other keys are ignored.
    type: dict
    default: {}
  within:
    description:
      - The directory that links may not leave, since whoever mounts, exports or copies it would get
        links that lead nowhere. The default is O(path) itself.
    type: path
  hashes:
    description:
      - V(known) reads every file whose hash is known, from O(sha256) or from what the hub's
        downloader left, and compares. V(all) reads all files of weights and tells their hashes too.
      - V(none) reads headers only.
    type: str
    choices: [none, known, all]
    default: none
  sha256:
    description: Known hashes in hexadecimal digits, by name of file.
    type: dict
    default: {}
  workers:
    description: How many files are hashed at once.
    type: int
    default: 4
  read_as:
    description:
      - Opens every file as another account, as the one that an NFS server reads with. Needs root.
    type: dict
    suboptions:
      uid:
        description: The number of the user.
        type: int
        required: true
      gid:
        description: The number of the group.
        type: int
        required: true
  timeout:
    description:
      - Seconds after which the file system counts as one that does not answer. Hashing takes its
        time and needs more, about 500 seconds for every TB where a disk gives 2 GB/s.
    type: int
    default: 120
seealso:
  - module: sparkfleet.cluster.roce_gid_info
"""

EXAMPLES = r"""
---
- name: Is the checkpoint whole?
  sparkfleet.cluster.checkpoint_info:
    path: /srv/spark/checkpoint
    expected: "{{ 'deepseek-v4.1-flash' | sparkfleet.cluster.model_facts }}"
  register: checkpoint

- name: Stop if it is not
  ansible.builtin.fail:
    msg: "{{ checkpoint.problems | map(attribute='message') | join('\n') }}"
  when: not checkpoint.complete

- name: Can the account of an NFS export read all of it?
  sparkfleet.cluster.checkpoint_info:
    path: /srv/spark/checkpoint
    read_as:
      uid: 65534
      gid: 65534
  become: true
  register: checkpoint

- name: Compare with the hashes that the hub told, two files at once
  sparkfleet.cluster.checkpoint_info:
    path: /srv/spark/checkpoint
    hashes: known
    workers: 2
    timeout: 3600
  register: checkpoint
"""

RETURN = r"""
state:
  description:
    - V(absent) if there is nothing, V(incomplete) if there is any problem, V(complete) else.
    - V(stale) if the file system did not answer; then only RV(complete), RV(directory) and
      RV(problems) are returned.
  returned: always
  type: str
  sample: complete
complete:
  description: Whether there is no problem.
  returned: always
  type: bool
directory:
  description: The directory that was looked at.
  returned: always
  type: str
problems:
  description: What is wrong, all of it.
  returned: always
  type: list
  elements: dict
  contains:
    code:
      description:
        - Of the directory, V(absent), V(stale), V(links-leave), V(link-loop), V(link-dangling),
          V(not-a-file), V(unreadable), V(foreign-weights), V(missing-file), V(index).
        - Of a header, V(lfs-pointer), V(header-too-small), V(header-too-large),
          V(truncated-header), V(empty-header), V(padding), V(bad-json), V(metadata), V(dtype),
          V(shape), V(offsets), V(overlap), V(gap), V(truncated), V(trailing).
        - Of the whole, V(tensor-not-in-file), V(tensor-not-indexed), V(download-unfinished),
          V(mixed-revisions), V(wrong-revision), V(wrong-config), V(wrong-count), V(wrong-size),
          V(hash).
        - Of Engram tables, V(engram-missing), V(engram-split), V(engram-dtype), V(engram-width),
          V(engram-rows), V(engram-config).
        - With O(read_as), V(read-as), V(not-traversable), V(unreadable-as).
      type: str
      sample: truncated
    file:
      description:
        - The file it is about, relative to RV(directory), V(null) if it is about no single one.
      type: str
      sample: model-00009-of-00048.safetensors
    message:
      description: What was found, what was expected, where, and what to do.
      type: str
    tensor:
      description: The tensor it is about.
      returned: if it is about one
      type: str
    missing:
      description: With V(truncated), the missing bytes of every tensor that is cut.
      returned: with that code
      type: dict
    declared_size:
      description: With V(lfs-pointer), the bytes of the file it stands for.
      returned: with that code
      type: int
    declared_sha256:
      description: Likewise its hash.
      returned: with that code
      type: str
    files:
      description: With V(foreign-weights), all of them.
      returned: with that code
      type: list
      elements: str
    target:
      description: With V(links-leave), where the link named in RV(problems[].file) leads.
      returned: with that code
      type: str
missing:
  description: The files of the index that are not there.
  returned: unless stale
  type: list
  elements: str
damaged:
  description: The files that are there and have to be downloaded again.
  returned: unless stale
  type: list
  elements: str
revision:
  description: The commit that all files are of, V(null) if it is not known.
  returned: unless stale
  type: str
tensors:
  description: How many tensors the index names.
  returned: unless stale
  type: int
  sample: 94654
weight_files:
  description: How many files of weights are there, whether the index names them or not.
  returned: unless stale
  type: int
  sample: 48
weight_bytes:
  description: Their sizes together.
  returned: unless stale
  type: int
  sample: 510310549975
missing_bytes:
  description: How many bytes of weights are still to come, V(0) if O(expected) does not tell.
  returned: unless stale
  type: int
files:
  description: How many files are there, without those of the downloader.
  returned: unless stale
  type: int
bytes:
  description: Their sizes together.
  returned: unless stale
  type: int
foreign:
  description: Files of weights that the index does not name.
  returned: unless stale
  type: list
  elements: str
leftovers:
  description:
    - Paths of partial downloads and copies, and of caches in the directory. Where RV(complete)
      they are of no use.
  returned: unless stale
  type: list
  elements: str
unfinished_bytes:
  description: What partial downloads and copies take that can be continued.
  returned: unless stale
  type: int
engram:
  description: The Engram tables that can be packed.
  returned: unless stale
  type: list
  elements: dict
  contains:
    layer:
      description: The number of the layer.
      type: int
    rows:
      description: How many rows the table has.
      type: int
      sample: 384006168
    file:
      description: The file that both tensors are in.
      type: str
    path:
      description: Where that file really is.
      type: str
    weight:
      description:
        - C(dtype) and C(shape) of the weights, their first byte in the file as C(begin) and the one
          after the last as C(end).
      type: dict
    scale:
      description: Likewise of the scales.
      type: dict
resolved_root:
  description: What RV(directories) have in common.
  returned: unless stale
  type: str
directories:
  description:
    - The directories that hold the data once all links are followed, and RV(directory) itself.
  returned: unless stale
  type: list
  elements: str
device:
  description: The number of the file system.
  returned: unless stale
  type: int
free_bytes:
  description: What is free there, or where the directory would be made.
  returned: unless stale
  type: int
hashes:
  description: The SHA-256 of what was read, by file.
  returned: unless stale
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Missing, ask_all
from ansible_collections.sparkfleet.cluster.plugins.module_utils._checkpoint import (
    HASHES,
    inspect,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._checkpoint_files import (
    unreadable_as,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "expected": {"type": "dict", "default": {}},
            "within": {"type": "path"},
            "hashes": {"type": "str", "choices": list(HASHES), "default": "none"},
            "sha256": {"type": "dict", "default": {}},
            "workers": {"type": "int", "default": 4},
            "read_as": {
                "type": "dict",
                "options": {
                    "uid": {"type": "int", "required": True},
                    "gid": {"type": "int", "required": True},
                },
            },
            "timeout": {"type": "int", "default": 120},
        },
        supports_check_mode=True,
    )
    wanted = dict(module.params)
    timeout, account, path = wanted.pop("timeout"), wanted.pop("read_as"), wanted["path"]
    questions: dict[str, Any] = {"found": lambda: inspect(**wanted)}
    if account:
        questions["access"] = lambda: unreadable_as(path, **account)
    answers = ask_all(questions, timeout)
    for answer in answers.values():
        if isinstance(answer, Missing):
            if not answer.startswith("no answer"):
                module.fail_json(msg=f"{path} could not be looked at: {answer}")
            module.exit_json(
                changed=False, directory=path, **_stale(path, answer, wanted["hashes"])
            )
    found = answers["found"]
    found["problems"] += answers.get("access", [])
    if found["problems"]:
        found["complete"] = False
        if found["state"] == "complete":
            found["state"] = "incomplete"
    # Not as `path`, which makes Ansible add the state of the directory over ours.
    module.exit_json(changed=False, directory=path, **found)


def _stale(path: str, reason: Missing, hashes: str) -> dict[str, Any]:
    advice = f"look at the mount with: findmnt --target {path}"
    if hashes != "none":
        advice = f"hashing may need a longer timeout; else {advice}"
    problem = {"code": "stale", "file": None, "message": f"{path}: {reason}; {advice}"}
    return {"state": "stale", "complete": False, "problems": [problem]}


if __name__ == "__main__":
    main()
