# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who is behind a router, how its service changes, and how a cell leaves its rotation."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import (
    _router_node,
    _router_run,
    _router_settings,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._router_node import (
    Cells,
    RouterError,
    Service,
)

from tests.support import openai_server

GROUPS = {"cell_a": ["s1", "s2"], "cell_b": ["s3", "s4"], "spark_routers": ["s1"]}
HOSTS: dict[str, dict[str, Any]] = {
    "s1": {"ansible_host": "192.0.2.11", "spark_group": "cell_a"},
    "s3": {"ansible_host": "2001:db8::3", "spark_group": "cell_b", "spark_api_port": "8001"},
}


def plan(cells: Sequence[str] = ("cell_a", "cell_b"), **changes: Any) -> dict[str, Any]:
    groups = {**GROUPS, **changes.pop("groups", {})}
    hosts = {**HOSTS, **changes.pop("hosts", {})}
    return _router_settings.router_plan(cells, groups, hosts, 18001)


# --- the plan ------------------------------------------------------------------------------------


def test_cells_have_a_port_and_the_address_of_their_entry():
    assert plan() == {
        "cells": [
            {"name": "cell_a", "port": 18001, "url": "http://192.0.2.11:8000"},
            {"name": "cell_b", "port": 18002, "url": "http://[2001:db8::3]:8001"},
        ],
        "heads": {"cell_a": "s1", "cell_b": "s3"},
        "problems": [],
    }
    given = plan(hosts={"s1": {"ansible_host": "a.example", "entry_tls": "given"}})
    assert given["cells"][0]["url"] == "https://a.example:8000"
    assert list(plan(hosts={"s1": {"entry_open": True}})["heads"]) == ["cell_b"]


@pytest.mark.parametrize(
    ("cells", "changes", "told"),
    [
        ([], {}, "router_cells names no cell"),
        (["cell_a", "cell_x"], {}, "the inventory has no group cell_x with hosts"),
        (["cell_a", "cell_a"], {}, "router_cells names cell_a more than once"),
        (["cell_a"], {"groups": {"spark_routers": []}}, "the group spark_routers has no host"),
        (["cell_a"], {"groups": {"spark_routers": ["s1", "s2"]}}, "spark_routers has s1, s2"),
        (
            ["cell_a", "cell_b"],
            {"groups": {"cell_b": ["s1", "s4"]}},
            "s1 is the head of cell_a and of cell_b",
        ),
        (["cell_a"], {"hosts": {"s1": {"spark_group": "x"}}}, "s1: spark_group is 'x'"),
        (
            ["cell_a"],
            {"hosts": {"s1": {"entry_tls": "self-signed"}}},
            "s1: entry_tls is self-signed, which nobody can verify",
        ),
    ],
)
def test_what_cannot_be_a_router_is_told(cells, changes, told):
    assert any(told in text for text in plan(cells, **changes)["problems"])


# --- settings ------------------------------------------------------------------------------------

PARAMS: dict[str, Any] = {
    "version": "0.3.2",
    "port": 8889,
    "cells": {"cell_a": 18001, "cell_b": 18002},
    "policy": "round_robin",
    "metrics_address": "127.0.0.1",
    "metrics_port": 29000,
    "request_timeout": 3600,
    "body_mib": 256,
    "stop_grace": 600,
    "health_interval": 5,
    "health_timeout": 5,
    "circuit_breaker": False,
}


def test_the_router_waits_for_ever_and_counts_no_client_s_mistake():
    found = _router_settings.arguments(PARAMS)
    assert found["worker_urls"] == ["http://127.0.0.1:18001", "http://127.0.0.1:18002"]
    assert found["worker_startup_timeout_secs"] > 365 * 86400
    assert found["disable_circuit_breaker"] is True
    assert (found["host"], found["max_payload_size"]) == ("127.0.0.1", 256 * 2**20)
    assert "api_key" not in found


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"port": 0}, "port is 0, expected 1 to 65535"),
        ({"stop_grace": 7200}, "stop_grace is 7200, expected 1 to 3600"),
        ({"metrics_port": 18001}, "the ports of the router, its metrics and the cells are not"),
        ({"cells": {}}, "there is no cell behind the router"),
    ],
)
def test_settings_that_cannot_be(change, told):
    assert any(told in text for text in _router_settings.faults({**PARAMS, **change}))
    assert _router_settings.faults(PARAMS) == []


