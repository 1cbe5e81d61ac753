"""Cables made of what is heard, on simulated wires: everybody on a segment hears everybody."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.filter import link_cables as link_cables_filter
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_plan import fabric_plan
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_cables import (
    PROBLEMS,
    link_cables,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_probe import PORTS

from lab.cabling import cables

Results = dict[str, dict[str, Any]]
STRANGER = "02:ff:00:00:00:01"
OWN = {"frames": 8, "probes": 8, "other_runs": 0}


def mac(host: str, cage: int, domain: int) -> str:
    return f"02:00:00:00:0{host[-1]}:{cage + 1}{domain // 2}"


def hear(hosts: int, segments: Sequence[Sequence[str]]) -> Results:
    """What fabric_neighbours_info returns of each host, with these cages on common wires."""
    wires = [[tuple(end.split(":")) for end in segment] for segment in segments]
    results: Results = {}
    for number in range(1, hosts + 1):
        host = f"spark{number}"
        ports = []
        for port in PORTS:
            wire = next((w for w in wires if (host, str(port["cage"])) in w), [])
            own = mac(host, port["cage"], port["domain"])
            heard = [mac(h, int(cage), domain) for h, cage in wire for domain in (0, 2)]
            ports.append(
                {
                    **port,
                    "state": "up" if wire else "no-carrier",
                    "carrier_seen": bool(wire),
                    "raised": False,
                    "mac": own,
                    "mtu": 9000,
                    "speed_mbps": 200000,
                    "heard": [{"mac": m, **OWN} for m in sorted(set(heard) - {own})],
                }
            )
        results[host] = {
            "probed": True,
            "why": None,
            "ports": ports,
            "macs": {
                **{port["netdev"]: port["mac"] for port in ports},
                "enP7s7": f"02:00:00:00:0{number}:00",
                "docker0": "02:42:00:00:00:01",
            },
            "lldp": None,
            "lldp_why": "lldpctl is not installed",
        }
    return results


def wired(cabling: str, hosts: int) -> list[list[str]]:
    return [
        [f"spark{end.host + 1}:{end.cage}" for end in cable.ends]
        for cable in cables(cabling, hosts)
    ]


def port(results: Results, host: str, netdev: str) -> dict[str, Any]:
    found: dict[str, Any] = next(p for p in results[host]["ports"] if p["netdev"] == netdev)
    return found


def forget(results: Results, host: str, netdev: str, *macs: str) -> None:
    """Let a port not have heard some MACs; all when none is given."""
    entry = port(results, host, netdev)
    entry["heard"] = [h for h in entry["heard"] if macs and h["mac"] not in macs]


def add(results: Results, host: str, netdev: str, source: str, **count: int) -> None:
    port(results, host, netdev)["heard"].append({"mac": source, **OWN, "probes": 0, **count})


def rename(results: Results, old: str, new: str | None) -> None:
    """Let a port have another MAC, or none because it does not exist."""
    for result in results.values():
        result["macs"] = {n: new if m == old else m for n, m in result["macs"].items()}
        result["macs"] = {n: m for n, m in result["macs"].items() if m}
        for entry in result["ports"]:
            entry["mac"] = new if entry["mac"] == old else entry["mac"]
            heard = [{**h, "mac": new if h["mac"] == old else h["mac"]} for h in entry["heard"]]
            entry["heard"] = [h for h in heard if h["mac"]]


def ends(found: Mapping[str, Any]) -> list[list[str]]:
    return [cable["ends"] for cable in found["cables"]]


@pytest.mark.parametrize(
    ("cabling", "hosts", "codes"),
    [
        ("pair", 2, set()),
        ("triangle", 3, set()),
        ("ring", 4, set()),
        ("ring", 6, set()),
        ("swapped-cage", 4, set()),
        ("two-pairs", 4, set()),
        ("line", 4, set()),
        ("double-link", 4, set()),
        ("switch", 4, {"switch"}),
        ("switch", 2, set()),  # nothing tells it from a cable
    ],
)
def test_every_cabling_is_found(cabling: str, hosts: int, codes: set[str]) -> None:
    found = link_cables(hear(hosts, wired(cabling, hosts)))
    assert sorted(ends(found)) == sorted(sorted(cable) for cable in wired(cabling, hosts))
    assert {problem["code"] for problem in found["problems"]} == codes
    assert all(
        [twin["heard"] for twin in cable["twins"]] == ["both", "both"]
        for cable in found["cables"]
        if len(cable["ends"]) == 2
    )


def test_own_twin_may_be_deaf_to_the_other() -> None:
    """A NIC that passes nothing between its own functions changes nothing."""
    results = hear(4, wired("ring", 4))
    for result in results.values():
        own = set(result["macs"].values())
        for entry in result["ports"]:
            entry["heard"] = [h for h in entry["heard"] if h["mac"] not in own]
    assert link_cables(results)["problems"] == []
    assert len(link_cables(results)["cables"]) == 4


def test_twins_that_hear_only_their_own_domain_are_one_cable() -> None:
    results = hear(2, [["spark1:0", "spark2:1"]])
    for host, cage, far in (("spark1", 0, ("spark2", 1)), ("spark2", 1, ("spark1", 0))):
        for domain, other in ((0, 2), (2, 0)):
            netdev = next(p for p in PORTS if (p["cage"], p["domain"]) == (cage, domain))["netdev"]
            forget(results, host, netdev, mac(*far, other), mac(host, cage, other))
    found = link_cables(results)
    assert (ends(found), found["problems"]) == ([["spark1:0", "spark2:1"]], [])


def test_what_a_cable_and_a_port_look_like() -> None:
    found = link_cables(hear(2, [["spark1:0", "spark2:1"]]))
    assert found["cables"] == [
        {
            "ends": ["spark1:0", "spark2:1"],
            "twins": [
                {"domain": 0, "netdevs": ["enp1s0f0np0", "enp1s0f1np1"], "heard": "both"},
                {"domain": 2, "netdevs": ["enP2p1s0f0np0", "enP2p1s0f1np1"], "heard": "both"},
            ],
        }
    ]
    assert found["hosts"]["spark2"]["ports"][2] == {
        "netdev": "enp1s0f1np1",
        "cage": 1,
        "domain": 0,
        "mac": "02:00:00:00:02:20",
        "state": "up",
        "mtu": 9000,
        "speed_mbps": 200000,
        "peers": ["spark1:0"],
        "unknown": [],
    }


# --- each problem, made from a ring that is right ---


def lose_a_host(results: Results) -> None:
    del results["spark3"]


def no_right(results: Results) -> None:
    results["spark3"].update(probed=False, why="no right to send frames on enp1s0f0np0")
    for host, entries in ((h, r["ports"]) for h, r in results.items()):
        for entry in entries:
            gone = [] if host != "spark3" else entry["heard"]
            entry["heard"] = [
                h
                for h in entry["heard"]
                if h not in gone and not h["mac"].startswith("02:00:00:00:03")
            ]


def no_right_but_lldp(results: Results) -> None:
    no_right(results)
    results["spark3"]["lldp"] = [
        {"netdev": "enp1s0f1np1", "mac": mac("spark2", 0, 0), "chassis_name": "spark2"},
        {"netdev": "enp1s0f0np0", "mac": mac("spark4", 1, 0), "chassis_name": "spark4"},
        {"netdev": "enp1s0f0np0", "mac": mac("spark3", 0, 2), "chassis_name": "spark3"},
        {"netdev": "enp1s0f0np0", "mac": None, "chassis_name": "a telephone"},
    ]
    for entry in results["spark3"]["lldp"]:
        entry.update(chassis_id="x", port_id="y")


def missing_port(results: Results) -> None:
    rename(results, mac("spark1", 0, 2), None)
    entry = port(results, "spark1", "enP2p1s0f0np0")
    entry.update(state="missing", mtu=None, carrier_seen=False, heard=[])


def down_port(results: Results) -> None:
    port(results, "spark1", "enP2p1s0f0np0").update(state="down", carrier_seen=False, heard=[])


def unplugged(results: Results) -> None:
    for host, cage in (("spark1", 0), ("spark2", 1)):
        for entry in results[host]["ports"]:
            if entry["cage"] == cage:
                entry.update(state="no-carrier", carrier_seen=False, heard=[])


def dead_twin(results: Results) -> None:
    entry = port(results, "spark1", "enP2p1s0f0np0")
    entry.update(state="no-carrier", carrier_seen=False, heard=[])


def silence(results: Results) -> None:
    for host, cage in (("spark1", 0), ("spark2", 1)):
        for entry in results[host]["ports"]:
            if entry["cage"] == cage:
                own = [mac(host, cage, domain) for domain in (0, 2)]
                entry["heard"] = [h for h in entry["heard"] if h["mac"] in own]


def grouped_by_slot(results: Results) -> None:
    """Netdevs of spark1 paired by PCI domain instead of function."""
    for entry in results["spark1"]["ports"]:
        entry.update(cage=entry["domain"] // 2, domain=2 * entry["cage"])


def deaf_twin(results: Results) -> None:
    forget(results, "spark1", "enp1s0f0np0", mac("spark2", 1, 0))


def silent_twins(results: Results) -> None:
    forget(results, "spark1", "enp1s0f0np0", mac("spark2", 1, 0))
    forget(results, "spark2", "enp1s0f1np1", mac("spark1", 0, 0))


def duplicate(results: Results) -> None:
    rename(results, mac("spark1", 0, 0), mac("spark4", 0, 0))


def stranger(results: Results) -> None:
    unplugged(results)
    for entry in results["spark1"]["ports"][:2]:
        entry.update(state="up", carrier_seen=True)
    add(results, "spark1", "enp1s0f0np0", STRANGER)


def other_cell(results: Results) -> None:
    unplugged(results)
    for entry in results["spark1"]["ports"][:2]:
        entry.update(state="up", carrier_seen=True)
    add(results, "spark1", "enp1s0f0np0", STRANGER, other_runs=3)


def lan(results: Results) -> None:
    unplugged(results)
    for entry in results["spark1"]["ports"][:2]:
        entry.update(state="up", carrier_seen=True)
    add(results, "spark1", "enp1s0f0np0", "02:00:00:00:03:00")


NO_CARRIER_2 = ("no-carrier", "spark2 cage 1 has no carrier; seat its cable at both ends.")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lose_a_host, [("host-missing", "spark3 told nothing")]),
        (
            no_right,
            [
                ("nobody-heard", "spark2 cage 0 has a carrier, but nobody is heard"),
                ("not-probed", "spark3 did not listen: no right to send frames on enp1s0f0np0."),
                ("nobody-heard", "spark4 cage 1 has a carrier, but nobody is heard"),
            ],
        ),
        (no_right_but_lldp, [("lldp-only", "spark3 did not listen (no right")]),
        (missing_port, [("port-missing", "enP2p1s0f0np0 of spark1 (spark1 cage 0) does not")]),
        (down_port, [("port-down", "enP2p1s0f0np0 of spark1 (spark1 cage 0) is administrative")]),
        (
            unplugged,
            [
                ("no-carrier", "spark1 cage 0 has no carrier; seat its cable at both ends."),
                NO_CARRIER_2,
            ],
        ),
        (dead_twin, [("twin-no-carrier", "enP2p1s0f0np0 of spark1 has no carrier although its")]),
        (
            silence,
            [
                ("nobody-heard", "spark1 cage 0 has a carrier, but nobody is heard"),
                ("nobody-heard", "spark2 cage 1 has a carrier, but nobody is heard"),
            ],
        ),
        (
            grouped_by_slot,
            [
                (
                    "twins-differ",
                    (
                        "spark1 cage 0: enp1s0f0np0 leads to spark2 cage 1 and enp1s0f1np1 leads "
                        "to spark4 cage 0, but one cable"
                    ),
                ),
                (
                    "twins-differ",
                    "spark1 cage 1: enP2p1s0f0np0 leads to spark2 cage 1 and enP2p1s0f1np1 leads",
                ),
            ],
        ),
        (
            deaf_twin,
            [("one-way", "enp1s0f1np1 of spark2 hears enp1s0f0np0 of spark1, but not the other")],
        ),
        (
            silent_twins,
            [("twin-silent", "enp1s0f0np0 of spark1 and enp1s0f1np1 of spark2 do not hear each")],
        ),
        (
            duplicate,
            [
                (
                    "duplicate-mac",
                    (
                        "enp1s0f0np0 of spark4 and enp1s0f0np0 of spark1 both have the MAC "
                        "02:00:00:00:04:10"
                    ),
                )
            ],
        ),
        (
            stranger,
            [
                (
                    "unknown-mac",
                    (
                        "spark1 cage 0 hears a device that is not in this inventory: "
                        "02:ff:00:00:00:01; add that host"
                    ),
                ),
                NO_CARRIER_2,
            ],
        ),
        (
            other_cell,
            [
                ("unknown-mac", "spark1 cage 0 hears a Spark which another run is"),
                NO_CARRIER_2,
            ],
        ),
        (
            lan,
            [
                ("other-network", "spark1 cage 0 hears enP7s7 of spark3, which is not"),
                NO_CARRIER_2,
            ],
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_problems(change: Callable[[Results], None], told: list[tuple[str, str]]) -> None:
    results = hear(4, wired("ring", 4))
    change(results)
    found = link_cables(results, fabric_plan([f"spark{n}" for n in range(1, 5)], "ring"))
    assert [problem["code"] for problem in found["problems"]] == [code for code, _text in told]
    for problem, (_code, text) in zip(found["problems"], told, strict=True):
        assert text in problem["message"]


# --- wires that are no ring ---

SWITCH = [[f"spark{n}:0" for n in range(1, 5)]]


@pytest.mark.parametrize(
    ("segments", "topology", "told"),
    [
        (SWITCH, "switch", []),
        (SWITCH, None, [("switch", "spark1 cage 0 is on one segment with spark2 cage 0, ")]),
        (
            [[*SWITCH[0], "spark2:1"]],
            "switch",
            [
                (
                    "both-cages",
                    "spark2 cage 0 and the other cage of this host are on one segment, wi",
                )
            ],
        ),
        ([["spark1:0", "spark1:1"]], None, [("loop", "spark1 cage 0: one cable connects both")]),
        ([["spark1:0"]], None, [("nobody-heard", "spark1 cage 0 has a carrier, but nobody")]),
        ([["spark1:1"]], "switch", [("no-carrier", f"spark{n} cage 0") for n in range(1, 5)]),
    ],
)
def test_other_wires(segments: Any, topology: str | None, told: list[tuple[str, str]]) -> None:
    """What the plan leaves empty is nobody's concern, and a planned switch is no problem."""
    plan = fabric_plan([f"spark{n}" for n in range(1, 5)], topology) if topology else None
    problems = link_cables(hear(4, segments), plan)["problems"]
    assert [problem["code"] for problem in problems] == [code for code, _text in told]
    for problem, (_code, text) in zip(problems, told, strict=True):
        assert text in problem["message"]


