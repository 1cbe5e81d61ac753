# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A cell of a container lab is hurt in many ways and serves again without hands, or says why not.

The engine is a stand-in, whose head answers only while all of its ranks do. The addresses of the
plan are put up at boot by a unit of this test.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from lab.system import LabError
from tests.lab.test_serve import UNIT, Cell, make_cell
from tests.support.labs import ROOT, LabUnderTest
from tests.support.playbook import (
    Run,
    assert_check_changes_nothing,
    assert_idempotent,
    run_playbook,
)

pytestmark = pytest.mark.containers

WATCH = ROOT / "tests/lab/recovery.yml"
RECOVER = ROOT / "playbooks/recover.yml"
FOLDER = "/var/lib/sparkfleet/recovery"
TIMER = "sparkfleet-watch@sparks.timer"
# All that the role may touch, and whether ranks and watch are as they were.
STATE = f"""
cat /etc/sparkfleet/recovery/*.json /etc/sparkfleet/recovery/ssh/* 2>/dev/null
cat /root/.ssh/authorized_keys 2>/dev/null
ls /etc/ssh/sshd_config.d /etc/systemd/system | grep -v wants
sha256sum /usr/local/lib/sparkfleet/* 2>/dev/null
systemctl show -p ActiveState -p ActiveEnterTimestamp -p UnitFileState {UNIT} {TIMER}
"""
QUICK = {
    "recovery_automatic": True,
    "recovery_interval": 5,
    "recovery_attempts": 40,
    "recovery_window": 7200,
    "recovery_canary_timeout": 4,
    "recovery_canary_failures": 2,
    "sglang_gid_wait": 60,
}


class Watched(Cell):
    """A cell whose watch is asked how it sees it."""

    @property
    def head(self) -> str:
        return self.hosts[0]

    def apply(self, playbook: Any, *words: str, **more: Any) -> Run:
        return run_playbook(playbook, self.lab.inventory, *self.words(**more), *words)

    def state(self) -> dict[str, Any]:
        text = self.lab.root(self.head, f"cat {FOLDER}/sparks-state.json || true", check=False)
        found: dict[str, Any] = json.loads(text or "{}")
        return found

    def restarts(self) -> int:
        return int(self.state().get("restarts", 0))

    def until(self, state: str, seconds: float = 150, *, more: str = "") -> dict[str, Any]:
        """Wait until the watch says so, with `more` among its reasons."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = self.state()
            except (ValueError, LabError):
                found = {}
            told = " / ".join(found.get("reasons", ()))
            if found.get("state") == state and more in told:
                return found
            assert time.monotonic() < deadline, (state, more, found, self.journal())
            time.sleep(2)

    def journal(self) -> str:
        return self.lab.root(
            self.head, "journalctl -o cat -n 40 --no-pager -u 'sparkfleet-watch@sparks.service'"
        )

    def answers(self) -> bool:
        return bool(self.ask("What is 17 x 23?")["choices"][0]["message"]["content"] == "391")

    def hurt(self, action: Callable[[], object], seconds: float = 150) -> dict[str, Any]:
        """Do something to a cell that serves; it has to serve again by itself."""
        self.until("serving")
        before = self.state()
        action()
        deadline = time.monotonic() + seconds
        while True:
            now = self.state()
            again = now.get("state") == "serving" and now["since"] > before["since"]
            if again:
                break
            assert time.monotonic() < deadline, (now, self.journal())
            time.sleep(2)
        assert self.states() == {"active"}
        assert self.answers()
        return now


@pytest.fixture(scope="module")
def cell(
    make_lab: Callable[..., LabUnderTest], tmp_path_factory: pytest.TempPathFactory
) -> Watched:
    lab = make_lab("recovery", "containers", "--bare")
    made = make_cell(lab, tmp_path_factory.mktemp("recovery"), "ring")
    variables = yaml.safe_load(made.variables.read_text()) | QUICK
    made.variables.write_text(yaml.safe_dump(variables))
    keep_addresses(lab)
    cell = Watched(lab, made.variables)
    cell.serve().assert_ok()
    return cell


def keep_addresses(lab: LabUnderTest) -> None:
    """Have each host put up at boot what `address` gave it by hand."""
    for host in lab.lab.hosts:
        script = r"""
