# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The virtual-machine lab: what containers cannot show, with a real kernel in every node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.network import Network
from lab.spec import PORTS
from lab.system import STATE, LabError
from lab.vms import Machines
from tests.support.labs import ROOT, LabUnderTest, lab_name
from tests.support.wiring import expected_to_hear, heard

pytestmark = pytest.mark.vm

NO_ARP_FLUX = "sysctl -qw net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"
ARP_FLUX = "sysctl -qw net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.all.arp_announce=0"
# This host is n of the ring: .1 of cable n with cage 0, .2 of cable p with cage 1.
PLACE = "n=$(($(hostname | tr -d a-z) - 1)); p=$(((n + 3) % 4));"


def machines(name: str) -> dict[str, int]:
    """The QEMU processes that carry the name of a lab: {host: pid}."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode().split("\0")
        except OSError:
            continue
        if "-name" in words and words[words.index("-name") + 1].startswith(f"sparklab-{name}-"):
            found[words[words.index("-name") + 1].rsplit("-", 1)[1]] = int(path.parent.name)
    return found


@pytest.fixture(scope="module")
def first_try() -> dict[str, int]:
    """What the interrupted first `up` of `ring` had started: {host: pid}."""
    return {}


@pytest.fixture(scope="module")
def ring(make_lab: Callable[..., LabUnderTest], first_try: dict[str, int]) -> LabUnderTest:
    """Made by an `up` that is killed when its machines have begun to boot, and by another one."""
    name = lab_name("vm")
    words = [sys.executable, "-m", "lab", "--name", name, "--backend", "vm", "up"]
    started = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 900  # it may build its images first
    while len(list((STATE / name).glob("spark*/pid"))) < 4 and started.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    time.sleep(2)  # QEMU detaches itself; by now `up` waits for ssh
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    first_try.update(machines(name))
    return make_lab("vm", "vm")


@pytest.fixture
def calm(ring: LabUnderTest) -> LabUnderTest:
    """Without ARP flux, so that every frame goes where its address is."""
    ring.everywhere(f"{NO_ARP_FLUX}; ip neigh flush all")
    return ring


@pytest.fixture
def recabled(ring: LabUnderTest) -> Iterator[LabUnderTest]:
    yield ring
    ring.cli("recable", "ring")


def gids(lab: LabUnderTest, host: str, hca: str) -> dict[int, str]:
    """The slots of a GID table that are in use, among the first eight: {slot: type and GID}."""
    script = f"""
cd /sys/class/infiniband/{hca}/ports/1
for i in 0 1 2 3 4 5 6 7; do
    type=$(cat gid_attrs/types/$i 2>/dev/null) && echo "$i|$type $(cat gids/$i)"
