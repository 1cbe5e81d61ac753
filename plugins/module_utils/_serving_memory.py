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
        budget -= sum(self.fixed.values()) + self.swa + 1e8
        return max(0, int(budget / kv) // PAGE * PAGE)

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
                yield f"max_total_tokens to {tokens}"
        if self.request:
            requests = self.setting("max_running_requests") - math.ceil(deficit / self.request)
            if requests >= 1:
                yield f"max_running_requests to {requests:.0f}"
        if not self.chunked and self.transient:
            room = self.transient - deficit
            chunk = int(room / (self.number("indexer_transient") * context)) // PAGE * PAGE
            if chunk > 0:
                yield f"chunked_prefill_size to {chunk}"

    def least_ranks(self, room: float) -> int | None:
        """The smallest number of ranks among which the weights fit."""
        split = self.number("weights_split")
        left = room - self.number("weights_copied")
        return math.ceil(split / left) if left > 0 and split else None


def check_memory(rank: Rank, totals: Mapping[str, float], head: str) -> Iterator[str]:
    """Whether every rank fits on its node. `totals` is the memory of each host in bytes."""
    if not rank.known:
        return
    alike: dict[tuple[float, bool], list[str]] = {}
    for host, total in totals.items():
        alike.setdefault((total, host == head), []).append(host)
    spare = rank.number("free")
    for (total, is_head), hosts in alike.items():
        items = rank.items(total, head=is_head)
        needed = sum(items.values())
        room = total - spare
        if needed <= room:
            continue
        deficit = needed - room
        parts = ", ".join(f"{name} {gib(size)}" for name, size in items.items())
        where = f"{fold_hosts(hosts)} ({'the head' if is_head else 'workers'})"
        reasons = list(rank.remedies(deficit))
        remedy = f"lower {', or '.join(reasons)}" if reasons else _fewer(rank, room - needed, room)
        yield (
            f"memory: a rank on {where} needs {gib(needed)} and {gib(spare)} to spare, of "
            f"{gib(total)}; {gib(deficit)} too much ({parts}); {remedy}."
        )


def _fewer(rank: Rank, missing: float, room: float) -> str:
    rest = room - rank.number("system") - (rank.number("draft") if rank.speculative else 0)
    least = rank.least_ranks(rest)
    if least and least > rank.tensor_parallel:
        return f"the weights alone need {least} hosts or more"
    return f"lower several settings together until {gib(-missing)} are gained"


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
    if min(fit, pin) < context:
        short = "max_total_tokens is" if pin < fit else "mem_fraction_static leaves a KV pool of"
        remedy = f"lower context_length to {min(fit, pin) // PAGE * PAGE}"
        if fit >= context:
            remedy += f", or raise max_total_tokens to {context}"
        problem = (
            f"{short} {min(fit, pin)} tokens, less than one prompt of context_length {context}; "
            f"{remedy}."
        )
        return [problem], []
    if pin > fit:
        note = (
            f"max_total_tokens asks for {pin} tokens; by mem_fraction_static about {fit} fit, and "
            "SGLang silently takes what fits."
        )
        return [], [note]
    return [], []
