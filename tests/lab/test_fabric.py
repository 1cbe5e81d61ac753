# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The fabric playbook on container labs: every topology converges, every miswiring is named."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from tests.support.labs import ROOT, LabUnderTest
from tests.support.playbook import (
    Run,
    assert_check_changes_nothing,
    assert_idempotent,
    run_playbook,
)

pytestmark = pytest.mark.containers

FABRIC = ROOT / "playbooks/fabric.yml"
# All that the role may touch on a node: files, addresses, routes, kernel settings, firewall.
STATE = """
sha256sum /etc/netplan/* /etc/sysctl.d/*; ls -A /etc/systemd/system /etc/NetworkManager/conf.d
ip -4 -o addr show | awk '{print $2, $4}'; ip -br link | awk '{print $1, $2}' | sed 's/@.*np/np/'
ip route; sysctl -a 2>/dev/null | grep -E 'ipv4.*(arp_ignore|arp_announce|rp_filter|ip_forward) '
iptables-save | grep -E '^-[AN]|^:.* DROP'
cat /sys/class/net/e*/mtu
"""


def fabric(lab: LabUnderTest, *args: str) -> Run:
    return run_playbook(FABRIC, lab.inventory, *args)


def fabric_addresses(lab: LabUnderTest) -> dict[str, list[str]]:
    listing = lab.everywhere("ip -4 -o addr show | awk '/np[01]/ {print $4}' | cut -d/ -f1")
    return {host: text.split() for host, text in listing.items()}


@pytest.mark.parametrize(
    ("topology", "hosts", "ports", "and_back"),
    [
        ("ring", 4, 4, True),
        ("triangle", 3, 4, False),
        ("pair", 2, 2, True),
        ("switch", 4, 2, False),
        ("ring", 6, 4, False),
    ],
)
def test_a_topology_converges_and_stays(
    make_lab: Callable[..., LabUnderTest], topology: str, hosts: int, ports: int, and_back: bool
) -> None:
    lab = make_lab(
        f"{topology}{hosts}", "containers", "--bare", "--cabling", topology, "--hosts", str(hosts)
    )
    wish = ("-e", f"spark_topology={topology}")
    assert_check_changes_nothing(
        FABRIC, lab.inventory, *wish, witness=lambda: lab.everywhere(STATE)
    )
    fresh = lab.everywhere(STATE)
    assert_idempotent(FABRIC, lab.inventory, *wish)
    addresses = fabric_addresses(lab)
    assert {len(found) for found in addresses.values()} == {ports}
    everybody = [address for found in addresses.values() for address in found]
    assert len(set(everybody)) == hosts * ports
    # whoever it is cabled to, and through others: every address answers everywhere, unfragmented
    script = "; ".join(f"ping -qc1 -W3 -M do -s 8972 {a} >/dev/null || echo {a}" for a in everybody)
    assert set(lab.everywhere(script).values()) == {""}
    if and_back:
        fabric(lab, *wish, "-e", "roce_fabric_state=absent").assert_ok()
        assert lab.everywhere(STATE) == fresh
        fabric(lab, *wish, "-e", "roce_fabric_state=absent").assert_ok().assert_unchanged()
    lab.cli("down")


@pytest.fixture(scope="module")
def bare(make_lab: Callable[..., LabUnderTest]) -> LabUnderTest:
    return make_lab("miswired", "containers", "--bare")


@pytest.mark.parametrize(
    ("cabling", "told"),
    [
        (
            "swapped-cage",
            [
                "cage 0 of spark1 is wired to spark2 cage 0, expected spark2 cage 1",
                "cage 1 of spark2 is wired to spark3 cage 1, expected spark1 cage 0",
                "To wire spark2 as planned, exchange its two plugs.",
            ],
        ),
        (
            "two-pairs",
            [
                "cage 0 of spark2 is wired to spark1 cage 1, expected spark3 cage 1",
                "cage 0 of spark4 is wired to spark3 cage 1, expected spark1 cage 1",
            ],
        ),
        ("line", ["there is no cable between spark4 cage 0 and spark1 cage 1"]),
        (
            "double-link",
            ["cage 0 of spark2 is wired to spark1 cage 1, expected spark3 cage 1"],
        ),
        ("switch", ["there is a switch between them", "set the topology to switch"]),
    ],
)
def test_a_miswiring_is_named_before_anything_is_written(
    bare: LabUnderTest, cabling: str, told: list[str]
) -> None:
    bare.cli("recable", cabling)
    before = bare.everywhere(STATE)
    run = fabric(bare)
    assert run.returncode != 0
    for sentence in told:
        assert sentence in run.output, run.output
    assert "Traceback" not in run.output
    assert bare.everywhere(STATE) == before


