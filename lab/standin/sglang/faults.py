# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Ways to fail on purpose, each as the real engine fails: at which stage, saying what, ending how.

One is chosen with the variable SPARKFLEET_STANDIN_FAULT or the file /state/standin-fault, as its
name or name:rank; without a rank it befalls every rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FILE = Path("/state/standin-fault")


class Fault(NamedTuple):
    """What happens: the stage before which it does, what is printed, and how it ends.

    `ends` is an exit status, None for a hang, or -1 where the rank goes on with the change that
    `changes` names.
    """

    stage: str = ""
    lines: tuple[str, ...] = ()
    ends: int | None = -1
    changes: str = ""


_TRACE = 'Traceback (most recent call last):\n  File "scheduler.py", line 1, in run'
FAULTS = {
    "die-in-boot": Fault("load", ("RuntimeError: stand-in told to die in boot",), 1),
    "hang-in-rendezvous": Fault("rendezvous", (), None),
    "loader-stall": Fault("load", (), None),
    "oom": Fault("pool", (_TRACE, "torch.OutOfMemoryError: CUDA out of memory."), 1),
    "killed": Fault("load", (), 137),
    "pool-no-room": Fault(
        "pool",
        ("RuntimeError: no room for max_total_tokens within the available 9.10 GB",),
        1,
    ),
    "tree-connect": Fault(
        "nccl",
        (
            "NCCL INFO Connected all rings",
            _TRACE,
            "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)",
        ),
        1,
    ),
    "wrong-gid": Fault(
        "nccl", (_TRACE, "RuntimeError: NCCL error in ncclCommInitRank: invalid usage"), 1
    ),
    "duplicate-nccl": Fault("nccl", ("RuntimeError: Duplicate NCCL runtime found",), 1),
    "shard-mismatch": Fault(
        "engram", ("RuntimeError: packed Engram shard does not match rank 0 of 4",), 134
    ),
    "shard-truncated": Fault("engram", ("RuntimeError: packed Engram shard is truncated",), 134),
    "engram-read": Fault("engram", ("Engram retrieval failed: short read of row 17",), 134),
    "expert-width": Fault(
        "load", (_TRACE, "AssertionError: intermediate size 576 % 128 != 0 (FlashInfer MXFP4)"), 1
    ),
    "port-taken": Fault(
        "serve", ("[Errno 98] error while attempting to bind on address: address in use",), 1
    ),
    "not-packed": Fault(changes="not-packed"),
    "pool-clamped": Fault(changes="pool-clamped"),
    "no-proofs": Fault(changes="no-proofs"),
    "mismatch": Fault("pool", ("DSV41 hc_fused: MISMATCH against stock (max abs 0.5)",)),
    "no-health": Fault(changes="no-health"),
    "never-answers": Fault(changes="never-answers"),
    "garbage": Fault(changes="garbage"),
    "error-500": Fault(changes="error-500"),
    "batch-sanity": Fault("ready", ("BATCH OUTPUT SANITY CHECK FAILED: 3 of 16 answers",)),
    "die-after-ready": Fault("after-ready", (_TRACE, "RuntimeError: stand-in told to die"), 1),
}


def chosen(environment: Mapping[str, str], rank: int, file: Path = FILE) -> Fault:
    """The fault of this rank; one without effect where none is asked for.

    Raises ValueError for a name that is none.
    """
    text = environment.get("SPARKFLEET_STANDIN_FAULT", "")
    if not text and file.exists():
        text = file.read_text().strip()
    name, _colon, where = text.partition(":")
    if not name:
        return Fault()
    if name not in FAULTS:
        raise ValueError(f"no fault is called {name}; there are {', '.join(sorted(FAULTS))}")
    return FAULTS[name] if where in ("", str(rank)) else Fault()
