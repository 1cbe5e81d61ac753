# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Choose the GID of each RDMA port by what it means, never by its number.

The slot of a GID is the first that was free when its address was added, so it differs between nodes
and between the two twins of one cable, and it moves when addresses come and go. What NCCL needs is
the one entry of a port that is RoCE v2, maps an IPv4 address that is not link-local, lies on the
port's netdev and, where the subnet of the link is declared, in that subnet. No such entry, or more
than one, is a problem with a name; nothing is guessed and no number is fallen back to.

This file needs the standard library only and runs on a node without Ansible, at every launch:

    roce_gid.py --hcas =rocep1s0f0,roceP2p1s0f0 --format env

Exit status: 0 done; 1 problems, and --required or --format env was given; 2 bad arguments.
"""

from __future__ import annotations

import argparse
import errno
import ipaddress
import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any, NamedTuple

POLICIES = ("auto", "pin", "verify")
V1, V2 = "IB/RoCE v1", "RoCE v2"

# Every problem there is: what was expected instead, and what to do next.
_RUN_ON_HOST = "run on the host, not in a container or another network namespace"
_RDMA_CLASS = "a directory of RDMA devices"
_ADDRESS = "a RoCE v2 entry with an IPv4 address"
_GIVE_ADDRESS = "give {netdev} the IPv4 address of the plan; ip -br addr show dev {netdev}"
_ACTIVE = "ACTIVE, the only state NCCL uses"
_NO_NUMBER = "drop the number and use policy auto"
ADVICE = {
    "rdma-stack-absent": (_RDMA_CLASS, f"modprobe mlx5_ib; {_RUN_ON_HOST}"),
    "sysfs-unreadable": (_RDMA_CLASS, "run as root, and check the parameter sysfs"),
    "no-rdma-device": (
        "four RDMA devices on a Spark",
        "lspci -d 15b3: shows the NIC; without a cable at boot it can be absent",
    ),
    "vanished": ("devices that stay", "run again; dmesg tells why the driver reloads"),
    "virtual-function": (
        "a physical function, which stands for a cage",
        "name {hca} in full if it is meant, else its physical function",
    ),
    "foreign-device": ("a ConnectX, PCI vendor 0x15b3", "leave {hca} out of the selection"),
    "no-gid-table": ("an endpoint, whose gids/0 can be read", "leave {hca} out of the selection"),
    "gid-unreadable": ("a GID table that can be read as a whole", f"run as root; {_RUN_ON_HOST}"),
    "not-ethernet": ("Ethernet, which RoCE runs on", "leave {hca} out of the selection"),
    "bonded": (
        "one HCA for each netdev: a bond hides cages and twins from NCCL",
        "take the bond apart and give each netdev an address of its own",
    ),
    "port-down": (_ACTIVE, "seat the cable at both ends; ip link set {netdev} up"),
    "port-not-active": (_ACTIVE, "rdma link show {hca}/{port}"),
    "no-netdev": (
        "the network interface of the port in this namespace",
        f"lsmod | grep mlx5_core; {_RUN_ON_HOST}",
    ),
    "no-device-node": (
        "the character device through which programs use the HCA",
        "modprobe ib_uverbs; in a container, pass --device /dev/infiniband",
    ),
    "zero-node-guid": (
        "the GUID the firmware gives",
        "ibv_devinfo -d {hca}; reset or update the firmware of this NIC",
    ),
    "gid-type-unreadable": (_ADDRESS, _RUN_ON_HOST),
    "unknown-gid-type": (_ADDRESS, "ibv_devinfo -v -d {hca}; is the kernel newer than this?"),
    "only-v1": (_ADDRESS, "ibv_devinfo -v -d {hca}; does the firmware allow RoCE v2?"),
    "ipv6-only": (_ADDRESS, _GIVE_ADDRESS),
    "no-ipv4": (_ADDRESS, _GIVE_ADDRESS),
    "link-local-only": ("an address of the plan, not one of 169.254.0.0/16", _GIVE_ADDRESS),
    "wrong-netdev": ("an address on {wanted}", "ip -br addr; move the address to {wanted}"),
    "wrong-subnet": (
        "an address in {subnet}",
        "ip -br addr show dev {netdev}; is it the right cable, and the right plan?",
    ),
    "ambiguous": (
        "exactly one RoCE v2 entry{subnet}",
        "declare the subnet of the link, or remove the other: ip -br addr show dev {netdev}",
    ),
    "hca-not-found": ("{hca}", "rdma link; an HCA without a cable at boot can be absent"),
    "too-many-hcas": ("32 at most: NCCL ignores the rest", "name the HCAs to use"),
    "no-hca-selected": ("an HCA to use", "seat the cables and look at the ports: rdma link"),
    "duplicate-address": ("an address of its own for each port", "ip -br -4 addr"),
    "gid-index-differs": (
        "one slot for all: NCCL_IB_GID_INDEX is one number for every HCA of a process",
        "use policy auto, which exports no index",
    ),
    "index-empty": ("{right}", _NO_NUMBER),
    "index-wrong": ("{right}", _NO_NUMBER),
    "nccl-takes-another": (
        "slot {right}; {span} is the smallest range over all links and holds more than the links",
        "remove the other address from {netdev}, or use policy pin",
    ),
}

_CLASS = "class/infiniband"
_MAX_HCAS = 32  # NCCL looks at no more
_MELLANOX = "0x15b3"
# What systemd makes of the PCI address and the phys_port_name of a fabric port: enP2p1s0f1np1.
_FABRIC_NETDEV = re.compile(r"en(?:P(?P<domain>\d+))?p\d+s\d+f(?P<cage>\d)np\d+$")
_PCI = re.compile(r"(?P<domain>[0-9a-f]{4,8}):[0-9a-f]{2}:[0-9a-f]{2}\.(?P<function>[0-7])$")
_ENTRY = re.compile(r"(?P<name>[A-Za-z0-9_.-]+)(?::(?P<port>\d+)(?P<rail>(?::\d+){0,2}))?$")
# A slot that was never filled, and what NCCL calls not configured.
_NOT_SET = (bytes(16), bytes.fromhex("fe80") + bytes(14))
_NOTHING_THERE = (errno.EINVAL, errno.ENODATA, errno.ENOENT)
_KNOWN_TYPES = {"roce v2": V2, "ib/roce v1": V1, "roce v1": V1}
# GRH, UDP, BTH, XRC, AtomicETH and ICRC: what the kernel's iboe_get_mtu() takes off.
_ROCE_HEADERS = 40 + 8 + 12 + 4 + 28 + 4
_PATH_MTUS = (4096, 2048, 1024, 512, 256)
# A port that is not named in full is passed over for these: NCCL does not use it, or must not.
_PASSED_OVER = frozenset(
    ["foreign-device", "no-gid-table", "no-netdev", "not-ethernet", "port-down", "virtual-function"]
)


class InputError(ValueError):
    """Arguments that cannot be meant, a line for each."""


class Problem(NamedTuple):
    """A stable code, and a sentence with what was found, expected, where, and what to do next."""

    code: str
    message: str


class Gid(NamedTuple):
    """One filled slot. `address` is None for text that is no GID, `type` where it is not known."""

    slot: int
    gid: str
    address: str | None
    type: str | None
    netdev: str | None
    type_text: str | None = None
    note: str = ""

    def public(self) -> dict[str, Any]:
        names = ("index", "gid", "address", "type", "netdev")
        return dict(zip(names, self, strict=False))

    @property
    def ipv4(self) -> IPv4Address | None:
        return IPv4Address(self.address) if "." in (self.address or "") else None

    def __str__(self) -> str:
        kind = self.type or self.type_text or "type unreadable"
        return f"{self.slot}: {self.address or self.gid} {kind} on {self.netdev or '?'}{self.note}"


class Port(NamedTuple):
    """One port: `facts` in the public shape, and what is wrong with it, the gravest first."""

    facts: dict[str, Any]
    gids: list[Gid]
    problems: list[Problem]
    path: str

    @property
    def hca(self) -> str:
        return str(self.facts["hca"])

    def has(self, *codes: str) -> bool:
        return any(problem.code in codes for problem in self.problems)

    def complain(self, code: str, found: str, where: str = "gids", **words: Any) -> None:
        known = {name: self.facts[name] or "DEV" for name in ("hca", "port", "netdev")}
        self.problems.append(
            _problem(code, found, os.path.normpath(f"{self.path}/{where}"), **{**known, **words})
        )


class Selector(NamedTuple):
    """NCCL_IB_HCA taken apart; an entry is (name, port or None, rail and plane as written)."""

    exclude: bool
    exact: bool
    entries: list[tuple[str, int | None, str]]


class Wish(NamedTuple):
    """What the plan says about an HCA."""

    subnet: IPv4Network | None = None
    netdev: str | None = None


Selection = list[tuple[Port, str]]  # with what NCCL_IB_HCA calls the port


def roce_gids(
    sysfs: str | Sysfs = "/sys",
    hcas: Any = None,
    expected: Any = None,
    policy: str = "auto",
    index: int | None = None,
) -> dict[str, Any]:
    """Read all RDMA ports and choose.

    `hcas` is a text in the syntax of NCCL_IB_HCA or a list of full names; without it the HCAs of
    `expected` are meant, and without those every fabric port that is up. `expected` is a list of
    ``{hca, subnet, netdev}``, the last two optional. `index` belongs to the policy ``verify``.

    Returns ``{devices, hcas, common_gid_index, nccl_env, problems}`` as the documentation of
    roce_gid_info describes them. `problems` has all that keeps the selection from being used, and
    `nccl_env` is empty unless there is none.

    Raises InputError for arguments that cannot be meant, before anything is read.
    """
    selector, wishes = _arguments(hcas, expected, policy, index)
    ports, problems = (sysfs if isinstance(sysfs, Sysfs) else Sysfs(sysfs)).ports()
    for port in ports:
        _choose_for(port, wishes.get(port.hca, Wish()))
    selected: Selection = []
    if not problems:
        selected, problems = _select(ports, selector, wishes)
    _same_address(selected)
    numbers = {port.facts["gid_index"] for port, _name in selected}
    common = numbers.pop() if len(numbers) == 1 else None
    names = "=" + ",".join(name for _port, name in selected)
    if policy == "auto":
        env = _meaning(selected, wishes)
    else:
        if policy == "verify":
            _verify(selected, index)
        elif len(numbers) > 1 and None not in numbers:
            found = _list(f"{name} in slot {port.facts['gid_index']}" for port, name in selected)
            problems.append(_problem("gid-index-differs", found, "the GID tables"))
        index = common if policy == "pin" else index
        env = {"NCCL_IB_GID_INDEX": str(index)}
    rows = [{**problem._asdict(), "hca": None, "port": None} for problem in problems] + [
        {**problem._asdict(), "hca": port.hca, "port": port.facts["port"]}
        for port, _name in selected
        for problem in port.problems
        if problem.code != "virtual-function"  # selected only when it is named, so it is meant
    ]
    for port in ports:
        port.facts["selected"] = any(port is one for one, _name in selected)
        port.facts["problem"] = port.problems[0]._asdict() if port.problems else None
    return {
        "devices": [port.facts for port in ports],
        "hcas": [name for _port, name in selected],
        "common_gid_index": common,
        "nccl_env": {} if rows else {"NCCL_IB_HCA": names, **env},
        "problems": rows,
    }


def _problem(code: str, found: str, where: str, **words: Any) -> Problem:
    expected, then = (text.format(**words) for text in ADVICE[code])
    return Problem(code, f"found {found}; expected {expected}; where: {where}; next: {then}")


# --- arguments ------------------------------------------------------------------------------------


def _arguments(
    hcas: Any, expected: Any, policy: str, index: int | None
) -> tuple[Selector | None, dict[str, Wish]]:
    complaints: list[str] = []
    selector: Selector | None = None
    wishes: dict[str, Wish] = {}
    try:
        selector = parse_hcas(hcas)
    except InputError as error:
        complaints.append(str(error))
    try:
        wishes = parse_expected(expected)
    except InputError as error:
        complaints.append(str(error))
    if policy not in POLICIES:
        complaints.append(f"policy is {policy!r}; it is one of {', '.join(POLICIES)}")
    elif policy == "verify" and index is None:
        complaints.append("policy verify needs index, the number that is to be verified")
    elif policy != "verify" and index is not None:
        complaints.append(f"index is {index}, but policy {policy} chooses itself; leave it out")
    elif index is not None and (isinstance(index, bool) or not isinstance(index, int) or index < 0):
        complaints.append(f"index is {index!r}; it counts from 0, and without one use policy auto")
    if complaints:
        raise InputError("\n".join(complaints))
    return selector, wishes


def parse_hcas(value: Any) -> Selector | None:
    """Take NCCL_IB_HCA apart: ``^`` excludes, ``=`` wants full names, else names are prefixes.

    ``^`` and ``=`` stand once before the whole list, in this order. An entry is
    ``name[:port[:rail[:plane]]]``. A list holds full names, unless its first entry starts with one
    of the two. An empty text is no selection, as for NCCL.

    >>> parse_hcas("^=mlx5_1:1,mlx5_2")
    Selector(exclude=True, exact=True, entries=[('mlx5_1', 1, ''), ('mlx5_2', None, '')])
    """
    how = "write it as for NCCL, for example =rocep1s0f0,roceP2p1s0f0"
    if value is None:
        return None
    text = value
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        if not value or not all(isinstance(item, str) for item in value):
            raise InputError(f"hcas is {list(value)!r}; a list holds one HCA name or more; {how}")
        text = ",".join(value)
        if text[:1] not in ("=", "^"):
            text = f"={text}"
    if not isinstance(text, str):
        raise InputError(f"hcas is {value!r}, which is neither text nor a list; {how}")
    text = text.strip()
    if not text:
        return None
    exclude = text.startswith("^")
    exact = text[exclude:].startswith("=")
    entries = []
    for item in text[exclude + exact :].split(","):
        match = _ENTRY.match(item.strip())
        if match:
            port = None if match["port"] is None else int(match["port"])
            entries.append((match["name"], port, match["rail"] or ""))
        elif item.strip():
            once = "= and ^ stand once, before the whole list, and ^ comes first"
            hint = once if item.strip()[0] in "=^" else how
            raise InputError(f"hcas has {item!r}, which is no HCA name; {hint}")
    if not 0 < len(entries) <= _MAX_HCAS:
        raise InputError(f"hcas has {len(entries)} names; NCCL takes 1 to {_MAX_HCAS}; {how}")
    return Selector(exclude, exact, entries)


def parse_expected(value: Any) -> dict[str, Wish]:
    """Check and convert a list of ``{hca, subnet, netdev}``; the order is kept."""
    if value is None:
        return {}
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise InputError(f"expected is {value!r}; it is a list of hca, subnet and netdev")
    wishes: dict[str, Wish] = {}
    complaints: list[str] = []
    for row in value:
        hca = row.get("hca") if isinstance(row, Mapping) else None
        if not isinstance(hca, str) or not _ENTRY.match(hca) or ":" in hca:
            complaints.append(f"expected has {row!r}; each entry has hca, the full name of one HCA")
            continue
        if hca in wishes:
            complaints.append(f"expected has {hca} twice; an HCA has one link, so keep one entry")
        unknown = sorted(str(key) for key in row if key not in ("hca", "subnet", "netdev"))
        if unknown:
            complaints.append(f"expected has {_list(unknown)} for {hca}; known: subnet, netdev")
        netdev, subnet = row.get("netdev") or None, row.get("subnet") or None
        if netdev is not None and (not isinstance(netdev, str) or "/" in netdev):
            complaints.append(f"netdev of {hca} is {netdev!r}; it is the name of an interface")
        network = None if subnet is None else _network(subnet)
        if subnet is not None and network is None:
            complaints.append(f"subnet of {hca} is {subnet!r}; it is one like 10.20.0.0/24")
        wishes[hca] = Wish(network, netdev)
    if complaints:
        raise InputError("\n".join(complaints))
    return wishes


def _network(value: Any) -> IPv4Network | None:
    try:
        # The address of the port with its prefix length means the same subnet.
        return IPv4Network(value, strict=False) if "/" in value else None
    except (TypeError, ValueError):
        return None


# --- what the kernel shows ------------------------------------------------------------------------


class _Kind(NamedTuple):
    mlx5: bool
    problem: tuple[str, str] | None


class Sysfs:
    """The RDMA devices below a sysfs root.

    /dev and /proc are looked for beside the root; where there is no `dev` beside it, nothing is
    said about device nodes. Every attribute is optional: other drivers lack some, and a port
    without a cable refuses others with EINVAL.
    """

    def __init__(self, root: str = "/sys") -> None:
        self.root = root
        self._beside = os.path.dirname(os.path.abspath(root))

    def path(self, relative: str) -> str:
        return os.path.join(self.root, relative)

    def exists(self, relative: str) -> bool:
        return os.path.lexists(self.path(relative))

    def listing(self, relative: str) -> list[str]:
        """The names in a directory; raises OSError."""
        return sorted(os.listdir(self.path(relative)))

    def names(self, relative: str) -> list[str]:
        """The names in a directory; none where it cannot be read."""
        try:
            return self.listing(relative)
        except OSError:
            return []

    def text(self, relative: str) -> str | None:
        """An attribute without the white space around it; None where it cannot be read."""
        try:
            with open(self.path(relative), encoding="utf-8", errors="replace") as stream:
                return stream.read().strip()
        except OSError:
            return None

    def ports(self) -> tuple[list[Port], list[Problem]]:
        """All ports in NCCL's order, by PCI address; or why there is none.

        A driver that reloads takes its devices away for a moment and may bring them back under
        other names. When one vanishes during the walk, the walk starts again, once.
        """
        where = self.path(_CLASS)
        try:
            ports, gone = self._walk()
            if gone:
                ports, gone = self._walk()
        except FileNotFoundError:
            if self.exists("class"):
                return [], [_problem("rdma-stack-absent", "no RDMA stack in this kernel", where)]
            return [], [_problem("sysfs-unreadable", "no sysfs here", self.root)]
        except OSError as error:
            return [], [_problem("sysfs-unreadable", str(error.strerror), where)]
        # One that came back under another name meanwhile is in the list already.
        known = {port.facts["pcie"]["address"] for port in ports if port.facts["pcie"]}
        ports += [p for p in gone if not p.facts["pcie"] or p.facts["pcie"]["address"] not in known]
        if not ports:
            return [], [_problem("no-rdma-device", "an empty directory", where)]
        return sorted(ports, key=_nccl_order), []

    def _walk(self) -> tuple[list[Port], list[Port]]:
        """(the ports of the devices that stayed, one port for each device that did not)."""
        ports: list[Port] = []
        gone: list[Port] = []
        owners = {
            self.text(f"class/infiniband_verbs/{name}/ibdev"): name
            for name in self.names("class/infiniband_verbs")
        }
        for hca in self.listing(_CLASS):
            found = self._device(hca, owners.get(hca))
            if self.exists(f"{_CLASS}/{hca}"):
                ports += found
                continue
            pcie = found[0].facts["pcie"]
            port = Port({**_facts(hca, None), "pcie": pcie}, [], [], self.path(f"{_CLASS}/{hca}"))
            port.complain("vanished", "the device gone while it was read, twice", "ports")
            gone.append(port)
        return ports, gone

    def _device(self, hca: str, uverbs: str | None) -> list[Port]:
        base = f"{_CLASS}/{hca}"
        netdevs = self._netdevs(base)
        kind = self._kind(base, netdevs)
        of_all = {"firmware": self.text(f"{base}/fw_ver") or None, "pcie": self._pcie(base)}
        ports = []
        for number in sorted(int(name) for name in self.names(f"{base}/ports") if name.isdigit()):
            where = f"{base}/ports/{number}"
            facts = _facts(hca, number)
            facts.update(
                netdev=netdevs[0] if len(netdevs) == 1 else None,
                netdevs=netdevs,
                state=_word(self.text(f"{where}/state")),
                physical_state=_word(self.text(f"{where}/phys_state")),
                rate_gbps=_number(self.text(f"{where}/rate")),
                link_layer=self.text(f"{where}/link_layer"),
                **of_all,
            )
            port = Port(facts, [], [], self.path(where))
            if kind.problem:
                port.complain(*kind.problem, where="../..")
            self._read_gids(port)
            self._check(port, uverbs)
            if port.has("no-gid-table"):
                # The netdev is that of another device, which shares the PCI function.
                facts.update(netdev=None, netdevs=[])
            facts["domain"], cage = self._place(facts)
            if not port.has("foreign-device", "virtual-function", "no-gid-table", "bonded"):
                facts["cage"] = cage
            if facts["netdev"]:
                facts["netdev_mtu"] = _whole(self.text(f"class/net/{facts['netdev']}/mtu"))
            if kind.mlx5 and not port.has("not-ethernet"):
                facts["active_mtu"] = path_mtu(facts["netdev_mtu"])
            ports.append(port)
        if not ports:
            ports.append(Port({**_facts(hca, None), **of_all}, [], [], self.path(base)))
            ports[0].complain("no-gid-table", "no port", "ports")
        return ports

    def _netdevs(self, base: str) -> list[str]:
        """The netdevs of the device itself; in switchdev mode those of its VFs lie there too."""
        names = self.names(f"{base}/device/net")
        if not names:
            parent = self.text(f"{base}/parent")  # Soft-RoCE names its netdev here
            return [parent] if parent else []
        own = [name for name in names if not re.match(r"(c\d+)?pf\d", self._port_name(name))]
        return own or names

    def _port_name(self, netdev: str) -> str:
        """phys_port_name: p0 for a cage, pf0vf3 for the stand-in of a VF."""
        return self.text(f"class/net/{netdev}/phys_port_name") or ""

    def _kind(self, base: str, netdevs: Sequence[str]) -> _Kind:
        """Whether mlx5 drives it, and why it is something else than the function of a cage."""
        hca = os.path.basename(base)
        vendor = self.text(f"{base}/device/vendor")
        model = self.text(f"{base}/hca_type") or "unknown"
        mlx5 = vendor == _MELLANOX if vendor else model.startswith("MT") or hca.startswith("mlx5_")
        # Soft-RoCE has no vendor; where it stands in for a NIC, the netdev has the NIC's name.
        ours = mlx5 or (not vendor and any(_FABRIC_NETDEV.match(netdev) for netdev in netdevs))
        guid = self.text(f"{base}/node_guid")
        zero = "a node GUID of zero: rdma_cm unusable" if guid and not guid.strip("0:") else ""
        if self.exists(f"{base}/device/physfn") or self.exists(f"{base}/device/sfnum"):
            return _Kind(mlx5, ("virtual-function", f"a virtual function{zero and ' with '}{zero}"))
        if not ours:
            found = f"PCI vendor {vendor or 'unknown'}, model {model}"
            return _Kind(mlx5, ("foreign-device", found))
        return _Kind(mlx5, ("zero-node-guid", zero) if zero else None)

    def _pcie(self, base: str) -> dict[str, Any] | None:
        try:
            address = os.path.basename(os.readlink(self.path(f"{base}/device"))).lower()
        except OSError:
            return None
        if not _PCI.match(address):
            return None
        return {
            "address": address,
            "speed_gts": _number(self.text(f"{base}/device/current_link_speed")),
            "width": _lanes(self.text(f"{base}/device/current_link_width")),
            "max_speed_gts": _number(self.text(f"{base}/device/max_link_speed")),
            "max_width": _lanes(self.text(f"{base}/device/max_link_width")),
        }

    def _place(self, facts: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """(PCI domain, cage). The twins of a cage agree in the function, not in the slot."""
        netdev = facts["netdev"] or ""
        pci = _PCI.match(facts["pcie"]["address"]) if facts["pcie"] else None
        if pci is not None:
            label = re.match(r"p(\d)$", self._port_name(netdev))
            return int(pci["domain"], 16), int(label[1] if label else pci["function"])
        named = _FABRIC_NETDEV.match(netdev)
        return (int(named["domain"] or 0), int(named["cage"])) if named else (None, None)

    def _read_gids(self, port: Port) -> None:
        """The filled slots. Most are empty, so only filled ones are asked for type and netdev."""
        filled: list[tuple[int, str]] = []
        slots: list[int] = []
        refused: list[str] = []
        try:
            directory = os.open(f"{port.path}/gids", os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            port.complain("no-gid-table", f"no GID table ({error.strerror})")
            return
        try:
            slots = sorted(int(name) for name in os.listdir(directory) if name.isdigit())
            for slot in slots:
                try:
                    text = _read_at(directory, str(slot))
                except OSError as error:
                    if error.errno not in _NOTHING_THERE:
                        refused.append(f"{slot} ({error.strerror})")
                    continue
                if text.strip("0:"):
                    filled.append((slot, text))
        finally:
            os.close(directory)
        if not slots:
            port.complain("no-gid-table", "a GID table without slots")
        if refused:
            port.complain("gid-unreadable", f"slots that cannot be read: {', '.join(refused[:8])}")
        for slot, text in filled:
            raw, address = _address(text)
            if raw in _NOT_SET:
                continue
            kind = self.text(f"{port.path}/gid_attrs/types/{slot}")
            netdev = self.text(f"{port.path}/gid_attrs/ndevs/{slot}") or None
            note = self._vlan(netdev) if netdev and netdev not in port.facts["netdevs"] else ""
            known = _KNOWN_TYPES.get((kind or "").casefold())
            port.gids.append(Gid(slot, text, address, known, netdev, kind, note))
        port.facts["gids"] = [gid.public() for gid in port.gids]

    def _vlan(self, netdev: str) -> str:
        """Tag and parent of a VLAN as the kernel tells them; nothing for any other interface."""
        config = self.text(os.path.join(self._beside, "proc/net/vlan", netdev)) or ""
        tag = re.search(r"VID: (\d+)", config)
        if not tag and "DEVTYPE=vlan" not in (self.text(f"class/net/{netdev}/uevent") or ""):
            return ""
        lower = [name for name in self.names(f"class/net/{netdev}") if name.startswith("lower_")]
        parent = f" on {lower[0].removeprefix('lower_')}" if lower else ""
        return f" (VLAN{f' {tag[1]}' if tag else ''}{parent})"

    def _elsewhere(self, netdevs: Sequence[str]) -> list[str]:
        """Which of the netdevs are not in this network namespace, though sysfs may show them."""
        here = self.text(os.path.join(self._beside, "proc/net/dev"))
        if here is None:
            return []
        known = {line.partition(":")[0].strip() for line in here.splitlines()}
        return [netdev for netdev in netdevs if netdev not in known]

    def _check(self, port: Port, uverbs: str | None) -> None:
        """Link layer, bond, state, netdev and device node."""
        facts = port.facts
        netdevs, state = facts["netdevs"], facts["state"]
        if facts["link_layer"] not in (None, "Ethernet"):
            port.complain("not-ethernet", f"link layer {facts['link_layer']}", "link_layer")
        master = f"class/net/{facts['netdev']}/master"
        if len(netdevs) > 1:
            port.complain("bonded", f"{' and '.join(netdevs)} in one HCA", "../../device/net")
        elif netdevs and self.exists(f"{master}/bonding"):
            bond = os.path.basename(os.path.realpath(self.path(master)))
            port.complain("bonded", f"{netdevs[0]} in {bond}", "../../device/net")
        if state != "ACTIVE":
            code = "port-down" if state == "DOWN" else "port-not-active"
            shown = f"state {state or 'unreadable'}, physical state {facts['physical_state']}"
            port.complain(code, shown, "state")
        elsewhere = self._elsewhere(netdevs)
        if elsewhere or not netdevs:
            found = f"{_list(elsewhere)} in another namespace" if elsewhere else "no interface"
            port.complain("no-netdev", found, "../../device/net")
        if os.path.isdir(os.path.join(self._beside, "dev")):
            node = os.path.join(self._beside, "dev/infiniband", uverbs or "uverbs*")
            if not uverbs:
                listed = self.path("class/infiniband_verbs")
                port.complain("no-device-node", f"no {listed}/*/ibdev for it")
            elif not os.path.exists(node):
                port.complain("no-device-node", f"no {node}", "../../uevent")


def path_mtu(mtu: int | None) -> int | None:
    """The active MTU that mlx5 gives a port whose netdev has this MTU; None where none fits.

    sysfs does not show the active MTU. The driver computes it from the netdev each time it is
    asked: the largest RoCE MTU that fits beside the headers (mlx5_query_port_roce, iboe_get_mtu).
    """
    room = 0 if mtu is None else mtu - _ROCE_HEADERS
    return next((size for size in _PATH_MTUS if room >= size), None)


def _facts(hca: str, port: int | None) -> dict[str, Any]:
    """The public shape of a port, with nothing known yet."""
    later = (
        "netdev netdevs domain cage state physical_state rate_gbps link_layer netdev_mtu "
        "active_mtu firmware pcie gids gid_index gid_address selected problem"
    )
    return {"hca": hca, "port": port, **dict.fromkeys(later.split()), "netdevs": [], "gids": []}


def _nccl_order(port: Port) -> tuple[Any, ...]:
    """By PCI address; what has none comes behind, by domain and cage."""
    facts = port.facts
    place = tuple(99 if facts[name] is None else facts[name] for name in ("domain", "cage"))
    return (facts["pcie"] or {}).get("address", "~"), *place, facts["hca"], facts["port"] or 0


def _read_at(directory: int, name: str) -> str:
    descriptor = os.open(name, os.O_RDONLY, dir_fd=directory)
    try:
        return os.read(descriptor, 256).decode("ascii", "replace").strip()
    finally:
        os.close(descriptor)


def _address(text: str) -> tuple[bytes, str | None]:
    """The bytes of a GID and the address it stands for, a mapped IPv4 address with dots."""
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        return b"", None
    return address.packed, str(address.ipv4_mapped or address.compressed)


def _word(text: str | None) -> str | None:
    """ACTIVE of `4: ACTIVE`; the number is the kernel's own matter."""
    return (text or "").rpartition(":")[2].strip() or None


