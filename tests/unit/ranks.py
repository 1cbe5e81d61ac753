# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings of a rank for tests, and a node whose files are as that rank needs them."""

from __future__ import annotations

import copy
import json
import struct
from pathlib import Path
from typing import Any

ROWS = 1000
_SETTINGS: dict[str, Any] = {
    "format": 1,
    "cell": "sparks",
    "rank": 1,
    "ranks": 4,
    "head": False,
    "container": {
        "name": "sparkfleet-sparks-r1",
        "image": "engine:1",
        "entrypoint": ["python3"],
        "command": ["-m", "sglang.launch_server", "--node-rank", "1"],
        "env": {"NODE_RANK": "1", "DSV41_PACKED_DIR": "/engram"},
        "mounts": [
            {"source": "/srv/checkpoint", "target": "/models/M", "read_only": True},
            {"source": "/srv/engram", "target": "/engram", "read_only": True},
            {"source": "/var/lib/state", "target": "/state", "read_only": False},
            {"source": "/lib/libnccl.so.2", "target": "/opt/libnccl.so.2", "read_only": True},
        ],
        "devices": ["/dev/infiniband"],
        "capabilities": ["IPC_LOCK"],
        "ulimits": {"memlock": -1, "core": 0},
        "shm_size": "32g",
        "network_mode": "host",
        "ipc_mode": "host",
        "privileged": False,
        "gpus": True,
        "oom_score_adj": 800,
        "labels": {"sparkfleet.rank": "1"},
    },
    "engine_port": 8888,
    "rendezvous_port": 20000,
    "model_path": "/models/M",
    "checkpoint_filesystem": "",
    "engram": {"path": "/engram", "tables": [{"layer": 1, "rows": ROWS}]},
    "gid": {
        "hcas": "=rocep1s0f0",
        "expected": [{"hca": "rocep1s0f0", "subnet": "10.20.0.0/24"}],
        "policy": "auto",
        "peers": {"rocep1s0f0": "spark3 cage 1"},
    },
    "gid_wait": 0,
    "gpu": "runtime",
    "stop_grace": 5,
    "accept_limits": False,
    "log": {"path": "/var/log/sparkfleet/sparks-rank.log", "bytes": 1000, "keep": 3},
}


def settings(**changes: Any) -> dict[str, Any]:
    """Rank 1 of 4 of the cell sparks; a change of `container` is merged into it."""
    made = copy.deepcopy(_SETTINGS)
    made["container"].update(changes.pop("container", {}))
    return {**made, **changes}


def node(root: Path) -> Path:
    """A node that has all the rank needs, below `root`."""
    files = {
        "srv/checkpoint/config.json": b"{}",
        "srv/checkpoint/model.safetensors.index.json": json.dumps(
            {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
        ).encode(),
        "srv/checkpoint/model-1.safetensors": b"one",
        "srv/checkpoint/model-2.safetensors": b"two",
        "srv/engram/engram-l1-r1of4.bin": engram(),
        "lib/libnccl.so.2": b"nccl",
        "proc/self/mountinfo": b"22 1 8:1 / / rw - ext4 /dev/nvme0n1p2 rw\n",
    }
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(content)
    (root / "var/lib/state").mkdir(parents=True)
    return root


def engram(layer: int = 1, low: int = ROWS // 4, high: int = ROWS // 2) -> bytes:
    """A packed table of nothing but zeros, with a right header."""
    head = b"DSV1EN41" + struct.pack("<5Q", layer, low, high, ROWS, 264)
    return head.ljust(4096 + 264 * (ROWS // 4), b"\0")
