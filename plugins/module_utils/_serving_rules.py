# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What cannot work, however well the rest is set, with the nearest setting that does.

Rules look at the environment and the arguments as a rank gets them, whoever wrote them, and only at
what is there: a profile for another model is not asked about experts or Engram tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._serving_memory import (
    PREFILL_SP_FLOOR,
)

CONTEXT_FLOOR = 4096  # tokens; the launcher of the image refuses less
_ON = ("1", "true", "yes", "on")
# Features of an image that a variable switches on.
_FEATURES = {
    "DSV41_MOE_B12X_NEXT": "b12x_next",
    "SGLANG_ROCE_ALLREDUCE": "rocenante",
    "DSV41_ROCE_GATHER": "rocenante",
    "DSV41_PREFILL_SP": "prefill_sp",
}
_KEYS = ("--api-key", "--admin-api-key")
_RING_BYTES = 262144  # what a forwarded diagonal takes in one message without drops


@dataclass(frozen=True)
class Launch:
    """The launch of the head, as rendered, and what it is for."""

    topology: str
    hosts: int
    tensor_parallel: int
    settings: Mapping[str, Any]
    env: Mapping[str, str]
    arguments: Mapping[str, Any]
    container: Mapping[str, Any]
    provides: Sequence[str]
    nccl_env: Mapping[str, str]
    model: Mapping[str, Any]

    @property
    def direct(self) -> bool:
        """Whether every two hosts share a cable or the switch."""
        return self.topology == "switch" or self.hosts <= 3

    def on(self, variable: str) -> bool:
        """Whether a variable switches something on."""
        value = self.env.get(variable, "0").lower()
        return value in _ON or (value.isdecimal() and int(value) > 0)

    def number(self, variable: str) -> int | None:
        """A variable as a whole number, None where it is none."""
        value = self.env.get(variable, "")
        return int(value) if value.isdecimal() else None

    def fact(self, name: str) -> int:
        """A number of the model, 0 where it is not known."""
        value = self.model.get(name, 0)
        return value if isinstance(value, int) else 0

    @property
    def experts_by(self) -> int:
        """The width that the kernels of the experts take: a multiple of so many."""
        return 64 if self.on("DSV41_MOE_B12X_NEXT") else 128


def problems(launch: Launch) -> Iterator[str]:
    """Everything that is wrong with a launch."""
    for rule in _RULES:
        yield from rule(launch)


def _splitting(launch: Launch) -> Iterator[str]:
    """Heads, groups and vocabulary are split evenly, unless the engine pads them."""
    if launch.on("DSV41_TP_PAD"):
        return
    split = {name: launch.fact(name) for name in ("attention_heads", "o_groups", "vocabulary")}
    uneven = [f"{name} {n}" for name, n in split.items() if n % launch.tensor_parallel]
    if uneven:
        works = [n for n in range(1, 65) if all(not v % n for v in split.values() if v)]
        near = sorted(sorted(works, key=lambda n: abs(n - launch.tensor_parallel))[:2])
        yield (
            f"{launch.tensor_parallel} ranks cannot split {', '.join(uneven)} of the model evenly; "
            f"use {' or '.join(map(str, near))} hosts, or DSV41_TP_PAD=1 with an image that pads."
        )


def _experts(launch: Launch) -> Iterator[str]:
    """Experts are split into whole groups whose width the kernels take."""
    ep = launch.settings.get("expert_parallel")
    if not isinstance(ep, int):
        return
    tp = launch.tensor_parallel

    def divides(size: int) -> bool:
        whole = size > 0 and not tp % size and not launch.fact("experts") % size
        drafts = launch.fact("draft_experts")
        return whole and (not drafts % size or launch.on("DSV41_TP_PAD"))

    def width_fits(size: int) -> bool:
        return not launch.fact("expert_width") * size % (tp * launch.experts_by)

    works = [size for size in range(1, tp + 1) if divides(size) and width_fits(size)]
    near = sorted(works, key=lambda size: abs(size - ep))
    remedy = f"set expert_parallel to {near[0]}" if near else "use another number of hosts"
    if not divides(ep):
        yield (
            f"expert_parallel is {ep}, which must divide {tp} ranks, "
            f"{launch.fact('experts')} experts and {launch.fact('draft_experts')} draft experts; "
            f"{remedy}."
        )
    elif not width_fits(ep):
        width = launch.fact("expert_width") * ep / tp
        kernels = "b12x_next" if launch.experts_by == 64 else "FlashInfer MXFP4"
        other = ""
        if launch.experts_by == 128 and not launch.fact("expert_width") * ep % (tp * 64):
            other = ", or use the profile of an image with b12x_next and DSV41_MOE_B12X_NEXT=1"
        yield (
            f"expert_parallel {ep} over {tp} ranks makes experts {width:g} wide, and {kernels} "
            f"takes multiples of {launch.experts_by}; {remedy}{other}."
        )
    loaded = launch.number("DSV41_FAST_LOAD_EP_SIZE")
    if launch.on("DSV41_FAST_LOAD") and loaded != ep:
        yield (
            f"DSV41_FAST_LOAD_EP_SIZE is {loaded}, but expert_parallel is {ep}; they must be equal."
        )