def _number(text: str | None) -> float | int | None:
    """32 of `32.0 GT/s PCIe`, 2.5 of `2.5 Gb/sec (1X SDR)`."""
    match = re.match(r"\d+(?:\.\d+)?", text or "")
    if match is None:
        return None
    value = float(match[0])
    return int(value) if value.is_integer() else value


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _lanes(text: str | None) -> int | None:
    """The kernel prints 0 or 255 for a link it knows nothing about."""
    lanes = _whole(text)
    return lanes if lanes and lanes < 255 else None


# --- the choice -----------------------------------------------------------------------------------


class Refusal(NamedTuple):
    """Why a table holds no choice: a code, and what was found instead."""

    code: str
    found: str


def choose(
    gids: Sequence[Gid], netdev: str | None = None, subnet: IPv4Network | None = None
) -> Gid | Refusal:
    """The only entry that is RoCE v2, IPv4, not link-local, on the netdev and in the subnet.

    Without a netdev or a subnet that condition does not count. A refusal names the first condition
    that leaves nothing, or says that more than one entry is left.
    """
    mapped = [gid for gid in gids if gid.ipv4 is not None]
    v2 = [gid for gid in mapped if gid.type == V2]
    if not v2:
        return _why_no_v2(gids, mapped)
    plain = [gid for gid in v2 if _of_a_plan(gid.ipv4)]
    if not plain:
        return Refusal("link-local-only", f"only {_list(gid.address for gid in v2)}")
    here = [gid for gid in plain if netdev in (None, gid.netdev)]
    if not here:
        return Refusal("wrong-netdev", _list(plain))
    inside = [gid for gid in here if subnet is None or gid.ipv4 in subnet]
    if not inside:
        return Refusal("wrong-subnet", _list(gid.address for gid in here))
    if len(inside) > 1:
        return Refusal("ambiguous", _list(inside))
    return inside[0]


