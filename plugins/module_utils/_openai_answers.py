# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""What chat completions say, whole or streamed, by OpenAI's schema and the ways engines bend it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_http import (
    Answer,
    Chunk,
    ProbeError,
    unexpected,
)

# Tool calls that the engine's parser left in the text. DeepSeek writes its bars full-width, some
# chat templates in ASCII.
_MARKUP = re.compile(
    r"<[\uff5c|]\s*/?\s*DSML\s*[\uff5c|]|<[\uff5c|]tool[\u2581_ ]calls?[\u2581_ ]"
    r"|</?tool_calls?>|</?function_calls>|</?invoke\b|\[TOOL_CALLS\]"
)
_THINK = re.compile(r"</?think(?:ing)?>")
# Older SGLang and vLLM say reasoning_content, newer ones reasoning, some both.
_REASONING = ("reasoning_content", "reasoning")


class ToolCall(NamedTuple):
    """A call that the model asks for; `arguments` is the text it wrote, JSON if it did well."""

    id: str
    name: str
    arguments: str


class Reply(NamedTuple):
    """A completed answer of the model.

    Token counts are those of the server and None where it reports none. Times are seconds since the
    request was sent and None for an answer that was not streamed.
    """

    content: str
    reasoning: str
    reasoning_field: str | None
    tool_calls: list[ToolCall]
    finish: str | None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    first_at: float | None = None
    last_at: float | None = None


class Model(NamedTuple):
    """A model as the server lists it; `stand_in` says that it only pretends to understand."""

    id: str
    window: int | None
    stand_in: bool


def leaked_markup(text: str) -> str | None:
    """The first markup of a tool call in a text that should have none.

    >>> leaked_markup('<|DSML|invoke name="add">')
    '<|DSML|'
    """
    found = _MARKUP.search(text)
    return found.group() if found else None


def leaked_thinking(text: str) -> str | None:
    """The first tag of thinking in a text that should have none."""
    found = _THINK.search(text)
    return found.group() if found else None


def models(answer: Answer) -> list[Model]:
    """The models of `/v1/models`, in OpenAI's shape or in that of SGLang's router.

    Raises:
        ProbeError: it is neither.
    """
    document = answer.document
    if answer.status == 200 and isinstance(document, dict):
        entries = document.get("data", document.get("models"))
        if isinstance(entries, list):
            found = [_model(entry) for entry in entries]
            return [model for model in found if model is not None]
    raise unexpected(answer, "a list of models")


def _model(entry: Any) -> Model | None:
    if isinstance(entry, str) and entry:
        return Model(entry, None, False)
    if not isinstance(entry, dict) or not isinstance(entry.get("id"), str):
        return None
    owner = str(entry.get("owned_by", "")).lower().replace("_", "-")
    window = _count(entry.get("max_model_len"))
    if window is None:
        window = _count(entry.get("context_length"))
    return Model(entry["id"], window or None, entry.get("stand_in") is True or "stand-in" in owner)


def reply_of(answer: Answer) -> Reply:
    """The reply in the answer to a request that asked for no stream.

    Raises:
        ProbeError: there is none: an error, no choices, or a server of another kind.
    """
    document = answer.document
    if answer.status != 200 or not isinstance(document, dict):
        raise unexpected(answer, "a chat completion")
    _refuse_error(document)
    choice = _choice(document)
    if choice is None or not isinstance(choice.get("message"), dict):
        if "choices" not in document:
            raise unexpected(answer, "a chat completion")
        raise ProbeError(
            "empty-choices", "the completion has no choices", "read the engine's log of the request"
        )
    message = choice["message"]
    field, reasoning = _reasoning(message)
    calls = message.get("tool_calls")
    usage = document.get("usage")
    return Reply(
        content=_text(message.get("content")),
        reasoning=reasoning,
        reasoning_field=field,
        tool_calls=[
            ToolCall(_text(call.get("id")), *_function(call))
            for call in (calls if isinstance(calls, list) else [])
            if isinstance(call, dict)
        ],
        finish=choice.get("finish_reason"),
        prompt_tokens=_usage(usage, "prompt_tokens"),
        completion_tokens=_usage(usage, "completion_tokens"),
    )