done
true"""
    rows = [line.split("|") for line in lab.root(host, script).splitlines()]
    return {int(slot): what for slot, what in rows}


def mapped(address: str) -> str:
    """The GID of an IPv4 address as sysfs writes it, with its type on rxe."""
    a, b, c, d = map(int, address.split("."))
    return f"RoCE v2 0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}"


# --- hosts ---


def test_an_interrupted_up_was_repeated(ring: LabUnderTest, first_try: dict[str, int]) -> None:
    """The second one went on with the machines of the first."""
    assert sorted(first_try) == ["spark1", "spark2", "spark3", "spark4"]
    assert machines(ring.name) == first_try


def test_hosts_are_what_a_playbook_meets(ring: LabUnderTest) -> None:
    said = ring.everywhere(
        "systemctl is-system-running --wait; hostname; cat /etc/machine-id; uname -r; "
        "systemctl is-active docker.socket docker.service; "
        "sudo -u spark ping -c1 -W5 localhost | grep -o ' 0% packet loss'"
    )
    rest = set()
    for name, text in said.items():
        state, hostname, *others = text.splitlines()
        assert (state, hostname) == ("running", name)
        rest.add(tuple(others))
    ((_machine_id, _kernel, *others),) = rest  # the same on all nodes
    assert others == ["active", "inactive", " 0% packet loss"]


def test_fabric_ports_start_at_1500_without_addresses(ring: LabUnderTest) -> None:
    """The lab gives them addresses afterwards; only it raised the MTU."""
    names = ring.root("spark3", "ls /sys/class/net").split()
    assert sorted(names) == sorted(["lo", "enP7s7", *(port.netdev for port in PORTS)])
    assert set(ring.root("spark3", "cat /sys/class/net/en*/mtu").split()) == {"1500", "9000"}
    stored = ring.root("spark3", "cat /etc/netplan/*")
    assert "enP7s7" in stored and not [port for port in PORTS if port.netdev in stored]


def test_rdma_devices_have_spark_names_and_ipv4_roce_v2_gids(ring: LabUnderTest) -> None:
    said = ring.everywhere("ibv_devinfo -v; rdma link")
    for host, port, address in ring.lab.fabric_addresses():
        assert f"/1 state ACTIVE physical_state LINK_UP netdev {port.netdev}" in said[host.name]
        device = said[host.name].split(f"hca_id:\t{port.hca}\n")[1].split("hca_id:")[0]
        assert "PORT_ACTIVE" in device
        link_local, ipv4 = [line.split()[-3:] for line in device.splitlines() if "GID[" in line]
        assert link_local[0].startswith("fe80:")
        assert ipv4 == [f"::ffff:{address.split('/')[0]},", "RoCE", "v2"]
    for text in said.values():
        assert text.count("hca_id:") == 4


def test_compiled_modules_of_ansible_wait_in_the_image(ring: LabUnderTest) -> None:
    script = "import zipimport; print(zipimport._compile_source.__name__)"
    for user in ("root", "spark"):
        assert ring.root("spark1", f"sudo -u {user} python3 -c '{script}'") == "cached"
    count = "find /var/cache/sparklab-bytecode -type f | wc -l"
    before = int(ring.root("spark1", count))
    assert before > 150
    ping = ["ansible", "-i", str(ring.inventory), "spark1", "-b", "-m", "ansible.builtin.ping"]
    done = subprocess.run(
        [f"{Path(sys.executable).parent}/{ping[0]}", *ping[1:]],
        capture_output=True,
        check=False,
        text=True,
    )
    assert "SUCCESS" in done.stdout, done.stdout + done.stderr
    # Ansible writes the __init__.py of three packages anew for every call
    assert int(ring.root("spark1", count)) - before <= 3


def test_docker_starts_when_asked_and_a_container_gets_the_rdma_devices(
    ring: LabUnderTest,
) -> None:
    script = """
set -e
tar -c -C / usr/bin/busybox | docker import - small >/dev/null
docker info --format '{{.Driver}} {{.DefaultRuntime}}'
docker run --rm --network host --device /dev/infiniband --ulimit memlock=-1 --cap-add IPC_LOCK \
    small /usr/bin/busybox sh -c 'ulimit -l; /usr/bin/busybox ls /dev/infiniband'
