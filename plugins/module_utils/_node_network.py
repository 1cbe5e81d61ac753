# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What the fabric plan of one node means there: files, live state, and the way from now to then.

Everything here is a function of its arguments. `Observed` comes from `_node_state`, and the result,
`Steps` for the change and for its opposite, goes to `_dead_man`.
"""

from __future__ import annotations

import ipaddress
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils import _node_state as node
from ansible_collections.sparkfleet.cluster.plugins.module_utils._dead_man import File, Steps
from ansible_collections.sparkfleet.cluster.plugins.module_utils._netplan import (
    NETWORK_MANAGER,
    NETWORKD,
    Claim,
    Device,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._node_files import (
    CHAIN,
    MANAGER_CONF,
    MODES,
    NETPLAN,
    SCRIPT,
    UNIT,
    UNIT_NAME,
    Problem,
    Texts,
    Wanted,
    kernel_settings,
    rules,
    subnet,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._node_state import (
    IP_FORWARD,
    Link,
    Observed,
    Route,
)


class Change(NamedTuple):
    """What differs, and the ways there and back."""

    steps: Steps
    undo: Steps
    actions: list[str]  # what is done and why, as sentences
    diff: list[dict[str, str]]  # as Ansible shows it
    gone: dict[str, list[str]]  # addresses that ports may not have afterwards
    network: bool  # whether links and addresses are touched


# --- what is -------------------------------------------------------------------------------------


def _network_lines(wanted: Wanted) -> dict[str, str]:
    found = {}
    for port in wanted.ports:
        found[port.netdev] = f"up, MTU {wanted.mtu}, {port.address}/{port.prefix}"
    for route in wanted.routes:
        found[f"route {route.to}"] = f"via {route.via} dev {route.netdev}"
    return found


def _network_found(
    wanted: Wanted, links: Mapping[str, Link], routes: Sequence[Route]
) -> dict[str, str]:
    found = {}
    for port in wanted.ports:
        link = links.get(port.netdev)
        if link and wanted.shared:  # then others may add addresses, but not take ours away
            own = f"{port.address}/{port.prefix}"
            link = link._replace(addresses=[a for a in link.addresses if a == own])
        found[port.netdev] = _link_line(link) if link else "absent"
    for route in wanted.routes:
        ways = [f"via {r.via} dev {r.netdev}" for r in routes if r.to == route.to]
        found[f"route {route.to}"] = ", ".join(ways) or "none"
    return found


def _link_line(link: Link) -> str:
    state = "up" if link.up else "down"
    return f"{state}, MTU {link.mtu}, {', '.join(link.addresses) or 'no address'}"


def _forward_lines(wanted: Wanted) -> dict[str, str]:
    return {UNIT_NAME: "enabled", f"chain {CHAIN}": "in force"} if wanted.forward else {}


def _forward_found(wanted: Wanted, observed: Observed) -> dict[str, str]:
    if not wanted.forward:
        return {}
    enabled = observed.units[UNIT_NAME].enabled
    hook = "DOCKER-USER" if "-N DOCKER-USER" in observed.filter else "FORWARD"
    asked = {*rules(wanted), f"-A {hook} -j {CHAIN}"}
    # Without a single rule of any kind there is no iptables, hence nothing to be accepted.
    held = not observed.filter or asked <= observed.filter
    return {
        UNIT_NAME: "enabled" if enabled else "disabled",
        f"chain {CHAIN}": "in force" if held else "not in force",
    }


def settled(wanted: Wanted, links: Mapping[str, Link], routes: Sequence[Route]) -> list[str]:
    """What is not yet as wanted, a sentence each."""
    return _unlike(_network_found(wanted, links, routes), _network_lines(wanted))


def _touched(wanted: Wanted, found: Texts, expected: Texts) -> set[str]:
    """The ports that are not as wanted, or whose routes are not."""
    ports = {p.netdev for p in wanted.ports if found[p.netdev] != expected[p.netdev]}
    keys = {f"route {route.to}": route.netdev for route in wanted.routes}
    return ports | {netdev for key, netdev in keys.items() if found[key] != expected[key]}


def _unlike(found: Texts, wanted: Texts) -> list[str]:
    return [
        f"{name} is {found[name]}, expected {value}"
        for name, value in wanted.items()
        if found.get(name) != value
    ]


# --- what forbids it -----------------------------------------------------------------------------


def devices(wanted: Wanted, observed: Observed) -> list[Device]:
    """The ports as netplan's `match:` sees them."""
    links = [(port.netdev, observed.links[port.netdev]) for port in wanted.ports]
    return [Device(name, link.mac, link.driver) for name, link in links]


