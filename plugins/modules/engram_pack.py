# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: engram_pack
short_description: Pack the Engram rows of a rank onto its disk
version_added: 0.1.0
description:
  - Writes C(engram-l<layer>-r<rank>of<tp_size>.bin) for each Engram table of a model, from which
    the serving engine reads the rows that the rank owns, each with one read.
  - The work is done by a program of its own that the node's systemd runs, so that no lost
    connection ends it. It is niced, goes past the page cache where the filesystems allow that, and
    needs little memory whatever the size of the tables. A run of Ansible that is repeated
    meanwhile watches the same work.
  - Whatever interrupts it, the next run continues in the middle of the table and loses a few
    seconds of work. A shard appears under its name as a whole, once its rows were looked at, with
    a manifest that tells revision, rows and hashes. Work for another rank, split or revision is
    never continued.
  - A file at the place of a shard that is not the shard is never replaced unasked.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
requirements:
  - numpy (Debian and Ubuntu package C(python3-numpy))
  - systemd
attributes:
  check_mode:
    description:
      - Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
    details:
      - Reads some of the rows for two seconds at most, to tell how long the work takes. Where
        there is no checkpoint yet, O(tables) tell what would be made.
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: full
options:
  state:
    description:
      - V(present) packs what is missing. V(absent) removes the shards of the rank and what belongs
        to them, and no other files.
    type: str
    choices: [present, absent]
    default: present
  stage:
    description:
      - V(all) packs and waits for the end. To pack on all hosts at once whatever the number of
        forks, use V(start) in one task and V(watch) in the next.
      - V(watch) starts nothing; it fails if there is neither work nor what it should have made.
    type: str
    choices: [all, start, watch]
    default: all
  checkpoint:
    description: The directory of the checkpoint. Needed unless O(state=absent).
    type: path
  tables:
    description:
      - The tables that are expected. A checkpoint with others is refused.
      - With O(state=absent) one of O(checkpoint) and O(tables) is needed.
    type: list
    elements: dict
    suboptions:
      layer:
        description: The layer the table belongs to.
        type: int
        required: true
      rows:
        description: The rows of the whole table.
        type: int
        required: true
  revision:
    description: The revision of the checkpoint. A shard of another one is foreign.
    type: str
    default: ""
  tp_size:
    description: The number of ranks.
    type: int
    required: true
  rank:
    description: The rank of this node.
    type: int
    required: true
  directory:
    description:
      - Where shards go. Made if missing. Its filesystem has to be a disk of the node's own.
    type: path
    required: true
  verify:
    description:
      - How shards are looked at, those that are there and those that are made. V(header) is header
        and size, and takes no time. V(sample) compares the rows at the edges and about a thousand
        others with the checkpoint. V(full) reads all rows and compares their hashes with the
        manifest; a shard without manifest is compared with the checkpoint and gets one.
    type: str
    choices: [header, sample, full]
    default: sample
  replace:
    description: Whether a file is replaced that is at the place of a shard and is not the shard.
    type: bool
    default: false
  any_filesystem:
    description: Whether shards may be on a network or memory filesystem, as for a trial.
    type: bool
    default: false
  force:
    description: Whether to work on a node on which a rank is serving.
    type: bool
    default: false
  rank_units:
    description: Patterns of the systemd units of ranks.
    type: list
    elements: str
    default: [sparkfleet-rank@*.service]
  weight_bytes:
    description: Bytes of the weights of a row.
    type: int
    default: 256
  scale_bytes:
    description: Bytes of the scales of a row.
    type: int
    default: 8
  timeout:
    description:
      - Seconds after which the checkpoint counts as not answering, as on a mount whose server is
        gone.
    type: float
    default: 60
  poll:
    description:
      - Seconds for which O(stage=watch) waits before it tells how far the work is. Without it to
        the end.
    type: float
  patience:
    description:
      - Seconds for which a node that cannot be reached, or a checkpoint that does not answer, is
        borne with while the work goes on.
    type: int
    default: 300
seealso:
  - module: sparkfleet.cluster.engram_layout_info
"""

EXAMPLES = r"""
---
- name: Pack the rows of rank 2
  sparkfleet.cluster.engram_pack:
    checkpoint: /srv/spark/checkpoint
    tp_size: 4
    rank: 2
    directory: /srv/spark/engram
  become: true

- name: Start packing on all hosts
  sparkfleet.cluster.engram_pack:
    checkpoint: /srv/spark/checkpoint
    tp_size: 4
    rank: "{{ groups['sparks'].index(inventory_hostname) }}"
    directory: /srv/spark/engram
    stage: start
  become: true

