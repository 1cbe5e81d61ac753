# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Virtual Sparks as QEMU machines: a kernel of their own, hence real RDMA, NFS and NVMe.

A machine lives in its folder of the lab: ``disk.qcow2`` over the common image, ``nvme.raw``,
``initrd`` with its seed, ``serial.log``, ``qmp``. QEMU is detached and known by its command line,
which carries the path of that folder, so that nothing else is ever signalled.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lab import seed, ssh, vmimage
from lab.cabling import End
from lab.network import Network
from lab.qmp import Monitor
from lab.spec import PORTS, Host, Lab
from lab.system import CACHE, LabError, lock, need_programs, run, say, step, write_atomic
from lab.vmimage import Image

_QEMU = "qemu-system-x86_64"
_MEMORY_MIB = 1024
_NVME_BYTES = 2 << 30
# With five levels of page tables a guest once died of a double fault in rdma_rxe (QEMU 7.2).
_TCG = ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max,la57=off", "-smp", "1"]
_NICE = -10
_KVM = ["-accel", "kvm", "-cpu", "host", "-smp", "2"]
_TRIAL_SECONDS = 15
# Fixed address layouts and no mitigations: much less for the emulator to translate anew.
_KERNEL_WORDS = (
    "console=ttyS0 quiet systemd.show_status=1 panic=-1 random.trust_cpu=on net.ifnames=0 "
    "mitigations=off nokaslr norandmaps"
)
_NVME = {"driver": "nvme", "id": "nvme0", "drive": "nvme0-disk", "bus": "slot0"}
_DISKS = ("disk.qcow2", "nvme.raw")
# The guest's clock stood still while it was saved; QEMU's real-time clock did not. Half a second:
# that clock tells whole ones.
_SET_CLOCK = "date -s @$(cat /sys/class/rtc/rtc0/since_epoch).5 >/dev/null"


