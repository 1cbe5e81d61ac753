"""States of ports, and ears that hear frames from a pipe; real wires are in the container lab."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import Any, ClassVar

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _link_detached, _link_probe
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_detached import Leash
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_frames import (
    ETHERTYPE,
    probe_frame,
    tag_of,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_probe import (
    PORTS,
    Ears,
    collect,
    macs,
    port_state,
    start,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._tree import Tree

from tests.unit.sysfs import build

OWN = "02:00:00:00:01:10"
PEER = bytes.fromhex("020000000220")
UP = {"address": OWN, "flags": "0x1003", "carrier": "1", "mtu": "9000", "speed": "200000"}
DOWN = {**UP, "flags": "0x1002", "carrier": "! EINVAL", "speed": "! EINVAL"}


def tree(root: Path, **ports: Mapping[str, str]) -> Tree:
    return Tree(str(build(root, {"sys": {"class": {"net": ports}}})))


@pytest.mark.parametrize(
    ("files", "state"),
    [
        (UP, "up"),
        ({**UP, "carrier": "0"}, "no-carrier"),
        ({**UP, "carrier": "! EINVAL"}, "no-carrier"),
        (DOWN, "down"),
        ({}, "missing"),
    ],
)
def test_states(tmp_path: Path, files: Mapping[str, str], state: str) -> None:
    found = port_state(tree(tmp_path, dev=files), "dev")
    assert found["state"] == state
    assert found["netdev"] == "dev"


@pytest.mark.parametrize(
    ("speed", "mbps"),
    [
        ("200000", 200000),
        ("! EINVAL", None),
        ("-1", None),
        ("0", None),
        ("65535", None),
        ("4294967295", None),
    ],
)
def test_an_unknown_speed_is_none(tmp_path: Path, speed: str, mbps: int | None) -> None:
    assert port_state(tree(tmp_path, dev={**UP, "speed": speed}), "dev")["speed_mbps"] == mbps


def test_macs_of_a_host(tmp_path: Path) -> None:
    found = macs(
        tree(
            tmp_path,
            lo={"address": "00:00:00:00:00:00"},
            enP7s7={"address": "02:00:00:00:01:0A"},
            tun0={"address": ""},
            ghost={},
        )
    )
    assert found == {"enP7s7": "02:00:00:00:01:0a"}
    assert macs(Tree(str(tmp_path / "nothing"))) == {}


def test_the_ports_of_a_spark() -> None:
    assert [(port["netdev"], port["cage"], port["domain"]) for port in PORTS] == [
        ("enp1s0f0np0", 0, 0),
        ("enP2p1s0f0np0", 0, 2),
        ("enp1s0f1np1", 1, 0),
        ("enP2p1s0f1np1", 1, 2),
    ]


class Wire:
    """A packet socket whose other end the test holds; frames that begin with 0 are own ones."""

    def __init__(self) -> None:
        self._port, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._port.setblocking(False)

    def fileno(self) -> int:
        return self._port.fileno()

    def getsockname(self) -> tuple[Any, ...]:
        return ("dev", ETHERTYPE, 0, 1, bytes.fromhex(OWN.replace(":", "")))

    def recvfrom(self, size: int) -> tuple[bytes, tuple[Any, ...]]:
        data = self._port.recv(size)
        kind = socket.PACKET_OUTGOING if data[0] == 0 else socket.PACKET_BROADCAST
        return data, ("dev", ETHERTYPE, kind, 1, data[6:12])

    def send(self, frame: bytes) -> None:
        self._port.send(frame)

    def close(self) -> None:
        self._port.close()
        self.far.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    yield wire
    wire.close()


@pytest.fixture
def short_leash() -> Iterator[Leash]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0test-{time.monotonic_ns()}")
        listener.listen()
        yield Leash(listener, 0.6)


def test_what_is_heard_is_counted_by_source(tmp_path: Path, wire: Wire, short_leash: Leash) -> None:
    run, other = tag_of("run"), tag_of("other")
    frames = [
        probe_frame(PEER, run),
        probe_frame(PEER, run),
        probe_frame(PEER[:5] + b"\x21", other),
        probe_frame(PEER, run)[:12] + b"\x88\xcc".ljust(60),  # LLDP
        b"\0" + probe_frame(PEER, run)[1:],  # sent by this host
        b"\xff" * 9,  # no frame at all
    ]
    for frame in frames:
        wire.far.send(frame)
    ears: Any = Ears({"dev": wire}, run, tree(tmp_path, dev=UP))  # type: ignore[dict-item]
    assert ears.listen(short_leash, []) == {
        "dev": {
            "carrier_seen": True,
            "heard": [
                {"mac": "02:00:00:00:02:20", "frames": 3, "probes": 2, "other_runs": 0},
                {"mac": "02:00:00:00:02:21", "frames": 1, "probes": 0, "other_runs": 1},
            ],
        }
    }
    said = wire.far.recv(100)
    assert said == probe_frame(bytes.fromhex(OWN.replace(":", "")), run)


def test_a_network_does_not_fill_the_memory(
    tmp_path: Path, wire: Wire, short_leash: Leash, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_link_probe, "_SOURCES", 3)
    for number in range(9):
        wire.far.send(probe_frame(PEER[:5] + bytes([number]), tag_of("run")))
    ears: Any = Ears({"dev": wire}, tag_of("run"), tree(tmp_path, dev=UP))  # type: ignore[dict-item]
    assert len(ears.listen(short_leash, [])["dev"]["heard"]) == 3


@pytest.mark.parametrize(
    ("mac", "run", "raised", "expected", "sooner"),
    [
        (PEER, "run", [], None, True),
        (PEER, "other", [], None, False),
        (bytes.fromhex(OWN.replace(":", "")), "run", [], None, False),  # a twin on the same wire
        (PEER, "run", ["dev"], None, False),
        (PEER, "run", ["dev"], ["dev"], False),
        (PEER, "run", ["bare"], None, False),
        (PEER, "run", ["bare"], ["dev"], True),  # no cable is planned for the raised port
        (PEER, "run", ["bare"], ["bare", "dev"], False),
    ],
)
def test_listening_ends_sooner_once_peers_were_heard(
    tmp_path: Path,
    wire: Wire,
    monkeypatch: pytest.MonkeyPatch,
    mac: bytes,
    run: str,
    raised: list[str],
    expected: list[str] | None,
    sooner: bool,
) -> None:
    class Called:
        """A leash that is pulled from the beginning."""

        request: ClassVar = {"seconds": 1.5, "settle": 1.5, "expected": expected}

        def pulled(self) -> bool:
            return True

    monkeypatch.setattr(_link_probe, "_QUIET", 0.2)
    other = Wire()
    wire.far.send(probe_frame(mac, tag_of(run)))
    files = tree(tmp_path, dev=UP, bare={**UP, "carrier": "0"})
    ears: Any = Ears({"dev": wire, "bare": other}, tag_of("run"), files)  # type: ignore[dict-item]
    begun = time.monotonic()
    ears.listen(Called(), raised)
    other.close()
    assert (time.monotonic() - begun < 1.2) == sooner


@pytest.fixture
def host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Tree, Callable[[Sequence[str]], Command], Path]]:
    """A host with one port up and one down, whose `ip link set` writes a log and the state."""
    files = tree(tmp_path, a=UP, b=DOWN)
    log = tmp_path / "log"

    def command(argv: Sequence[str]) -> Command:
        with log.open("a") as stream:
            stream.write(" ".join(argv) + "\n")
        base = tmp_path / "sys/class/net" / argv[-2]
        (base / "flags").write_text("0x1003" if argv[-1] == "up" else "0x1002")
        (base / "carrier").unlink()
        (base / "carrier").write_text("1")
        return Command(0, "", "")

    monkeypatch.setattr(_link_probe, "_NAME", f"test-{time.monotonic_ns()}")
    monkeypatch.setattr(_link_probe, "open_port", lambda _netdev: Wire())
    yield files, command, log
    _link_detached.collect(_link_probe._NAME)


TWO = [{"netdev": "a", "cage": 0, "domain": 0}, {"netdev": "b", "cage": 0, "domain": 2}]


def test_ports_are_raised_while_it_listens(host: Any) -> None:
    files, command, log = host
    raising = {"raise_ports": True, "lifetime": 60, "tree": files, "command": command}
    assert start(TWO, "run", **raising) is None
    assert log.read_text() == "ip link set dev b up\n"
    found = collect(TWO, "run", seconds=0.3, settle=0, tree=files)
    assert log.read_text().splitlines()[1:] == ["ip link set dev b down"]
    assert found["probed"]
    assert [(port["state"], port["raised"], port["carrier_seen"]) for port in found["ports"]] == [
        ("up", False, True),
        ("up", True, True),
    ]
    assert found["macs"] == {"a": OWN, "b": OWN}


def test_ports_that_are_down_are_left_alone(host: Any) -> None:
    files, command, log = host
    start(TWO, "run", raise_ports=False, lifetime=60, tree=files, command=command)
    found = collect(TWO, "run", seconds=0, settle=0, tree=files)
    assert not log.exists()
    assert [(port["state"], port["heard"]) for port in found["ports"]] == [("up", []), ("down", [])]


def test_no_right_to_send(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    files, command, _log = host

    def refuse(_netdev: str) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(_link_probe, "open_port", refuse)
    raising = {"raise_ports": True, "lifetime": 60, "tree": files, "command": command}
    assert start(TWO, "run", **raising) == "no right to send frames on a; this needs root"
    found = collect(TWO, "run", seconds=0, settle=0, tree=files)
    assert not found["probed"]
    assert "was not started" in found["why"]
    assert [port["heard"] for port in found["ports"]] == [[], []]


def test_the_process_of_another_run_does_not_count(host: Any) -> None:
    files, command, _log = host
    start(TWO, "yesterday", raise_ports=False, lifetime=60, tree=files, command=command)
    found = collect(TWO, "run", seconds=0, settle=0, tree=files)
    assert (found["probed"], found["why"]) == (
        False,
        "the process that listens belongs to another run",
    )


@pytest.fixture
def slow(host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A port that has no carrier yet when it has been raised, and the file that tells it."""
    files, command, _log = host
    carrier = tmp_path / "sys/class/net/b/carrier"

    def raise_slowly(argv: Sequence[str]) -> Command:
        answer: Command = command(argv)
        carrier.write_text("0")
        return answer

    monkeypatch.setattr(_link_probe, "_INTERVAL", 0.05)
    # The one that is up without a carrier has no cable; nobody waits for that.
    (tmp_path / "sys/class/net/a/carrier").write_text("0")
    start(TWO, "run", raise_ports=True, lifetime=60, tree=files, command=raise_slowly)
    return carrier


def test_a_carrier_is_waited_for_on_a_raised_port(host: Any, slow: Path) -> None:
    began = time.monotonic()
    timer = Timer(0.6, slow.write_text, ["1"])
    timer.start()
    found = collect(TWO, "run", seconds=0.2, settle=30, tree=host[0])
    timer.join()
    assert 0.7 < time.monotonic() - began < 10
    assert [port["carrier_seen"] for port in found["ports"]] == [False, True]


def test_the_wait_for_a_carrier_ends(host: Any, slow: Path) -> None:
    began = time.monotonic()
    found = collect(TWO, "run", seconds=0, settle=0.5, tree=host[0])
    assert time.monotonic() - began < 5
    assert slow.read_text() == "0"
    assert [port["carrier_seen"] for port in found["ports"]] == [False, False]
