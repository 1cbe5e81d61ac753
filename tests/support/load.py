# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A steady load of streamed requests, each of which is completed or failed, and none forgotten."""

from __future__ import annotations

import threading
import time
from collections import Counter
from types import TracebackType

from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_answers import collect
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_http import (
    Client,
    ProbeError,
)


class Load:
    """Clients that ask one after the other until the block ends; then what runs is waited for.

    A stream counts as completed when it came to its end with a reason: half an answer under status
    200 is a failure.
    """

    def __init__(self, url: str, key: str | None, model: str, *, clients: int = 4) -> None:
        self._client = Client(url, key)
        self._model = model
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(clients)]
        self.sent = 0
        self.completed = 0
        self.failed: Counter[str] = Counter()
        self.longest = 0.0
        self._count = threading.Lock()

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(300)

    def __str__(self) -> str:
        failed = ", ".join(f"{number} x {why}" for why, number in self.failed.items()) or "none"
        return (
            f"sent {self.sent}, completed {self.completed}, failed {failed}, "
            f"longest {self.longest:.1f} s"
        )

    def _ask(self) -> None:
        body = {
            "model": self._model,
            "messages": [{"role": "user", "content": "Tell me a long story."}],
            "max_tokens": 400,
            "stream": True,
        }
        while not self._stop.is_set():
            began = time.monotonic()
            with self._count:
                self.sent += 1
            try:
                found = collect(
                    self._client.stream("/v1/chat/completions", body, deadline=200, idle=100)
                )
                why = "" if found.reply.finish else "no reason to end"
            except ProbeError as error:
                why = f"{error.cause}: {error}"
            with self._count:
                self.longest = max(self.longest, time.monotonic() - began)
                if why:
                    self.failed[why] += 1
                else:
                    self.completed += 1
