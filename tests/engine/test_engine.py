# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real SGLang as four tensor-parallel ranks of a container lab, behind the real entry.

Real are launcher, rendezvous, Gloo between the ranks, scheduler, API, usage and metrics. The model
is a toy with random weights on CPUs: what it says is noise, so whatever needs understanding must be
reported as not applicable. The tests depend on each other's order: a boot takes minutes.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
import yaml

from lab.sglang import model
from tests.support.labs import ROOT, LabUnderTest, lab_name
from tests.support.playbook import Run, run_playbook

pytestmark = pytest.mark.engine

UNIT = "sparkfleet-rank@sparks.service"
KEY = "sk-CANARY-engine-0123456789"
BOOT = 3000  # seconds a busy machine may take; two minutes are usual
VARIABLES = {
    "spark_profile": str(ROOT / "lab/sglang/profile.yml"),
    "spark_model": str(ROOT / "lab/sglang/model.yml"),
    "entry_keys": {"test": KEY},
    "entry_paths": ["/v1/", "/metrics"],
    "roce_fabric_measure": "never",
}
NEED_UNDERSTANDING = {"chat", "reasoning", "tools", "context", "structured", "vision", "speed"}


def play(lab: LabUnderTest, name: str | Path, *args: str) -> Run:
    playbook = ROOT / f"playbooks/{name}.yml" if isinstance(name, str) else name
    given = ("-e", f"@{ROOT}/lab/sglang/demo.yml", "-e", json.dumps(VARIABLES))
    return run_playbook(playbook, lab.inventory, *given, *args, timeout=BOOT)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabUnderTest]:
    made = LabUnderTest(lab_name("sglang"))
    try:
        made.cli("up", "--bare")
        made.cli("sglang")
        play(made, "fabric").assert_ok()
        entry = tmp_path_factory.mktemp("play") / "entry.yml"
        role = {"name": "Set up the entry", "hosts": "sparks", "gather_facts": False}
        entry.write_text(yaml.safe_dump([{**role, "roles": ["sparkfleet.cluster.entry"]}]))
        play(made, entry).assert_ok()
        yield made
    finally:
        made.cli("down", check=False)


@pytest.fixture(scope="module")
def serving(lab: LabUnderTest) -> LabUnderTest:
    play(lab, "serve").assert_ok()
    return lab


def url(lab: LabUnderTest, path: str = "") -> str:
    return f"http://{lab.lab.host('spark1').address}:8000{path}"


def client(lab: LabUnderTest) -> openai.OpenAI:
    return openai.OpenAI(base_url=url(lab, "/v1"), api_key=KEY, timeout=300)


def get(address: str, key: str | None = None) -> tuple[int, str]:
    request = urllib.request.Request(address)
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metric(text: str, name: str) -> float:
    """The sum of a metric over its labels."""
    found = re.findall(rf"^{re.escape(name)}(?:{{.*}})? (\S+)$", text, re.MULTILINE)
    assert found, f"no {name} in\n{text[:2000]}"
    return sum(float(value) for value in found)


def test_four_ranks_serve_and_a_second_run_changes_nothing(serving: LabUnderTest) -> None:
    started = serving.everywhere(f"systemctl show -p ActiveEnterTimestampMonotonic {UNIT}")
    play(serving, "serve").assert_ok().assert_unchanged()
    again = serving.everywhere(f"systemctl show -p ActiveEnterTimestampMonotonic {UNIT}")
    assert started == again
    # one rank on each host, and every one computes a quarter
    commands = serving.everywhere(
        "docker ps --format '{{.ID}}' | xargs docker inspect -f '{{json .Args}}'"
    )
    ranks = {host: json.loads(words) for host, words in commands.items()}
    assert [words[words.index("--node-rank") + 1] for words in ranks.values()] == list("0123")
    log = "cat /var/log/sparkfleet/sparks-rank.log"
    assert all(f" TP{n}] " in text for n, text in enumerate(serving.everywhere(log).values()))