def _why_no_v2(gids: Sequence[Gid], mapped: Sequence[Gid]) -> Refusal:
    if gids and all(gid.type_text is None for gid in gids):
        return Refusal("gid-type-unreadable", "entries whose type cannot be read")
    odd = sorted({gid.type_text or "unreadable" for gid in mapped if gid.type is None})
    if odd:
        return Refusal("unknown-gid-type", f"IPv4 entries of type {_list(odd)}")
    if mapped:
        return Refusal("only-v1", "IPv4 entries of RoCE v1 only")
    others = {
        gid.address: None for gid in gids if gid.address and not gid.address.startswith("fe80:")
    }
    if others:
        return Refusal("ipv6-only", f"no IPv4 address, IPv6 only: {_list(others)}")
    return Refusal("no-ipv4", "no IPv4 address" if gids else "no entry at all")


def _of_a_plan(address: IPv4Address | None) -> bool:
    return address is not None and not (
        address.is_link_local
        or address.is_loopback
        or address.is_multicast
        or address.is_unspecified
    )


def _list(items: Iterable[Any]) -> str:
    return ", ".join(str(item) for item in items)


def _choose_for(port: Port, wish: Wish) -> None:
    bonded, netdev = port.has("bonded"), wish.netdev or port.facts["netdev"]
    if port.has("vanished", "no-gid-table", "gid-unreadable") or not (netdev or bonded):
        return
    # The addresses of a bond lie on the bond, whatever its members are called.
    result = choose(port.gids, None if bonded else netdev, wish.subnet)
    if isinstance(result, Gid):
        port.facts.update(gid_index=result.slot, gid_address=result.address)
        if bonded:
            port.facts["netdev"] = result.netdev
        return
    within = wish.subnet or ""
    if result.code == "ambiguous" and within:
        within = f" in {within}"
    found = f"{result.found} in the table [{'; '.join(map(str, port.gids))}]"
    port.complain(result.code, found, wanted=netdev, subnet=within)


