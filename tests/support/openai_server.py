# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""An OpenAI-compatible server with a scripted model, for tests; misbehaves on demand.

It understands just the questions of the probe, by regular expressions: what is proven with it is
the probe and whatever stands between, never an engine. Standard library only, so that it also runs
on a host of a lab:  python3 openai_server.py --port 8888
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import time
import zlib
from base64 import b64decode
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "scripted/model"
WINDOW = 8192


class Server(ThreadingHTTPServer):
    """`fault` names one misbehaviour, `key` the key it wants, `pace` seconds between tokens."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(
        self,
        port: int = 0,
        *,
        fault: str = "",
        key: str = "",
        pace: float = 0.005,
        stand_in: bool = False,
        host: str = "127.0.0.1",
    ) -> None:
        super().__init__((host, port), Handler)
        self.fault, self.key, self.pace, self.stand_in = fault, key, pace, stand_in
        self.seen: list[dict[str, Any]] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that hang up are what some tests are about."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""

    def do_GET(self) -> None:
        self._note()
        fault = self.server.fault
        if self.path == "/health":
            return self._send(200, b"")
        if self.path == "/seen":
            return self._json(200, self.server.seen)
        if fault == "foreign":
            return self._send(200, b"<html><title>Welcome</title>It works!</html>", "text/html")
        if fault == "telling" or (fault == "admin" and self.path == "/server_info"):
            told = self.headers.get("Authorization", "")
            if not self.path.startswith("/v1/"):
                return self._json(200, {"api_key": told.removeprefix("Bearer ")})
        if fault == "admin" and self.path == "/abort_request":
            return self._json(405, {"detail": "Method Not Allowed"})
        if self._refused():
            return None
        if self.path != "/v1/models":
            return self._json(404, {"detail": "Not Found"})
        if fault == "router":
            return self._json(200, {"models": ["/models/scripted"]})
        if fault == "nameless-router":  # as version 0.3.2 behind entries that close /server_info
            unknown = {"id": "unknown", "object": "model", "owned_by": "local"}
            return self._json(200, {"object": "list", "data": [unknown]})
        card = {"id": MODEL, "object": "model", "owned_by": "tests", "max_model_len": WINDOW}
        if self.server.stand_in:
            card["owned_by"] = "sparkfleet stand-in"
        if fault == "no-window":
            del card["max_model_len"]
        return self._json(200, {"object": "list", "data": [] if fault == "no-model" else [card]})

    def do_POST(self) -> None:
        size = int(self.headers.get("Content-Length", 0))
        text = self.rfile.read(size)
        self._note()
        if self._refused():
            return None
        if self.path != "/v1/chat/completions":
            return self._json(404, {"detail": "Not Found"})
        body = json.loads(text)
        fault = self.server.fault
        if fault == "hangs":
            time.sleep(30)
        if fault == "500":
            return self._json(500, {"error": {"message": "scheduler is gone"}})
        if fault == "strict" and "chat_template_kwargs" in body:
            return self._json(400, {"error": {"message": "Unrecognized request argument"}})
        if fault == "no-images" and "image_url" in text.decode():
            return self._json(400, {"error": {"message": "not a multimodal model"}})
        message, finish = _think(body, fault)
        if body.get("stream"):
            return self._stream(body, message, finish)
        if fault == "trickle":
            self.send_response(200)
            for number in range(3000):
                self.send_header(f"X-Slow-{number}", "x")
                self.flush_headers()
                time.sleep(0.05)
        if fault == "endless":
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.close_connection = True
            while True:
                self.wfile.write(b" " * 2**20)
        document: dict[str, Any] = {
            "id": "x",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": _usage(body, message),
        }
        if fault == "empty-choices":
            document["choices"] = []
        if fault == "no-usage":
            del document["usage"]
        if fault == "error-in-200":
            document = {"error": {"message": "worker gone", "code": 500}}
        return self._json(200, document)

    # --- streams ---------------------------------------------------------------------------------

    def _stream(self, body: Mapping[str, Any], message: Mapping[str, Any], finish: str) -> None:
        fault = self.server.fault
        self.send_response(200)
        kind = "application/json" if fault == "not-a-stream" else "text/event-stream; charset=utf-8"
        self.send_header("Content-Type", kind)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for part in self._parts(body, message, finish):
            if fault == "odd-framing":
                for number in range(0, len(part), 3):
                    self._chunk(part[number : number + 3])
            else:
                self._chunk(part)
            time.sleep(0 if fault == "collected" else self.server.pace)
        self.wfile.write(b"0\r\n\r\n")

    def _parts(
        self, body: Mapping[str, Any], message: Mapping[str, Any], finish: str
    ) -> Iterator[bytes]:
        fault = self.server.fault
        end = "\r\n\r\n" if fault == "odd-framing" else "\n\n"
        usage = _usage(body, message)

        def event(document: Any) -> bytes:
            text = document if isinstance(document, str) else json.dumps(document)
            if fault == "odd-framing":
                return f":\r\n\r\n: ping\r\n\r\ndata:{text}{end}".encode()
            return f"data: {text}{end}".encode()

        def delta(content: Mapping[str, Any], reason: str | None = None) -> bytes:
            choice = {"index": 0, "delta": content, "finish_reason": reason}
            return event({"id": "x", "object": "chat.completion.chunk", "choices": [choice]})

        if fault == "usage-first":
            yield event({"choices": [], "usage": {**usage, "completion_tokens": 0}})
        yield delta({"role": "assistant", "content": ""})
        for number, call in enumerate(message.get("tool_calls") or []):
            yield delta({"tool_calls": [{"index": number, **call}]})
        for number, word in enumerate(re.findall(r"\S+\s*", message.get("content") or "")):
            if number == 2 and fault == "truncated":
                return
            if number == 2 and fault == "cut-in-event":
                yield b'data: {"choices": [{"del'
                return
            if number == 2 and fault == "error-event":
                yield event({"error": {"message": "worker gone", "code": 500}})
                yield event("[DONE]")
                return
            if number == 2 and fault == "malformed":
                yield event('{"choices": [')
            yield delta({"content": word})
        if fault == "never-ends":
            while True:
                yield delta({"content": "and "})
        yield delta({}, finish)
        wanted = (body.get("stream_options") or {}).get("include_usage")
        if wanted and fault != "no-usage":
            yield event({"choices": [], "usage": usage})
        if fault != "no-done":
            yield event("[DONE]")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    # --- answers ---------------------------------------------------------------------------------

    def _note(self) -> None:
        self.server.seen.append({"path": self.path, "headers": dict(self.headers)})

    def _refused(self) -> bool:
        key, given = self.server.key, self.headers.get("Authorization", "")
        if not key or given == f"Bearer {key}":
            return False
        if self.server.fault == "caseless" and given.lower() == f"Bearer {key}".lower():
            return False
        if self.server.fault == "open-models" and self.path == "/v1/models":
            return False
        self._json(401, {"error": {"message": f"invalid key: {given}"}})
        return True

    def _json(self, status: int, document: Any) -> None:
        self._send(status, json.dumps(document).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _usage(body: Mapping[str, Any], message: Mapping[str, Any]) -> dict[str, int]:
    prompt = len(re.findall(r"\S+", json.dumps(body["messages"])))
    words = len(re.findall(r"\S+", message.get("content") or ""))
    return {"prompt_tokens": prompt, "completion_tokens": words, "total_tokens": prompt + words}


def _think(body: Mapping[str, Any], fault: str) -> tuple[dict[str, Any], str]:
    """The message to answer with, and the reason why it ends."""
    thinking = (body.get("chat_template_kwargs") or {}).get("thinking", False)
    last = body["messages"][-1]
    content = last["content"]
    text = content if isinstance(content, str) else content[-1]["text"]
    answer, calls, finish = _answer(text, content, body), None, "stop"
    part = re.search(r"part (K-\d+)", text)
    if body.get("tools") and part:
        answer, finish = "", "tool_calls"
        arguments = json.dumps({"part": "K-1" if fault == "wrong-arguments" else part[1]})
        function = {"name": "stock_of_part", "arguments": arguments}
        calls = [{"id": "call-9", "type": "function", "function": function}]
        if fault in ("leaks-dsml", "leaks-ascii-dsml"):
            bar = "\uff5c" if fault == "leaks-dsml" else "|"
            answer, calls, finish = f"<{bar}DSML{bar}function_calls>...", None, "stop"
        if fault == "no-tool-call":
            answer, calls, finish = "I do not know.", None, "stop"
        if fault == "broken-arguments":
            function["arguments"] = '{"part": '
    if last["role"] == "tool":
        answer = f"There are {1 if fault == 'ignores-result' else json.loads(text)['pieces']}."
    message: dict[str, Any] = {"role": "assistant", "content": answer, "tool_calls": calls}
    if thinking or fault == "always-thinks":
        thought = "Let me see."
        if fault == "leaks-thinking":
            message["content"] = f"<think>{thought}</think>{answer}"
        elif fault != "no-reasoning":
            if fault != "new-name":
                message["reasoning_content"] = thought
            if fault in ("new-name", "both-names"):
                message["reasoning"] = thought
    starved = fault == "never-done" or (fault == "small-budget" and body["max_tokens"] < 4000)
    if thinking and starved:
        message["content"], finish = None, "length"
    if fault == "runs-on":
        finish = "length"
    if fault == "wrong":
        message["content"] = "7"
    return message, finish


def _answer(text: str, content: Any, body: Mapping[str, Any]) -> str:
    if "response_format" in body:
        return json.dumps({"city": "Paris", "population": 2100000})
    if code := re.search(r"Code: (\d+)\.", text):
        return code[1]
    if sum_ := re.search(r"What is (\d+) \+ (\d+)", text):
        return str(int(sum_[1]) + int(sum_[2]))
    if product := re.search(r"What is (\d+) x (\d+)", text):
        return f"It is {int(product[1]) * int(product[2])}."
    if word := re.search(r"Repeat this word and nothing else: (\S+)", text):
        return word[1]
    if not isinstance(content, str):
        return _colour(b64decode(content[0]["image_url"]["url"].partition(",")[2]))
    if "story" in text:
        return "The sea was calm and the keeper slept. " * 20
    return "one two three four five"


def _colour(png: bytes) -> str:
    """The name of the colour in the middle of a PNG of 8-bit RGB without filters."""
    place, width, height, data = 8, 0, 0, b""
    while place < len(png):
        size, kind = struct.unpack(">I4s", png[place : place + 8])
        chunk = png[place + 8 : place + 8 + size]
        if kind == b"IHDR":
            width, height = struct.unpack(">II", chunk[:8])
        if kind == b"IDAT":
            data += chunk
        place += size + 12
    raw = zlib.decompress(data)
    middle = (height // 2) * (3 * width + 1) + 1 + 3 * (width // 2)
    pixel = raw[middle : middle + 3]
    return ("Red", "Green", "Blue")[max(range(3), key=lambda number: pixel[number])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--fault", default="")
    parser.add_argument("--pace", type=float, default=0.005)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--stand-in", action="store_true")
    options = parser.parse_args()
    Server(
        options.port,
        fault=options.fault,
        pace=options.pace,
        host=options.host,
        stand_in=options.stand_in,
    ).serve_forever()


if __name__ == "__main__":
    main()
