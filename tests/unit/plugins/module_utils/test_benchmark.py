"""Figures of a benchmark: from what the server counts, over prompts that no cache knows."""

from __future__ import annotations

import itertools
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _benchmark as benchmark
from ansible_collections.sparkfleet.cluster.plugins.module_utils._benchmark import Bench, Point
from ansible_collections.sparkfleet.cluster.plugins.module_utils._benchmark_text import (
    excerpt,
    prose,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_answers import Reply
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_http import (
    Chunk,
    Client,
    ProbeError,
)

from tests.support.openai_server import MODEL, Server


def different(words: list[str], length: int) -> float:
    """The share of runs of so many words that occur only once."""
    runs = [tuple(words[at : at + length]) for at in range(len(words) - length)]
    return len(set(runs)) / len(runs)


def test_prose_does_not_repeat_itself() -> None:
    text = prose("seed", 120_000)
    words = text.split()
    assert different(words, 3) > 0.8
    assert different(words, 8) > 0.999
    # What a benchmark that flatters sends, by the same measure.
    filler = ("hello " * len(words)).split()
    assert different(filler, 3) < 0.001
    assert len(zlib.compress(text.encode())) / len(text) > 0.25


def test_no_two_prompts_share_more_than_their_words() -> None:
    first, second = prose("a-1", 40_000), prose("a-2", 40_000)
    eights = [
        {tuple(words[at : at + 8]) for at in range(len(words) - 8)}
        for words in (first.split(), second.split())
    ]
    assert len(eights[0] & eights[1]) < len(eights[0]) / 1000
    assert prose("a-1", 40_000) == first


def test_parts_of_a_given_text() -> None:
    text = " ".join(str(number) for number in range(10_000))
    parts = {excerpt(text, str(seed), 500) for seed in range(50)}
    assert len(parts) > 45
    assert all(part in text for part in parts)
    with pytest.raises(ValueError, match="the text has 5 characters, and a prompt needs 6"):
        excerpt("short", "s", 6)


def sent(
    begin: float, first: float, last: float, *, prompt: int | None = 100, out: int | None = 11
) -> benchmark.Sent:
    reply = Reply("", "", None, [], "length", prompt, out, first, last)
    return benchmark.Sent(reply, begin, begin + last, None)


def test_the_rate_of_a_stream_leaves_out_its_first_token() -> None:
    told = benchmark.figures([[sent(0, 1, 2)]])
    assert told["decode_tokens_per_second"] == 10
    assert told["itl_seconds"] == pytest.approx(0.1)
    assert told["ttft_seconds"] == 1
    assert told["prefill_tokens_per_second"] == 100
    assert (told["prompt_tokens"], told["output_tokens"]) == (100, 11)


def test_streams_together() -> None:
    told = benchmark.figures([[sent(0, 1, 2), sent(0, 2, 3)]])
    assert told["decode_tokens_per_second"] == 10
    assert told["total_tokens_per_second"] == pytest.approx(21 / 2)
    assert told["prefill_tokens_per_second"] == 100  # 200 tokens, the last read after 2 s


def test_medians_are_over_rounds_with_their_range() -> None:
    told = benchmark.figures([[sent(0, 1, 2)], [sent(0, 1, 3)], [sent(0, 1, 6)]])
    names = ("decode_tokens_per_second", "total_tokens_per_second")
    for name in names:
        assert (told[f"{name}_low"], told[name], told[f"{name}_high"]) == (2, 5, 10)


@pytest.mark.parametrize(
    "one", [sent(0, 1, 1, out=1), sent(0, 1, 2, out=None), sent(0, 1, 1, out=9)]
)
def test_what_nobody_tells_is_no_figure(one: benchmark.Sent) -> None:
    told = benchmark.figures([[one]])
    assert told["decode_tokens_per_second"] is None
    assert told["itl_seconds"] is None
    assert told["total_tokens_per_second"] is None
    assert benchmark.figures([])["ttft_seconds"] is None


# --- a server -------------------------------------------------------------------------------------


@pytest.fixture
def serve() -> Iterator[Callable[..., Server]]:
    servers = []

    def start(**more: Any) -> Server:
        server = Server(**more)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


class Recorder(Client):
    """A client that remembers what it sent."""

    def __init__(self, server: Server) -> None:
        super().__init__(f"http://127.0.0.1:{server.server_address[1]}")
        self.bodies: list[dict[str, Any]] = []

    def stream(self, path: str, body: Any, *, deadline: float, idle: float) -> Iterator[Chunk]:
        self.bodies.append(body)
        return super().stream(path, body, deadline=deadline, idle=idle)


def bench(server: Server) -> Bench:
    return Bench(Recorder(server), "seed")


def test_a_point_is_measured_in_rounds(serve: Callable[..., Server]) -> None:
    client = Recorder(serve())
    told = Bench(client, "seed").measure(Point(streams=3, rounds=2, warmups=1, prompt_tokens=300))
    assert told["model"] == MODEL
    assert told["answered"] == 6, "warm-ups do not count"
    assert told["failures"] == []
    assert told["prompt_tokens"] > 0
    assert told["ttft_seconds"] > 0
    every = [body["messages"][0]["content"] for body in client.bodies]
    assert len(every) == 1 + 3 * 3
    assert len({text[:12] for text in every}) == len(every), "no two begin alike"
    for one, other in itertools.combinations(every, 2):
        assert one[-60:] != other[-60:]


def test_requests_without_an_answer_are_told(serve: Callable[..., Server]) -> None:
    server = serve()
    made = bench(server)
    made.measure(Point(rounds=1, warmups=0))
    server.fault = "500"
    with pytest.raises(ProbeError, match="scheduler is gone"):
        made.measure(Point(rounds=1))


def test_a_server_that_counts_nothing_is_refused(serve: Callable[..., Server]) -> None:
    with pytest.raises(ProbeError, match="does not report the tokens"):
        bench(serve(fault="no-usage")).measure(Point(rounds=1))


def test_a_model_that_is_not_there(serve: Callable[..., Server]) -> None:
    with pytest.raises(ProbeError, match="lists no model other"):
        bench(serve()).measure(Point(model="other"))


class Flaky(Recorder):
    """One that loses every second request that is counted."""

    def stream(self, path: str, body: Any, *, deadline: float, idle: float) -> Iterator[Chunk]:
        self.bodies.append(body)
        if len(self.bodies) > 1 and len(self.bodies) % 2 == 0:
            raise ProbeError("cut", "the connection broke")
        return Client.stream(self, path, body, deadline=deadline, idle=idle)


def test_a_request_without_an_answer_is_no_figure_and_is_told(
    serve: Callable[..., Server],
) -> None:
    told = Bench(Flaky(serve()), "seed").measure(Point(streams=2, rounds=2, warmups=0))
    assert told["failures"] == ["cut: the connection broke"] * 2
    assert told["answered"] == 2
    assert told["decode_tokens_per_second"] is not None


def test_a_server_of_openais_schema_alone_is_asked_without_more(
    serve: Callable[..., Server],
) -> None:
    class Strict(Recorder):
        def stream(self, path: str, body: Any, *, deadline: float, idle: float) -> Iterator[Chunk]:
            if "ignore_eos" in body:
                raise ProbeError("rejected", "unknown field")
            return super().stream(path, body, deadline=deadline, idle=idle)

    client = Strict(serve())
    told = Bench(client, "seed").measure(Point(rounds=1, warmups=0))
    assert told["failures"] == []
    assert all("ignore_eos" not in body for body in client.bodies)
