# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Container images of engines, made without a registry and loaded on the hosts of a lab.

Two layers: a minimal Debian with Python from the distribution's packages, kept in the cache, and
what an image adds to it. The archive is what ``docker save`` writes, byte for byte the same for the
same input, so that every host of every lab has one image.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lab import ssh
from lab.spec import Lab
from lab.system import CACHE, LabError, lock, need_programs, run, step

_PACKAGES = (
    "base-files base-passwd dash coreutils libc-bin python3-minimal libpython3-stdlib".split()
)
# The variant `extract` runs no maintainer script and no later hook: what those make is made here.
_FINISH = """
set -eu
ln -sf dash "$1"/usr/bin/sh
cp "$1"/usr/share/base-passwd/passwd.master "$1"/etc/passwd
cp "$1"/usr/share/base-passwd/group.master "$1"/etc/group
mkdir -p "$1"/models "$1"/state "$1"/engram "$1"/root/.cache
rm -rf "$1"/usr/share/doc "$1"/usr/share/locale "$1"/usr/share/man
"""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """One image: its reference, the Debian below it, and what it adds.

    Attributes:
        name: of its archive in the cache.
        files: by path below /, what is in the upper layer.
        packages: of the distribution, beside Python.
    """

    reference: str
    name: str
    suite: str
    files: Mapping[str, bytes]
    labels: Mapping[str, str]
    packages: Sequence[str] = ()

    def archive(self, architecture: str | None = None) -> Path:
        """The image as an archive in the cache, for ``docker load``; built where it is missing.

        Args:
            architecture: what the image says it is for (the programs in it are this machine's); by
                default this machine's. A test makes an image of the wrong architecture with it.
        """
        base = _base(self.suite, [*_PACKAGES, *self.packages])
        upper = _layer(self.files)
        architecture = architecture or _ARCHITECTURES.get(_machine(), _machine())
        parts = [base.name.encode(), upper, architecture.encode(), self.reference.encode()]
        key = hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]
        target = CACHE / f"{self.name}-{key}.tar"
        with lock(CACHE / "image-archives.lock"):
            if not target.exists():
                aside = target.with_suffix(".part")
                self.write(aside, [base.read_bytes(), upper], architecture)
                aside.replace(target)
        return target

    def load(self, lab: Lab, hosts: Sequence[str]) -> None:
        """Put the image into the Docker engine of each host."""
        source = self.archive()
        title = f"loading {self.reference} on {len(hosts)} host(s)"
        with step(title), ThreadPoolExecutor() as pool:
            answers = pool.map(lambda name: _load(lab, name, source), hosts)
            for host, said in zip(hosts, answers, strict=True):
                if said:
                    raise LabError(f"{host} did not load {source}: {said}")

    def write(self, target: Path, layers: Sequence[bytes], architecture: str) -> None:
        """A `docker save` archive: a manifest, the configuration of the image, its layers."""
        digests = [hashlib.sha256(layer).hexdigest() for layer in layers]
        config = json.dumps(
            {
                "architecture": architecture,
                "os": "linux",
                "created": "1970-01-01T00:00:00Z",
                "config": {
                    "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                    "WorkingDir": "/",
                    "Labels": dict(self.labels),
                },
                "rootfs": {
                    "type": "layers",
                    "diff_ids": [f"sha256:{digest}" for digest in digests],
                },
            },
            sort_keys=True,
        ).encode()
        name = f"{hashlib.sha256(config).hexdigest()}.json"
        names = [f"{digest}/layer.tar" for digest in digests]
        told = [{"Config": name, "RepoTags": [self.reference], "Layers": names}]
        files = {
            **dict(zip(names, layers, strict=True)),
            name: config,
            "manifest.json": json.dumps(told).encode(),
        }
        target.write_bytes(_layer(files))


def _load(lab: Lab, host: str, source: Path) -> str:
    argv = ssh.command(lab, lab.host(host), ["sudo", "docker", "load", "--quiet"])
    done = run(["sh", "-c", 'f=$1; shift; exec "$@" <"$f"', "sh", source, *argv], check=False)
    return "" if done.returncode == 0 else done.stderr.strip() or done.stdout.strip()


def _machine() -> str:
    return run(["uname", "-m"]).stdout.strip()


def _base(suite: str, packages: Sequence[str]) -> Path:
    """The lower layer: a root file system with Python."""
    key = hashlib.sha256("\0".join([suite, *packages, _FINISH]).encode()).hexdigest()[:12]
    tarball = CACHE / f"image-base-{key}.tar"
    with lock(CACHE / "image-archives.lock"):
        if tarball.exists():
            return tarball
        need_programs({"mmdebstrap": "mmdebstrap"})
        aside = tarball.with_suffix(".part.tar")
        with step(f"building the base of container images, Debian {suite} (once)"):
            run(
                ["mmdebstrap", "--variant=extract", f"--include={','.join(packages)}"]
                + ["--keyring=/usr/share/keyrings/debian-archive-keyring.gpg"]
                + [f"--extract-hook={_FINISH}", suite, str(aside)],
                timeout=900,
                env={"SOURCE_DATE_EPOCH": "0"},
            )
            aside.replace(tarball)
        return tarball


def _layer(files: Mapping[str, bytes]) -> bytes:
    """Files as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
