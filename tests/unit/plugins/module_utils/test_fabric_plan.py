"""Plans: the topologies as kept files, and what holds for a ring of any length."""

from __future__ import annotations

import ipaddress
import itertools
import json
import random
from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_hosts import (
    standard_names,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_plan import fabric_plan

from tests.unit.fabrics import distance, names, plan, ports, walk, wire
from tests.unit.golden import HERE, assert_golden

GOLDEN: dict[str, dict[str, Any]] = {
    "pair": {"count": 2, "topology": "pair"},
    "triangle": {"count": 3, "topology": "triangle"},
    "ring4-rotation": {"count": 4},
    "ring4-matching": {"count": 4, "cabling": "matching", "cage": 1, "nccl": "dual-pci-domain"},
    "ring6-first-twins": {"count": 6, "twins": "first", "mtu": 4200},
    "switch4": {"count": 4, "topology": "switch"},
    "cell1-of-two": {"count": 4, "cell": 1},
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"cabling": "matching"},
    {"twins": "first"},
    {"prefix_length": 30},
    {"cage": 1},
]
RINGS = [
    pytest.param(count, options, id=f"{count}-{options.get('cabling', 'rotation')}{number}")
    for number, options in enumerate(OPTIONS)
    for count in range(2, 10)
    if not (count % 2 and "cabling" in options)
]


@pytest.mark.parametrize("name", GOLDEN)
def test_plan_is_the_one_that_is_kept(name):
    text = json.dumps(plan(**GOLDEN[name]), indent=1) + "\n"
    assert_golden(HERE / "fabric" / f"{name}.json", text)


def by_port(fabric: Mapping[str, Any], host: str) -> dict[str, tuple[str, str, str]]:
    return {
        port["hca"]: (port["netdev"], port["address"], port["peer"]["host"])
        for port in fabric["hosts"][host]["ports"]
    }


def test_rotation_is_the_published_plan():
    fabric = plan(4)
    assert by_port(fabric, "spark1") == {
        "rocep1s0f0": ("enp1s0f0np0", "10.20.0.11", "spark2"),
        "roceP2p1s0f0": ("enP2p1s0f0np0", "10.20.1.11", "spark2"),
        "rocep1s0f1": ("enp1s0f1np1", "10.20.6.11", "spark4"),
        "roceP2p1s0f1": ("enP2p1s0f1np1", "10.20.7.11", "spark4"),
    }
    # Next is cage 0 and previous is cage 1 on every host.
    for rank, host in enumerate(fabric["hosts"].values()):
        first = {peer["rank"]: peer["hcas"][0] for peer in host["peer_hcas"]}
        assert first == {(rank + 1) % 4: "rocep1s0f0", (rank - 1) % 4: "rocep1s0f1"}


def test_matching_gives_the_published_map_from_ranks_to_cages():
    fabric = plan(4, cabling="matching", cage=1)
    cages = [
        {peer["rank"]: peer["hcas"][0][-2:] for peer in host["peer_hcas"]}
        for host in fabric["hosts"].values()
    ]
    assert cages == [
        {1: "f1", 3: "f0"},
        {0: "f1", 2: "f0"},
        {1: "f0", 3: "f1"},
        {0: "f0", 2: "f1"},
    ]


def test_triangle_is_the_published_cabling():
    ends = [[(e["host"], e["cage"]) for e in cable["ends"]] for cable in plan(3)["cables"]]
    assert ends == [
        [("spark1", 0), ("spark2", 1)],
        [("spark2", 0), ("spark3", 1)],
        [("spark3", 0), ("spark1", 1)],
    ]


def test_ring_of_two_has_one_cable_and_needs_no_patch():
    fabric = plan(2)
    assert len(fabric["cables"]) == 1
    assert by_port(fabric, "spark2")["rocep1s0f1"] == ("enp1s0f1np1", "10.20.0.12", "spark1")
    assert "NCCL_IB_SUBNET_AWARE_ROUTING" not in fabric["hosts"]["spark1"]["nccl_env"]


def test_triangle_and_ring_of_three_are_the_same():
    ring, triangle = plan(3), plan(3, "triangle")
    assert ring["fabric"].pop("topology") != triangle["fabric"].pop("topology")
    assert ring == triangle


