# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The checks that an OpenAI-compatible endpoint must pass before people are sent to it.

Six of them are those of the launch recipe of DeepSeek-V4.1-Flash: loads, answers and stops by
itself, thinks apart, calls a tool and uses its result, recalls a code from a long prompt, decodes
fast enough. Each is a real request that is judged by what came back; none is judged by a status.
"""

from __future__ import annotations

import json
import random
import secrets
import struct
import time
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_answers import (
    Collected,
    Model,
    Reply,
    collect,
    leaked_markup,
    leaked_thinking,
    models,
    reply_of,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_http import (
    Client,
    ProbeError,
)

CHAT = "/v1/chat/completions"
# Administrative and telling endpoints of SGLang and vLLM. A GET harms nothing; where only POST is
# allowed the engine answers 405, which proves that it was reached.
ADMINISTRATIVE = (
    "/server_info",
    "/get_server_info",
    "/get_model_info",
    "/get_load",
    "/get_internal_state",
    "/set_internal_state",
    "/flush_cache",
    "/start_profile",
    "/stop_profile",
    "/update_weights_from_disk",
    "/update_weights_from_tensor",
    "/update_weights_from_distributed",
    "/init_weights_update_group",
    "/get_weights_by_name",
    "/release_memory_occupation",
    "/resume_memory_occupation",
    "/abort_request",
    "/pause_generation",
    "/continue_generation",
    "/configure_logging",
    "/load_lora_adapter",
    "/unload_lora_adapter",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
    "/docs",
    "/openapi.json",
    "/v1/%2e%2e/server_info",
    "/v1/..%2Fserver_info",
    "//server_info",
)
_NEED_UNDERSTANDING = {"chat", "reasoning", "tools", "context", "structured", "vision"}
_TOO_EARLY = {"refused", "no-answer", "server-error", "cut", "truncated"}

Verdict = Mapping[str, Any]


class Settings(NamedTuple):
    """What is asked for. Times are seconds, `thinking_on` and `thinking_off` fields of requests."""

    checks: Sequence[str]
    model: str = ""
    window: int = 0
    thinking: bool = True
    open: bool = False
    thinking_on: Mapping[str, Any] = {}
    thinking_off: Mapping[str, Any] = {}
    wait: float = 0
    canary_timeout: float = 30
    request_timeout: float = 120
    needle_timeout: float = 1800
    load_seconds: float | None = None
    load_limit: float = 3600
    needle_share: float = 0.85
    decode_min: float = 15
    decode_tokens: int = 256
    concurrency: int = 4
    closed_paths: Sequence[str] = ADMINISTRATIVE


class _Ended(Exception):  # noqa: N818  # most of them are no errors
    """A check that has nothing more to find out."""

    def __init__(self, verdict: str, detail: str, cause: str = "", remedy: str = "") -> None:
        super().__init__(detail)
        self.fields = {"verdict": verdict, "detail": detail, "cause": cause, "remedy": remedy}


def _failed(cause: str, detail: str, remedy: str = "") -> _Ended:
    return _Ended("failed", detail, cause, remedy)


class Probe:
    """Runs checks against one endpoint.

    Args:
        client: makes a client that sends a key, or none for None.
        key: the key that is to work; None where none is given.
        settings: what is asked for.
        seed: of the long prompt; each run has another by default.
    """

    def __init__(
        self,
        client: Callable[[str | None], Client],
        key: str | None,
        settings: Settings,
        seed: int | None = None,
    ) -> None:
        self._make = client
        self._key = key
        self._client = client(key)
        self._settings = settings
        self._random = random.Random(seed if seed is not None else secrets.randbits(32))
        self._fields_refused = False
        self._waited = 0.0
        self._model = Model(settings.model, settings.window or None, False)

    def run(self) -> dict[str, Any]:
        """All checks that were asked for, after a first one that something serves at all."""
        results = [self._one("serves", self._serves)]
        alive = results[0]["verdict"] == "passed"
        for name in self._settings.checks:
            if name == "serves":
                continue
            check = _CHECKS[name]
            if not alive:
                check = _not_alive
            elif name in _NEED_UNDERSTANDING and not self._understands:
                check = _not_understanding
            results.append(self._one(name, lambda run=check: run(self)))  # type: ignore[misc]
        return {
            "url": self._client.url,
            "model": self._model.id,
            "stand_in": self._model.stand_in,
            "open": self._settings.open and self._key is None,
            "passed": all(result["verdict"] != "failed" for result in results),
            "checks": results,
        }

    @property
    def _understands(self) -> bool:
        return self._settings.thinking and not self._model.stand_in

    def _one(self, name: str, check: Callable[[], Any]) -> dict[str, Any]:
        figures: dict[str, float | int | None] = {}
        self._figures = figures
        result: dict[str, Any] = {"name": name, "verdict": "passed", "cause": "", "remedy": ""}
        started = time.monotonic()
        try:
            result["detail"] = check()
        except _Ended as ended:
            result.update(ended.fields)
        except ProbeError as error:
            result.update(
                verdict="failed", detail=str(error), cause=error.cause, remedy=error.remedy
            )
        result["detail"] = self._client.conceal(result["detail"])
        result["figures"] = figures
        result["seconds"] = round(time.monotonic() - started, 2)
        return result

    # --- asking ----------------------------------------------------------------------------------

    def _body(self, messages: Any, tokens: int, thinking: bool, more: Mapping[str, Any]) -> Any:
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        fields = self._settings.thinking_on if thinking else self._settings.thinking_off
        return {
            "model": self._model.id,
            "messages": messages,
            "max_tokens": tokens,
            "temperature": 0,
            **({} if self._fields_refused else fields),
            **more,
        }

    def _ask(
        self, messages: Any, *, tokens: int = 512, thinking: bool = False, **more: Any
    ) -> Reply:
        """One answer; once more with a larger budget when it ended inside thinking (E18)."""
        reply = self._send(messages, tokens, thinking, more)
        if reply.finish == "length" and not reply.content and not reply.tool_calls:
            reply = self._send(messages, 8 * tokens, thinking, more)
            if reply.finish == "length" and not reply.content and not reply.tool_calls:
                raise _failed(
                    "budget",
                    f"{8 * tokens} tokens were too few for thinking: "
                    f"{len(reply.reasoning)} characters of reasoning and no answer",
                    "look for repetition in the reasoning, or lower the reasoning effort",
                )
        return reply

    def _send(self, messages: Any, tokens: int, thinking: bool, more: Mapping[str, Any]) -> Reply:
        deadline = self._settings.request_timeout
        try:
            body = self._body(messages, tokens, thinking, more)
            return reply_of(self._client.call(CHAT, body, deadline=deadline))
        except ProbeError as error:
            if error.cause != "rejected" or self._fields_refused:
                raise
            # perhaps a server that knows no fields beyond OpenAI's
            self._fields_refused = True
            try:
                body = self._body(messages, tokens, thinking, more)
                return reply_of(self._client.call(CHAT, body, deadline=deadline))
            except ProbeError:
                self._fields_refused = False
                raise error from None

    def _stream(self, messages: Any, tokens: int, deadline: float, client: Client) -> Collected:
        body = self._body(
            messages, tokens, False, {"stream": True, "stream_options": {"include_usage": True}}
        )
        return collect(client.stream(CHAT, body, deadline=deadline, idle=deadline))

    # --- checks ----------------------------------------------------------------------------------

    def _serves(self) -> str:
        """A real completion of one token within a deadline; status of `/health` proves little."""
        started = time.monotonic()
        until = started + self._settings.wait
        slow = 0
        while True:
            try:
                self._choose_model()
                before = time.monotonic()
                reply = self._send("Say yes.", 1, False, {})
                break
            except ProbeError as error:
                slow += error.cause == "no-answer"
                again = time.monotonic() < until or slow == 1  # one slow answer is no death
                if error.cause not in _TOO_EARLY or not again:
                    raise self._why_not(error) from error
                time.sleep(min(2.0, max(0.0, until - time.monotonic())))
        now = time.monotonic()
        self._waited = before - started
        self._figures["canary_seconds"] = round(now - before, 3)
        tokens = reply.completion_tokens
        note = " (a stand-in engine)" if self._model.stand_in else ""
        told = "no usage reported" if tokens is None else f"tokens: {tokens}"
        return f"{self._model.id}{note} answered a completion, {told}"

    def _why_not(self, error: ProbeError) -> _Ended:
        if error.cause == "no-answer":
            try:
                health = self._client.call("/health", deadline=5).status
            except ProbeError:
                health = 0
            if health == 200:
                return _failed(
                    "group-dead",
                    f"/health says 200, but a completion had no answer: {error}. The HTTP process "
                    "lives, the ranks behind it do not",
                    "look at the unit and the log of every rank",
                )
        return _failed(error.cause, str(error), error.remedy)

    def _choose_model(self) -> None:
        listed = models(self._client.call("/v1/models", deadline=self._settings.canary_timeout))
        wanted = self._settings.model
        if not listed and not wanted:
            raise ProbeError("no-model", "the server lists no model", "name the model")
        found = next((model for model in listed if model.id == wanted), None)
        if wanted and found is None:
            # SGLang's router serves names and lists paths of weights, or this where it was not told
            if any(not model.id.startswith("/") and model.id != "unknown" for model in listed):
                names = ", ".join(model.id for model in listed)
                raise ProbeError(
                    "other-model",
                    f"expected the model {wanted}, found {names}",
                    "is this the right server?",
                )
            found = Model(wanted, None, False)
        chosen = found or listed[0]
        self._model = chosen._replace(window=self._settings.window or chosen.window)

    def load(self) -> str:
        """Load time as whoever started the engine measured it, or as it was waited for here."""
        limit, seconds = self._settings.load_limit, self._settings.load_seconds
        if seconds is None and self._waited < 1:
            raise _Ended("skipped", "it was serving already; nobody told how long loading took")
        took = self._waited if seconds is None else seconds
        self._figures["load_seconds"] = round(took, 1)
        if took > limit:
            raise _failed("slow-load", f"took {took:.0f} s to serve, expected {limit:.0f} s")
        return f"served after {took:.0f} s" + (" of waiting" if seconds is None else "")

    def chat(self) -> str:
        reply = self._ask("What is 19 + 23? Answer with the number only.", tokens=256)
        _stopped(reply)
        _clean(reply)
        if "42" not in reply.content:
            raise _failed("wrong-answer", f"19 + 23 is 42, the answer was {_short(reply.content)}")
        return "answered 19 + 23 and stopped by itself"

    def reasoning(self) -> str:
        reply = self._ask("What is 17 x 23?", tokens=2048, thinking=True)
        _stopped(reply)
        _clean(reply)
        if not reply.reasoning:
            raise _failed(
                "no-reasoning",
                "neither reasoning_content nor reasoning is in the answer",
                "start the engine with its reasoning parser, and see that thinking is asked for",
            )
        if "391" not in reply.content:
            raise _failed("wrong-answer", f"17 x 23 is 391, the answer was {_short(reply.content)}")
        return f"thought in {reply.reasoning_field}, answered 391 in content"

    def tools(self) -> str:
        part, stock = f"K-{self._random.randint(100, 999)}", self._random.randint(2000, 9999)
        tool = {
            "type": "function",
            "function": {
                "name": "stock_of_part",
                "description": "How many pieces of a part are in stock.",
                "parameters": {
                    "type": "object",
                    "properties": {"part": {"type": "string", "description": "Such as K-17."}},
                    "required": ["part"],
                },
            },
        }
        asked = {"role": "user", "content": f"How many pieces of part {part} are in stock?"}
        reply = self._ask([asked], tokens=1024, tools=[tool], tool_choice="auto")
        _clean(reply)
        if not reply.tool_calls:
            raise _failed("no-tool-call", f"no tool was called; answer: {_short(reply.content)}")
        call = reply.tool_calls[0]
        try:
            arguments = json.loads(call.arguments)
        except ValueError:
            arguments = None
        if len(reply.tool_calls) > 1 or call.name != "stock_of_part" or arguments != {"part": part}:
            told = ", ".join(f"{one.name}({one.arguments})" for one in reply.tool_calls)
            wanted = json.dumps({"part": part})
            raise _failed(
                "wrong-tool-call", f"expected stock_of_part({wanted}), found {_short(told)}"
            )
        number = call.id or "call-1"
        called = {
            "role": "assistant",
            "content": reply.content or None,
            "tool_calls": [
                {
                    "id": number,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
            ],
        }
        # a reasoning model wants its own thoughts back with a tool's result
        if reply.reasoning_field:
            called[reply.reasoning_field] = reply.reasoning
        result = {"role": "tool", "tool_call_id": number, "content": json.dumps({"pieces": stock})}
        reply = self._ask([asked, called, result], tokens=1024, tools=[tool], tool_choice="auto")
        _stopped(reply)
        _clean(reply)
        if str(stock) not in reply.content.replace(",", ""):
            raise _failed(
                "result-unused", f"the tool said {stock}, the answer {_short(reply.content)}"
            )
        return f"called stock_of_part for {part} and used its result"

    def context(self) -> str:
        window, share = self._model.window, self._settings.needle_share
        if not window:
            raise _failed(
                "no-window",
                "the server does not tell the length of its context window",
                "give the length of the window",
            )
        sample = max(1, min(200, window // 100))
        text = "".join(self._records(sample))
        counted = self._send(f"{text}\nSay yes.", 1, False, {}).prompt_tokens
        if not counted:
            raise _failed("no-usage", "the server reports no tokens, so a prompt cannot be sized")
        target = min(int(share * window), window - 1024)
        code = f"{self._random.randint(0, 10**8):08d}"
        records = self._records(int(target * sample / counted))
        records.insert(int(len(records) * self._random.uniform(0.1, 0.9)), f"Code: {code}.\n")
        question = "One line above gives a code. What is it? Answer with the code only."
        answered = self._stream(
            f"{''.join(records)}\n{question}", 512, self._settings.needle_timeout, self._client
        )
        reply = answered.reply
        tokens = reply.prompt_tokens
        self._figures.update(prompt_tokens=tokens, ttft_seconds=_round(reply.first_at))
        if tokens and reply.first_at:
            self._figures["prefill_tokens_per_second"] = round(tokens / reply.first_at, 1)
        if code not in reply.content:
            raise _failed(
                "code-forgotten",
                f"the code {code} in a prompt of {tokens or '?'} tokens came back as "
                f"{_short(reply.content)}",
            )
        # sized by a sample, so a little off is no fault
        if not tokens or tokens < 0.97 * target:
            raise _failed(
                "prompt-cut",
                f"the prompt was sized for {target} tokens, the server counts {tokens}",
                "does the server cut long prompts?",
            )
        return f"recalled a code from {tokens} tokens, {tokens / window:.0%} of the window"

    def _records(self, count: int) -> list[str]:
        pick = self._random
        return [
            f"Record {number}: {pick.choice(_GOODS)} from {pick.choice(_PORTS)}, "
            f"{pick.randint(2, 98)} crates, {pick.choice(_STATES)}.\n"
            for number in range(count)
        ]

    def speed(self) -> str:
        """Tokens as the server counts them, between the first and the last: the prompt is apart."""
        wanted, rates = self._settings.decode_tokens, []
        for _run in range(3):  # the first after a start is several times slower
            reply = self._stream(
                "Tell a long story about a lighthouse keeper and the sea.",
                wanted,
                self._settings.request_timeout,
                self._client,
            ).reply
            if reply.completion_tokens is None:
                self._figures.update(
                    decode_tokens_per_second=None, ttft_seconds=_round(reply.first_at)
                )
                raise _failed(
                    "no-usage",
                    "the server reports no tokens although usage was asked for, so decode speed "
                    "cannot be measured",
                    "leave speed out, or let the server report usage in streams",
                )
            if reply.first_at is None or reply.last_at is None:
                raise _failed("no-text", f"{reply.completion_tokens} tokens, and no text of them")
            elapsed = reply.last_at - reply.first_at
            if reply.completion_tokens < min(32, wanted) or elapsed <= 0:
                if not self._understands:  # it says what it likes, and a stand-in in no time
                    raise _Ended("not_applicable", "too few tokens, of no model that counts")
                raise _failed(
                    "too-short",
                    f"{reply.completion_tokens} tokens in {elapsed:.2f} s after the first say "
                    "nothing about speed",
                    "does something between here and the engine collect the stream?",
                )
            rates.append(((reply.completion_tokens - 1) / elapsed, reply.first_at))
        rate, ttft = sorted(rates)[1]
        self._figures.update(
            decode_tokens_per_second=round(rate, 1), ttft_seconds=round(ttft, 3), runs=len(rates)
        )
        told = f"{rate:.1f} tokens/s, first token after {ttft:.2f} s (median of {len(rates)})"
        if not self._understands:
            raise _Ended("not_applicable", f"{told}; of no model that counts")
        least = self._settings.decode_min
        if rate < least:
            raise _failed("slow", f"{told}, expected {least:g} tokens/s or more")
        return told

    def vision(self) -> str:
        colour, pixel = self._random.choice(
            [("red", (220, 20, 20)), ("green", (20, 160, 40)), ("blue", (30, 60, 220))]
        )
        image = b64encode(picture(pixel)).decode()
        content = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
            {"type": "text", "text": "What colour is the square? Answer with one word."},
        ]
        try:
            reply = self._ask([{"role": "user", "content": content}])
        except ProbeError as error:
            if error.cause != "rejected":
                raise
            raise _failed(
                "no-images", f"images are refused: {error}", "leave vision out for this model"
            ) from error
        if colour not in reply.content.lower():
            raise _failed(
                "wrong-answer", f"the square is {colour}, the answer {_short(reply.content)}"
            )
        return f"saw that the square is {colour}"

    def structured(self) -> str:
        schema = {
            "type": "object",
            "properties": {"city": {"type": "string"}, "population": {"type": "integer"}},
            "required": ["city", "population"],
            "additionalProperties": False,
        }
        reply = self._ask(
            "Give the capital of France and roughly how many people live there.",
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "capital", "schema": schema, "strict": True},
            },
        )
        _stopped(reply)
        try:
            found = json.loads(reply.content)
        except ValueError:
            found = None
        fits = (
            isinstance(found, dict)
            and set(found) == {"city", "population"}
            and isinstance(found["city"], str)
            and isinstance(found["population"], int)
            and not isinstance(found["population"], bool)
        )
        if not fits:
            raise _failed("schema-ignored", f"does not fit the schema: {_short(reply.content)}")
        if "Paris" not in found["city"]:
            raise _failed("wrong-answer", f"the capital of France is not {_short(found['city'])}")
        return "answered in the schema asked for"

    def streaming(self) -> str:
        answered = self._stream(
            "Count from one to twenty.", 64, self._settings.request_timeout, self._client
        )
        reply = answered.reply
        self._figures.update(events=answered.events, ttft_seconds=_round(reply.first_at))
        if reply.first_at is None:
            raise _failed("no-text", f"{answered.events} events, and no text in them")
        self._figures["completion_tokens"] = reply.completion_tokens
        if not answered.usage_events:
            raise _failed(
                "no-usage",
                "no usage in the stream although stream_options asked for it",
                "clients that bill or limit by tokens see nothing; use a newer engine",
            )
        return f"{answered.events} well framed events, {reply.completion_tokens} tokens, [DONE]"

    def concurrency(self) -> str:
        """Answers must not mix; a group that breaks under a batch often breaks only there."""
        count = self._settings.concurrency
        words = [f"{word}-{self._random.randint(100, 999)}" for word in _words(count)]

        def one(word: str) -> Reply:
            text = f"Repeat this word and nothing else: {word}"
            client = self._make(self._key)
            return self._stream(text, 256, self._settings.request_timeout, client).reply

        started = time.monotonic()
        with ThreadPoolExecutor(count) as pool:
            replies = list(pool.map(one, words))
        elapsed = time.monotonic() - started
        tokens = [reply.completion_tokens for reply in replies]
        known = [number for number in tokens if number is not None]
        self._figures["requests"] = count
        self._figures["tokens_per_second"] = (
            round(sum(known) / elapsed, 1) if len(known) == count else None
        )
        if self._understands:
            for word, reply in zip(words, replies, strict=True):
                if word.lower() not in reply.content.lower():
                    raise _failed(
                        "mixed-answers",
                        f"one of {count} at once was to repeat {word}, and said "
                        f"{_short(reply.content)}",
                        "compare with one request at a time; a batch that breaks is the engine's",
                    )
            return f"{count} at once, each with its own answer"
        return f"{count} at once, each complete"

    def auth(self) -> str:
        if self._key is None:
            if self._settings.open:
                raise _Ended(
                    "not_applicable", "OPEN: without a key by decision; anybody may use it"
                )
            raise _failed(
                "open",
                "it answers without a key",
                "give the key file, or say that the endpoint is to be open",
            )
        wrong = {
            "no key": {},
            "a wrong key": {"Authorization": f"Bearer {secrets.token_urlsafe(32)}"},
            "the key without its end": {"Authorization": f"Bearer {self._key[:-1]}"},
            "the key in other case": {"Authorization": f"Bearer {self._key.swapcase()}"},
        }
        if self._key.swapcase() == self._key:
            del wrong["the key in other case"]
        body = self._body("Say yes.", 1, False, {})
        for path, sent in (("/v1/models", None), (CHAT, body)):
            for name, headers in wrong.items():
                answer = self._client.call(
                    path, sent, headers=headers, deadline=self._settings.canary_timeout
                )
                if answer.status not in (401, 403):
                    raise _failed(
                        "open",
                        f"{path} with {name}: expected status 401, found {answer.status}",
                        "whoever reaches the port may use it: close it until this is repaired",
                    )
        other = self._client.call(
            "/v1/models",
            headers={"x-api-key": self._key},
            deadline=self._settings.canary_timeout,
        )
        taken = "taken" if other.status == 200 else f"not taken (status {other.status})"
        return f"refuses {', '.join(wrong)}; the key in x-api-key is {taken}"

    def closed(self) -> str:
        reached, telling = [], []
        for path in self._settings.closed_paths:
            answer = self._client.call(path, deadline=self._settings.canary_timeout)
            if answer.status not in (401, 403, 404):
                reached.append(f"{path} ({answer.status})")
            if "[key]" in answer.text:
                telling.append(path)
        if telling:
            raise _failed("key-told", f"the key is in the answer of {', '.join(telling)}")
        if reached:
            raise _failed(
                "reachable",
                f"administrative endpoints are reached: {', '.join(reached)}",
                "put an entry before the engine that lets only /v1/ pass",
            )
        return f"{len(self._settings.closed_paths)} administrative endpoints are closed"


def _not_alive(_probe: Probe) -> str:
    raise _Ended("skipped", "nothing serves")


def _not_understanding(_probe: Probe) -> str:
    raise _Ended("not_applicable", "needs a model that understands; this one does not")


_CHECKS: Mapping[str, Callable[[Probe], str]] = {
    "serves": Probe._serves,  # noqa: SLF001
    "load": Probe.load,
    "chat": Probe.chat,
    "reasoning": Probe.reasoning,
    "tools": Probe.tools,
    "context": Probe.context,
    "speed": Probe.speed,
    "vision": Probe.vision,
    "structured": Probe.structured,
    "streaming": Probe.streaming,
    "concurrency": Probe.concurrency,
    "auth": Probe.auth,
    "closed": Probe.closed,
}
CHECKS = tuple(_CHECKS)


def _stopped(reply: Reply) -> None:
    if reply.finish != "stop":
        raise _failed(
            "did-not-stop",
            f"expected finish_reason stop, found {reply.finish}: {_short(reply.content)}",
        )


def _clean(reply: Reply) -> None:
    for place, text in (("content", reply.content), ("reasoning", reply.reasoning)):
        found = leaked_markup(text)
        if found:
            raise _failed(
                "markup-leaked",
                f"{found} in {place}: the tool parser is not active",
                "start the engine with the tool parser of this model",
            )
    found = leaked_thinking(reply.content)
    if found:
        raise _failed(
            "thinking-leaked",
            f"{found} in content: the reasoning parser is not active",
            "start the engine with the reasoning parser of this model",
        )


def picture(colour: tuple[int, int, int], size: int = 128) -> bytes:
    """A PNG: a square of a colour, half as wide as the white ground it lies on."""
    edge = size // 4
    rows = bytearray()
    for y in range(size):
        rows.append(0)  # no filter
        for x in range(size):
            inside = edge <= x < size - edge and edge <= y < size - edge
            rows += bytes(colour if inside else (255, 255, 255))
    header = struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(bytes(rows))), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def _words(count: int) -> Iterator[str]:
    for number in range(count):
        yield _GOODS[number % len(_GOODS)]


def _short(text: str) -> str:
    text = " ".join(text.split())
    return repr(text if len(text) <= 80 else f"{text[:80]}...")


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


_GOODS = "amber barley copper damask ebony flax ginger hemp indigo jute kelp linen".split()
_PORTS = "Aveiro Bergen Cadiz Dublin Esbjerg Faro Genoa Hull Izmir Jaffa Kiel Lisbon".split()
_STATES = ("sealed and dry", "opened by customs", "waiting for the tide", "paid in advance")