class Machines:
    """The machines of one lab (see `lab.backend.Backend`), and snapshots of all of them."""

    boot_seconds = 480.0  # emulated, eight machines on two busy cores

    def __init__(self, lab: Lab, network: Network) -> None:
        self.lab = lab
        self.network = network

    def prepare(self) -> None:
        if platform.machine() != "x86_64":
            raise LabError(
                f"virtual machines are made for x86_64 only, this machine is {platform.machine()}; "
                "use --backend containers"
            )
        need_programs({_QEMU: "qemu-system-x86", "qemu-img": "qemu-utils", "zstd": "zstd"})
        image = self._image()
        missing = [host for host in self.lab.hosts if not self.running(host)]
        needed, there = len(missing) * _MEMORY_MIB, _available_mib()
        if needed > there:
            raise LabError(
                f"{len(missing)} virtual machines need {needed} MiB of memory, {there} MiB are "
                "available; ask for fewer with --hosts, or use --backend containers"
            )
        if not accelerated(image):
            say("KVM does not work on this machine: emulating (minutes instead of seconds)")

    def up(self, hosts: Sequence[Host]) -> None:
        self.lab.stood_in = self.stood_in()
        processes = self._processes()
        new = [host for host in hosts if host.name not in processes]
        _at_once(self._plug, [host for host in hosts if host not in new])
        if not new:
            return
        with step(f"starting {len(new)} machine(s)"):
            image = self._image()
            for host in new:
                self._make_disks(host, image)
                self.network.add_taps(host)
            _at_once(self.start, new)

    def down(self) -> None:
        _end(self._processes().values())
        for folder in [self._snapshots, *self.lab.state.glob("spark*")]:
            shutil.rmtree(folder, ignore_errors=True)
        self._image_link.unlink(missing_ok=True)

    def running(self, host: Host) -> bool:
        return host.name in self._processes()

    def stop(self, host: Host) -> None:
        # a power cut for the guest; QEMU itself ends in good order, or its disk file would lose
        # what the guest has safely written
        _end(pid for name, pid in self._processes().items() if name == host.name)

    def start(self, host: Host) -> None:
        if not self.running(host):
            device = ",".join(f"{name}={value}" for name, value in _nvme_device(host).items())
            self._launch(host, ["-device", device])

    def reboot(self, host: Host) -> None:
        if self.running(host):
            with self._monitor(host) as monitor:
                monitor.execute("system_powerdown")
            deadline = time.monotonic() + self.boot_seconds / 4
            while self.running(host) and time.monotonic() < deadline:
                time.sleep(0.3)
            self.stop(host)  # it did not listen
        self.start(host)

    def set_carrier(self, ends: Sequence[End], on: bool) -> None:
        hosts = {host.index: host for host in self.lab.hosts if self.running(host)}
        for index in sorted({end.host for end in ends} & set(hosts)):
            states = {port.tag: on for port in PORTS if End(index, port.cage) in ends}
            self._set_links(hosts[index], states)

    def console(self, host: Host) -> str:
        try:
            text = (self.lab.folder(host) / "serial.log").read_text(errors="replace")
        except FileNotFoundError:
            return f"{host.name} was never started"
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r|\x1bc", "", text)
        return "\n".join(plain.splitlines()[-60:])

    def stood_in(self) -> dict[str, str]:
        return {
            "machine": "a QEMU machine on amd64, often emulated; Debian 13 and its kernel instead "
            "of DGX OS on arm64",
            "ConnectX-7": "Soft-RoCE on virtio NICs under Spark names: real verbs, GID tables and "
            "RDMA traffic, but no RoCE v1 GIDs, no PCIe link, no firmware, no speed",
            "GPU": "a stand-in nvidia-smi that reports one idle GB10",
            "NVIDIA container runtime": "plain runc under the name 'nvidia'",
            "sizes": "memory and disk space asked for by the checks are scaled down",
            "data disk": f"an emulated NVMe disk of {_NVME_BYTES >> 30} GiB",
        }

    # --- snapshots -------------------------------------------------------------------------------

    def snapshot(self, name: str) -> None:
        """Keep memory and disks of every machine as they are now; the machines run on.

        :raises LabError: a machine is off, or its /data is in use: QEMU cannot save the state of
            an NVMe disk, so that it is pulled out for the moment.
        """
        self._all_running()
        target = self._snapshot_folder(name)
        aside = target.with_name(f".{name}")
        shutil.rmtree(aside, ignore_errors=True)
        for host in self.lab.hosts:
            (aside / host.name).mkdir(parents=True)
        with step(f"snapshot '{name}' of {len(self.lab.hosts)} machines"):
            try:
                _at_once(lambda host: self._save(host, aside / host.name), self.lab.hosts)
                shutil.rmtree(target, ignore_errors=True)
                aside.rename(target)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
                _at_once(self._resume, self.lab.hosts)

    def restore(self, name: str) -> None:
        """Every machine as it was at the snapshot, but for the clock; cables as planned.

        :raises LabError: there is no such snapshot.
        """
        source = self._snapshot_folder(name)
        if not source.is_dir():
            there = ", ".join(path.name for path in self._snapshots.glob("[!.]*")) or "none"
            raise LabError(f"lab '{self.lab.name}' has no snapshot '{name}'; there are: {there}")
        with step(f"restoring snapshot '{name}' of {len(self.lab.hosts)} machines"):
            _end(self._processes().values())
            for host in self.lab.hosts:
                self.network.add_taps(host)
            _at_once(lambda host: self._load(host, source / host.name), self.lab.hosts)
            ssh.wait(self.lab, self.lab.hosts, self.boot_seconds / 4)
            _at_once(self._resume, self.lab.hosts)

    def _save(self, host: Host, target: Path) -> None:
        done = ssh.root(self.lab, host, "umount /data", check=False)
        if done.returncode:
            raise LabError(f"{host.name}: no snapshot while /data is in use: {done.stderr.strip()}")
        with self._monitor(host) as monitor:
            monitor.execute("device_del", id=_NVME["id"])
            monitor.wait_event("DEVICE_DELETED", 60, lambda data: data.get("device") == _NVME["id"])
            monitor.execute("stop")
            monitor.execute("migrate-set-parameters", max_bandwidth=10**10)
            monitor.execute("migrate", uri=f"exec:zstd -q -1 -f -o {target}/memory.zst")
            _wait_migration(monitor, host)
            _copy(_DISKS, self.lab.folder(host), target)

    def _load(self, host: Host, source: Path) -> None:
        _copy(_DISKS, source, self.lab.folder(host))
        self._launch(host, ["-incoming", "defer"])
        with self._monitor(host) as monitor:
            monitor.execute("migrate-incoming", uri=f"exec:zstd -q -d -c {source}/memory.zst")
            _wait_migration(monitor, host)
            monitor.execute("cont")
        self._plug(host)  # the saved state knows better where the plugs were then

    def _resume(self, host: Host) -> None:
        with self._monitor(host) as monitor:
            monitor.execute("cont")
            devices = monitor.execute("qom-list", path="/machine/peripheral")
            if not any(device["name"] == _NVME["id"] for device in devices):
                monitor.execute("device_add", **_nvme_device(host))
        ssh.root(self.lab, host, f"{_SET_CLOCK}; /usr/lib/sparklab/data")

    def _all_running(self) -> None:
        missing = [host.name for host in self.lab.hosts if not self.running(host)]
        if missing:
            raise LabError(
                f"a snapshot is of a whole running lab; not running: {', '.join(missing)}; "
                f"start them: lab --name {self.lab.name} up"
            )

    @property
    def _snapshots(self) -> Path:
        return self.lab.state / "snapshots"

    def _snapshot_folder(self, name: str) -> Path:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,39}", name):
            raise LabError(f"snapshot name '{name}': use a-z, 0-9 and '-'")
        return self._snapshots / name

    # --- one machine -----------------------------------------------------------------------------

    def _image(self) -> Image:
        """What this lab stands on: the same for all its life, though a newer one may be built."""
        link = self._image_link
        if link.is_symlink():
            if link.exists():
                return Image(link.resolve())
            raise LabError(
                f"the image of lab '{self.lab.name}' is gone ({link.readlink()}); "
                f"remove the lab and make it anew: lab --name {self.lab.name} down"
            )
        image = vmimage.build()
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(image.folder)
        return image

    @property
    def _image_link(self) -> Path:
        return self.lab.state / "image"

    def _make_disks(self, host: Host, image: Image) -> None:
        folder = self.lab.folder(host)
        folder.mkdir(parents=True, exist_ok=True)
        disk = folder / "disk.qcow2"
        if disk.exists():
            return
        own = vmimage.cpio({vmimage.SEED: (0o100600, seed.archive(self.lab, host))})
        (folder / "initrd").write_bytes(image.initrd.read_bytes() + own)
        with (folder / "nvme.raw").open("wb") as nvme:
            nvme.truncate(_NVME_BYTES)
        aside = folder / "new.qcow2"
        run(["qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", image.disk, aside])
        aside.replace(disk)  # last: a disk that is there is complete

    def _launch(self, host: Host, more: Sequence[str]) -> None:
        image = self._image()
        accelerator = _KVM if accelerated(image) else _TCG
        argv = [_QEMU, *accelerator, *self._arguments(host, image), *more, "-daemonize"]
        run(self.network.inside(*argv), timeout=60)  # returns when its control socket is there
        self._prefer(host)
        self._plug(host)

    def _prefer(self, host: Host) -> None:
        """Let the machine go before other work: an emulated one that starves loses time and timers.

        Where the kernel groups processes by session, niceness of a process means nothing beyond it.
        """
        pid = (self.lab.folder(host) / "pid").read_text().strip()
        with contextlib.suppress(OSError):
            Path(f"/proc/{pid}/autogroup").write_text(f"{_NICE}\n")

    def _plug(self, host: Host) -> None:
        """Carrier where the wires are plugged in."""
        plugged = {name for names in self.network.members().values() for name in names}
        self._set_links(
            host, {port.tag: self.network.port_name(host, port) in plugged for port in PORTS}
        )

    def _arguments(self, host: Host, image: Image) -> list[str]:
        folder = self.lab.folder(host)
        nics = [("management", self.network.port_names(host)[0], host.management_mac)]
        nics += [(port.tag, self.network.port_name(host, port), host.mac(port)) for port in PORTS]
        options = [
            ("name", f"sparklab-{self.lab.name}-{host.name}"),
            ("pidfile", f"{folder}/pid"),
            ("machine", "q35"),
            ("m", str(_MEMORY_MIB)),
            ("display", "none"),
            ("kernel", f"{image.kernel}"),
            ("initrd", f"{folder}/initrd"),
            ("append", _KERNEL_WORDS),
            ("serial", f"file:{folder}/serial.log"),
            ("qmp", f"unix:{folder}/qmp,server=on,wait=off"),
            ("drive", f"file={folder}/disk.qcow2,if=none,id=root,cache=unsafe,discard=unmap"),
            ("device", "virtio-blk-pci,drive=root"),
            ("device", "virtio-rng-pci"),
        ]
        for name, tap, mac in nics:
            # without host_mtu the guest starts at 1500, as the real NIC does, and may go to 9000
            options += [
                ("netdev", f"tap,id=wire-{name},ifname={tap},script=no,downscript=no"),
                ("device", f"virtio-net-pci,netdev=wire-{name},id={name},mac={mac},romfile="),
            ]
        options += [
            # a node of its own outlives the device, which snapshots pull out and put back
            ("blockdev", f"driver=file,node-name=file,filename={folder}/nvme.raw,discard=unmap"),
            (
                "blockdev",
                f"driver=raw,node-name={_NVME['drive']},file=file,discard=unmap,cache.no-flush=on",
            ),
            ("device", f"pcie-root-port,id={_NVME['bus']},chassis=1,slot=1"),
        ]
        words = [word for name, value in options for word in (f"-{name}", value)]
        return ["-nodefaults", "-no-user-config", *words]

    def _monitor(self, host: Host) -> Monitor:
        return Monitor(self.lab.folder(host) / "qmp")

    def _set_links(self, host: Host, states: dict[str, bool]) -> None:
        with self._monitor(host) as monitor:
            for name, up in states.items():
                monitor.execute("set_link", name=name, up=up)

    def _processes(self) -> dict[str, int]:
        """The QEMUs of this lab by host name, whoever started them and whatever is left on disk."""
        pattern = re.compile(re.escape(str(self.lab.state)) + r"/(spark\d+)/pid")
        found = {}
        for entry in Path("/proc").glob("[0-9]*"):
            words = _command_line(int(entry.name))
            if words[0].endswith(_QEMU) and "-pidfile" in words:
                match = pattern.fullmatch(words[words.index("-pidfile") + 1])
                if match:
                    found[match[1]] = int(entry.name)
        return found