systemctl is-active docker.service
docker image rm small >/dev/null
systemctl stop docker.service docker.socket
systemctl start docker.socket
"""
    said = ring.root("spark4", script, timeout=300).split()
    assert said[:3] == ["overlay2", "nvidia", "unlimited"] and said[-1] == "active"
    assert {"rdma_cm", "uverbs0", "uverbs1", "uverbs2", "uverbs3"} <= set(said)


def test_the_disk_is_nvme_and_refuses_every_byte_when_full(ring: LabUnderTest) -> None:
    where = "findmnt -no SOURCE,FSTYPE /data; cat /sys/block/nvme0n1/device/transport"
    assert ring.root("spark3", where).split() == ["/dev/nvme0n1", "ext4", "pcie"]
    ring.cli("fill", "spark3")
    try:
        said = ring.root("spark3", "dd if=/dev/zero of=/data/more bs=64k count=1 2>&1 || true")
        assert "No space left on device" in said
        assert "100% /data" in ring.root("spark3", "df /data")
    finally:
        ring.cli("empty", "spark3")
        ring.root("spark3", "rm -f /data/more")
    assert "100%" not in ring.root("spark3", "df /data")


# --- wires and RDMA ---


def test_arp_flux_happens_and_sysctls_cure_it(ring: LabUnderTest) -> None:
    probe = "arping -c 2 -w 5 -I enp1s0f0np0 10.100.0.2 | grep -io '52:54:[0-9a-f:]*' | sort -u"
    ring.everywhere(ARP_FLUX)
    assert len(ring.root("spark1", probe).split()) == 2  # both far twins answer for one address
    ring.everywhere(NO_ARP_FLUX)
    right = ring.lab.host("spark2").mac(PORTS[2])
    assert ring.root("spark1", probe).lower().split() == [right]


def test_full_frames_pass_on_both_twins_of_every_cable(calm: LabUnderTest) -> None:
    ping = "for s in 100 101; do ping -c1 -W5 -M do -s 8972 10.$s.$n.2; done | grep -c ttl="
    assert set(calm.everywhere(f"{PLACE} {ping}").values()) == {"2"}


def rping_everywhere(lab: LabUnderTest) -> None:
    """RDMA connections from cage 0 of every host over both twins, eight at once."""
    said = lab.everywhere(
        f"""{PLACE}
for s in 100 101; do timeout 90 rping -s -a 10.$s.$p.2 -C 4 & done
for s in 100 101; do
    for try in 1 2 3 4 5 6; do
        sleep 2
        timeout 15 rping -c -v -a 10.$s.$n.2 -C 4 >/tmp/rping-$s 2>&1 && break
    done
    grep -c '^ping data: rdma-ping' /tmp/rping-$s
done
wait
"""
    )
    assert {name: text.split() for name, text in said.items()} == {
        name: ["4", "4"] for name in said
    }


def test_rdma_connects_neighbours_over_both_twins(calm: LabUnderTest) -> None:
    rping_everywhere(calm)


def test_nfs_carries_a_file_over_tcp_and_over_rdma(calm: LabUnderTest) -> None:
    """From the NVMe disk of spark2 to spark1, over their own cable."""
    served = calm.root(
        "spark2",
        """
set -e
mkdir -p /data/share
head -c 8388608 /dev/urandom >/data/share/file
systemctl start nfs-server
exportfs -o ro,no_subtree_check 10.100.0.0/24:/data/share
modprobe rpcrdma
grep -q '^rdma 20049' /proc/fs/nfsd/portlist || echo 'rdma 20049' >/proc/fs/nfsd/portlist
sha256sum </data/share/file
""",
    )
    try:
        for options, proto in (("nconnect=2", "tcp"), ("proto=rdma,port=20049", "rdma")):
            mounted = calm.root(
                "spark1",
                f"""
