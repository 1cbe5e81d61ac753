"""The module around a point of a benchmark: key, text, refusals, check mode."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.sparkfleet.cluster.plugins.modules import openai_benchmark

from tests.support.openai_server import Server

KEY = "sk-CANARY-aBcDeF0123456789"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(key=KEY) as running:
        threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True).start()
        yield running
        running.shutdown()


def call(capsys: pytest.CaptureFixture[str], **arguments: Any) -> tuple[dict[str, Any], str]:
    with patch_module_args(arguments), pytest.raises(SystemExit) as ended:
        openai_benchmark.main()
    said = capsys.readouterr().out
    answer: dict[str, Any] = json.loads(said)
    assert bool(ended.value.code) == bool(answer.get("failed"))
    return answer, said


def test_a_point_with_a_key_and_a_text(
    server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(f"alice:{KEY}\n")
    (tmp_path / "book").write_text(" ".join(str(number) for number in range(20_000)))
    answer, said = call(
        capsys,
        url=f"http://127.0.0.1:{server.server_port}",
        key_file=str(tmp_path / "key"),
        text_file=str(tmp_path / "book"),
        streams=2,
        rounds=1,
    )
    assert not answer["changed"]
    assert answer["point"]["answered"] == 2
    assert answer["point"]["text"] == "given"
    assert KEY not in said


def test_check_mode_asks_nothing(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    answer, _said = call(capsys, url=url, _ansible_check_mode=True)
    assert answer["point"] == {}
    assert server.seen == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"streams": 0}, "streams is 0, expected 1 or more"),
        ({"timeout": 0}, "timeout is 0, expected more than 0"),
        ({"url": "nonsense"}, "'nonsense' is no address of a server"),
        ({"key_file": "/nowhere"}, "key_file: /nowhere cannot be read: No such file"),
        ({"text_file": "/nowhere"}, "text_file: /nowhere cannot be read: No such file"),
        ({"text_file": "/usr/bin/env"}, "text_file: /usr/bin/env is no text"),
        ({}, "the key is refused"),
        ({"url": "http://127.0.0.1:1"}, "nothing listens at http://127.0.0.1:1; next: start"),
    ],
)
def test_refusals(
    server: Server, capsys: pytest.CaptureFixture[str], arguments: dict[str, Any], told: str
) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    answer, _said = call(capsys, **{"url": url, **arguments})
    assert told in answer["msg"]


def test_a_text_that_is_too_short(
    server: Server, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    server.key = ""
    (tmp_path / "note").write_text("short")
    answer, _said = call(
        capsys,
        url=f"http://127.0.0.1:{server.server_port}",
        text_file=str(tmp_path / "note"),
    )
    assert "the text has 5 characters, and a prompt needs" in answer["msg"]
