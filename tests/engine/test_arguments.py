"""The server arguments of every profile, in the eyes of SGLang's own parser."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.servings import serving
from tools.real_engine import python

pytestmark = pytest.mark.engine

LAUNCHES = {
    "dsv41-tp4": (4, "switch"),
    "dsv41-tp4-base": (4, "switch"),
    "dsv41-tp4-ring": (4, "ring"),
    "dsv41-tp3": (3, "triangle"),
    "dsv41-tp8": (8, "switch"),
}
WRONG = {
    "unknown": ["--model-path", "/x", "--no-such-option", "1"],
    "no number": ["--model-path", "/x", "--tp", "four"],
    "no choice": ["--model-path", "/x", "--attention-backend", "dsv5"],
}


def words(profile: str, host: str) -> list[str]:
    """The arguments of a rank, without the words that start the server."""
    hosts, topology = LAUNCHES[profile]
    command: list[str] = serving(profile, hosts, topology)["hosts"][host]["container"]["command"]
    assert command[:2] == ["-m", "sglang.launch_server"]
    return command[2:]


@pytest.fixture(scope="module")
def answers() -> Mapping[str, Mapping[str, Any]]:
    """All in one run, because importing SGLang takes half a minute."""
    asked = {
        f"{name} {host}": words(name, host) for name in LAUNCHES for host in ("spark1", "spark3")
    }
    run = subprocess.run(
        [python(), Path(__file__).with_name("parse_arguments.py")],
        input=json.dumps({**asked, **WRONG}),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    found: Mapping[str, Mapping[str, Any]] = json.loads(run.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("host", ["spark1", "spark3"])
@pytest.mark.parametrize("profile", LAUNCHES)
def test_arguments_are_accepted_and_understood(answers, profile, host):
    found = answers[f"{profile} {host}"]
    assert "error" not in found, found["error"]
    hosts, topology = LAUNCHES[profile]
    plan = serving(profile, hosts, topology)
    env = plan["hosts"][host]["container"]["env"]
    assert found["tp_size"] == found["nnodes"] == hosts
    assert found["node_rank"] == plan["hosts"][host]["rank"]
    assert found["ep_size"] == int(env["EP_SIZE"])
    assert found["context_length"] == int(env["CONTEXT_LENGTH"])
    assert found["max_total_tokens"] == int(env["MAX_TOTAL_TOKENS"])
    assert found["chunked_prefill_size"] == int(env["CHUNKED_PREFILL_SIZE"])
    assert found["mem_fraction_static"] == float(env["MEM_FRACTION_STATIC"])
    assert (found["host"], found["port"]) == ("127.0.0.1", 8888)
    assert found["api_key"] is None


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_refused(answers, case):
    assert "error" in answers[case]