def _select(
    ports: Sequence[Port], selector: Selector | None, wishes: Mapping[str, Wish]
) -> tuple[Selection, list[Problem]]:
    """The ports to use, in the order asked for.

    A port named in full is used or complained about. One that only fits a prefix, or is not
    excluded, is passed over when it is down or no endpoint of the fabric.
    """
    if selector is None and wishes:
        selector = Selector(False, True, [(hca, None, "") for hca in wishes])
    entries = selector.entries if selector else []
    exact = selector is not None and selector.exact
    chosen: Selection = []
    problems: list[Problem] = []
    passed_over: list[str] = []

    def take(port: Port, named: bool, suffix: str = "") -> None:
        if any(port is one for one, _name in chosen):
            return
        if not named and port.has(*_PASSED_OVER):
            passed_over.append(f"{port.hca} ({_list(problem.code for problem in port.problems)})")
            return
        if not suffix and sum(one.hca == port.hca for one in ports) > 1:
            suffix = f":{port.facts['port']}"
        chosen.append((port, port.hca + suffix))

    if selector is None or selector.exclude:
        for port in ports:
            if not any(_matches(port, entry, exact) for entry in entries):
                take(port, named=False)
    else:
        for entry in entries:
            name, number, rail = entry
            fitting = [port for port in ports if _matches(port, entry, exact)]
            if not fitting:
                problems.append(_not_found(ports, name, number))
            for port in fitting:
                take(port, port.hca == name, "" if number is None else f":{number}{rail}")
    if len(chosen) > _MAX_HCAS:
        problems.append(_problem("too-many-hcas", f"{len(chosen)} HCAs selected", "hcas"))
    if not chosen and not problems:
        found = f"none; passed over: {'; '.join(passed_over) or 'none'}"
        problems.append(_problem("no-hca-selected", found, "hcas, and the state of the ports"))
    return chosen, problems


