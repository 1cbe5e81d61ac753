"""Paths with one thing wrong each. What ping prints was captured from iputils 20240905."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    Command,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_ping import (
    PROBLEMS,
    check_path,
    read_ping,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._tree import Tree
from ansible_collections.sparkfleet.cluster.plugins.modules import fabric_ping_info

from tests.unit.sysfs import build

PASSED = """\
PING 10.20.0.12 (10.20.0.12) from 10.20.0.11 enp1s0f0np0: 8972(9000) bytes of data.

--- 10.20.0.12 ping statistics ---
3 packets transmitted, 3 received, 0% packet loss, time 410ms
rtt min/avg/max/mdev = 0.047/0.055/0.061/0.006 ms
"""
LOST = """\
PING 10.20.0.12 (10.20.0.12) from 10.20.0.11 enp1s0f0np0: 8972(9000) bytes of data.

--- 10.20.0.12 ping statistics ---
2 packets transmitted, 0 received, 100% packet loss, time 204ms

"""
TOO_LONG = """\
PING 10.20.0.12 (10.20.0.12) from 10.20.0.11 enp1s0f0np0: 8972(9000) bytes of data.

--- 10.20.0.12 ping statistics ---
2 packets transmitted, 0 received, +2 errors, 100% packet loss, time 207ms