- name: Wait for all hosts
  sparkfleet.cluster.engram_pack:
    checkpoint: /srv/spark/checkpoint
    tp_size: 4
    rank: "{{ groups['sparks'].index(inventory_hostname) }}"
    directory: /srv/spark/engram
    stage: watch
  become: true
"""

RETURN = r"""
shards:
  description: The shards of the rank, as M(sparkfleet.cluster.engram_layout_info) tells them.
  returned: success
  type: list
  elements: dict
running:
  description: Whether the work goes on. Only with O(stage=start), or with O(poll).
  returned: with O(state=present)
  type: bool
  sample: false
silent:
  description: Why nothing is known of the checkpoint, while the work waits for it.
  returned: when it does not answer and O(stage=watch)
  type: str
progress:
  description: What the program tells about the work. Empty if there was none.
  returned: with O(state=present)
  type: dict
  contains:
    phase:
      description: V(packing), V(verifying), V(done) or V(failed).
      type: str
      sample: packing
    layer:
      description: The layer that is worked at.
      type: int
      sample: 1
    bytes_total:
      description: The bytes of all rows of the work.
      type: int
      sample: 50689507968
    bytes_done:
      description: The bytes of the rows that are done.
      type: int
      sample: 21290876928
    bytes_resumed:
      description: The bytes that earlier work had done already.
      type: int
      sample: 0
    rate:
      description: Bytes per second.
      type: int
      sample: 536870912
    seconds:
      description: Seconds since the start.
      type: float
      sample: 41.2
    seconds_left:
      description: Seconds to the end, by the rate of the last blocks. V(null) at the start.
      type: int
      sample: 55
    peak_rss:
      description: The most bytes of memory the program had.
      type: int
      sample: 170000000
    notes:
      description: What is worth knowing, such as a filesystem without direct I/O.
      type: list
      elements: str
bytes_to_write:
  description: The bytes that are missing on the disk.
  returned: with O(state=present)
  type: int
  sample: 50689516160
seconds_expected:
  description:
    - In check mode, seconds the work takes if the disk keeps up with reading. V(null) if unknown.
  returned: in check mode, if there is work
  type: float
  sample: 99.5
removed:
  description: The files that are removed.
  returned: with O(state=absent)
  type: list
  elements: str
