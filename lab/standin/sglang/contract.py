# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether this rank was given all it needs, each point by itself, all of them told."""

from __future__ import annotations

import ipaddress
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from . import shards
from .settings import Settings

NCCL = "/opt/sglang/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"


class Finding(NamedTuple):
    """One point: `verdict` is ok, refused, or not checked."""

    name: str
    verdict: str
    detail: str

    def __str__(self) -> str:
        return f"contract {self.name}: {self.verdict}: {self.detail}"


class Given(NamedTuple):
    """What the checks learned that the boot needs: (layer, low, high) of each table; the files."""

    tables: list[tuple[int, int, int]]
    files: list[str]


def check(settings: Settings, root: Path = Path("/")) -> tuple[list[Finding], Given]:
    """Every point of the contract. `root` is where the file system of the container begins."""
    findings: list[Finding] = []
    given = Given([], [])
    points: list[Callable[[Settings, Path], Iterator[Finding]]] = [
        _environment,
        _arguments,
        _devices,
        _limits,
        _places,
        _nccl,
        _gids,
    ]
    for point in points:
        findings += point(settings, root)
    findings += _weights(settings, root, given)
    return findings, given


def _environment(settings: Settings, _root: Path) -> Iterator[Finding]:
    env = settings.environment
    name = "environment"
    empty = [key for key in env if key.startswith(("NCCL_", "GLOO_")) and not env[key]]
    if empty:
        yield Finding(name, "refused", f"empty, which counts as 0: {', '.join(empty)}")
    if "expandable_segments:True" in env.get("PYTORCH_CUDA_ALLOC_CONF", ""):
        yield Finding(name, "refused", "expandable_segments:True gives NaN logits")
    if env.get("LD_LIBRARY_PATH"):
        yield Finding(name, "refused", "LD_LIBRARY_PATH is set: two NCCLs can become visible")
    pairs = {
        "NODE_RANK": "node-rank",
        "NNODES": "nnodes",
        "TP_SIZE": "tp",
        "EP_SIZE": "ep-size",
        "MODEL_PATH": "model-path",
        "SERVER_PORT": "port",
        "CONTEXT_LENGTH": "context-length",
        "MAX_TOTAL_TOKENS": "max-total-tokens",
        "DIST_INIT_ADDR": "dist-init-addr",
    }
    for variable, option in pairs.items():
        told = settings.arguments.get(option)
        if variable in env and told not in (None, env[variable]):
            said = f"{variable}={env[variable]} but --{option} {told}"
            yield Finding(name, "refused", said)
    wanted = []
    if settings.nodes > 1:
        wanted += ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"]
    if settings.engram:
        wanted += ["DSV41_SOURCE"]
    missing = [variable for variable in wanted if variable not in env]
    if missing:
        yield Finding(name, "refused", f"missing: {', '.join(missing)}")
    else:
        yield Finding(name, "ok", f"{len(env)} variables")


def _arguments(settings: Settings, _root: Path) -> Iterator[Finding]:
    rank, nodes, tp = settings.rank, settings.nodes, settings.tp
    if not 0 <= rank < nodes or tp % nodes:
        yield Finding("arguments", "refused", f"rank {rank} of {nodes} nodes with --tp {tp}")
    host, _colon, port = settings.text("dist-init-addr").rpartition(":")
    try:
        ipaddress.ip_address(host)
        right = port.isdigit()
    except ValueError:
        right = False
    if right and (nodes == 1 or not ipaddress.ip_address(host).is_loopback):
        yield Finding("arguments", "ok", f"rank {rank} of {nodes}, meeting at {host}:{port}")
    else:
        said = f"--dist-init-addr {host}:{port} is no address that other nodes can reach"
        yield Finding("arguments", "refused", said)


def _devices(settings: Settings, root: Path) -> Iterator[Finding]:
    if settings.environment.get("NCCL_NET") != "IB":
        return
    nodes = sorted(path.name for path in (root / "dev/infiniband").glob("*"))
    if any(node.startswith("uverbs") for node in nodes):
        yield Finding("devices", "ok", ", ".join(nodes))
    else:
        yield Finding("devices", "refused", "no /dev/infiniband/uverbs*, but NCCL_NET=IB")