def _features(launch: Launch) -> Iterator[str]:
    """The image can do what the environment switches on."""
    for variable, feature in _FEATURES.items():
        if launch.on(variable) and feature not in launch.provides:
            yield (
                f"{variable} is {launch.env[variable]}, but the image of this profile does not "
                f"provide {feature}; set it to 0, use a profile with an image that does, or name "
                "the feature under image.provides."
            )
    if "rust_build" in launch.provides and launch.env.get("SGLANG_RUST_BUILD_MODE") != "never":
        yield (
            f"SGLANG_RUST_BUILD_MODE is {launch.env.get('SGLANG_RUST_BUILD_MODE')!r}; with this "
            "image the head may then run cargo for 20 minutes without answering; set it to never."
        )


def _sizes(launch: Launch) -> Iterator[str]:
    """The context is between the floor of the launcher and the limit of the model."""
    context, limit = launch.settings.get("context_length"), launch.fact("context_limit")
    if isinstance(context, int) and limit and not CONTEXT_FLOOR <= context <= limit:
        yield (
            f"context_length is {context}, expected {CONTEXT_FLOOR} to {limit}; set it to "
            f"{min(max(context, CONTEXT_FLOOR), limit)}."
        )
    for name in ("chunked_prefill_size", "max_running_requests", "context_length"):
        if launch.settings.get(name) == 0:
            yield f"{name} is 0, expected 1 or more."
    fraction = launch.settings.get("mem_fraction_static")
    if isinstance(fraction, float) and not 0 < fraction < 1:
        yield f"mem_fraction_static is {fraction:g}, expected a fraction between 0 and 1."


