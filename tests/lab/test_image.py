# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One image on every rank: built, sent over the fabric, loaded, compared, refused."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.support import packages
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


def tagged(values: Mapping[str, object]) -> tuple[str, ...]:
    return ("--timeout", "60", "--tags", "sglang_image", "-e", json.dumps(values))


def wish(commit: str, **more: object) -> tuple[str, ...]:
    values = {
        "spark_image": REFERENCE,
        "sglang_image_repository": "file:///srv/engine",
        "sglang_image_commit": commit,
        "sglang_image_dockerfile": "docker/Dockerfile",
        **more,
    }
    return tagged(values)


def second(commits: list[str], **more: object) -> tuple[str, ...]:
    """What the hosts have from the second test on."""
    return wish(commits[1], sglang_image_build_args={"FLAVOUR": "spicy $HOME 100%"}, **more)


def loaded(path: Path | str, **more: object) -> tuple[str, ...]:
    values = {
        "spark_image": REFERENCE,
        "sglang_image_source": "archive",
        "sglang_image_archive": str(path),
        **more,
    }
    return tagged(values)


PRESENT = tagged({"spark_image": REFERENCE, "sglang_image_source": "present"})


def build(lab: LabUnderTest, args: tuple[str, ...]) -> Run:
    return run_playbook(BUILD, lab.inventory, *args)


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


# The tests build on each other: what one leaves, the next finds.


def test_built_once_and_sent_to_all(ring: LabUnderTest, commits: list[str]) -> None:
    run = assert_check_changes_nothing(
        BUILD, ring.inventory, *wish(commits[0]), witness=lambda: ring.everywhere(STATE)
    )
    assert run.hosts["spark1"].changed and run.hosts["spark3"].changed
    assert "+docker build" in run.output
    run, _again = assert_idempotent(BUILD, ring.inventory, *wish(commits[0]))
    assert len(set(ids(ring).values())) == 1
    assert answers(ring) == {"first"}
    # built on one node only, and sent over the fabric
    logs = ring.everywhere("ls /var/log/sparkfleet")
    assert "image-build.log" in logs["spark1"] and "image-build.log" not in logs["spark2"]
    said = ring.root("spark1", "cat /var/log/sparkfleet/image-send.log")
    assert said.startswith("sending to 10.20.") and "to 3" in said
    traces = ring.everywhere("ls -A /run/sparkfleet; systemctl list-units -q 'sparkfleet-image-*'")
    assert set(traces.values()) == {""}


def test_another_commit_with_other_arguments(ring: LabUnderTest, commits: list[str]) -> None:
    build(ring, second(commits)).assert_ok()
    assert answers(ring) == {"second"}
    flavours = ring.everywhere(f"docker run --rm --entrypoint cat {REFERENCE} /flavour")
    assert set(flavours.values()) == {"spicy $HOME 100%"}
    # whoever is to build next time has it built already
    other = second(commits, sglang_image_builder="spark3")
    build(ring, other).assert_ok().assert_unchanged()


def test_a_rank_that_differs_is_named_and_put_right(ring: LabUnderTest, commits: list[str]) -> None:
    # labels alone are no proof: what is made here has the label of the build, too
    other = f"printf 'FROM keep:1\\nENV OTHER=1\\n' | docker build -q -t {REFERENCE} -"
    ring.root("spark3", f"docker tag {REFERENCE} keep:1; docker rmi {REFERENCE}; {other}")
    ring.root("spark4", f"docker rmi {REFERENCE}")
    refused(
        build(ring, PRESENT),
        f"spark3 has another {REFERENCE} than spark1",
        f"{REFERENCE} is not on spark4",
    )
    run = build(ring, second(commits)).assert_ok()
    assert run.hosts["spark3"].changed and run.hosts["spark4"].changed
    assert not run.hosts["spark2"].changed
    assert len(set(ids(ring).values())) == 1


def test_a_serving_node_neither_builds_nor_receives(ring: LabUnderTest, commits: list[str]) -> None:
    before = ids(ring)
    for host in ("spark1", "spark2"):
        ring.root(host, SERVE)
    try:
        rank = "is serving (sparkfleet-rank@cell.service) and would have to"
        refused(build(ring, wish(commits[0])), f"spark1 {rank} build", f"spark2 {rank} receive")
        # what is right already is no reason to stop
        build(ring, second(commits)).assert_ok().assert_unchanged()
    finally:
        for host in ("spark1", "spark2"):
            ring.root(host, "systemctl stop sparkfleet-rank@cell.service")
    assert ids(ring) == before


def test_an_archive_is_loaded_and_sent(
    ring: LabUnderTest, commits: list[str], tmp_path: Path
) -> None:
    ring.root("spark1", f"docker save {REFERENCE} >/srv/engine.tar")
    archive = tmp_path / "engine.tar"
    archive.write_bytes(ring.get("spark1", "/srv/engine.tar"))
    before = ids(ring)
    refused(
        build(ring, loaded(foreign(archive, tmp_path / "foreign.tar", "arm64"))),
        f"{REFERENCE} is made for arm64, but spark1 is amd64",
        "but spark4 is amd64",
    )
    assert ids(ring) == before
    ring.everywhere(f"docker rmi -f {REFERENCE}")
    assert_check_changes_nothing(
        BUILD, ring.inventory, *loaded(archive), witness=lambda: ring.everywhere(STATE)
    )
    assert_idempotent(BUILD, ring.inventory, *loaded(archive))
    assert ids(ring) == before
    ring.everywhere(f"docker rmi -f {REFERENCE}")
    build(ring, loaded("/srv/engine.tar", sglang_image_archive_on="builder")).assert_ok()
    assert ids(ring) == before


