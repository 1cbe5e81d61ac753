# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: serving_plan
short_description: Plan the launch of every rank of a cell, and refuse what cannot work
version_added: 0.1.0
description:
  - Computes from a profile, the plan of the fabric and the settings of a cell what each rank is
    started with (container, environment, server arguments), what its log must show, and how much
    memory it needs. Nothing is asked of any host.
  - Refuses with every reason at once, each with numbers and the nearest setting that works.
  - What is only known on a node is not part of the plan. The number of a GID is chosen there, at
    every start, from RV(_value.hosts).
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
requirements:
  - netaddr >= 1.3 (Python library, on the controller)
positional: _input, fabric
options:
  _input:
    description:
      - The name of a profile of the collection, or the path of your own on the controller (whatever
        has a slash or ends in C(.yml) is a path).
      - If null or empty, the profile of the collection that fits topology and number of hosts.
    type: str
    required: true
  fabric:
    description: The result of P(sparkfleet.cluster.fabric_plan#filter).
    type: dict
    required: true
  model:
    description:
      - Facts about the model. Rules about heads, experts and Engram tables are checked as far as
        their numbers are known.
    type: dict
    default: {}
  settings:
    description:
      - Settings that differ from the profile, by their names under C(settings) there. Below C(env),
        C(arguments), C(proofs), C(fatals), C(image), C(nccl), C(container) and C(memory) everything
        else of a profile can be changed; null removes an entry.
    type: dict
    default: {}
  image:
    description: The reference of the image, where it is not that of the profile.
    type: str
  cell:
    description: The name of the cell.
    type: str
    default: sparks
  checkpoint_dir:
    description: The directory on every node where its rank reads the checkpoint.
    type: path
  engram_dir:
    description: The directory on every node with its packed Engram tables.
    type: path
  state_dir:
    description: The directory on every node below which a cell keeps state and compile caches.
    type: path
    default: /var/lib/sparkfleet/sglang
  ports:
    description: The TCP ports C(engine) on the head's loopback, and C(rendezvous) on the head.
    type: dict
    default: {engine: 8888, rendezvous: 20000}
  memory:
    description: The memory in bytes that hosts were found to have, where it is not that of a Spark.
    type: dict
seealso:
  - plugin: sparkfleet.cluster.fabric_plan
    plugin_type: filter
  - module: sparkfleet.cluster.engine_boot_info
"""

EXAMPLES = r"""
---
- name: Plan four Sparks in a ring
  ansible.builtin.set_fact:
    serving: "{{ none | sparkfleet.cluster.serving_plan(fabric, cell='sparks') }}"
  vars:
    fabric: "{{ groups['sparks'] | sparkfleet.cluster.fabric_plan('ring') }}"

- name: Plan a smaller KV pool, and no row cache
  ansible.builtin.set_fact:
    serving: "{{ 'dsv41-tp4' | sparkfleet.cluster.serving_plan(fabric, settings=smaller) }}"
  vars:
    fabric: "{{ groups['sparks'] | sparkfleet.cluster.fabric_plan('switch') }}"
    smaller:
      max_total_tokens: 4000000
      engram_cache_gib: 0
      env:
        DSV41_STATS_SECONDS: "300"
"""

RETURN = r"""
_value:
  description: The plan, made of nothing but plain data.
  type: dict
  contains:
    profile:
      description: The profile that was used.
      type: str
    cell:
      description: As given.
      type: str
    model:
      description: Its C(served_name), C(context_length), and its C(path) in the container.
      type: dict
    engine:
      description: The C(host) and C(port) on which the engine of the head answers.
      type: dict
    image:
      description:
        - The C(reference) and C(architecture) of the image, and how to C(build) it, with
          C(repository), C(commit), C(dockerfile) and C(args).
      type: dict
    nccl:
      description:
        - Whether a C(patched) NCCL is needed, of which C(version), with which C(markers) in it, and
          the C(container_path) of the one in the image, over which it is bound.
      type: dict
    hosts:
      description:
        - What each host needs, by name. C(rank), C(head), what M(sparkfleet.cluster.roce_gid_info)
          is given at each start as C(gid) (C(hcas), C(expected), C(policy); null where ranks use no
          RDMA), and the C(container).
      type: dict
    checks:
      description:
        - What a boot must pass. C(proofs) and C(fatals) as M(sparkfleet.cluster.engine_boot_info)
          takes them, C(pool_tokens_asked) (null for no limit), C(pool_tokens_least) (a pool that is
          smaller cannot hold one prompt), and C(ready_timeout) in seconds.
      type: dict
    memory:
      description: What a rank holds, as C(item) and C(bytes). An entry with C(host) is that of one
        host only.
      type: list
      elements: dict
    config_hash:
      description: C(cell), over all that is equal on every rank, and C(hosts), over the launch of
        each.
      type: dict
    notes:
      description: What is worth knowing and no reason to refuse.
      type: list
      elements: str
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _serving_plan
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import PlanError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import suggestion

FOLDER = Path(__file__).resolve().parents[2] / "roles" / "sglang" / "files" / "profiles"


def read_profile(name: str, named_in: str) -> tuple[str, Any]:
    """Read the file of a profile. A relative path is seen from the profile that names it."""
    if "/" in name or name.endswith((".yml", ".yaml")):
        beside = Path(named_in).parent if Path(named_in).suffix else Path()
        path = beside / Path(name).expanduser()
    else:
        path = FOLDER / f"{name}.yml"
        if not path.is_file():
            known = sorted(found.stem for found in FOLDER.glob("*.yml"))
            problem = (
                f"{named_in} names {name!r}, but the collection has no such profile"
                f"{suggestion(name, known)}; it has {', '.join(known)}. For your own, give the "
                "path of its file."
            )
            raise PlanError([problem])
    try:
        return str(path), _parsed(str(path), path.stat().st_mtime_ns)
    except OSError as error:
        raise PlanError([f"profile {path} cannot be read: {error.strerror}."]) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise PlanError([f"profile {path} is no YAML: {reason}."]) from error


@functools.lru_cache(maxsize=32)
def _parsed(path: str, _changed: int) -> Any:
    """Profiles are asked for again with every use of a lazy variable."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.load(Path(path).read_text(encoding="utf-8"), Loader=loader)


def serving_plan(profile: Any, fabric: Any = None, **options: Any) -> dict[str, Any]:
    try:
        return _serving_plan.serving_plan(profile, fabric, read=read_profile, **options)
    except PlanError as error:
        raise AnsibleTemplatePluginError(str(error)) from error


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"serving_plan": serving_plan}
