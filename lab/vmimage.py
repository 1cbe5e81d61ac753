# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What virtual machines boot: Debian's kernel, an initial RAM disk, a disk all nodes start from.

Made once from `rootfs` and kept in the cache under a key of everything that went into it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import lzma
import os
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from lab import rootfs
from lab.seed import GUEST
from lab.system import CACHE, LabError, lock, need_programs, run, step

# What a node can load; all else is left out, and these are kept unpacked: xz is slow when emulated.
_MODULES = """
virtio_pci virtio_blk virtio_net virtio_rng nvme ext4 xfs button evdev rtc_cmos
rdma_rxe crc32_generic rdma_ucm rdma_cm ib_uverbs ib_umad rpcrdma nfsd nfs nfsv3 nfsv4
overlay veth bridge br_netfilter 8021q macvlan dummy loop tun vrf vxlan bonding fuse configfs
nf_tables nft_chain_nat nft_compat nft_ct nft_masq nft_nat nft_reject_inet nft_limit nft_log
nft_fib_inet xt_MASQUERADE xt_conntrack xt_addrtype xt_comment xt_multiport xt_tcpudp xt_nat
xt_mark xt_limit xt_state xt_REDIRECT xt_set xt_connmark ip_set ip_tables iptable_filter
iptable_nat iptable_mangle ip6_tables ip6table_filter ip6table_nat nf_conntrack_netlink
sch_fq_codel sch_fq sch_htb sch_tbf sch_netem sch_ingress cls_u32 cls_flower act_mirred tcp_bbr
""".split()
_EARLY_MODULES = "virtio_pci virtio_blk ext4 crc32c_generic".split()
_DISK_BYTES = 8 << 30
# Prezeroed: the file is new, and a guest need not zero tables in the background.
_MKFS = "-q -F -L root -m 0 -E nodiscard,assume_storage_prezeroed=1".split()
ALIVE = "sparklab: the kernel runs"  # what a trial boot prints
SEED = "seed.tar"  # where the initial RAM disk has what makes a new disk one host's
# The seed is laid over a new disk once: what a reboot keeps must be what the node had.
_INIT = f"""#!/bin/busybox sh
B=/bin/busybox
$B mount -t devtmpfs dev /dev
$B mount -t proc proc /proc
$B mount -t sysfs sys /sys
for module in /modules/*; do $B insmod "$module"; done
if $B grep -q sparklab.trial /proc/cmdline; then echo "{ALIVE}"; $B poweroff -f; fi
tries=0
until [ -b /dev/vda ]; do
  tries=$((tries + 1))
  [ $tries -gt 500 ] && echo "sparklab: no disk /dev/vda" && exec $B sh
  $B usleep 20000
done
$B mount -t ext4 -o rw,noatime /dev/vda /root || exec $B sh
if [ ! -e /root/var/lib/sparklab-seeded ]; then
  $B tar -x -f /{SEED} -C /root || exec $B sh
  # nothing to renew at boot: systemd compares these with the age of /usr
  $B touch /root/etc/.updated /root/var/.updated
  $B sync
  $B touch /root/var/lib/sparklab-seeded
fi
$B umount /proc /sys
$B mount --move /dev /root/dev
exec $B switch_root /root /sbin/init
"""
_FETCH_KERNEL = """
set -eu
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
package=$(apt-cache depends linux-image-amd64 | awk '/Depends: linux-image-/ {print $2; exit}')
cd "$LAB_KERNEL_FOLDER"
apt-get download -o APT::Sandbox::User=root "$package"
"""
# Runs in the new root with its own Python: see sparklab_bytecode.py, whose store this fills.
_COMPILE = """
import pathlib, sys, zipimport
sys.path.insert(0, "/usr/lib/python3/dist-packages")
import sparklab_bytecode
for path in sorted(pathlib.Path("/tmp/ansible").rglob("*.py")):
    source = path.read_bytes()
    if source:
        zipimport._compile_source(str(path), source)
"""
_BYTECODE = GUEST / "usr/lib/python3/dist-packages/sparklab_bytecode.py"


@dataclass(frozen=True)
class Image:
    """A folder of the cache: ``kernel``, ``initrd``, ``disk.raw``."""

    folder: Path

    @property
    def kernel(self) -> Path:
        return self.folder / "kernel"

    @property
    def initrd(self) -> Path:
        return self.folder / "initrd"

    @property
    def disk(self) -> Path:
        return self.folder / "disk.raw"