class Collected(NamedTuple):
    """What a stream was like besides its reply."""

    reply: Reply
    events: int
    usage_events: int


def collect(chunks: Iterable[Chunk]) -> Collected:
    """Put a streamed reply together.

    Usage may come first, last, in every event or never; the last one counts, since the first is a
    promise of nothing. Success is a finish reason and `[DONE]`: status 200 was sent before either.

    Raises:
        ProbeError: the stream breaks off, tells an error or is malformed.
    """
    content, reasoning, field, finish = "", "", None, None
    calls: dict[Any, list[str]] = {}
    tokens: dict[str, int | None] = {"prompt_tokens": None, "completion_tokens": None}
    first = last = None
    events = usage_events = 0
    done = False
    for data, at in chunks:
        if data.strip() == "[DONE]":
            done = True
            break
        events += 1
        try:
            document = json.loads(data)
        except ValueError:
            document = None
        if not isinstance(document, dict):
            raise ProbeError("malformed-stream", f"an event is no JSON object: {data[:80]!r}")
        _refuse_error(document)
        if isinstance(document.get("usage"), dict):
            usage_events += 1
            for name in tokens:
                tokens[name] = _usage(document["usage"], name)
        choice = _choice(document)
        if choice is None:
            continue
        finish = choice.get("finish_reason") or finish
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            continue
        text, (name_of, thought) = _text(delta.get("content")), _reasoning(delta)
        parts = delta.get("tool_calls")
        parts = [part for part in (parts or []) if isinstance(part, dict)]
        content, reasoning, field = content + text, reasoning + thought, name_of or field
        for part in parts:
            # an engine that leaves the index out sends one call at a time
            call = calls.setdefault(part.get("index", 0), ["", "", ""])
            call[0] = call[0] or _text(part.get("id"))
            name, arguments = _function(part)
            call[1] += name
            call[2] += arguments
        if text or thought or parts:
            first, last = (at if first is None else first), at
    if not done or finish is None:
        missing = "a finish reason" if finish is None else "[DONE]"
        raise ProbeError(
            "truncated",
            f"the stream ended after {events} events without {missing}",
            "half an answer under status 200 means that the group broke: look at every rank",
        )
    return Collected(
        Reply(
            content,
            reasoning,
            field,
            [ToolCall(*call) for call in calls.values()],
            finish,
            tokens["prompt_tokens"],
            tokens["completion_tokens"],
            first,
            last,
        ),
        events,
        usage_events,
    )


def _refuse_error(document: Mapping[str, Any]) -> None:
    error = document.get("error")
    if error:
        message = error.get("message") if isinstance(error, dict) else error
        raise ProbeError(
            "error-event", f"status 200, and then an error: {message}", "read the engine's log"
        )


def _choice(document: Mapping[str, Any]) -> dict[str, Any] | None:
    choices = document.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return first if isinstance(first, dict) else None


def _reasoning(message: Mapping[str, Any]) -> tuple[str | None, str]:
    for name in _REASONING:
        if isinstance(message.get(name), str) and message[name]:
            return name, message[name]
    return None, ""


def _function(call: Mapping[str, Any]) -> tuple[str, str]:
    function = call.get("function")
    if not isinstance(function, dict):
        return "", ""
    arguments = function.get("arguments")
    if isinstance(arguments, dict):  # seen from engines that parse too much
        arguments = json.dumps(arguments)
    return _text(function.get("name")), _text(arguments)


def _text(value: Any) -> str:
    """Content may be null, or a list of parts."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value if isinstance(part, dict))
    return value if isinstance(value, str) else ""


def _usage(usage: Any, name: str) -> int | None:
    return _count(usage.get(name)) if isinstance(usage, dict) else None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
