# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What is installed on a node for its rank: settings, programs and the unit, as texts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils import _rank
from ansible_collections.sparkfleet.cluster.plugins.module_utils._systemd_name import mount_unit

FORMAT = 1
PROGRAMS = "/usr/local/lib/sparkfleet"
UNIT_FOLDER = "/etc/systemd/system"
LOGS = "/var/log/sparkfleet"
_SPEC = "sparkfleet.cluster"  # who wrote a file, in its first line


def unit_name(cell: str) -> str:
    """Of the rank of a cell on this node. A name is a group's, so it needs no escaping."""
    return f"sparkfleet-rank@{cell}.service"


def rank_settings(
    serving: Mapping[str, Any],
    host: str,
    *,
    fabric: Mapping[str, Any],
    tables: Sequence[Mapping[str, int]],
    rendezvous_port: int,
    checkpoint_filesystem: str = "",
    accept_limits: bool = False,
    gid_wait: int = 180,
    stop_grace: int = 30,
    log_bytes: int = 64 << 20,
    log_keep: int = 5,
) -> dict[str, Any]:
    """The settings of one rank, from the plan alone.

    Args:
        serving: the result of ``serving_plan``.
        host: whose rank it is.
        fabric: the result of ``fabric_plan``, for who is at the other end of a cable.
        tables: the Engram tables of the model, as ``{layer, rows}``.
        rendezvous_port: where the ranks meet on the head.
        checkpoint_filesystem: the kind of file system the checkpoint has to be on where this host
            is not the head, as the beginning of its name; empty for any.
        accept_limits: whether an engine that may lock little memory is only noted.
        gid_wait: how long links may take to come up at a start, in seconds.
        stop_grace: how long the engine may take to end, in seconds.
        log_bytes: after how many bytes a file of the log is closed.
        log_keep: how many closed files are kept.
    """
    own = serving["hosts"][host]
    container = own["container"]
    packed = container["env"].get("DSV41_PACKED_DIR", "")
    gid = own.get("gid") or None
    if gid:
        gid = {**gid, "peers": _peers(fabric["hosts"][host]["ports"])}
    return {
        "format": FORMAT,
        "cell": serving["cell"],
        "rank": own["rank"],
        "ranks": len(serving["hosts"]),
        "head": own["head"],
        "container": container,
        "engine_port": serving["engine"]["port"],
        "rendezvous_port": rendezvous_port,
        "model_path": serving["model"]["path"],
        "checkpoint_filesystem": "" if own["head"] else checkpoint_filesystem,
        "engram": {"path": packed, "tables": list(tables)} if packed and tables else None,
        "gid": gid,
        "gid_wait": gid_wait,
        "gpu": "auto" if container["gpus"] else "none",
        "stop_grace": stop_grace,
        "accept_limits": accept_limits,
        "log": {
            "path": f"{LOGS}/{serving['cell']}-rank.log",
            "bytes": log_bytes,
            "keep": log_keep,
        },
    }


def _peers(ports: list[Mapping[str, Any]]) -> dict[str, str]:
    """By HCA, the host and cage at the other end."""
    return {
        port["hca"]: f"{port['peer']['host']} cage {port['peer']['cage']}"
        for port in ports
        if port.get("peer")
    }


def unit_text(settings: Mapping[str, Any]) -> str:
    """The unit of a rank. Whatever it says that may change is in the settings."""
    cell = settings["cell"]
    program = f"/usr/bin/python3 -I {PROGRAMS}/rank.py"
    mounts = {mount["source"]: mount["target"] for mount in settings["container"]["mounts"]}
    # A mount over the network may come later than this unit, and a unit that required it would have
    # failed for good by then: the program waits for it. It is unmounted after the rank anyway.
    later = [
        source
        for source, target in sorted(mounts.items())
        if settings["checkpoint_filesystem"] and target == settings["model_path"]
    ]
    paths = " ".join(_quoted(path) for path in sorted(mounts) if path not in later)
    after = " ".join(["docker.service", "network-online.target", *map(mount_unit, later)])
    start = 2 * settings["gid_wait"] + 180
    stop = settings["stop_grace"] + 60
    return f"""\
# Written by {_SPEC}; a change is overwritten by the next run.
[Unit]
Description=Rank {settings["rank"]} of {settings["ranks"]} of the cell {cell}
Wants=docker.service network-online.target
After={after}
RequiresMountsFor={paths}
# It is never started again by itself, so there is no rate of starts to limit.
StartLimitIntervalSec=0

[Service]
Type=notify
ExecStart={program} run {cell}
ExecStopPost={program} clean {cell}
# The program stops the container; the clients of Docker below it end with that.
KillMode=mixed
Restart=no
TimeoutStartSec={start}
TimeoutStopSec={stop}
# The engine of a rank goes first where memory ends, never what watches it.
OOMScoreAdjust=-800
LogRateLimitIntervalSec=0

[Install]
WantedBy=multi-user.target
"""


def _quoted(path: str) -> str:
    """A path in a unit file, where % begins a specifier and white space a new word."""
    return re.sub(r"([\\\" \t])", r"\\\1", path.replace("%", "%%"))


def files(settings: Mapping[str, Any], programs: Mapping[str, str]) -> dict[str, tuple[int, str]]:
    """Every file of a rank: its path to mode and text.

    Args:
        settings: of the rank, with the way to ask for a GPU decided.
        programs: by name, the texts of the programs.
    """
    cell = settings["cell"]
    found = {f"{PROGRAMS}/{name}": (0o755, text) for name, text in programs.items()}
    # Not for everybody: an environment can hold what is nobody's business.
    text = json.dumps(settings, indent=1, sort_keys=True) + "\n"
    found[_rank.SETTINGS.format(cell=cell)] = (0o600, text)
    found[f"{UNIT_FOLDER}/{unit_name(cell)}"] = (0o644, unit_text(settings))
    return found