def _matches(port: Port, entry: tuple[str, int | None, str], exact: bool) -> bool:
    name, number, _rail = entry
    fits = port.hca == name if exact else port.hca.startswith(name)
    return fits and number in (None, port.facts["port"])


def _not_found(ports: Sequence[Port], name: str, number: int | None) -> Problem:
    names = list(dict.fromkeys(port.hca for port in ports))
    other = [known for known in names if known != name and known.casefold() == name.casefold()]
    hint = f" ({other[0]} is another name: case counts)" if other else ""
    wanted = name if number is None else f"{name} with a port {number}"
    return _problem("hca-not-found", f"{_list(names)}{hint}", "hcas and expected", hca=wanted)


def _same_address(selected: Selection) -> None:
    for port, name in selected:
        address = port.facts["gid_address"]
        others = [n for p, n in selected if p is not port and p.facts["gid_address"] == address]
        if address and others:
            port.complain("duplicate-address", f"{address} on {name} and on {_list(others)}")


def _verify(selected: Selection, index: int | None) -> None:
    for port, _name in selected:
        right = port.facts["gid_index"]
        if right == index:
            continue
        entry = next((gid for gid in port.gids if gid.slot == index), None)
        found = f"slot {entry}" if entry else f"slot {index} empty (errno 61 in ibv_modify_qp)"
        link = "the GID of the link, which is "
        link += f"in slot {right}" if right is not None else "in no slot of this port"
        port.complain("index-wrong" if entry else "index-empty", found, f"gids/{index}", right=link)