# Docker trusts a registry without TLS only where it is told to, in a file of the user.
REGISTRY = """
mkdir -p /etc/docker
echo '{"insecure-registries": ["10.20.0.0/16"]}' >/etc/docker/daemon.json
systemctl reload docker || true
"""


def test_a_registry_is_used_when_given(
    ring: LabUnderTest, commits: list[str], tmp_path: Path
) -> None:
    ring.everywhere(REGISTRY)
    before = ids(ring)
    for host in ("spark2", "spark3", "spark4"):
        ring.root(host, f"docker rmi -f {REFERENCE}")
    down = second(commits, sglang_image_registry="10.20.0.11:5000/team")
    refused(build(ring, down), "image-push", "connection refused")
    packages.install(ring, tmp_path, {"docker-registry": ["spark1"]})
    # the distribution's asks for a password, which is the user's matter
    ring.root("spark1", "sed -i '/^auth:/,/path:/d' /etc/docker/registry/config.yml")
    ring.root("spark1", "systemctl start docker-registry")
    run = build(ring, down).assert_ok()
    assert any("Name it for the registry" in note.task for note in run.changed)
    assert ids(ring) == before
    assert set(ring.everywhere("docker images --quiet 10.20.0.11:5000/team/engine").values()) == {
        ""
    }
    build(ring, down).assert_ok().assert_unchanged()


def test_an_image_is_pulled_by_digest(ring: LabUnderTest) -> None:
    push = f"""docker tag {REFERENCE} 10.20.0.11:5000/team/pulled:1
    docker push 10.20.0.11:5000/team/pulled:1 | sed -n 's/.*digest: \\([^ ]*\\) .*/\\1/p'
    docker rmi 10.20.0.11:5000/team/pulled:1 >/dev/null"""
    digest = ring.root("spark1", push)
    pulled = {"spark_image": f"10.20.0.11:5000/team/pulled@{digest}", "sglang_image_source": "pull"}
    assert_check_changes_nothing(
        BUILD, ring.inventory, *tagged(pulled), witness=lambda: ring.everywhere(STATE)
    )
    assert_idempotent(BUILD, ring.inventory, *tagged(pulled))
    missing = {**pulled, "spark_image": f"10.20.0.11:5000/team/pulled@sha256:{'0' * 64}"}
    refused(build(ring, tagged(missing)), "manifest unknown")


def test_a_foreign_image_that_is_there_is_refused(ring: LabUnderTest, tmp_path: Path) -> None:
    archive = tmp_path / "engine.tar"
    archive.write_bytes(ring.get("spark1", "/srv/engine.tar"))
    other = foreign(archive, tmp_path / "foreign.tar", "s390x")
    ring.put("spark2", "/srv/foreign.tar", other.read_bytes())
    ring.root("spark2", f"docker tag {REFERENCE} keep:1; docker load -i /srv/foreign.tar")
    try:
        refused(
            build(ring, PRESENT),
            f"{REFERENCE} is made for s390x, but spark2 is amd64",
            f"spark2 has another {REFERENCE} than spark1",
        )
    finally:
        ring.root("spark2", f"docker tag keep:1 {REFERENCE}")


def test_a_compressed_archive_is_named(ring: LabUnderTest, tmp_path: Path) -> None:
    path = tmp_path / "engine.tar.gz"
    path.write_bytes(b"\x1f\x8b\x08 not a tar")
    refused(build(ring, loaded(path)), str(path), "or it is compressed")


def test_bad_wishes_are_refused_all_at_once(ring: LabUnderTest) -> None:
    refused(
        build(ring, wish("main", spark_image="Not A Name", sglang_image_dockerfile="../x")),
        "the image is 'Not A Name'",
        "sglang_image_commit is 'main', expected a whole commit",
        "sglang_image_dockerfile is '../x', expected a path inside",
    )


def test_docker_that_is_down_is_named(ring: LabUnderTest, commits: list[str]) -> None:
    ring.root("spark3", "systemctl stop docker.service docker.socket")
    try:
        refused(build(ring, wish(commits[0])), "spark3: the Docker daemon does not answer")
    finally:
        ring.root("spark3", "systemctl start docker.socket docker.service")


def test_a_build_that_fails_shows_why(ring: LabUnderTest, commits: list[str]) -> None:
    before = ids(ring)
    bad = wish(commits[0], sglang_image_dockerfile="docker/Missing")
    refused(build(ring, bad), "image-build on spark1 ended with", "docker/Missing")
    assert ids(ring) == before


def test_a_fabric_that_is_down_is_named(ring: LabUnderTest, commits: list[str]) -> None:
    before = ids(ring)
    elsewhere = wish(commits[0], spark_fabric_pool="10.66.0.0/16")
    refused(build(ring, elsewhere), "cannot be listened on", "Is the fabric configured")
    for host in ("spark2", "spark3", "spark4"):
        assert ids(ring)[host] == before[host]


def test_a_build_goes_on_without_the_controller(ring: LabUnderTest, commits: list[str]) -> None:
    """A run that breaks off leaves the work to the node; the next run watches the same work."""
    change = "echo 'RUN sleep 120 && echo slow >/slow' >>docker/Dockerfile"
    third = ring.root(
        "spark1", f"cd /srv/engine && {change} && git commit -qam slow && git rev-parse HEAD"
    )
    cut = build(ring, wish(third, sglang_image_timeout=1))
    refused(cut, "image-build on spark1 is not done after 1 s, and goes on")
    run = build(ring, wish(third)).assert_ok()
    assert [note.task for note in run.changed if "build" in note.task] == []
    assert "[spark1] image-build" in run.output  # progress
    assert ring.root("spark4", f"docker run --rm --entrypoint cat {REFERENCE} /slow") == "slow"


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
