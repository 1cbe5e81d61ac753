# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Backend ``containers``: a systemd container a host, up in seconds; RDMA is emulated files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import engine, rootfs, seed
from lab.cabling import End
from lab.network import Network
from lab.spec import Host, Lab
from lab.system import CACHE, LabError, lock, run, step

if TYPE_CHECKING:
    from docker import DockerClient

_REPOSITORY = "sparkfleet-lab/node"
_LABEL = "sparkfleet.lab"
# {mount point: size}: a filesystem of its own each, so that it can really be full
_DISKS = {"/data": "2G", "/var/lib/docker": "3G"}
# {folder in the cache: where nodes see it, read-only}: what is too large for a copy on every node
_SHARED = {CACHE / "sglang": "/opt/sglang"}
# What systemd, netplan, a nested Docker engine and sshd need; --privileged is not among it.
# Numbers are bits of include/uapi/linux/capability.h.
_CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "DAC_READ_SEARCH": 2,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "LINUX_IMMUTABLE": 9,
    "NET_BIND_SERVICE": 10,
    "NET_BROADCAST": 11,
    "NET_ADMIN": 12,
    "NET_RAW": 13,
    "IPC_LOCK": 14,
    "IPC_OWNER": 15,
    "SYS_CHROOT": 18,
    "SYS_PTRACE": 19,
    "SYS_ADMIN": 21,
    "SYS_BOOT": 22,
    "SYS_NICE": 23,
    "SYS_TTY_CONFIG": 26,
    "MKNOD": 27,
    "LEASE": 28,
    "AUDIT_WRITE": 29,
    "AUDIT_CONTROL": 30,
    "SETFCAP": 31,
}


