# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rank was started with: the server arguments and the environment."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# What may differ between ranks; everything else must be the same text on all of them.
PER_RANK = frozenset(
    "NODE_RANK HOST_IP VLLM_HOST_IP HOSTNAME NCCL_IB_GID_INDEX NCCL_IB_HCA NCCL_IB_ADDR_RANGE "
    "SPARKFLEET_STANDIN_FAULT PWD SHLVL OLDPWD".split()
)
DEFAULTS = {
    "host": "127.0.0.1",
    "port": "30000",
    "tp": "1",
    "ep-size": "1",
    "nnodes": "1",
    "node-rank": "0",
    "dist-init-addr": "127.0.0.1:20000",
    "context-length": "1048576",
    "max-total-tokens": "0",
    "chunked-prefill-size": "4096",
    "max-running-requests": "16",
    "cuda-graph-max-bs-decode": "16",
    "speculative-dspark-block-size": "5",
    "served-model-name": "",
    "model-path": "",
    "api-key": "",
}
_SHORT = {"tp-size": "tp", "tensor-parallel-size": "tp", "ep": "ep-size", "model": "model-path"}


class Settings(NamedTuple):
    """Arguments by name without dashes (a flag without a value is "true"), and the environment."""

    arguments: dict[str, str]
    environment: dict[str, str]

    def text(self, name: str) -> str:
        return self.arguments.get(name, DEFAULTS.get(name, ""))

    def number(self, name: str) -> int:
        return int(self.text(name) or 0)

    def on(self, variable: str) -> bool:
        """Whether a switch of the environment is on."""
        return self.environment.get(variable, "0") not in ("", "0")

    @property
    def rank(self) -> int:
        return self.number("node-rank")

    @property
    def nodes(self) -> int:
        return self.number("nnodes")

    @property
    def tp(self) -> int:
        return self.number("tp")

    @property
    def model_name(self) -> str:
        return self.text("served-model-name") or self.text("model-path")

    @property
    def engram(self) -> str:
        """Where the Engram tables of this rank are; empty for a model without."""
        return self.environment.get("DSV41_PACKED_DIR", "")

    def common(self) -> dict[str, str]:
        """All that must be equal on every rank: a short digest of each value, by its name."""
        own = {name: value for name, value in self.environment.items() if name not in PER_RANK}
        given = {
            f"--{name}": value for name, value in self.arguments.items() if name != "node-rank"
        }
        return {
            name: hashlib.sha256(value.encode()).hexdigest()[:12]
            for name, value in sorted({**own, **given}.items())
        }


def read(words: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Take a command line apart as argparse would, without knowing the options.

    Raises ValueError for a word that belongs to no option.
    """
    arguments: dict[str, str] = {}
    name = ""
    for word in words:
        if word.startswith("--"):
            name, separator, value = word[2:].partition("=")
            name = _SHORT.get(name, name)
            arguments[name] = value if separator else "true"
            name = "" if separator else name
        elif name:
            arguments[name] = word
            name = ""
        else:
            raise ValueError(f"unrecognized arguments: {word}")
    return Settings(arguments, dict(environment))