# --- what NCCL is told ----------------------------------------------------------------------------


def _meaning(selected: Selection, wishes: Mapping[str, Wish]) -> dict[str, str]:
    """Family, version and range, by which NCCL finds the slot of each HCA itself.

    There is one range for all HCAs, so it covers all their subnets, or their addresses where no
    subnet is declared. It may cover more; whatever NCCL would find there instead is a problem.
    """
    links = [
        wishes.get(port.hca, Wish()).subnet or IPv4Network(port.facts["gid_address"])
        for port, _name in selected
        if port.facts["gid_address"]
    ]
    if not links:
        return {}
    span = covering(links)
    for port, _name in selected:
        right, taken = port.facts["gid_index"], nccl_choice(port.gids, span)
        if right not in (None, taken):
            found = f"slot {taken}, which NCCL would take, in [{'; '.join(map(str, port.gids))}]"
            port.complain("nccl-takes-another", found, right=right, span=span)
    return {
        "NCCL_IB_ADDR_FAMILY": "AF_INET",
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        "NCCL_IB_ADDR_RANGE": str(span),
    }


def covering(networks: Iterable[IPv4Network]) -> IPv4Network:
    """The smallest prefix over all of them.

    >>> covering([IPv4Network("10.20.0.0/24"), IPv4Network("10.20.7.0/24")])
    IPv4Network('10.20.0.0/21')
    """
    ends = [(int(network.network_address), int(network.broadcast_address)) for network in networks]
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    return IPv4Network((low, 32 - (low ^ high).bit_length()), strict=False)