def test_only_cells_differ():
    text = _router_settings.settings_text(PARAMS)
    less = _router_settings.settings_text({**PARAMS, "cells": {"cell_b": 18002}})
    assert _router_settings.only_cells_differ(text, less)
    other = _router_settings.settings_text({**PARAMS, "policy": "random"})
    assert not _router_settings.only_cells_differ(text, other)
    for broken in ("", "{", "[]", '{"router": {}}', '{"router": 3}'):
        assert not _router_settings.only_cells_differ(broken, text)


def test_the_program_reads_its_arguments_or_says_what_to_do(tmp_path: Path):
    path = tmp_path / "settings.json"
    path.write_text(_router_settings.settings_text(PARAMS))
    assert _router_run.load(str(path)) == _router_settings.arguments(PARAMS)
    path.write_text("[]")
    with pytest.raises(ValueError, match="run the playbook router again"):
        _router_run.load(str(path))


# --- the rotation --------------------------------------------------------------------------------


class FakeRouter(ThreadingHTTPServer):
    """The four requests to SGLang's router that are used; what it does with them was measured."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.workers: dict[str, dict[str, Any]] = {}
        self.stubborn = False
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Answer(BaseHTTPRequestHandler):
    server: FakeRouter

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""

    def _send(self, status: int, document: Any) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        self._send(200, {"workers": list(self.server.workers.values())})

    def do_POST(self) -> None:
        url = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["url"]
        self.server.workers[url] = {"id": f"id-{url[-5:]}", "url": url, "is_healthy": True}
        self._send(202, {})

    def do_DELETE(self) -> None:
        wanted = self.path.rpartition("/")[2]
        if not self.server.stubborn:
            kept = {u: w for u, w in self.server.workers.items() if w["id"] != wanted}
            self.server.workers = kept
        self._send(202, {})


class Rotation:
    """A router of two cells, and how many requests `ss` says that run on each."""

    def __init__(self, root: Path) -> None:
        self.router = FakeRouter()
        self.running = {18001: 0, 18002: 0}
        port = self.router.server_address[1]
        settings = {"cells": PARAMS["cells"], "router": {"port": port}}
        path = root / _router_run.SETTINGS.lstrip("/")
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(settings))
        self.cells = Cells(self._run, _router_node.read_settings(str(root)), str(root))
        for name in self.cells.names:
            self.cells.api.add(self.cells.url(name))

    def _run(self, argv: Sequence[str]) -> Command:
        assert argv[0] == "ss"
        port = int(argv[-1].rpartition(":")[2])
        return Command(0, f"0 0 127.0.0.1:{port} 127.0.0.1:40000\n" * self.running[port], "")


@pytest.fixture
def rotation(tmp_path: Path):
    made = Rotation(tmp_path)
    yield made
    made.router.shutdown()
    made.router.server_close()


def test_a_cell_leaves_the_rotation_and_comes_back(rotation):
    cells = rotation.cells
    assert cells.drain("cell_a", 1, check=True) and not cells.drained("cell_a")
    assert cells.drain("cell_a", 1)
    assert list(cells.api.workers()) == [cells.url("cell_b")] and cells.drained("cell_a")
    assert not cells.drain("cell_a", 1)
    assert cells.restore("cell_a", 1, check=True) and cells.drained("cell_a")
    assert cells.restore("cell_a", 1)
    assert len(cells.api.workers()) == 2 and not cells.drained("cell_a")
    assert not cells.restore("cell_a", 1)


def test_requests_that_do_not_end_keep_a_cell_in_rotation(rotation):
    rotation.running[18001] = 2
    with pytest.raises(RouterError, match=r"2 requests still ran on cell_a after 0.3 s"):
        rotation.cells.drain("cell_a", 0.3)
    assert len(rotation.cells.api.workers()) == 2 and not rotation.cells.drained("cell_a")


def test_requests_that_run_are_waited_for(rotation):
    rotation.running[18001] = 1
    threading.Timer(0.5, rotation.running.update, [{18001: 0}]).start()
    assert rotation.cells.drain("cell_a", 10)


def test_the_last_cell_is_never_drained(rotation):
    rotation.cells.drain("cell_a", 1)
    with pytest.raises(RouterError, match="no cell but cell_b gets requests"):
        rotation.cells.drain("cell_b", 1)
    rotation.cells.restore("cell_a", 1)
    rotation.router.workers[rotation.cells.url("cell_a")]["is_healthy"] = False
    with pytest.raises(RouterError, match="no cell but cell_b gets requests"):
        rotation.cells.drain("cell_b", 1)
    assert len(rotation.cells.api.workers()) == 2
    rotation.router.workers[rotation.cells.url("cell_b")]["is_healthy"] = False
    assert rotation.cells.drain("cell_b", 1)  # serves nobody, so there is nothing to lose
    with pytest.raises(RouterError, match=r"cell_a is not healthy after 0.2 s"):
        rotation.cells.restore("cell_a", 0.2)


def test_a_router_that_is_gone_is_named(rotation):
    rotation.router.shutdown()
    rotation.router.server_close()
    with pytest.raises(RouterError, match=r"the router does not answer .* journalctl"):
        rotation.cells.drain("cell_a", 1)


def test_without_settings_the_playbook_is_named(tmp_path: Path):
    with pytest.raises(RouterError, match="run the playbook router"):
        _router_node.read_settings(str(tmp_path))


# --- the verdict ---------------------------------------------------------------------------------


def cell(name: str, healthy: bool = True, drained: bool = False, reason: str = "") -> Any:
    return {"cell": name, "healthy": healthy, "drained": drained, "requests": 0, "reason": reason}


@pytest.mark.parametrize(
    ("cells", "problems", "warnings"),
    [
        ([cell("a"), cell("b")], [], []),
        ([cell("a"), cell("b", healthy=False)], [], ["b does not answer yet"]),
        ([cell("a"), cell("b", healthy=False, drained=True)], [], ["b is drained"]),
        ([cell("a"), cell("b", reason="status 401")], ["b is healthy and answers no"], []),
        ([cell("a", healthy=False)], ["no cell answers"], ["a does not answer yet"]),
    ],
)
def test_one_dead_cell_is_told_and_none_that_answers_is_refused(cells, problems, warnings):
    found_problems, found_warnings = _router_node.judge(cells)
    assert len(found_problems) == len(problems) and len(found_warnings) == len(warnings)
    for found, told in zip(found_problems + found_warnings, problems + warnings, strict=True):
        assert told in found


# --- the service ---------------------------------------------------------------------------------


class Node:
    """A node of files, with a systemd that says whether the unit is active."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.active = False
        self.ranks = ""
        self.said: list[str] = []
        self.service = Service(self._run, str(root))

    def _run(self, argv: Sequence[str]) -> Command:
        self.said.append(" ".join(argv))
        if "list-units" in argv:
            return Command(0, self.ranks, "")
        known = "loaded" if self.place(_router_settings.UNIT).exists() else "not-found"
        active = "active" if self.active else "inactive"
        text = f"Id={_router_settings.UNIT_NAME}\nLoadState={known}\nActiveState={active}\n"
        return Command(0, text + "UnitFileState=\n", "")

    def place(self, path: str) -> Path:
        return self.root / path.lstrip("/")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def running(node: Node) -> None:
    """As after a first run."""
    for path, (mode, text) in node.service._files(PARAMS).items():
        node.place(path).parent.mkdir(parents=True, exist_ok=True)
        node.place(path).write_text(text)
        node.place(path).chmod(mode)
    node.place(_router_settings.PROGRAMS).mkdir()
    node.place(_router_settings.CURRENT).symlink_to(f"{_router_settings.PROGRAMS}/0.3.2")
    node.place(_router_settings.WANTED).parent.mkdir()
    node.place(_router_settings.WANTED).symlink_to(_router_settings.UNIT)
    node.active = True


