# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""fabric_network on nodes with a real systemd, netplan, networkd, NetworkManager and Docker."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.spec import PORTS
from tests.support.labs import LabUnderTest
from tests.support.playbook import Run, ansible_env, run_playbook

pytestmark = pytest.mark.containers

FILE = "/etc/netplan/99-sparkfleet-fabric.yaml"
FOLDER = "/var/lib/sparkfleet/fabric"
SETTINGS: dict[str, Any] = {
    "management_interface": "enP7s7",
    "ports": "{{ ports }}",
    "routes": [{"to": "10.100.4.0/22", "via": "10.100.0.{{ 12 if me == 1 else 11 }}"}],
}
# Everything of a node that a change could leave behind; GIDs and counters aside.
WITNESS = """
ip -o link show | sed 's/qdisc.*//' | cut -d: -f2-
ip -o -4 addr show | cut -d: -f2-; ip -4 route show
find /etc /usr/local/lib -newer /etc/hostname -type f ! -path '*/docker/*' -exec md5sum {} + | sort
grep -r . /proc/sys/net/ipv4/conf/en*/arp_* /proc/sys/net/ipv4/conf/en*/rp_filter
systemctl list-timers --all 'sparkfleet*' --no-legend; ls -A /run | grep -i sparkfleet
systemctl show -p ActiveEnterTimestampMonotonic systemd-networkd
"""
LIVE = """
for port in enp1s0f0np0 enP2p1s0f0np0; do
    addresses=$(ip -o -4 addr show dev $port | tr -s ' ' | cut -d' ' -f4)
    echo $port $(cat /sys/class/net/$port/mtu) $addresses
done"""


@pytest.fixture(scope="module")
def pair(make_lab: Callable[..., LabUnderTest]) -> LabUnderTest:
    return make_lab("network", "containers", "--hosts", "2", "--cabling", "pair", "--bare")


@pytest.fixture(autouse=True)
def clean(pair: LabUnderTest) -> Iterator[None]:
    """Every test starts on nodes that the module has left again."""
    yield
    play(pair, "absent", "confirmed").assert_ok()
    leftover = f"ls {FOLDER} {FILE} 2>/dev/null; iptables -S | grep -c SPARKFLEET; true"
    assert set(pair.everywhere(leftover).values()) == {"0"}


def playbook(*states: str, **parameters: Any) -> str:
    """Both hosts of the pair, a task for each state; `ports` is what fabric_plan would say."""
    ports = [
        {
            "netdev": port.netdev,
            "hca": port.hca,
            "cage": 0,
            "address": f"10.100.{number}.{{{{ 10 + me }}}}",
            "prefix": 24,
        }
        for number, port in enumerate(PORTS[:2])
    ]
    tasks = [
        {
            "name": f"Have it {state}",
            "sparkfleet.cluster.fabric_network": {**SETTINGS, "state": state, **parameters},
            "become": True,
            "vars": {"ports": ports, "me": "{{ inventory_hostname[-1] | int }}"},
        }
        for state in states or ["present"]
    ]
    return json.dumps([{"name": "Play", "hosts": "all", "gather_facts": False, "tasks": tasks}])


def play(lab: LabUnderTest, *states: str, args: Sequence[str] = (), **parameters: Any) -> Run:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "play.yml")
        path.write_text(playbook(*states, **parameters))
        return run_playbook(path, lab.inventory, *args)


def only(run: Run) -> str:
    """The one message with which all hosts failed."""
    assert run.returncode == 2, run.output
    (message,) = {note.message for note in run.failed}
    return message


def configured(lab: LabUnderTest) -> None:
    play(lab, "present", "confirmed").assert_ok()


def live(lab: LabUnderTest, host: str = "spark1") -> str:
    return lab.root(host, LIVE)


CONFIGURED = "enp1s0f0np0 9000 10.100.0.11/24\nenP2p1s0f0np0 9000 10.100.1.11/24"
BARE = "enp1s0f0np0 1500\nenP2p1s0f0np0 1500"


