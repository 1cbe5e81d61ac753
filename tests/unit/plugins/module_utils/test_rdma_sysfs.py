"""RDMA devices as kernels, other vendors' cards and broken links show them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _rdma_sysfs
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Missing
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rdma_sysfs import (
    pci_address,
    rdma_devices,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._tree import Tree

from tests.unit.conftest import MakeMachine

IB = "files/sys/class/infiniband"


def devices_of(machine: Any) -> dict[str, dict[str, Any]]:
    devices = rdma_devices(machine.tree)
    assert not isinstance(devices, Missing)
    return {device["name"]: device for device in devices}


def test_a_healthy_spark(make_machine: MakeMachine) -> None:
    devices = devices_of(make_machine())
    assert list(devices) == ["roceP2p1s0f0", "roceP2p1s0f1", "rocep1s0f0", "rocep1s0f1"]
    assert devices["roceP2p1s0f0"] == {
        "name": "roceP2p1s0f0",
        "pci": "0002:01:00.0",
        "netdevs": ["enP2p1s0f0np0"],
        "node_guid": "fc4c:ea03:00f9:4234",
        "fw_ver": "28.45.4028",
        "board_id": "NVD0000000087",
        "virtual_function": False,
        "pcie_speed": 32.0,
        "pcie_max_speed": 32.0,
        "pcie_width": 4,
        "pcie_max_width": 16,
        "ports": [
            {
                "port": "1",
                "state": "ACTIVE",
                "physical_state": "LinkUp",
                "rate_gbps": 200.0,
                "link_layer": "Ethernet",
                "why": {},
            }
        ],
        "uverbs": "uverbs2",
        "uverbs_present": True,
        "vanished": False,
        "why": {},
    }


def test_a_port_without_a_cable_refuses_its_rate_and_nothing_else(
    make_machine: MakeMachine,
) -> None:
    devices = devices_of(make_machine())
    (port,) = devices["rocep1s0f1"]["ports"]
    assert (port["state"], port["physical_state"], port["rate_gbps"]) == ("DOWN", "Disabled", None)
    assert port["why"] == {"rate_gbps": "Invalid argument"}
    assert all(device["fw_ver"] for device in devices.values())


# What is expected of one device after a change to the healthy machine.
CASES: dict[str, tuple[Mapping[str, Any], str, Mapping[str, Any]]] = {
    "other vendor, few attributes": (
        {
            f"{IB}/irdma0": {
                "node_guid": "5054:00ff:fe12:3456",
                "fw_ver": "1.71",
                "device": {"net": {"eno1": {}}},
                "ports": {"1": {"state": "4: ACTIVE", "rate": "25 Gb/sec (1X EDR)"}},
            }
        },
        "irdma0",
        {"board_id": None, "netdevs": ["eno1"], "fw_ver": "1.71", "pcie_width": None},
    ),
    "bonded": (
        {f"{IB}/mlx5_bond_0": {"device": {"net": {"enp1s0f0np0": {}, "enp1s0f1np1": {}}}}},
        "mlx5_bond_0",
        {"netdevs": ["enp1s0f0np0", "enp1s0f1np1"], "ports": []},
    ),
    "Soft-RoCE has no PCI function and no firmware": (
        {f"{IB}/rxe0": {"parent": "enp1s0f0np0", "ports": {"1": {"state": "4: ACTIVE"}}}},
        "rxe0",
        {"netdevs": ["enp1s0f0np0"], "pci": None, "fw_ver": None, "pcie_speed": None},
    ),
    "no netdev at all": (
        {f"{IB}/smi1": {"device": {}, "ports": {"1": {}, "2": {}, "3": {}, "4": {}}}},
        "smi1",
        {"netdevs": []},
    ),
    "virtual function": (
        {"files/sys/devices/0000:01:00.0/physfn": {}},
        "rocep1s0f0",
        {"virtual_function": True},
    ),
    "character device missing": (
        {"files/dev/infiniband/uverbs1": None},
        "rocep1s0f1",
        {"uverbs": "uverbs1", "uverbs_present": False},
    ),
    "no verbs class": (
        {"files/sys/class/infiniband_verbs": None},
        "rocep1s0f0",
        {"uverbs": None, "uverbs_present": False},
    ),
    "a link the kernel knows nothing about": (
        {
            "files/sys/devices/0000:01:00.0/current_link_width": "0",
            "files/sys/devices/0000:01:00.0/current_link_speed": "Unknown",
        },
        "rocep1s0f0",
        {"pcie_width": None, "pcie_speed": None},
    ),
    "half the lanes": (
        {"files/sys/devices/0002:01:00.1/current_link_width": "2"},
        "roceP2p1s0f1",
        {"pcie_width": 2, "pcie_max_width": 16},
    ),
    "unreadable firmware": (
        {f"{IB}/rocep1s0f0/fw_ver": "! EIO"},
        "rocep1s0f0",
        {"fw_ver": None, "board_id": "NVD0000000087"},
    ),
}


@pytest.mark.parametrize(("changes", "name", "expected"), CASES.values(), ids=CASES)
def test_devices_out_of_the_ordinary(
    make_machine: MakeMachine,
    changes: Mapping[str, Any],
    name: str,
    expected: Mapping[str, Any],
) -> None:
    devices = devices_of(make_machine(changes))
    assert {key: devices[name][key] for key in expected} == expected
    for key, value in expected.items():
        if value is None:
            assert devices[name]["why"][key]
    assert len(devices) >= 4, "one odd device must not hide the others"


def test_no_rdma_at_all(make_machine: MakeMachine) -> None:
    found = rdma_devices(make_machine({IB: None}).tree)
    assert isinstance(found, Missing)
    assert found == "No such file or directory"


def test_a_driver_that_reloads_lists_no_device_twice(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """mlx5_0 goes away during the walk and comes back as rocep1s0f0."""
    machine = make_machine()
    path = Path(machine.tree.path("sys/class/infiniband"))
    (path / "rocep1s0f0").rename(path / "mlx5_0")
    port = _rdma_sysfs._port

    def rename_then_read(tree: Tree, base: str, number: str) -> dict[str, Any]:
        if (path / "mlx5_0").exists():
            (path / "mlx5_0").rename(path / "rocep1s0f0")
        return port(tree, base, number)

    monkeypatch.setattr(_rdma_sysfs, "_port", rename_then_read)
    devices = rdma_devices(machine.tree)
    assert not isinstance(devices, Missing)
    assert [device["name"] for device in devices] == [
        "roceP2p1s0f0",
        "roceP2p1s0f1",
        "rocep1s0f0",
        "rocep1s0f1",
    ]
    assert not any(device["vanished"] for device in devices)


def test_a_device_that_is_gone_twice_is_said_to_have_vanished(
    make_machine: MakeMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = make_machine()
    gone = Path(machine.tree.path("sys/class/infiniband/rocep1s0f0"))
    listing = sorted(path.name for path in gone.parent.iterdir())
    shutil.rmtree(gone)
    names = Tree.names

    def stale(self: Tree, relative: str) -> list[str] | Missing:
        return listing if relative == "sys/class/infiniband" else names(self, relative)

    monkeypatch.setattr(Tree, "names", stale)
    devices = devices_of(machine)
    assert [name for name, device in devices.items() if device["vanished"]] == ["rocep1s0f0"]
    assert devices["roceP2p1s0f0"]["fw_ver"] == "28.45.4028"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000000F:01:00.0", "000f:01:00.0"),
        ("0002:01:00.1", "0002:01:00.1"),
        ("00000000:01:00.0", "0000:01:00.0"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("rxe0", None),
        ("", None),
    ],
)
def test_pci_addresses(text: str, address: str | None) -> None:
    found = pci_address(text)
    assert (None if isinstance(found, Missing) else found) == address