def _prefill(launch: Launch) -> Iterator[str]:
    """Thresholds of the prefill splits are not below what their kernels take."""
    if launch.on("SPARK_PREFILL_TP_SPLIT"):
        for name, floor in (
            ("SPARK_PREFILL_TP_MIN_CONTEXT", 32768),
            ("SPARK_PREFILL_TP_MIN_ROWS", 1024),
        ):
            value = launch.number(name)
            if value is None or value < floor:
                yield f"{name} is {launch.env.get(name)!r}, expected {floor} or more; set {floor}."
    chunk = launch.settings.get("chunked_prefill_size")
    step = launch.tensor_parallel
    if not launch.on("DSV41_PREFILL_SP") or not isinstance(chunk, int) or not chunk:
        return
    floor = PREFILL_SP_FLOOR
    if chunk < floor or chunk % step:
        near = max(-(-floor // step) * step, round(chunk / step) * step)
        yield (
            f"chunked_prefill_size is {chunk}, but DSV41_PREFILL_SP needs chunks of {floor} tokens "
            f"or more that {step} ranks split evenly; set it to {near}, or DSV41_PREFILL_SP to 0."
        )


def _allocator(launch: Launch) -> Iterator[str]:
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if "expandable_segments:true" in launch.env.get(name, "").lower().replace(" ", ""):
            yield (
                f"{name} has expandable_segments:True, with which prompts of 65 to about 4000 "
                "tokens are answered with garbage; set expandable_segments:False."
            )


def _engram(launch: Launch) -> Iterator[str]:
    """Engram rows come from the packed files, and from nowhere in memory."""
    if "DSV41_PACKED_DIR" not in launch.env and "OFFLOAD_MODE" not in launch.env:
        return
    if launch.env.get("OFFLOAD_MODE") == "ram":
        yield (
            "OFFLOAD_MODE is ram, which locks Engram tables of about 189 GiB in memory; set nvme."
        )
    if launch.on("SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE"):
        yield (
            "SGLANG_ENABLE_DSV41_ENGRAM_HOST_TABLE is on, which keeps the Engram tables in memory, "
            "where they do not fit; set it to 0."
        )
    tables = ("DSPARK_SPS_TABLE", "--speculative-dspark-sps-table-path")
    for name in tables:
        if name in launch.env or name in launch.arguments:
            yield (
                f"{name} is set, but a table of speculation schedules crashes the engine where "
                "Engram is used, and tables that differ between ranks hang it; leave it out."
            )
    if "DSV41_ENGRAM_DRM_NODE" in launch.env:
        node = launch.env["DSV41_ENGRAM_DRM_NODE"]
        if node not in launch.container.get("devices", ()):
            yield f"DSV41_ENGRAM_DRM_NODE is {node}; add {node} to container.devices as well."


def _mxfp8(launch: Launch) -> Iterator[str]:
    backend = launch.env.get("DSV41_MXFP8_BACKEND")
    if backend is None:
        return
    if backend not in ("b12x", "cudnn", "cutlass"):
        yield f"DSV41_MXFP8_BACKEND is {backend!r}, expected b12x, cudnn or cutlass."
    found = launch.arguments.get("--fp8-gemm-backend")
    if found != "flashinfer_cutlass":
        yield (
            f"--fp8-gemm-backend is {found!r}, but the MXFP8 kernels are reached by "
            "flashinfer_cutlass only; set that."
        )


def _ring(launch: Launch) -> Iterator[str]:
    """Between hosts that share no cable there is neither a tree nor a one-shot all-reduce."""
    if launch.direct:
        return
    patched = ("NCCL_SWITCHLESS_RING_ONLY", "NCCL_SKIP_TREE_CONNECT")
    if not any(launch.nccl_env.get(name) == "1" for name in patched):
        yield (
            f"a {launch.topology} of {launch.hosts} hosts needs a patched NCCL, because stock NCCL "
            "connects trees between hosts that share no cable; set spark_nccl to "
            "switchless-cycle."
        )
    asked = [name for name in ("SGLANG_ROCE_ALLREDUCE", "DSV41_ROCE_GATHER") if launch.on(name)]
    if not asked:
        return
    if not (launch.on("DSV41_ROCE_RING") and launch.env.get("B12X_ROCE_PEER_HCA_MAPS")):
        yield (
            f"{' and '.join(asked)} is on, but RoCEnante writes to every other rank, and on a "
            f"{launch.topology} of {launch.hosts} some share no cable; set SGLANG_ROCE_ALLREDUCE "
            "to 0 and leave DSV41_ROCE_GATHER out. Where the network cards forward the diagonal, "
            "say so with DSV41_ROCE_RING=1 and B12X_ROCE_PEER_HCA_MAPS."
        )
        return
    for name in ("SGLANG_ROCE_MAX_SIZE", "DSV41_ROCE_GATHER"):
        value = launch.number(name)
        if value is not None and value > _RING_BYTES:
            yield (
                f"{name} is {value}, but a forwarded diagonal drops messages of more than "
                f"{_RING_BYTES} bytes; set {_RING_BYTES}."
            )


def _nccl(launch: Launch) -> Iterator[str]:
    """One NCCL, and of its settings none that contradicts the cabling or goes stale."""
    for name, planned in launch.nccl_env.items():
        found = launch.env.get(name, planned)
        if found != planned:
            yield f"{name} is {found!r}, but cables and addresses need {planned!r}; leave it out."
    if "NCCL_IB_GID_INDEX" in launch.env:
        yield (
            "NCCL_IB_GID_INDEX is set, but the index moves, and differs between ranks; leave it "
            "out. It is chosen on each node at every start."
        )
    for name in ("LD_LIBRARY_PATH", "LD_PRELOAD"):
        if "nccl" in launch.env.get(name, "").lower():
            yield (
                f"{name} is {launch.env[name]!r}, by which a second NCCL is found beside that of "
                "the image, and DeepEP aborts; leave it out. A patched NCCL is bound over it."
            )


def _key(launch: Launch) -> Iterator[str]:
    found = [name for name in ("API_KEY", *_KEYS) if {*launch.env, *launch.arguments} & {name}]
    for name in found:
        yield (
            f"{name} is set, but the engine prints its key and serves it to anybody; leave it out. "
            "Keys are checked by the entry in front of the engine."
        )


_RULES: tuple[Callable[[Launch], Iterator[str]], ...] = (
    _splitting,
    _experts,
    _features,
    _sizes,
    _prefill,
    _allocator,
    _engram,
    _mxfp8,
    _ring,
    _nccl,
    _key,
)
