# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Cells of container labs serve through the stand-in engine, and say what is wrong when they don't.

The engine is a stand-in, and so are the GPU and the NCCL library. Locked memory cannot be unlimited
in a container, which the role is told to accept.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_plan import fabric_plan

from lab import checkpoint
from lab.standin import image
from tests.support import packed
from tests.support.labs import ROOT, LabUnderTest
from tests.support.playbook import (
    Run,
    assert_check_changes_nothing,
    assert_idempotent,
    run_playbook,
)

pytestmark = pytest.mark.containers

SERVE = ROOT / "playbooks/serve.yml"
TABLES = {1: 2003, 14: 2011}
UNIT = "sparkfleet-rank@sparks.service"
FAULT = "/var/lib/sparkfleet/sglang/sparks/state/standin-fault"
# All that the role may touch on a node.
STATE = f"""
sha256sum /etc/sparkfleet/*/* /etc/systemd/system/sparkfleet* 2>/dev/null
sha256sum /usr/local/lib/sparkfleet/*.py 2>/dev/null
systemctl show -p ActiveState -p ActiveEnterTimestamp -p UnitFileState {UNIT}
docker ps --all --no-trunc --format '{{{{.ID}}}} {{{{.Names}}}} {{{{.State}}}}'
"""
NCCL = "/usr/local/lib/sparkfleet/nccl/libnccl.so.2"


