"""Serving plans that several tests look at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from ansible_collections.sparkfleet.cluster.plugins.filter.serving_plan import read_profile
from ansible_collections.sparkfleet.cluster.plugins.module_utils._serving_plan import serving_plan

from tests.support.playbook import ROOT
from tests.unit.fabrics import plan

MODEL: dict[str, Any] = yaml.safe_load(
    (ROOT / "roles/spark/files/models/deepseek-v4.1-flash.yml").read_text(encoding="utf-8")
)
PLACES = {"checkpoint_dir": "/srv/spark/checkpoint", "engram_dir": "/srv/spark/engram"}


def serving(
    profile: str | Path | None = None,
    hosts: int = 4,
    topology: str = "switch",
    *,
    fabric: Any = None,
    **options: Any,
) -> dict[str, Any]:
    fabric = fabric or plan(hosts, topology)
    name = str(profile) if profile else None
    return serving_plan(name, fabric, read=read_profile, **{"model": MODEL, **PLACES, **options})