def key() -> str:
    """Changes with everything that goes into the image but the kernel, the newest of its day."""
    sources = [Path(__file__), _BYTECODE]
    parts = [rootfs.key(), _ansible_version(), *(path.read_text() for path in sources)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def build() -> Image:
    """The image of the cache; built where it is missing."""
    tarball = rootfs.build()
    image = Image(CACHE / f"vm-{key()}")
    with lock(CACHE / "vm.lock"):
        if image.folder.exists():
            return image
        need_programs({"mmdebstrap": "mmdebstrap", "mkfs.ext4": "e2fsprogs"})
        for left in CACHE.glob(".vm-*"):  # an interrupted build; we hold the lock
            shutil.rmtree(left)
        package = _kernel_package()
        with (
            step("building the image of the virtual machines (once)"),
            tempfile.TemporaryDirectory(dir=CACHE, prefix=".vm-") as name,
        ):
            aside = Path(name) / "image"
            aside.mkdir()
            _make(tarball, package, Path(name), Image(aside))
            aside.rename(image.folder)
        return image


def _make(tarball: Path, package: Path, work: Path, image: Image) -> None:
    tree, debian = work.resolve() / "tree", work / "debian"
    tree.mkdir()
    run(
        ["tar", "-x", "-p", "--numeric-owner", "--xattrs", "--xattrs-include=*"]
        + ["-f", tarball, "-C", tree]
    )
    run(["dpkg-deb", "-x", package, debian])
    (kernel,) = (debian / "boot").glob("vmlinuz-*")
    shutil.copy(kernel, image.kernel)
    shutil.copy(kernel, tree / "boot")  # QEMU loads its own copy; this one is for who looks
    release = kernel.name.removeprefix("vmlinuz-")
    early = _install_modules(debian / "usr/lib/modules" / release, tree, release)
    image.initrd.write_bytes(_initrd(tree, early))
    _compile_ansible(tree)
    with image.disk.open("wb") as disk:
        disk.truncate(_DISK_BYTES)
    run(["mkfs.ext4", *_MKFS, "-d", tree, image.disk])


def _kernel_package() -> Path:
    """Debian's kernel for the suite, as its package file; apt checks the signature."""
    folder = CACHE / f"kernel-{rootfs.SUITE}"
    if not folder.exists():
        aside = folder.with_suffix(".part")
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        with step("fetching Debian's kernel (once, 110 MB)"):
            run(
                ["mmdebstrap", "--variant=custom", "--format=null"]
                + ["--keyring=/usr/share/keyrings/debian-archive-keyring.gpg"]
                + [f"--customize-hook={_FETCH_KERNEL}", rootfs.SUITE, "-"]
                + os.environ.get("LAB_MIRROR", "").split(),
                env={"LAB_KERNEL_FOLDER": str(aside)},
                timeout=1200,
            )
        aside.rename(folder)
    (package,) = folder.glob("*.deb")
    return package


def _install_modules(source: Path, tree: Path, release: str) -> list[Path]:
    """Put `_MODULES` and their needs into the tree; the paths of those needed before the disk."""
    target = tree / "usr/lib/modules" / release
    shutil.move(source, target)
    run(["chroot", tree, "depmod", release])
    keep = _with_needs(tree, release, _MODULES)
    early = _with_needs(tree, release, _EARLY_MODULES)
    wanted = {*keep, *early}
    for path in [*target.rglob("*.ko"), *target.rglob("*.ko.xz")]:
        packed = path.suffix == ".xz"
        if packed and path in wanted:
            path.with_suffix("").write_bytes(lzma.decompress(path.read_bytes()))
        if packed or path not in wanted:
            path.unlink()
    run(["chroot", tree, "depmod", release])
    return [path.with_suffix("") if path.suffix == ".xz" else path for path in early]


def _with_needs(tree: Path, release: str, names: Iterable[str]) -> list[Path]:
    """The files of these modules, each after those it needs; none for what is built in."""
    done = run(
        ["chroot", tree, "modprobe", "-S", release, "--show-depends", "-a", *names], check=False
    )
    if done.returncode:
        raise LabError(f"kernel {release} lacks modules of the lab: {done.stderr.strip()}")
    words = [line.split() for line in done.stdout.splitlines() if line.startswith("insmod ")]
    # /lib is a link to /usr/lib
    paths = (tree / word[1].lstrip("/") for word in words)
    return list(dict.fromkeys(path.resolve() for path in paths))


def _compile_ansible(tree: Path) -> None:
    """Fill the nodes' store of compiled modules with those of the Ansible that runs the lab."""
    spec = importlib.util.find_spec("ansible")
    if spec is None or not spec.submodule_search_locations:
        return  # the store then fills as modules are used
    aside = tree / "tmp/ansible"
    for part in ("module_utils", "modules"):
        shutil.copytree(Path(spec.submodule_search_locations[0]) / part, aside / part)
    inner = tree / "usr/lib/python3/dist-packages" / _BYTECODE.name
    shutil.copy(_BYTECODE, inner)
    run(["chroot", tree, "/usr/bin/python3", "-I", "-S", "-c", _COMPILE], timeout=300)
    shutil.rmtree(aside)
    inner.unlink()  # it comes with the seed


def _ansible_version() -> str:
    try:
        return importlib.metadata.version("ansible-core")
    except importlib.metadata.PackageNotFoundError:
        return "no ansible"


# --- initial RAM disk ---


def cpio(files: dict[str, tuple[int, bytes]]) -> bytes:
    """An archive the kernel unpacks ("newc"): {path: (mode with file type, content)}.

    Archives can be put one behind the other.
    """
    out = bytearray()
    entries = [*files.items(), ("TRAILER!!!", (0, b""))]
    for number, (path, (mode, data)) in enumerate(entries, start=1):
        name = path.encode() + b"\0"
        # inode, mode, uid, gid, links, time, size, device and special numbers, name size, checksum
        fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0]
        out += b"070701" + b"".join(b"%08x" % field for field in fields) + name
        out += bytes(-len(out) % 4) + data
        out += bytes(-len(out) % 4)
    return bytes(out)


def _initrd(tree: Path, modules: list[Path]) -> bytes:
    files = dict.fromkeys("bin dev proc sys root modules".split(), (0o040755, b""))
    files["bin/busybox"] = (0o100755, (tree / "usr/bin/busybox").read_bytes())
    files["init"] = (0o100755, _INIT.encode())
    for number, path in enumerate(modules):
        files[f"modules/{number:02}-{path.name}"] = (0o100644, path.read_bytes())
    return cpio(files)
