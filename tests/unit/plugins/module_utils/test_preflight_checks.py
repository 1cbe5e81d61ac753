"""Every rule of preflight, on a healthy cell and on cells with one thing wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.action.preflight_report import SETTINGS
from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_checks import (
    SettingsError,
    evaluate,
    summarise,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_model import Settings
from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_rules import CHECKS

from tests.unit.conftest import GIB, HOSTS

Results = dict[str, dict[str, Any]]
NETDEVS = ["enp1s0f0np0", "enp1s0f1np1", "enP2p1s0f0np0", "enP2p1s0f1np1"]
SPARK: dict[str, Any] = {
    "rdma_netdevs": NETDEVS,
    "pcie_width": 4,
    "pcie_speed": 32.0,
    "memory_total_gib": 115,
    "memory_available_gib": 100,
    "swap_max_gib": 16,
    "images_gib": 40,
    "clock_skew": 5,
}


def judge(results: Results, **settings: Any) -> list[dict[str, str]]:
    return evaluate(results, HOSTS, Settings(**{**SPARK, **settings}))


def change(results: Results, path: str, value: Any) -> None:
    """Set a value by a path such as spark2/probe/memory/total; an `Unread` becomes None there."""
    *parents, last = path.split("/")
    place: Any = results
    for parent in parents:
        place = place[int(parent)] if isinstance(place, list) else place[parent]
    if isinstance(value, Unread):
        place.setdefault("why", {})[last] = value
        value = None
    place[int(last) if isinstance(place, list) else last] = value


class Unread(str):
    """The reason why a value could not be read."""


def owner(**values: Any) -> dict[str, Any]:
    return {"pid": 31, "process": "x", "unit": None, "container": None, "why": {}, **values}


def test_a_healthy_cell_passes_everything(healthy_cell: Results) -> None:
    rows = judge(healthy_cell)
    assert [row for row in rows if row["status"] != "ok"] == []
    assert {(row["check"], row["host"]) for row in rows} == {
        (check, host) for check in CHECKS for host in HOSTS
    }
    summary = summarise(rows)
    assert summary["ready"] is True
    assert summary["ok"] == list(CHECKS)


SPARK2 = "spark2/probe"
UVERBS = "no /dev/infiniband/uverbs1 of rocep1s0f1"

# What is changed, the check that must notice, and one host's status, what was found and the remedy.
Case = tuple[Mapping[str, Any], str, str, str, str, str]
CASES: dict[str, Case] = {
    "unreachable": (
        {
            "spark2": {
                "probe": None,
                "problems": [{"check": "reachable", "found": "it does not answer", "fix": "look"}],
            }
        },
        *("reachable", "spark2", "fail", "it does not answer", "look"),
    ),
    "cut short": (
        {"spark2": {"msg": "Task failed: Timed out after 180 second(s)."}},
        *("probe", "spark2", "fail", "Timed out after 180 second(s).", "-vvv"),
    ),
    "nothing registered": ({"spark2": {}}, "probe", "spark2", "fail", "no result", "-vvv"),
    "sudo wants a password": (
        {"spark2/problems": [{"check": "sudo", "found": "sudo asks", "fix": "add -K"}]},
        *("sudo", "spark2", "fail", "sudo asks", "add -K"),
    ),
    "the Rust sudo wants a password": (
        {
            "spark2/problems": [{"check": "sudo", "found": "sudo asks", "fix": "add -K"}],
            f"{SPARK2}/sudo/version": "sudo-rs 0.2.2",
        },
        *("sudo", "spark2", "fail", "sudo asks (sudo-rs 0.2.2)", "ansible_become_exe"),
    ),
    "not root": (
        {f"{SPARK2}/system/euid": 1000},
        *("sudo", "spark2", "fail", "the probe ran without root", "become"),
    ),
    "Python does not start": (
        {"spark2/problems": [{"check": "python", "found": "Python /x does not start", "fix": "y"}]},
        *("python", "spark2", "fail", "Python /x does not start", "y"),
    ),
    "old Python": (
        {f"{SPARK2}/python/version": "3.9.18"},
        *("python", "spark2", "fail", "/usr/bin/python3 (3.9.18)", "ansible_python_interpreter"),
    ),
    "no numpy": (
        {
            f"{SPARK2}/python/numpy": Unread("ModuleNotFoundError: No module named 'numpy'"),
            f"{SPARK2}/python/system_numpy": Unread("ModuleNotFoundError: No module named 'numpy'"),
        },
        *("numpy", "spark2", "warn", "no numpy in /usr/bin/python3", "apt install python3-numpy"),
    ),
    "numpy elsewhere": (
        {f"{SPARK2}/python/numpy": Unread("ImportError: broken")},
        *("numpy", "spark2", "warn", "/usr/bin/python3: ImportError: broken", "which has it"),
    ),
    "one machine, two names": (
        {
            f"{host}/probe/network": {
                "interfaces": [
                    {"name": "enP7s7", "mac": "3c:6d:66:00:00:31", "addresses": [], "state": "up"}
                ],
                "why": {},
            }
            for host in ("spark2", "spark3")
        },
        *("identity", "spark3", "fail", "spark2, spark3 are one machine", "ansible_host"),
    ),
    "equal machine ids are only a note": (
        {f"{SPARK2}/system/machine_id": f"{3:032x}"},
        *("machine_id", "spark2", "note", "the same on spark2, spark3", "nothing needed"),
    ),
    "another release": (
        {f"{SPARK2}/system/os_name": "Ubuntu 24.04.5 LTS"},
        *("os", "spark2", "fail", "DGX OS 7.4.0 (Ubuntu 24.04.5 LTS)", "one release"),
    ),
    "another DGX OS": (
        {f"{SPARK2}/system/dgx_os": "7.5.0"},
        *("os", "spark2", "fail", "DGX OS 7.5.0 (Ubuntu 24.04.3 LTS)", "one release"),
    ),
    "another architecture": (
        {f"{SPARK2}/system/arch": "x86_64"},
        *("arch", "spark2", "fail", "x86_64", "one architecture"),
    ),
    "another kernel": (
        {f"{SPARK2}/system/kernel": "6.17.0-1008-nvidia"},
        *("kernel", "spark2", "fail", "6.17.0-1008-nvidia", "one kernel"),
    ),
    "another kernel after the next boot": (
        {f"{SPARK2}/system/kernel_newest": "6.17.0-1018-nvidia"},
        *("next_kernel", "spark2", "warn", "6.17.0-1018-nvidia", "reboot the node before"),
    ),
    "and no driver for it": (
        {
            f"{SPARK2}/system/kernel_newest": "7.0.0-1009-nvidia",
            f"{SPARK2}/system/kernel_newest_has_nvidia": False,
        },
        *(
            "next_kernel",
            "spark2",
            "warn",
            "7.0.0-1009-nvidia, without an NVIDIA module",
            "install",
        ),
    ),
    "next kernel unknown": (
        {f"{SPARK2}/system/kernel_newest": Unread("no /boot/vmlinuz-*")},
        *("next_kernel", "spark2", "unknown", "no /boot/vmlinuz-*", ""),
    ),
    "another driver": (
        {f"{SPARK2}/gpu/driver": "580.142"},
        *("driver", "spark2", "fail", "580.142", "one driver"),
    ),
    "driver unknown": (
        {f"{SPARK2}/gpu/driver": Unread("Permission denied")},
        *("driver", "spark2", "unknown", "Permission denied", ""),
    ),
    "driver upgraded under the module": (
        {f"{SPARK2}/gpu/library": "580.126.09"},
        *("driver_match", "spark2", "fail", "module 580.95.05, library 580.126.09", "reboot"),
    ),
    "a library version without its last part": (
        {f"{SPARK2}/gpu/library": "580.95"},
        *("driver_match", "spark2", "ok", "580.95.05", ""),
    ),
    "no nvidia-smi": (
        {f"{SPARK2}/gpu/present": False},
        *("gpu", "spark2", "fail", "no nvidia-smi", "install"),
    ),
    "nvidia-smi fails": (
        {f"{SPARK2}/gpu/gpus": Unread("Failed to initialize NVML")},
        *("gpu", "spark2", "fail", "Failed to initialize NVML", "dmesg"),
    ),
    "no GPU": (
        {f"{SPARK2}/gpu/gpus": []},
        *("gpu", "spark2", "fail", "nvidia-smi lists none", "dmesg"),
    ),
    "somebody computes": (
        {f"{SPARK2}/gpu/processes": [owner(process="ollama", unit="ollama.service")]},
        *("gpu_idle", "spark2", "fail", "ollama (ollama.service)", "stop"),
    ),
    "we compute, by unit": (
        {f"{SPARK2}/gpu/processes": [owner(unit="sparkfleet-rank@cell1.service")]},
        *("gpu_idle", "spark2", "ok", "x (sparkfleet-rank@cell1.service)", ""),
    ),
    "we compute, by container": (
        {f"{SPARK2}/gpu/processes": [owner(container="sparkfleet-cell1-r0")]},
        *("gpu_idle", "spark2", "ok", "container sparkfleet-cell1-r0", ""),
    ),
    "we compute, by label": (
        {f"{SPARK2}/gpu/processes": [owner(container="engine", labels=["sparkfleet.cell"])]},
        *("gpu_idle", "spark2", "ok", "container engine", ""),
    ),
    "we and somebody else": (
        {f"{SPARK2}/gpu/processes": [owner(container="sparkfleet-a"), owner(container="b")]},
        *("gpu_idle", "spark2", "fail", "container b", "stop"),
    ),
    "processes unknown": (
        {f"{SPARK2}/gpu/processes": Unread("did not answer")},
        *("gpu_idle", "spark2", "unknown", "did not answer", ""),
    ),
    "no docker": (
        {f"{SPARK2}/docker/present": False, f"{SPARK2}/docker/active": False},
        *("docker", "spark2", "fail", "no docker command", "install"),
    ),
    "docker is down": (
        {f"{SPARK2}/docker/active": False, f"{SPARK2}/docker/complaint": "Cannot connect"},
        *("docker", "spark2", "fail", "Cannot connect", "systemctl enable --now docker"),
    ),
    "docker for others only": (
        {f"{SPARK2}/docker/active": Unread("permission denied")},
        *("docker", "spark2", "unknown", "permission denied", ""),
    ),
    "no nvidia runtime": (
        {f"{SPARK2}/docker/runtimes": ["runc"]},
        *("nvidia_runtime", "spark2", "fail", "only runc", "nvidia-ctk"),
    ),
    "CDI instead": (
        {
            f"{SPARK2}/docker/runtimes": ["runc"],
            f"{SPARK2}/docker/cdi_devices": ["nvidia.com/gpu=all"],
        },
        *("nvidia_runtime", "spark2", "ok", "CDI device nvidia.com/gpu", ""),
    ),
    "another default runtime is no matter": (
        {f"{SPARK2}/docker/default_runtime": "runc"},
        *("nvidia_runtime", "spark2", "ok", "runtime nvidia, default runc", ""),
    ),
    "no RDMA class": (
        {f"{SPARK2}/rdma/devices": Unread("No such file or directory")},
        *("rdma_devices", "spark2", "fail", "no RDMA device at all", "plugged in at boot"),
    ),
    "no RDMA device": (
        {f"{SPARK2}/rdma/devices": []},
        *("rdma_devices", "spark2", "fail", "no RDMA device at all", "plugged in at boot"),
    ),
    "one twin missing": (
        {f"{SPARK2}/rdma/devices/1/netdevs": ["eno1"]},
        *(
            "rdma_devices",
            "spark2",
            "fail",
            "none on enP2p1s0f1np1; there:",
            "preflight_rdma_netdevs",
        ),
    ),
    "a virtual function does not count": (
        {f"{SPARK2}/rdma/devices/1/virtual_function": True},
        *(
            "rdma_devices",
            "spark2",
            "fail",
            "none on enP2p1s0f1np1; there:",
            "preflight_rdma_netdevs",
        ),
    ),
    "bonded": (
        {f"{SPARK2}/rdma/devices/2/netdevs": ["enp1s0f0np0", "enp1s0f1np1"]},
        *("rdma_devices", "spark2", "fail", "rocep1s0f0 bonds enp1s0f0np0 and enp1s0f1np1", "bond"),
    ),
    "zero GUID": (
        {f"{SPARK2}/rdma/devices/2/node_guid": "0000:0000:0000:0000"},
        *("rdma_devices", "spark2", "fail", "node GUID of rocep1s0f0 is zero", "reload"),
    ),
    "no character device": (
        {f"{SPARK2}/rdma/devices/3/uverbs_present": False},
        *("infiniband", "spark2", "fail", UVERBS, "modprobe"),
    ),
    "no rdma_cm": (
        {f"{SPARK2}/rdma/nodes": ["uverbs0"]},
        *("infiniband", "spark2", "fail", "no /dev/infiniband/rdma_cm", "rdma_ucm"),
    ),
    "no /dev/infiniband": (
        {f"{SPARK2}/rdma/nodes": Unread("No such file or directory")},
        *("infiniband", "spark2", "fail", "no /dev/infiniband/rdma_cm", "rdma_ucm"),
    ),
    "half the lanes": (
        {f"{SPARK2}/rdma/devices/1/pcie_width": 2},
        *("pcie", "spark2", "fail", "roceP2p1s0f1: x2 at 32 GT/s", "fwupdmgr"),
    ),
    "half the speed": (
        {f"{SPARK2}/rdma/devices/1/pcie_speed": 16.0},
        *("pcie", "spark2", "fail", "roceP2p1s0f1: x4 at 16 GT/s", "fwupdmgr"),
    ),
    "lanes unknown": (
        {f"{SPARK2}/rdma/devices/1/pcie_width": Unread("No such file or directory")},
        *("pcie", "spark2", "unknown", "unreadable on roceP2p1s0f1", ""),
    ),
    "firmware unknown": (
        {f"{SPARK2}/rdma/devices/1/fw_ver": Unread("No such file or directory")},
        *("firmware", "spark2", "unknown", "unreadable on roceP2p1s0f1", ""),
    ),
    "another firmware": (
        {f"{SPARK2}/rdma/devices/{index}/fw_ver": "28.43.1014" for index in range(4)},
        *("firmware", "spark2", "warn", "28.43.1014", "fwupdmgr"),
    ),
    "two firmwares in one node": (
        {f"{SPARK2}/rdma/devices/0/fw_ver": "28.43.1014"},
        *("firmware", "spark2", "warn", "28.43.1014, 28.45.4028", "fwupdmgr"),
    ),
    "another vendor's card is none of our business": (
        {
            f"{SPARK2}/rdma/devices/0/fw_ver": Unread("x"),
            f"{SPARK2}/rdma/devices/0/netdevs": ["eno1"],
        },
        *("firmware", "spark2", "ok", "28.45.4028", ""),
    ),
    "little memory": (
        {f"{SPARK2}/memory/total": 64 * GIB},
        *("memory", "spark2", "fail", "64 GiB", "preflight_memory_total_gib"),
    ),
    "memory unknown": (
        {f"{SPARK2}/memory/total": Unread("not there")},
        *("memory", "spark2", "unknown", "not there", ""),
    ),
    "memory in use": (
        {f"{SPARK2}/memory/available": 9.5 * GIB},
        *("memory_free", "spark2", "warn", "9.5 GiB", "ps aux"),
    ),
    "memory in use by us": (
        {
            f"{SPARK2}/memory/available": 20 * GIB,
            f"{SPARK2}/gpu/processes": [owner(container="sparkfleet-a")],
        },
        *("memory_free", "spark2", "ok", "20 GiB beside container sparkfleet-a", ""),
    ),
    "much swap": (
        {f"{SPARK2}/memory/swap_total": 64 * GIB},
        *("swap", "spark2", "warn", "64 GiB", "shrink"),
    ),
    "no swap": ({f"{SPARK2}/memory/swap_total": 0}, "swap", "spark2", "ok", "none", ""),
    "little memlock": (
        {f"{SPARK2}/limits/memlock": 8388608},
        *("memlock", "spark2", "warn", "8 MiB", "limits.d"),
    ),
    "enough memlock": (
        {f"{SPARK2}/limits/memlock": 64 * GIB},
        *("memlock", "spark2", "ok", "64 GiB", ""),
    ),
    "Docker's default is told": (
        {f"{SPARK2}/docker/default_memlock": 67108864},
        *("memlock", "spark2", "ok", "unlimited, 64 MiB in containers", ""),
    ),
    "no management interface": (
        {"spark2/wanted/management_interface": "eno1"},
        *(
            "management",
            "spark2",
            "fail",
            "no interface eno1; there: enP2p1s0f0np0, ",
            "set spark_",
        ),
    ),
    "management interface without an address": (
        {f"{SPARK2}/network/interfaces/2/addresses": ["fe80::1"]},
        *("management", "spark2", "fail", "enP7s7 is up and has no address", "cable"),
    ),
    "addresses unknown": (
        {f"{SPARK2}/network/interfaces/2/addresses": Unread("ip: command not found")},
        *("management", "spark2", "unknown", "ip: command not found", ""),
    ),
    "one name lost": (
        {f"{SPARK2}/names/2/addresses": Unread("Name or service not known")},
        *("resolve", "spark2", "warn", "cannot resolve spark3", "/etc/hosts"),
    ),
    "all names lost": (
        {
            f"{SPARK2}/names/{index}/addresses": Unread("Name or service not known")
            for index in (0, 2, 3)
        },
        *("resolve", "spark2", "warn", "cannot resolve any other host", "/etc/hosts"),
    ),
    "a name leads astray": (
        {f"{SPARK2}/names/2/addresses": ["198.51.100.9"]},
        *(
            "resolve",
            "spark2",
            "warn",
            "spark3 is 198.51.100.9, which spark3 does not have",
            "/etc",
        ),
    ),
    "another host is loopback": (
        {f"{SPARK2}/names/2/addresses": ["127.0.0.1"]},
        *("resolve", "spark2", "warn", "spark3 is 127.0.0.1", "/etc/hosts"),
    ),
    "the own name is loopback": (
        {f"{SPARK2}/names/1/addresses": ["127.0.1.1"]},
        *("self_resolve", "spark2", "warn", "spark2 is 127.0.1.1", "127.0.1.1"),
    ),
    "the own name is lost": (
        {f"{SPARK2}/names/1/addresses": Unread("Name or service not known")},
        *("self_resolve", "spark2", "warn", "spark2 cannot be resolved", "/etc/hosts"),
    ),
    "a port is taken": (
        {f"{SPARK2}/ports": [{"port": 8000, **owner(process="nginx", unit="nginx.service")}]},
        *(
            "ports",
            "spark2",
            "fail",
            "8000 (API) is taken by nginx (nginx.service)",
            "spark_*_port",
        ),
    ),
    "a port is taken by a shell": (
        {f"{SPARK2}/ports": [{"port": 8000, **owner(process="python3")}]},
        *("ports", "spark2", "fail", "8000 (API) is taken by python3 (pid 31)", "stop it"),
    ),
    "a port is ours": (
        {f"{SPARK2}/ports": [{"port": 8000, **owner(unit="sparkfleet-entry.service")}]},
        *("ports", "spark2", "ok", "8000 (API) x (sparkfleet-entry.service)", ""),
    ),
    "the kernel's NFS server may be there": (
        {
            f"{SPARK2}/ports": [
                {"port": 2049, "process": "nfsd", "unit": None, "container": None, "why": {}}
            ]
        },
        *("ports", "spark2", "ok", "2049 (NFS) nfsd (the kernel)", ""),
    ),
    "another NFS server may not": (
        {f"{SPARK2}/ports": [{"port": 2049, **owner(process="ganesha.nfsd")}]},
        *("ports", "spark2", "fail", "2049 (NFS) is taken by ganesha.nfsd (pid 31)", "stop it"),
    ),
    "nor one that calls itself so": (
        {f"{SPARK2}/ports": [{"port": 2049, **owner(process="nfsd")}]},
        *("ports", "spark2", "fail", "2049 (NFS) is taken by nfsd (pid 31)", "stop it"),
    ),
    "owner unknown": (
        {f"{SPARK2}/ports": [{"port": 8000, **owner(process=None, why={"process": "needs root"})}]},
        *("ports", "spark2", "unknown", "8000 (API) is taken: needs root", ""),
    ),
    "ports unknown": (
        {f"{SPARK2}/ports": Unread("no answer within 30 s")},
        *("ports", "spark2", "unknown", "no answer within 30 s", ""),
    ),
    "a fast clock": (
        {"spark2/clock": {"before": 1000.0, "start": 1090.6, "end": 1091.0, "after": 1001.1}},
        *("clock", "spark2", "warn", "89.3 s or more ahead of spark1", "set-ntp"),
    ),
    "a slow clock": (
        {"spark2/clock": {"before": 1000.0, "start": 990.6, "end": 991.0, "after": 1001.1}},
        *("clock", "spark2", "warn", "9.3 s or more behind spark1", "set-ntp"),
    ),
    "the head's clock is the odd one out": (
        {"spark1/clock": {"before": 1000.0, "start": 1090.6, "end": 1091.0, "after": 1001.1}},
        *("clock", "spark1", "warn", "89.3 s or more ahead of spark2", "set-ntp"),
    ),
    "a clock read too slowly": (
        {"spark2/clock": {"before": 1000.0, "start": 1009.0, "end": 1009.4, "after": 1009.5}},
        *("clock", "spark2", "unknown", "measured to 9.1 s only", ""),
    ),
    "upgrades by themselves": (
        {
            f"{SPARK2}/upgrades/packages": [
                {"name": "docker.io", "family": "docker", "held": False},
                {"name": "containerd", "family": "containerd", "held": True},
                {"name": "linux-nvidia", "family": "kernel", "held": False},
            ]
        },
        *("upgrades", "spark2", "warn", "unattended-upgrades may change docker, kernel"),
        "apt-mark hold docker.io linux-nvidia",
    ),
    "upgrades switched off": (
        {
            f"{SPARK2}/upgrades/enabled": False,
            f"{SPARK2}/upgrades/packages/0/held": False,
        },
        *("upgrades", "spark2", "ok", "no unattended upgrades", ""),
    ),
    "no apt": (
        {f"{SPARK2}/upgrades/installed": Unread("dpkg-query: command not found")},
        *("upgrades", "spark2", "unknown", "dpkg-query: command not found", ""),
    ),
}


@pytest.mark.parametrize(
    ("changes", "check", "host", "status", "found", "fix"), CASES.values(), ids=CASES
)
def test_rules(
    healthy_cell: Results,
    changes: Mapping[str, Any],
    check: str,
    host: str,
    status: str,
    found: str,
    fix: str,
) -> None:
    for path, value in changes.items():
        change(healthy_cell, path, value)
    rows = judge(healthy_cell)
    (row,) = [row for row in rows if (row["check"], row["host"]) == (check, host)]
    assert row["status"] == status
    assert row["found"].startswith(found)
    assert fix in row["fix"]
    if status in ("fail", "warn"):
        assert row["expected"] and row["fix"], "found, expected and fix make a message"
    healthy = [other for other in rows if other["host"] == "spark4" and other["check"] == check]
    assert [other["status"] for other in healthy] == ["ok"], "the others are judged for themselves"


def test_the_odd_one_out_is_named_against_what_most_have(healthy_cell: Results) -> None:
    change(healthy_cell, "spark1/probe/gpu/driver", "580.142")
    (row,) = [
        row for row in judge(healthy_cell) if row["status"] != "ok" and row["check"] == "driver"
    ]
    assert (row["host"], row["expected"]) == ("spark1", "580.95.05 as on spark2..spark4")


def test_in_a_tie_the_head_is_right(healthy_cell: Results) -> None:
    pair = {name: healthy_cell[name] for name in ("spark1", "spark2")}
    change(pair, "spark1/probe/gpu/driver", "580.142")
    rows = evaluate(pair, list(pair), Settings(**SPARK))
    (row,) = [row for row in rows if row["check"] == "driver" and row["status"] != "ok"]
    assert (row["host"], row["expected"]) == ("spark2", "580.142 as on spark1")


def disk(**values: Any) -> dict[str, Any]:
    return {
        f"{host}/probe/paths/{index}/filesystem/{key}": value
        for host in HOSTS
        for index in range(3)
        for key, value in values.items()
    }


DISKS: dict[str, tuple[Mapping[str, Any], str, str, str]] = {
    "enough for all that lies on one": (disk(free=600 * GIB), "ok", "", "ok"),
    "not for all together": (
        disk(free=589 * GIB),
        *("fail", "590 GiB: 500 GiB weights + 50 GiB Engram + 40 GiB images", "ok"),
    ),
    "on disks of their own it is": (
        {**disk(free=510 * GIB), "spark1/probe/paths/0/filesystem/device": 2},
        *("ok", "", "ok"),
    ),
    "what is there already counts": (
        {**disk(free=89 * GIB), "spark1/probe/paths/0/filesystem/used": 501 * GIB},
        *("fail", "90 GiB: 50 GiB Engram + 40 GiB images", "fail"),
    ),
    "a deployed cell needs room for images only": (
        {
            **disk(free=41 * GIB),
            "spark1/probe/paths/0/filesystem/used": 501 * GIB,
            **{f"{host}/probe/paths/1/filesystem/used": 50 * GIB for host in HOSTS},
        },
        *("ok", "", "ok"),
    ),
    "too much to count": (
        {
            **disk(free=300 * GIB),
            "spark1/probe/paths/0/filesystem/used": 100 * GIB,
            "spark1/probe/paths/0/filesystem/used_complete": False,
        },
        *("unknown", "", "ok"),
    ),
    "read-only": (disk(read_only=True), "fail", "590 GiB", "fail"),
    "Docker does not tell where its images are": (
        {"spark1/probe/docker/images_dir": Unread("permission denied without root")},
        *("unknown", "", "ok"),
    ),
    "a dead mount": (
        {"spark1/probe/paths/0/filesystem": Unread("no answer within 30 s")},
        *("unknown", "", "ok"),
    ),
}


@pytest.mark.parametrize(("changes", "head", "expected", "other"), DISKS.values(), ids=DISKS)
def test_disks(
    healthy_cell: Results, changes: Mapping[str, Any], head: str, expected: str, other: str
) -> None:
    for path, value in changes.items():
        change(healthy_cell, path, value)
    rows = {row["host"]: row for row in judge(healthy_cell) if row["check"] == "disk"}
    assert (rows["spark1"]["status"], rows["spark2"]["status"]) == (head, other)
    assert rows["spark1"]["expected"].startswith(expected)


def test_hosts_that_are_not_looked_at_are_said_to_be_so(healthy_cell: Results) -> None:
    rows = judge({"spark2": healthy_cell["spark2"]})
    by_status = {(row["check"], row["host"]): row for row in rows}
    assert {host for (check, host) in by_status if check == "cell"} == {
        "spark1",
        "spark3",
        "spark4",
    }
    assert by_status["cell", "spark1"]["status"] == "warn"
    assert by_status["cell", "spark1"]["found"] == "not looked at (--limit)"
    kernel = by_status["kernel", "spark2"]
    assert (kernel["status"], kernel["found"]) == (
        "skip",
        "6.17.0-1014-nvidia, and nothing to compare with",
    )
    assert by_status["memory", "spark2"]["status"] == "ok"


def test_skipped_checks_are_shown_as_skipped(healthy_cell: Results) -> None:
    change(healthy_cell, "spark2/probe/gpu/present", False)
    rows = judge(healthy_cell, skip=["gpu"])
    assert {(row["status"], row["found"]) for row in rows if row["check"] == "gpu"} == {
        ("skip", "preflight_skip")
    }
    assert summarise(rows)["ready"] is True
    assert "gpu" in summarise(rows)["skip"]


@pytest.mark.parametrize(
    ("severity", "status", "ready"),
    [("error", "fail", False), ("warning", "warn", True), ("info", "note", True)],
)
def test_severities_can_be_chosen(
    healthy_cell: Results, severity: str, status: str, ready: bool
) -> None:
    change(healthy_cell, "spark2/probe/memory/swap_total", 64 * GIB)
    rows = judge(healthy_cell, severity={"swap": severity})
    (row,) = [row for row in rows if row["check"] == "swap" and row["host"] == "spark2"]
    assert (row["severity"], row["status"]) == (severity, status)
    assert summarise(rows)["ready"] is ready


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"skip": ["gpus"]}, ["preflight_skip", "'gpus'", "did you mean gpu?", "rdma_devices"]),
        ({"skip": ["zzz"]}, ["preflight_skip", "'zzz', which does not exist. The checks are: "]),
        ({"severity": {"swapp": "error"}}, ["preflight_severity", "did you mean swap?"]),
        ({"severity": {"swap": "fatal"}}, ["swap", "'fatal'", "error, warning, info"]),
    ],
)
def test_settings_that_name_nothing(
    healthy_cell: Results, settings: Mapping[str, Any], words: list[str]
) -> None:
    with pytest.raises(SettingsError) as refused:
        judge(healthy_cell, **settings)
    for word in words:
        assert word in str(refused.value)


def test_an_empty_machine_is_judged_without_a_crash(healthy_cell: Results) -> None:
    """Whole sections may be missing: a probe that missed its deadline has none."""
    for section in list(healthy_cell["spark2"]["probe"]):
        if section not in ("why", "names", "paths"):
            change(healthy_cell, f"spark2/probe/{section}", Unread("no answer within 30 s"))
    rows = judge(healthy_cell)
    statuses = {row["check"]: row["status"] for row in rows if row["host"] == "spark2"}
    assert statuses.keys() == CHECKS.keys()
    ok = {check for check, status in statuses.items() if status == "ok"}
    assert ok == {"cell", "reachable", "probe", "resolve", "clock"}
    assert {status for check, status in statuses.items() if check not in ok} == {"unknown", "skip"}


def test_settings_are_those_of_the_action() -> None:
    assert set(SETTINGS) == {*SPARK, "skip", "severity"}
    assert set(Settings.__dataclass_fields__) == set(SETTINGS)


def test_the_readme_lists_every_check_with_its_severity() -> None:
    readme = Path(__file__).resolve().parents[4] / "roles" / "preflight" / "README.md"
    _before, _heading, table = readme.read_text("utf-8").partition("## Checks")
    told: dict[str, str] = {}
    for line in table.partition("## Variables")[0].splitlines():
        names, severity = [cell.strip() for cell in f"{line}||".split("|")[1:3]]
        told |= dict.fromkeys(re.findall(r"`(\w+)`", names), severity)
    assert told == {name: check.severity for name, check in CHECKS.items()}
