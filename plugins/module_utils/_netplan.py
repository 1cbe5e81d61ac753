# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What netplan's files say about a few ports, and one more such file.

netplan reads every `*.yaml` below lib, etc and run in the order of the names. A file hides one of
the same name in an earlier directory. Definitions with the same id are merged: a later scalar wins,
sequences of addresses and routes are concatenated. So a second file that addresses a port is no
fallback but a second address, with GIDs of its own.

Nothing here returns the contents of a file: they can hold passwords.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

try:
    import yaml
except ImportError:  # whoever needs it says so
    HAS_YAML = False
else:
    HAS_YAML = True

FOLDERS = ("lib/netplan", "etc/netplan", "run/netplan")
NETWORKD, NETWORK_MANAGER = "networkd", "NetworkManager"

# What remains in force of an earlier file, whatever a later one says.
_REMAINS = ("addresses", "routes", "gateway4", "gateway6", "routing-policy", "activation-mode")
# A definition that another one uses under these keys is no port of its own any more.
_USES = ("interfaces", "link")
_TRUE = ("true", "yes", "on", "y")
_FALSE = ("false", "no", "off", "n")


class Device(NamedTuple):
    """What netplan's `match:` can ask of a network device; the driver is None where unknown."""

    name: str
    mac: str
    driver: str | None


class Claim(NamedTuple):
    """Something another file does with one of our ports."""

    netdev: str
    path: str
    what: str
    profile: str | None  # the name of NetworkManager's profile where it wrote the file


class Files:
    """The netplan files of a node other than our own.

    Args:
        texts: path to text, paths as on the node without the leading slash.
        own: the path of our own file, which is left out.
    """

    def __init__(self, texts: Mapping[str, str], own: str) -> None:
        self._own = own
        self.problems: list[str] = []
        self._documents: list[tuple[str, Mapping[str, Any]]] = []
        visible: dict[str, str] = {}
        for folder in FOLDERS:
            for path in texts:
                if os.path.dirname(path) == folder and path.endswith(".yaml"):
                    visible[os.path.basename(path)] = path
        for name, path in sorted(visible.items()):
            if name != os.path.basename(own):
                self._read(path, texts[path])
            elif FOLDERS.index(os.path.dirname(path)) > FOLDERS.index(os.path.dirname(own)):
                self.problems.append(f"/{path} hides /{own} from netplan; remove it")

    def _read(self, path: str, text: str) -> None:
        """Keep the document; scalars as text, because YAML reads 52:54:00:12:34:56 as a number."""
        try:
            document = yaml.load(text, Loader=yaml.BaseLoader)
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            line = f", line {mark.line + 1}" if mark else ""
            self.problems.append(f"/{path}{line} is not YAML, so netplan refuses to run; mend it")
            return
        network = document.get("network") if isinstance(document, Mapping) else None
        if isinstance(network, Mapping):
            self._documents.append((path, network))

    def renderer(self, device: Device) -> str:
        """Who manages the device, or would if our file named no renderer."""
        found = NETWORKD  # netplan's own default
        for _path, network in self._documents:
            for scope in (network, _mapping(network, "ethernets")):
                found = _text(scope.get("renderer")) or found
        for _path, _kind, identity, definition in self._definitions():
            if _meant(identity, definition, device):
                found = _text(definition.get("renderer")) or found
        return NETWORK_MANAGER if found == NETWORK_MANAGER else NETWORKD

    def claims(
        self, devices: Iterable[Device], ours: Mapping[str, Mapping[str, Any]]
    ) -> list[Claim]:
        """Everything that would change or add to what our definitions say.

        Args:
            devices: the ports.
            ours: netdev to its definition in our file.
        """
        return [claim for device in devices for claim in self._claims(device, ours[device.name])]

    def _claims(self, device: Device, ours: Mapping[str, Any]) -> Iterator[Claim]:
        names = {device.name}
        for path, kind, identity, definition in self._definitions():
            if kind == "ethernets" and _meant(identity, definition, device):
                names.add(identity)
                later = os.path.basename(path) > os.path.basename(self._own)
                what = _remains(identity, definition, device, ours, later)
                if what:
                    yield Claim(device.name, f"/{path}", what, _profile(definition))
        for path, kind, identity, definition in self._definitions():
            for key in _USES:
                used = definition.get(key)
                if names & set(
                    used if isinstance(used, Sequence) and key == "interfaces" else [used]
                ):
                    what = f"{identity} of its {kind} is made of it"
                    yield Claim(device.name, f"/{path}", what, _profile(definition))

    def _definitions(self) -> Iterator[tuple[str, str, str, Mapping[str, Any]]]:
        for path, network in self._documents:
            for kind, group in network.items():
                if isinstance(group, Mapping):
                    for identity, definition in group.items():
                        if isinstance(definition, Mapping):
                            yield path, kind, identity, definition