def eventually(condition: Callable[[], bool], seconds: float = 30) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.5)


def test_check_mode_then_apply_then_nothing_to_do_then_absent(pair: LabUnderTest) -> None:
    before = pair.everywhere(WITNESS)
    run = play(pair, args=["--check", "--diff"]).assert_ok()
    assert len(run.changed) == 2 and '+      - "10.100.0.11/24"' in run.output
    assert pair.everywhere(WITNESS) == before
    play(pair).assert_ok()
    assert live(pair) == CONFIGURED
    for address in ("10.100.0.12", "10.100.1.12"):
        assert pair.reaches("spark1", address, 8972)
    route = "10.100.4.0/22 via 10.100.0.12 dev enp1s0f0np0"
    assert route in pair.root("spark1", "ip route")
    mode = pair.root("spark1", f"stat -c %a {FILE}")
    assert mode == "600"
    play(pair, "confirmed").assert_ok()
    converged = pair.everywhere(WITNESS)
    play(pair, "present", "confirmed").assert_ok().assert_unchanged()
    assert pair.everywhere(WITNESS) == converged
    play(pair, "absent", "confirmed").assert_ok()
    assert live(pair) == BARE
    for host, after in pair.everywhere(WITNESS).items():
        assert after.splitlines() == before[host].splitlines()
    play(pair, "absent").assert_ok().assert_unchanged()


def test_what_was_set_by_hand_comes_back_with_absent(pair: LabUnderTest) -> None:
    by_hand = "ip link set enp1s0f0np0 up; ip addr add 10.9.9.9/24 dev enp1s0f0np0"
    before = pair.everywhere(f"{by_hand}; ip route add 10.55.0.0/16 via 10.9.9.1; {LIVE}; ip route")
    configured(pair)
    assert live(pair) == CONFIGURED
    play(pair, "absent", "confirmed").assert_ok()
    assert pair.everywhere(f"{LIVE}; ip route") == before
    pair.everywhere("ip addr flush dev enp1s0f0np0; ip link set enp1s0f0np0 down")


def test_changes_by_hand_are_put_right(pair: LabUnderTest) -> None:
    configured(pair)
    pair.root(
        "spark1",
        "ip link set enp1s0f0np0 mtu 1500; ip addr add 10.9.9.9/24 dev enP2p1s0f0np0; "
        "ip route del 10.100.4.0/22; sysctl -qw net.ipv4.conf.enp1s0f0np0.arp_ignore=0",
    )
    told = play(pair, args=["--check", "--diff"]).assert_ok()
    assert "-enP2p1s0f0np0: up, MTU 9000, 10.100.1.11/24, 10.9.9.9/24" in told.output
    run = play(pair).assert_ok()
    assert [note.host for note in run.changed] == ["spark1"]
    assert live(pair) == CONFIGURED
    assert "10.100.4.0/22" in pair.root("spark1", "ip route")
    play(pair).assert_ok().assert_unchanged()


def test_a_changed_plan_leaves_nothing_of_the_old_one(pair: LabUnderTest) -> None:
    configured(pair)
    ports = [{"netdev": PORTS[0].netdev, "address": "10.100.8.{{ 10 + me }}", "prefix": 25}]
    play(pair, ports=ports, routes=[], mtu=4200).assert_ok()
    assert live(pair) == "enp1s0f0np0 4200 10.100.8.11/25\nenP2p1s0f0np0 1500"
    assert "10.100.4.0" not in pair.root("spark1", "ip route")
    play(pair, ports=ports, routes=[], mtu=4200).assert_ok().assert_unchanged()


