# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One image on every rank: built, sent over the fabric, loaded, compared, refused."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.labs import ROOT, LabUnderTest
from tests.support.playbook import (
    Run,
    assert_check_changes_nothing,
    assert_idempotent,
    run_playbook,
)

pytestmark = pytest.mark.containers

BUILD = ROOT / "playbooks/build.yml"
REFERENCE = "engine:test"
# A repository on the builder: an image of one static program and one file.
REPOSITORY = """
set -e
rm -rf /srv/engine && mkdir -p /srv/engine/docker && cd /srv/engine
cp /bin/busybox busybox
cat >docker/Dockerfile <<'END'
FROM scratch
ARG FLAVOUR=plain
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
RUN echo $FLAVOUR >/flavour
COPY answer /answer
ENTRYPOINT ["/bin/cat", "/answer"]
END
git init -q . && git config user.email lab@example.org && git config user.name lab
echo first >answer && git add . && git commit -qm first && git rev-parse HEAD
echo second >answer && git add . && git commit -qm second && git rev-parse HEAD
"""
STATE = """
docker images --no-trunc --format '{{.Repository}}:{{.Tag}} {{.ID}}' 2>&1 | sort
ls /usr/local/lib/sparkfleet /var/lib/sparkfleet/image 2>&1
systemctl list-units --all 'sparkfleet-image-*' --plain --no-legend
"""
SERVE = "systemd-run --quiet --unit=sparkfleet-rank@cell.service sleep infinity"


@pytest.fixture(scope="module")
def ring(make_lab: Callable[..., LabUnderTest]) -> LabUnderTest:
    lab = make_lab("image", "containers", "--bare")
    run_playbook(ROOT / "playbooks/fabric.yml", lab.inventory).assert_ok()
    return lab


@pytest.fixture(scope="module")
def commits(ring: LabUnderTest) -> list[str]:
    return ring.root("spark1", REPOSITORY).split()


def wish(commit: str, **more: object) -> tuple[str, ...]:
    values = {
        "spark_image": REFERENCE,
        "sglang_image_repository": "file:///srv/engine",
        "sglang_image_commit": commit,
        "sglang_image_dockerfile": "docker/Dockerfile",
        **more,
    }
    return ("-e", json.dumps(values))


def build(lab: LabUnderTest, *args: str) -> Run:
    return run_playbook(BUILD, lab.inventory, "--tags", "sglang_image", *args)


def ids(lab: LabUnderTest) -> dict[str, str]:
    # one store everywhere in the lab, so that ids may be compared here
    return lab.everywhere(f"docker image inspect {REFERENCE} --format '{{{{.Id}}}}' 2>&1")


def answers(lab: LabUnderTest) -> set[str]:
    return set(lab.everywhere(f"docker run --rm --network none {REFERENCE}").values())


def refused(run: Run, *told: str) -> None:
    assert run.returncode != 0
    for sentence in told:
        assert sentence in run.output, run.output
    assert "Traceback" not in run.output


def test_check_on_bare_hosts_changes_nothing(ring: LabUnderTest, commits: list[str]) -> None:
    run = assert_check_changes_nothing(
        BUILD, ring.inventory, *wish(commits[0]), witness=lambda: ring.everywhere(STATE)
    )
    assert run.hosts["spark1"].changed and run.hosts["spark3"].changed
    assert "+docker build" in run.output


def test_built_once_and_sent_to_all(ring: LabUnderTest, commits: list[str]) -> None:
    first, second = assert_idempotent(BUILD, ring.inventory, *wish(commits[0]))
    assert len(set(ids(ring).values())) == 1
    assert answers(ring) == {"first"}
    # the commit was built on one node only, and sent over the fabric
    logs = ring.everywhere("ls /var/log/sparkfleet")
    assert "image-build.log" in logs["spark1"] and "image-build.log" not in logs["spark2"]
    said = ring.root("spark1", "cat /var/log/sparkfleet/image-send.log")
    assert said.startswith("sending to 10.20.") and "to 3" in said
    assert "[spark1] image-build" in first.output
    # nothing stays behind, and a run that has nothing to do asks each host once
    traces = ring.everywhere("ls -A /run/sparkfleet; systemctl list-units -q 'sparkfleet-image-*'")
    assert set(traces.values()) == {""}
    assert second.hosts["spark2"].ok < first.hosts["spark2"].ok