def impossible(wanted: Wanted, observed: Observed) -> list[Problem]:
    """Everything about the node that forbids the plan, files of others aside."""
    problems = []
    names = {port.netdev for port in wanted.ports}
    for name in [*sorted(names), wanted.management]:
        if name not in observed.links:
            there = ", ".join(sorted(observed.links.keys() - {"lo"})) or "none"
            hint = "; a ConnectX-7 without a cable at boot can be absent" if name in names else ""
            message = f"{name} is not on this node, which has {there}{hint}"
            problems.append(Problem("unknown-netdev", message))
    for name in sorted(names & observed.links.keys()):
        master = observed.links[name].master
        if master:
            message = (
                f"{name} is part of {master}; NCCL needs both twins by themselves, take it out"
            )
            problems.append(Problem("enslaved", message))
    for route in observed.routes:
        if route.to == "0.0.0.0/0" and route.netdev in names:
            message = (
                f"the default route of this node leads through {route.netdev}, perhaps the way you "
                "reach it; give the default route to the management interface first"
            )
            problems.append(Problem("default-route", message))
    return problems + list(_overlaps(wanted, observed))


def _overlaps(wanted: Wanted, observed: Observed) -> Iterator[Problem]:
    # A subnet may move from one port to another, after re-cabling.
    names = {port.netdev for port in wanted.ports} | _blocks(_text(observed.files)).keys()
    ours = [(f"{port.netdev}'s subnet {subnet(port)}", subnet(port)) for port in wanted.ports]
    ours += [(f"the route to {r.to}", ipaddress.IPv4Network(r.to)) for r in wanted.routes]
    for name, link in sorted(observed.links.items()):
        for text in link.addresses if name not in names else []:
            other = ipaddress.ip_interface(text).network
            for what, network in ours:
                if other.version == 4 and network.overlaps(ipaddress.IPv4Network(other)):
                    message = (
                        f"{what} overlaps {other} of {name}; choose another pool for the fabric"
                    )
                    yield Problem("overlap", message)


def foreign(claims: Sequence[Claim]) -> list[Problem]:
    """What other netplan files do with our ports, as problems."""
    problems = []
    for claim in claims:
        remedy = "take the port out of that file"
        if claim.profile:
            remedy = f"nmcli connection delete '{claim.profile}'"
        message = (
            f"{claim.netdev} is already claimed by {claim.path}: {claim.what}; {remedy}, or set "
            "accept_foreign if that is meant"
        )
        problems.append(Problem("foreign-netplan", message))
    return problems


def unmanaged(renderers: Texts, observed: Observed) -> list[Problem]:
    """A renderer that is not there."""
    asked = [name for name, renderer in renderers.items() if renderer == NETWORK_MANAGER]
    if not asked or observed.units[node.MANAGER].active:
        return []
    message = (
        f"NetworkManager is to manage {', '.join(asked)} and does not run; start it, or set "
        "renderer to networkd"
    )
    return [Problem("no-networkmanager", message)]


def serving(observed: Observed) -> list[Problem]:
    """Ranks that would lose their GIDs."""
    return [
        Problem(
            "rank-serving",
            f"{unit} serves, and a change of the network moves the GIDs it uses; stop it first, or "
            "set force",
        )
        for unit in observed.serving
    ]


# --- the way there and back ----------------------------------------------------------------------


class Before(NamedTuple):
    """How ports and kernel were before this collection touched them first."""

    links: dict[str, Link]
    routes: list[Route]
    kernel: dict[str, str]
    boot: str