@pytest.mark.parametrize(("count", "options"), RINGS)
def test_addresses_are_unique_and_every_twin_of_a_cable_has_its_own_subnet(count, options):
    fabric = plan(count, **options)
    addresses = [port["address"] for _name, port in ports(fabric)]
    assert len(set(addresses)) == len(addresses)
    subnets = [ipaddress.ip_network(s["subnet"]) for c in fabric["cables"] for s in c["subnets"]]
    assert not any(a.overlaps(b) for a, b in itertools.combinations(subnets, 2))
    area = ipaddress.IPv4Network(fabric["fabric"]["range"])
    for _name, port in ports(fabric):
        subnet = ipaddress.IPv4Network(port["subnet"])
        assert ipaddress.ip_address(port["address"]) in set(subnet.hosts())
        assert subnet.subnet_of(area)
        assert subnet.prefixlen == port["prefix"] == fabric["fabric"]["prefix"]
    for name, port in ports(fabric):
        peer = port["peer"]
        (back,) = (
            p for p in fabric["hosts"][peer["host"]]["ports"] if p["address"] == peer["address"]
        )
        assert back["peer"]["host"] == name
        assert (back["cable"], back["domain"]) == (port["cable"], port["domain"])
        assert {k: v for k, v in peer.items() if k != "host"} == {
            k: back[k] for k in peer if k != "host"
        }


@pytest.mark.parametrize(("count", "options"), RINGS)
def test_every_address_is_reached_the_shortest_way_and_answers_come_back_the_same(count, options):
    fabric = plan(count, **options)
    hosts = fabric["hosts"]
    forwarding = set()
    for (start, here), (end, there) in itertools.permutations(hosts.items(), 2):
        for port in there["ports"]:
            path, source = walk(fabric, start, port["address"])
            assert len(path) - 1 == distance(count, here["rank"], there["rank"])
            assert walk(fabric, end, source)[0] == path[::-1]
            forwarding.update(path[1:-1])
    assert forwarding == {name for name, host in hosts.items() if host["forward"]}


@pytest.mark.parametrize(("count", "options"), RINGS)
def test_nfs_clients_arrive_from_where_the_head_expects_them(count, options):
    fabric = plan(count, **options)
    head, *clients = fabric["hosts"].values()
    assert head["nfs_server_address"] is head["nfs_source_address"] is None
    assert head["nfs_client_sources"] == [client["nfs_source_address"] for client in clients]
    for name, client in list(fabric["hosts"].items())[1:]:
        path, source = walk(fabric, name, client["nfs_server_address"])
        assert source == client["nfs_source_address"]
        assert path[-1] == fabric["fabric"]["head"]
        assert len(path) - 1 == client["nfs_hops"] == distance(count, client["rank"], 0)
        assert client["nfs_client_sources"] == []
        assert walk(fabric, name, fabric["fabric"]["head_address"])[0][-1] == "spark1"


@pytest.mark.parametrize(("count", "options"), RINGS)
def test_nccl_finds_the_hca_that_leads_to_the_next_rank(count, options):
    """The rule of subnet-aware routing: the local HCA whose subnet is the listener's."""
    fabric = plan(count, **options)
    area = ipaddress.ip_network(fabric["fabric"]["range"])
    hosts = list(fabric["hosts"].values())
    for here, there in zip(hosts, [*hosts[1:], hosts[0]], strict=True):
        env = here["nccl_env"]
        own = {port["hca"]: port for port in here["ports"]}
        used = env["NCCL_IB_HCA"].removeprefix("=").split(",")
        assert all(ipaddress.ip_address(own[hca]["address"]) in area for hca in used)
        assert env["NCCL_IB_ADDR_RANGE"] == str(area)
        if count == 2:
            continue
        length = int(env["NCCL_IB_SUBNET_PREFIX_LEN"])
        theirs = {port["hca"]: port["address"] for port in there["ports"]}
        reached = []
        for address in (
            theirs[hca] for hca in there["nccl_env"]["NCCL_IB_HCA"].removeprefix("=").split(",")
        ):
            subnet = ipaddress.ip_network(f"{address}/{length}", strict=False)
            fitting = [h for h in used if ipaddress.ip_address(own[h]["address"]) in subnet]
            assert len(fitting) <= 1, "the choice is not NCCL's"
            for hca in fitting:
                assert address in wire(fabric, own[hca])
                reached.append(hca)
        (peer,) = (p for p in here["peer_hcas"] if p["rank"] == there["rank"])
        assert reached == [hca for hca in peer["hcas"] if hca in used]
        assert reached