set -e
mkdir -p /mnt/share
mount -t nfs -o vers=4.2,ro,{options} 10.100.0.2:/data/share /mnt/share
trap 'umount /mnt/share' EXIT
sha256sum </mnt/share/file
findmnt -no OPTIONS /mnt/share
""",
            )
            digest, _dash, found = mounted.split()
            assert digest == served.split()[0]
            assert f"proto={proto}," in found and "clientaddr=10.100.0.1" in found
    finally:
        calm.root("spark2", "exportfs -u 10.100.0.0/24:/data/share; systemctl stop nfs-server")
        calm.root("spark2", "rm -r /data/share")


@pytest.mark.parametrize("cabling", ["swapped-cage", "line"])
def test_a_miswiring_is_really_plugged_that_way(recabled: LabUnderTest, cabling: str) -> None:
    recabled.cli("recable", cabling)
    assert heard(recabled, seconds=6) == expected_to_hear(cabling, 4)
    carrier = recabled.root("spark1", "cat /sys/class/net/enp1s0f1np1/carrier")
    if cabling == "line":  # the cable from spark4 to cage 1 of spark1 is missing
        assert carrier == "0"
    else:  # spark1 is plugged into spark2, but not where the address is
        assert carrier == "1" and not recabled.reaches("spark1", "10.100.0.2")


# --- faults ---


def test_an_unplugged_cable_has_no_carrier_and_comes_back(calm: LabUnderTest) -> None:
    state = "rdma link | sort | cut -d' ' -f2-6; cat /sys/class/net/enp1s0f0np0/carrier"
    hcas = sorted(port.hca for port in PORTS)

    def states(*down: str) -> list[str]:
        there, gone = "ACTIVE physical_state LINK_UP", "DOWN physical_state POLLING"
        return [f"{hca}/1 state {gone if hca in down else there}" for hca in hcas]

    calm.cli("cable", "unplug", "spark1:0")
    try:
        said = calm.everywhere(state)
        assert said["spark1"].splitlines() == [*states("rocep1s0f0", "roceP2p1s0f0"), "0"]
        assert said["spark2"].splitlines() == [*states("rocep1s0f1", "roceP2p1s0f1"), "1"]
        assert said["spark3"].splitlines() == [*states(), "1"]
        assert not calm.reaches("spark2", "10.100.0.1")
    finally:
        calm.cli("cable", "plug", "cab0")
    for text in calm.everywhere(state).values():
        assert text.splitlines() == [*states(), "1"]
    assert calm.reaches_soon("spark2", "10.100.0.1")


def test_a_narrow_wire_loses_large_frames_of_one_twin_in_silence(calm: LabUnderTest) -> None:
    calm.cli("mtu", "spark1", "enP2p1s0f0np0", "1500")
    try:
        assert calm.reaches("spark2", "10.101.0.1", 1472)
        assert not calm.reaches("spark2", "10.101.0.1", 8972)
        assert calm.reaches("spark2", "10.100.0.1", 8972)
    finally:
        calm.cli("mtu", "spark1", "enP2p1s0f0np0", "9216")
    assert calm.reaches("spark2", "10.101.0.1", 8972)


def test_the_rdma_mtu_follows_the_netdev(ring: LabUnderTest) -> None:
    script = """
for mtu in 1500 9000; do
    ip link set enp1s0f1np1 mtu $mtu
    ibv_devinfo -d rocep1s0f1 | grep active_mtu