def remember(known: Before | None, wanted: Wanted, observed: Observed) -> Before:
    """Add what a change is about to touch for the first time."""
    links = dict(known.links) if known else {}
    kernel = dict(known.kernel) if known else {}
    for port in wanted.ports:
        links.setdefault(port.netdev, observed.links[port.netdev])
    for path, value in observed.kernel.items():
        if path != IP_FORWARD or wanted.forward:
            kernel.setdefault(path, value)
    routes = known.routes if known else [r for r in observed.routes if r.netdev in links]
    return Before(links, routes, kernel, known.boot if known else observed.boot)


def to_wanted(
    wanted: Wanted, texts: Texts, observed: Observed, before: Before | None
) -> Change | None:
    """The change from what is to what the plan says; None where nothing differs.

    Args:
        wanted: the plan.
        texts: what `own_files` made of it.
        observed: the node.
        before: what `remember` kept, for ports that the plan no longer has.
    """
    files = {path: (MODES[path], text) for path, text in texts.items()}
    kernel = kernel_settings(wanted)
    found = (
        _network_found(wanted, observed.links, observed.routes),
        {path: observed.kernel.get(path, "absent") for path in kernel},
        _forward_found(wanted, observed),
    )
    expected = (_network_lines(wanted), kernel, _forward_lines(wanted))
    differs = [_unlike(*pair) for pair in zip(found, expected, strict=True)]
    if not any(differs) and observed.files == files:
        return None
    had = _blocks(_text(observed.files))
    names = {port.netdev for port in wanted.ports}
    dropped = {n: link for n, link in _restorable(before, observed).items() if n not in names}
    gone = {name: _addresses(had, name) for name in dropped}
    # Ports that are right already are left alone: to configure one anew can move its GIDs.
    asked = _blocks(texts[NETPLAN])
    live = _touched(wanted, found[0], expected[0])
    touched = [
        name for name in {**asked, **had} if asked.get(name) != had.get(name) or name in live
    ]
    links = {name: observed.links[name] for name in touched if name in observed.links}
    ours = {p.netdev: [f"{p.address}/{p.prefix}"] for p in wanted.ports}
    network = bool(touched)
    forward = bool(differs[2])
    steps = _steps(
        observed.files,
        files,
        observed,
        touched=touched if network else None,
        forward=forward,
        kernel=kernel | _of(before, dropped),
        by_hand=_by_hand(dropped, [], gone, asked),
    )
    undo = _steps(
        files,
        observed.files,
        observed,
        touched=touched if network else None,
        forward=forward,
        kernel={p: v for p, v in observed.kernel.items() if network or p in kernel},
        by_hand=_by_hand(links, observed.routes, ours, had),
    )
    sides = [
        [f"{name}: {value}" for part in side for name, value in part.items()]
        for side in (found, expected)
    ]
    return Change(
        steps,
        undo,
        _actions(steps, list(itertools.chain(*differs))),
        _diff(observed.files, steps, *sides),
        gone,
        network,
    )


def to_nothing(observed: Observed, before: Before | None) -> Change | None:
    """The change that takes everything of ours off the node; None where there is nothing.

    Args:
        observed: the node.
        before: what `remember` kept; without it only what our file gave is taken away.
    """
    if not observed.files:
        return None
    network = NETPLAN in observed.files
    restored = _restorable(before, observed)
    kernel = {p: v for p, v in (before.kernel if before else {}).items() if p in observed.kernel}
    if observed.units[node.DOCKER].active:
        kernel.pop(IP_FORWARD, None)  # its containers need it by now, whoever set it
    links = {name: observed.links[name] for name in restored}
    had = _blocks(_text(observed.files))
    gone = {
        name: [a for a in _addresses(had, name) if a not in link.addresses]
        for name, link in restored.items()
    }
    routes = before.routes if before and before.boot == observed.boot else []
    steps = _steps(
        observed.files,
        {},
        observed,
        touched=list(had) if network else None,
        forward=False,
        kernel=kernel,
        by_hand=_by_hand(restored, routes, gone, {}) if network else [],
    )
    undo = _steps(
        {},
        observed.files,
        observed,
        touched=list(had) if network else None,
        forward=False,
        kernel={path: observed.kernel[path] for path in kernel},
        by_hand=_by_hand(links, observed.routes, {}, had) if network else [],
    )
    sides = [
        [f"{name}: {_link_line(link)}" for name, link in ports.items()]
        + [f"{path}: {value}" for path, value in values.items()]
        for ports, values in ((links, undo["kernel"]), (restored, kernel))
    ]
    diff = _diff(observed.files, steps, *sides)
    return Change(steps, undo, _actions(steps, []), diff, gone, network)


