# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fences on a container lab: who reaches which port, by real connections, beside Docker's rules."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.labs import ROOT, LabUnderTest
from tests.support.playbook import (
    Run,
    assert_check_changes_nothing,
    assert_idempotent,
    run_playbook,
)

pytestmark = pytest.mark.containers

FENCES = ROOT / "playbooks/fences.yml"
PORTS = {"ssh": 22, "engine": 8888, "rendezvous": 20000, "nfs": 2049, "metrics": 9100, "api": 8000}
STATE = """
sha256sum /etc/sparkfleet/* /etc/systemd/system/sparkfleet* 2>&1
systemctl show -p ActiveState -p ActiveEnterTimestamp sparkfleet-fences nftables docker 2>&1
nft list ruleset | sed 's/packets [0-9]* bytes [0-9]*//'
"""
DOCKER = "nft list ruleset | sed 's/packets [0-9]* bytes [0-9]*//' | grep DOCKER"
LISTEN = """python3 - <<'EOF'
import socket, os
if os.fork(): os._exit(0)
os.setsid()
null = os.open("/dev/null", os.O_RDWR)
for fd in (0, 1, 2): os.dup2(null, fd)
held = [socket.create_server(("0.0.0.0", port), reuse_port=False) for port in %s]
import selectors
with selectors.DefaultSelector() as selector:
    for one in held: selector.register(one, selectors.EVENT_READ)
    while True:
        for key, _event in selector.select():
            key.fileobj.accept()[0].close()
EOF"""
TRY = """python3 - <<'EOF'
import json, socket
told = {}
for name, port in %s.items():
    try:
        socket.create_connection((%r, port), 5, (%r, 0)).close()
        told[name] = "open"
    except ConnectionRefusedError:
        told[name] = "refused"
    except OSError as error:
        told[name] = str(error)
print(json.dumps(told))
EOF"""


@pytest.fixture(scope="module")
def pair(make_lab: Callable[..., LabUnderTest]) -> LabUnderTest:
    lab = make_lab("fences", "containers", "--bare", "--cabling", "pair", "--hosts", "2")
    for number, host in enumerate(("spark1", "spark2"), 11):
        lab.root(
            host, f"ip link set enp1s0f0np0 up; ip addr add 10.20.0.{number}/24 dev enp1s0f0np0"
        )
    listening = [port for port in PORTS.values() if port != 22]
    lab.root("spark1", LISTEN % listening)
    return lab


def play(lab: LabUnderTest, *words: str, **variables: Any) -> Run:
    return run_playbook(FENCES, lab.inventory, *given(**variables), *words)


def given(**variables: Any) -> tuple[str, ...]:
    return ("-e", json.dumps({"spark_topology": "pair", **variables}))


def reached(lab: LabUnderTest, source: str = "0.0.0.0", target: str = "") -> dict[str, str]:
    """What spark2 reaches on spark1."""
    target = target or management(lab, "spark1")
    found: dict[str, str] = json.loads(lab.root("spark2", TRY % (PORTS, target, source)))
    return found


def management(lab: LabUnderTest, host: str) -> str:
    return lab.lab.host(host).address


def test_check_changes_nothing_on_a_bare_node(pair: LabUnderTest) -> None:
    run = assert_check_changes_nothing(
        FENCES, pair.inventory, *given(), witness=lambda: pair.everywhere(STATE)
    )
    assert "tcp dport 8888" in run.output, "the diff shows the rules"
    assert set(reached(pair).values()) == {"open"}


def test_ports_are_for_their_users(pair: LabUnderTest) -> None:
    rules_of_docker = pair.root("spark1", f"systemctl start docker; {DOCKER}")
    assert rules_of_docker
    assert_idempotent(FENCES, pair.inventory, *given())
    told = reached(pair)
    refused = {name for name, word in told.items() if word == "refused"}
    # Ranks meet and read on the fabric, never by their management addresses.
    assert refused == {"engine", "rendezvous", "nfs", "metrics"}
    assert {told[name] for name in ("ssh", "api")} == {"open"}
    by_fabric = reached(pair, "10.20.0.12", "10.20.0.11")
    assert {name for name, word in by_fabric.items() if word == "open"} == {
        "ssh",
        "rendezvous",
        "nfs",
        "api",
    }
    own = pair.root("spark1", TRY % (PORTS, "127.0.0.1", "127.0.0.1"))
    assert set(json.loads(own).values()) == {"open"}
    assert pair.root("spark1", DOCKER) == rules_of_docker
    before = pair.everywhere(STATE)
    run = play(pair, "--check", "--diff").assert_ok().assert_unchanged()
    assert "tcp dport" not in run.output
    assert pair.everywhere(STATE) == before


def test_who_monitors_is_let_in_and_the_entry_can_be_for_the_router_alone(
    pair: LabUnderTest,
) -> None:
    address = management(pair, "spark2")
    play(pair, fences_monitoring=[address], fences_clients=["198.51.100.7"]).assert_ok()
    told = reached(pair)
    assert (told["metrics"], told["api"], told["ssh"]) == ("open", "refused", "open")
    assert play(pair).assert_ok().changed


def test_the_port_of_ssh_is_never_fenced(pair: LabUnderTest) -> None:
    before = pair.everywhere(STATE)
    run = play(pair, spark_nfs_port=22)
    assert run.returncode != 0
    assert "port 22 is that of ssh and not fenced; give nfs another port" in run.output
    assert "Traceback" not in run.output
    assert pair.everywhere(STATE) == before


def test_what_somebody_flushed_comes_back(pair: LabUnderTest) -> None:
    pair.root("spark1", "nft delete table inet sparkfleet")
    assert reached(pair)["engine"] == "open"
    run = play(pair).assert_ok()
    assert {note.host for note in run.changed} == {"spark1"}
    assert reached(pair)["engine"] == "refused"


def test_the_distributions_own_service_does_not_take_them_away(pair: LabUnderTest) -> None:
    for verb in ("start", "reload", "restart"):
        # Debian's /etc/nftables.conf begins with flush ruleset.
        pair.root("spark1", f"systemctl {verb} nftables && sleep 1")
        assert reached(pair)["engine"] == "refused", verb
    pair.root("spark1", "systemctl stop nftables")
    play(pair).assert_ok()


def test_absent_lets_everybody_in_again(pair: LabUnderTest) -> None:
    first, second = assert_idempotent(FENCES, pair.inventory, *given(fences_state="absent"))
    assert first.changed
    assert not second.changed
    assert set(reached(pair).values()) == {"open"}
    left = pair.root(
        "spark1", "nft list tables; ls /etc/sparkfleet /etc/systemd/system 2>/dev/null; true"
    )
    assert "sparkfleet" not in left
