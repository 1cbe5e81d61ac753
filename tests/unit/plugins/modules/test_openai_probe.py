"""The module around the checks: its key file, its parameters, its documentation."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from ansible_collections.sparkfleet.cluster.plugins.module_utils import (
    _openai_answers,
    _openai_checks,
    _openai_http,
)
from ansible_collections.sparkfleet.cluster.plugins.modules import openai_probe

from tests.support.openai_server import MODEL, Server

KEY = "sk-CANARY-aBcDeF0123456789"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(key=KEY) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def call(capsys: pytest.CaptureFixture[str], **arguments: Any) -> tuple[dict[str, Any], str]:
    with patch_module_args(arguments), pytest.raises(SystemExit) as ended:
        openai_probe.main()
    said = capsys.readouterr().out
    answer: dict[str, Any] = json.loads(said)
    assert bool(ended.value.code) == bool(answer.get("failed"))
    return answer, said


@pytest.mark.parametrize(
    "text",
    [
        f"{KEY}\n",
        f"alice:{KEY}\n",
        f"# mine\n\nother:sk-0123456789abcdef\nalice: {KEY}\n",
    ],
)
def test_the_key_comes_from_a_file_and_stays_there(server, capsys, tmp_path, text):
    keys = tmp_path / "keys"
    keys.write_text(text)
    answer, said = call(
        capsys,
        url=f"http://127.0.0.1:{server.server_port}/v1",
        key_file=str(keys),
        key_name="alice" if "alice" in text else "",
        checks=["chat", "auth"],
    )
    assert answer["passed"] and answer["model"] == MODEL and not answer["changed"]
    assert KEY not in said


@pytest.mark.parametrize(
    ("content", "name", "told"),
    [
        (None, "", "cannot be read: No such file or directory. It is for root alone"),
        (b"", "", "has no key; expected lines of the form name:key"),
        (b"# nothing\n", "", "has no key"),
        (b"\xff\xfe\x00", "", "is no text"),
        (b"alice:secret-secret-secret\n", "bob", "has no key of the name bob"),
        (b"alice:short\n", "", "line 1: a key shorter than 16 characters can be guessed"),
        (b"alice:has spaces in it all over\nbob\n", "", "line 2: expected name:key"),
    ],
)
def test_a_key_file_that_cannot_be_used(capsys, tmp_path, content, name, told):
    keys = tmp_path / "keys"
    if content is not None:
        keys.write_bytes(content)
    answer, said = call(capsys, url="http://127.0.0.1:9", key_file=str(keys), key_name=name)
    assert answer["failed"] and told in answer["msg"] and str(keys) in answer["msg"]
    assert "secret" not in said and "has spaces" not in said


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"url": "spark1"}, "is no address of a server"),
        ({"checks": ["speeed"]}, "value of checks must be one or more of"),
        ({"needle_share": 1.5}, "needle_share is 1.5, expected 0 to 1"),
        ({"canary_timeout": 0}, "canary_timeout is 0, expected more than 0"),
        ({"url": "https://x", "ca_file": "/nowhere"}, "/nowhere cannot be used as certificates"),
    ],
)
def test_parameters_that_make_no_sense(capsys, wrong, told):
    answer, _said = call(capsys, **{"url": "http://127.0.0.1:9", **wrong})
    assert answer["failed"] and told in answer["msg"]


def test_every_cause_is_documented():
    sources = [
        Path(str(module.__file__)).read_text()
        for module in (_openai_answers, _openai_checks, _openai_http)
    ]
    said = {
        cause
        for text in sources
        for cause in re.findall(r'(?:_failed|ProbeError)\(\s*"([a-z-]+)"', text)
    }
    returned = yaml.safe_load(openai_probe.RETURN)
    told = " ".join(returned["checks"]["contains"]["cause"]["description"])
    assert said == set(re.findall(r"V\(([a-z-]+)\)", told))
