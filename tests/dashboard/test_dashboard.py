# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The dashboard, drawn in Chromium with the components of Grafana, of what a Prometheus answers.

A Grafana server is in no archive that this installs from; its components are on npm, pinned in
package-lock.json. What the server would do itself, page.jsx and this do: fill in variables, ask,
name series and lay panels out. State timelines are the one kind of panel without a component.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
import shutil
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard import samples
from tests.support import browser
from tests.support.playbook import ROOT
from tests.support.ports import free_port

HERE = Path(__file__).parent
WORK = ROOT / ".cache/dashboard"
PICTURE = ROOT / ".cache/docs/dashboard.png"
DASHBOARD = json.loads((ROOT / "roles/monitoring/files/dashboard.json").read_text(encoding="utf-8"))
PANELS = DASHBOARD["panels"]
HEIGHT = 8 + 38 * max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in PANELS)
each_panel = pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])


@pytest.fixture(scope="session")
def page() -> Path:
    """Where the page is built; npm installs only when the lock file is another than before."""
    browser.need("npm", "nodejs", "npm")
    WORK.mkdir(parents=True, exist_ok=True)
    lock = (HERE / "package-lock.json").read_bytes()
    installed = WORK / "installed"
    for name in ("package.json", "package-lock.json", "page.jsx"):
        shutil.copy(HERE / name, WORK)
    if not installed.exists() or installed.read_bytes() != lock:
        npm = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(npm, cwd=WORK, check=True)
        installed.write_bytes(lock)
    subprocess.run(["npm", "run", "--silent", "build"], cwd=WORK, check=True)
    icons = WORK / "page/public/build/img"
    icons.mkdir(parents=True, exist_ok=True)
    link = icons / "icons"
    link.unlink(missing_ok=True)
    link.symlink_to(WORK / "node_modules/@grafana/ui/dist/public/img/icons")
    return WORK / "page"


def program(name: str) -> str:
    """Of Debian's package prometheus, which is not installed: it would start one here."""
    if found := shutil.which(name):
        return found
    unpacked = WORK / "prometheus"
    if not (unpacked / "usr/bin" / name).exists():
        if not shutil.which("apt-get"):
            pytest.fail(f"{name} is missing; next: install Prometheus")
        unpacked.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "-q", "download", "prometheus"], cwd=unpacked, check=True)
        (package,) = unpacked.glob("prometheus_*.deb")
        subprocess.run(["dpkg-deb", "--extract", str(package), str(unpacked)], check=True)
        package.unlink()
    return str(unpacked / "usr/bin" / name)


class Prometheus:
    """A running one, and what a data source asks it."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **what: str) -> Any:
        query = urllib.parse.urlencode(what)
        with urllib.request.urlopen(f"{self.address}{path}?{query}", timeout=20) as answer:
            return json.load(answer)["data"]

    def over_time(self, query: str) -> list[dict[str, Any]]:
        span = {"start": str(samples.FROM), "end": str(samples.TO), "step": str(samples.STEP)}
        found: list[dict[str, Any]] = self.ask("/api/v1/query_range", query=query, **span)["result"]
        return found


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    told, data, config = folder / "told", folder / "data", folder / "prometheus.yml"
    told.write_text(samples.text(), encoding="utf-8")
    config.write_text("{}\n")
    blocks = [
        program("promtool"),
        "tsdb",
        "create-blocks-from",
        "openmetrics",
        str(told),
        str(data),
    ]
    subprocess.run(blocks, check=True, stdout=subprocess.DEVNULL)
    port = free_port()
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(
            [program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={data}"]
            + ["--storage.tsdb.retention.time=100y", f"--web.listen-address=127.0.0.1:{port}"],
            stderr=log,
        )
        try:
            until = time.monotonic() + 60
            while True:
                with contextlib.suppress(OSError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5)
                    break
                assert running.poll() is None and time.monotonic() < until, log.name
                time.sleep(0.2)
            yield Prometheus(port)
        finally:
            running.terminate()
            running.wait(20)


@pytest.fixture(scope="session")
def variables(prometheus: Prometheus) -> dict[str, str]:
    """The variables of the dashboard with All chosen, as Grafana writes them into a query."""
    filled: dict[str, str] = {}
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            wanted = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            assert wanted
            match = {"match[]": put_in(wanted[1], filled)}
            values = prometheus.ask(f"/api/v1/label/{wanted[2]}/values", **match)
            filled[variable["name"]] = f"({'|'.join(values)})"
    return filled


def put_in(query: str, filled: dict[str, str]) -> str:
    return re.sub(r"\$(\w+)", lambda found: filled[found[1]], query)


@pytest.fixture(scope="session")
def answers(prometheus: Prometheus, variables: dict[str, str]) -> dict[int, dict[str, Any]]:
    return {
        panel["id"]: {
            target["refId"]: prometheus.over_time(put_in(target["expr"], variables))
            for target in panel.get("targets", [])
        }
        for panel in PANELS
    }


@pytest.fixture(scope="session")
def shown(page: Path, answers: dict[int, dict[str, Any]]) -> tuple[dict[int, Any], str]:
    """What the page reports of each panel, and what it wrote to the console."""
    given = {
        "dashboard": DASHBOARD,
        "from": samples.FROM * 1000,
        "to": samples.TO * 1000,
        "answers": answers,
    }
    told = json.dumps(given).replace("<", r"\u003c")
    (page / "index.html").write_text(
        "<!doctype html><meta charset=utf-8><title>Dashboard</title>"
        "<link rel=icon href=data:,><link rel=stylesheet href=page.css><div id=root></div>"
        f"<script>window.given = {told}</script>"
        "<script src=page.js></script>",
        encoding="utf-8",
    )

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_what: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(page)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    PICTURE.unlink(missing_ok=True)
    try:
        seen = browser.look(
            f"http://127.0.0.1:{server.server_address[1]}/",
            f"--window-size=1448,{HEIGHT}",
            "--virtual-time-budget=20000",
            "--enable-logging=stderr",
            "--dump-dom",
            f"--screenshot={PICTURE}",
            network="127.0.0.1",
        )
    finally:
        server.shutdown()
        server.server_close()
    console = "\n".join(line for line in seen.stderr.splitlines() if "CONSOLE" in line)
    report = re.search(r'<script id="report"[^>]*>(.*?)</script>', seen.stdout, re.DOTALL)
    assert report, console + seen.stderr
    panels = json.loads(html.unescape(report[1]))
    return {panel["id"]: panel for panel in panels}, console


@each_panel
def test_every_query_has_an_answer(answers, panel):
    for target in panel.get("targets", []):
        assert answers[panel["id"]][target["refId"]], target["expr"]


@each_panel
def test_a_panel_is_drawn(shown, answers, panel):
    drawn = shown[0][panel["id"]]
    # A browser tells capitals that style sheets make.
    assert drawn["text"].lower().startswith(panel["title"].lower())
    assert "No data" not in drawn["text"]
    if panel["type"] == "row":
        return
    assert drawn["canvases"] and min(drawn["canvases"]) > 50, "a canvas is blank"
    if panel["type"] == "timeseries":
        shown_names = drawn["text"].splitlines()
        for target in panel["targets"]:
            for series in answers[panel["id"]][target["refId"]]:
                name = target["legendFormat"]
                for label, value in series["metric"].items():
                    name = name.replace(f"{{{{{label}}}}}", value)
                assert shown_names.count(name) == 1, f"{name} is not once in the legend"


def test_the_console_has_no_error(shown):
    assert shown[1] == ""


def test_there_is_a_picture(shown):
    assert PICTURE.stat().st_size > 100_000
