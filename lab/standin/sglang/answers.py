# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers by rules: arithmetic, codes hidden in long prompts, tool calls, JSON by a schema.

A token here is a word with the space before it, so that counts are the same everywhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_SUM = re.compile(r"(\d+)\s*(x|\u00d7|\*|\+|-|\u2212|times|plus|minus)\s*(\d+)", re.IGNORECASE)
_CODE = re.compile(r"\b(?=[A-Z0-9-]*\d)(?=[A-Z0-9-]*[A-Z])[A-Z0-9]{2,}(?:-[A-Z0-9]+)*\b")
_HIDDEN = re.compile(
    r"\b(?:code|pass(?:word|phrase|code)|needle|secret|key|number)\b[^.\n?]{0,60}?"
    r"\b(?:is|was|reads|equals)\b[:\s]*[\"'`*]*([A-Za-z0-9]*\d[A-Za-z0-9-]*|[A-Z]{3,}[A-Z0-9-]*)",
    re.IGNORECASE,
)
_ASKS = re.compile(r"\b(code|pass(word|phrase|code)|needle|secret|key|number)\b", re.IGNORECASE)
IMAGE_TOKENS = 1024
_PLAIN = "This is the stand-in engine of the laboratory. It computes no model and answers by rules."


class Answer(NamedTuple):
    """What is said: thinking apart from the text, or calls of tools instead of it."""

    content: str | None
    reasoning: str | None = None
    calls: list[dict[str, Any]] = []  # noqa: RUF012  # never changed
    finish: str = "stop"


def tokens(text: str | None) -> list[str]:
    """A text in pieces that give it again when joined."""
    return re.findall(r"\s*\S+|\s+$", text or "")


def prompt_text(messages: Sequence[Mapping[str, Any]]) -> tuple[str, int]:
    """All that was written, and how many images came with it."""
    parts: list[str] = []
    images = 0
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            parts.append(content)
        for part in content if isinstance(content, list) else ():
            if part.get("type") == "text":
                parts.append(part.get("text", ""))
            elif part.get("type") == "image_url":
                images += 1
    return "\n".join(parts), images


def prompt_tokens(messages: Sequence[Mapping[str, Any]]) -> int:
    text, images = prompt_text(messages)
    return len(tokens(text)) + IMAGE_TOKENS * images + 4 * len(messages)


def answer(request: Mapping[str, Any]) -> Answer:
    """The whole answer to a chat request, before any limit of tokens."""
    messages = request["messages"]
    last = messages[-1]
    text, images = prompt_text(messages)
    question = prompt_text([last])[0]
    thinks = _thinks(request)
    if last.get("role") == "tool":
        return Answer(f"The tool says: {question}", "The result is there." if thinks else None)
    choice = request.get("tool_choice", "auto")
    if request.get("tools") and choice != "none":
        call = _call(request["tools"], choice, question)
        if call:
            return Answer(None, "A tool answers that." if thinks else None, [call], "tool_calls")
    wanted = request.get("response_format") or {}
    if wanted.get("type") == "json_schema":
        return Answer(json.dumps(_instance(wanted["json_schema"].get("schema", {}), question)))
    if wanted.get("type") == "json_object":
        return Answer(json.dumps({"answer": _reply(text, question, images)[0]}))
    said, thought = _reply(text, question, images)
    return Answer(said, thought if thinks else None)


def _thinks(request: Mapping[str, Any]) -> bool:
    options = request.get("chat_template_kwargs") or {}
    return bool(options.get("thinking", options.get("enable_thinking", True)))


def _reply(text: str, question: str, images: int) -> tuple[str, str]:
    """The text, and the thinking before it."""
    found = _SUM.search(question)
    if found:
        left, sign, right = int(found[1]), found[2].lower(), int(found[3])
        if sign in ("+", "plus"):
            result = left + right
        elif sign in ("-", "\u2212", "minus"):
            result = left - right
        else:
            result = left * right
        return str(result), f"{left} {sign} {right} makes {result}."
    if images:
        return f"There are {images} image(s), which a stand-in cannot see.", "No eyes here."
    if _ASKS.search(question):
        hidden = _HIDDEN.findall(text) or _CODE.findall(text)
        if hidden:
            return hidden[0], "It was said further up."
    return _PLAIN, "Nothing to compute."


def _call(tools: Sequence[Mapping[str, Any]], choice: Any, question: str) -> dict[str, Any] | None:
    """The tool named by the request or by the question, else the first that fits its numbers."""
    functions = [tool["function"] for tool in tools if tool.get("type") == "function"]
    named = choice.get("function", {}).get("name") if isinstance(choice, Mapping) else None
    if named:
        functions = [function for function in functions if function["name"] == named]
    if not functions:
        return None
    words = set(re.findall(r"[a-z]+", question.lower()))
    functions.sort(
        key=lambda function: (
            -len(
                words
                & set(
                    re.findall(r"[a-z]+", f"{function['name']} {function.get('description', '')}")
                )
            )
        )
    )
    function = functions[0]
    arguments = _instance(function.get("parameters", {}), question)
    return {"name": function["name"], "arguments": json.dumps(arguments)}


def _instance(schema: Mapping[str, Any], question: str) -> Any:
    """A value that a JSON schema allows, with the numbers and names of the question in order."""
    numbers = iter(re.findall(r"-?\d+(?:\.\d+)?", question))
    names = iter(
        re.findall(r"[\"'“]([^\"'”]+)[\"'”]", question)
        + re.findall(r"(?<=[a-z,] )[A-Z][a-z]+", question)
    )

    def make(part: Mapping[str, Any]) -> Any:
        if "const" in part:
            return part["const"]
        if part.get("enum"):
            found = [one for one in part["enum"] if str(one).lower() in question.lower()]
            return (found or part["enum"])[0]
        for several in ("anyOf", "oneOf", "allOf"):
            if part.get(several):
                return make(part[several][0])
        kind = part.get("type", "object" if "properties" in part else "string")
        kind = kind[0] if isinstance(kind, list) else kind
        if kind == "object":
            properties = part.get("properties", {})
            return {name: make(properties[name]) for name in properties}
        if kind == "array":
            return [make(part.get("items", {})) for _count in range(part.get("minItems", 1))]
        if kind == "integer":
            return int(float(next(numbers, "0")))
        if kind == "number":
            return float(next(numbers, "0"))
        if kind == "boolean":
            return True
        return None if kind == "null" else next(names, "text")

    return make(schema)