def test_a_bare_node_gets_everything_and_a_running_one_nothing(node):
    assert node.service.plan(PARAMS) == [
        "write /usr/local/lib/sparkfleet/router.py",
        "write /etc/sparkfleet/router/settings.json",
        "write /etc/systemd/system/sparkfleet-router.service",
        "use version 0.3.2",
        "systemctl --root=/ enable sparkfleet-router.service",
        "systemctl start sparkfleet-router.service",
    ]
    running(node)
    assert node.service.plan(PARAMS) == []


@pytest.mark.parametrize(
    ("change", "last"),
    [
        ({"cells": {"cell_a": 18001}}, "tell the router its cells"),
        ({"policy": "random"}, "systemctl restart sparkfleet-router.service"),
        ({"version": "0.4.0"}, "systemctl restart sparkfleet-router.service"),
    ],
)
def test_a_running_router_is_told_of_cells_and_started_anew_for_the_rest(node, change, last):
    running(node)
    assert node.service.plan({**PARAMS, **change})[-1] == last


def test_a_changed_unit_waits_for_the_ranks(node):
    running(node)
    node.place(_router_settings.UNIT).write_text("[Service]\n")
    node.ranks = "sparkfleet-rank@cell_a.service loaded active running x\n"
    with pytest.raises(RouterError, match=r"sparkfleet-rank@cell_a.service serves. Stop the ranks"):
        node.service.apply(PARAMS, 0.1)
    assert node.place(_router_settings.UNIT).read_text() == "[Service]\n"


