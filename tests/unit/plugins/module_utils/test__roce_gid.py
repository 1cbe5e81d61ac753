"""The choice of GIDs: tables and whole nodes from files, arguments, races, and the program."""

from __future__ import annotations

import doctest
import functools
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _roce_gid
from ansible_collections.sparkfleet.cluster.plugins.module_utils._roce_gid import (
    ADVICE,
    InputError,
    Sysfs,
    covering,
    main,
    nccl_choice,
    parse_hcas,
    path_mtu,
    roce_gids,
)

from tests.unit.sysfs import FIXTURES, build, fixture

MakeNode = Callable[..., Path]
LINK = "10.20.0.0/24"
NAMES = {"A": "10.20.0.11", "B": "169.254.7.1", "C": "10.9.9.9", "U": "fd93:0:0:1::b"}
PREFIXES = {"ib/": "sys/class/infiniband/", "net/": "sys/class/net/", "pci/": "sys/devices/"}


def load(name: str) -> list[dict[str, Any]]:
    loaded: list[dict[str, Any]] = yaml.safe_load((FIXTURES / f"gid/{name}.yml").read_text("utf-8"))
    assert len({case["id"] for case in loaded}) == len(loaded)
    return loaded


def spark(root: Path, change: Mapping[str, Any] | None = None) -> Path:
    """A healthy Spark with changes; returns its sysfs."""
    changes = {}
    for path, value in (change or {}).items():
        kind = path[: path.index("/") + 1] if "/" in path else ""
        changes[path.replace(kind, PREFIXES.get(kind, kind), 1) if kind else path] = deepcopy(value)
    return build(root, fixture("gid/spark", changes)) / "sys"


@pytest.fixture
def node(tmp_path: Path) -> MakeNode:
    return lambda change=None: spark(tmp_path, change)


