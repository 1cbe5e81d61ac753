# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""One point of a benchmark: so many streams at once, so long a prompt, so many tokens out.

Tokens are those that the server reports, never pieces of a stream: with speculation a piece has
several. Every prompt is another one, so no prefix cache helps. Rounds that warm up are not counted.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._benchmark_text import (
    excerpt,
    prose,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_answers import (
    Reply,
    collect,
    models,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_http import (
    Chunk,
    Client,
    ProbeError,
)

_CHAT = "/v1/chat/completions"
_PER_TOKEN = 4.3  # characters, until the server has counted a prompt
_FIRST = 2000  # characters of the prompt by which it does
# Beyond OpenAI's schema: an answer that goes on for as long as was asked. SGLang and vLLM know it.
_LONG = {"ignore_eos": True}
_TASK = "Continue this text in its own manner, without a comment of yours.\n\n"


class Point(NamedTuple):
    """What is measured. Times are seconds."""

    streams: int = 1
    prompt_tokens: int = 512
    output_tokens: int = 256
    warmups: int = 1
    rounds: int = 3
    timeout: float = 600
    model: str = ""
    text: str = ""  # prompts are parts of it; made prose without it


class Sent(NamedTuple):
    """A request that was answered; times are seconds since all of its round were sent."""

    reply: Reply
    begin: float
    end: float
    cached: int | None

    @property
    def decode_rate(self) -> float | None:
        """Tokens per second between the first and the last piece; None for less than two."""
        count, first, last = self.reply.completion_tokens, self.reply.first_at, self.reply.last_at
        if count is None or count < 2 or first is None or last is None or last <= first:
            return None
        return (count - 1) / (last - first)


class Bench:
    """Measures points at one endpoint.

    Args:
        client: of the endpoint.
        seed: of the prompts; another one for each run, or caches know them.
    """

    def __init__(self, client: Client, seed: str) -> None:
        self._client = client
        self._seed = seed
        self._asked = 0
        self._fields: Mapping[str, Any] = _LONG

    def measure(self, point: Point) -> dict[str, Any]:
        """Figures of a point; `failures` has a sentence for each request that got no answer.

        Returns:
            `streams`, `model`, `stand_in`; `prompt_tokens`, `output_tokens`, `cached_tokens` as the
            server counted them, medians; `ttft_seconds`, `itl_seconds`, `decode_tokens_per_second`
            of a stream, medians with `_low` and `_high` over all; `total_tokens_per_second` out of
            all streams and `prefill_tokens_per_second`, medians over rounds with the same.

        Raises:
            ProbeError: the endpoint does not answer at all.
        """
        offered = models(self._client.call("/v1/models", deadline=30))
        chosen = [one for one in offered if not point.model or one.id == point.model]
        if not chosen:
            raise ProbeError(
                "no-model", f"the server lists no model {point.model}", "see /v1/models"
            )
        model = chosen[0]
        per_token = self._calibrate(model.id, point)
        failures: list[str] = []
        rounds = []
        for number in range(point.warmups + point.rounds):
            sent, failed = self._round(model.id, point, per_token)
            if number >= point.warmups:
                rounds.append(sent)
                failures += failed
        return {
            "streams": point.streams,
            "prompt_tokens_wanted": point.prompt_tokens,
            "output_tokens_wanted": point.output_tokens,
            "rounds": point.rounds,
            "warmups": point.warmups,
            "model": model.id,
            "stand_in": model.stand_in,
            "text": "given" if point.text else "made prose",
            "failures": failures,
            **figures(rounds),
        }

    def _calibrate(self, model: str, point: Point) -> float:
        """How many characters a token of these prompts has, as the server counts."""
        size = min(_FIRST, int(point.prompt_tokens * _PER_TOKEN))
        text = self._prompt(point, size)
        reply = self._ask(model, text, point._replace(output_tokens=1)).reply
        if not reply.prompt_tokens:
            raise ProbeError(
                "no-usage",
                "the server does not report the tokens of a stream, and nothing else counts them",
                "enable usage in streams (stream_options.include_usage)",
            )
        return len(text) / reply.prompt_tokens

    def _round(self, model: str, point: Point, per_token: float) -> tuple[list[Sent], list[str]]:
        size = int(point.prompt_tokens * per_token)
        prompts = [self._prompt(point, size) for _number in range(point.streams)]
        begin = time.monotonic()

        def ask(prompt: str) -> Sent | str:
            at = time.monotonic() - begin
            try:
                sent = self._ask(model, prompt, point)
            except ProbeError as error:
                return f"{error.cause}: {error}"
            return sent._replace(begin=at, end=time.monotonic() - begin)

        with ThreadPoolExecutor(point.streams) as pool:
            answers = list(pool.map(ask, prompts))
        return (
            [one for one in answers if isinstance(one, Sent)],
            [one for one in answers if isinstance(one, str)],
        )

    def _prompt(self, point: Point, characters: int) -> str:
        # The number comes first: what differs only later shares a prefix.
        self._asked += 1
        seed = f"{self._seed}-{self._asked}"
        head = f"Text {seed}. {_TASK}"
        rest = max(40, characters - len(head))
        return head + (excerpt(point.text, seed, rest) if point.text else prose(seed, rest))

    def _ask(self, model: str, prompt: str, point: Point) -> Sent:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": point.output_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        cached: list[int] = []
        try:
            chunks = self._stream({**body, **self._fields}, point.timeout)
            reply = collect(_noting(chunks, cached)).reply
        except ProbeError as error:
            if error.cause != "rejected" or not self._fields:
                raise
            # A server that knows no more than OpenAI's schema; its answers end where they like.
            chunks = self._stream(body, point.timeout)
            reply = collect(_noting(chunks, cached)).reply
            self._fields = {}
        return Sent(reply, 0, 0, cached[-1] if cached else None)

    def _stream(self, body: Mapping[str, Any], timeout: float) -> Iterator[Chunk]:
        return self._client.stream(_CHAT, body, deadline=timeout, idle=timeout)


def _noting(chunks: Iterable[Chunk], cached: list[int]) -> Iterator[Chunk]:
    """The same, with what the server says of its prefix cache."""
    for chunk in chunks:
        if "cached_tokens" in chunk.data:
            usage = (json.loads(chunk.data) or {}).get("usage") or {}
            count = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
            if isinstance(count, int):
                cached.append(count)
        yield chunk


def figures(rounds: Sequence[Sequence[Sent]]) -> dict[str, Any]:
    """What rounds of answered requests come to; None where nothing tells."""
    every = [sent for one in rounds for sent in one]
    told: dict[str, Any] = {
        "answered": len(every),
        "prompt_tokens": _median([sent.reply.prompt_tokens for sent in every]),
        "output_tokens": _median([sent.reply.completion_tokens for sent in every]),
        "cached_tokens": _median([sent.cached for sent in every]),
    }
    rates = [sent.decode_rate for sent in every]
    told |= _spread("ttft_seconds", [sent.reply.first_at for sent in every])
    told |= _spread("itl_seconds", [1 / rate for rate in rates if rate])
    told |= _spread("decode_tokens_per_second", rates)
    told |= _spread("total_tokens_per_second", [_total(one) for one in rounds])
    told |= _spread("prefill_tokens_per_second", [_prefill(one) for one in rounds])
    return told


def _total(sent: Sequence[Sent]) -> float | None:
    """Tokens out of all streams of a round, over the time from the first piece to the last."""
    counts = [one.reply.completion_tokens for one in sent]
    firsts = [one.begin + one.reply.first_at for one in sent if one.reply.first_at is not None]
    lasts = [one.begin + one.reply.last_at for one in sent if one.reply.last_at is not None]
    if not firsts or None in counts or max(lasts) <= min(firsts):
        return None
    # The first token of the first stream came before the time began.
    return (sum(count for count in counts if count) - 1) / (max(lasts) - min(firsts))


def _prefill(sent: Sequence[Sent]) -> float | None:
    """Tokens of all prompts of a round, over the time until the last of them was read."""
    counts = [one.reply.prompt_tokens for one in sent]
    firsts = [one.begin + one.reply.first_at for one in sent if one.reply.first_at is not None]
    if not firsts or None in counts or max(firsts) <= 0:
        return None
    return sum(count for count in counts if count) / max(firsts)


def _spread(name: str, values: Sequence[float | None]) -> dict[str, float | None]:
    known = [value for value in values if value is not None]
    return {
        name: _median(known),
        f"{name}_low": min(known, default=None),
        f"{name}_high": max(known, default=None),
    }


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
