# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a lab is: its hosts, names and addresses, derived from five numbers and kept as one file."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab import cabling
from lab.cabling import Cable, End
from lab.system import STATE, LabError, write_atomic

MANAGEMENT = "enP7s7"
BACKENDS = ("containers", "vm")
POOL = ipaddress.ip_network("10.98.0.0/16")  # management: one /24 a lab


@dataclass(frozen=True)
class Port:
    """One fabric netdev of a Spark with its RDMA device (fabric names of DGX OS)."""

    cage: int
    domain: int  # PCI domain: 0 or 2

    @property
    def twin(self) -> str:
        return "a" if self.domain == 0 else "b"

    @property
    def netdev(self) -> str:
        return f"{'enp1s0' if self.domain == 0 else 'enP2p1s0'}f{self.cage}np{self.cage}"

    @property
    def hca(self) -> str:
        return f"{'rocep1s0' if self.domain == 0 else 'roceP2p1s0'}f{self.cage}"

    @property
    def pci(self) -> str:
        return f"000{self.domain}:01:00.{self.cage}"

    @property
    def tag(self) -> str:
        """Short name of this port outside the host: f<cage><twin>."""
        return f"f{self.cage}{self.twin}"


PORTS = tuple(Port(cage, domain) for cage in (0, 1) for domain in (0, 2))


def port_of(cage: int, twin: str) -> Port:
    return next(port for port in PORTS if port.cage == cage and port.twin == twin)


def port_by_name(name: str) -> Port:
    """The port that has this netdev or RDMA device name."""
    for port in PORTS:
        if name in (port.netdev, port.hca):
            return port
    names = ", ".join(port.netdev for port in PORTS)
    raise LabError(f"a Spark has no fabric port '{name}'; there are: {names}")


@dataclass(frozen=True)
class Host:
    """One virtual Spark. ``index`` counts from 0, the name from 1."""

    lab_index: int
    index: int

    @property
    def name(self) -> str:
        return f"spark{self.index + 1}"

    @property
    def address(self) -> str:
        return str(network(self.lab_index)[11 + self.index])

    @property
    def management_mac(self) -> str:
        return self._mac(0x00)

    def mac(self, port: Port) -> str:
        return self._mac(0x10 * (port.cage + 1) + port.domain // 2)

    def _mac(self, last: int) -> str:
        return f"52:54:00:{self.lab_index:02x}:{self.index + 1:02x}:{last:02x}"


def network(lab_index: int) -> ipaddress.IPv4Network:
    """The management network of a lab; the machine itself is .1 in it."""
    return ipaddress.IPv4Network((int(POOL.network_address) + 256 * lab_index, 24))


@dataclass
class Lab:
    """A lab as it was asked for. Everything else follows from these fields."""

    name: str
    index: int
    backend: str = "containers"
    hosts_wanted: int = 4
    cabling: str = "ring"
    addressed: bool = True
    stood_in: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def hosts(self) -> list[Host]:
        return [Host(self.index, k) for k in range(self.hosts_wanted)]

    def host(self, name: str) -> Host:
        for host in self.hosts:
            if host.name == name:
                return host
        raise LabError(
            f"lab '{self.name}' has no host '{name}'; "
            f"it has: {', '.join(host.name for host in self.hosts)}"
        )

    @property
    def cells(self) -> dict[str, list[Host]]:
        """The cells by the names of their inventory groups: sparks, or cell_a, cell_b, ..."""
        cells = cabling.cells(self.cabling, self.hosts_wanted)
        names = ["sparks"] if len(cells) == 1 else [f"cell_{'abcd'[k]}" for k in range(len(cells))]
        return {
            name: [self.hosts[k] for k in members]
            for name, members in zip(names, cells, strict=True)
        }

    @property
    def cables(self) -> list[Cable]:
        return cabling.cables(self.cabling, self.hosts_wanted)

    def cable_at(self, end: End) -> Cable | None:
        return next((cable for cable in self.cables if end in cable.ends), None)

    @property
    def netns(self) -> str:
        return f"sparklab-{self.name}"

    @property
    def gateway(self) -> str:
        return str(network(self.index)[1])

    @property
    def state(self) -> Path:
        return STATE / self.name

    def folder(self, host: Host) -> Path:
        return self.state / host.name

    def fabric_addresses(self) -> Iterator[tuple[Host, Port, str]]:
        """Addresses given by hand so that the links can be tried: (host, port, address/24).

        Twin a of cable k is 10.100.k.0/24, twin b 10.101.k.0/24; the host part is the end's place.
        """
        hosts = self.hosts
        for number, cable in enumerate(self.cables):
            for place, end in enumerate(cable.ends, start=1):
                for twin, second in (("a", 100), ("b", 101)):
                    port = port_of(end.cage, twin)
                    yield hosts[end.host], port, f"10.{second}.{number}.{place}/24"

    def save(self) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        write_atomic(self.state / "lab.json", json.dumps(dataclasses.asdict(self), indent=2) + "\n")


def valid_name(name: str) -> str:
    # the name is part of a network namespace, of interfaces and of container names
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,19}", name):
        raise LabError(f"lab name '{name}': use up to 20 of a-z, 0-9 and '-', a letter first")
    return name


def load(name: str) -> Lab | None:
    """The lab of that name, None where there is none."""
    path = STATE / valid_name(name) / "lab.json"
    try:
        return Lab(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError) as error:
        raise LabError(
            f"{path} is not readable as a lab ({error}); remove it with: lab --name {name} down"
        ) from error


def all_labs() -> list[Lab]:
    labs = []
    for path in sorted(STATE.glob("*/lab.json")):
        lab = load(path.parent.name)
        if lab is not None:
            labs.append(lab)
    return labs


def free_index(taken_networks: Iterable[str]) -> int:
    """The first lab number whose management network nobody uses.

    :param taken_networks: destinations of the machine's routes, as ``ip -j route`` prints them.
    """
    taken = [ipaddress.ip_network(text, strict=False) for text in taken_networks]
    used = {lab.index for lab in all_labs()}
    for index in range(256):
        if index not in used and not any(network(index).overlaps(other) for other in taken):
            return index
    raise LabError(f"no free /24 in {POOL}: remove labs you no longer need (lab list)")


def forget(name: str) -> None:
    shutil.rmtree(STATE / name, ignore_errors=True)
