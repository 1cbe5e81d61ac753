# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the product is given beside nodes, as stand-ins: checkpoint, engine image, patched NCCL.

The variables that name them are written into a file of the lab, for ``ansible-playbook -e @FILE``.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from lab import checkpoint
from lab.spec import Lab
from lab.standin import image
from lab.standin.library import library
from lab.system import CACHE, run, step, write_atomic

ROWS = (20_003, 20_011)
_MARKER = "NCCL_SWITCHLESS_RING_ONLY"
_TOPOLOGIES = {"pair": "pair", "pairs": "pair", "triangle": "triangle", "switch": "switch"}
_ROUTER = "0.3.2"
_PAIR = Path(__file__).with_name("pair.yml")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def prepare(lab: Lab, rows: Sequence[int] = ROWS) -> Path:
    """Make everything on this machine, put the checkpoint on its nodes, and say how it is named."""
    model = lab.state / "checkpoint"
    told = checkpoint.make(model, rows=rows)
    known = yaml.safe_load(checkpoint.FACTS.read_text())  # the profiles are made for this model
    told |= {name: known[name] for name in ("repository", "served_name")}
    checkpoint.write_facts(lab.state / "model.yml", told)
    nfs = lab.backend == "vm"
    heads = [hosts[0] for hosts in lab.cells.values()]
    for host in heads if nfs else lab.hosts:
        checkpoint.put(lab, host, model)
    nccl = lab.state / "libnccl.so.2"
    nccl.write_bytes(library("STAND-IN, computes nothing", _MARKER, machine=platform.machine()))
    path = lab.state / "standin.yml"
    write_atomic(path, yaml.safe_dump(_variables(lab, nfs), sort_keys=False, explicit_start=True))
    return path


def _variables(lab: Lab, nfs: bool) -> dict[str, Any]:
    machine = platform.machine()
    several = (
        {"spark_profile": str(_PAIR), "router_wheel": str(_wheel())} if len(lab.cells) > 1 else {}
    )
    return {
        **several,
        "spark_topology": _TOPOLOGIES.get(lab.cabling, "ring"),
        "spark_model": str(lab.state / "model.yml"),
        "spark_weights_mode": "nfs" if nfs else "local",  # containers have no kernel NFS
        "spark_settings": {
            "image": {
                "reference": image.REFERENCE,
                "architecture": _ARCHITECTURES.get(machine, machine),
            },
            "ready_timeout": 600,
        },
        "sglang_image_source": "archive",
        "sglang_image_archive": str(image.image().archive()),
        "nccl_source": "file",
        "nccl_file": str(lab.state / "libnccl.so.2"),
        # A container may not lock memory without a limit; its disk may be memory.
        "sglang_accept_limits": not nfs,
        "engram_pack_any_filesystem": not nfs,
    }


def _wheel() -> Path:
    """SGLang's router, which is no stand-in; the hosts of a lab reach no package index."""
    folder = CACHE / "router"
    found = sorted(folder.glob(f"sglang_router-{_ROUTER}-*.whl"))
    if not found:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        with step(f"fetching sglang-router {_ROUTER}"):
            run([*pip, "--only-binary=:all:", "--dest", str(folder), f"sglang-router=={_ROUTER}"])
        found = sorted(folder.glob(f"sglang_router-{_ROUTER}-*.whl"))
    return found[0]