def test_a_switch_is_called_by_its_name() -> None:
    results = hear(4, SWITCH)
    add(results, "spark1", "enp1s0f0np0", STRANGER)
    results["spark1"]["lldp"] = [
        {
            "netdev": "enp1s0f0np0",
            "mac": STRANGER,
            "chassis_id": STRANGER,
            "chassis_name": "CRS812",
            "port_id": "qsfp56-dd-1-1",
        }
    ]
    switch, unknown = link_cables(results)["problems"]
    assert "so there is a switch (LLDP: CRS812, port qsfp56-dd-1-1) where" in switch["message"]
    assert "(LLDP: CRS812, port qsfp56-dd-1-1): 02:ff" in unknown["message"]
    plan = fabric_plan([f"spark{n}" for n in range(1, 5)], "switch")
    found = link_cables(results, plan)
    assert found["problems"] == []
    assert found["hosts"]["spark1"]["ports"][0]["unknown"] == [STRANGER]


def test_a_problem_tells_its_place() -> None:
    results = hear(4, wired("ring", 4))
    dead_twin(results)
    (problem,) = link_cables(results)["problems"]
    assert {key: problem[key] for key in ("code", "host", "cage", "netdev")} == {
        "code": "twin-no-carrier",
        "host": "spark1",
        "cage": 0,
        "netdev": "enP2p1s0f0np0",
    }


def test_every_code_is_tried_and_documented() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    for code in PROBLEMS:
        assert f'("{code}"' in source or f'"{code}",' in source, code
        assert f"C({code})" in link_cables_filter.RETURN, code


@pytest.mark.parametrize(
    ("results", "plan", "message"),
    [
        ([], None, "by host name"),
        ({"spark1": None}, None, "by host name"),
        ({}, {"cables": []}, "the plan is not what fabric_plan returns"),
    ],
)
def test_the_filter_refuses_what_it_cannot_read(results: Any, plan: Any, message: str) -> None:
    with pytest.raises(AnsibleTemplatePluginError, match=message):
        link_cables_filter.link_cables(results, plan)