@dataclass
class Cell:
    """A lab whose hosts have all that their ranks need, and the variables to serve it with."""

    lab: LabUnderTest
    variables: Path

    @property
    def hosts(self) -> list[str]:
        return [host.name for host in self.lab.lab.hosts]

    def words(self, **more: Any) -> list[str]:
        return ["-e", f"@{self.variables}", "-e", json.dumps(more)]

    def settings(self, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(self.variables.read_text())["spark_settings"]
        return {**found, **more}

    def serve(self, **more: Any) -> Run:
        return run_playbook(SERVE, self.lab.inventory, *self.words(**more))

    def play(self, name: str, **more: Any) -> Run:
        playbook = ROOT / f"playbooks/{name}.yml"
        return run_playbook(playbook, self.lab.inventory, *self.words(**more))

    def units(self, *names: str) -> dict[str, dict[str, str]]:
        wanted = " ".join(f"-p {name}" for name in names)
        said = self.lab.everywhere(f"systemctl show {wanted} {UNIT}")
        return {
            host: dict(line.split("=", 1) for line in text.splitlines())
            for host, text in said.items()
        }

    def states(self) -> set[str]:
        return {unit["ActiveState"] for unit in self.units("ActiveState").values()}

    def fail(self, fault: str) -> None:
        self.lab.everywhere(f"mkdir -p $(dirname {FAULT}); echo '{fault}' > {FAULT}")

    def ask(self, text: str) -> dict[str, Any]:
        body = json.dumps({"messages": [{"role": "user", "content": text}]})
        script = f"""python3 - <<'EOF'
import urllib.request
request = urllib.request.Request("http://127.0.0.1:8888/v1/chat/completions", {body.encode()!r})
print(urllib.request.urlopen(request, timeout=30).read().decode())
EOF"""
        found: dict[str, Any] = json.loads(self.lab.root(self.hosts[0], script))
        return found


def make_cell(lab: LabUnderTest, folder: Path, topology: str) -> Cell:
    """Give every host checkpoint, tables, library, image, and the addresses of the plan."""
    address(lab, topology)  # first, since a Docker that finds forwarding switched off forbids it
    model = folder / "checkpoint"
    facts = checkpoint.make(model, rows=tuple(TABLES.values()))
    known = yaml.safe_load(checkpoint.FACTS.read_text())  # the profiles are made for this model
    facts |= {name: known[name] for name in ("repository", "served_name")}
    checkpoint.write_facts(folder / "model.yml", facts)
    hosts = lab.lab.hosts
    for rank, host in enumerate(hosts):
        tables = folder / f"engram{rank}"
        packed.write(tables, model, TABLES, rank, len(hosts))
        checkpoint.put(lab.lab, host, model)
        checkpoint.put(lab.lab, host, tables, "/data/engram")
    stand_in = f"mkdir -p $(dirname {NCCL}); echo 'STAND-IN NCCL_SWITCHLESS_RING_ONLY' > {NCCL}"
    lab.everywhere(stand_in)
    lab.cli("image")
    machine = lab.root(hosts[0].name, "docker version --format '{{.Server.Arch}}'")
    variables = {
        "spark_topology": topology,
        "spark_model": str(folder / "model.yml"),
        "spark_weights_mode": "local",
        "spark_settings": {
            "image": {"reference": image.REFERENCE, "architecture": machine},
            "ready_timeout": 240,
        },
        "sglang_accept_limits": True,
    }
    path = folder / "variables.yml"
    path.write_text(yaml.safe_dump(variables))
    return Cell(lab, path)


def address(lab: LabUnderTest, topology: str) -> None:
    """Give the ports what the plan says, by hand: the fabric's own tests take their time."""
    plan = fabric_plan([host.name for host in lab.lab.hosts], topology)
    for host, one in plan["hosts"].items():
        lines = ["echo net.ipv4.ip_forward=1 >/etc/sysctl.d/90-lab-forward.conf"]
        lines += ["sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0"]
        for port in one["ports"]:
            device = port["netdev"]
            names = {"arp_ignore": 1, "arp_announce": 2, "rp_filter": 0}
            lines += [f"sysctl -qw net.ipv4.conf.{device}.{n}={v}" for n, v in names.items()]
            lines.append(f"ip link set {device} up mtu {plan['fabric']['mtu']}")
            lines.append(f"ip address replace {port['address']}/{port['prefix']} dev {device}")
        lines += [f"ip route replace {route['to']} via {route['via']}" for route in one["routes"]]
        lab.root(host, "set -e\n" + "\n".join(lines))


@pytest.fixture(scope="module")
def ring(make_lab: Callable[..., LabUnderTest], tmp_path_factory: pytest.TempPathFactory) -> Cell:
    lab = make_lab("serve-ring", "containers", "--bare")
    return make_cell(lab, tmp_path_factory.mktemp("ring"), "ring")


def test_a_prepared_cell_is_only_looked_at_in_check_mode(ring: Cell) -> None:
    run = assert_check_changes_nothing(
        SERVE, ring.lab.inventory, *ring.words(), witness=lambda: ring.lab.everywhere(STATE)
    )
    assert "/etc/sparkfleet/sparks/rank.json" in run.output
    assert {note.task for note in run.changed} >= {
        "sparkfleet.cluster.sglang : Install the ranks",
        "sparkfleet.cluster.sglang : Start the head",
    }


def test_a_ring_serves_and_stays(ring: Cell) -> None:
    first, _second = assert_idempotent(SERVE, ring.lab.inventory, *ring.words())
    assert "rank 0" in first.output  # progress
    assert ring.states() == {"active"}
    assert ring.ask("What is 17 x 23?")["choices"][0]["message"]["content"] == "391"
    started = {
        host: int(unit["ActiveEnterTimestampMonotonic"])
        for host, unit in ring.units("ActiveEnterTimestampMonotonic").items()
    }
    assert max(started, key=lambda host: started[host]) == ring.hosts[0]  # the head last
    inspected = json.loads(ring.lab.root("spark2", "docker inspect sparkfleet-sparks-r1"))[0]
    assert inspected["HostConfig"]["Privileged"] is False
    assert inspected["HostConfig"]["OomScoreAdj"] == 800
    assert inspected["HostConfig"]["RestartPolicy"]["Name"] == "no"
    limits = {one["Name"]: one["Hard"] for one in inspected["HostConfig"]["Ulimits"]}
    assert limits == {"memlock": -1, "stack": 67108864, "core": 0}
    assert inspected["Config"]["Labels"]["sparkfleet.gpu"] == "runtime"  # found by trying
    logs = ring.lab.everywhere("cat /var/log/sparkfleet/sparks-rank.log")
    assert all("contract engram: ok: layer 14" in text for text in logs.values())
    assert all("refused" not in text for text in logs.values())
    shown = ring.play("logs", sglang_log_lines=5).assert_ok().assert_unchanged()
    assert "Dummy health check server started" in shown.output


def test_a_serving_cell_is_left_alone(ring: Cell) -> None:
    """E03, F05: nothing is reloaded, nothing restarted, and check mode says so too."""
    before = ring.lab.everywhere(f"{STATE} journalctl -b -o cat _PID=1 | grep -c Reloading || true")
    ring.serve().assert_ok().assert_unchanged()
    assert_check_changes_nothing(
        SERVE, ring.lab.inventory, *ring.words(), witness=lambda: ring.lab.everywhere(STATE)
    ).assert_unchanged()
    ring.serve(sglang_state="checked").assert_ok().assert_unchanged()
    after = ring.lab.everywhere(f"{STATE} journalctl -b -o cat _PID=1 | grep -c Reloading || true")
    assert after == before


def test_a_changed_setting_starts_the_cell_again_in_order(ring: Cell) -> None:
    changed = {"spark_settings": ring.settings(max_total_tokens=4000000)}
    run = assert_check_changes_nothing(
        SERVE,
        ring.lab.inventory,
        *ring.words(**changed),
        witness=lambda: ring.lab.everywhere(STATE),
    )
    assert "+" in run.output
    assert "4000000" in run.output
    assert {note.task for note in run.changed} >= {"sparkfleet.cluster.sglang : Stop the head"}
    ring.serve(**changed).assert_ok()
    times = ring.units("ActiveExitTimestampMonotonic", "ActiveEnterTimestampMonotonic")
    left = {host: int(unit["ActiveExitTimestampMonotonic"]) for host, unit in times.items()}
    came = {host: int(unit["ActiveEnterTimestampMonotonic"]) for host, unit in times.items()}
    head, *workers = ring.hosts
    assert all(left[head] <= left[host] for host in workers)
    assert all(max(left.values()) < came[host] < came[head] for host in workers)
    ring.serve(**changed).assert_ok().assert_unchanged()


def test_a_daemon_that_restarts_with_live_restore_takes_no_rank_with_it(ring: Cell) -> None:
    """F03."""
    script = """
    python3 - <<'EOF'
import json
settings = json.load(open("/etc/docker/daemon.json"))
json.dump({**settings, "live-restore": True}, open("/etc/docker/daemon.json", "w"))
EOF
    systemctl reload docker; sleep 2; docker info --format '{{.LiveRestoreEnabled}}'
    """
    assert ring.lab.root("spark2", script).endswith("true")
    before = ring.lab.root("spark2", STATE)
    ring.lab.root("spark2", "systemctl restart docker; sleep 5")
    assert ring.lab.root("spark2", STATE) == before
    assert ring.ask("19 + 23")["choices"][0]["message"]["content"] == "42"


def test_a_rank_that_died_brings_the_whole_cell_up_again(ring: Cell) -> None:
    """F01: never one rank alone, and never a unit that is active without its container."""
    ring.serve().assert_ok()
    gone = f"until systemctl is-failed -q {UNIT}; do sleep 1; done"
    ring.lab.root("spark3", f"docker kill sparkfleet-sparks-r2; timeout 90 sh -c '{gone}'")
    unit = ring.units("ActiveState", "ExecMainStatus")["spark3"]
    assert unit == {"ActiveState": "failed", "ExecMainStatus": "137"}
    assert ring.lab.root("spark3", "docker ps --all --quiet") == ""
    checked = ring.serve(sglang_state="checked")
    assert checked.returncode != 0
    assert "rank 2 (spark3) ended" in checked.output
    ring.serve().assert_ok()
    assert ring.states() == {"active"}


def test_a_cell_is_stopped_with_a_plan_that_is_wrong(ring: Cell) -> None:
    ring.play("stop", spark_settings={"no_such_setting": 1}).assert_ok()
    assert ring.states() == {"inactive"}
    assert set(ring.lab.everywhere("docker ps --all --quiet").values()) == {""}
    ring.play("stop").assert_ok().assert_unchanged()
    refused = ring.serve(spark_settings=ring.settings(max_total_token=1))
    assert refused.returncode != 0
    assert "max_total_tokens" in refused.output  # the nearest name
    assert ring.states() == {"inactive"}


def test_all_that_is_missing_is_told_before_anything_starts(ring: Cell) -> None:
    """Every host and every reason in one run."""
    lab = ring.lab
    ring.play("stop").assert_ok()
    try:
        lab.root("spark1", "systemd-run --unit taken python3 -m http.server 20000; sleep 1")
        lab.root("spark2", "mv /data/engram/engram-l1-r1of4.bin /data/engram/away")
        lab.root("spark3", f"echo 'another NCCL_SWITCHLESS_RING_ONLY' > {NCCL}")
        lab.root("spark3", "truncate -s 0 /data/checkpoint/model-00048-of-00048.safetensors")
        lab.root("spark4", "docker create --name sparkfleet-sparks-r3 sparkfleet-standin:lab true")
        run = ring.serve()
        assert run.returncode != 0
        for words in (
            "spark1: found somebody listening on TCP port 20000",
            "spark2: found no Engram table /data/engram/engram-l1-r1of4.bin",
            "spark3: found /data/checkpoint/model-00048-of-00048.safetensors unreadable",
            "spark4: found a container called sparkfleet-sparks-r3 that is not of this cell",
            "NCCL library: found another one on spark3 than on spark1, spark2, spark4",
        ):
            assert words in run.output, words
        assert "Traceback" not in run.output
        assert ring.states() == {"inactive"}
    finally:
        lab.root("spark1", "systemctl stop taken")
        lab.root("spark2", "mv /data/engram/away /data/engram/engram-l1-r1of4.bin")
        lab.root("spark3", f"echo 'STAND-IN NCCL_SWITCHLESS_RING_ONLY' > {NCCL}")
        lab.root("spark4", "docker rm sparkfleet-sparks-r3")
        source = ring.variables.parent / "checkpoint"
        checkpoint.put(lab.lab, lab.lab.host("spark3"), source)


@pytest.mark.parametrize(
    ("fault", "told", "settings"),
    [
        ("die-in-boot:2", ["rank 2 (spark3) ended", "told to die in boot"], {}),
        ("killed:1", ["rank 1 (spark2) ended", "exit status 137"], {}),
        ("not-packed:1", ["rank 1 (spark2) printed", "packed=False", "Pack the tables"], {}),
        ("wrong-gid:3", ["rank 3 (spark4)", "invalid usage", "GID index or the HCA"], {}),
        ("tree-connect:0", ["rank 0 (spark1)", "unhandled system error", "ring patch"], {}),
        ("oom:0", ["rank 0 (spark1)", "CUDA out of memory", "Lower max_total_tokens"], {}),
        ("batch-sanity:0", ["rank 0 (spark1) printed", "CHECK FAILED"], {}),
        (
            "no-proofs:2",
            ["rank 2 (spark3) answers, but its log does not show: packed Engram tables"],
            {},
        ),
        (
            "never-answers:0",
            ["rank 0 (spark1) does not answer", "within 5 s"],
            {"sglang_answer_timeout": 5},
        ),
        (
            "hang-in-rendezvous:1",
            ["rank 1 (spark2) is not ready after 60 s", "with no connection to TCP port 20000"],
            {"ready_timeout": 60},
        ),
    ],
)
def test_a_boot_that_fails_names_rank_and_cause(
    ring: Cell, fault: str, told: list[str], settings: dict[str, Any]
) -> None:
    ring.fail(fault)
    more = dict(settings)
    timeout = more.pop("ready_timeout", None)
    if timeout:
        more["spark_settings"] = ring.settings(ready_timeout=timeout)
    try:
        run = ring.serve(**more)
    finally:
        ring.fail("")
    assert run.returncode != 0
    last = run.failed[-1].message  # what is told at the end, when all ranks are known
    for words in told:
        assert words in last, f"{words!r} is not in: {last}"
    assert "The cell sparks is stopped" in last
    assert not ring.states() & {"active", "activating"}
    assert set(ring.lab.everywhere("docker ps --all --quiet").values()) == {""}


def test_a_pool_that_is_clamped_is_told(ring: Cell) -> None:
    ring.fail("pool-clamped:0")
    try:
        run = ring.serve().assert_ok()
    finally:
        ring.fail("")
    assert "6000000 tokens of the 8000000 asked for" in " ".join(run.output.split())


def test_a_cell_is_removed(ring: Cell) -> None:
    ring.play("stop", sglang_state="absent").assert_ok()
    left = ring.lab.everywhere(
        "ls /etc/sparkfleet/sparks /etc/systemd/system/sparkfleet* "
        "/usr/local/lib/sparkfleet/rank.py 2>/dev/null; docker ps --all --quiet"
    )
    assert set(left.values()) == {""}
    assert "sparks-rank.log" in ring.lab.root("spark1", "ls /var/log/sparkfleet")
    ring.play("stop", sglang_state="absent").assert_ok().assert_unchanged()


@pytest.mark.parametrize(("topology", "hosts"), [("triangle", 3), ("switch", 4)])
def test_other_topologies_serve(
    make_lab: Callable[..., LabUnderTest], tmp_path: Path, topology: str, hosts: int
) -> None:
    options = ("--bare", "--cabling", topology, "--hosts", str(hosts))
    lab = make_lab(f"serve-{topology[:3]}", "containers", *options)
    cell = make_cell(lab, tmp_path, topology)
    assert_idempotent(SERVE, lab.inventory, *cell.words())
    assert cell.ask("What is 17 x 23?")["choices"][0]["message"]["content"] == "391"
    lab.cli("down")