def _meant(identity: str, definition: Mapping[str, Any], device: Device) -> bool:
    """Whether a definition is about the device: by its id, its `match:` or a profile's name."""
    if identity == device.name:
        return True
    passthrough = _mapping(_mapping(definition, "networkmanager"), "passthrough")
    if passthrough.get("connection.interface-name"):
        return bool(passthrough["connection.interface-name"] == device.name)
    if "match" not in definition:
        return False
    match = _mapping(definition, "match")
    if not match:
        # NetworkManager writes this for a profile that is bound to no device.
        return not identity.startswith("NM-")
    return _matches(match, device)


def _matches(match: Mapping[str, Any], device: Device) -> bool:
    name, mac, driver = match.get("name"), match.get("macaddress"), match.get("driver")
    if name is not None and not fnmatch.fnmatchcase(device.name, _text(name)):
        return False
    if mac is not None and _text(mac).lower() != device.mac.lower():
        return False
    if driver is not None and device.driver is not None:
        globs = [driver] if isinstance(driver, str) else list(driver)
        return any(fnmatch.fnmatchcase(device.driver, _text(glob)) for glob in globs)
    return True


def _remains(
    identity: str,
    definition: Mapping[str, Any],
    device: Device,
    ours: Mapping[str, Any],
    later: bool,
) -> str:
    """What a definition does to a port although ours exists; empty for nothing."""
    if identity != device.name:
        return f"its definition {identity} is for it too"
    if "networkmanager" in definition:
        return f"NetworkManager keeps a profile for it{_values(definition)}"
    match = _mapping(definition, "match")
    if match and not _matches(match, device):
        return "its match: is for another device"
    what = [key for key in _REMAINS if definition.get(key)]
    if later:
        what += [
            key for key in ours if key in definition and not _equal(definition[key], ours[key])
        ]
    return f"it sets {', '.join(sorted(set(what)))}{_values(definition)}" if what else ""


def _values(definition: Mapping[str, Any]) -> str:
    """The addresses, the one value worth showing; one with options is a mapping."""
    addresses = definition.get("addresses") or []
    if not isinstance(addresses, Sequence) or isinstance(addresses, str):
        return ""
    texts = [next(iter(entry)) if isinstance(entry, Mapping) else str(entry) for entry in addresses]
    return f" ({', '.join(texts)})" if texts else ""


def _profile(definition: Mapping[str, Any]) -> str | None:
    manager = _mapping(definition, "networkmanager")
    return _text(manager.get("name") or manager.get("uuid")) or None


def _equal(text: Any, value: Any) -> bool:
    if isinstance(value, bool):
        return _text(text).lower() in (_TRUE if value else _FALSE)
    if isinstance(value, list):
        return isinstance(text, list) and text == value
    return _text(text) == str(value)


def _mapping(value: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def render(definitions: Mapping[str, Mapping[str, Any]], header: str) -> str:
    """A netplan file with these ethernets.

    There is no `renderer:` at the top: it would be the one of every other interface as well.
    """
    lines = [f"# {line}" for line in header.splitlines()]
    lines += ["network:", "  version: 2", "  ethernets:"]
    for netdev, definition in definitions.items():
        lines.append(f"    {_key(netdev)}:")
        for key, value in definition.items():
            lines += [f"      {line}" for line in _entry(key, value)]
    return "\n".join(lines) + "\n"


def _entry(key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not value:
        return [f"{key}: {value if key == 'renderer' else json.dumps(value)}"]
    lines = [f"{key}:"]
    for item in value:
        if isinstance(item, Mapping):
            pairs = [f"{name}: {json.dumps(text)}" for name, text in item.items()]
            lines += [f"- {pairs[0]}", *(f"  {pair}" for pair in pairs[1:])]
        else:
            lines.append(f"- {json.dumps(item)}")
    return lines


def _key(netdev: str) -> str:
    """Plain where it cannot be taken for a number or a truth value."""
    return netdev if re.fullmatch(r"[A-Za-z]+[0-9]\w*", netdev) else json.dumps(netdev)