@pytest.fixture(scope="module")
def proven(make_lab: Callable[..., LabUnderTest]) -> LabUnderTest:
    lab = make_lab("proven", "containers", "--bare", "--cabling", "pair")
    fabric(lab, "-e", "spark_topology=pair").assert_ok()
    return lab


def checked(lab: LabUnderTest) -> Run:
    return fabric(lab, "-e", "spark_topology=pair", "-e", "roce_fabric_state=checked")


def test_a_narrow_wire_is_named_by_port_and_size(proven: LabUnderTest) -> None:
    proven.cli("mtu", "spark1", "enP2p1s0f0np0", "1500")
    try:
        run = checked(proven)
    finally:
        proven.cli("mtu", "spark1", "enP2p1s0f0np0", "9216")
    assert run.returncode != 0
    # the kernel of the wire lets a VLAN tag more pass
    assert "look for an MTU of 1504, or 4 less, at the port of 10.20.1.11" in run.output
    checked(proven).assert_ok().assert_unchanged()


def test_gids_are_found_wherever_they_moved(proven: LabUnderTest) -> None:
    proven.cli("gid-shift", "spark2", "rocep1s0f0")
    checked(proven).assert_ok()


def test_an_address_changed_by_hand_is_put_right(proven: LabUnderTest) -> None:
    wanted = fabric_addresses(proven)
    proven.root("spark1", "ip addr flush dev enp1s0f0np0; ip addr add 10.66.0.1/24 dev enp1s0f0np0")
    assert checked(proven).returncode != 0
    foretold = fabric(proven, "-e", "spark_topology=pair", "--check", "--diff").assert_ok()
    assert foretold.hosts["spark1"].changed and not foretold.hosts["spark2"].changed
    run = fabric(proven, "-e", "spark_topology=pair").assert_ok()
    assert run.hosts["spark1"].changed and not run.hosts["spark2"].changed
    assert fabric_addresses(proven) == wanted


def test_a_serving_rank_keeps_its_network(proven: LabUnderTest) -> None:
    proven.root("spark2", "systemd-run --quiet --unit=sparkfleet-rank@cell.service sleep infinity")
    try:
        fabric(proven, "-e", "spark_topology=pair").assert_ok().assert_unchanged()
        run = fabric(proven, "-e", "spark_topology=pair", "-e", "spark_fabric_pool=10.77.0.0/16")
        assert run.returncode != 0 and "sparkfleet-rank@cell.service" in run.output
        assert run.hosts["spark1"].changed == 0  # nor is a host changed that serves no rank
    finally:
        proven.root("spark2", "systemctl stop sparkfleet-rank@cell.service")


def test_the_report_is_data(proven: LabUnderTest, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("report") / "fabric"
    fabric(
        proven,
        *("-e", "spark_topology=pair", "-e", "roce_fabric_state=checked"),
        *("-e", f"roce_fabric_report_path={path}"),
    ).assert_ok()
    report = json.loads(path.with_suffix(".json").read_text())
    assert [cable["ends"] for cable in report["cables"]["cables"]] == [["spark1:0", "spark2:0"]]
    assert [link["verdict"] for link in report["verdict"]["links"]] == ["not measured"]
    assert path.with_suffix(".svg").read_text().startswith("<?xml")


def test_a_plan_that_cannot_be_is_refused_with_every_reason(bare: LabUnderTest) -> None:
    run = fabric(bare, "-e", "spark_topology=ring", "-e", "spark_fabric_pool=172.17.0.0/20")
    assert run.returncode != 0
    assert "Docker" in run.output and "172.17.0.0/20" in run.output
    assert "Traceback" not in run.output
