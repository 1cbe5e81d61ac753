# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The container lab does what it says: hosts, wires, miswirings, faults, and leaves nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.spec import PORTS
from tests.support.labs import ROOT, LabUnderTest
from tests.support.wiring import expected_to_hear, heard

pytestmark = pytest.mark.containers

NO_ARP_FLUX = "sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"


@pytest.fixture(scope="module")
def ring(make_lab: Callable[..., LabUnderTest]) -> LabUnderTest:
    return make_lab("ring", "containers")


@pytest.fixture
def recabled(ring: LabUnderTest) -> Iterator[LabUnderTest]:
    yield ring
    ring.cli("recable", "ring")


def slots(lab: LabUnderTest, host: str, hca: str) -> dict[int, tuple[str, str]]:
    """The slots of a GID table that are not empty, read as a tool on the node reads them."""
    script = f"""
cd /sys/class/infiniband/{hca}/ports/1
for i in $(seq 0 12); do
    type=$(cat gid_attrs/types/$i 2>/dev/null) && echo "$i|$(cat gids/$i)|$type"
done
true"""
    rows = [line.split("|") for line in lab.root(host, script).splitlines()]
    return {int(index): (gid, kind) for index, gid, kind in rows}


# --- hosts ---


def test_hosts_are_what_a_playbook_meets(ring: LabUnderTest) -> None:
    said = ring.everywhere(
        "systemctl is-system-running; hostname; stat -f -c %T /data; "
        "stat -c %d / /data | sort -u | wc -l; cat /etc/machine-id"
    )
    for name, text in said.items():
        state, hostname, filesystem, devices, machine_id = text.splitlines()
        assert (state, hostname, devices) == ("running", name, "2")
        assert filesystem in ("ext2/ext3", "tmpfs")
        assert machine_id == said["spark1"].splitlines()[-1]  # as on real Sparks: not an identity


def test_names_and_ports_are_those_of_a_spark(ring: LabUnderTest) -> None:
    names = ring.root("spark3", "ls /sys/class/net").split()
    assert sorted(names) == sorted(["lo", "enP7s7", *(port.netdev for port in PORTS)])
    fresh = "cat /sys/class/net/enP2p1s0f1np1/mtu; ip link set enP2p1s0f1np1 mtu 9000"
    assert ring.root("spark3", fresh) == "9000"  # addressed labs have it raised already


def test_operator_needs_a_password_for_sudo(ring: LabUnderTest) -> None:
    config = ring.lab.state / "ssh_config"
    tried = subprocess.run(
        ["ssh", "-F", config, "operator@spark2", "sudo", "-n", "true"],
        capture_output=True,
        check=False,
        text=True,
    )
    assert tried.returncode == 1 and "password" in tried.stderr


def test_an_unknown_host_key_is_refused(ring: LabUnderTest, tmp_path: Path) -> None:
    config = (ring.lab.state / "ssh_config").read_text()
    (tmp_path / "known").write_text("")
    changed = config.replace(f"{ring.lab.state}/known_hosts", str(tmp_path / "known"))
    (tmp_path / "config").write_text(changed)
    tried = subprocess.run(
        ["ssh", "-F", tmp_path / "config", "spark1", "true"], capture_output=True, check=False
    )
    assert tried.returncode == 255 and changed != config


def test_docker_runs_in_a_node_with_the_nvidia_runtime_stood_in(ring: LabUnderTest) -> None:
    info = json.loads(ring.root("spark1", "docker info --format '{{json .}}'"))
    assert "nvidia" in info["Runtimes"] and info["Driver"] == "overlay2"


def test_netplan_applies_in_a_node(ring: LabUnderTest) -> None:
    script = "netplan apply && sleep 1 && ip -4 -o addr show enP7s7"
    assert ring.lab.host("spark2").address in ring.root("spark2", script)


# --- wires ---


