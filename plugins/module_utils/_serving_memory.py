# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What one rank needs of the memory of its node, and what would fit instead.

On a Spark the memory of the GPU is that of the host, so everything that a node holds is one sum.
The numbers are those of a profile; docs/serving.md tells where each of them was measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import fold_hosts, gib

PAGE = 256  # tokens: the KV pool is made of pages of so many
PREFILL_SP_FLOOR = 2048  # tokens of a chunk that is split among ranks
_TRUE = ("1", "true", "yes", "on")


@dataclass(frozen=True)
class Rank:
    """What a profile and its settings say about the memory of a rank. Sizes are bytes."""

    memory: Mapping[str, Any]
    settings: Mapping[str, Any]
    env: Mapping[str, str]
    tensor_parallel: int
    speculative: bool
    engram_rows: int  # of all tables, over all ranks

    def number(self, name: str) -> float:
        """A number of the profile, 0 where it has none."""
        return float(self.memory.get(name, 0))

    def setting(self, name: str) -> float:
        """A setting, 0 where there is none."""
        return float(self.settings.get(name, 0))

    def variable(self, name: str) -> float:
        """A number in the environment, 0 where there is none."""
        try:
            return float(self.env.get(name, 0))
        except ValueError:
            return 0.0

    @property
    def known(self) -> bool:
        """Whether the profile says how large the model is."""
        return "weights_split" in self.memory or "weights_copied" in self.memory

    @property
    def weights(self) -> float:
        """What is split among the ranks, and what every rank has in full."""
        return self.number("weights_split") / self.tensor_parallel + self.number("weights_copied")

    @property
    def fixed(self) -> dict[str, float]:
        """What is loaded before the KV pool gets the rest."""
        scales = self.env.get("DSV41_RESIDENT_SCALES", "0").lower() in _TRUE
        return {
            "weights": self.weights,
            "draft model": self.number("draft") if self.speculative else 0.0,
            "Engram row cache": self.variable("DSV41_CACHE_GIB") * 2**30,
            "Engram scales": 8.0 * self.engram_rows / self.tensor_parallel if scales else 0.0,
        }

    @property
    def window(self) -> float:
        """How many tokens of a request are verified at once."""
        return self.setting("dspark_block_size") + 1 if self.speculative else 1

    @property
    def request(self) -> float:
        """What one more running request costs, beside its tokens."""
        return self.number("graph_slot") + self.number("swa_slot") * self.window

    @property
    def swa(self) -> float:
        """The pool of the sliding window."""
        slots = self.setting("max_running_requests") * self.window
        return self.number("swa") + self.number("swa_slot") * slots

    @property
    def chunked(self) -> bool:
        """Whether the indexer works in chunks, so that a long prefix costs no more."""
        return self.env.get("DSV41_INDEXER_CHUNKED", "0").lower() in _TRUE

    @property
    def transient(self) -> float:
        """What the indexer needs for one chunk of the deepest prompt."""
        if self.chunked:
            return self.number("indexer_chunked")
        tokens = self.setting("chunked_prefill_size") * self.setting("context_length")
        return self.number("indexer_transient") * tokens

    def pool_tokens(self, total: float) -> int:
        """About how many tokens SGLang's memory fraction leaves room for beside the weights.

        The budget is what was available before loading, times the fraction, less what was loaded.
        It was within 10 % of what published boots printed; page cache moves it.
        """
        kv = self.number("kv_token")
        if not kv:
            return 0
        budget = self.setting("mem_fraction_static") * (total - self.number("system"))
        return max(0, int((budget - self._beside_pool) / kv) // PAGE * PAGE)

    def fraction_for(self, tokens: int, total: float) -> float:
        """The memory fraction that leaves room for so many tokens."""
        budget = tokens * self.number("kv_token") + self._beside_pool
        return budget / (total - self.number("system"))

    @property
    def _beside_pool(self) -> float:
        return sum(self.fixed.values()) + self.swa + 1e8

    def asked_tokens(self, total: float) -> int:
        """The size of the KV pool that is asked for: the pin, or all there is room for."""
        return int(self.setting("max_total_tokens")) or self.pool_tokens(total)

    def items(self, total: float, *, head: bool) -> dict[str, float]:
        """Everything that a node with so much memory holds, in the order of loading."""
        items = {
            "system": self.number("system"),
            **self.fixed,
            "KV pool": self.number("kv_token") * self.asked_tokens(total),
            "sliding window pool": self.swa,
            "CUDA graphs": self.number("graph_slot") * self.setting("max_running_requests"),
            "indexer at the deepest prompt": self.transient,
            "NCCL buffers": self.number("nccl"),
            "HTTP server and tokenizer": self.number("head") if head else 0.0,
        }
        return {name: size for name, size in items.items() if size}

    def remedies(self, deficit: float) -> Iterator[str]:
        """The nearest settings with which so many bytes less are needed."""
        kv, context = self.number("kv_token"), self.setting("context_length")
        pin = self.setting("max_total_tokens")
        if kv and pin:
            tokens = int(pin - deficit / kv) // PAGE * PAGE
            if tokens >= max(context, 1):
                yield f"lower max_total_tokens to {tokens}"
        if self.request:
            requests = self.setting("max_running_requests") - math.ceil(deficit / self.request)
            if requests >= 1:
                yield f"lower max_running_requests to {requests:.0f}"
        if not self.chunked and self.transient:
            room = self.transient - deficit
            chunk = int(room / (self.number("indexer_transient") * context)) // PAGE * PAGE
            if chunk >= (PREFILL_SP_FLOOR if self.env.get("DSV41_PREFILL_SP") == "1" else 1):
                yield f"lower chunked_prefill_size to {chunk}"
            if self.transient - self.number("indexer_chunked") >= deficit:
                yield "set DSV41_INDEXER_CHUNKED to 1"

    def least_ranks(self, room: float) -> int | None:
        """The smallest number of ranks among which the weights fit."""
        split = self.number("weights_split")
        left = room - self.number("weights_copied")
        return math.ceil(split / left) if left > 0 and split else None


def check_memory(rank: Rank, totals: Mapping[str, float], head: str) -> Iterator[str]:
    """Whether every rank fits on its node. `totals` is the memory of each host in bytes.

    Hosts with equal memory are told of together, by what the head needs if it is one of them.
    """
    if not rank.known:
        return
    alike: dict[float, list[str]] = {}
    for host, total in totals.items():
        alike.setdefault(total, []).append(host)
    spare = rank.number("free")
    for total, hosts in alike.items():
        items = rank.items(total, head=head in hosts)
        needed = sum(items.values())
        deficit = needed + spare - total
        if deficit <= 0:
            continue
        parts = ", ".join(f"{name} {gib(size)}" for name, size in items.items())
        reasons = list(rank.remedies(deficit))
        yield (
            f"memory: a rank on {fold_hosts(hosts)} needs {gib(needed)} and {gib(spare)} to spare, "
            f"but the host has {gib(total)}, so {gib(deficit)} are missing ({parts}); "
            f"{', or '.join(reasons) if reasons else _fewer(rank, deficit, total - spare)}."
        )


def _fewer(rank: Rank, deficit: float, room: float) -> str:
    rest = room - rank.number("system") - (rank.number("draft") if rank.speculative else 0)
    least = rank.least_ranks(rest)
    if least and least > rank.tensor_parallel:
        return f"the weights alone need {least} hosts or more"
    return f"lower several settings together until {gib(deficit)} are gained"


def check_pool(rank: Rank, totals: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """Whether the memory fraction leaves a pool for one whole prompt: (problems, notes)."""
    if not rank.known or not rank.number("kv_token"):
        return [], []
    fraction, least = rank.setting("mem_fraction_static"), rank.number("least_fraction")
    if fraction < least:
        text = f"mem_fraction_static is {fraction:g}, but weights leave no KV pool below {least:g}"
        return [f"{text}; make it {least:g} or more."], []
    context = int(rank.setting("context_length"))
    smallest = min(totals.values())
    fit, pin = rank.pool_tokens(smallest), rank.asked_tokens(smallest)
    if pin < context <= fit:
        problem = (
            f"max_total_tokens is {pin}, less than one prompt of context_length {context}; raise "
            f"it to {context}, or lower context_length to {pin // PAGE * PAGE}."
        )
        return [problem], []
    if fit < context:
        enough = math.ceil(100 * rank.fraction_for(context, smallest)) / 100
        ways = [f"raise mem_fraction_static to {enough:g}"] if enough < 1 else []
        ways += [f"lower context_length to {fit}"] if fit else []
        problem = (
            f"mem_fraction_static {fraction:g} leaves a KV pool of {fit} tokens, less than one "
            f"prompt of context_length {context}; {', or '.join(ways) or 'use more hosts'}."
        )
        return [problem], []
    if pin > fit:
        note = (
            f"max_total_tokens asks for {pin} tokens; by mem_fraction_static about {fit} fit, and "
            "SGLang silently takes what fits."
        )
        return [], [note]
    return [], []
