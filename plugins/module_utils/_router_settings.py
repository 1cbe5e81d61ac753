# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""A router for several cells: who is behind it, its settings and its systemd unit, as texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import fold_hosts

GROUP = "spark_routers"
UNIT_NAME = "sparkfleet-router.service"
UNIT = f"/etc/systemd/system/{UNIT_NAME}"
WANTED = f"/etc/systemd/system/multi-user.target.wants/{UNIT_NAME}"
PROGRAM = "/usr/local/lib/sparkfleet/router.py"
PROGRAMS = "/usr/local/lib/sparkfleet/router"  # a directory for each version, and a link
CURRENT = f"{PROGRAMS}/current"
POLICIES = ("round_robin", "random", "power_of_two", "cache_aware")
FORMAT = 1
_FOREVER = 10**9  # seconds
_DEFAULT_API_PORT = 8000


def router_plan(
    cells: Sequence[str],
    groups: Mapping[str, Sequence[str]],
    hosts: Mapping[str, Mapping[str, Any]],
    first_port: int,
) -> dict[str, Any]:
    """The cells behind the router, from the inventory alone.

    Args:
        cells: names of their groups.
        groups: of the inventory.
        hosts: by host, its variables of the inventory; those of heads are read.
        first_port: the loopback port of the first cell; the others follow.

    Returns:
        `cells`: for each its `name`, `port` and the `url` of its entry. `heads`: by name, the head
        whose file of keys has one; none for a cell that is open. `problems`: sentences; nothing may
        be done if there are any.
    """
    problems = []
    if not cells:
        problems.append(
            "router_cells names no cell; give the names of the inventory groups that are cells, "
            "for all hosts, such as router_cells: [cell_a, cell_b]"
        )
    routers = list(groups.get(GROUP, ()))
    if len(routers) != 1:
        found = fold_hosts(routers) if routers else "no host"
        problems.append(
            f"the group {GROUP} has {found}, expected one host, on which the router runs"
        )
    problems += [
        f"router_cells names {name} more than once"
        for name in sorted({name for name in cells if list(cells).count(name) > 1})
    ]
    found_cells: list[dict[str, Any]] = []
    names: dict[str, str] = {}  # by head
    closed: dict[str, str] = {}
    for number, name in enumerate(cells):
        members = list(groups.get(name, ()))
        if not members:
            problems.append(
                f"the inventory has no group {name} with hosts, which router_cells names"
            )
            continue
        head = members[0]
        values = hosts.get(head, {})
        if names.setdefault(head, name) != name:
            problems.append(
                f"{head} is the head of {names[head]} and of {name}; a node has one rank"
            )
        named = values.get("spark_group", name)
        if named != name:
            problems.append(
                f"{head}: spark_group is {named!r} and router_cells calls its cell {name!r}; "
                f"set spark_group: {name} for the group {name}"
            )
        tls = str(values.get("entry_tls", "off")).lower()
        if tls == "self-signed":
            problems.append(
                f"{head}: entry_tls is self-signed, which nobody can verify; expected off or given "
                "for a cell behind a router. Clients meet the entry of the router"
            )
        address = str(values.get("ansible_host", head))
        host = f"[{address}]" if ":" in address else address
        scheme = "https" if tls == "given" else "http"
        if str(values.get("entry_open", False)).lower() not in ("true", "yes", "on", "1"):
            closed[name] = head
        found_cells.append(
            {
                "name": name,
                "port": first_port + number,
                "url": f"{scheme}://{host}:{int(values.get('spark_api_port', _DEFAULT_API_PORT))}",
            }
        )
    return {"cells": found_cells, "heads": closed, "problems": problems}


def worker_url(port: int) -> str:
    """How the router knows a cell: by its port on loopback."""
    return f"http://127.0.0.1:{port}"


def arguments(params: Mapping[str, Any]) -> dict[str, Any]:
    """What SGLang's router is started with; what is not here has its default there.

    Measured with sglang-router 0.3.2:

    - Its circuit breaker counts an answer of 400 or 422 as a failure of the cell: ten bad requests
      of one client, and no cell gets requests any more. Without it an answer of 429 or 5xx is tried
      again on the next cell, and health is asked for anyway.
    - A cell that is not there when the router starts is tried again until the time for that is
      over, and then never again. It must not be over.
    """
    return {
        "host": "127.0.0.1",
        "port": params["port"],
        "worker_urls": [worker_url(port) for port in params["cells"].values()],
        "policy": params["policy"],
        "prometheus_host": params["metrics_address"],
        "prometheus_port": params["metrics_port"],
        "request_timeout_secs": params["request_timeout"],
        "max_payload_size": params["body_mib"] << 20,
        "shutdown_grace_period_secs": params["stop_grace"],
        "worker_startup_timeout_secs": _FOREVER,
        "worker_startup_check_interval": params["health_interval"],
        "health_check_interval_secs": params["health_interval"],
        "health_check_timeout_secs": params["health_timeout"],
        "health_failure_threshold": 2,
        "health_success_threshold": 1,
        "disable_circuit_breaker": not params["circuit_breaker"],
        "log_level": "warn",
    }


_RANGES = (
    ("port", 1, 65535),
    ("metrics_port", 1, 65535),
    ("request_timeout", 1, 86400),
    ("body_mib", 1, 65536),
    ("stop_grace", 1, 3600),
    ("health_interval", 1, 3600),
    ("health_timeout", 1, 3600),
)


def faults(params: Mapping[str, Any]) -> list[str]:
    """Everything that is wrong with the settings, as sentences."""
    said = [
        f"{name} is {params[name]}, expected {low} to {high}"
        for name, low, high in _RANGES
        if not low <= params[name] <= high
    ]
    ports = [params["port"], params["metrics_port"], *params["cells"].values()]
    if len(set(ports)) < len(ports):
        said.append(
            f"the ports of the router, its metrics and the cells are not different: {ports}"
        )
    if not params["cells"]:
        said.append("there is no cell behind the router")
    return said


def settings_text(params: Mapping[str, Any]) -> str:
    """The file of settings. It has no secret: the router knows no key."""
    document = {"format": FORMAT, "cells": params["cells"], "router": arguments(params)}
    return json.dumps(document, indent=1, sort_keys=True) + "\n"


def only_cells_differ(before: str, after: str) -> bool:
    """Whether a running router can be told the difference instead of being started anew."""
    try:
        documents = [json.loads(text) for text in (before, after)]
        return all(isinstance(one["router"].pop("worker_urls"), list) for one in documents) and (
            documents[0]["router"] == documents[1]["router"]
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def unit() -> str:
    """The unit. Whatever may change is in the settings, since a unit cannot while a rank serves."""
    return f"""\
# Written by the Ansible collection sparkfleet.cluster. Its next run undoes what is changed
# here: change the inventory instead.
[Unit]
Description=Router of the sparkfleet cells
Wants=network-online.target
After=network-online.target sparkfleet-router-entry.service
StartLimitIntervalSec=600
StartLimitBurst=20

[Service]
Type=exec
ExecStart={CURRENT}/bin/python -I {PROGRAM}
Restart=always
RestartSec=5
# The router itself ends sooner: it waits for the requests that run, for a time of the settings.
TimeoutStopSec=3660
KillMode=mixed
LimitNOFILE=65536
DynamicUser=yes
CapabilityBoundingSet=
AmbientCapabilities=
NoNewPrivileges=yes
PrivateDevices=yes
PrivateTmp=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHome=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectSystem=strict
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
InaccessiblePaths=-/etc/sparkfleet/keys -/etc/sparkfleet/router-entry

[Install]
WantedBy=multi-user.target
"""