def by_hca(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The ports by HCA; of one with several ports the first."""
    return {facts["hca"]: facts for facts in reversed(result["devices"])}


def told(result: Mapping[str, Any]) -> list[str]:
    rows = result["problems"]
    return [f"{row['hca']} {row['code']}" if row["hca"] else row["code"] for row in rows]


def check_promises(result: Mapping[str, Any]) -> None:
    """What holds for every result, whatever is wrong."""
    assert json.loads(json.dumps(result)) == result
    assert bool(result["nccl_env"]) == (not result["problems"])
    problems = [*result["problems"], *(f["problem"] for f in result["devices"] if f["problem"])]
    for problem in problems:
        assert problem["code"] in ADVICE
        for word in ("found ", "; expected ", "; where: ", "; next: "):
            assert word in problem["message"], problem["message"]
        assert "None" not in problem["message"].replace("physical state None", "")
    for facts in result["devices"]:
        assert (facts["gid_index"] is None) == (facts["gid_address"] is None)
        if facts["selected"] and not result["problems"]:
            assert facts["gid_index"] is not None
    hca = result["nccl_env"].get("NCCL_IB_HCA")
    assert hca in (None, "=" + ",".join(result["hcas"]))
    assert "" not in result["nccl_env"].values()


# --- one table ------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", load("tables"), ids=lambda case: str(case["id"]))
def test_a_table_has_one_right_answer(node: MakeNode, case: dict[str, Any]) -> None:
    words = [NAMES.get(word, word) for word in case["table"].split()]
    change = {"ib/rocep1s0f0/ports/1/gid_table": f"enp1s0f0np0: {' '.join(words)}"}
    sysfs = node(change)
    expected = [{"hca": "rocep1s0f0", "subnet": LINK}]
    calls: dict[str, dict[str, Any]] = {
        "plain": {"hcas": "=rocep1s0f0"},
        "declared": {"expected": expected},
        "verify": {"expected": expected, "policy": "verify", "index": 3},
    }
    for name, call in calls.items():
        result = roce_gids(str(sysfs), **call)
        check_promises(result)
        facts = by_hca(result)["rocep1s0f0"]
        if isinstance(case[name], int) or case[name] == "ok":
            assert result["problems"] == []
            assert facts["gid_index"] == (3 if case[name] == "ok" else case[name])
            assert facts["gid_address"] in (NAMES["A"], NAMES["C"])
        else:
            assert told(result)[0] == f"rocep1s0f0 {case[name]}"
            assert facts["problem"]["code"] == case[name]


@pytest.mark.parametrize("case", load("tables"), ids=lambda case: str(case["id"]))
def test_what_nccl_takes_is_known(node: MakeNode, case: dict[str, Any]) -> None:
    words = [NAMES.get(word, word) for word in case["table"].split()]
    change = {"ib/rocep1s0f0/ports/1/gid_table": f"enp1s0f0np0: {' '.join(words)}"}
    ports, _problems = Sysfs(str(node(change))).ports()
    gids = next(port.gids for port in ports if port.hca == "rocep1s0f0")
    assert nccl_choice(gids) == case["nccl"]
    assert nccl_choice(gids, IPv4Network(LINK)) == case["nccl_range"]


def test_the_whole_table_is_returned(node: MakeNode) -> None:
    table = "enp1s0f0np0: 1 LL v2, 3 fd93:0:0:1::b v1, 4 10.20.0.11 v2 vlan100, 5 10.20.0.12 ?"
    facts = by_hca(roce_gids(str(node({"ib/rocep1s0f0/ports/1/gid_table": table}))))["rocep1s0f0"]
    assert facts["gids"] == [
        {
            "index": 1,
            "gid": "fe80:0000:0000:0000:4ebb:47ff:fe2c:1122",
            "address": "fe80::4ebb:47ff:fe2c:1122",
            "type": "RoCE v2",
            "netdev": "enp1s0f0np0",
        },
        {
            "index": 3,
            "gid": "fd93:0000:0000:0001:0000:0000:0000:000b",
            "address": "fd93:0:0:1::b",
            "type": "IB/RoCE v1",
            "netdev": "enp1s0f0np0",
        },
        {
            "index": 4,
            "gid": "0000:0000:0000:0000:0000:ffff:0a14:000b",
            "address": "10.20.0.11",
            "type": "RoCE v2",
            "netdev": "vlan100",
        },
        {
            "index": 5,
            "gid": "0000:0000:0000:0000:0000:ffff:0a14:000c",
            "address": "10.20.0.12",
            "type": None,
            "netdev": None,
        },
    ]


# --- whole nodes ----------------------------------------------------------------------------------


KEYS = (
    "id change hcas expected policy verify selected index common env nccl_hca range problem "
    "problems says says_device facts devices"
)


@pytest.mark.parametrize("case", load("cases"), ids=lambda case: str(case["id"]))
def test_a_node(node: MakeNode, case: dict[str, Any]) -> None:
    assert case.keys() <= set(KEYS.split())
    result = roce_gids(
        str(node(case.get("change"))),
        hcas=case.get("hcas"),
        expected=case.get("expected"),
        policy=case.get("policy", "auto"),
        index=case.get("verify"),
    )
    check_promises(result)
    devices = by_hca(result)
    assert told(result) == case.get("problems", [])
    if "devices" in case:
        assert len(result["devices"]) == case["devices"]
    if "selected" in case:
        assert result["hcas"] == case["selected"]
    if "common" in case:
        assert result["common_gid_index"] == case["common"]
    if "env" in case:
        assert result["nccl_env"] == case["env"]
    if "nccl_hca" in case:
        assert result["nccl_env"]["NCCL_IB_HCA"] == case["nccl_hca"]
    if "range" in case:
        assert result["nccl_env"]["NCCL_IB_ADDR_RANGE"] == case["range"]
    if "says" in case:
        assert case["says"] in " ".join(problem["message"] for problem in result["problems"])
    for hca, text in case.get("says_device", {}).items():
        assert text in devices[hca]["problem"]["message"]
    for hca, index in case.get("index", {}).items():
        assert devices[hca]["gid_index"] == index
    for hca, code in case.get("problem", {}).items():
        assert (devices[hca]["problem"] or {}).get("code") == code
    for hca, facts in case.get("facts", {}).items():
        assert {name: devices[hca][name] for name in facts} == facts


FLEET = {"spark1": (3, 4), "spark2": (3, 3), "spark3": (3, 4), "spark4": (4, 4)}


def test_a_fleet_whose_tables_differ_gets_one_environment(tmp_path: Path) -> None:
    """Rails 3/4, 3/3, 3/4, 4/4: no number is right anywhere, and none is exported."""
    results = {}
    for host, slots in FLEET.items():
        change = {
            f"ib/{hca}/ports/1/gid_table": f"{netdev}: 0 LL v1, 1 LL v2, {slot} {address} v2"
            for (hca, netdev, address), slot in zip(
                [
                    ("rocep1s0f0", "enp1s0f0np0", "10.20.0.11"),
                    ("roceP2p1s0f0", "enP2p1s0f0np0", "10.20.1.11"),
                ],
                slots,
                strict=True,
            )
        }
        results[host] = roce_gids(str(spark(tmp_path / host, change)))
    environments = [result["nccl_env"] for result in results.values()]
    assert all(environment == environments[0] for environment in environments)
    assert not any("INDEX" in name for name in environments[0])
    assert [result["common_gid_index"] for result in results.values()] == [None, 3, None, 4]


def test_a_moved_gid_is_found_again(tmp_path: Path) -> None:
    """After `netplan apply` beside a running engine the address is in another slot."""
    before = roce_gids(str(spark(tmp_path / "before")))
    table = "enP2p1s0f0np0: 0 LL v1, 1 LL v2, 4 10.20.1.11 v1, 5 10.20.1.11 v2"
    change = {"ib/roceP2p1s0f0/ports/1/gid_table": table}
    sysfs = str(spark(tmp_path / "after", change))
    after = roce_gids(sysfs)
    assert by_hca(before)["roceP2p1s0f0"]["gid_index"] == 3
    assert by_hca(after)["roceP2p1s0f0"]["gid_index"] == 5
    assert after["nccl_env"] == before["nccl_env"]
    stale = roce_gids(sysfs, policy="verify", index=before["common_gid_index"])
    assert told(stale) == ["roceP2p1s0f0 index-empty"]


def test_more_hcas_than_nccl_takes(node: MakeNode) -> None:
    change: dict[str, Any] = {"dev": None}
    for number in range(33):
        change[f"ib/mlx5_{number}"] = {"device": {"net": {f"eth{number}": {}}}}
        table = f"eth{number}: 1 10.1.{number}.1 v2"
        change[f"ib/mlx5_{number}/ports/1"] = {"state": "4: ACTIVE", "gid_table": table}
    sysfs = str(node(change))
    assert told(roce_gids(sysfs, hcas="mlx5_")) == ["too-many-hcas"]
    assert told(roce_gids(sysfs, hcas="^roce,mlx5_32")) == []


# --- devices that come and go ---------------------------------------------------------------------


class Changing(Sysfs):
    """Does something to the tree when an attribute is about to be read for the first time."""

    def __init__(self, root: Path, at: str, act: Callable[[Path], object]) -> None:
        super().__init__(str(root))
        self._at, self._act, self._left = at, act, 1

    def text(self, relative: str) -> str | None:
        if relative.endswith(self._at) and self._left:
            self._left -= 1
            self._act(Path(self.root, "class/infiniband"))
        return super().text(relative)


def test_a_device_renamed_during_the_walk_is_there_once(node: MakeNode) -> None:
    device = fixture("gid/spark")["sys"]["class"]["infiniband"]["rocep1s0f0"]
    sysfs = node({"ib/rocep1s0f0": None, "ib/mlx5_0": device})
    tree = Changing(
        sysfs, "mlx5_0/ports/1/state", lambda d: d.joinpath("mlx5_0").rename(d / "rocep1s0f0")
    )
    result = roce_gids(tree)
    check_promises(result)
    names = [facts["hca"] for facts in result["devices"]]
    assert names == ["rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1"]
    assert result["nccl_env"]["NCCL_IB_HCA"] == "=rocep1s0f0,roceP2p1s0f0"


def test_a_device_gone_during_the_walk_is_gone(node: MakeNode) -> None:
    tree = Changing(
        node(), "rocep1s0f0/ports/1/state", lambda d: d.joinpath("rocep1s0f0").rename(d / "../x")
    )
    result = roce_gids(tree)
    assert [facts["hca"] for facts in result["devices"]] == [
        "rocep1s0f1",
        "roceP2p1s0f0",
        "roceP2p1s0f1",
    ]
    assert result["problems"] == []


class Flapping(Sysfs):
    """A device that is listed and gone each time it is looked at, whatever it is called by then."""

    def __init__(self, root: Path, names: Iterator[str]) -> None:
        super().__init__(str(root))
        self._names = names

    def listing(self, relative: str) -> list[str]:
        extra = [next(self._names)] if relative == "class/infiniband" else []
        return sorted([*super().listing(relative), *extra])


def test_a_device_that_vanishes_twice_is_reported(node: MakeNode) -> None:
    sysfs = node()
    result = roce_gids(Flapping(sysfs, iter(["mlx5_9", "mlx5_9"])))
    check_promises(result)
    assert told(result) == ["mlx5_9 vanished"]
    assert len(result["devices"]) == 5
    named = roce_gids(Flapping(sysfs, iter(["mlx5_9", "mlx5_9"])), hcas="=rocep1s0f0")
    assert named["problems"] == []


def test_a_class_that_may_not_be_listed(node: MakeNode) -> None:
    class Locked(Sysfs):
        def listing(self, relative: str) -> list[str]:
            if relative == "class/infiniband":
                raise PermissionError(13, "Permission denied")
            return super().listing(relative)

    result = roce_gids(Locked(str(node())))
    check_promises(result)
    assert told(result) == ["sysfs-unreadable"]
    assert "Permission denied" in result["problems"][0]["message"]


# --- arguments ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        ("", None),
        ("  ", None),
        ("a", (False, False, [("a", None, "")])),
        ("=a,b", (False, True, [("a", None, ""), ("b", None, "")])),
        ("^a:1", (True, False, [("a", 1, "")])),
        ("^=a:1:2:3", (True, True, [("a", 1, ":2:3")])),
        (["a", "b:1"], (False, True, [("a", None, ""), ("b", 1, "")])),
        (["^a", "b"], (True, False, [("a", None, ""), ("b", None, "")])),
        (("=a",), (False, True, [("a", None, "")])),
    ],
)
def test_selectors(value: Any, expected: Any) -> None:
    assert parse_hcas(value) == expected


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ({"hcas": "=a,=b"}, "stand once"),
        ({"hcas": "=^a"}, "^ comes first"),
        ({"hcas": "NCCL_IB_HCA==a"}, "no HCA name"),
        ({"hcas": '"=a"'}, "no HCA name"),
        ({"hcas": "a/../../net"}, "no HCA name"),
        ({"hcas": "a:"}, "no HCA name"),
        ({"hcas": "a:x"}, "no HCA name"),
        ({"hcas": "a:1:2:3:4"}, "no HCA name"),
        ({"hcas": "="}, "0 names"),
        ({"hcas": "^"}, "0 names"),
        ({"hcas": ","}, "0 names"),
        ({"hcas": ",".join(f"m{number}" for number in range(33))}, "33 names"),
        ({"hcas": []}, "one HCA name or more"),
        ({"hcas": ["a", 1]}, "one HCA name or more"),
        ({"hcas": {"a": 1}}, "neither text nor a list"),
        ({"hcas": True}, "neither text nor a list"),
        ({"hcas": 5}, "neither text nor a list"),
        ({"expected": "a=10.0.0.0/24"}, "a list of hca, subnet and netdev"),
        ({"expected": {"hca": "a"}}, "a list of hca, subnet and netdev"),
        ({"expected": ["a"]}, "each entry has hca"),
        ({"expected": [{"subnet": LINK}]}, "each entry has hca"),
        ({"expected": [{"hca": "=a"}]}, "each entry has hca"),
        ({"expected": [{"hca": "a:1"}]}, "each entry has hca"),
        ({"expected": [{"hca": 1}]}, "each entry has hca"),
        ({"expected": [{"hca": "a"}, {"hca": "a"}]}, "twice"),
        ({"expected": [{"hca": "a", "subnets": LINK}]}, "expected has subnets for a"),
        ({"expected": [{"hca": "a", "subnet": "10.20.0.11"}]}, "one like 10.20.0.0/24"),
        ({"expected": [{"hca": "a", "subnet": "10.20.0.0/33"}]}, "one like 10.20.0.0/24"),
        ({"expected": [{"hca": "a", "subnet": "fd93::/64"}]}, "one like 10.20.0.0/24"),
        ({"expected": [{"hca": "a", "subnet": 24}]}, "one like 10.20.0.0/24"),
        ({"expected": [{"hca": "a", "netdev": ["b"]}]}, "the name of an interface"),
        ({"expected": [{"hca": "a", "netdev": "../b"}]}, "the name of an interface"),
        ({"policy": "guess"}, "one of auto, pin, verify"),
        ({"policy": "verify"}, "policy verify needs index"),
        ({"policy": "auto", "index": 3}, "leave it out"),
        ({"policy": "pin", "index": 3}, "leave it out"),
        ({"policy": "verify", "index": -1}, "counts from 0"),
        ({"policy": "verify", "index": True}, "counts from 0"),
        ({"policy": "verify", "index": "3"}, "counts from 0"),
    ],
    ids=str,
)
def test_arguments_that_cannot_be_meant(call: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError) as caught:
        roce_gids("/nowhere", **call)
    assert says in str(caught.value)


def test_all_bad_arguments_are_told_at_once() -> None:
    expected = [{"hca": "a", "subnet": "x"}, {"hca": "b", "netdev": 1}]
    with pytest.raises(InputError) as caught:
        roce_gids("/nowhere", hcas="=", expected=expected, policy="guess")
    assert len(str(caught.value).splitlines()) == 4


@pytest.mark.parametrize(
    ("networks", "span"),
    [
        (["10.20.0.0/24"], "10.20.0.0/24"),
        (["10.20.0.0/24", "10.20.0.0/24"], "10.20.0.0/24"),
        (["10.20.0.0/24", "10.20.1.0/24"], "10.20.0.0/23"),
        (["10.20.0.0/24", "10.20.7.0/24", "10.20.1.0/24"], "10.20.0.0/21"),
        (["10.20.0.0/16", "10.20.7.0/24"], "10.20.0.0/16"),
        (["10.20.0.0/31", "10.20.0.2/31"], "10.20.0.0/30"),
        (["10.20.0.11/32", "10.20.1.11/32"], "10.20.0.0/23"),
        (["10.20.1.0/24", "10.20.2.0/24"], "10.20.0.0/22"),
        (["10.20.0.0/24", "192.168.0.0/24"], "0.0.0.0/0"),
    ],
)
def test_the_range_is_the_smallest_over_all_links(networks: list[str], span: str) -> None:
    assert str(covering(map(IPv4Network, networks))) == span


@pytest.mark.parametrize(
    ("mtu", "active"),
    [
        (None, None),
        (9000, 4096),
        (4192, 4096),
        (4191, 2048),
        (1500, 1024),
        (1120, 1024),
        (1119, 512),
        (352, 256),
        (351, None),
    ],
)
def test_the_active_mtu_follows_the_driver(mtu: int | None, active: int | None) -> None:
    assert path_mtu(mtu) == active


def test_the_examples_in_the_docstrings() -> None:
    assert doctest.testmod(_roce_gid).attempted > 1
    assert doctest.testmod(_roce_gid).failed == 0


# --- the program ----------------------------------------------------------------------------------


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        status = main(arguments)
    except SystemExit as error:
        status = int(error.code or 0)
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_an_environment_file(node: MakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--sysfs", str(node()), "--format", "env", "--hcas", "=rocep1s0f0,roceP2p1s0f0")
    plan = ("--expected", "rocep1s0f0=10.20.0.0/24@enp1s0f0np0", "roceP2p1s0f0=10.20.1.0/24")
    status, out, err = run(capsys, *arguments, *plan)
    assert (status, err) == (0, "")
    assert out == (
        "NCCL_IB_HCA==rocep1s0f0,roceP2p1s0f0\n"
        "NCCL_IB_ADDR_FAMILY=AF_INET\n"
        "NCCL_IB_ROCE_VERSION_NUM=2\n"
        "NCCL_IB_ADDR_RANGE=10.20.0.0/23\n"
    )
    assert run(capsys, *arguments, "--policy", "pin")[1].splitlines()[1:] == ["NCCL_IB_GID_INDEX=3"]


def test_no_environment_file_when_something_is_wrong(
    node: MakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        "--sysfs",
        str(node()),
        "--hcas",
        "=rocep1s0f0",
        "--expected",
        "rocep1s0f0=10.9.0.0/24",
    )
    status, out, err = run(capsys, *arguments, "--format", "env")
    assert (status, out) == (1, "")
    assert err.startswith("rocep1s0f0 port 1: wrong-subnet: found 10.20.0.11 in the table [")
    status, out, err = run(capsys, *arguments)
    assert status == 0
    assert json.loads(out)["nccl_env"] == {}
    assert run(capsys, *arguments, "--required")[0] == 1


def test_a_table_for_people(node: MakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "--sysfs", str(node()), "--format", "table")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "HCA           PORT  STATE   NETDEV         CAGE  INDEX  ADDRESS     PROBLEM",
        "rocep1s0f0    1     ACTIVE  enp1s0f0np0    0     3      10.20.0.11",
        "rocep1s0f1    1     DOWN    enp1s0f1np1    1     -      -           port-down",
        "roceP2p1s0f0  1     ACTIVE  enP2p1s0f0np0  0     3      10.20.1.11",
        "roceP2p1s0f1  1     DOWN    enP2p1s0f1np1  1     -      -           port-down",
        "NCCL_IB_HCA==rocep1s0f0,roceP2p1s0f0",
        "NCCL_IB_ADDR_FAMILY=AF_INET",
        "NCCL_IB_ROCE_VERSION_NUM=2",
        "NCCL_IB_ADDR_RANGE=10.20.0.0/23",
    ]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--index", ""], "leave the option out"),
        (["--index", "-1"], "argument --index"),
        (["--policy", "verify", "--index", "x"], "no slot number"),
        (["--expected", "rocep1s0f0"], "write hca=subnet@netdev"),
        (["--hcas", "=a,=b"], "stand once"),
        (["--policy", "verify"], "needs index"),
        (["--format", "yaml"], "invalid choice"),
    ],
)
def test_bad_arguments_of_the_program(
    capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    status, out, err = run(capsys, *arguments)
    assert (status, out) == (2, "")
    assert says in err
    assert "Traceback" not in err


@pytest.fixture
def installed() -> Iterator[Path]:
    """The one file, where nothing of the collection can be imported."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder, "roce_gid.py")
        target.write_bytes(Path(str(_roce_gid.__file__)).read_bytes())
        yield target


def test_the_file_runs_alone(node: MakeNode, installed: Path) -> None:
    program = [sys.executable, "-I", "-S", str(installed), "--sysfs", str(node())]
    call = functools.partial(subprocess.run, capture_output=True, text=True, check=False, cwd="/")
    done = call([*program, "--format", "env"])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("NCCL_IB_HCA==rocep1s0f0,roceP2p1s0f0\n")
    done = call([*program, "--policy", "verify", "--index", "4", "--required"])
    assert done.returncode == 1
    assert done.stderr.count("index-empty") == 2
    assert "Traceback" not in done.stderr
