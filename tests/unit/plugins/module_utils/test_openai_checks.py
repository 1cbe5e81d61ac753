"""The checks against a server that behaves, and against one fault after the other."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _openai_http
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_answers import (
    collect,
    leaked_markup,
    models,
    reply_of,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_checks import (
    CHECKS,
    Probe,
    Settings,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_http import (
    Answer,
    Chunk,
    Client,
    ProbeError,
)

from tests.support.openai_server import MODEL, Server

KEY = "sk-CANARY-aBcDeF0123456789"
FIELDS: dict[str, Any] = {
    "thinking_on": {"chat_template_kwargs": {"thinking": True}},
    "thinking_off": {"chat_template_kwargs": {"thinking": False}},
}
Serve = Callable[..., Server]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[Server] = []

    def start(**options: Any) -> Server:
        server = Server(**options)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def probe(server: Server, *checks: str, key: str | None = None, **settings: Any) -> dict[str, Any]:
    url = f"http://127.0.0.1:{server.server_port}"
    wanted = Settings(checks, **{**FIELDS, "request_timeout": 5, "canary_timeout": 5, **settings})
    result = Probe(lambda one: Client(url, one, timeout=2), key, wanted, seed=1).run()
    json.dumps(result)  # plain data
    assert [check["name"] for check in result["checks"]] == ["serves", *checks]
    return result


def last(result: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = result["checks"][-1]
    return found


EVERYTHING = [name for name in CHECKS if name != "serves"]


def test_all_checks_pass_where_all_is_well(serve):
    result = probe(serve(key=KEY), *EVERYTHING, key=KEY, load_seconds=171)
    assert {c["name"]: c["verdict"] for c in result["checks"]} == dict.fromkeys(CHECKS, "passed")
    assert result["passed"] and not result["open"] and not result["stand_in"]
    assert result["model"] == MODEL
    figures = {check["name"]: check["figures"] for check in result["checks"]}
    assert figures["load"] == {"load_seconds": 171}
    # one word each 5 ms or a little more
    assert 20 < figures["speed"]["decode_tokens_per_second"] <= 200
    assert 0.8 < figures["context"]["prompt_tokens"] / 8192 < 0.9
    assert figures["context"]["prefill_tokens_per_second"] > 0
    assert KEY not in json.dumps(result)


@pytest.mark.parametrize("fault", ["odd-framing", "usage-first", "new-name", "both-names"])
def test_what_the_standards_allow_is_no_fault(serve, fault):
    result = probe(serve(fault=fault), "streaming", "reasoning", "speed", decode_min=1)
    assert result["passed"], result
    field = "reasoning" if fault == "new-name" else "reasoning_content"
    assert f"thought in {field}," in result["checks"][2]["detail"]


@pytest.mark.parametrize(
    ("fault", "check", "cause", "told"),
    [
        ("foreign", "chat", "not-openai", "text/html: <html><title>Welcome"),
        ("no-model", "chat", "no-model", "lists no model"),
        ("500", "chat", "server-error", "scheduler is gone"),
        ("empty-choices", "chat", "empty-choices", "no choices"),
        ("error-in-200", "chat", "error-event", "worker gone"),
        ("endless", "chat", "endless", "goes on"),
    ],
)
def test_where_nothing_serves_the_rest_is_skipped(serve, fault, check, cause, told, monkeypatch):
    monkeypatch.setattr(_openai_http, "MAX_BYTES", 3 * 2**20)
    result = probe(serve(fault=fault), check)
    first, second = result["checks"]
    assert (first["verdict"], first["cause"]) == ("failed", cause)
    assert told in first["detail"]
    assert second["verdict"] == "skipped" and not result["passed"]


@pytest.mark.parametrize(
    ("fault", "check", "cause", "told"),
    [
        ("runs-on", "chat", "did-not-stop", "found length"),
        ("wrong", "chat", "wrong-answer", "19 + 23 is 42, the answer was '7'"),
        ("wrong", "reasoning", "wrong-answer", "17 x 23 is 391"),
        ("no-reasoning", "reasoning", "no-reasoning", "neither reasoning_content nor reasoning"),
        ("leaks-thinking", "reasoning", "thinking-leaked", "<think> in content"),
        ("never-done", "reasoning", "budget", "16384 tokens were too few for thinking"),
        ("leaks-dsml", "tools", "markup-leaked", "the tool parser is not active"),
        ("leaks-ascii-dsml", "tools", "markup-leaked", "<|DSML| in content"),
        ("no-tool-call", "tools", "no-tool-call", "I do not know."),
        ("wrong-arguments", "tools", "wrong-tool-call", "K-1"),
        ("broken-arguments", "tools", "wrong-tool-call", "found"),
        ("ignores-result", "tools", "result-unused", "There are 1."),
        ("wrong", "context", "code-forgotten", "came back as '7'"),
        ("no-window", "context", "no-window", "give the length of the window"),
        ("no-usage", "context", "no-usage", "cannot be sized"),
        ("no-usage", "speed", "no-usage", "cannot be measured"),
        ("wrong", "speed", "too-short", "say nothing about speed"),
        ("wrong", "vision", "wrong-answer", "the square is"),
        ("no-images", "vision", "no-images", "not a multimodal model"),
        ("wrong", "structured", "schema-ignored", "does not fit"),
        ("truncated", "streaming", "truncated", "without a finish reason"),
        ("cut-in-event", "streaming", "truncated", "inside an event"),
        ("no-done", "streaming", "truncated", "without [DONE]"),
        ("error-event", "streaming", "error-event", "worker gone"),
        ("malformed", "streaming", "malformed-stream", "no JSON object"),
        ("not-a-stream", "streaming", "not-openai", "expected a stream"),
        ("no-usage", "streaming", "no-usage", "no usage in the stream"),
        ("wrong", "concurrency", "mixed-answers", "was to repeat"),
        ("admin", "closed", "reachable", "/server_info (200), /abort_request (405)"),
    ],
)
def test_each_fault_has_its_name(serve, fault, check, cause, told):
    result = probe(serve(fault=fault), check)
    assert result["checks"][0]["verdict"] == "passed"
    found = last(result)
    assert (found["verdict"], found["cause"]) == ("failed", cause), found
    assert told in found["detail"] + found["remedy"]
    assert not result["passed"]


def test_a_stream_that_never_ends_meets_its_deadline(serve):
    before = time.monotonic()
    found = last(probe(serve(fault="never-ends"), "streaming", request_timeout=1))
    assert found["cause"] == "no-answer" and "within 1 s" in found["detail"]
    assert time.monotonic() - before < 5


@pytest.mark.parametrize("fault", ["hangs", "trickle"])
def test_health_of_a_dead_group_deceives_nobody(serve, fault):
    before = time.monotonic()
    result = probe(serve(fault=fault), "chat", canary_timeout=1, request_timeout=1)
    first = result["checks"][0]
    assert first["cause"] == "group-dead" and "/health says 200" in first["detail"]
    assert time.monotonic() - before < 5


def test_one_slow_canary_is_no_death(serve):
    server = serve(fault="hangs")
    threading.Timer(0.5, setattr, (server, "fault", "")).start()
    result = probe(server, "chat", request_timeout=1)
    assert result["passed"], result


def test_thinking_that_needs_more_gets_more_once(serve):
    server = serve(fault="small-budget")
    assert last(probe(server, "reasoning"))["verdict"] == "passed"


def test_a_server_that_knows_no_further_fields_is_asked_without(serve):
    server = serve(fault="strict")
    result = probe(server, "chat", "streaming", "speed", decode_min=1)
    assert result["passed"], result


def test_decode_speed_has_to_be_reached(serve):
    found = last(probe(serve(), "speed", decode_min=100_000))
    assert found["cause"] == "slow" and "expected 100000 tokens/s" in found["detail"]


def test_without_usage_a_speed_is_unknown_and_not_zero(serve):
    assert (
        last(probe(serve(fault="no-usage"), "speed"))["figures"]["decode_tokens_per_second"] is None
    )


@pytest.mark.parametrize("how", ["stand-in", "told"])
def test_what_needs_a_thinking_model_is_not_applicable_to_a_toy(serve, how):
    server = serve(stand_in=how == "stand-in")
    result = probe(server, *EVERYTHING, thinking=how != "told", open=True)
    verdicts = {check["name"]: check["verdict"] for check in result["checks"]}
    toys = {"chat", "reasoning", "tools", "context", "vision", "structured", "speed"}
    assert {name for name in verdicts if verdicts[name] == "not_applicable"} == toys | {"auth"}
    assert verdicts["streaming"] == verdicts["concurrency"] == "passed"
    speed = next(check for check in result["checks"] if check["name"] == "speed")
    assert speed["figures"]["decode_tokens_per_second"] > 0
    assert not any("17 x 23" in json.dumps(one) for one in server.seen)


def test_a_toy_that_says_little_is_not_called_slow(serve):
    toy = probe(serve(stand_in=True, fault="wrong"), "speed")
    assert last(toy)["verdict"] == "not_applicable" and toy["passed"]


def test_load_time_is_told_waited_for_or_unknown(serve):
    assert last(probe(serve(), "load"))["verdict"] == "skipped"
    slow = last(probe(serve(), "load", load_seconds=4000))
    assert slow["cause"] == "slow-load" and slow["figures"] == {"load_seconds": 4000}
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    threading.Timer(1.5, lambda: serve(port=port)).start()
    url = f"http://127.0.0.1:{port}"
    result = Probe(lambda key: Client(url, key), None, Settings(["load"], wait=30)).run()
    waited = last(result)
    assert waited["verdict"] == "passed" and waited["figures"]["load_seconds"] >= 1.5


def test_the_name_of_the_model_is_held_against_a_cell_and_not_a_router(serve):
    other = probe(serve(), "chat", model="deepseek-v4.1-flash")["checks"][0]
    assert other["cause"] == "other-model" and MODEL in other["detail"]
    for fault in ("router", "nameless-router"):
        routed = probe(serve(fault=fault), "chat", model="deepseek-v4.1-flash")
        assert routed["passed"] and routed["model"] == "deepseek-v4.1-flash"


# --- keys ----------------------------------------------------------------------------------------


def test_a_wrong_key_is_told_without_showing_it(serve):
    result = probe(serve(key=KEY), "chat", key="sk-OTHER-0123456789abcdef")
    assert result["checks"][0]["cause"] == "key-refused"
    assert "sk-OTHER" not in json.dumps(result)  # the server sends it back
    assert "[key]" in result["checks"][0]["detail"]


@pytest.mark.parametrize(
    ("fault", "told"),
    [("caseless", "/v1/models with the key in other case"), ("open-models", "with no key")],
)
def test_a_door_that_is_not_quite_shut_is_open(serve, fault, told):
    found = last(probe(serve(key=KEY, fault=fault), "auth", key=KEY))
    assert found["cause"] == "open" and told in found["detail"]


def test_open_has_to_be_meant(serve):
    assert last(probe(serve(), "auth"))["cause"] == "open"
    meant = probe(serve(), "auth", open=True)
    assert last(meant)["verdict"] == "not_applicable" and meant["open"]


def test_an_endpoint_that_tells_the_key_fails(serve):
    found = last(probe(serve(key=KEY, fault="telling"), "closed", key=KEY))
    assert found["cause"] == "key-told" and KEY not in json.dumps(found)


# --- what is no HTTP at all ----------------------------------------------------------------------


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ProbeError, match="nothing listens") as raised:
        Client(f"http://127.0.0.1:{port}").call("/v1/models")
    assert raised.value.cause == "refused"


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no-http"),
        (b"", "no-http"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", "truncated"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10\r\nhalf", "truncated"),
        (b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n", "redirect"),
    ],
)
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_server_of_another_kind(said, cause, scheme):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            peer, _address = listener.accept()
            with peer:
                peer.recv(65536)
                peer.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        client = Client(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", timeout=5)
        with pytest.raises(ProbeError) as raised:
            models(client.call("/v1/models", deadline=5))
        thread.join()
    assert raised.value.cause in ({"no-tls", "cut"} if scheme == "https" else {cause})


@pytest.mark.parametrize("url", ["spark1:8000", "ftp://spark1", "http://", "http://h:port"])
def test_an_address_that_is_none(url):
    with pytest.raises(ValueError, match="is no address of a server"):
        Client(url)


# --- single answers ------------------------------------------------------------------------------


def stream(*events: Any) -> list[Chunk]:
    texts = [event if isinstance(event, str) else json.dumps(event) for event in events]
    return [Chunk(text, float(number)) for number, text in enumerate(texts)]


STOP = {"choices": [{"delta": {}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    "delta",
    [
        {"reasoning": "a"},
        {"reasoning_content": "a"},
        {"reasoning": "a", "reasoning_content": "a"},
        {"reasoning": "a", "content": None},
    ],
)
def test_reasoning_has_two_names_and_counts_once(delta):
    found = collect(stream({"choices": [{"delta": delta}]}, STOP, "[DONE]"))
    assert found.reply.reasoning == "a" and found.reply.content == ""


def test_the_last_usage_counts_wherever_it_stands():
    first = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 0}}
    end = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 42}}
    assert collect(stream(first, STOP, end, "[DONE]")).reply.completion_tokens == 42
    assert collect(stream(STOP, "[DONE]")).reply.completion_tokens is None
    odd = {"choices": [], "usage": {"completion_tokens": "many"}}
    assert collect(stream(odd, STOP, "[DONE]")).reply.completion_tokens is None


def test_pieces_of_tool_calls_are_put_together():
    def piece(**function: str) -> dict[str, Any]:
        call = {"index": 0, "id": "c1", "function": function}
        return {"choices": [{"delta": {"tool_calls": [call]}}]}

    parts = [piece(name="add"), piece(arguments='{"a"'), piece(arguments=": 1}")]
    assert collect(stream(*parts, STOP, "[DONE]")).reply.tool_calls == [("c1", "add", '{"a": 1}')]


@pytest.mark.parametrize(
    "document",
    [
        {"choices": [{"message": {"content": None}, "finish_reason": "length"}]},
        {"choices": [{"message": {"content": [{"type": "text", "text": ""}]}}]},
        {"choices": [{"message": {}, "finish_reason": None}], "usage": None},
        {"choices": [{"message": {"tool_calls": [None, "x", {"function": None}]}}]},
    ],
)
def test_null_and_odd_values_never_crash(document):
    reply = reply_of(Answer(200, "application/json", "", document))
    assert reply.content == "" and reply.completion_tokens is None


@pytest.mark.parametrize(
    "document", [None, [], "x", {}, {"choices": None}, {"choices": ["x"]}, {"choices": [{}]}]
)
def test_what_is_no_completion_is_named(document):
    with pytest.raises(ProbeError):
        reply_of(Answer(200, "application/json", "x", document))


@pytest.mark.parametrize("event", ["7", "null", "[]", '{"choices": [', "\ufffd"])
def test_what_is_no_event_is_named(event):
    with pytest.raises(ProbeError, match="no JSON object"):
        collect(stream(event))


@pytest.mark.parametrize(
    "text",
    [
        "<\uff5cDSML\uff5cfunction_calls>",
        "<|DSML|invoke name=",
        "x <\uff5ctool\u2581calls\u2581begin\uff5c>",
        "<tool_call>{}</tool_call>",
        '[TOOL_CALLS][{"name": "add"}]',
    ],
)
def test_markup_of_tool_calls_is_recognised(text):
    assert leaked_markup(text)
    assert not leaked_markup("if a < b | c > d then call the tool")


@pytest.mark.parametrize(
    ("document", "found"),
    [
        ({"object": "list", "data": [{"id": "org/name/with/slashes"}]}, "org/name/with/slashes"),
        ({"models": ["/models/DeepSeek-V4.1-Flash"]}, "/models/DeepSeek-V4.1-Flash"),
        ({"data": [None, {"id": 7}, {"id": "a", "max_model_len": "long"}]}, "a"),
    ],
)
def test_both_shapes_of_a_list_of_models(document, found):
    assert [model.id for model in models(Answer(200, "", "", document))] == [found]
