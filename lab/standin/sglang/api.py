# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The HTTP API: rank 0 serves chat, streams and metrics, every other rank says it is healthy.

A worker's port is green whatever the group does, as the real engine's is.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import BANNER, answers
from .settings import Settings

_OPEN = ("/health", "/health_generate", "/metrics")  # answered without the key, as measured


class Metrics:
    """Counters under SGLang's names; one lock for all."""

    def __init__(self, model: str) -> None:
        self._lock = threading.Lock()
        self._labels = f'model_name="{model}"'
        self.running = 0
        self._requests = self._prompt = self._generated = self._cached = 0
        self._first: list[float] = []
        self._whole: list[float] = []

    def begin(self) -> None:
        with self._lock:
            self.running += 1

    def end(self, prompt: int, generated: int, first: float, whole: float) -> None:
        with self._lock:
            self.running -= 1
            self._requests += 1
            self._prompt += prompt
            self._generated += generated
            self._first.append(first)
            self._whole.append(whole)

    def abandon(self) -> None:
        with self._lock:
            self.running -= 1

    def text(self) -> str:
        with self._lock:
            gauges = {
                "num_running_reqs": self.running,
                "num_queue_reqs": 0,
                "num_used_tokens": 0,
                "token_usage": 0.0,
                "gen_throughput": 0.0,
                "cache_hit_rate": 0.0,
                "spec_accept_length": 0.0,
            }
            counters = {
                "num_requests_total": self._requests,
                "prompt_tokens_total": self._prompt,
                "generation_tokens_total": self._generated,
                "cached_tokens_total": self._cached,
            }
            times = {
                "time_to_first_token_seconds": list(self._first),
                "e2e_request_latency_seconds": list(self._whole),
            }
        lines = []
        for kind, values in (("gauge", gauges), ("counter", counters)):
            for name, value in values.items():
                lines.append(f"# TYPE sglang:{name} {kind}")
                lines.append(f"sglang:{name}{{{self._labels}}} {float(value)}")
        for name, seen in times.items():
            lines.append(f"# TYPE sglang:{name} histogram")
            for bound in (0.1, 1.0, 10.0, 60.0):
                count = sum(value <= bound for value in seen)
                lines.append(f'sglang:{name}_bucket{{le="{bound}",{self._labels}}} {float(count)}')
            lines.append(f'sglang:{name}_bucket{{le="+Inf",{self._labels}}} {float(len(seen))}')
            lines.append(f"sglang:{name}_count{{{self._labels}}} {float(len(seen))}")
            lines.append(f"sglang:{name}_sum{{{self._labels}}} {sum(seen)}")
        return "\n".join(lines) + "\n"


