# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The system of a virtual Spark: a Debian root file system from the distribution's packages.

Built once, kept in the cache under a key of everything that went into it. What makes a node a
Spark of the lab (``guest/``) and this very host (``seed.py``) is laid over it when the node is
made, so that editing those never rebuilds it.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from lab.system import CACHE, lock, need_programs, run, step

SUITE = "trixie"
PACKAGES = """
systemd systemd-sysv systemd-resolved libnss-resolve dbus udev kmod procps less sudo ca-certificates
python3 python3-apt python3-yaml python3-numpy python3-requests python3-venv python3-packaging
openssh-server iproute2 iputils-ping iputils-arping iputils-tracepath ethtool pciutils tcpdump
netcat-openbsd netplan.io network-manager lldpd iptables nftables
rdma-core ibverbs-utils ibverbs-providers infiniband-diags perftest rdmacm-utils
nfs-kernel-server nfs-common e2fsprogs xfsprogs nvme-cli fio zstd
docker.io docker-cli busybox-static git nginx curl
""".split()
# On at boot in every node; the rest of what the packages enable is switched off below.
_ENABLED = "ssh systemd-networkd systemd-resolved".split()
# Timers and daemons a test bed only waits for, and those that a fresh Spark does not run.
_DISABLED = """
apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service
fstrim.timer xfs_scrub_all.timer systemd-timesyncd.service lldpd.service
NetworkManager.service NetworkManager-dispatcher.service NetworkManager-wait-online.service
nfs-server.service nfs-blkmap.service rpcbind.service rpcbind.socket nfs-client.target
docker.service containerd.service getty@tty1.service nvmefc-boot-connections.service
nvmf-autoconnect.service nftables.service nginx.service
""".split()
_MASKED = """
systemd-networkd-wait-online.service systemd-hwdb-update.service getty@tty1.service
systemd-udev-settle.service
""".split()
_NO_DOCS = [f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("man", "doc", "locale")]
# `operator` needs a password for sudo: what a play without --ask-become-pass meets.
_USERS = """
set -eu
chroot "$1" useradd --create-home --shell /bin/bash --uid 1000 --groups sudo spark
chroot "$1" useradd --create-home --shell /bin/bash --uid 1001 --gid operator --groups sudo operator
echo operator:operator | chroot "$1" chpasswd
"""
_UNITS = f"""
set -eu
chroot "$1" systemctl enable {" ".join(_ENABLED)}
for unit in {" ".join(_DISABLED)}; do
    chroot "$1" systemctl disable "$unit" 2>/dev/null || true
done
chroot "$1" systemctl enable docker.socket
chroot "$1" systemctl mask {" ".join(_MASKED)}
rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/resolv.conf "$1"/etc/netplan/*.yaml
ln -s ../run/systemd/resolve/stub-resolv.conf "$1"/etc/resolv.conf
"""


def key() -> str:
    """Changes when anything that goes into the root file system changes."""
    parts = [SUITE, *PACKAGES, *_NO_DOCS, _USERS, _UNITS]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def build() -> Path:
    """The root file system as a tar file in the cache; builds it where it is missing."""
    tarball = CACHE / f"rootfs-{key()}.tar"
    with lock(CACHE / "rootfs.lock"):
        if tarball.exists():
            return tarball
        need_programs({"mmdebstrap": "mmdebstrap", "mkfs.ext4": "e2fsprogs"})
        keyring = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
        if not keyring.exists():
            need_programs({f"the keyring {keyring}": "debian-archive-keyring"})
        aside = tarball.with_suffix(".part.tar")
        with step(f"building the nodes' Debian {SUITE} root file system (once, about a minute)"):
            run(
                ["mmdebstrap", "--variant=minbase", "--aptopt=APT::Install-Recommends false"]
                + _NO_DOCS
                + [f"--keyring={keyring}", f"--include={','.join(PACKAGES)}"]
                + [f"--customize-hook={_USERS}", f"--customize-hook={_UNITS}"]
                + [SUITE, str(aside), *os.environ.get("LAB_MIRROR", "").split()],
                timeout=1800,
            )
            aside.replace(tarball)
        return tarball