def test_files_of_others_are_refused_and_a_bad_file_never_lands(pair: LabUnderTest) -> None:
    theirs = "/etc/netplan/50-theirs.yaml"
    write = f"umask 077; cat > {theirs} <<'END'\nnetwork: {{version: 2, %s}}\nEND\n"
    before = pair.everywhere(WITNESS)
    try:
        pair.everywhere(write % "ethernets: {enp1s0f0np0: {addresses: [10.9.9.9/24]}}")
        message = only(play(pair))
        assert f"enp1s0f0np0 is already claimed by {theirs}: it sets addresses" in message
        pair.everywhere(write % "bonds: {b: {interfaces: [secret]}}")
        message = only(play(pair))
        assert message.startswith(f"netplan would refuse it: {theirs}:1:")
    finally:
        pair.everywhere(f"rm {theirs}")
    assert pair.everywhere(WITNESS) == before


def test_a_serving_rank_is_not_disturbed(pair: LabUnderTest) -> None:
    pair.everywhere("systemd-run -q --unit=sparkfleet-rank@x.service sleep 600")
    try:
        assert "sparkfleet-rank@x.service serves" in only(play(pair))
        assert live(pair) == BARE
    finally:
        pair.everywhere("systemctl stop sparkfleet-rank@x.service")


def test_a_management_link_that_is_cut_during_the_change_takes_it_back(
    pair: LabUnderTest, tmp_path: Path
) -> None:
    configured(pair)
    path = tmp_path / "play.yml"
    ports = [{"netdev": PORTS[0].netdev, "address": "10.100.8.{{ 10 + me }}", "prefix": 25}]
    path.write_text(playbook(ports=ports, routes=[], rollback_after=12))
    command = [sys.executable, "-m", "ansible", "playbook", "-i", str(pair.inventory), str(path)]
    with subprocess.Popen(command, env=ansible_env(tmp_path), stdout=subprocess.DEVNULL) as ansible:
        armed = "systemctl is-active sparkfleet-fabric-rollback.timer || true"
        eventually(lambda: pair.root("spark2", armed) == "active")
        pair.cli("management", "spark2", "off")
        ansible.kill()
    time.sleep(14)
    pair.cli("management", "spark2", "on")
    eventually(lambda: "10.100.0.12/24" in live(pair, "spark2"))
    assert live(pair, "spark2") == CONFIGURED.replace(".11/", ".12/")
    run = play(pair, "confirmed", args=["--limit", "spark2"])
    assert "because nobody confirmed it within 12 s" in only(run)
    kept = pair.root("spark2", f"cat {FOLDER}/99-sparkfleet-fabric.yaml.undone")
    assert "10.100.8.12/25" in kept
    assert not play(pair, "present", "confirmed").assert_ok().changed  # what is wanted is there


def test_a_change_that_does_not_work_is_undone_before_the_task_ends(pair: LabUnderTest) -> None:
    before = pair.everywhere(WITNESS)
    # networkd takes the first file that matches a port, and this one sorts before ours
    other = "/etc/systemd/network/05-other.network"
    pair.everywhere(f"printf '[Match]\\nName=enp1s0f0np0\\n' > {other}")
    try:
        message = only(play(pair, args=["--limit", "spark1"], timeout=4))
        assert "because after 4 s, enp1s0f0np0 is up, MTU 1500, no address, expected" in message
        assert live(pair) == BARE
    finally:
        pair.everywhere(f"rm {other}; networkctl reload")
    play(pair, "present", "confirmed", "absent", "confirmed").assert_ok()
    assert pair.everywhere(WITNESS) == before


def test_ports_without_a_cable_are_configured_and_stay_so(pair: LabUnderTest) -> None:
    pair.cli("cable", "unplug", "spark1:0")
    try:
        configured(pair)
        assert live(pair) == CONFIGURED
    finally:
        pair.cli("cable", "plug", "spark1:0")
    assert pair.reaches_soon("spark1", "10.100.0.12")
    pair.cli("cable", "unplug", "spark1:0")
    time.sleep(6)
    try:
        assert live(pair) == CONFIGURED
        play(pair).assert_ok().assert_unchanged()
    finally:
        pair.cli("cable", "plug", "spark1:0")