def test_another_commit_and_other_arguments_are_built_anew(
    ring: LabUnderTest, commits: list[str]
) -> None:
    build(ring, *wish(commits[1])).assert_ok()
    assert answers(ring) == {"second"}
    more = wish(commits[1], sglang_image_build_args={"FLAVOUR": "spicy $HOME"})
    build(ring, *more).assert_ok()
    flavours = ring.everywhere(f"docker run --rm --entrypoint cat {REFERENCE} /flavour")
    assert set(flavours.values()) == {"spicy /"} or set(flavours.values()) == {"spicy $HOME"}
    build(ring, *more).assert_ok().assert_unchanged()


def test_a_rank_that_differs_is_named_and_put_right(ring: LabUnderTest, commits: list[str]) -> None:
    build(ring, *wish(commits[1])).assert_ok()
    other = f"printf 'FROM keep:1\\nENV OTHER=1\\n' | docker build -q -t {REFERENCE} -"
    ring.root("spark3", f"docker tag {REFERENCE} keep:1; docker rmi {REFERENCE}; {other}")
    ring.root("spark4", f"docker rmi {REFERENCE}")
    present = wish(commits[1], sglang_image_source="present")
    refused(
        build(ring, *present),
        f"spark3 has another {REFERENCE} than spark1",
        f"{REFERENCE} is not on spark4",
    )
    # labels alone are no proof: the copy on spark3 has the label of the build, too
    run = build(ring, *wish(commits[1])).assert_ok()
    assert run.hosts["spark3"].changed and run.hosts["spark4"].changed
    assert not run.hosts["spark2"].changed
    assert len(set(ids(ring).values())) == 1
    build(ring, *present).assert_ok().assert_unchanged()


def test_a_serving_node_neither_builds_nor_receives(ring: LabUnderTest, commits: list[str]) -> None:
    build(ring, *wish(commits[1])).assert_ok()
    before = ids(ring)
    for host, work in (("spark1", "build"), ("spark2", "receive")):
        ring.root(host, SERVE)
        try:
            refused(
                build(ring, *wish(commits[0])),
                f"{host} is serving (sparkfleet-rank@cell.service) and would have to {work}",
            )
            # what is right already is no reason to stop
            build(ring, *wish(commits[1])).assert_ok().assert_unchanged()
        finally:
            ring.root(host, "systemctl stop sparkfleet-rank@cell.service")
    assert ids(ring) == before


def test_a_build_that_fails_shows_why(ring: LabUnderTest, commits: list[str]) -> None:
    before = ids(ring)
    bad = wish(commits[0], sglang_image_dockerfile="docker/Missing")
    refused(build(ring, *bad), "image-build on spark1 ended with", "docker/Missing")
    refused(build(ring, *wish("f" * 40)), "f" * 40)
    assert ids(ring) == before


def test_a_build_goes_on_without_the_controller(ring: LabUnderTest, commits: list[str]) -> None:
    """A run that breaks off leaves the work to the node; the next run watches the same work."""
    slow = "RUN sleep 12 && echo slow >/slow"
    change = f"cd /srv/engine && echo '{slow}' >>docker/Dockerfile && git commit -qam slow"
    third = ring.root("spark1", f"{change} && git rev-parse HEAD")
    cut = build(ring, *wish(third, sglang_image_timeout=1))
    refused(cut, "image-build on spark1 is not done after 1 s, and goes on")
    run = build(ring, *wish(third)).assert_ok()
    assert [note.task for note in run.changed if "build" in note.task] == []
    assert ring.root("spark4", f"docker run --rm --entrypoint cat {REFERENCE} /slow") == "slow"
    build(ring, *wish(third)).assert_ok().assert_unchanged()


