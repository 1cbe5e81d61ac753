# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a person wants to know of a lab: how it is, what was proven, what is not real in it."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from lab import ssh
from lab.backend import Backend
from lab.cabling import CABLINGS, End
from lab.network import Network
from lab.spec import PORTS, Lab
from lab.system import LabError, run


def status(lab: Lab, network: Network, backend: Backend) -> dict[str, Any]:
    """The lab as it is now; cables as they really are plugged, not as they were asked for."""
    plugged = network.members()
    hosts = {}
    for host in lab.hosts:
        running = backend.running(host)
        answers = running and not run(ssh.command(lab, host, ["true"]), check=False).returncode
        hosts[host.name] = {"address": host.address, "running": running, "ssh": answers}
    return {
        "name": lab.name,
        "backend": lab.backend,
        "cabling": lab.cabling,
        "about": CABLINGS[lab.cabling].about,
        "hosts": hosts,
        "cables": {
            cable.name: {
                "planned": [_end(lab, end) for end in cable.ends],
                "plugged": sorted(_port(lab, name) for name in plugged.get(cable.name, [])),
            }
            for cable in lab.cables
        },
        "stood_in": lab.stood_in,
        "ssh_config": str(lab.state / "ssh_config"),
        "inventory": str(lab.state / "inventory.yml"),
    }


def _end(lab: Lab, end: End) -> str:
    return f"{lab.hosts[end.host].name}:{end.cage}"


def _port(lab: Lab, name: str) -> str:
    tag, place = name.split("-")
    port = next(port for port in PORTS if port.tag == tag)
    return f"{lab.hosts[int(place)].name} {port.netdev}"


def status_text(found: dict[str, Any]) -> str:
    lines = [
        f"lab '{found['name']}': {found['backend']}, {found['cabling']} ({found['about']})",
        "",
    ]
    for name, host in found["hosts"].items():
        state = "up" if host["ssh"] else "running, no ssh" if host["running"] else "off"
        lines.append(f"  {name:<8} {host['address']:<12} {state}")
    lines.append("")
    for name, cable in found["cables"].items():
        planned = " = ".join(cable["planned"])
        wanted, there = 2 * len(cable["planned"]), len(cable["plugged"])
        mark = "" if there == wanted else f"   UNPLUGGED ({there} of {wanted} ports in it)"
        lines.append(f"  {name:<6} {planned}{mark}")
    lines += ["", *stood_in_text(found["stood_in"]), ""]
    lines += [
        f"  ssh -F {found['ssh_config']} spark1",
        f"  ansible-playbook -i {found['inventory']} ...",
    ]
    return "\n".join(lines)


def stood_in_text(stood_in: dict[str, str]) -> list[str]:
    """Every stand-in, one a paragraph."""
    width = max(map(len, stood_in), default=0) + 4
    lines = ["stood in for (not real here):"]
    for what, by in stood_in.items():
        lines += textwrap.wrap(
            by,
            100,
            initial_indent=f"  {what}:".ljust(width + 1),
            subsequent_indent=" " * (width + 1),
        )
    return lines


def summary_text(lab: Lab, report: Path | None) -> str:
    """The end of a demonstration: what the checks found, then what was not real."""
    lines = []
    if report is not None:
        try:
            result = json.loads(report.read_text())
        except (OSError, ValueError) as error:
            raise LabError(
                f"no readable report at {report}: {error}; run the playbook first"
            ) from error
        lines += _proven(result["rows"])
    lines += [
        *stood_in_text(lab.stood_in),
        "",
        f"look around:  python -m lab --name {lab.name} status | ssh spark1",
        f"remove it:    make lab-down  (python -m lab --name {lab.name} down)",
    ]
    return "\n".join(lines)


# From the best to the worst; a check is listed once, by what the worst host gave.
_HEADINGS = {
    "ok": "proven on every host",
    "note": "worth knowing",
    "skip": "skipped, as asked",
    "unknown": "could not be read",
    "warn": "to look at",
    "fail": "FAILED",
}


def _proven(rows: list[dict[str, Any]]) -> list[str]:
    rank = {status: place for place, status in enumerate(_HEADINGS)}
    worst: dict[str, str] = {}
    for row in rows:
        check, status = row["check"], row["status"]
        worst[check] = max(worst.get(check, "ok"), status, key=lambda name: rank[name])
    lines = []
    for status, heading in _HEADINGS.items():
        checks = ", ".join(check for check, found in worst.items() if found == status)
        if checks:
            lines += textwrap.wrap(f"{heading}: {checks}", 100, subsequent_indent="  ")
    return [*lines, ""]
