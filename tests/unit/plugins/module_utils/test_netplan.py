# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What other netplan files do with our ports is seen, whatever form they say it in."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.module_utils._netplan import (
    Device,
    Files,
    render,
)

OWN = "etc/netplan/99-sparkfleet-fabric.yaml"
PORT = Device("enp1s0f0np0", "4c:bb:47:00:00:10", "mlx5_core")
OURS: dict[str, Any] = {
    "renderer": "networkd",
    "dhcp4": False,
    "link-local": [],
    "mtu": 9000,
    "addresses": ["10.100.0.11/24"],
}


def files(**texts: str) -> Files:
    """Files by name without the ending: ``_50_a`` is etc/netplan/50-a.yaml."""
    named = {f"etc/netplan/{name[1:].replace('_', '-')}.yaml": text for name, text in texts.items()}
    return Files(named, OWN)


def claims(others: Files) -> list[tuple[str, str]]:
    found = others.claims([PORT], {PORT.name: OURS})
    return [(claim.path.removeprefix("/etc/netplan/"), claim.what) for claim in found]


def one(definition: str, kind: str = "ethernets", key: str = "enp1s0f0np0") -> str:
    return f"network: {{version: 2, {kind}: {{{key}: {definition}}}}}"


@pytest.mark.parametrize(
    ("definition", "what"),
    [
        ("{addresses: [10.9.9.9/24]}", "it sets addresses (10.9.9.9/24)"),
        (
            "{addresses: [10.9.9.9/24: {label: x}, 10.8.8.8/24]}",
            "it sets addresses (10.9.9.9/24, 10.8.8.8/24)",
        ),
        ("{routes: [{to: 10.0.0.0/8, via: 10.1.1.1}], dhcp4: true}", "it sets routes"),
        ("{gateway4: 10.1.1.1}", "it sets gateway4"),
        ("{activation-mode: manual}", "it sets activation-mode"),
        ("{match: {macaddress: '4c:bb:47:ff:ff:ff'}}", "its match: is for another device"),
        (
            "{match: {}, addresses: [169.254.7.7/16], networkmanager: {name: Wired connection 2}}",
            "NetworkManager keeps a profile for it (169.254.7.7/16)",
        ),
    ],
)
def test_a_definition_under_the_same_name_that_would_add_to_ours(definition, what):
    assert claims(files(_40_cx7=one(definition))) == [("40-cx7.yaml", what)]


@pytest.mark.parametrize(
    "definition",
    [
        "{link-local: [ipv4], dhcp4: true, mtu: 1500}",  # NVIDIA's playbook, all overridden
        "{addresses: [], routes: []}",
        "{match: {macaddress: '4C:BB:47:00:00:10'}, set-name: enp1s0f0np0, wakeonlan: true}",
        "{}",
        "null",
        "nonsense",
    ],
)
def test_a_definition_that_ours_overrides_is_no_claim(definition):
    assert claims(files(_40_cx7=one(definition))) == []


@pytest.mark.parametrize(
    ("key", "definition"),
    [
        ("cx7", "{match: {name: 'enp1s0f*'}, dhcp4: true}"),
        ("cx7", "{match: {macaddress: '4C:BB:47:00:00:10'}}"),
        ("cx7", "{match: {driver: mlx5_core}}"),
        ("cx7", "{match: {driver: [e1000, 'mlx5*'], name: 'en*'}}"),
        ("cx7", "{match: {}}"),
        ("NM-1b2c", "{match: {name: enp1s0f0np0}, networkmanager: {uuid: 1b2c}}"),
        (
            "NM-1b2c",
            "{match: {}, networkmanager: {passthrough: {connection.interface-name: enp1s0f0np0}}}",
        ),
    ],
)
def test_a_definition_under_another_name_that_is_for_the_port(key, definition):
    assert claims(files(_50_x=one(definition, key=key))) == [
        ("50-x.yaml", f"its definition {key} is for it too")
    ]


@pytest.mark.parametrize(
    ("key", "definition"),
    [
        ("cx7", "{match: {name: 'enp1s0f1*'}}"),
        ("cx7", "{match: {name: 'ENP1*'}}"),
        ("cx7", "{match: {name: 'en*', driver: r8127}}"),
        ("enP2p1s0f0np0", "{addresses: [10.1.1.1/24]}"),
        # a profile that NetworkManager gives to one device at a time, bound to none or to another
        ("NM-1b2c", "{match: {}, networkmanager: {uuid: 1b2c, name: Wired connection 1}}"),
        (
            "NM-1b2c",
            "{match: {}, networkmanager: {passthrough: {connection.interface-name: enP7s7}}}",
        ),
    ],
)
def test_a_definition_for_another_device(key, definition):
    assert claims(files(_50_x=one(definition, key=key))) == []