@pytest.fixture(scope="module")
def archive(
    ring: LabUnderTest, commits: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    build(ring, *wish(commits[0])).assert_ok()
    ring.root("spark1", f"docker save {REFERENCE} >/srv/engine.tar")
    path = tmp_path_factory.mktemp("archive") / "engine.tar"
    encoded = ring.root("spark1", "base64 -w0 /srv/engine.tar")
    path.write_bytes(base64.b64decode(encoded))
    return path


def loaded(path: Path | str, **more: object) -> tuple[str, ...]:
    values = {
        "spark_image": REFERENCE,
        "sglang_image_source": "archive",
        "sglang_image_archive": str(path),
        **more,
    }
    return ("-e", json.dumps(values))


def test_an_archive_is_loaded_and_sent(ring: LabUnderTest, archive: Path) -> None:
    build(ring, *loaded(archive)).assert_ok().assert_unchanged()
    ring.everywhere(f"docker rmi -f {REFERENCE}")
    assert_check_changes_nothing(
        BUILD, ring.inventory, *loaded(archive), witness=lambda: ring.everywhere(STATE)
    )
    assert_idempotent(BUILD, ring.inventory, *loaded(archive))
    assert answers(ring) == {"first"}
    ring.everywhere(f"docker rmi -f {REFERENCE}")
    there = loaded("/srv/engine.tar", sglang_image_archive_on="builder")
    assert_idempotent(BUILD, ring.inventory, *there)
    assert answers(ring) == {"first"}


def foreign(archive: Path, target: Path, architecture: str) -> Path:
    """The same archive, made for another processor."""
    with tarfile.open(archive) as source, tarfile.open(target, "w") as sink:
        manifest = json.load(source.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(source.extractfile(manifest[0]["Config"]))  # type: ignore[arg-type]
        config["architecture"] = architecture
        data = json.dumps(config).encode()
        old, new = manifest[0]["Config"], f"{hashlib.sha256(data).hexdigest()}.json"
        manifest[0]["Config"] = new
        for member in source.getmembers():
            if member.name in {"manifest.json", old, "index.json", "oci-layout"}:
                continue
            sink.addfile(member, source.extractfile(member) if member.isfile() else None)
        for name, content in ((new, data), ("manifest.json", json.dumps(manifest).encode())):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            sink.addfile(member, io.BytesIO(content))
    return target


def test_another_processor_is_refused_before_loading(
    ring: LabUnderTest, archive: Path, tmp_path: Path
) -> None:
    before = ids(ring)
    other = foreign(archive, tmp_path / "foreign.tar", "arm64")
    refused(
        build(ring, *loaded(other)),
        f"{REFERENCE} is made for arm64, but spark1 is amd64",
        "but spark4 is amd64",
    )
    assert ids(ring) == before


def test_a_foreign_image_that_is_there_is_refused(
    ring: LabUnderTest, archive: Path, tmp_path: Path
) -> None:
    other = foreign(archive, tmp_path / "foreign.tar", "s390x")
    encoded = base64.b64encode(other.read_bytes()).decode()
    ring.root("spark2", f"base64 -d <<'END' | docker load\n{encoded}\nEND")
    try:
        refused(
            build(ring, *loaded("", sglang_image_source="present")),
            f"{REFERENCE} is made for s390x, but spark2 is amd64",
            f"spark2 has another {REFERENCE} than spark1",
        )
    finally:
        build(ring, *loaded(archive)).assert_ok()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file or directory"),
        (b"", "is not what docker save writes"),
        (b"\x1f\x8b\x08 not a tar", "or it is compressed"),
    ],
)
def test_a_bad_archive_is_named(
    ring: LabUnderTest, tmp_path: Path, content: bytes | None, told: str
) -> None:
    path = tmp_path / "bad.tar"
    if content is not None:
        path.write_bytes(content)
    refused(build(ring, *loaded(path)), str(path), told)


def test_an_archive_of_another_image_is_named(ring: LabUnderTest, archive: Path) -> None:
    refused(
        build(ring, *loaded(archive, spark_image="other:1")),
        f"has no image other:1, but {REFERENCE}",
    )


def test_docker_that_is_down_is_named(ring: LabUnderTest, commits: list[str]) -> None:
    ring.root("spark3", "systemctl stop docker.service docker.socket")
    try:
        refused(build(ring, *wish(commits[0])), "spark3: the Docker daemon does not answer")
    finally:
        ring.root("spark3", "systemctl start docker.socket docker.service")


def test_bad_wishes_are_refused_all_at_once(ring: LabUnderTest) -> None:
    refused(
        build(ring, *wish("main", spark_image="Not A Name", sglang_image_dockerfile="../x")),
        "the image is 'Not A Name'",
        "sglang_image_commit is 'main', expected a whole commit",
        "sglang_image_dockerfile is '../x', expected a path inside",
    )
    refused(
        build(ring, "-e", json.dumps({"spark_image": "x:1", "sglang_image_source": "pull"})),
        "expected name@sha256:",
    )


def test_a_fabric_that_is_down_is_named(ring: LabUnderTest, commits: list[str]) -> None:
    build(ring, *wish(commits[0])).assert_ok()
    before = ids(ring)
    elsewhere = wish(commits[1], spark_fabric_pool="10.66.0.0/16")
    refused(build(ring, *elsewhere), "cannot be listened on", "Is the fabric configured")
    for host in ("spark2", "spark3", "spark4"):
        assert ids(ring)[host] == before[host]