class Containers:
    """The hosts of one lab as containers named ``sparklab-<lab>-<host>``."""

    boot_seconds = 60.0

    def __init__(self, lab: Lab, network: Network) -> None:
        self.lab = lab
        self.network = network
        self._connected: DockerClient | None = None

    # --- life cycle ------------------------------------------------------------------------------

    def prepare(self) -> None:
        self._image()

    def up(self, hosts: Sequence[Host]) -> None:
        image = self._image()
        self.lab.stood_in = self.stood_in()
        self._disks(hosts)
        missing = [host for host in hosts if not self.running(host)]
        with step(f"starting {len(missing)} containers"), ThreadPoolExecutor() as pool:
            list(pool.map(lambda host: self._create(host, image), missing))
        for host in hosts:
            self.network.add_veths(host, self._pid(host))

    def down(self) -> None:
        client = engine.running()
        if client is not None:
            mine = client.containers.list(
                all=True, ignore_removed=True, filters={"label": f"{_LABEL}={self.lab.name}"}
            )
            with ThreadPoolExecutor() as pool:
                list(pool.map(lambda container: container.remove(force=True, v=True), mine))
        for line in Path("/proc/mounts").read_text().splitlines():
            mounted = line.split()[1].replace("\\040", " ")
            if mounted.startswith(f"{self.lab.state}/"):
                run(["umount", mounted])

    def running(self, host: Host) -> bool:
        found = self._find(host)
        return found is not None and found["State"]["Running"]

    def stop(self, host: Host) -> None:
        if self.running(host):
            self._client.api.kill(self._name(host))
            self._client.api.wait(self._name(host))

    def start(self, host: Host) -> None:
        self.up([host])

    def reboot(self, host: Host) -> None:
        self.stop(host)
        self.start(host)

    def set_carrier(self, ends: Sequence[End], on: bool) -> None:
        """Nothing to add: a veth has carrier when its far side is up."""

    def console(self, host: Host) -> str:
        found = self._find(host)
        if found is None or not found["State"]["Running"]:
            return f"{host.name} does not run: {(found or {}).get('State', 'no such container')}"
        container = self._client.containers.get(self._name(host))
        printed = container.exec_run(["journalctl", "-b", "--no-pager", "-n", "60"]).output
        return printed.decode(errors="replace") if isinstance(printed, bytes) else ""

    def stood_in(self) -> dict[str, str]:
        listing = {
            "machine": "a systemd container on this machine's kernel; "
            f"Debian 13 {os.uname().machine} instead of DGX OS",
            "RDMA devices": "files under /sys/class/infiniband, GID tables computed from the real "
            "addresses by the kernel's slot rules; no verbs, no RDMA traffic",
            "ConnectX-7": "veth pairs under Spark names; PCIe, firmware and rate are constants",
            "GPU": "a stand-in nvidia-smi that reports one idle GB10",
            "NVIDIA container runtime": "plain runc under the name 'nvidia'",
            "sizes": "memory and disk space asked for by the checks are scaled down",
            "NFS": "no kernel NFS server or client in a container",
        }
        if self._loop_refused():
            listing["data disk"] = "a memory filesystem of fixed size (no loop devices here)"
        else:
            listing["data disk"] = "an ext4 image on a loop device instead of NVMe"
        return listing

    # --- parts -----------------------------------------------------------------------------------

    @property
    def _client(self) -> DockerClient:
        if self._connected is None:
            self._connected = engine.ensure()
        return self._connected

    def _image(self) -> str:
        name = f"{_REPOSITORY}:{rootfs.key()}"
        with lock(CACHE / "image.lock"):
            if not self._client.api.images(name):
                tarball = rootfs.build()
                with step("importing the node image"):
                    self._client.api.import_image_from_file(
                        str(tarball),
                        repository=_REPOSITORY,
                        tag=rootfs.key(),
                        changes=['ENTRYPOINT ["/usr/sbin/sparklab-init"]'],
                    )
        return name

    def _name(self, host: Host) -> str:
        return f"sparklab-{self.lab.name}-{host.name}"

    def _find(self, host: Host) -> dict[str, Any] | None:
        import docker.errors

        try:
            found: dict[str, Any] = self._client.api.inspect_container(self._name(host))
        except docker.errors.NotFound:
            return None
        return found

    def _pid(self, host: Host) -> int:
        found = self._find(host)
        pid = found["State"]["Pid"] if found else 0
        if not pid or not Path(f"/proc/{pid}/ns/net").exists():
            raise LabError(
                f"container {self._name(host)} does not stay up, or its engine is not on this "
                f"machine; look at: docker logs {self._name(host)}"
            )
        return int(pid)

    def _create(self, host: Host, image: str) -> None:
        api, name = self._client.api, self._name(host)
        found = self._find(host)
        if found is not None and not (self.lab.folder(host) / "made").exists():
            # an interrupted start: the archive may be missing
            api.remove_container(name, force=True)
            found = None
        if found is None:
            api.create_container(
                image,
                name=name,
                hostname=host.name,
                labels={_LABEL: self.lab.name},
                stop_signal="SIGRTMIN+3",
                host_config=self._host_config(host),
            )
            api.put_archive(name, "/", seed.archive(self.lab, host))
            (self.lab.folder(host) / "made").touch()
        api.start(name)

    def _host_config(self, host: Host) -> dict[str, Any]:
        bounding = _bounding_set()
        tmpfs = {"/run": "mode=755", "/tmp": "mode=1777"}
        binds = []
        for source, target in _SHARED.items():
            source.mkdir(parents=True, exist_ok=True)  # whatever comes into it later is seen
            binds.append(f"{source}:{target}:ro")
        for mount_point, size in _DISKS.items():
            disk = self._disk(host, mount_point)
            if disk.is_mount():
                binds.append(f"{disk}:{mount_point}")
            else:
                tmpfs[mount_point] = f"exec,mode=755,size={size}"
        return {
            "NetworkMode": "none",
            "CgroupnsMode": "private",
            "CapAdd": [name for name, bit in _CAPABILITIES.items() if bounding >> bit & 1],
            "SecurityOpt": ["seccomp=unconfined", "apparmor=unconfined"],
            "MaskedPaths": [],
            "ReadonlyPaths": [],
            "Tmpfs": tmpfs,
            "Binds": binds,
            "RestartPolicy": {"Name": "no"},
        }

    def _disk(self, host: Host, mount_point: str) -> Path:
        return self.lab.folder(host) / mount_point.strip("/").replace("/", "-")

    def _disks(self, hosts: Sequence[Host]) -> None:
        """An image file with ext4 for each disk of each host, mounted for the container to bind."""
        if self._loop_refused():
            return
        for host in hosts:
            for mount_point, size in _DISKS.items():
                folder = self._disk(host, mount_point)
                image = folder.with_suffix(".img")
                folder.mkdir(parents=True, exist_ok=True)
                if folder.is_mount():
                    continue
                if not image.exists():
                    aside = image.with_suffix(".part")
                    run(["truncate", "-s", size, aside])
                    run(["mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", aside])
                    aside.replace(image)
                run(["mount", "-o", "loop,noatime", image, folder])

    @staticmethod
    def _loop_refused() -> bool:
        return not Path("/dev/loop-control").exists()


def _bounding_set() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapBnd:"):
            return int(line.split()[1], 16)
    return 0
