# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Two cells behind one router, deployed beside each other and upgraded one after the other.

The router is SGLang's own. Engine, GPU and NCCL are stand-ins, and a cell has two ranks. The tests
build on each other, in the order in which an operator comes by.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.labs import ROOT, LabUnderTest
from tests.support.load import Load
from tests.support.playbook import Run, assert_check_changes_nothing, run_playbook

pytestmark = pytest.mark.containers

HEADS = {"cell_a": "spark1", "cell_b": "spark3"}
MODEL = "deepseek-v4.1-flash"
# All that the role router may touch.
STATE = """
ls -lAR --time-style=full-iso /etc/sparkfleet /var/lib/sparkfleet/router-entry 2>&1
ls -l /usr/local/lib/sparkfleet /usr/local/lib/sparkfleet/router 2>&1
systemctl show -p ActiveState -p MainPID sparkfleet-router sparkfleet-router-entry
"""


@dataclass
class Fleet:
    """The lab, and how its playbooks are run."""

    lab: LabUnderTest
    reports: Path

    def play(self, name: str, *args: str, cell: str = "", **variables: Any) -> Run:
        given = {"verify_report_path": str(self.reports), **variables}
        if cell:
            given["spark_group"] = cell
        return run_playbook(
            ROOT / f"playbooks/{name}.yml",
            self.lab.inventory,
            *self.words,
            *args,
            "-e",
            json.dumps(given),
            timeout=1500,
        )

    @property
    def words(self) -> list[str]:
        return ["-e", f"@{self.lab.lab.state}/standin.yml"]

    @property
    def url(self) -> str:
        return f"http://{self.lab.lab.host('spark1').address}:8080"

    @property
    def key(self) -> str:
        text = self.lab.root("spark1", "cat /etc/sparkfleet/router-keys")
        return text.splitlines()[0].partition(":")[2]

    def ask(self, *, key: str | None = None, **more: Any) -> tuple[int, str]:
        body = {"model": MODEL, "messages": [{"role": "user", "content": "What is 17 x 23?"}]}
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key or self.key}"}
        data = json.dumps({**body, **more}).encode()
        request = urllib.request.Request(f"{self.url}/v1/chat/completions", data, headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def answered(self, cell: str) -> int:
        """How many completions the cell's own entry has passed on."""
        script = (
            "journalctl -t sparkfleet_entry --no-pager -o cat | grep -c chat/completions || true"
        )
        return int(self.lab.root(HEADS[cell], script))

    def settings(self, cell: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(
            self.lab.root(HEADS[cell], f"cat /etc/sparkfleet/{cell}/rank.json")
        )
        return found

    def started(self, cell: str) -> str:
        unit = f"sparkfleet-rank@{cell}"
        return self.lab.root(HEADS[cell], f"systemctl show -p ActiveEnterTimestamp {unit}")

    def cells(self) -> dict[str, Any]:
        """As the router sees them."""
        script = (
            "python3 -c 'import urllib.request as u; "
            'print(u.urlopen("http://127.0.0.1:8889/workers").read().decode())\''
        )
        workers = json.loads(self.lab.root("spark1", script))["workers"]
        ports = {"http://127.0.0.1:18001": "cell_a", "http://127.0.0.1:18002": "cell_b"}
        return {ports[one["url"]]: one["is_healthy"] for one in workers}

    def load(self) -> Load:
        return Load(self.url, self.key, MODEL, clients=4)


@pytest.fixture(scope="module")
def fleet(make_lab: Callable[..., LabUnderTest], tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    lab = make_lab("fleet", "containers", "--bare", "--cells", "2")
    lab.cli("standin")
    return Fleet(lab, tmp_path_factory.mktemp("reports") / "verify")


# --- cells and their router ----------------------------------------------------------------------


def test_a_router_without_cells_says_what_comes_first(fleet: Fleet) -> None:
    run = fleet.play("router")
    assert run.returncode != 0
    told = " ".join(run.output.split())
    assert "spark1, spark3: found no /etc/sparkfleet/keys. Run the playbook site for" in told
    assert_check_changes_nothing(
        ROOT / "playbooks/router.yml",
        fleet.lab.inventory,
        *fleet.words,
        witness=lambda: fleet.lab.root("spark1", STATE),
    )


def test_cells_are_deployed_beside_each_other(fleet: Fleet) -> None:
    run = fleet.play("fleet").assert_ok()
    assert "cell_a | PLAY" in run.output and "cell_b | PLAY" in run.output
    for cell, head in HEADS.items():
        assert fleet.settings(cell)["cell"] == cell
        names = fleet.lab.root(head, "docker ps --format '{{.Names}}'")
        assert names == f"sparkfleet-{cell}-r0"
    fabric = fleet.lab.everywhere("ip -4 -o addr show enp1s0f0np0 | awk '{print $4}'")
    assert len(set(fabric.values())) == 4


def test_a_router_serves_through_both_and_stays(fleet: Fleet) -> None:
    fleet.play("router").assert_ok()
    fleet.play("router").assert_ok().assert_unchanged()
    fleet.play("router", router_state="checked").assert_ok().assert_unchanged()
    assert_check_changes_nothing(
        ROOT / "playbooks/router.yml",
        fleet.lab.inventory,
        *fleet.words,
        witness=lambda: fleet.lab.root("spark1", STATE),
    ).assert_unchanged()
    before = {cell: fleet.answered(cell) for cell in HEADS}
    for _number in range(4):
        status, text = fleet.ask()
        assert status == 200 and "391" in text
    assert {cell: fleet.answered(cell) - before[cell] for cell in HEADS} == {
        "cell_a": 2,
        "cell_b": 2,
    }
    fleet.play(
        "verify",
        cell="cell_a",
        verify_url="http://127.0.0.1:8080",
        verify_key_file="/etc/sparkfleet/router-keys",
        verify_model=MODEL,
        verify_checks=["load", "chat", "streaming", "auth", "closed"],
    ).assert_ok()
    assert fleet.ask(key="sk-nobody-0123456789")[0] == 401
    assert fleet.ask(key=fleet.lab.root("spark1", "cat /etc/sparkfleet/keys")[8:])[0] == 401


def test_no_key_is_seen_where_the_router_runs(fleet: Fleet) -> None:
    keys = [fleet.key]
    for head in HEADS.values():
        text = fleet.lab.root(head, "cat /etc/sparkfleet/keys")
        keys.append(text.splitlines()[0].partition(":")[2])
    seen = fleet.lab.root(
        "spark1",
        "for f in /proc/[0-9]*/cmdline /proc/[0-9]*/environ; do "
        '[ "$f" = "/proc/$$/cmdline" ] || tr "\\0" " " < $f; done 2>/dev/null; '
        "journalctl --no-pager -o cat; cat /etc/sparkfleet/router/* "
        "/etc/systemd/system/sparkfleet-router* /etc/sparkfleet/router-entry/nginx.conf",
    )
    assert len(set(keys)) == 3 and not [key for key in keys if key in seen]
    modes = fleet.lab.root(
        "spark1", "stat -c '%a %U' /etc/sparkfleet/router-keys /etc/sparkfleet/router-entry/c*"
    )
    assert set(modes.splitlines()) == {"600 root"}
    assert "LISTEN" in fleet.lab.root("spark1", "ss -Hltn 'sport = :8889' | grep 127.0.0.1:8889")


def test_bad_requests_of_one_client_close_no_cell(fleet: Fleet) -> None:
    before = sum(fleet.answered(cell) for cell in HEADS)
    # What the router cannot know and passes on: how much the model of a cell can read.
    prompt = [{"role": "user", "content": "word " * 70000}]
    for _number in range(24):
        status, text = fleet.ask(messages=prompt)
        assert status == 400 and "longer than the model's context length" in text, text
    assert sum(fleet.answered(cell) for cell in HEADS) == before + 24
    assert [fleet.ask()[0] for _number in range(4)] == [200] * 4


def test_a_cell_that_is_down_when_the_router_starts_comes_later(fleet: Fleet) -> None:
    fleet.play("stop", cell="cell_b").assert_ok()
    fleet.lab.root("spark1", "systemctl restart sparkfleet-router")
    run = fleet.play("router", router_ready_timeout=10).assert_ok().assert_unchanged()
    assert "cell_b does not answer yet" in run.output
    assert [fleet.ask()[0] for _number in range(4)] == [200] * 4
    fleet.play("serve", cell="cell_b").assert_ok()
    fleet.play("router").assert_ok().assert_unchanged()
    assert fleet.cells() == {"cell_a": True, "cell_b": True}


# --- upgrades ------------------------------------------------------------------------------------


def test_an_upgrade_of_both_loses_no_request(fleet: Fleet) -> None:
    wish = _settings(fleet, env={"DSV41_STATS_SECONDS": "61"})
    before = {cell: fleet.started(cell) for cell in HEADS}
    with fleet.load() as load:
        run = fleet.play("upgrade", **wish)
    print(f"two cells upgraded under load: {load}")
    run.assert_ok()
    assert load.completed == load.sent > 50 and not load.failed, load
    for cell in HEADS:
        assert fleet.settings(cell)["container"]["env"]["DSV41_STATS_SECONDS"] == "61"
        assert fleet.started(cell) != before[cell]
    assert fleet.cells() == {"cell_a": True, "cell_b": True}
    again = fleet.play("upgrade", **wish).assert_ok()
    assert not again.changed
    assert fleet.lab.root("spark1", "ls /var/lib/sparkfleet/lock/*.json 2>/dev/null || true") == ""


def test_what_never_becomes_ready_is_taken_back_and_goes_no_further(fleet: Fleet) -> None:
    before = {cell: fleet.started(cell) for cell in HEADS}
    hangs = {"env": {"SPARKFLEET_STANDIN_FAULT": "hang-in-rendezvous:1"}, "ready_timeout": 30}
    with fleet.load() as load:
        run = fleet.play("upgrade", **_settings(fleet, **hangs))
    print(f"an upgrade taken back under load: {load}")
    assert run.returncode != 0
    told = " ".join(run.output.split())
    assert "The upgrade of cell_a failed" in told
    assert "It serves again with its previous image and settings, in rotation" in told
    assert "not begun after that: cell_b" in told
    assert load.completed == load.sent and not load.failed, load
    assert fleet.settings("cell_a")["container"]["env"]["DSV41_STATS_SECONDS"] == "61"
    assert "SPARKFLEET_STANDIN_FAULT" not in fleet.settings("cell_a")["container"]["env"]
    assert fleet.started("cell_a") != before["cell_a"]
    assert fleet.started("cell_b") == before["cell_b"]
    assert fleet.cells() == {"cell_a": True, "cell_b": True}


def test_an_image_that_is_not_there_leaves_the_cell_in_rotation(fleet: Fleet) -> None:
    before = fleet.started("cell_a")
    run = fleet.play("upgrade", upgrade_image=False, spark_image="sparkfleet-standin:none")
    assert run.returncode != 0
    assert "found no image sparkfleet-standin:none" in " ".join(run.output.split())
    assert fleet.started("cell_a") == before
    assert fleet.cells() == {"cell_a": True, "cell_b": True}


# --- one operator at a time ----------------------------------------------------------------------


def test_two_operators_at_once(fleet: Fleet) -> None:
    """One upgrades, one deploys: whoever is second is told of the first, and can come after it."""
    wish = _settings(fleet, env={"DSV41_STATS_SECONDS": "62"})
    both = ("upgrade_cell", "site")
    with ThreadPoolExecutor(2) as pool:
        runs = {name: pool.submit(fleet.play, name, cell="cell_a", **wish) for name in both}
        first, second = sorted(both, key=lambda name: runs[name].result().returncode)
    runs[first].result().assert_ok()
    refused = runs[second].result()
    assert refused.returncode != 0 and not refused.changed
    told = " ".join(refused.output.split())
    assert "works on the cell cell_a since" in told and f"playbooks/{first}.yml" in told
    assert fleet.settings("cell_a")["container"]["env"]["DSV41_STATS_SECONDS"] == "62"
    locks = fleet.lab.everywhere("ls /var/lib/sparkfleet/lock 2>&1 || true")
    assert all("No such file" in text for text in locks.values()), locks
    fleet.play(second, cell="cell_a", **wish).assert_ok()


def test_the_router_is_removed(fleet: Fleet) -> None:
    fleet.play("router", router_state="absent").assert_ok()
    left = fleet.lab.root(
        "spark1",
        "ls -d /etc/sparkfleet/router* /usr/local/lib/sparkfleet/router* "
        "/etc/systemd/system/sparkfleet-router* 2>/dev/null || true",
    )
    assert left == "/etc/sparkfleet/router-keys"
    fleet.play("router", router_state="absent").assert_ok().assert_unchanged()


def _settings(fleet: Fleet, **more: Any) -> dict[str, Any]:
    """The settings that the lab has for its cells, and more."""
    given = yaml.safe_load((fleet.lab.lab.state / "standin.yml").read_text())["spark_settings"]
    return {"spark_settings": {**given, **more}}