done"""
    said = ring.root("spark3", script)
    assert said.split() == "active_mtu: 1024 (3) active_mtu: 4096 (5)".split()


def test_a_gid_shift_leaves_a_hole(ring: LabUnderTest) -> None:
    before = gids(ring, "spark2", "roceP2p1s0f1")
    assert before[1] == mapped("10.101.0.2") and sorted(before) == [0, 1]
    assert "10.101.0.2 slots 1 -> 2" in ring.cli("gid-shift", "spark2", "enP2p1s0f1np1").stdout
    assert gids(ring, "spark2", "roceP2p1s0f1") == {0: before[0], 2: before[1]}
    hole = "cd /sys/class/infiniband/roceP2p1s0f1/ports/1; cat gids/1; cat gid_attrs/types/1 2>&1"
    said = ring.root("spark2", hole, check=False)
    assert said.startswith("0000:0000:") and "Invalid argument" in said


def test_restarts_keep_the_disks_and_lose_the_memory(ring: LabUnderTest) -> None:
    """By the lab, by the node itself, and by a power cut."""
    boot = "cat /proc/sys/kernel/random/boot_id"
    before = ring.everywhere(
        f"{boot}; for f in /data/kept /etc/kept /run/lost; do echo $(hostname) >$f; done; sync"
    )
    before = {name: text.split()[0] for name, text in before.items()}
    ring.root("spark3", "systemctl reboot", check=False)
    ring.cli("stop", "spark4")
    assert not ring.reaches("spark1", ring.lab.host("spark4").address)
    assert json.loads(ring.cli("status", "--json").stdout)["hosts"]["spark4"]["running"] is False
    ring.cli("start", "spark4")
    ring.cli("reboot", "spark2")
    deadline = time.monotonic() + 300
    while ring.root("spark3", boot, check=False) in ("", before["spark3"]):
        assert time.monotonic() < deadline
        time.sleep(1)
    check = f"{boot}; cat /data/kept /etc/kept; ls /run/lost 2>&1; rdma link | grep -c ' netdev '"
    said = ring.everywhere(check)
    for name in ("spark2", "spark3", "spark4"):
        boot_id, *rest = said[name].splitlines()
        assert boot_id != before[name]
        assert rest[:2] == [name, name] and "No such file" in rest[2] and rest[3] == "4"
    assert said["spark1"].splitlines() == [before["spark1"], "spark1", "spark1", "/run/lost", "4"]
    ring.cli("up")  # addresses for spark3, which the lab did not restart


def test_a_snapshot_is_restored_with_memory_disks_and_clock(ring: LabUnderTest) -> None:
    backend = Machines(ring.lab, Network(ring.lab))
    write = "for f in /run/mark /data/mark /etc/mark; do echo {} >$f; done; sync"
    boot = "cat /proc/sys/kernel/random/boot_id"
    read = f"cat /run/mark /data/mark /etc/mark; {boot}; date +%s.%N"
    ring.everywhere(write.format("before"))
    booted = ring.everywhere(boot)
    backend.snapshot("one")
    assert ring.root("spark1", read).split()[:3] == ["before"] * 3  # it runs on, with its disk
    ring.everywhere(write.format("after"))
    ring.cli("cable", "unplug", "cab1")
    started = time.monotonic()
    backend.restore("one")
    seconds = time.monotonic() - started
    for name in booted:
        sent = time.time()
        *marks, boot_id, clock = ring.root(name, read).split()
        assert marks == ["before"] * 3 and boot_id == booted[name]
        assert sent - 1.5 < float(clock) < time.time() + 1.5
    assert seconds < 60
    ring.everywhere(f"{NO_ARP_FLUX}; ip neigh flush all")
    rping_everywhere(ring)  # Soft-RoCE survives, and cab1 is plugged in again


def test_no_snapshot_is_made_while_a_data_disk_is_in_use(ring: LabUnderTest) -> None:
    backend = Machines(ring.lab, Network(ring.lab))
    ring.root("spark2", "systemd-run --unit=user-of-data --working-directory=/data sleep 300")
    with pytest.raises(LabError, match="spark2: no snapshot while /data is in use"):
        backend.snapshot("two")
    ring.root("spark2", "systemctl stop user-of-data")
    assert set(ring.everywhere("findmnt -no SOURCE /data").values()) == {"/dev/nvme0n1"}
    with pytest.raises(LabError, match="has no snapshot 'two'; there are: one"):
        backend.restore("two")


# --- the end ---


def test_status_lists_what_is_not_real(ring: LabUnderTest) -> None:
    text = ring.cli("status").stdout
    for word in ("stood in for", "Soft-RoCE", "GPU", "NVIDIA container runtime", "NVMe"):
        assert word in text


def test_down_ends_the_machines_of_this_lab_and_nothing_else(ring: LabUnderTest) -> None:
    """A process that looks like the machine of another lab lives on."""
    path = f"{ring.lab.state}-other/spark1/pid"
    words = ["qemu-system-x86_64", "-c", "import time; time.sleep(300)", "-pidfile", path]
    with subprocess.Popen(words, executable=sys.executable) as bystander:
        try:
            ring.cli("down")
            assert bystander.poll() is None
        finally:
            bystander.kill()
    assert machines(ring.name) == {}
    assert not Path("/run/netns", f"sparklab-{ring.name}").exists()
    assert not (STATE / ring.name).exists()
