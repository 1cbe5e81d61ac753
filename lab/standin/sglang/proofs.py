# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lines that the engine prints while it boots, with this rank's own values.

Which of them are printed follows from arguments and environment, as with the real engine.
"""

from __future__ import annotations

from collections.abc import Iterator

from .contract import Given
from .settings import Settings

_BYTES_PER_TOKEN = 1670.75
_COMMIT = "a7d7d29b2ef8869086e0ceaa787321f17544e3c9"


def nccl(settings: Settings) -> Iterator[str]:
    """What NCCL says once the ranks have met."""
    yield "NCCL version 2.30.7+cuda13.0"
    if settings.on("NCCL_SWITCHLESS_RING_ONLY"):
        yield "NCCL INFO NCCL_SWITCHLESS_RING_ONLY set by environment to 1."
        yield "NCCL INFO Connected all rings"
        yield "NCCL INFO Tree transport setup disabled by NCCL_SWITCHLESS_RING_ONLY"
        yield "NCCL INFO PAT transport setup disabled by NCCL_SWITCHLESS_RING_ONLY"
    elif settings.environment.get("NCCL_DEBUG") == "INFO":
        yield "NCCL INFO Connected all rings"
    if settings.environment.get("NCCL_IB_EXTENDED_IPV4_GIDS") == "1":
        count = len(settings.environment.get("NCCL_IB_HCA", "").split(","))
        yield f"NCCL INFO ListenerRouting format=ipv4-v1 advertised={count}"
        yield "NCCL INFO NET/IB: overriding dev 3 with dev 2 preserving PCI root 0002:00"


def load(given: Given) -> Iterator[str]:
    """The progress of loading weights, a line for each file."""
    total = len(given.files)
    for done in range(total + 1):
        share = 100 * done // max(1, total)
        yield (
            f"Loading safetensors checkpoint shards: {share}% Completed | {done}/{total} "
            "[00:00<00:00, 99.00it/s]"
        )


def engram(given: Given, packed: bool) -> Iterator[str]:
    for layer, low, high in given.tables:
        yield f"Exact nvme Engram layer={layer} rows=[{low},{high}) row_bytes=264 packed={packed}"


def adapters(settings: Settings) -> Iterator[str]:
    """A line for each part of the serving line that is switched on."""
    tp, rank = settings.tp, settings.rank
    block = settings.number("speculative-dspark-block-size")
    if settings.on("DSV41_INDEXER_CHUNKED"):
        yield "DSV41 indexer chunked v2: logits budget 2147483648 bytes ARMED"
    if settings.on("DSV41_SHARED_PAD_K"):
        width = 2304 // tp
        padded = -(-width // 128) * 128
        if padded != width:
            yield f"DSV41 shared expert K padding ARMED: (5120, {width}) -> (5120, {padded})"
    if settings.on("DSV41_MOE_B12X_NEXT"):
        yield f"[moe_b12x_next] armed: b12x_next {_COMMIT[:8]} deterministic"
        yield f"INFO: routed MoE at EP_SIZE={settings.text('ep-size')} through b12x_next"
    if settings.on("SGLANG_ROCE_ALLREDUCE"):
        hcas = settings.environment.get("B12X_ROCE_HCA", "").count(",") + 1
        yield f"RoCEnante ready: world={tp} hcas={hcas}"
        size = settings.environment.get("SGLANG_ROCE_MAX_SIZE", "0")
        yield f"ROCE_TP8_ROUTE rank={rank} bytes={size}"
    if settings.on("SPARK_PREFILL_TP_SPLIT"):
        yield f"DSV41 prefill TP split (v3) rank={rank} of {tp}"
    if settings.on("DSV41_HC_FUSED"):
        yield "DSV41 hc_fused: first call (4096 rows) bit-identical to stock"
    if settings.on("DSV41_L2_PREFETCH"):
        yield "DSV41_L2_PREFETCH: model forward bracketed (40 layers)"
    if "DSV41_SPEC_SYNC_FREE" in settings.environment:
        yield f"[spec_sync_free] armed ({settings.environment['DSV41_SPEC_SYNC_FREE']})"
    if "DSV41_EAGER_GLUE" in settings.environment:
        yield "[eager_glue] vcap armed (all)"
    if settings.on("DSV41_SPLIT_COMPACT_GATHER"):
        for name in settings.environment.get("DSV41_REPLICATED_SPLIT", "").split(","):
            yield f"[replicated_split] {name} compact gather (roce) bit-identical, ON"
    if settings.text("speculative-algorithm") == "DSPARK":
        yield (
            f"Initialized DSpark draft runner for rank {rank}: gamma={block}, "
            f"verify_num_draft_tokens={block + 1}"
        )


def pool(settings: Settings, clamped: bool) -> tuple[int, list[str]]:
    """How many tokens the KV pool has, and the lines that tell so."""
    granted = settings.number("max-total-tokens") or 65536
    if clamped:
        granted = granted * 3 // 4
    room = granted // 256 * 256
    memory = (
        f"DSV4 memory calculation: bytes_per_full_token={_BYTES_PER_TOKEN} available_bytes="
        f"{granted * _BYTES_PER_TOKEN / 2**30:.2f} GB swa_fixed=0.67 GB full_token={room}"
    )
    result = (
        f"max_total_num_tokens={granted}, "
        f"chunked_prefill_size={settings.text('chunked-prefill-size')}, "
        f"max_prefill_tokens=16384, max_running_requests={settings.text('max-running-requests')}, "
        f"context_len={settings.text('context-length')}, available_gpu_mem=9.10 GB"
    )
    graphs = f"Capture cuda graph bs {_tiers(settings.number('cuda-graph-max-bs-decode'))}"
    return granted, [memory, graphs, result]


def _tiers(most: int) -> list[int]:
    return [size for size in (1, 2, 4, 8, 12, 16, 24, 32, 48, 64) if size <= most]


def ready(settings: Settings) -> Iterator[str]:
    if settings.on("WARMUP") or "WARMUP" not in settings.environment:
        yield "Batch output sanity check passed"
    yield f"Ready: API on port {settings.text('port')} (no key)"
    yield "The server is fired up and ready to roll!"