@pytest.mark.parametrize(
    "cabling", ["ring", "switch", "swapped-cage", "two-pairs", "line", "double-link"]
)
def test_every_cabling_is_really_plugged_that_way(recabled: LabUnderTest, cabling: str) -> None:
    if recabled.lab.cabling != cabling:
        recabled.cli("recable", cabling)
    assert heard(recabled) == expected_to_hear(cabling, 4)


def test_twins_share_a_segment_so_arp_flux_happens_and_sysctls_cure_it(ring: LabUnderTest) -> None:
    probe = "arping -c 2 -w 3 -I enp1s0f0np0 10.100.0.2 | grep -o '52:54:[0-9a-fA-F:]*' | sort -u"
    assert len(ring.root("spark1", probe).split()) == 2  # both far twins answer for one address
    ring.everywhere(NO_ARP_FLUX)
    right = ring.lab.host("spark2").mac(PORTS[2])
    assert ring.root("spark1", probe).lower().split() == [right]


def test_full_frames_pass_on_both_twins_of_every_cable(ring: LabUnderTest) -> None:
    ring.everywhere(f"{NO_ARP_FLUX}; ip neigh flush all")
    for number in range(4):
        for second in (100, 101):
            host = f"spark{number + 1}"
            assert ring.reaches(host, f"10.{second}.{number}.2", 8972), (host, second)


# --- faults ---


def test_an_unplugged_cable_has_no_carrier_and_comes_back(ring: LabUnderTest) -> None:
    state = "cat /sys/class/net/enp1s0f0np0/carrier /sys/class/infiniband/*p1s0f0/ports/1/state"
    ring.cli("cable", "unplug", "spark1:0")
    try:
        assert ring.root("spark1", state).split("\n") == ["0", "1: DOWN", "1: DOWN"]
        assert not ring.reaches("spark2", "10.100.0.1")
        assert "UNPLUGGED" in ring.cli("status").stdout
    finally:
        ring.cli("cable", "plug", "cab0")
    assert ring.root("spark1", state).split("\n") == ["1", "4: ACTIVE", "4: ACTIVE"]
    assert ring.reaches("spark2", "10.100.0.1")


def test_a_narrow_wire_loses_large_frames_of_one_twin_in_silence(ring: LabUnderTest) -> None:
    ring.everywhere(f"{NO_ARP_FLUX}; ip neigh flush all")
    ring.cli("mtu", "spark1", "enP2p1s0f0np0", "1500")
    try:
        assert ring.reaches("spark2", "10.101.0.1", 1472)
        assert not ring.reaches("spark2", "10.101.0.1", 8972)
        assert ring.reaches("spark2", "10.100.0.1", 8972)
    finally:
        ring.cli("mtu", "spark1", "enP2p1s0f0np0", "9216")
    assert ring.reaches("spark2", "10.101.0.1", 8972)


def test_a_stopped_node_is_gone_and_a_started_one_is_back(ring: LabUnderTest) -> None:
    ring.cli("stop", "spark4")
    assert not ring.reaches("spark3", "10.100.2.2")
    found = json.loads(ring.cli("status", "--json").stdout)
    assert found["hosts"]["spark4"]["running"] is False
    ring.cli("start", "spark4")
    assert ring.reaches("spark3", "10.100.2.2")


def test_a_reboot_keeps_the_disk_and_loses_the_memory(ring: LabUnderTest) -> None:
    ring.root("spark2", "date > /data/kept; date > /run/lost; date > /etc/kept")
    ring.cli("reboot", "spark2")
    assert ring.root("spark2", "ls /data/kept /etc/kept /run/lost 2>&1 | grep -c kept$") == "2"
    assert ring.root("spark2", "test ! -e /run/lost && echo lost") == "lost"
    assert ring.root("spark2", "systemctl is-system-running --wait || true") == "running"