@pytest.mark.parametrize("options", [{}, {"twins": "first"}, {"prefix_length": 30}, {"cell": 1}])
@pytest.mark.parametrize(
    ("count", "cabling"),
    [(n, "rotation") for n in range(2, 12)] + [(n, "matching") for n in range(2, 12, 2)],
)
def test_hosts_added_at_the_end_move_only_the_end_of_the_closing_cable(count, cabling, options):
    before = plan(count, cabling=cabling, **options)
    after = plan(count + (2 if cabling == "matching" else 1), cabling=cabling, **options)
    closing = before["cables"][-1]["cable"] if count > 2 else None
    for name, port in ports(before):
        same = [
            later
            for later in after["hosts"][name]["ports"]
            if all(later[key] == port[key] for key in ("netdev", "hca", "address", "cable"))
        ]
        moves = name == "spark1" and port["cable"] == closing
        assert bool(same) is not moves, (name, port["netdev"])


def test_a_switch_moves_nobody():
    before, after = plan(4, "switch"), plan(5, "switch")
    assert [p for p in ports(after) if p[0] != "spark5"] == ports(before)


def test_turning_on_the_second_twins_moves_nobody():
    first, both = plan(4, twins="first"), plan(4)
    assert ports(first) == [entry for entry in ports(both) if entry[1]["domain"] == 0]


def test_cells_share_a_pool_without_overlap_and_the_first_has_the_usual_addresses():
    cells = [plan(count, cell=cell) for cell, count in enumerate((4, 16, 3))]
    areas = [ipaddress.ip_network(cell["fabric"]["range"]) for cell in cells]
    assert [str(area) for area in areas] == ["10.20.0.0/19", "10.20.32.0/19", "10.20.64.0/19"]
    assert ports(cells[0]) == ports(plan(4))
    ranges = [cell["hosts"]["spark1"]["nccl_env"]["NCCL_IB_ADDR_RANGE"] for cell in cells]
    assert ranges == [str(area) for area in areas]


def test_cables_in_any_order_make_a_ring_that_works():
    """The subnets follow the list, so that those of one way round need not be neighbours."""
    chance = random.Random(4)
    for count in range(3, 12):
        listed = [[e["host"] + f":{e['cage']}" for e in c["ends"]] for c in plan(count)["cables"]]
        chance.shuffle(listed)
        listed = [cable if chance.random() < 0.5 else cable[::-1] for cable in listed]
        fabric = plan(count, cabling=listed)
        for (start, here), (_end, there) in itertools.permutations(fabric["hosts"].items(), 2):
            for port in there["ports"]:
                path, _source = walk(fabric, start, port["address"])
                assert len(path) - 1 == distance(count, here["rank"], there["rank"])


def test_routes_of_a_long_ring_are_few():
    fabric = plan(200, pool="10.0.0.0/8")
    assert max(len(host["routes"]) for host in fabric["hosts"].values()) <= 30
    for name in ("spark1", "spark100", "spark200"):
        for rank in (1, 57, 99, 100, 101, 198):
            target = fabric["hosts"][f"spark{rank + 1}"]["ports"][0]["address"]
            path, _source = walk(fabric, name, target)
            assert len(path) - 1 == distance(200, fabric["hosts"][name]["rank"], rank)


def test_small_subnets_number_the_ends_of_a_cable():
    addresses = {
        (n, p["cable"], p["domain"]): p["address"] for n, p in ports(plan(4, prefix_length=31))
    }
    assert addresses["spark1", 0, 0] == "10.20.0.0"
    assert addresses["spark2", 0, 0] == "10.20.0.1"
    assert addresses["spark1", 3, 2] == "10.20.0.15"
    env = plan(4, prefix_length=30)["hosts"]["spark1"]["nccl_env"]
    assert env["NCCL_IB_SUBNET_PREFIX_LEN"] == "30"


# --- what NCCL is told --------------------------------------------------------------------------

COMMON = {
    "NCCL_NET": "IB",
    "NCCL_NET_PLUGIN": "none",
    "NCCL_IB_ADDR_FAMILY": "AF_INET",
    "NCCL_IB_ROCE_VERSION_NUM": "2",
    "NCCL_IB_ADDR_RANGE": "10.20.0.0/16",
    "NCCL_SOCKET_IFNAME": "=enP7s7",
    "GLOO_SOCKET_IFNAME": "enP7s7",
}
AWARE = {
    "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
    "NCCL_IB_SUBNET_PREFIX_LEN": "24",
    "NCCL_IB_MERGE_NICS": "0",
    "NCCL_CROSS_NIC": "1",
}
ONE_CAGE = "=rocep1s0f0,roceP2p1s0f0"
FIRST_TWINS = "=rocep1s0f0,rocep1s0f1"
ALL_FOUR = "=rocep1s0f0,rocep1s0f1,roceP2p1s0f0,roceP2p1s0f1"
DUAL = {
    "NCCL_IB_EXTENDED_IPV4_GIDS": "1",
    "NCCL_IB_PRESERVE_PCI_DOMAIN": "1",
    "NCCL_IB_ROUTE_DIAGNOSTICS": "1",
    "NCCL_IB_QPS_PER_CONNECTION": "1",
}