def test_networkmanager(pair: LabUnderTest) -> None:
    pair.everywhere("systemctl start NetworkManager")
    try:
        play(pair, "present", "confirmed", renderer="NetworkManager").assert_ok()
        assert live(pair) == CONFIGURED
        profile = "nmcli -g GENERAL.CONNECTION device show enp1s0f0np0"
        assert pair.root("spark1", profile) == "netplan-enp1s0f0np0"
        assert "dev enp1s0f0np0 proto static metric" in pair.root("spark1", "ip route")
        play(pair, renderer="NetworkManager").assert_ok().assert_unchanged()
        pair.cli("cable", "unplug", "spark1:0")
        time.sleep(9)  # NetworkManager would take the addresses away after 6
        assert live(pair) == CONFIGURED
        pair.cli("cable", "plug", "spark1:0")
        ports = [{"netdev": PORTS[0].netdev, "address": "10.100.8.{{ 10 + me }}", "prefix": 25}]
        play(pair, renderer="NetworkManager", ports=ports, routes=[], rollback_after=8).assert_ok()
        assert "10.100.8.11/25" in live(pair) and "10.100.1.11" not in live(pair)
        time.sleep(8)
        eventually(lambda: live(pair) == CONFIGURED)
        play(pair, renderer="NetworkManager").assert_ok().assert_unchanged()
        play(pair, "absent", "confirmed").assert_ok()
        eventually(lambda: live(pair) == BARE)
        profiles = pair.root("spark1", "nmcli -g NAME connection show")
        assert "netplan-enp1s0f0np0" not in profiles
    finally:
        pair.everywhere(
            "systemctl stop NetworkManager; rm -f /run/NetworkManager/system-connections/*; "
            "for port in enp1s0f0np0 enP2p1s0f0np0; do "
            "ip addr flush dev $port; ip link set $port down mtu 1500; done"
        )


def test_forwarding_outlives_docker(pair: LabUnderTest) -> None:
    rules = "-e '-A DOCKER-USER -j SPARKFLEET-FABRIC' -e 'enp1s0f0np0 -o enP2'"
    hooked = f"iptables -S | grep -c {rules} || true"
    script = "/usr/local/lib/sparkfleet/fabric-forward"
    pair.everywhere("systemctl reset-failed docker; systemctl start docker")
    play(pair, "present", "confirmed", forward=True).assert_ok()
    assert set(pair.everywhere(hooked).values()) == {"2"}
    play(pair, forward=True).assert_ok().assert_unchanged()
    pair.root("spark1", f"sh -n {script}; iptables -F DOCKER-USER; systemctl restart docker")
    eventually(lambda: pair.root("spark1", hooked) == "2")
    pair.root("spark1", "iptables -F SPARKFLEET-FABRIC")
    run = play(pair, forward=True).assert_ok()
    assert [note.host for note in run.changed] == ["spark1"]
    assert pair.root("spark1", hooked) == "2"
    crash = "iptables -F DOCKER-USER; kill -9 $(systemctl show -p MainPID --value docker)"
    pair.root("spark1", crash)
    eventually(lambda: pair.root("spark1", hooked) == "2")


def test_forwarding_without_docker(pair: LabUnderTest) -> None:
    stop = "systemctl stop docker.socket docker; iptables -P FORWARD DROP; iptables -F; iptables -X"
    pair.everywhere(stop)
    play(pair, forward=True).assert_ok()
    rules = "iptables -S FORWARD | grep -c SPARKFLEET-FABRIC || true"
    assert pair.root("spark1", rules) == "1"
    play(pair, forward=True).assert_ok().assert_unchanged()
    pair.everywhere("systemctl reset-failed docker; systemctl start docker")
    hooked = "iptables -S DOCKER-USER | grep -c SPARKFLEET-FABRIC || true"
    eventually(lambda: pair.root("spark1", hooked) == "1")
    eventually(lambda: pair.root("spark1", rules) == "0")