def nccl_choice(gids: Sequence[Gid], span: IPv4Network | None = None) -> int:
    """The slot NCCL (2.21 and newer) takes for IPv4 and RoCE v2 when it is given no index.

    It starts at slot 0 and goes up. An IPv4 entry in the range replaces one that is not IPv4,
    whatever its version; a v2 entry replaces one that is not v2. 169.254.0.0/16 is as good as any
    other, and slot 0 stays when nothing fits.
    """
    current = next((gid for gid in gids if gid.slot == 0), None)
    for gid in gids:
        if gid.slot == 0 or gid.ipv4 is None or (span is not None and gid.ipv4 not in span):
            continue
        if current is None or current.ipv4 is None or (gid.type == V2 and current.type != V2):
            current = gid
    return current.slot if current is not None else 0


# --- without Ansible ------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the choice for a program or a person. Returns the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        result = roce_gids(
            sysfs=options.sysfs,
            hcas=options.hcas,
            expected=[_expectation(text) for text in options.expected],
            policy=options.policy,
            index=options.index,
        )
    except InputError as error:
        parser.error(str(error))
    if options.format == "json":
        sys.stdout.write(json.dumps(result, indent=2) + "\n")
    elif options.format == "table":
        sys.stdout.write(table(result))
    else:
        sys.stdout.writelines(f"{name}={value}\n" for name, value in result["nccl_env"].items())
    sys.stderr.writelines(f"{line}\n" for line in lines(result["problems"]))
    return 1 if result["problems"] and (options.required or options.format == "env") else 0