@pytest.mark.parametrize(
    ("count", "topology", "options", "expected"),
    [
        (2, "pair", {}, {"NCCL_IB_HCA": ONE_CAGE}),
        (2, "pair", {"twins": "first"}, {"NCCL_IB_HCA": "=rocep1s0f0"}),
        (4, "switch", {}, {"NCCL_IB_HCA": ONE_CAGE}),
        (4, "switch", {"cage": 1}, {"NCCL_IB_HCA": "=rocep1s0f1,roceP2p1s0f1"}),
        (3, "triangle", {}, {"NCCL_IB_HCA": ALL_FOUR, **AWARE}),
        (
            4,
            "ring",
            {},
            {
                "NCCL_IB_HCA": FIRST_TWINS,
                **AWARE,
                "NCCL_ALGO": "Ring",
                "NCCL_SWITCHLESS_RING_ONLY": "1",
            },
        ),
        (
            4,
            "ring",
            {"nccl": "skip-tree-pat"},
            {
                "NCCL_IB_HCA": FIRST_TWINS,
                **AWARE,
                "NCCL_ALGO": "Ring",
                "NCCL_SKIP_TREE_CONNECT": "1",
            },
        ),
        (
            4,
            "ring",
            {"nccl": "dual-pci-domain"},
            {
                "NCCL_IB_HCA": ALL_FOUR,
                **AWARE,
                "NCCL_ALGO": "Ring",
                "NCCL_SWITCHLESS_RING_ONLY": "1",
                **DUAL,
            },
        ),
    ],
)
def test_nccl_env_follows_the_topology(count, topology, options, expected):
    fabric = plan(count, topology, **options)
    for host in fabric["hosts"].values():
        assert host["nccl_env"] == {**COMMON, **expected}


def test_management_interface_and_range_reach_nccl():
    env = plan(2, pool="192.168.96.0/20", management_interface="eth0")["hosts"]["spark1"][
        "nccl_env"
    ]
    assert env["NCCL_SOCKET_IFNAME"] == "=eth0"
    assert env["GLOO_SOCKET_IFNAME"] == "eth0"
    assert env["NCCL_IB_ADDR_RANGE"] == "192.168.96.0/20"


# --- names of devices ----------------------------------------------------------------------------

MLX5 = [
    {"cage": 0, "domain": 0, "hca": "mlx5_0"},
    {"cage": 0, "domain": 2, "hca": "mlx5_2", "netdev": "fabric2"},
]


def found(host: str, **changes: Any) -> dict[str, Any]:
    """What roce_gid_info returns for a Spark, as far as a plan looks at it."""
    devices = []
    for cage, domain in itertools.product((0, 1), (0, 2)):
        netdev, hca = standard_names(cage, domain)
        device = {"hca": hca, "netdev": netdev, "cage": cage, "domain": domain, "problem": None}
        devices.append({**device, **changes.get(hca, {})})
    return {"devices": devices}


def hcas(fabric: Mapping[str, Any], host: str) -> list[tuple[str, str]]:
    return [(port["hca"], port["netdev"]) for port in fabric["hosts"][host]["ports"]]


def test_names_of_a_host_are_its_own_and_its_peers_know_them():
    fabric = fabric_plan(["spark1", {"name": "spark2", "ports": MLX5}], "pair")
    assert hcas(fabric, "spark2") == [("mlx5_0", "enp1s0f0np0"), ("mlx5_2", "fabric2")]
    assert [(d["cage"], d["domain"], d["hca"]) for d in fabric["hosts"]["spark2"]["devices"]] == [
        (0, 0, "mlx5_0"),
        (0, 2, "mlx5_2"),
        (1, 0, "rocep1s0f1"),
        (1, 2, "roceP2p1s0f1"),
    ]
    peers = [port["peer"] for port in fabric["hosts"]["spark1"]["ports"]]
    assert [(p["hca"], p["netdev"]) for p in peers] == hcas(fabric, "spark2")
    assert fabric["hosts"]["spark2"]["nccl_env"]["NCCL_IB_HCA"] == "=mlx5_0,mlx5_2"
    assert fabric["hosts"]["spark1"]["nccl_env"]["NCCL_IB_HCA"] == ONE_CAGE