class Server(ThreadingHTTPServer):
    """One rank's port. `changes` is what a fault of the same name does to the answers."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, settings: Settings, changes: str = "") -> None:
        super().__init__((settings.text("host"), settings.number("port")), _Handler)
        self.settings = settings
        self.changes = changes
        self.metrics = Metrics(settings.model_name)
        self.ready = threading.Event()
        self.numbers = itertools.count(1)
        self.granted = 0
        self.step: Callable[[], None] = lambda: None  # returns when all ranks computed


class _RefusalError(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "sparkfleet-standin"
    timeout = 1800

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class's name
        print(f"INFO: {self.client_address[0]} - {format % args}", flush=True)

    def do_GET(self) -> None:
        self._handle(self._get)

    def do_POST(self) -> None:
        self._handle(self._post)

    def _handle(self, act: Any) -> None:
        self._path = self.path.partition("?")[0]
        try:
            self._allowed()
            act()
        except _RefusalError as refusal:
            kind = "BadRequestError" if refusal.status == 400 else "Error"
            body = {"object": "error", "message": str(refusal), "type": kind, "param": None}
            self._json(refusal.status, {**body, "code": refusal.status})
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _allowed(self) -> None:
        key = self.server.settings.text("api-key")
        told = self.headers.get("Authorization")
        if key and self._path not in _OPEN and told != f"Bearer {key}":
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            raise _RefusalError(401, "Unauthorized")

    # --- GET -------------------------------------------------------------------------------------

    def _get(self) -> None:
        server, settings = self.server, self.server.settings
        if self._path == "/health" and server.changes != "no-health":
            self._text(200 if server.ready.is_set() or settings.rank else 503, "")
        elif settings.rank:  # "dummy health check server" of a worker
            raise _RefusalError(404, "Not Found")
        elif self._path in ("/health", "/health_generate"):
            if server.changes in ("never-answers", "no-health"):
                time.sleep(3600)
            self._text(200 if server.ready.is_set() else 503, "")
        elif self._path == "/v1/models":
            self._json(200, {"object": "list", "data": [self._card()]})
        elif self._path == "/metrics" and settings.text("enable-metrics"):
            self._text(200, server.metrics.text(), "text/plain; version=0.0.4; charset=utf-8")
        elif self._path in ("/server_info", "/get_server_info"):  # tells the key, as the real one
            known = {key.replace("-", "_"): value for key, value in settings.arguments.items()}
            more = {"max_total_num_tokens": server.granted, "version": BANNER}
            self._json(200, {**known, "api_key": settings.text("api-key") or None, **more})
        elif self._path in ("/model_info", "/get_model_info"):
            self._json(200, {"model_path": settings.text("model-path"), "is_generation": True})
        else:
            raise _RefusalError(404, "Not Found")

    def _card(self) -> dict[str, Any]:
        settings = self.server.settings
        return {
            "id": settings.model_name,
            "object": "model",
            "created": 0,
            "owned_by": "sparkfleet stand-in",
            "root": settings.text("model-path"),
            "max_model_len": settings.number("context-length"),
            "description": BANNER,
        }

    # --- POST ------------------------------------------------------------------------------------

    def _post(self) -> None:
        body = self._body()
        if self.server.settings.rank:
            raise _RefusalError(404, "Not Found")
        if self._path == "/v1/chat/completions":
            self._chat(body)
        elif self._path == "/v1/completions":
            self._chat({**body, "messages": [{"role": "user", "content": body.get("prompt", "")}]})
        elif self._path == "/generate":
            said = self._limited({"messages": [{"role": "user", "content": body.get("text", "")}]})
            self._json(200, {"text": said.content, "meta_info": {"finish_reason": said.finish}})
        elif self._path in ("/flush_cache", "/abort_request"):
            self._text(200, "done")
        else:
            raise _RefusalError(404, "Not Found")

    def _body(self) -> dict[str, Any]:
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        except ValueError as error:
            raise _RefusalError(400, f"the body is not JSON: {error}") from error
        if not isinstance(body, dict):
            raise _RefusalError(400, "the body is not a JSON object")
        return body

    def _chat(self, request: dict[str, Any]) -> None:
        started = time.monotonic()
        self._check(request)
        prompt = answers.prompt_tokens(request["messages"])
        limit = self.server.settings.number("context-length")
        if prompt > limit:
            raise _RefusalError(
                400,
                f"The input ({prompt} tokens) is longer than the model's context length "
                f"({limit} tokens).",
            )
        self.server.metrics.begin()
        try:
            if self.server.changes == "never-answers":
                time.sleep(3600)
            if self.server.changes == "error-500":
                raise _RefusalError(500, "Internal Server Error")
            self.server.step()
            said = self._limited(request)
            generated = len(answers.tokens(said.content)) + len(answers.tokens(said.reasoning))
            generated += sum(len(answers.tokens(call["arguments"])) for call in said.calls)
            usage = {
                "prompt_tokens": prompt,
                "completion_tokens": generated,
                "total_tokens": prompt + generated,
                "prompt_tokens_details": {"cached_tokens": 0},
                "reasoning_tokens": len(answers.tokens(said.reasoning)),
            }
            number = next(self.server.numbers)
            if request.get("stream"):
                self._stream(request, said, usage, number)
            else:
                self._whole(request, said, usage, number)
        except BaseException:
            self.server.metrics.abandon()
            raise
        took = time.monotonic() - started
        self.server.metrics.end(prompt, generated, took, took)

    def _check(self, request: Mapping[str, Any]) -> None:
        messages = request.get("messages")
        if not isinstance(messages, list) or not messages:
            raise _RefusalError(400, "messages: a list of at least one message is required")
        if not all(isinstance(message, dict) and "role" in message for message in messages):
            raise _RefusalError(400, "messages: every message is an object with a role")
        most = request.get("max_completion_tokens", request.get("max_tokens"))
        if most is not None and (not isinstance(most, int) or most < 1):
            raise _RefusalError(400, f"max_tokens must be at least 1, got {most}.")

    def _limited(self, request: Mapping[str, Any]) -> answers.Answer:
        """The answer within max_tokens, which thinking counts against as well."""
        said = answers.answer(request)
        if self.server.changes == "garbage" and said.content:
            return said._replace(content="的的的的 �� 的的的的" * 8)
        most = request.get("max_completion_tokens", request.get("max_tokens"))
        thought, words = answers.tokens(said.reasoning), answers.tokens(said.content)
        if most is None or len(thought) + len(words) <= most:
            return said
        if len(thought) >= most:
            return answers.Answer(None, "".join(thought[:most]) or None, finish="length")
        return said._replace(content="".join(words[: most - len(thought)]), finish="length")

    def _whole(
        self, request: Mapping[str, Any], said: answers.Answer, usage: Any, number: int
    ) -> None:
        if "prompt" in request:
            choice: dict[str, Any] = {"text": said.content or ""}
        else:
            calls = [_tool_call(call, number) for call in said.calls] or None
            choice = {
                "message": {
                    "role": "assistant",
                    "content": said.content,
                    "reasoning_content": said.reasoning,
                    "tool_calls": calls,
                }
            }
        choice |= {"index": 0, "finish_reason": said.finish, "matched_stop": None}
        self._json(200, {**self._frame(request, number, ""), "choices": [choice], "usage": usage})

    def _stream(
        self, request: Mapping[str, Any], said: answers.Answer, usage: Any, number: int
    ) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        frame = self._frame(request, number, ".chunk")
        pace = float(self.server.settings.environment.get("SPARKFLEET_STANDIN_TOKEN_SECONDS", "0"))
        for delta in _deltas(said, number):
            choice = {"index": 0, "delta": delta, "finish_reason": None}
            self._event({**frame, "choices": [choice]})
            time.sleep(pace)
        choice = {"index": 0, "delta": {}, "finish_reason": said.finish}
        self._event({**frame, "choices": [choice]})
        if (request.get("stream_options") or {}).get("include_usage"):
            self._event({**frame, "choices": [], "usage": usage})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _frame(self, request: Mapping[str, Any], number: int, kind: str) -> dict[str, Any]:
        plain = "prompt" in request
        return {
            "id": f"standin-{number}",
            "object": "text_completion" if plain else f"chat.completion{kind}",
            "created": int(time.time()),
            "model": request.get("model") or self.server.settings.model_name,
        }

    # --- writing ---------------------------------------------------------------------------------

    def _event(self, content: Any) -> None:
        self._chunk(b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        self.wfile.flush()

    def _json(self, status: int, content: Any) -> None:
        self._text(status, json.dumps(content, ensure_ascii=False), "application/json")

    def _text(self, status: int, text: str, kind: str = "text/plain; charset=utf-8") -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _tool_call(call: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {"id": f"call_{number}", "index": 0, "type": "function", "function": dict(call)}


def _deltas(said: answers.Answer, number: int) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in answers.tokens(said.reasoning):
        yield {"reasoning_content": piece}
    for piece in answers.tokens(said.content):
        yield {"content": piece}
    for call in said.calls:
        first = {**_tool_call(call, number), "function": {"name": call["name"], "arguments": ""}}
        yield {"tool_calls": [first]}
        text = call["arguments"]
        for start in range(0, len(text), 8):
            yield {"tool_calls": [{"index": 0, "function": {"arguments": text[start : start + 8]}}]}