"""
PARTLY = PASSED.replace("3 received, 0%", "1 received, 66.6667%")
TOLD = "From 10.20.0.1 icmp_seq=1 Frag needed and DF set (mtu = 1400)\n" + TOO_LONG
CHECK = {
    "netdev": "enp1s0f0np0",
    "source": "10.20.0.11",
    "destination": "10.20.0.12",
    "mtu": 9000,
}
PEER, TWIN = "52:54:00:03:02:20", "52:54:00:03:02:21"

Ping = Callable[[int], Command]


def ok(_size: int) -> Command:
    return Command(0, PASSED, "")


def fails(out: str, err: str = "", rc: int = 1) -> Ping:
    return lambda _size: Command(rc, out, err)


def above(limit: int, otherwise: Ping) -> Ping:
    """A path on which packets up to a size pass."""
    return lambda size: ok(size) if size <= limit else otherwise(size)


@pytest.mark.parametrize(
    ("ping", "answer"),
    [
        (ok, (3, 3, 0.055, False, None)),
        (fails(LOST), (2, 0, None, False, None)),
        (fails(TOO_LONG, "ping: sendmsg: Message too long\n" * 2), (2, 0, None, True, None)),
        (
            fails(TOO_LONG, "ping: local error: message too long, mtu=1500\n"),
            (2, 0, None, True, 1500),
        ),
        (fails(TOLD), (2, 0, None, False, 1400)),
        (fails("", "ping: bind: Cannot assign requested address\n", 2), (0, 0, None, False, None)),
    ],
)
def test_output(ping: Ping, answer: tuple[Any, ...]) -> None:
    assert read_ping(ping(0))[:5] == answer


def check(
    root: Path, ping: Ping, claims: list[str] | None, **port: str
) -> tuple[dict[str, Any], list[list[str]]]:
    files = {"flags": "0x1003", "carrier": "1", "mtu": "9000", "address": PEER, **port}
    net = {} if port.get("flags") == "" else {"enp1s0f0np0": files}
    tree = Tree(str(build(root, {"sys": {"class": {"net": net}}})))
    asked: list[list[str]] = []

    def command(argv: Sequence[str]) -> Command:
        asked.append(list(argv))
        return ping(int(argv[argv.index("-s") + 1]) + 28)

    return check_path(CHECK, tree=tree, command=command, who_has=lambda *_: claims), asked


@pytest.mark.parametrize(
    ("code", "ping", "claims", "port", "mtu", "text"),
    [
        (None, ok, [PEER], {}, 9000, None),
        (None, ok, None, {}, 9000, None),  # without the right to ask by ARP
        ("arp-flux", ok, [PEER, TWIN], {}, 9000, f"is claimed by {PEER} and {TWIN}."),
        ("local-mtu", ok, [PEER], {"mtu": "1500"}, 1500, "has MTU 1500, expected 9000: ip link"),
        ("narrow-path", above(1500, fails(LOST)), [PEER], {}, 1500, "those of 1500 pass"),
        ("narrow-path", above(8999, fails(LOST)), [PEER], {}, 8999, "those of 8999 pass"),
        ("narrow-path", above(1400, fails(LOST)), [PEER], {}, 1400, "those of 1400 pass"),
        ("narrow-path", above(84, fails(LOST)), [PEER], {}, 84, "those of 84 pass"),
        ("narrow-path", above(84, fails(TOLD)), [PEER], {}, 1400, "those of 1400 pass"),
        ("loss", above(84, fails(PARTLY)), [PEER], {}, 9000, "1 of 3 full frames from enp1s0f0np"),
        ("no-arp", fails(LOST), [], {}, None, "nobody behind enp1s0f0np0 has the address 10.20.0"),
        ("no-answer", fails(LOST), [PEER], {}, None, f"although {PEER} claims it; does a fire"),
        ("no-answer", fails(LOST), None, {}, None, "although somebody claims it"),
        (
            "no-address",
            fails("", "ping: bind: Cannot assign requested address", 2),
            [],
            {},
            None,
            "10.20.0.11 is no address of enp1s0f0np0",
        ),
        (
            "no-route",
            fails("", "ping: connect: Network is unreachable", 2),
            [],
            {},
            None,
            "(ping: connect: Network is unreachable)",
        ),
        (
            "no-ping",
            fails("", "ping: command not found", NOT_FOUND),
            [PEER],
            {},
            None,
            "apt install iputils-ping",
        ),
        (
            "ping-failed",
            fails("", "ping: -M: unknown option", 2),
            [PEER],
            {},
            None,
            "failed: ping: -M: unknown option.",
        ),
        ("port-down", ok, [], {"flags": "0x1002"}, None, "enp1s0f0np0 is down: ip link set"),
        ("port-down", ok, [], {"carrier": "0"}, None, "enp1s0f0np0 is without carrier"),
        ("no-port", ok, [], {"flags": ""}, None, "enp1s0f0np0 does not exist"),
    ],
)
def test_paths(
    tmp_path: Path,
    code: str | None,
    ping: Ping,
    claims: list[str] | None,
    port: dict[str, str],
    mtu: int | None,
    text: str | None,
) -> None:
    found, _asked = check(tmp_path, ping, claims, **port)
    assert (found["code"], found["found_mtu"], found["ok"]) == (code, mtu, code is None)
    assert found["message"] == text or text in found["message"]


def test_every_code_is_documented() -> None:
    for code in PROBLEMS:
        assert f"C({code})" in fabric_ping_info.RETURN, code


def test_pings_are_bound_to_port_and_address_and_never_fragmented(tmp_path: Path) -> None:
    found, asked = check(tmp_path, ok, [PEER])
    small, large = (" ".join(argv) for argv in asked)
    assert small == (
        "ping -n -q -c 2 -i 0.02 -W 1 -M do -s 56 -I 10.20.0.11 -I enp1s0f0np0 10.20.0.12"
    )
    assert "-c 3" in large and "-s 8972" in large
    assert (found["rtt_ms"], found["claims"]) == (0.055, [PEER])


@pytest.mark.parametrize("limit", [84, 85, 1499, 1500, 1501, 4096, 8998, 8999])
def test_the_search_ends_soon_and_exactly(tmp_path: Path, limit: int) -> None:
    found, asked = check(tmp_path, above(limit, fails(LOST)), [PEER])
    assert found["found_mtu"] == limit
    assert len(asked) <= 2 + 15