def test_a_full_disk_refuses_every_byte_until_it_is_emptied(ring: LabUnderTest) -> None:
    ring.cli("fill", "spark3")
    try:
        said = ring.root("spark3", "head -c 100000 /dev/zero 2>&1 > /data/more || true; df /data")
        assert "100% /data" in said
        assert ring.root("spark3", "stat -c %s /data/more") != "100000"
    finally:
        ring.cli("empty", "spark3")
        ring.root("spark3", "rm -f /data/more")
    assert "100%" not in ring.root("spark3", "df /data")


def test_a_cut_management_link_leaves_the_fabric_alone(ring: LabUnderTest) -> None:
    ring.cli("management", "spark2", "off")
    try:
        assert ring.reaches("spark1", "10.100.0.2")
        assert not ring.reaches("spark1", ring.lab.host("spark2").address)
    finally:
        ring.cli("management", "spark2", "on")
    assert ring.reaches_soon("spark1", ring.lab.host("spark2").address)


# --- the emulated GID table ---


def test_gid_table_follows_the_real_addresses(ring: LabUnderTest) -> None:
    ring.cli("reboot", "spark1")  # a table without a history
    ipv4 = "0000:0000:0000:0000:0000:ffff:0a64:0001"
    table = slots(ring, "spark1", "rocep1s0f0")
    assert {k: v for k, v in table.items() if k > 1} == {
        2: (ipv4, "IB/RoCE v1"),
        3: (ipv4, "RoCE v2"),
    }
    assert [kind for _gid, kind in (table[0], table[1])] == ["IB/RoCE v1", "RoCE v2"]
    read = (
        "python3 -c \"open('/sys/class/infiniband/rocep1s0f0/ports/1/gid_attrs/types/9').read()\""
    )
    assert "Invalid argument" in ring.root("spark1", f"{read} 2>&1 || true")
    ring.root("spark1", "ip addr del 10.100.0.1/24 dev enp1s0f0np0; sleep 0.5")
    assert sorted(slots(ring, "spark1", "rocep1s0f0")) == [0, 1]
    ring.root("spark1", "ip addr add 10.100.0.1/24 dev enp1s0f0np0; sleep 0.5")
    assert sorted(slots(ring, "spark1", "rocep1s0f0")) == [0, 1, 2, 3]


def test_a_gid_shift_leaves_a_hole(ring: LabUnderTest) -> None:
    before = slots(ring, "spark2", "roceP2p1s0f1")
    said = ring.cli("gid-shift", "spark2", "enP2p1s0f1np1").stdout
    after = slots(ring, "spark2", "roceP2p1s0f1")
    assert max(after) > max(before) and 2 not in after and "10.101.0.2 slots" in said
    assert sorted(v for k, v in before.items() if k > 1) == sorted(
        v for k, v in after.items() if k > 1
    )


def test_a_gid_shift_without_an_address_says_why(ring: LabUnderTest) -> None:
    ring.root("spark3", "ip addr flush dev enp1s0f1np1")
    said = ring.cli("gid-shift", "spark3", "rocep1s0f1", check=False)
    assert said.returncode == 1 and "no IPv4 address on enp1s0f1np1" in said.stderr
    ring.root("spark3", "ip addr add 10.100.1.2/24 dev enp1s0f1np1")


# --- coming and going ---


@pytest.mark.parametrize(
    ("cabling", "options"),
    [
        ("pair", ["--cabling", "pair"]),
        ("triangle", ["--cabling", "triangle"]),
        ("ring", ["--hosts", "6"]),
    ],
)
def test_labs_of_other_sizes_stand_beside_the_first(
    ring: LabUnderTest, make_lab: Callable[..., LabUnderTest], cabling: str, options: list[str]
) -> None:
    other = make_lab(f"more-{cabling}", "containers", "--bare", *options)
    assert other.lab.index != ring.lab.index
    assert heard(other) == expected_to_hear(cabling, other.lab.hosts_wanted)
    bare = "ip -4 -o addr show | grep -c 'np[01]' || true"
    assert set(other.everywhere(bare).values()) == {"0"}  # as freshly installed
    other.cli("down")
    assert leftovers(other.name) == []
    assert ring.reaches("spark1", ring.lab.host("spark2").address)