@pytest.mark.parametrize(
    ("kind", "definition", "what"),
    [
        ("bonds", "{interfaces: [enp1s0f0np0, enP2p1s0f0np0]}", "x of its bonds is made of it"),
        ("bridges", "{interfaces: [enp1s0f0np0]}", "x of its bridges is made of it"),
        ("vlans", "{id: 7, link: enp1s0f0np0}", "x of its vlans is made of it"),
        ("vrfs", "{table: 7, interfaces: [enp1s0f0np0]}", "x of its vrfs is made of it"),
    ],
)
def test_a_device_made_of_the_port(kind, definition, what):
    assert claims(files(_50_x=one(definition, kind, "x"))) == [("50-x.yaml", what)]


def test_a_bond_of_a_definition_that_is_for_the_port():
    text = (
        "network: {ethernets: {a: {match: {name: 'enp1*'}}}, bonds: {bond0: {interfaces: [a, b]}}}"
    )
    assert [what for _path, what in claims(files(_50_x=text))] == [
        "its definition a is for it too",
        "bond0 of its bonds is made of it",
    ]


def test_a_file_after_ours_may_not_override_it():
    later = files(_99_z=one("{mtu: 1500, dhcp4: no, link-local: [ipv4]}"))
    assert claims(later) == [("99-z.yaml", "it sets link-local, mtu")]
    assert claims(files(_99_z=one("{mtu: 9000, dhcp4: off, link-local: []}"))) == []


def test_the_profile_that_networkmanager_wrote_is_named():
    text = one("{networkmanager: {uuid: 1b2c, name: Wired connection 2}}")
    (claim,) = files(_90_NM_1b2c=text).claims([PORT], {PORT.name: OURS})
    assert (claim.path, claim.profile) == ("/etc/netplan/90-NM-1b2c.yaml", "Wired connection 2")


def test_files_that_netplan_does_not_read_do_not_count():
    addressed = one("{addresses: [10.9.9.9/24]}")
    names = ["etc/netplan/50-x.yml", "etc/netplan/50-x.yaml.bak", "etc/other/50-x.yaml", OWN]
    assert claims(Files(dict.fromkeys(names, addressed), OWN)) == []


def test_a_file_hides_one_of_the_same_name_in_an_earlier_directory():
    texts = {"lib/netplan/50-x.yaml": one("{addresses: [10.9.9.9/24]}")}
    assert len(claims(Files(texts, OWN))) == 1
    assert claims(Files({**texts, "etc/netplan/50-x.yaml": "network: {}"}, OWN)) == []
    hiding = Files({"run/netplan/99-sparkfleet-fabric.yaml": "network: {}", OWN: ""}, OWN)
    assert hiding.problems == [
        f"/run/netplan/99-sparkfleet-fabric.yaml hides /{OWN} from netplan; remove it"
    ]
    assert Files({"lib/netplan/99-sparkfleet-fabric.yaml": "network: {}"}, OWN).problems == []


def test_a_broken_file_is_named_by_line_and_not_quoted():
    broken = "network:\n  wifis: {w: {access-points: {home: {password: secret}}}\n  bad"
    (problem,) = files(_50_x=broken).problems
    assert problem.startswith("/etc/netplan/50-x.yaml, line ")
    assert "secret" not in problem


@pytest.mark.parametrize("text", ["", "null", "[]", "just text", "network: 7", "other: {}"])
def test_a_file_without_definitions(text):
    assert claims(files(_50_x=text)) == []
    assert files(_50_x=text).problems == []


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({}, "networkd"),
        ({"_01_all": "network: {renderer: NetworkManager}"}, "NetworkManager"),
        (
            {
                "_01_all": "network: {renderer: NetworkManager}",
                "_50_x": "network: {renderer: networkd}",
            },
            "networkd",
        ),
        ({"_50_x": "network: {ethernets: {renderer: NetworkManager}}"}, "NetworkManager"),
        (
            {
                "_01_all": "network: {renderer: NetworkManager}",
                "_40_x": one("{renderer: networkd, link-local: []}"),
            },
            "networkd",
        ),
        ({"_40_x": one("{renderer: NetworkManager}", key="enP7s7")}, "networkd"),
        (
            {"_90_NM": one("{renderer: NetworkManager, match: {name: 'enp1*'}}", key="NM-7")},
            "NetworkManager",
        ),
    ],
)
def test_the_renderer_is_the_one_that_manages_the_port_already(texts, expected):
    assert files(**texts).renderer(PORT) == expected


def test_rendering_is_read_back_as_it_was_meant():
    definitions: dict[str, dict[str, Any]] = {
        "enp1s0f0np0": {**OURS, "routes": [{"to": "10.100.4.0/22", "via": "10.100.0.12"}]},
        "on": {"mtu": 9000},
        "0e1": {"mtu": 9000},
    }
    text = render(definitions, "one\ntwo")
    assert text.startswith("# one\n# two\nnetwork:\n  version: 2\n  ethernets:\n    enp1s0f0np0:\n")
    assert yaml.safe_load(text) == {"network": {"version": 2, "ethernets": definitions}}
    assert render(definitions, "one\ntwo") == text
