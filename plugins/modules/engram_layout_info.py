# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: engram_layout_info
short_description: Tell which Engram rows a rank owns, where they are and what of them is packed
version_added: 0.1.0
description:
  - Splits the Engram tables of a model over the ranks of a tensor-parallel group as the serving
    engine splits them, and tells for each shard its file, rows, size and source.
  - With O(directory) it also tells the state of each shard there, from its header, size and
    manifest, and whether what is missing fits on the disk. Rows are not read; that is what
    M(sparkfleet.cluster.engram_pack) does with its option O(ignore:verify).
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
  checkpoint:
    description:
      - The directory of the checkpoint. Its index, its configuration and the headers of the files
        with the tables are read, and have to agree.
    type: path
  tables:
    description:
      - The tables, where there is no checkpoint. With O(checkpoint) they are what it must have.
      - One of O(checkpoint) and O(tables) is needed.
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
  tp_size:
    description: The number of ranks.
    type: int
    required: true
  rank:
    description: The rank. Without it all ranks are told.
    type: int
  directory:
    description: Where packed shards are. Need not exist.
    type: path
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
seealso:
  - module: sparkfleet.cluster.engram_pack
"""

EXAMPLES = r"""
---
- name: How large are the shards of four ranks?
  sparkfleet.cluster.engram_layout_info:
    tables:
      - layer: 1
        rows: 384006168
      - layer: 14
        rows: 384016682
    tp_size: 4

- name: What is left to do for rank 2?
  sparkfleet.cluster.engram_layout_info:
    checkpoint: /srv/spark/checkpoint
    tp_size: 4
    rank: 2
    directory: /srv/spark/engram
  register: layout
"""

RETURN = r"""
shards:
  description: The shards in the order of layers and ranks.
  returned: success
  type: list
  elements: dict
  contains:
    layer:
      description: The layer of the table.
      type: int
      sample: 1
    rank:
      description: The rank that owns it.
      type: int
      sample: 2
    file:
      description: The name of the file.
      type: str
      sample: engram-l1-r2of4.bin
    path:
      description: The file in O(directory), V(null) without it.
      type: str
      sample: /srv/spark/engram/engram-l1-r2of4.bin
    first_row:
      description: The first row of the rank.
      type: int
      sample: 192003084
    end_row:
      description: The row after its last.
      type: int
      sample: 288004626
    rows:
      description: How many rows that are.
      type: int
      sample: 96001542
    table_rows:
      description: The rows of the whole table.
      type: int
      sample: 384006168
    size:
      description: The bytes of the file.
      type: int
      sample: 25344411184
    source:
      description: Where the rows are in the checkpoint. V(null) without O(checkpoint).
      type: dict
      contains:
        path:
          description: The file, links resolved.
          type: str
          sample: /srv/spark/checkpoint/model-00047-of-00048.safetensors
        weight_offset:
          description: The first byte of the weights of the rank, from the beginning of the file.
          type: int
          sample: 52224983160
        weight_size:
          description: The bytes of the weights of the rank.
          type: int
          sample: 24576394752
        scale_offset:
          description: The first byte of the scales of the rank.
          type: int
          sample: 1536025056
        scale_size:
          description: The bytes of the scales of the rank.
          type: int
          sample: 768012336
    state:
      description:
        - V(complete); V(absent); V(partial), begun and to be continued; V(foreign), of another
          rank, table, split, revision or format; V(truncated) or V(oversize); V(corrupt).
        - V(null) without O(directory).
      type: str
      sample: partial
    reason:
      description: Why it is not complete, or what is odd about it.
      type: str
    rows_done:
      description: The rows of unfinished work that is continued.
      type: int
      sample: 0
bytes_total:
  description: The bytes of all shards.
  returned: success
  type: int
  sample: 50689516160
bytes_needed:
  description:
    - The bytes that have to be free in O(directory) for what is not complete. Space that unfinished
      work takes already is not counted.
  returned: with O(directory)
  type: int
  sample: 50689516160
bytes_free:
  description: The bytes that are free there.
  returned: with O(directory)
  type: int
  sample: 3600000000000
fits:
  description: Whether it fits.
  returned: with O(directory)
  type: bool
  sample: true
complete:
  description: Whether every shard is complete.
  returned: with O(directory)
  type: bool
  sample: false
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_layout import (
    LayoutError,
    bytes_free,
    bytes_needed,
    describe,
    inspect,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engram_wish import (
    LAYOUT_OPTIONS,
    wanted_shards,
)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            **LAYOUT_OPTIONS,
            "checkpoint": {"type": "path"},
            "rank": {"type": "int"},
            "directory": {"type": "path"},
        },
        required_one_of=[("checkpoint", "tables")],
        supports_check_mode=True,
    )
    wish = module.params
    directory = wish["directory"]
    try:
        shards = wanted_shards(wish)
    except LayoutError as error:
        module.fail_json(msg=str(error), problems=error.problems)
    result: dict[str, Any] = {"bytes_total": sum(shard.size for shard, _source in shards)}
    if not directory:
        shown = [describe(*entry) for entry in shards]
    else:
        known = [(shard, inspect(directory, shard, source)) for shard, source in shards]
        shown = [
            describe(*entry, directory, found)
            for entry, (_shard, found) in zip(shards, known, strict=True)
        ]
        needed, free = bytes_needed(known), bytes_free(directory)
        result.update(
            bytes_needed=needed,
            bytes_free=free,
            fits=needed <= free,
            complete=all(found.state == "complete" for _shard, found in known),
        )
    module.exit_json(changed=False, shards=shown, **result)


if __name__ == "__main__":
    main()