def lingering(gone: Mapping[str, Sequence[str]], links: Mapping[str, Link]) -> list[str]:
    """Addresses that are still there, a sentence each."""
    return [
        f"{name} still has {address}"
        for name, addresses in gone.items()
        for address in addresses
        if name in links and address in links[name].addresses
    ]


def _text(files: Mapping[str, tuple[int, str]]) -> str:
    return files.get(NETPLAN, (0, ""))[1]


def _blocks(text: str) -> dict[str, str]:
    """Each port's definition in our netplan file. Comments are not part of it."""
    parts = re.split(r'^    "?([^\s":]+)"?:\n', text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _managed(blocks: Texts, renderer: str) -> list[str]:
    return [name for name, block in blocks.items() if f"renderer: {renderer}\n" in block]


def _addresses(blocks: Texts, name: str) -> list[str]:
    """What our netplan file gives a port."""
    return re.findall(r'^ +- "([0-9.]+/[0-9]+)"$', blocks.get(name, ""), re.MULTILINE)


def _restorable(before: Before | None, observed: Observed) -> dict[str, Link]:
    """Ports as they were. Addresses that no file gave did not outlive a restart either."""
    if before is None:
        return {}
    same = before.boot == observed.boot
    return {
        name: link if same else link._replace(addresses=[])
        for name, link in before.links.items()
        if name in observed.links
    }


def _of(before: Before | None, links: Mapping[str, Link]) -> dict[str, str]:
    """The kernel settings of some ports as they were."""
    if before is None:
        return {}
    return {p: v for p, v in before.kernel.items() if any(f"/{name}/" in p for name in links)}


def _steps(
    now: Mapping[str, tuple[int, str]],
    then: Mapping[str, tuple[int, str]],
    observed: Observed,
    *,
    touched: list[str] | None,
    forward: bool,
    kernel: dict[str, str],
    by_hand: list[list[str]],
) -> Steps:
    """The way from some files to others.

    Args:
        now: the files there are.
        then: the files there are to be.
        observed: the node.
        touched: ports to configure anew; None where the network is left alone.
        forward: whether forwarding is to be started anew in any case.
        kernel: settings for /proc/sys.
        by_hand: what no file says about ports, after everything else.
    """
    differing = [path for path in MODES if now.get(path) != then.get(path)]
    before, commands = [], []
    if UNIT in now and UNIT not in then:
        before = [["-systemctl", "disable", "--now", UNIT_NAME], [f"-{SCRIPT}", "remove"]]
    if touched is not None:
        commands += _configure(_blocks(_text(now)), _blocks(_text(then)), touched, observed)
    elif MANAGER_CONF in differing and observed.units[node.MANAGER].active:
        commands.append(["nmcli", "general", "reload", "conf"])
    if UNIT in differing:
        commands.append(["systemctl", "daemon-reload"])
    if UNIT in then and (forward or UNIT in differing or SCRIPT in differing):
        commands += [["systemctl", "enable", UNIT_NAME], ["systemctl", "start", UNIT_NAME]]
    files = [_file(path, then.get(path)) for path in differing]
    return Steps(before=before, files=files, kernel=kernel, commands=[*commands, *by_hand])


def _configure(
    now: Texts, then: Texts, touched: Sequence[str], observed: Observed
) -> list[list[str]]:
    """Put netplan's files in force for some ports.

    `netplan apply` would do so for every interface of the node: it takes NetworkManager's down and
    restarts it, the way we came in included.
    """
    commands = [["netplan", "generate"], ["-udevadm", "control", "--reload"]]
    # netplan's udev rules tell NetworkManager which ports are not its own.
    places = [f"/sys/class/net/{name}" for name in {**now, **then}]
    commands.append(["-udevadm", "trigger", "--action=move", "--settle", *places])
    networkd = [name for name in _managed(then, NETWORKD) if name in touched]
    profiles = [name for name in _managed(then, NETWORK_MANAGER) if name in touched]
    # NetworkManager takes its addresses away while it lets go of a port, and heeds udev only when
    # a port appears: so it is told, and before networkd is.
    if observed.units[node.MANAGER].active:
        commands += [["nmcli", "general", "reload", "conf"], ["nmcli", "connection", "reload"]]
        commands += [_manage(name, False) for name in networkd]
    if _managed(then, NETWORKD):
        commands.append(["systemctl", "start", node.NETWORKD])
    if _managed(then, NETWORKD) or observed.units[node.NETWORKD].active:
        commands.append(["networkctl", "reload"])
    if networkd:
        commands.append(["networkctl", "reconfigure", *networkd])
    commands += [_manage(name, True) for name in profiles]
    up = ["nmcli", "--wait", "60", "connection", "up"]
    return commands + [[*up, f"netplan-{name}"] for name in profiles]


def _manage(name: str, managed: bool) -> list[str]:
    return ["-nmcli", "device", "set", name, "managed", "yes" if managed else "no"]


def _file(path: str, content: tuple[int, str] | None) -> File:
    mode, text = content or (MODES[path], None)
    return File(path=path, mode=mode, text=text)


def _by_hand(
    links: Mapping[str, Link],
    routes: Sequence[Route],
    gone: Mapping[str, Sequence[str]],
    blocks: Texts,
) -> list[list[str]]:
    """Bring links back to what they were, as far as our file does not say so.

    Args:
        links: what they were.
        routes: the routes there were.
        gone: addresses to take away.
        blocks: the definitions in our file.
    """
    found: list[list[str]] = []
    for name, link in links.items():
        given = [*link.leased, *_addresses(blocks, name)]
        unwanted = [a for a in gone.get(name, ()) if a not in link.addresses]
        kept = [a for a in link.addresses if a not in given]
        found += [["-ip", "address", "del", address, "dev", name] for address in unwanted]
        if name not in blocks:
            found.append(["-ip", "link", "set", "dev", name, "mtu", str(link.mtu)])
            found += [_manage(name, link.managed)] if link.managed is not None else []
        found += [["-ip", "address", "replace", address, "dev", name] for address in kept]
    for route in routes:
        if route.netdev in links and f'to: "{route.to}"' not in blocks.get(route.netdev, ""):
            via = ["via", route.via] if route.via else []
            found.append(["-ip", "route", "replace", route.to, *via, "dev", route.netdev])
    down = [name for name, link in links.items() if not link.up and name not in blocks]
    return found + [["-ip", "link", "set", "dev", name, "down"] for name in down]


def _actions(steps: Steps, differs: Sequence[str]) -> list[str]:
    """The same sentences in check mode and out of it."""
    files = [f"{'remove' if f['text'] is None else 'write'} {f['path']}" for f in steps["files"]]
    commands = [" ".join(words).removeprefix("-") for words in steps["before"] + steps["commands"]]
    return [*differs, *files, *commands]


def _diff(
    files: Mapping[str, tuple[int, str]], steps: Steps, found: Sequence[str], wanted: Sequence[str]
) -> list[dict[str, str]]:
    pairs = [(f["path"], files.get(f["path"], (0, ""))[1], f["text"] or "") for f in steps["files"]]
    live = ["".join(f"{line}\n" for line in side) for side in (found, wanted)]
    if live[0] != live[1]:
        pairs.append(("live state", live[0], live[1]))
    return [
        {
            "before_header": name,
            "after_header": name,
            "before": before.encode("utf-8", "replace").decode(),
            "after": after,
        }
        for name, before, after in pairs
    ]