def test_a_router_that_does_not_answer_is_named(node):
    node.place(_router_settings.PROGRAMS).mkdir(parents=True)
    with pytest.raises(RouterError, match="the router does not answer on port 9 after"):
        node.service.apply({**PARAMS, "port": 9}, 0.1)
    assert node.place(_router_run.SETTINGS).stat().st_mode & 0o777 == 0o644


def test_what_is_missing_to_install_a_version(node):
    assert node.service.needs("0.3.2") == (["python3-venv", "python3-packaging"], True)
    for path in ("usr/lib/python3.12/ensurepip", "usr/lib/python3/dist-packages/packaging"):
        node.place(path).mkdir(parents=True)
        (node.place(path) / "__init__.py").touch()
    assert node.service.needs("0.3.2") == ([], True)
    record = f"{_router_settings.PROGRAMS}/0.3.2/lib/python3.12/site-packages"
    (node.place(record) / "sglang_router-0.3.2.dist-info").mkdir(parents=True)
    (node.place(record) / "sglang_router-0.3.2.dist-info/RECORD").touch()
    assert node.service.needs("0.3.2") == ([], False)
    assert node.service.needs("0.3.3")[1]


def test_it_goes_without_a_trace(node):
    running(node)
    would = node.service.absent(check=True)
    assert node.place(_router_settings.UNIT).exists()
    assert node.service.absent() == would
    node.active = False
    node.place(_router_settings.WANTED).unlink()  # systemd's part
    assert node.service.absent() == []


# --- a completion --------------------------------------------------------------------------------

KEY = "sk-CANARY-0123456789"


@pytest.fixture
def engine():
    made = openai_server.Server(key=KEY)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def test_a_cell_with_a_wrong_key_is_healthy_and_named(rotation, engine):
    port = engine.server_address[1]
    rotation.cells._ports, rotation.cells.names = {"cell_a": port}, ["cell_a"]
    rotation.running[port] = 0
    rotation.cells.api.add(rotation.cells.url("cell_a"))
    (found,) = rotation.cells.state(5)
    assert (found["healthy"], found["model"], found["reason"]) == (True, "", "status 401")
    problems, _warnings = _router_node.judge([found])
    assert "is its key right?" in problems[0] and KEY not in str(found)
    engine.key = ""  # as behind the port that adds it
    (found,) = rotation.cells.state(5)
    assert (found["model"], found["reason"]) == (openai_server.MODEL, "")
    engine.fault = "500"
    assert rotation.cells.state(5)[0]["reason"] == "status 500"
    engine.fault = "empty-choices"
    assert "no choices" in rotation.cells.state(5)[0]["reason"]