def accelerated(image: Image) -> bool:
    """Whether a guest kernel really runs under KVM here, tried once and remembered.

    The device alone says little: on some hosts guests are refused, or hang at their first steps.
    """
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    version = run([_QEMU, "--version"]).stdout.splitlines()[0]
    here = [os.uname().release, _cpu_model(), version]
    known = CACHE / "kvm.json"
    kept = _read_json(known)
    if kept.get("here") != here:
        with lock(CACHE / "kvm.lock"), step(f"trying KVM (at most {_TRIAL_SECONDS} s)"):
            kept = {"here": here, "works": _trial(image)}
            write_atomic(known, json.dumps(kept) + "\n")
    return bool(kept["works"])


def _trial(image: Image) -> bool:
    argv = [_QEMU, *_KVM, "-machine", "q35", "-m", "512", "-nodefaults", "-no-user-config"]
    argv += ["-display", "none", "-no-reboot", "-serial", "stdio"]
    argv += ["-kernel", str(image.kernel), "-initrd", str(image.initrd)]
    argv += ["-append", "console=ttyS0 quiet panic=-1 sparklab.trial"]
    try:
        return vmimage.ALIVE in run(argv, check=False, timeout=_TRIAL_SECONDS).stdout
    except (LabError, UnicodeDecodeError):  # silence, or noise
        return False