def lines(problems: Iterable[Mapping[str, Any]]) -> list[str]:
    """A line for each problem of a result, for people."""
    return [
        (f"{problem['hca']} port {problem['port']}: " if problem["hca"] else "")
        + f"{problem['code']}: {problem['message']}"
        for problem in problems
    ]


def table(result: Mapping[str, Any]) -> str:
    """The ports and their choice, a line each, and what NCCL would be told."""
    names = ("hca", "port", "state", "netdev", "cage", "gid_index", "gid_address")
    rows = [[name.rpartition("gid_")[2].upper() for name in (*names, "problem")]]
    for facts in result["devices"]:
        cells = ["-" if facts[name] is None else str(facts[name]) for name in names]
        rows.append([*cells, facts["problem"]["code"] if facts["problem"] else ""])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    text += [f"{name}={value}" for name, value in result["nccl_env"].items()]
    return "\n".join(text) + "\n"


def _expectation(text: str) -> dict[str, str]:
    hca, separator, rest = text.partition("=")
    if not separator:
        raise InputError(f"--expected is {text!r}; write hca=subnet@netdev")
    subnet, _at, netdev = rest.partition("@")
    return {"hca": hca, "subnet": subnet, "netdev": netdev}


def _slot(text: str) -> int:
    if not text.strip().isdigit():
        raise argparse.ArgumentTypeError(
            f"{text!r} is no slot number; for none leave the option out"
        )
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="Choose the RoCE v2 GID of each RDMA port by its meaning, for NCCL.",
        epilog="Exit status: 0 done; 1 problems, with --required or --format env; 2 bad arguments.",
    )
    add = parser.add_argument
    add("--hcas", help="as NCCL_IB_HCA, for example =rocep1s0f0,roceP2p1s0f0; default: what is up")
    add(
        "--expected",
        nargs="+",
        action="extend",
        default=[],
        metavar="HCA=SUBNET@NETDEV",
        help="the plan; the subnet or @NETDEV may be left out",
    )
    add(
        "--policy",
        choices=POLICIES,
        default="auto",
        help="auto: export no index; pin: the common one; verify: check --index",
    )
    add("--index", type=_slot, metavar="N", help="the slot to verify")
    add("--required", action="store_true", help="exit with status 1 if there is a problem")
    add("--sysfs", default="/sys", metavar="PATH", help="where sysfs is mounted")
    add(
        "--format",
        choices=("json", "env", "table"),
        default="json",
        help="env: KEY=value lines, none if there is a problem",
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
