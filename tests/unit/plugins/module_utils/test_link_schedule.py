"""Which links a plan has, who pings whom, and who measures in which round."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import pytest
from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.filter.link_schedule import (
    link_schedule as link_schedule_filter,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_schedule import (
    link_schedule,
    rounds,
)

from tests.unit.fabrics import plan


def ring(hosts: int) -> list[tuple[int, int]]:
    return [(k, (k + 1) % hosts) for k in range(hosts)]


def everybody(hosts: int) -> list[tuple[int, int]]:
    return list(combinations(range(hosts), 2))


CASES = [
    ([], 0),
    ([(0, 1)], 1),
    ([(0, 1), (0, 1)], 2),
    ([(0, 1), (2, 3), (1, 2)], 2),  # a line
    *((ring(hosts), 3 if hosts % 2 else 2) for hosts in range(3, 13)),
    *((everybody(hosts), hosts if hosts % 2 else hosts - 1) for hosts in range(3, 13)),
]


@pytest.mark.parametrize(("pairs", "count"), CASES)
def test_rounds_are_few_and_nobody_is_in_one_twice(
    pairs: list[tuple[int, int]], count: int
) -> None:
    found = rounds(pairs)
    assert len(found) == count
    assert sorted(place for places in found for place in places) == list(range(len(pairs)))
    for places in found:
        busy = Counter(host for place in places for host in pairs[place])
        assert not busy or max(busy.values()) == 1


@pytest.mark.parametrize(
    ("hosts", "topology", "links"),
    [
        (2, "pair", [["spark1:0", "spark2:0"]]),
        (
            3,
            "triangle",
            [["spark1:0", "spark2:1"], ["spark2:0", "spark3:1"], ["spark1:1", "spark3:0"]],
        ),
        (
            4,
            "ring",
            [
                ["spark1:0", "spark2:1"],
                ["spark2:0", "spark3:1"],
                ["spark3:0", "spark4:1"],
                ["spark1:1", "spark4:0"],
            ],
        ),
        (
            3,
            "switch",
            [["spark1:0", "spark2:0"], ["spark1:0", "spark3:0"], ["spark2:0", "spark3:0"]],
        ),
    ],
)
def test_links(hosts: int, topology: str, links: list[list[str]]) -> None:
    schedule = link_schedule(plan(hosts, topology))
    assert [link["ends"] for link in schedule["links"]] == links
    assert [link["link"] for link in schedule["links"]] == list(range(len(links)))
    sent = Counter(len(checks) for checks in schedule["pings"].values())
    assert sent == {4: hosts} if topology != "pair" else {2: hosts}


def test_what_the_hosts_of_a_link_do() -> None:
    schedule = link_schedule(plan(4))
    link = schedule["links"][3]
    assert link["hosts"] == ["spark1", "spark4"]
    assert link["mtu"] == 9000
    assert link["twins"][1] == {
        "domain": 2,
        "ports": [
            {
                "host": "spark1",
                "netdev": "enP2p1s0f1np1",
                "hca": "roceP2p1s0f1",
                "address": "10.20.7.11",
            },
            {
                "host": "spark4",
                "netdev": "enP2p1s0f0np0",
                "hca": "roceP2p1s0f0",
                "address": "10.20.7.14",
            },
        ],
    }
    roles = [
        {host: f"{part['link']} {part['role']}" for host, part in entry["hosts"].items()}
        for entry in schedule["rounds"]
    ]
    assert roles == [
        {"spark1": "0 server", "spark2": "0 client", "spark3": "2 server", "spark4": "2 client"},
        {"spark1": "0 client", "spark2": "0 server", "spark3": "2 client", "spark4": "2 server"},
        {"spark2": "1 server", "spark3": "1 client", "spark1": "3 server", "spark4": "3 client"},
        {"spark2": "1 client", "spark3": "1 server", "spark1": "3 client", "spark4": "3 server"},
    ]
    for entry in schedule["rounds"][2:]:
        assert entry["hosts"]["spark4"]["twins"][1] == {
            "domain": 2,
            "hca": "roceP2p1s0f0",
            "address": "10.20.7.14",
            "peer_address": "10.20.7.11",
        }
    assert schedule["pings"]["spark4"][-1] == {
        "netdev": "enP2p1s0f0np0",
        "source": "10.20.7.14",
        "destination": "10.20.7.11",
        "mtu": 9000,
    }


def test_one_twin_only() -> None:
    schedule = link_schedule(plan(4, twins="first"))
    assert all(len(link["twins"]) == 1 for link in schedule["links"])


@pytest.mark.parametrize("value", [None, [], {"hosts": {}}, "plan"])
def test_the_filter_refuses_what_is_no_plan(value: Any) -> None:
    with pytest.raises(AnsibleTemplatePluginError, match="not what fabric_plan returns"):
        link_schedule_filter(value)
