"""Each section of the probe, on a healthy Spark and on machines that lack something."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _preflight_probe as probe
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    Command,
    Missing,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._tree import Tree

from tests.unit.conftest import MakeMachine

ABSENT = {"rc": NOT_FOUND, "err": "not found"}
DOCKER_DOWN = {
    "rc": 1,
    "err": "Cannot connect to the Docker daemon at unix:///var/run/docker.sock.",
}
CONTAINER = "c0ffee" + "0" * 58

# Section, changes to the healthy Spark, and what the section then holds (among other things).
Case = tuple[str, Mapping[str, Any], Mapping[str, Any]]
SECTIONS: dict[str, Case] = {
    "system": (
        "system",
        {},
        {
            "os_id": "ubuntu",
            "os_version": "24.04",
            "os_name": "Ubuntu 24.04.3 LTS",
            "dgx_os": "7.4.0",
            "arch": "aarch64",
            "kernel": "6.17.0-1014-nvidia",
            "kernel_newest": "6.17.0-1014-nvidia",
            "kernel_newest_has_nvidia": True,
            "hostname": "spark1",
            "uptime": 86400.1,
            "euid": 0,
        },
    ),
    "another kernel at the next boot, without driver": (
        "system",
        {
            "files/boot/vmlinuz-7.0.0-1009-nvidia": "kernel",
            "files/lib/modules/7.0.0-1009-nvidia": {"modules.dep": "kernel/fs/nfs/nfs.ko.zst:\n"},
        },
        {"kernel_newest": "7.0.0-1009-nvidia", "kernel_newest_has_nvidia": False},
    ),
    "kernels are ordered by number": (
        "system",
        {"files/boot/vmlinuz-6.17.0-999-nvidia": "kernel", "files/boot/vmlinuz-9.0.old": "kernel"},
        {"kernel_newest": "6.17.0-1014-nvidia"},
    ),
    "no kernel in /boot": (
        "system",
        {"files/boot": {}},
        {"kernel_newest": None, "kernel_newest_has_nvidia": None},
    ),
    "another distribution": ("system", {"files/etc/dgx-release": None}, {"dgx_os": None}),
    "no os-release": (
        "system",
        {"files/etc/os-release": None},
        {"os_id": None, "os_version": None, "os_name": None, "kernel": "6.17.0-1014-nvidia"},
    ),
    "GB10 reports no memory": (
        "gpu",
        {},
        {
            "driver": "580.95.05",
            "library": "580.95.05",
            "present": True,
            "processes": [],
            "gpus": [
                {
                    "name": "NVIDIA GB10",
                    "uuid": "GPU-5f1b0b1c-8a2e-4c0f-9a53-0f4bb2f7a001",
                    "pci": "000f:01:00.0",
                    "driver": "580.95.05",
                    "memory_mib": None,
                    "why": {"memory_mib": "not reported"},
                }
            ],
        },
    ),
    "Not Supported is no number either": (
        "gpu",
        {"commands/nvidia-smi --query-gpu": "GB10, u, 0000000F:01:00.0, Not Supported, 24576\n"},
        {
            "gpus": [
                {
                    "name": "GB10",
                    "uuid": "u",
                    "pci": "000f:01:00.0",
                    "driver": None,
                    "memory_mib": 24576,
                    "why": {"driver": "not reported"},
                }
            ]
        },
    ),
    "driver halves differ": (
        "gpu",
        {
            "files/usr/lib/aarch64-linux-gnu": None,
            "commands/nvidia-smi --query-gpu": {
                "rc": 18,
                "out": "Failed to initialize NVML: Driver/library version mismatch\n"
                "NVML library version: 580.126\n",
            },
        },
        {"driver": "580.95.05", "library": "580.126", "gpus": None, "present": True},
    ),
    "driver told by nvidia-smi alone": (
        "gpu",
        {"files/proc/driver": {}},
        {"driver": "580.95.05"},
    ),
    "no driver": (
        "gpu",
        {
            "files/proc/driver": {},
            "files/usr/lib": {},
            "commands/nvidia-smi --query-gpu": ABSENT,
            "commands/nvidia-smi --query-compute-apps": ABSENT,
        },
        {"driver": None, "library": None, "present": False, "gpus": [], "processes": []},
    ),
    "nvidia-smi hangs": (
        "gpu",
        {"commands/nvidia-smi --query-gpu": {"rc": None, "err": "did not answer"}},
        {"present": True, "gpus": None},
    ),
    "a process in a container computes": (
        "gpu",
        {
            "commands/nvidia-smi --query-compute-apps": "4242, python3, [N/A]\n",
            "files/proc/4242": {
                "comm": "python3\n",
                "cgroup": f"0::/system.slice/docker-{CONTAINER}.scope\n",
            },
        },
        {
            "processes": [
                {
                    "pid": 4242,
                    "name": "python3",
                    "memory_mib": None,
                    "process": "python3",
                    "unit": None,
                    "container": CONTAINER,
                    "why": {"memory_mib": "not reported"},
                }
            ]
        },
    ),
    "docker": (
        "docker",
        {},
        {
            "present": True,
            "active": True,
            "version": "29.2.1",
            "runtimes": ["io.containerd.runc.v2", "nvidia", "runc"],
            "default_runtime": "nvidia",
            "storage_driver": "overlay2",
            "images_dir": "/var/lib/docker",
            "containers": [],
            "default_memlock": None,
        },
    ),
    "docker with the image store of containerd": (
        "docker",
        {
            "commands/docker info": '{"ServerVersion": "29.2.1", "Driver": "overlayfs", '
            '"DriverStatus": [["driver-type", "io.containerd.snapshotter.v1"]], '
            '"DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=all"}]}',
            "files/etc/docker/daemon.json": '{"default-ulimits": {"memlock": {"Soft": -1}}}',
        },
        {
            "images_dir": "/var/lib/containerd",
            "cdi_devices": ["nvidia.com/gpu=all"],
            "default_memlock": -1,
        },
    ),
    "docker is down": (
        "docker",
        {"commands/docker info": DOCKER_DOWN, "commands/docker ps": DOCKER_DOWN},
        {"present": True, "active": False, "containers": None, "complaint": DOCKER_DOWN["err"]},
    ),
    "docker is down and says so in JSON": (
        "docker",
        {"commands/docker info": '{"ServerErrors": ["Cannot connect."], "DriverStatus": null}'},
        {"active": False, "complaint": "Cannot connect."},
    ),
    "docker for others only": (
        "docker",
        {"commands/docker info": {"rc": 1, "err": "permission denied while trying to connect"}},
        {"present": True, "active": None},
    ),
    "no docker": (
        "docker",
        {"commands/docker info": ABSENT, "commands/docker ps": ABSENT},
        {"present": False, "active": False, "containers": None},
    ),
    "memory": (
        "memory",
        {},
        {"total": 127604064 * 1024, "available": 120000000 * 1024, "swap_total": 16777212 * 1024},
    ),
    "no meminfo": (
        "memory",
        {"files/proc/meminfo": None},
        {"total": None, "available": None, "swap_total": None},
    ),
    "memlock": ("limits", {}, {"memlock": -1}),
    "memlock in bytes": (
        "limits",
        {"files/proc/self/limits": "Max locked memory         8388608   8388608   bytes\n"},
        {"memlock": 8388608},
    ),
    "no limits": ("limits", {"files/proc/self": {}}, {"memlock": None}),
    "python": ("python", {}, {"executable": "/usr/bin/python3", "numpy": "2.2.6"}),
    "no numpy": (
        "python",
        {
            "commands/python3 -c": {
                "rc": 1,
                "err": "Traceback:\nModuleNotFoundError: No module named 'numpy'\n",
            }
        },
        {"numpy": None, "system_numpy": None},
    ),
    "sudo": ("sudo", {}, {"version": "1.9.15p5"}),
    "the Rust sudo": (
        "sudo",
        {"commands/sudo --version": "sudo-rs 0.2.2\n"},
        {"version": "sudo-rs 0.2.2"},
    ),
    "no sudo": ("sudo", {"commands/sudo --version": ABSENT}, {"version": None}),
    "upgrades": (
        "upgrades",
        {},
        {
            "installed": True,
            "enabled": True,
            "origins": ["Ubuntu:noble-security"],
            "packages": [
                {"name": "containerd.io", "family": "containerd", "held": True},
                {"name": "docker-ce", "family": "docker", "held": True},
                {"name": "linux-image-nvidia-hwe-24.04", "family": "kernel", "held": True},
                {"name": "linux-nvidia-hwe-24.04", "family": "kernel", "held": True},
                {"name": "nvidia-driver-580-open", "family": "nvidia", "held": True},
            ],
        },
    ),
    "timer switched off": (
        "upgrades",
        {"commands/systemctl is-enabled": {"rc": 1, "out": "disabled\n"}},
        {"installed": True, "enabled": False},
    ),
    "no apt": (
        "upgrades",
        {"commands/dpkg-query": ABSENT, "commands/apt-config dump": ABSENT},
        {"installed": None, "enabled": None, "packages": None},
    ),
    "no RDMA": (
        "rdma",
        {"files/sys/class/infiniband": None, "files/dev/infiniband": None},
        {"devices": None, "nodes": None},
    ),
}


@pytest.mark.parametrize(("section", "changes", "expected"), SECTIONS.values(), ids=SECTIONS)
def test_sections(
    make_machine: MakeMachine, section: str, changes: Mapping[str, Any], expected: Mapping[str, Any]
) -> None:
    found = getattr(probe, section)(make_machine(changes))
    assert {name: found[name] for name in expected} == expected
    for name, value in found.items():
        assert name == "why" or (value is None) == (name in found["why"]), f"{name} without reason"


@pytest.mark.parametrize(
    ("speed", "expected"),
    [
        ("200000", 200000),
        ("-1", None),
        ("0", None),
        ("65535", None),
        ("4294967295", None),
        ("! EINVAL", None),
        ("fast", None),
    ],
)
def test_link_speed(make_machine: MakeMachine, speed: str, expected: int | None) -> None:
    machine = make_machine({"files/sys/class/net/enp1s0f0np0/speed": speed})
    interfaces = {port["name"]: port for port in probe.network(machine)["interfaces"]}
    assert interfaces["enp1s0f0np0"]["speed_mbps"] == expected
    assert interfaces["enP7s7"]["addresses"] == ["192.0.2.11", "fe80::1"]
    assert "bonding_masters" not in interfaces


def test_network_without_the_ip_command(make_machine: MakeMachine) -> None:
    interfaces = probe.network(make_machine({"commands/ip -j addr": ABSENT}))["interfaces"]
    assert {port["addresses"] for port in interfaces} == {None}
    assert {port["why"]["addresses"] for port in interfaces} == {"not found"}


SOCKET = "   1: 00000000:{port:04X} 00000000:0000 {state} 0:0 00:0 0 0 0 {inode} 1 0 100 0 0 10 0\n"
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n"


def sockets(port: int, *, state: str = "0A", inode: int = 777) -> dict[str, Any]:
    return {"files/proc/net/tcp": HEADER + SOCKET.format(port=port, state=state, inode=inode)}


def process(name: str, cgroup: str, inode: int = 777) -> dict[str, Any]:
    return {
        "files/proc/31": {
            "comm": f"{name}\n",
            "cgroup": cgroup,
            "fd": {"0": "-> /dev/null", "3": f"-> socket:[{inode}]"},
        }
    }


OWNERS: dict[str, tuple[Mapping[str, Any], list[tuple[int, Any, Any, Any]]]] = {
    "nobody": ({}, []),
    "another port": (sockets(8001), []),
    "a connection from that port": (sockets(8000, state="01"), []),
    "a unit": (
        {**sockets(8000), **process("nginx", "0::/system.slice/nginx.service\n")},
        [(8000, "nginx", "nginx.service", None)],
    ),
    "cgroup v1": (
        {
            **sockets(8000),
            **process("nginx", "1:name=systemd:/system.slice/nginx.service\n0::/\n"),
        },
        [(8000, "nginx", "nginx.service", None)],
    ),
    "a shell": (
        {**sockets(8000), **process("python3", "0::/user.slice/user-1000.slice/session-3.scope\n")},
        [(8000, "python3", "session-3.scope", None)],
    ),
    "a container": (
        {**sockets(8000), **process("python3", f"0::/system.slice/docker-{CONTAINER}.scope\n")},
        [(8000, "python3", None, CONTAINER)],
    ),
    "the kernel's NFS server": (
        {**sockets(2049), "files/proc/fs": {"nfsd": {"portlist": "rdma 20049\ntcp 2049\n"}}},
        [(2049, "nfsd", None, None)],
    ),
    "something of another world": (sockets(2049), [(2049, None, None, None)]),
    "not for us to see": ({**sockets(8000), "euid": 1000}, [(8000, None, None, None)]),
}


@pytest.mark.parametrize(("changes", "expected"), OWNERS.values(), ids=OWNERS)
def test_listeners(
    make_machine: MakeMachine, changes: Mapping[str, Any], expected: list[tuple[Any, ...]]
) -> None:
    rows = probe.listeners(make_machine(changes), [8000, 2049])
    keys = ("port", "process", "unit", "container")
    assert [tuple(row[key] for key in keys) for row in rows] == expected


def test_listeners_on_ipv6(make_machine: MakeMachine) -> None:
    six = SOCKET.format(port=8000, state="0A", inode=777).replace(
        "00000000:1F40", "0" * 32 + ":1F40"
    )
    machine = make_machine({"files/proc/net/tcp6": HEADER + six})
    assert [row["port"] for row in probe.listeners(machine, [8000])] == [8000]


MOUNTINFO = (
    "22 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw\n"
    "30 22 259:3 / {root}/srv rw shared:2 - xfs /dev/nvme1n1 rw\n"
    "31 30 0:55 / {root}/srv/my\\040models rw shared:3 master:1 - nfs4 192.0.2.1:/models rw\n"
)


@pytest.mark.parametrize(
    ("path", "nearest", "mount", "used"),
    [
        ("/srv", "/srv", ("/srv", "xfs", "/dev/nvme1n1"), 8192),
        ("/srv/new/deep", "/srv", ("/srv", "xfs", "/dev/nvme1n1"), 0),
        ("/srv/my models", "/srv/my models", ("/srv/my models", "nfs4", "192.0.2.1:/models"), 0),
        ("/srvx/y", "", ("/", "ext4", "/dev/nvme0n1p2"), 0),
        ("/link/new", "/srv", ("/srv", "xfs", "/dev/nvme1n1"), 0),
    ],
)
def test_filesystem(
    make_machine: MakeMachine,
    tmp_path: Path,
    path: str,
    nearest: str,
    mount: tuple[str, str, str],
    used: int,
) -> None:
    machine = make_machine(
        {
            "files/proc/self/mountinfo": MOUNTINFO.format(root=tmp_path),
            "files/srv": {"a": "x" * 5000, "b": "-> a", "my models": {}},
            "files/link": "-> srv/not-yet",
        }
    )
    found = probe.filesystem(machine, path)
    root = str(tmp_path)
    assert found["nearest"] == root + nearest
    point, fstype, source = mount
    point = point if point == "/" else root + point
    assert (found["mount_point"], found["fstype"], found["source"]) == (point, fstype, source)
    assert (found["used"], found["used_complete"]) == (used, True)
    assert 0 < found["free"] <= found["size"]
    assert found["device"] == tmp_path.stat().st_dev


def test_filesystem_with_too_much_to_count(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "_WALK_SECONDS", -1.0)
    machine = make_machine({"files/srv": {"a": "x" * 5000}})
    assert probe.filesystem(machine, "/srv")["used_complete"] is False
    assert probe.filesystem(machine, "/srv", count=False)["used_complete"] is True


def test_the_whole_probe(make_machine: MakeMachine) -> None:
    """Sections, names, paths and the names of containers come together."""
    machine = make_machine(
        {
            **sockets(8000),
            **process("python3", f"0::/system.slice/docker-{CONTAINER}.scope\n"),
            "commands/docker ps": f'{{"ID": "{CONTAINER}", "Names": "sparkfleet-cell1-r0", '
            '"Labels": "sparkfleet.cell=cell1,maintainer=x"}\n',
            "files/srv": {},
        }
    )
    found = probe.probe(machine, paths=["/srv/a"], names=["spark2", "nowhere"], ports=[8000])
    assert found["why"] == {}
    assert [entry["path"] for entry in found["paths"]] == ["/srv/a", "/var/lib/docker"]
    assert {entry["name"]: entry["addresses"] for entry in found["names"]} == {
        "spark2": ["192.0.2.12"],
        "nowhere": None,
        "spark1": ["192.0.2.11"],
    }
    assert found["ports"] == [
        {
            "port": 8000,
            "pid": 31,
            "process": "python3",
            "unit": None,
            "container": "sparkfleet-cell1-r0",
            "labels": ["sparkfleet.cell", "maintainer"],
            "why": {},
        }
    ]


def test_a_section_that_breaks_takes_only_itself_away(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(machine: probe.Machine) -> Any:
        raise RuntimeError("unheard of")

    monkeypatch.setattr(probe, "memory", broken)
    found = probe.probe(make_machine())
    assert found["memory"] is None
    assert found["why"] == {"memory": "RuntimeError: unheard of"}
    assert found["system"]["hostname"] == "spark1"


def test_an_empty_machine_is_read_without_a_crash(tmp_path: Path) -> None:
    machine = probe.Machine(
        tree=Tree(str(tmp_path)),
        run=lambda argv: Command(NOT_FOUND, "", f"{argv[0]}: command not found"),
        euid=1000,
    )
    found = probe.probe(machine, paths=["/srv"], names=["localhost"], ports=[8000])
    assert found["why"] == {}
    assert found["docker"]["present"] is False
    assert isinstance(machine.tree.text("x"), Missing)