"""

import inspect
import os
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _engram_pack
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import run_command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._detached import (
    Detached,
    DetachedError,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_job import (
    NAME,
    Order,
    disk,
    forget,
    install,
    plan,
    remove,
    watch,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_layout import (
    AbsentError,
    LayoutError,
    bytes_needed,
    describe,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_wish import (
    LAYOUT_OPTIONS,
    SilentError,
    wanted_shards,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._nfs_host import (
    ShareError,
    serving,
)


class Packer:
    """The module's work, from its parameters."""

    def __init__(self, module: AnsibleModule) -> None:
        self._module = module
        self._wish = module.params
        self._work = Detached(NAME, run_command)

    def run(self) -> dict[str, Any]:
        try:
            shards = wanted_shards(self._wish)
        except AbsentError as error:
            if not (self._module.check_mode and self._wish["tables"]):
                raise
            self._module.warn(f"{error}. Told is what the tables say")
            shards = wanted_shards({**self._wish, "checkpoint": None})
        except SilentError as error:
            # Reads of the work go on when the server is back, after its grace period; and what is
            # finished can be judged then.
            at_work = self._work.status()["state"] in ("running", "succeeded")
            if self._wish["stage"] != "watch" or not at_work:
                raise
            return {"changed": False, "running": True, "progress": {}, "silent": str(error)}
        if self._wish["state"] == "absent":
            return self._absent([shard for shard, _source in shards])
        order = Order(
            self._wish["directory"],
            shards,
            self._wish["verify"],
            self._wish["timeout"],
        )
        if self._wish["stage"] == "watch":
            return self._watched(order, self._wish["poll"], changed=False)
        started = self._start(order)
        if self._wish["stage"] == "all" and started["running"]:
            return {**started, **self._watched(order, None, started["changed"])}
        return started

    # --- present ---------------------------------------------------------------------------------

    def _start(self, order: Order) -> dict[str, Any]:
        found = self._work.status()
        if found["state"] == "running" and found["fingerprint"] == order.unit().fingerprint:
            return self._result(order, changed=False, running=True)
        problems = order.look_at_rows()
        blocking = [] if self._wish["replace"] else order.in_the_way()
        if blocking:
            blocking.append("Move such a file away, or allow to replace it: set replace to true")
        problems += blocking
        if order.todo:
            problems += self._objections(order)
        if problems:
            self._module.fail_json(msg="\n".join(problems), **self._result(order))
        changed = bool(order.todo) or order.adopts
        told: dict[str, Any] = {"diff": plan(order)} if order.todo else {}
        if self._module.check_mode and order.todo:
            rate = order.rate()
            seconds = round(order.left / rate, 3) if rate else None
            told = {"diff": plan(order, rate), "seconds_expected": seconds}
        if self._module.check_mode or order.idle:
            return self._result(order, changed=changed, **told)
        os.makedirs(order.directory, mode=0o755, exist_ok=True)
        install(inspect.getsource(_engram_pack))
        forget(order.directory)
        self._work.start(order.unit())
        return self._result(order, changed=changed, running=True, **told)

    def _objections(self, order: Order) -> list[str]:
        problems = order.lacking(later=self._module.check_mode)
        refusal, warning = disk(order.directory)
        if refusal and not self._wish["any_filesystem"]:
            problems.append(f"{refusal}. For a trial set any_filesystem to true")
        if warning:
            self._module.warn(warning)
        return problems + self._serving()

    def _serving(self) -> list[str]:
        if self._wish["force"]:
            return []
        return [
            f"{unit} is serving; packing takes its disk and memory. Stop it, or set force to true"
            for unit in serving(run_command, self._wish["rank_units"])
        ]

    def _watched(self, order: Order, seconds: float | None, changed: bool) -> dict[str, Any]:
        if self._module.check_mode:
            return self._result(order)
        state, told = watch(self._work, order, seconds)
        if state == "running":
            return self._result(order, changed=changed, running=True, progress=told)
        fresh = Order(
            order.directory,
            [(entry.shard, entry.source) for entry in order.entries],
            order.how,
            self._wish["timeout"],
        )
        result = self._result(fresh, changed=changed, progress=told)
        if state == "failed":
            self._work.clear()
            self._module.fail_json(
                msg=f"{told['message']}\nWhat is finished is kept; run again to continue. Log: "
                f"{self._work.log}",
                **result,
            )
        if fresh.todo:
            reasons = [f"{entry.shard.stem}: {entry.found.state}" for entry in fresh.todo]
            self._module.fail_json(
                msg="the packing is gone: it was stopped, or the node restarted. What is finished "
                f"is kept; run again to continue ({', '.join(reasons)})",
                **result,
            )
        if state == "succeeded":
            self._work.clear()
        return result

    def _result(self, order: Order, **more: Any) -> dict[str, Any]:
        return {
            "changed": False,
            "running": False,
            "progress": {},
            "bytes_to_write": bytes_needed((entry.shard, entry.found) for entry in order.entries),
            "shards": [
                describe(entry.shard, entry.source, order.directory, entry.found)
                for entry in order.entries
            ],
            **more,
        }

    # --- absent ----------------------------------------------------------------------------------

    def _absent(self, shards: list[_engram_pack.Shard]) -> dict[str, Any]:
        directory = self._wish["directory"]
        gone, notes = remove(directory, shards, really=False)
        problems = self._serving() if gone else []
        if problems:
            self._module.fail_json(msg="\n".join(problems))
        if not self._module.check_mode:
            self._work.clear()
            gone, notes = remove(directory, shards, really=True)
        for note in notes:
            self._module.warn(note)
        return {
            "changed": bool(gone),
            "removed": gone,
            "shards": [describe(shard, None, directory) for shard in shards],
            "diff": {"before": "".join(f"{path}\n" for path in gone), "after": ""},
        }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **LAYOUT_OPTIONS,
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "stage": {"type": "str", "choices": ["all", "start", "watch"], "default": "all"},
            "checkpoint": {"type": "path"},
            "revision": {"type": "str", "default": ""},
            "rank": {"type": "int", "required": True},
            "directory": {"type": "path", "required": True},
            "verify": {"type": "str", "choices": list(_engram_pack.VERIFY), "default": "sample"},
            "replace": {"type": "bool", "default": False},
            "any_filesystem": {"type": "bool", "default": False},
            "force": {"type": "bool", "default": False},
            "rank_units": {
                "type": "list",
                "elements": "str",
                "default": ["sparkfleet-rank@*.service"],
            },
            "poll": {"type": "float"},
            "patience": {"type": "int", "default": 300},
        },
        required_if=[
            ("state", "present", ["checkpoint"]),
            ("state", "absent", ["checkpoint", "tables"], True),
        ],
        supports_check_mode=True,
    )
    try:
        result = Packer(module).run()
    except (LayoutError, DetachedError, ShareError) as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or module.params['directory']}: {error.strerror}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
