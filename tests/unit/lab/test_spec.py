# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Names and addresses of a lab, and labs beside each other."""

from __future__ import annotations

import io
import json
import re
import tarfile
from pathlib import Path

import pytest
import yaml

from lab import seed, spec, ssh
from lab.spec import PORTS, Lab, port_by_name
from lab.system import LabError


@pytest.fixture(autouse=True)
def _state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spec, "STATE", tmp_path)


def test_ports_have_the_names_of_a_spark() -> None:
    assert [(port.netdev, port.hca, port.pci, port.tag) for port in PORTS] == [
        ("enp1s0f0np0", "rocep1s0f0", "0000:01:00.0", "f0a"),
        ("enP2p1s0f0np0", "roceP2p1s0f0", "0002:01:00.0", "f0b"),
        ("enp1s0f1np1", "rocep1s0f1", "0000:01:00.1", "f1a"),
        ("enP2p1s0f1np1", "roceP2p1s0f1", "0002:01:00.1", "f1b"),
    ]


def test_no_mac_is_used_twice_among_two_labs_of_eight() -> None:
    macs = [
        mac
        for index in (0, 255)
        for host in Lab("x", index, hosts_wanted=8).hosts
        for mac in [host.management_mac, *(host.mac(port) for port in PORTS)]
    ]
    assert len(macs) == len(set(macs)) == 2 * 8 * 5


def test_twins_of_a_cable_have_a_network_each() -> None:
    given = [(h.name, p.netdev, a) for h, p, a in Lab("x", 0).fabric_addresses()]
    assert given[:4] == [
        ("spark1", "enp1s0f0np0", "10.100.0.1/24"),
        ("spark1", "enP2p1s0f0np0", "10.101.0.1/24"),
        ("spark2", "enp1s0f1np1", "10.100.0.2/24"),
        ("spark2", "enP2p1s0f1np1", "10.101.0.2/24"),
    ]
    assert len(given) == 16


def test_a_lab_survives_its_file() -> None:
    lab = Lab("mine", 3, backend="vm", hosts_wanted=2, cabling="pair", addressed=False)
    lab.save()
    assert spec.load("mine") == lab
    assert spec.load("other") is None


def test_a_damaged_file_names_itself_and_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad/lab.json").write_text('{"name": "bad"')
    with pytest.raises(LabError, match=r"bad/lab.json.*lab --name bad down"):
        spec.load("bad")


@pytest.mark.parametrize(
    ("routes", "expected"),
    [
        ([], 0),
        (["10.98.0.0/24"], 1),
        (["10.98.0.0/23", "192.168.1.0/24"], 2),
        (["10.98.0.7"], 1),
    ],
)
def test_management_network_avoids_what_the_machine_routes(
    routes: list[str], expected: int
) -> None:
    assert spec.free_index(routes) == expected


def test_management_network_avoids_other_labs_and_ends_readably() -> None:
    Lab("one", 0).save()
    assert spec.free_index([]) == 1
    with pytest.raises(LabError, match=r"no free /24"):
        spec.free_index(["10.0.0.0/8"])


@pytest.mark.parametrize("name", ["", "Lab", "1st", "a" * 21, "a/b", "a b"])
def test_names_that_cannot_be_interfaces_are_refused(name: str) -> None:
    with pytest.raises(LabError, match="letter first"):
        spec.valid_name(name)


def test_unknown_port_and_host_name_what_exists() -> None:
    with pytest.raises(LabError, match="enP2p1s0f1np1"):
        port_by_name("eth0")
    with pytest.raises(LabError, match="it has: spark1, spark2, spark3, spark4"):
        Lab("x", 0).host("spark9")


@pytest.mark.parametrize("backend", spec.BACKENDS)
def test_archive_makes_one_host_of_a_common_system(tmp_path: Path, backend: str) -> None:
    lab = Lab("x", 0, backend=backend)
    lab.state.mkdir()
    (lab.state / "id_ed25519.pub").write_text("ssh-ed25519 AAAA lab\n")
    host = lab.host("spark2")
    lab.folder(host).mkdir()
    for name in ("ssh_host_ed25519_key", "ssh_host_ed25519_key.pub"):
        (lab.folder(host) / name).write_text("key\n")
    with tarfile.open(fileobj=io.BytesIO(seed.archive(lab, host))) as tar:
        names = {entry.name.removeprefix("./"): entry for entry in tar.getmembers()}

        def text(path: str) -> str:
            handle = tar.extractfile(names[path])
            assert handle is not None
            return handle.read().decode()

        assert text("etc/hostname") == "spark2\n"
        assert "10.98.0.11 spark1\n" in text("etc/hosts")
        assert "127.0.1.1" not in text("etc/hosts")
        management = json.loads(text("etc/netplan/01-management.yaml"))
        assert management["network"]["ethernets"]["enP7s7"]["addresses"] == ["10.98.0.12/24"]
        assert names["etc/netplan/01-management.yaml"].mode == 0o600
        assert names["etc/ssh/ssh_host_ed25519_key"].mode == 0o600
        assert names["etc/sudoers.d/sparklab"].mode == 0o440
        assert names["home/spark/.ssh/authorized_keys"].uid == 1000
        assert names["usr/sbin/sparklab-init"].mode == 0o755
        assert ("etc/systemd/network/10-enP7s7.link" in names) is (backend == "vm")
        assert {entry.uid for entry in tar if not entry.name.startswith("home/")} == {0}
        assert not [name for name in names if "__pycache__" in name]


def test_the_inventory_in_the_repository_is_that_of_the_default_lab() -> None:
    path = Path(__file__).resolve().parents[3] / "inventories/lab.yml"
    written = yaml.safe_load(path.read_text())["sparks"]
    made = ssh.inventory(Lab("lab", 0))["sparks"]
    assert list(written["hosts"]) == list(made["hosts"])
    for name, tail in [
        ("ansible_ssh_common_args", "ssh_config"),
        ("ansible_control_path_dir", "cp"),
    ]:
        assert made["vars"].pop(name).endswith(f"/lab/{tail}")
        # in the repository the lab's name comes from the environment
        assert re.search(rf"'LAB_NAME', default='lab'\) }}}}/{tail}$", written["vars"].pop(name))
    assert written["vars"] == made["vars"]


def test_a_lab_of_several_cells_has_a_group_for_each_and_a_router() -> None:
    lab = Lab("two", 1, hosts_wanted=4, cabling="pairs")
    cells = {name: [host.name for host in hosts] for name, hosts in lab.cells.items()}
    assert cells == {"cell_a": ["spark1", "spark2"], "cell_b": ["spark3", "spark4"]}
    found = ssh.inventory(lab)["all"]
    assert found["vars"]["router_cells"] == ["cell_a", "cell_b"]
    assert found["children"]["spark_cells"]["children"]["cell_b"] == {
        "hosts": {
            "spark3": {"ansible_host": "10.98.1.13"},
            "spark4": {"ansible_host": "10.98.1.14"},
        },
        "vars": {"spark_group": "cell_b", "spark_fabric_cell": 1},
    }
    assert found["children"]["spark_routers"] == {"hosts": {"spark1": None}}
    assert list(Lab("one", 1).cells) == list(ssh.inventory(Lab("one", 1))) == ["sparks"]