def test_a_stranger_s_client_gets_a_stream_with_usage(serving: LabUnderTest) -> None:
    with client(serving) as stranger:
        assert [served.id for served in stranger.models.list()] == [model.SERVED_NAME]
        events = list(
            stranger.chat.completions.create(
                model=model.SERVED_NAME,
                messages=[{"role": "user", "content": "Say something."}],
                max_tokens=40,
                stream=True,
                stream_options={"include_usage": True},
            )
        )
    usage = next(event.usage for event in reversed(events) if event.usage)
    choices = [choice for event in events for choice in event.choices]
    pieces = [choice.delta.content or "" for choice in choices]
    finish = [choice.finish_reason for choice in choices if choice.finish_reason]
    assert usage.completion_tokens == 40
    assert finish == ["length"]
    assert len([piece for piece in pieces if piece]) > 5  # letters as they come, not all at once
    # One token a letter: what was counted is what was sent, and what went in is the template.
    assert len("".join(pieces)) == 40
    assert usage.prompt_tokens == len("Say something.") + 4  # begin, user, end, assistant


def test_without_the_key_nothing_is_answered(serving: LabUnderTest) -> None:
    for path in ("/v1/models", "/metrics"):
        assert get(url(serving, path))[0] == 401
        assert get(url(serving, path), "sk-another-key-0123456789")[0] == 401
    assert get(url(serving, "/v1/models"), KEY)[0] == 200
    assert get(url(serving, "/server_info"), KEY)[0] == 404


def test_metrics_have_the_names_of_sglang_and_count(serving: LabUnderTest) -> None:
    before = get(url(serving, "/metrics"), KEY)[1]
    with client(serving) as stranger:
        stranger.completions.create(model=model.SERVED_NAME, prompt="abc", max_tokens=16)
    name, deadline = "sglang:generation_tokens_total", time.monotonic() + 60
    while True:
        after = get(url(serving, "/metrics"), KEY)[1]
        if metric(after, name) - metric(before, name) >= 16 or time.monotonic() > deadline:
            break
        time.sleep(1)
    assert metric(after, name) - metric(before, name) == 16
    for other in ("sglang:num_running_reqs", "sglang:token_usage", "sglang:prompt_tokens_total"):
        metric(after, other)


def test_verify_passes_and_claims_nothing_about_understanding(
    serving: LabUnderTest, tmp_path: Path
) -> None:
    words = ("-e", f"verify_report_path={tmp_path / 'report'}")
    play(serving, "verify", *words).assert_ok()
    report = json.loads((tmp_path / "report.json").read_text())
    verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
    assert {
        verdicts[name] for name in ("serves", "streaming", "concurrency", "auth", "closed")
    } == {"passed"}
    assert {name for name, verdict in verdicts.items() if verdict == "not_applicable"} == (
        NEED_UNDERSTANDING
    )
    assert "failed" not in verdicts.values()


def test_the_engine_never_sees_the_key(serving: LabUnderTest) -> None:
    pattern = KEY.replace("engine", "engin[e]")  # which does not match itself in a command line
    places = (
        "cat /proc/[0-9]*/cmdline | tr '\\0' ' '; docker ps -q | xargs docker inspect; "
        "cat /var/log/sparkfleet/*; journalctl --no-pager"
    )
    found = serving.everywhere(f"({places}) | grep -c '{pattern}' || true")
    assert set(found.values()) == {"0"}
    assert serving.root("spark1", f"grep -rlE '{pattern}' /etc/sparkfleet") != ""


def test_a_killed_rank_is_noticed(serving: LabUnderTest) -> None:
    serving.root("spark3", "docker kill --signal KILL $(docker ps -q)")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        states = serving.everywhere(f"systemctl is-active {UNIT} || true")
        if "active" not in states.values():
            break
        time.sleep(2)
    assert "active" not in states.values(), states  # Gloo ends the others with it
    checked = play(serving, "serve", "-e", "sglang_state=checked")
    assert checked.returncode != 0
    assert "rank 2 (spark3) ended" in checked.output