def test_names_that_were_found_come_before_the_usual_and_after_the_users():
    seen = found("spark2", rocep1s0f0={"hca": "mlx5_9"}, roceP2p1s0f0={"hca": "mlx5_2"})
    hosts = ["spark1", {"name": "spark2", "ports": [{"cage": 0, "domain": 2, "netdev": "other"}]}]
    for result in (seen, seen["devices"], json.loads(json.dumps(seen).replace(": 2", ': "2"'))):
        fabric = fabric_plan(hosts, "pair", devices={"spark2": result})
        assert hcas(fabric, "spark2") == [("mlx5_9", "enp1s0f0np0"), ("mlx5_2", "other")]
        assert hcas(fabric, "spark1")[0][0] == "rocep1s0f0"


def test_a_user_knows_better_which_device_a_port_is():
    devices = [*found("spark1")["devices"], {"hca": "mlx5_7", "cage": None, "domain": None}]
    host = {"name": "spark1", "ports": [{"cage": 0, "domain": 0, "hca": "mlx5_7"}]}
    fabric = fabric_plan([host, "spark2"], "pair", devices={"spark1": devices})
    assert hcas(fabric, "spark1")[0] == ("mlx5_7", "enp1s0f0np0")


def test_devices_that_are_no_ports_of_the_fabric_do_no_harm():
    devices = found("spark1")["devices"]
    foreign = {"cage": None, "domain": None, "problem": {"code": "foreign-device"}}
    devices += [
        {"hca": "irdma0", "netdev": "eno1", **foreign},
        {"hca": "smi1", "netdev": None, **foreign, "problem": {"code": "no-gid-table"}},
    ]
    assert fabric_plan(names(2), "pair", devices={"spark1": devices}) == plan(2, "pair")


def test_a_host_of_a_switch_may_use_its_other_cage():
    fabric = fabric_plan(["spark1", {"name": "spark2", "cage": 1}, "spark3"], "switch", cage="0")
    assert hcas(fabric, "spark2")[0] == ("rocep1s0f1", "enp1s0f1np1")
    assert [end["cage"] for end in fabric["cables"][0]["ends"]] == [0, 1, 0]
    assert all(port["peer"] is None for _name, port in ports(fabric))
    assert [peer["rank"] for peer in fabric["hosts"]["spark2"]["peer_hcas"]] == [0, 2]


def test_a_switch_of_two_is_no_pair():
    fabric = plan(2, "switch")
    assert all(port["peer"] is None for _name, port in ports(fabric))


# --- the form of the result ----------------------------------------------------------------------


def parts(value: Any) -> list[Any]:
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(part for item in inside for part in parts(item))]


@pytest.mark.parametrize("name", GOLDEN)
def test_plan_is_plain_data_that_survives_json(name):
    fabric = plan(**GOLDEN[name])
    kinds = {type(part) for part in parts(fabric)}
    assert kinds <= {dict, list, str, int, bool, type(None)}
    assert all(type(key) is str for part in parts(fabric) if isinstance(part, dict) for key in part)
    assert json.loads(json.dumps(fabric)) == fabric
    shared = [id(part) for part in parts(fabric) if isinstance(part, (dict, list)) and part]
    assert len(shared) == len(set(shared)), "YAML would write the second as an alias of the first"


def test_a_plan_can_be_planned_again_from_its_cables():
    fabric = plan(5)
    again = plan(5, cabling=fabric["cables"])
    assert again["hosts"] == fabric["hosts"]


def test_values_of_the_command_line_are_text_and_empty_ones_are_left_out():
    words: dict[str, Any] = {"prefix_length": "25", "mtu": " 4200 ", "cell": "1", "cage": "1"}
    numbers: dict[str, Any] = {"prefix_length": 25, "mtu": 4200, "cell": 1, "cage": 1}
    assert plan(4, **words) == plan(4, **numbers)
    empty: dict[str, Any] = dict.fromkeys(("cabling", "cell", "pool", "nccl", "devices", "mtu"), "")
    nothing: dict[str, Any] = dict.fromkeys(empty)
    assert plan(4, **empty) == plan(4) == plan(4, **nothing)
