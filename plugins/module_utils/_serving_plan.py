# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The launch of every rank of one cell, computed from profile, fabric plan and settings alone."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import PlanError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain
from ansible_collections.sparkfleet.cluster.plugins.module_utils._profile import (
    Profile,
    Read,
    apply_settings,
    fits,
    fitting,
    holds,
    read_profile,
    substitute,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._serving_memory import (
    Rank,
    check_memory,
    check_pool,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._serving_rules import (
    Launch,
    problems,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import gib, suggestion

# The profiles that are chosen from, in the order of preference.
USUAL = ("dsv41-tp4", "dsv41-tp4-ring", "dsv41-tp3", "dsv41-tp8")
PROFILES = ("dsv41-tp4", "dsv41-tp4-base", "dsv41-tp4-ring", "dsv41-tp3", "dsv41-tp8")

ENGINE_HOST = "127.0.0.1"  # the entry in front of it is the only way in
PORTS = {"engine": 8888, "rendezvous": 20000}
STATE = "/var/lib/sparkfleet/sglang"
NCCL_FILE = "/usr/local/lib/sparkfleet/nccl/libnccl.so.2"
LABEL = "sparkfleet"
# What a patched NCCL that knows a variable has in it.
_RING_MARKERS = {
    "NCCL_SWITCHLESS_RING_ONLY": "SWITCHLESS_RING_ONLY",
    "NCCL_SKIP_TREE_CONNECT": "SKIP_TREE_CONNECT",
    "NCCL_IB_EXTENDED_IPV4_GIDS": "IB_EXTENDED_IPV4_GIDS",
}
_CELL = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
# Settings that no rank is told of, because what starts the ranks reads them.
_OURS = ("ready_timeout",)
_OPTIONS = (
    "model",
    "settings",
    "image",
    "cell",
    "checkpoint_dir",
    "engram_dir",
    "state_dir",
    "ports",
    "memory",
)


def serving_plan(profile: Any, fabric: Any, *, read: Read, **options: Any) -> dict[str, Any]:
    """Plan the launch of every rank; the filter documents options and result.

    Args:
        profile: its name or path; nothing for the one that fits the fabric.
        fabric: the result of ``fabric_plan``.
        read: gives the place and the content of a profile by name or path.
        options: as of the filter.

    Raises:
        PlanError: with every reason why there is no plan.
    """
    for name in options:
        if name not in _OPTIONS:
            problem = f"the options: nothing reads {name!r}{suggestion(name, _OPTIONS)}"
            raise PlanError([f"{problem}; there are {', '.join(_OPTIONS)}."])
    if not (isinstance(fabric, Mapping) and fabric.get("fabric") and fabric.get("hosts")):
        raise PlanError(["the fabric is not what fabric_plan returns."])
    given = {name: plain(value) for name, value in options.items() if value not in ("", None)}
    for name in ("model", "ports", "memory"):
        if not isinstance(given.get(name, {}), Mapping):
            raise PlanError([f"{name} is {given[name]!r}, expected a mapping."])
    chosen = _choose(plain(profile), fabric, read)
    return _Plan(chosen, fabric, given).result()


def _choose(name: Any, fabric: Mapping[str, Any], read: Read) -> Profile:
    topology, count = str(fabric["fabric"]["topology"]), len(fabric["hosts"])
    if name in (None, ""):
        usual = [read_profile(known, read) for known in USUAL]
        for profile in usual:
            if fits(profile, topology, count):
                return profile
        made = "; ".join(f"{profile.name} for {_made_for(profile)}" for profile in usual)
        problem = (
            f"no profile of the collection fits a {topology} of {count} hosts: {made}. Cable the "
            "hosts as one of these, or name a profile of your own as spark_profile."
        )
        raise PlanError([problem])
    if not isinstance(name, str):
        raise PlanError([f"spark_profile is {name!r}, expected the name or path of a profile."])
    profile = read_profile(name, read)
    if fits(profile, topology, count):
        return profile
    others = fitting((read_profile(known, read) for known in PROFILES), topology, count)
    remedy = f"choose {' or '.join(others)}" if others else "no profile of the collection fits"
    problem = (
        f"profile {name} is for {_made_for(profile)}, but the cell is a {topology} of {count} "
        f"hosts; {remedy}."
    )
    raise PlanError([problem])


def _made_for(profile: Profile) -> str:
    wanted = profile.section("fits")
    count = wanted.get("hosts")
    return f"{' or '.join(wanted.get('topologies', ['any topology']))} of {count or 'any number'}"


class _Plan:
    """Profile, fabric and options in, the plan as plain data out."""

    def __init__(
        self, profile: Profile, fabric: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        self._known_env = [*profile.section("env")]
        self._profile, self._problems = apply_settings(profile, options.get("settings"))
        self._fabric = fabric["fabric"]
        self._hosts: Mapping[str, Any] = fabric["hosts"]
        self._options = options
        self._settings = self._profile.section("settings")
        self._container = self._profile.section("container")
        self._used: set[str] = set()
        self._notes: list[str] = []
        self._cell = str(options.get("cell", "sparks"))
        self._ports = self._read_ports(options.get("ports"))
        self._model: Mapping[str, Any] = options.get("model") or {}
        self._tables = self._read_tables()
        self._check_cell()

    # --- input ---------------------------------------------------------------------------------

    def _read_ports(self, given: Any) -> dict[str, int]:
        ports = dict(PORTS)
        for name, value in (given or {}).items():
            text = str(value).strip()
            if name not in PORTS:
                self._problems.append(
                    f"ports: nothing reads {name!r}{suggestion(name, PORTS)}; there are engine and "
                    "rendezvous."
                )
            elif isinstance(value, bool) or not text.isdecimal() or not 0 < int(text) < 65536:
                self._problems.append(
                    f"port {name} is {value!r}, expected a number from 1 to 65535."
                )
            else:
                ports[name] = int(text)
        if ports["engine"] == ports["rendezvous"]:
            self._problems.append(
                f"the ports engine and rendezvous are both {ports['engine']}; change "
                "spark_engine_port or spark_rendezvous_port."
            )
        return ports

    def _read_tables(self) -> list[Mapping[str, Any]]:
        engram = self._model.get("engram") or {}
        tables = engram.get("tables") if isinstance(engram, Mapping) else None
        return list(tables or [])

    def _check_cell(self) -> None:
        if not _CELL.fullmatch(self._cell):
            self._problems.append(
                f"cell is {self._cell!r}, expected letters, digits, '_', '.' and '-'."
            )
        ranks: dict[int, str] = {}
        for name, host in self._hosts.items():
            rank = host.get("rank")
            if rank in ranks:
                self._problems.append(f"{ranks[rank]} and {name} both have rank {rank}.")
            ranks.setdefault(rank, name)
        missing = [str(rank) for rank in range(len(self._hosts)) if rank not in ranks]
        if missing:
            self._problems.append(f"no host has rank {', '.join(missing)}.")
        model, wanted = self._model.get("repository"), self._profile.data.get("model")
        if model and wanted and model != wanted:
            self._problems.append(
                f"profile {self._profile.name} serves {wanted}, but spark_model is {model}; change "
                "one of them."
            )

    # --- output --------------------------------------------------------------------------------

    def result(self) -> dict[str, Any]:
        head = str(self._fabric["head"])
        rendered = {name: self._render(name, host) for name, host in self._hosts.items()}
        first = rendered.get(head) or next(iter(rendered.values()))
        env, arguments = first["env"], first["arguments"]
        checks = self._checks(env)
        totals = self._totals()
        rank = Rank(
            memory=self._profile.section("memory"),
            settings=self._settings,
            env=env,
            tensor_parallel=len(self._hosts),
            speculative="--speculative-algorithm" in arguments,
            engram_rows=sum(int(table.get("rows", 0)) for table in self._tables),
        )
        image = self._profile.section("image")
        launch = Launch(
            topology=str(self._fabric["topology"]),
            hosts=len(self._hosts),
            tensor_parallel=len(self._hosts),
            settings=self._settings,
            env=env,
            arguments=arguments,
            container=self._container,
            provides=image.get("provides", ()),
            nccl_env=plain(self._hosts[head]["nccl_env"]) if head in self._hosts else {},
            model=self._model,
        )
        if not self._problems:
            self._problems += problems(launch)
        self._check_forwarded()
        if not self._problems:
            self._problems += check_memory(rank, totals, head)
        if not self._problems:
            self._problems, notes = check_pool(rank, totals)
            self._notes += notes
        if self._problems:
            raise PlanError(self._problems)

        reference = str(self._options.get("image") or image.get("reference", ""))
        if not reference:
            raise PlanError(
                [f"profile {self._profile.name} names no image; set spark_image to its reference."]
            )
        nccl = self._nccl(launch.nccl_env)
        hosts: dict[str, dict[str, Any]] = {
            name: {
                "rank": int(self._hosts[name]["rank"]),
                "head": name == head,
                "gid": self._gid(name, env),
                "container": self._spec(name, parts, reference, patched=nccl["patched"]),
            }
            for name, parts in rendered.items()
        }
        self._notes += self._strangers()
        if not self._container.get("gpus", True):
            self._notes.append("No GPU is asked for (container.gpus is false).")
        plan: dict[str, Any] = {
            "profile": self._profile.name,
            "cell": self._cell,
            "model": {
                "served_name": str(self._settings.get("served_name", "")),
                "context_length": self._settings.get("context_length"),
                "path": str(self._container.get("model_path", "")),
            },
            "engine": {"host": ENGINE_HOST, "port": self._ports["engine"]},
            "image": {
                "reference": reference,
                "architecture": str(image.get("architecture", "arm64")),
                "build": plain(image.get("build") or {}),
            },
            "nccl": nccl,
            "hosts": hosts,
            "checks": {
                **checks,
                "pool_tokens_asked": int(self._settings.get("max_total_tokens") or 0) or None,
                "pool_tokens_least": self._settings.get("context_length"),
                "ready_timeout": int(self._settings.get("ready_timeout", 3600)),
            },
            "memory": self._memory(rank, totals, head),
            "notes": self._notes,
        }
        plan["config_hash"] = _hashes(plan)
        for name, digest in plan["config_hash"]["hosts"].items():
            hosts[name]["container"]["labels"][f"{LABEL}.config"] = digest
        return plan

    def _variables(self, name: str, host: Mapping[str, Any]) -> dict[str, Any]:
        """What texts of a profile may refer to as ``${name}``."""
        count = len(self._hosts)
        width = self._model.get("expert_width")
        shared = width // count if isinstance(width, int) else 0
        ports = host.get("ports") or []
        return {
            **self._settings,
            "cell": self._cell,
            "host": name,
            "rank": host["rank"],
            "hosts": count,
            "tensor_parallel": count,
            "head_address": self._fabric["head_address"],
            "host_address": ports[0]["address"] if ports else "",
            "hcas": host["nccl_env"].get("NCCL_IB_HCA", "").lstrip("="),
            "management_interface": host["nccl_env"].get("GLOO_SOCKET_IFNAME", ""),
            "engine_host": ENGINE_HOST,
            "engine_port": self._ports["engine"],
            "rendezvous_port": self._ports["rendezvous"],
            "model_path": self._container.get("model_path", ""),
            "engram_path": self._container.get("engram_path", ""),
            "state_path": self._container.get("state_path", ""),
            "cache_path": self._container.get("cache_path", ""),
            "engram_tables": len(self._tables),
            "shared_width": shared,
            "shared_width_padded": -(-shared // 128) * 128,
        }

    def _render(self, name: str, host: Mapping[str, Any]) -> dict[str, Any]:
        variables = self._variables(name, host)
        env = {str(key): str(value) for key, value in host["nccl_env"].items()}
        for key, value in self._profile.section("env").items():
            env[key] = self._fill(f"env.{key}", value, variables)
        if env.get("NCCL_IB_SUBNET_AWARE_ROUTING") == "1":
            env.setdefault("NCCL_IB_SUBNET_PREFIX_LEN", str(self._fabric["prefix"]))
        arguments: dict[str, Any] = {}
        for key, value in self._profile.section("arguments").items():
            if value is True or isinstance(value, list):
                arguments[key] = value
            elif value is not False:
                arguments[key] = self._fill(f"arguments.{key}", value, variables)
        return {"env": dict(sorted(env.items())), "arguments": arguments, "variables": variables}

    def _fill(self, where: str, value: Any, variables: Mapping[str, Any]) -> str:
        try:
            return substitute(value, variables, self._used)
        except KeyError as error:
            name = str(error.args[0])
            problem = (
                f"profile {self._profile.name}: {where} refers to ${{{name}}}, which does not "
                f"exist{suggestion(name, variables)}."
            )
            if problem not in self._problems:
                self._problems.append(problem)
            return ""

    def _check_forwarded(self) -> None:
        """Every setting reaches the ranks; one that does not would be ignored in silence."""
        for name in self._settings:
            if name not in self._used and name not in _OURS:
                self._problems.append(
                    f"profile {self._profile.name}: the setting {name} reaches no rank, because "
                    f"neither env nor arguments refer to ${{{name}}}; add that, or remove it."
                )

    def _strangers(self) -> list[str]:
        """New variables that are called almost like one of the profile: slips, perhaps."""
        given = (self._options.get("settings") or {}).get("env") or {}
        known = self._known_env
        return [
            f"spark_settings.env.{name} is not in the profile{hint}."
            for name in given
            if name not in known and (hint := suggestion(name, known))
        ]

    def _checks(self, env: Mapping[str, str]) -> dict[str, Any]:
        head = self._hosts.get(str(self._fabric["head"])) or next(iter(self._hosts.values()))
        variables = self._variables(str(self._fabric["head"]), head)
        proofs, fatals = [], []
        for key in ("proofs", "fatals"):
            self._problems += [
                f"profile {self._profile.name}: {key}.{name} has no pattern."
                for name, line in self._profile.section(key).items()
                if "pattern" not in line
            ]
        if self._problems:
            return {}
        for name, line in self._profile.section("proofs").items():
            if not holds(line.get("when", {}), env):
                continue
            count = self._fill(f"proofs.{name}.count", line.get("count", 1), variables)
            if count == "0":
                continue
            proofs.append(
                {
                    "name": name,
                    "pattern": self._fill(f"proofs.{name}.pattern", line["pattern"], variables),
                    "scope": line.get("scope", "head"),
                    "count": int(count) if count.isdecimal() else 1,
                    "required": line.get("required", True),
                }
            )
        for name, line in self._profile.section("fatals").items():
            if holds(line.get("when", {}), env):
                fatals.append(
                    {
                        "name": name,
                        "pattern": self._fill(f"fatals.{name}.pattern", line["pattern"], variables),
                        "cause": str(line.get("cause", "")).strip(),
                        "remedy": str(line.get("remedy", "")).strip(),
                        "weak": line.get("weak", False),
                    }
                )
        return {"proofs": proofs, "fatals": fatals}

    def _totals(self) -> dict[str, float]:
        """The memory of each host in bytes; where nobody measured it, that of the profile."""
        measured = self._options.get("memory") or {}
        usual = float(self._profile.section("memory").get("node", 0))
        totals: dict[str, float] = {}
        for name in self._hosts:
            value = measured.get(name, usual)
            try:
                totals[name] = float(value)
            except (TypeError, ValueError):
                self._problems.append(f"memory of {name} is {value!r}, expected bytes.")
        return totals

    def _memory(self, rank: Rank, totals: Mapping[str, float], head: str) -> list[dict[str, Any]]:
        if not rank.known:
            self._notes.append(
                "The profile does not say how large its model is: memory not checked."
            )
            return []
        workers = [total for name, total in totals.items() if name != head]
        total = min(workers or totals.values())
        items: list[dict[str, Any]] = [
            {"item": item, "bytes": round(size)}
            for item, size in rank.items(total, head=False).items()
        ]
        extra = {
            item: size
            for item, size in rank.items(totals[head], head=True).items()
            if item not in {entry["item"] for entry in items}
        }
        items += [{"item": i, "bytes": round(size), "host": head} for i, size in extra.items()]
        used = sum(rank.items(totals[head], head=True).values())
        self._notes.append(
            f"Memory of the head: {gib(used)} of {gib(totals[head])} at the deepest prompt."
        )
        return items

    def _nccl(self, nccl_env: Mapping[str, str]) -> dict[str, Any]:
        markers = [mark for name, mark in _RING_MARKERS.items() if nccl_env.get(name) == "1"]
        if not self._container.get("rdma", True):
            markers = []  # nothing that a patch of NCCL's RDMA could help
        section = self._profile.section("nccl")
        return {
            "patched": bool(markers),
            "version": str(section.get("version", "")),
            "markers": markers,
            "container_path": str(section.get("container_path", "")),
        }

    def _gid(self, name: str, env: Mapping[str, str]) -> dict[str, Any] | None:
        """What the choice of GIDs at each start is given; RoCEnante needs one common number."""
        if not self._container.get("rdma", True):
            return None
        host = self._hosts[name]
        hcas = str(host["nccl_env"].get("NCCL_IB_HCA", ""))
        wanted = hcas.lstrip("=").split(",")
        needs_index = any(
            env.get(variable, "0") not in ("", "0")
            for variable in ("SGLANG_ROCE_ALLREDUCE", "DSV41_ROCE_GATHER")
        )
        return {
            "hcas": hcas,
            "expected": [
                {"hca": str(port["hca"]), "subnet": str(port["subnet"])}
                for port in host["ports"]
                if port["hca"] in wanted
            ],
            "policy": "pin" if needs_index else "auto",
        }

    def _spec(
        self, name: str, parts: Mapping[str, Any], reference: str, *, patched: bool
    ) -> dict[str, Any]:
        rank = int(self._hosts[name]["rank"])
        section = self._container
        return {
            "name": f"{LABEL}-{self._cell}-r{rank}",
            "image": reference,
            "entrypoint": [str(word) for word in section.get("entrypoint", ())],
            "command": [
                *(str(word) for word in section.get("command", ())),
                *_words(parts["arguments"]),
            ],
            "env": parts["env"],
            "mounts": self._mounts(parts["variables"], patched=patched),
            "devices": [str(device) for device in section.get("devices", ())],
            "capabilities": [str(name) for name in section.get("capabilities", ())],
            "ulimits": plain(section.get("ulimits") or {}),
            "shm_size": str(section.get("shm_size", "")),
            "network_mode": str(section.get("network_mode", "host")),
            "ipc_mode": str(section.get("ipc_mode", "host")),
            "privileged": section.get("privileged", False),
            "gpus": section.get("gpus", True),
            "oom_score_adj": section.get("oom_score_adj", 0),
            "labels": {f"{LABEL}.cell": self._cell, f"{LABEL}.rank": str(rank)},
        }

    def _mounts(self, variables: Mapping[str, Any], *, patched: bool) -> list[dict[str, Any]]:
        options, section = self._options, self._container
        state = f"{options.get('state_dir', STATE)}/{self._cell}"
        places = [
            (options.get("checkpoint_dir"), section.get("model_path"), True),
            # Opened for direct reads only; the packing is done on the host.
            (options.get("engram_dir"), section.get("engram_path"), True),
            (f"{state}/state", section.get("state_path"), False),
            (f"{state}/cache", section.get("cache_path"), False),
        ]
        if patched:
            places.append((NCCL_FILE, self._profile.section("nccl").get("container_path"), True))
        mounts = [
            {"source": str(source), "target": str(target), "read_only": read_only}
            for source, target, read_only in places
            if source and target
        ]
        for number, mount in enumerate(section.get("mounts", ())):
            where = f"container.mounts[{number}]"
            mounts.append(
                {
                    "source": self._fill(f"{where}.source", mount.get("source", ""), variables),
                    "target": self._fill(f"{where}.target", mount.get("target", ""), variables),
                    "read_only": bool(mount.get("read_only", True)),
                }
            )
        return mounts


def _words(arguments: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in arguments.items():
        words.append(name)
        if isinstance(value, list):
            words += [str(item) for item in value]
        elif value is not True:
            words.append(value)
    return words


def _hashes(plan: Mapping[str, Any]) -> dict[str, Any]:
    """One hash over all that is equal on every rank, and one for each rank over its own launch."""
    specs: dict[str, Any] = {name: host["container"] for name, host in plan["hosts"].items()}
    first = next(iter(specs.values()))
    envs: Sequence[Mapping[str, str]] = [spec["env"] for spec in specs.values()]
    common = {
        name: value
        for name, value in first["env"].items()
        if all(env.get(name) == value for env in envs)
    }
    commands = [spec["command"] for spec in specs.values()]
    same = [
        word if all(len(c) > at and c[at] == word for c in commands) else ""
        for at, word in enumerate(first["command"])
    ]
    cell = _digest(
        {
            **{k: v for k, v in first.items() if k not in ("name", "labels", "env", "command")},
            "env": common,
            "command": same,
            "model": plan["model"],
            "nccl": plan["nccl"],
            "hosts": list(specs),
        }
    )
    return {
        "cell": cell,
        "hosts": {name: _digest([cell, spec]) for name, spec in specs.items()},
    }


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
