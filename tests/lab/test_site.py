# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The whole job with the inventories that people copy: from bare nodes to answers, and once more.

Engine, GPU and NCCL are stand-ins; weights lie on every node, since containers have no kernel NFS.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.labs import ROOT, LabUnderTest
from tests.support.playbook import (
    assert_check_changes_nothing,
    run_playbook,
)
from tests.support.secrets import PLACES

pytestmark = pytest.mark.containers

SITE = ROOT / "site.yml"
# What can be proven of an engine that computes no model.
PROVEN = {"serves", "streaming", "concurrency", "auth", "closed"}
# All that a whole run may touch on a node.
STATE = """
find /etc /usr/local /opt /data /var/lib/sparkfleet /srv -xdev -type f ! -path '*/__pycache__/*' \
    -printf '%p %s %T@ %m\n' 2>/dev/null | sort
docker images --no-trunc --quiet; docker ps --all --quiet
ip -4 -o addr show | awk '{print $2, $4}'; ip route; systemctl list-unit-files --no-legend
"""


@pytest.mark.parametrize(
    ("inventory", "cabling", "hosts"),
    [("sparks", "ring", 4), ("switch", "switch", 4), ("triangle", "triangle", 3)],
)
def test_an_inventory_becomes_an_endpoint_and_stays_one(
    make_lab: Callable[..., LabUnderTest],
    tmp_path: Path,
    inventory: str,
    cabling: str,
    hosts: int,
) -> None:
    options = ("--bare", "--cabling", cabling, "--hosts", str(hosts))
    lab = make_lab(f"site-{cabling}", "containers", *options)
    lab.cli("standin")
    shipped = ROOT / f"inventories/{inventory}.yml"
    reports = tmp_path / "reports"
    kept_at = json.dumps({"verify_report_path": str(reports / "verify")})
    wish = (*lab.instead_of_sparks(tmp_path), "-e", kept_at)

    assert_check_changes_nothing(SITE, shipped, *wish, witness=lambda: lab.everywhere(STATE))
    first = run_playbook(SITE, shipped, *wish, "-vvv", timeout=900).assert_ok()
    head = lab.lab.hosts[0]
    endpoint = f"http://{head.address}:8000/v1"
    assert "stand-in" in first.output.lower()
    again = run_playbook(SITE, shipped, *wish, "-vvv", timeout=900).assert_ok().assert_unchanged()
    told = json.loads((reports / "verify.json").read_text(encoding="utf-8"))
    came = {check["name"]: check["verdict"] for check in told["checks"]}
    # the rest needs a model that understands, which a stand-in never claims to be
    passed = {name for name, verdict in came.items() if verdict == "passed"}
    assert passed == PROVEN and "failed" not in came.values(), came

    key = lab.root(head.name, "cat /etc/sparkfleet/keys").splitlines()[0].split(":", 1)[1]
    request = urllib.request.Request(
        f"{endpoint}/chat/completions",
        json.dumps({"messages": [{"role": "user", "content": "What is 17 x 23?"}]}).encode(),
        {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        body = answer.read().decode()
    assert json.loads(body)["choices"][0]["message"]["content"] == "391"

    places = lab.everywhere(PLACES)
    assert "sparkfleet-rank@sparks" in places[head.name]  # the search finds things
    kept = [path.read_text(encoding="utf-8") for path in reports.iterdir() if path.is_file()]
    for text in (first.output, again.output, body, *places.values(), *kept):
        assert key not in text
    lab.cli("down")
