# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What turns the common root file system into one host of one lab: an archive laid over it.

Both backends unpack the same archive over ``/`` before init starts: ``guest/`` (the stand-ins) and
this host's own name, keys, hosts file, management address and interface names.
"""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

from lab.spec import MANAGEMENT, PORTS, Host, Lab
from lab.system import run

GUEST = Path(__file__).with_name("guest")
_USERS = {"spark": 1000, "operator": 1001}  # as rootfs makes them


def make_keys(lab: Lab) -> None:
    """The key that opens every host of the lab, and each host's own key."""
    lab.state.mkdir(parents=True, exist_ok=True)
    for path, comment in [
        (lab.state / "id_ed25519", f"sparkfleet-lab-{lab.name}"),
        *((lab.folder(host) / "ssh_host_ed25519_key", host.name) for host in lab.hosts),
    ]:
        path.parent.mkdir(exist_ok=True)
        if not path.with_suffix(".pub").exists():
            path.unlink(missing_ok=True)
            run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path])


def archive(lab: Lab, host: Host) -> bytes:
    """The archive for one host, as an uncompressed tar."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(GUEST, arcname=".", filter=_as_root)
        for user, number in _USERS.items():  # theirs, so that they can keep keys and known hosts
            folder = tarfile.TarInfo(f"home/{user}/.ssh")
            folder.type, folder.mode, folder.uid, folder.gid = (
                tarfile.DIRTYPE,
                0o700,
                number,
                number,
            )
            tar.addfile(folder)
        for path, (mode, text) in _files(lab, host).items():
            data = text.encode()
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.size, entry.mode = len(data), mode
            if path.startswith("/home/"):
                entry.uid = entry.gid = _USERS[path.split("/")[2]]
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _as_root(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    if "__pycache__" in entry.name:
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
    if "/sudoers.d/" in entry.name and entry.isfile():
        entry.mode = 0o440
    return entry


def _files(lab: Lab, host: Host) -> dict[str, tuple[int, str]]:
    folder = lab.folder(host)
    key = (lab.state / "id_ed25519.pub").read_text()
    hosts = "".join(f"{other.address} {other.name}\n" for other in lab.hosts)
    files = {
        "/etc/hostname": (0o644, f"{host.name}\n"),
        "/etc/hosts": (0o644, f"127.0.0.1 localhost\n::1 localhost ip6-localhost\n{hosts}"),
        "/etc/ssh/ssh_host_ed25519_key": (0o600, (folder / "ssh_host_ed25519_key").read_text()),
        "/etc/ssh/ssh_host_ed25519_key.pub": (
            0o644,
            (folder / "ssh_host_ed25519_key.pub").read_text(),
        ),
        "/home/spark/.ssh/authorized_keys": (0o600, key),
        "/home/operator/.ssh/authorized_keys": (0o600, key),
        "/etc/netplan/01-management.yaml": (0o600, _netplan(host)),
        # one id for every node, as on Sparks delivered from one factory image
        "/etc/machine-id": (0o444, "5b4c0ffee5b4c0ffee5b4c0ffee5b4c0\n"),
        # in a container the engine mounts, and systemd fails on what it cannot remount
        "/etc/fstab": (0o644, "LABEL=root / ext4 rw,noatime 0 0\n" if lab.backend == "vm" else ""),
        "/etc/sparklab.json": (0o644, json.dumps(_facts(lab, host), indent=2) + "\n"),
    }
    if lab.backend == "vm":  # containers get their interfaces by name already
        macs = {MANAGEMENT: host.management_mac}
        macs |= {port.netdev: host.mac(port) for port in PORTS}
        for netdev, mac in macs.items():
            files[f"/etc/systemd/network/10-{netdev}.link"] = (
                0o644,
                f"[Match]\nMACAddress={mac}\n[Link]\nName={netdev}\nNamePolicy=\n",
            )
    return files


def _netplan(host: Host) -> str:
    interface = {
        "renderer": "networkd",
        "addresses": [f"{host.address}/24"],
        "link-local": [],
        "accept-ra": False,
    }
    # JSON is YAML, and the standard library writes it
    document = {"network": {"version": 2, "ethernets": {MANAGEMENT: interface}}}
    return json.dumps(document, indent=2) + "\n"


def _facts(lab: Lab, host: Host) -> dict[str, object]:
    """What the stand-ins inside the node need to know."""
    return {
        "lab": lab.name,
        "backend": lab.backend,
        "host": host.name,
        "ports": [
            {"netdev": port.netdev, "hca": port.hca, "pci": port.pci, "cage": port.cage}
            for port in PORTS
        ],
    }