def _cpu_model() -> str:
    match = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1] if match else ""


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _available_mib() -> int:
    found = re.search(r"MemAvailable:\s*(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) // 1024 if found else 0


def _command_line(pid: int) -> list[str]:
    """The words of a process; one empty word for what has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return [""]


def _end(pids: Iterable[int]) -> None:
    """End processes that are known to be ours: in good order, after 10 s without asking."""
    waiting = list(pids)
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in waiting:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sign)
        deadline = time.monotonic() + 10
        while waiting and time.monotonic() < deadline:
            waiting = [pid for pid in waiting if _command_line(pid) != [""]]
            time.sleep(0.05 if waiting else 0)


def _copy(names: Sequence[str], source: Path, target: Path) -> None:
    """Copy files with their holes."""
    run(["cp", "--sparse=always", *(source / name for name in names), target])


def _wait_migration(monitor: Monitor, host: Host) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        state = monitor.execute("query-migrate")
        if state.get("status") == "completed":
            return
        if state.get("status") in ("failed", "cancelled"):
            raise LabError(f"{host.name}: QEMU: {state.get('error-desc', state['status'])}")
        time.sleep(0.05)
    raise LabError(f"{host.name}: its memory was not transferred within 300 s")


def _nvme_device(host: Host) -> dict[str, str]:
    return {**_NVME, "serial": f"SPARKLAB-{host.name}"}


def _at_once(act: Callable[[Host], None], hosts: Sequence[Host]) -> None:
    """The same on several machines; the first failure is raised when all have ended."""
    with ThreadPoolExecutor(max_workers=max(1, len(hosts))) as pool:
        list(pool.map(act, hosts))
