# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The proof of links on real wires: who is behind each port, and do full frames get through?"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_plan import fabric_plan

from lab.cabling import cables
from lab.spec import PORTS
from tests.support.labs import LabUnderTest
from tests.support.playbook import run_playbook

pytestmark = pytest.mark.containers

PLAYBOOK = Path(__file__).with_name("link_proof.yml")
HOSTS = ("spark1", "spark2", "spark3", "spark4")
NO_ARP_FLUX = "sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
NETDEVS = " ".join(port.netdev for port in PORTS)


@pytest.fixture(scope="module")
def bare(make_lab: Callable[..., LabUnderTest]) -> LabUnderTest:
    return make_lab("proof", "containers", "--bare")


@pytest.fixture
def ring(bare: LabUnderTest) -> Iterator[LabUnderTest]:
    """The lab with raised ports and the addresses of the plan; whatever a test does is undone."""
    for host, planned in fabric_plan(list(HOSTS), "ring")["hosts"].items():
        lines = [NO_ARP_FLUX, "ip neigh flush all"]
        for port in planned["ports"]:
            lines.append(f"ip link set {port['netdev']} up mtu 9000")
            lines.append(f"ip addr replace {port['address']}/24 dev {port['netdev']}")
        bare.root(host, "\n".join(lines))
    yield bare
    bare.cli("recable", "ring")
    bare.everywhere(f"for dev in {NETDEVS}; do ip addr flush $dev; ip link set $dev down; done")


def prove(lab: LabUnderTest, tmp_path: Path, *args: str, **variables: Any) -> dict[str, Any]:
    """Run the playbook, with fewer forks than hosts, and return its report."""
    report = tmp_path / "report.json"
    # Labs have hosts of equal names, and connections that are kept open are found by the name.
    with tempfile.TemporaryDirectory(prefix="cp-") as sockets:
        run_playbook(
            PLAYBOOK,
            lab.inventory,
            *args,
            "-e",
            json.dumps({"report": str(report), **variables}),
            env={"ANSIBLE_FORKS": "2", "ANSIBLE_SSH_CONTROL_PATH_DIR": sockets},
        ).assert_ok()
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def plugged(cabling: str) -> list[list[str]]:
    return [
        sorted(f"spark{end.host + 1}:{end.cage}" for end in cable.ends)
        for cable in cables(cabling, 4)
    ]


def found_cables(report: dict[str, Any]) -> list[list[str]]:
    return [cable["ends"] for cable in report["cables"]["cables"]]


def codes(report: dict[str, Any], part: str) -> set[str]:
    return {problem["code"] for problem in report[part]["problems"]}


def states(lab: LabUnderTest) -> dict[str, str]:
    return lab.everywhere(f"for dev in {NETDEVS}; do cat /sys/class/net/$dev/flags; done")


def test_ports_that_are_down_are_raised_and_lowered_again(
    bare: LabUnderTest, tmp_path: Path
) -> None:
    before = states(bare)
    report = prove(bare, tmp_path, raise_ports=True)
    assert sorted(found_cables(report)) == sorted(plugged("ring"))
    assert report["cables"]["problems"] == []
    assert {port["state"] for port in report["heard"]["spark1"]["ports"]} == {"up"}
    assert states(bare) == before


def test_ports_that_are_down_are_left_alone(bare: LabUnderTest, tmp_path: Path) -> None:
    report = prove(bare, tmp_path)
    assert report["cables"]["cables"] == []
    assert codes(report, "cables") == {"port-down"}
    assert len(report["cables"]["problems"]) == 16


@pytest.mark.parametrize("cabling", ["swapped-cage", "switch", "double-link"])
def test_every_cabling_is_found_as_it_is_plugged(
    ring: LabUnderTest, tmp_path: Path, cabling: str
) -> None:
    ring.cli("recable", cabling)
    report = prove(ring, tmp_path)
    assert sorted(found_cables(report)) == sorted(plugged(cabling))
    wanted = {
        "switch": {"switch", "no-carrier"},
        "double-link": {"no-carrier"},
    }
    assert codes(report, "cables") == wanted.get(cabling, set())


def test_a_ring_is_proven_as_far_as_containers_go(ring: LabUnderTest, tmp_path: Path) -> None:
    """There is no RDMA in containers, so no link is ever said to be right."""
    report = prove(ring, tmp_path, pings=True, measure=True)
    assert report["cables"]["problems"] == []
    verdict = report["verdict"]
    assert [twin["ping"] for link in verdict["links"] for twin in link["twins"]] == [
        {"there": True, "back": True}
    ] * 8
    assert (verdict["ok"], verdict["passed"], verdict["failed"]) == (False, [], [])
    assert verdict["not_measured"] == [0, 1, 2, 3]
    assert codes(report, "verdict") == {"not-measured"}


def test_what_is_wrong_with_a_path_is_named(ring: LabUnderTest, tmp_path: Path) -> None:
    """A narrow wire, a port with a low MTU, twins that answer for each other, a lost address."""
    ring.cli("mtu", "spark2", "enp1s0f1np1", "2000")
    ring.root("spark3", "ip link set enP2p1s0f0np0 mtu 1500")
    ring.root("spark4", NO_ARP_FLUX.replace("ignore=1", "ignore=0"))
    ring.root("spark1", "ip addr flush enP2p1s0f1np1")
    report = prove(ring, tmp_path, pings=True)
    found = {
        (check["source"], check["destination"]): (check["code"], check["found_mtu"])
        for pinged in report["pinged"].values()
        for check in pinged["checks"]
        if not check["ok"]
    }
    assert found == {
        # veth and bridge take 4 bytes more than their MTU
        ("10.20.0.11", "10.20.0.12"): ("narrow-path", 2004),
        ("10.20.0.12", "10.20.0.11"): ("narrow-path", 2004),
        ("10.20.5.13", "10.20.5.14"): ("local-mtu", 1500),
        ("10.20.5.14", "10.20.5.13"): ("narrow-path", 1504),
        ("10.20.4.13", "10.20.4.14"): ("arp-flux", 9000),
        ("10.20.6.11", "10.20.6.14"): ("arp-flux", 9000),
        ("10.20.7.14", "10.20.7.11"): ("no-arp", None),
        ("10.20.7.11", "10.20.7.14"): ("no-address", None),
    }
    assert report["verdict"]["failed"] == [0, 2, 3]


def test_a_cable_that_is_pulled_is_named(ring: LabUnderTest, tmp_path: Path) -> None:
    ring.cli("cable", "unplug", "spark1:0")
    report = prove(ring, tmp_path)
    assert sorted(found_cables(report)) == sorted(plugged("ring"))[1:]
    assert [(p["code"], p["host"], p["cage"]) for p in report["cables"]["problems"]] == [
        ("no-carrier", "spark1", 0),
        ("no-carrier", "spark2", 1),
    ]