set -e
{
    echo 'sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.rp_filter=0'
    for path in /sys/class/net/en*; do
        dev=${path##*/}
        ip -4 -o addr show dev $dev | awk -v d=$dev '{print "ip address replace " $4 " dev " d}' \
            | grep ' 10\.20\.' >/tmp/own || continue
        echo "until [ -e /sys/class/net/$dev ]; do sleep 1; done"
        echo "ip link set $dev up mtu 9000"
        echo "sysctl -qw net.ipv4.conf.$dev.rp_filter=0"
        cat /tmp/own
    done
    ip -4 route show | awk '/ via 10\.20\./ {print "ip route replace " $1 " via " $3 " || true"}'
} >/usr/local/sbin/lab-addresses
cat >/etc/systemd/system/lab-addresses.service <<'EOF'
[Service]
Type=oneshot
ExecStart=/bin/sh /usr/local/sbin/lab-addresses
[Install]
WantedBy=multi-user.target
EOF
systemctl enable --quiet lab-addresses.service
cat /usr/local/sbin/lab-addresses
"""
        lab.root(host.name, script)


def test_the_watch_is_foreseen_installed_and_quiet(cell: Watched) -> None:
    run = assert_check_changes_nothing(
        WATCH, cell.lab.inventory, *cell.words(), witness=lambda: cell.lab.everywhere(STATE)
    )
    assert any("Install the watch" in note.task for note in run.changed)
    assert_idempotent(WATCH, cell.lab.inventory, *cell.words())
    assert cell.until("serving")["restarts"] == 0
    enabled = cell.units("UnitFileState", "ActiveState")
    assert {unit["UnitFileState"] for unit in enabled.values()} == {"disabled"}
    assert {unit["ActiveState"] for unit in enabled.values()} == {"active"}
    cell.serve().assert_ok().assert_unchanged()
    shown = cell.apply(RECOVER).assert_ok().assert_unchanged()
    assert "Cell sparks: serving" in shown.output


def test_the_key_of_the_head_does_nothing_else(cell: Watched) -> None:
    ssh = "ssh -F none -o BatchMode=yes -o StrictHostKeyChecking=yes"
    ssh += " -o UserKnownHostsFile=/etc/sparkfleet/recovery/ssh/known_hosts"
    ssh += " -i /etc/sparkfleet/recovery/ssh/id_ed25519"
    where = "$(cut -d, -f1 /etc/sparkfleet/recovery/ssh/known_hosts | head -1)"
    said = cell.lab.root(
        cell.head, f"{ssh} root@{where} id 2>&1; echo; {ssh} root@{where} 2>&1", check=False
    )
    assert said.count("refused: ") == 2, said
    assert "uid=" not in said


@pytest.mark.parametrize("rank", [2, 0])
def test_a_container_that_is_killed(cell: Watched, rank: int) -> None:
    """F01: a worker's, and the head's."""
    host = cell.hosts[rank]
    before = cell.restarts()
    now = cell.hurt(lambda: cell.lab.root(host, f"docker kill sparkfleet-sparks-r{rank}"))
    assert now["restarts"] == before + 1


@pytest.mark.parametrize("rank", [2, 0])
def test_a_rank_that_is_alive_and_silent(cell: Watched, rank: int) -> None:
    """E08: no process has ended, and the engine of the head still listens if it is a worker."""
    before = cell.restarts()
    stop = f"kill -STOP $(docker inspect -f '{{{{.State.Pid}}}}' sparkfleet-sparks-r{rank})"
    now = cell.hurt(lambda: cell.lab.root(cell.hosts[rank], stop))
    assert now["restarts"] == before + 1
    assert "no complete answer" in cell.journal()


def test_a_gid_that_moves_disturbs_nothing_and_is_right_at_the_next_start(cell: Watched) -> None:
    cell.until("serving")
    started = cell.units("ActiveEnterTimestampMonotonic")
    port = "rocep1s0f0"
    slot = (
        f"import json; print(json.load(open('/run/sparkfleet/sparks/rank.json'))['gids']['{port}'])"
    )
    before = cell.lab.root("spark2", f'python3 -c "{slot}"')
    cell.lab.cli("gid-shift", "spark2", port)
    time.sleep(15)
    assert cell.units("ActiveEnterTimestampMonotonic") == started
    assert cell.answers()
    shown = cell.apply(RECOVER).assert_ok().assert_unchanged()
    assert f"the GID of {port} moved from slot {before} to " in shown.output
    cell.apply(ROOT / "playbooks/restart.yml").assert_ok()
    assert cell.lab.root("spark2", f'python3 -c "{slot}"') != before
    assert cell.answers()


def test_a_link_that_is_unplugged_is_named_and_refused_until_it_is_back(cell: Watched) -> None:
    cell.until("serving")
    before = cell.restarts()
    cell.lab.cli("cable", "unplug", "spark2:0")
    try:
        cell.lab.root("spark4", "docker kill sparkfleet-sparks-r3")
        found = cell.until("blocked", more="cable goes to")
        assert "spark3 cage 1" in " ".join(found["reasons"])
        refused = cell.apply(RECOVER)
        assert refused.returncode != 0
        assert "cable goes to" in refused.output
        assert "Traceback" not in refused.output
        time.sleep(15)
        assert cell.restarts() == before
    finally:
        cell.lab.cli("cable", "plug", "spark2:0")
    cell.until("serving")
    assert cell.restarts() == before + 1
    assert cell.answers()


def test_a_shard_that_is_gone_and_a_disk_that_is_full_are_refused(cell: Watched) -> None:
    cell.until("serving")
    before = cell.restarts()
    shard = "/data/engram/engram-l1-r1of4.bin"
    # The logs of this rank go to a disk that a test may fill, until its node restarts.
    cell.lab.root("spark4", "mkdir -p /data/log; mount --bind /data/log /var/log/sparkfleet")
    try:
        cell.lab.root("spark2", f"mv {shard} {shard}.away")
        cell.lab.cli("fill", "spark4", "/data")
        cell.lab.root("spark3", "docker kill sparkfleet-sparks-r2")
        found = cell.until("blocked", more="found no Engram table")
        assert any("MiB free below /var/log/sparkfleet" in one for one in found["reasons"])
        time.sleep(12)
        assert cell.restarts() == before
    finally:
        cell.lab.cli("empty", "spark4", "/data")
        cell.lab.root("spark2", f"mv {shard}.away {shard}")
    cell.until("serving")
    assert cell.restarts() == before + 1
    assert cell.answers()


def test_a_node_that_loses_power_is_waited_for_and_the_cell_serves_again(cell: Watched) -> None:
    cell.until("serving")
    before = cell.restarts()
    cell.lab.cli("stop", "spark3")
    try:
        found = cell.until("waiting", more="spark3 cannot be reached")
        assert found["action"] == "wait"
        time.sleep(15)
        assert cell.restarts() == before
        waiting = cell.apply(RECOVER)
        assert waiting.returncode != 0
        assert "spark3 cannot be reached" in waiting.failed[-1].message, waiting.output
    finally:
        cell.lab.cli("start", "spark3")
    cell.until("serving")
    assert cell.restarts() == before + 1
    assert cell.answers()


def test_all_nodes_lose_power(cell: Watched) -> None:
    cell.until("serving")
    for host in cell.hosts:
        cell.lab.cli("stop", host)
    for host in reversed(cell.hosts):
        cell.lab.cli("start", host)
    deadline = time.monotonic() + 150
    while cell.states() != {"active"}:
        assert time.monotonic() < deadline, (cell.state(), cell.journal())
        time.sleep(2)
    cell.until("serving")
    assert cell.answers()
    times = cell.units("ActiveEnterTimestamp")
    assert set(times) == set(cell.hosts)


def test_a_cell_stopped_by_hand_stays_stopped(cell: Watched) -> None:
    cell.until("serving")
    cell.play("stop").assert_ok()
    cell.until("stopped")
    time.sleep(12)
    assert cell.states() == {"inactive"}
    shown = cell.apply(RECOVER).assert_ok().assert_unchanged()
    assert "recovery_start=true" in shown.output
    cell.apply(RECOVER, recovery_start=True).assert_ok()
    assert cell.answers()
    cell.until("serving")


def test_a_fault_that_stays_ends_at_the_bound(cell: Watched) -> None:
    """Never more often than allowed, neither by the watch nor by a person who does not ask."""
    cell.until("serving")
    settings = "/etc/sparkfleet/recovery/sparks.json"
    few = f'sed -i \'s/"attempts": 40/"attempts": 2/\' {settings}; rm {FOLDER}/sparks.json'
    cell.lab.root(cell.head, few)
    cell.until("serving")
    cell.fail("die-in-boot:1")
    try:
        cell.lab.root("spark2", "docker kill sparkfleet-sparks-r1")
        cell.until("blocked", 240, more="which is the bound")
        time.sleep(20)
        assert cell.restarts() == 2
        refused = cell.apply(RECOVER, recovery_attempts=2)
        assert refused.returncode != 0
        assert "recovery_forget=true" in refused.output
    finally:
        cell.fail("")
    cell.apply(RECOVER, recovery_attempts=2, recovery_forget=True).assert_ok()
    cell.until("serving")
    assert cell.restarts() == 3
    assert cell.answers()


def test_everything_is_removed_but_what_is_not_ours(cell: Watched) -> None:
    """Last in this file: after it there is no cell."""
    reset = ROOT / "playbooks/reset.yml"
    stranger = "docker create --name stranger sparkfleet-standin:lab true"
    cell.lab.everywhere(f"{stranger}; touch /etc/sparkfleet/router-keys")
    look = f"""{STATE} docker ps --all --format '{{{{.Names}}}}'
    find /data/checkpoint /data/engram /var/lib/sparkfleet/sglang -type f | sort | sha256sum"""
    refused = cell.apply(reset)
    assert refused.returncode != 0
    assert "-e reset_confirmed=true" in refused.output
    cell.lab.root(cell.head, f"systemctl stop {TIMER}")  # its state file is written all the time
    foreseen = assert_check_changes_nothing(
        reset, cell.lab.inventory, *cell.words(), witness=lambda: cell.lab.everywhere(look)
    )
    assert {note.task.rpartition(" : ")[2] for note in foreseen.changed} >= {
        "Remove the watch",
        "Remove the ranks",
        "Remove settings, programs, state and logs",
    }
    cell.apply(reset, reset_confirmed=True).assert_ok()
    left = cell.lab.everywhere(
        "find /etc/sparkfleet /usr/local/lib/sparkfleet /var/lib/sparkfleet /var/log/sparkfleet "
        "/etc/systemd/system/*sparkfleet* /etc/ssh/sshd_config.d/*sparkfleet* -not -type d; "
        "grep -c sparkfleet /root/.ssh/authorized_keys; docker ps --all --format '{{.Names}}'; "
        "ls /data/engram | wc -l; ls /data/checkpoint | grep -c safetensors; "
        "docker image inspect -f ok sparkfleet-standin:lab"
    )
    for host, text in left.items():
        count = [] if host == cell.head else ["0"]
        words = text.split()
        assert words[: 2 + len(count)] == ["/etc/sparkfleet/router-keys", *count, "stranger"], text
        assert int(words[-3]) >= 2, text  # tables
        assert int(words[-2]) > 0, text  # weights
        assert words[-1] == "ok", text
    more = {"reset_shards": True, "reset_weights": True}
    again = cell.apply(reset, reset_confirmed=True, **more).assert_ok()
    assert {note.task.rpartition(" : ")[2] for note in again.changed} == {
        "Remove the packed rows of this rank",
        "Remove the checkpoint",
    }
    gone = cell.lab.everywhere("ls /data/engram/*.bin /data/checkpoint 2>/dev/null || true")
    assert set(gone.values()) == {""}