def _limits(_settings: Settings, _root: Path) -> Iterator[Finding]:
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    if locked == resource.RLIM_INFINITY:
        yield Finding("limits", "ok", "memlock unlimited")
    else:
        said = f"memlock is {locked} bytes: NCCL would fall back to sockets"
        yield Finding("limits", "not checked", f"{said}; containers of the lab cannot raise it")


def _places(settings: Settings, root: Path) -> Iterator[Finding]:
    model = settings.text("model-path")
    if os.access(root / model.lstrip("/"), os.W_OK):
        yield Finding("mounts", "refused", f"{model} can be written to")
    state = settings.environment.get("STATE_PATH", "")
    for place in filter(None, (state, "/root/.cache")):
        if not os.access(root / place.lstrip("/"), os.W_OK):
            yield Finding("mounts", "refused", f"{place} cannot be written to")
    for variable in ("B12X_COMPILE_CACHE_DIR", "B12X_ROCE_CACHE_DIR"):
        place = settings.environment.get(variable, "")
        if place and state and not place.startswith(state):
            yield Finding("mounts", "refused", f"{variable}={place} is not kept below {state}")


def _nccl(settings: Settings, root: Path) -> Iterator[Finding]:
    if not settings.on("NCCL_SWITCHLESS_RING_ONLY"):
        return
    try:
        patched = b"SWITCHLESS_RING_ONLY" in (root / NCCL.lstrip("/")).read_bytes()
    except OSError:
        yield Finding("nccl", "refused", f"NCCL_SWITCHLESS_RING_ONLY is set, but no {NCCL}")
        return
    if patched:
        yield Finding("nccl", "ok", "the library over the image's own is patched for a ring")
    else:
        yield Finding("nccl", "refused", f"{NCCL} is not patched for a ring")


def _gids(settings: Settings, root: Path) -> Iterator[Finding]:
    """Each HCA has one RoCE v2 GID of an IPv4 address, in the range or at the index given."""
    names = settings.environment.get("NCCL_IB_HCA", "").lstrip("=")
    if not names or settings.environment.get("NCCL_NET") != "IB":
        return
    base = root / "sys/class/infiniband"
    if not any(base.glob("*")):
        yield Finding("gid", "not checked", "no RDMA devices are visible here")
        return
    pinned = settings.environment.get("NCCL_IB_GID_INDEX")
    span = ipaddress.ip_network(settings.environment.get("NCCL_IB_ADDR_RANGE", "0.0.0.0/0"))
    for hca in names.split(","):
        table = _table(base / hca.partition(":")[0] / "ports/1")
        right = {
            slot: address
            for slot, (kind, address) in table.items()
            if kind == "RoCE v2" and not address.is_link_local and address in span
        }
        if len(right) != 1:
            yield Finding("gid", "refused", f"{hca} has {len(right)} RoCE v2 entries in {span}")
        elif pinned is not None and pinned not in right:
            yield Finding("gid", "refused", f"index {pinned} of {hca} is not {right}")
        else:
            slot, address = next(iter(right.items()))
            yield Finding("gid", "ok", f"{hca} slot {slot} is {address}")


def _table(port: Path) -> dict[str, tuple[str, ipaddress.IPv4Address]]:
    found = {}
    for entry in (port / "gids").glob("*"):
        try:
            address = ipaddress.IPv6Address(entry.read_text().strip()).ipv4_mapped
            kind = (port / "gid_attrs/types" / entry.name).read_text().strip()
        except (OSError, ValueError):
            continue
        if address is not None:
            found[entry.name] = (kind, address)
    return found


def _weights(settings: Settings, root: Path, given: Given) -> Iterator[Finding]:
    model = root / settings.text("model-path").lstrip("/")
    try:
        config, places, files = shards.checkpoint(model)
    except (OSError, ValueError, KeyError, shards.RefusedError) as error:
        yield Finding("checkpoint", "refused", str(error))
        return
    given.files.extend(files)
    yield Finding("checkpoint", "ok", f"{len(files)} files with {len(places)} tensors")
    if not settings.engram:
        return
    folder = root / settings.engram.lstrip("/")
    for layer, rows in shards.tables(config):
        try:
            low, high = shards.packed(
                folder, layer, rows, settings.rank, settings.tp, model, places
            )
        except (OSError, shards.RefusedError) as error:
            yield Finding("engram", "refused", str(error))
            continue
        given.tables.append((layer, low, high))
        yield Finding("engram", "ok", f"layer {layer} rows [{low},{high})")