def test_up_again_changes_nothing(ring: LabUnderTest) -> None:
    boot = "cat /proc/1/stat | cut -d' ' -f22"
    before = ring.everywhere(boot)
    ring.cli("up")
    assert ring.everywhere(boot) == before


def test_removing_what_is_not_there_touches_no_other_lab(
    make_lab: Callable[..., LabUnderTest],
) -> None:
    first = make_lab("first", "containers", "--cabling", "pair", "--bare")
    subprocess.run(
        [sys.executable, "-m", "lab", "--name", f"{first.name}-none", "down"], cwd=ROOT, check=True
    )
    assert first.reaches("spark1", first.lab.gateway)
    first.cli("down")


def test_up_with_other_wishes_is_refused(ring: LabUnderTest) -> None:
    said = ring.cli("up", "--hosts", "5", check=False)
    assert said.returncode == 1
    assert "exists with hosts 4, not 5; remove it first" in said.stderr


@pytest.mark.parametrize("seconds", [0.6, 1.2, 2.0])
def test_an_interrupted_up_can_be_repeated(
    ring: LabUnderTest, make_lab: Callable[..., LabUnderTest], seconds: float
) -> None:
    name = ring.name.replace("ring", "cut")
    words = [sys.executable, "-m", "lab", "--name", name, "up", "--cabling", "pair"]
    cut = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    cut.send_signal(signal.SIGKILL)
    cut.wait()
    again = make_lab("cut", "containers", "--cabling", "pair")
    assert again.name == name
    assert again.reaches("spark1", "10.100.0.2", 8972)
    again.cli("down")
    assert leftovers(name) == []


def leftovers(name: str) -> list[str]:
    """What still carries the name of a lab: containers, namespaces, mounts, files."""
    from lab import engine

    client = engine.running()
    found = []
    if client is not None:
        listing = client.containers.list(all=True, filters={"label": f"sparkfleet.lab={name}"})
        found += [str(container.name) for container in listing]
    found += [str(path) for path in Path("/run/netns").glob(f"sparklab-{name}")]
    found += [str(path) for path in Path("/var/lib/sparkfleet-lab").glob(name)]
    mounts = Path("/proc/mounts").read_text()
    found += [line for line in mounts.splitlines() if f"/sparkfleet-lab/{name}/" in line]
    return found


def test_the_machine_is_not_touched(ring: LabUnderTest) -> None:
    """One interface and one route more; forwarding and firewall as they were."""
    forwarding = Path("/proc/sys/net/ipv4/ip_forward").read_text()
    inside = subprocess.run(
        ["ip", "-br", "link"], capture_output=True, check=True, text=True
    ).stdout
    assert f"sparklab{ring.lab.index}@" in inside
    assert not [line for line in inside.splitlines() if line.startswith(("cab", "mgmt", "f0a"))]
    make_again = ring.cli("up")
    assert make_again.returncode == 0
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text() == forwarding


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["ssh", "spark9", "true"], "has no host 'spark9'"),
        (["cable", "unplug", "cab7"], "no cable 'cab7'; there are: cab0, cab1, cab2, cab3"),
        (["mtu", "spark1", "eth0", "1500"], "no fabric port 'eth0'"),
        (["recable", "pair"], "needs 2 hosts, not 4"),
        (["summary", "--report", "/nowhere"], "run the playbook first"),
    ],
)
def test_mistakes_are_answered_in_words(ring: LabUnderTest, words: list[str], told: str) -> None:
    said = ring.cli(*words, check=False)
    assert said.returncode == 1
    assert told in said.stderr and "Traceback" not in said.stderr


def test_status_lists_what_is_not_real(ring: LabUnderTest) -> None:
    text = ring.cli("status").stdout
    for word in ("stood in for", "RDMA devices", "GPU", "NVIDIA container runtime"):
        assert word in text
