# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A stand-in for the Hugging Face hub: one repository, the few requests its downloader makes."""

from __future__ import annotations

import hashlib
import json
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple


class Request(NamedTuple):
    method: str
    path: str
    start: int  # first byte asked for
    token: str


class Hub:
    """Serves the files of a directory as one revision of a repository.

    Attributes:
        requests: what was asked, in order.
        rate: bytes a second of each file, None for no limit; can be changed at any time.
        free: how many bytes of each file go out before the rate counts.
        down: every request is answered with 503.
        token: requests without it are refused, where it is set.
    """

    def __init__(self, directory: Path, repository: str, revision: str) -> None:
        self._directory = directory
        self._repository = repository
        self._revision = revision
        self._oids: dict[str, str] = {}
        self.requests: list[Request] = []
        self.rate: int | None = None
        self.free = 0
        self.down = False
        self.token = ""

    def asked_for(self, name: str, method: str = "GET") -> list[Request]:
        return [r for r in self.requests if r.path.endswith(f"/{name}") and r.method == method]

    @contextmanager
    def serve(self, address: str) -> Iterator[str]:
        """Answer on a free port of an address; the value is the endpoint."""
        server = ThreadingHTTPServer((address, 0), self._handler())
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://{address}:{server.server_port}"
        finally:
            server.shutdown()
            server.server_close()

    def oid(self, path: Path) -> str:
        """As the hub has them: SHA-256 of large files, Git's own hash of the others."""
        if path.name not in self._oids:
            data = path.read_bytes()
            if path.suffix == ".safetensors":
                self._oids[path.name] = hashlib.sha256(data).hexdigest()
            else:
                blob = b"blob %d\0" % len(data) + data
                self._oids[path.name] = hashlib.sha1(blob).hexdigest()
        return self._oids[path.name]

    def _tree(self) -> list[dict[str, object]]:
        entries: list[dict[str, object]] = []
        for path in sorted(self._directory.iterdir()):
            size, oid = path.stat().st_size, self.oid(path)
            entry: dict[str, object] = {"type": "file", "path": path.name, "size": size, "oid": oid}
            if path.suffix == ".safetensors":
                entry["lfs"] = {"oid": oid, "size": size, "pointerSize": 134}
            entries.append(entry)
        return entries

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer()

            def do_GET(self) -> None:
                self._answer()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Requests are kept, not printed."""

            def _answer(self) -> None:
                asked = re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))
                start = int(asked[1]) if asked else 0
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                path = self.path.partition("?")[0]
                hub.requests.append(Request(self.command, path, start, token))
                api = f"/api/models/{hub._repository}"
                resolve = f"/{hub._repository}/resolve/{hub._revision}/"
                if hub.down:
                    self._send(503, b"{}")
                elif hub.token and token != hub.token:
                    self._send(401, b"{}")
                elif path == f"{api}/revision/{hub._revision}":
                    siblings = [{"rfilename": str(entry["path"])} for entry in hub._tree()]
                    told = {"id": hub._repository, "sha": hub._revision, "siblings": siblings}
                    self._send(200, json.dumps(told).encode())
                elif path == f"{api}/tree/{hub._revision}":
                    self._send(200, json.dumps(hub._tree()).encode())
                elif path.startswith(resolve):
                    self._file(hub._directory / path.removeprefix(resolve), start, bool(asked))
                else:
                    self._send(404, b"{}")

            def _send(self, code: int, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            def _file(self, path: Path, start: int, partial: bool) -> None:
                if not path.is_file():
                    self._send(404, b"{}")
                    return
                data = path.read_bytes()
                self.send_response(206 if partial else 200)
                self.send_header("ETag", f'"{hub.oid(path)}"')
                self.send_header("X-Repo-Commit", hub._revision)
                self.send_header("X-Linked-Size", str(len(data)))
                self.send_header("X-Linked-Etag", f'"{hub.oid(path)}"')
                self.send_header("Accept-Ranges", "bytes")
                self.send_header("Content-Length", str(len(data) - start))
                if partial:
                    self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
                self.end_headers()
                if self.command == "GET":
                    self._body(data[start:])

            def _body(self, data: bytes) -> None:
                sent = 0
                try:
                    while sent < len(data):
                        # As often as the rate may have been changed meanwhile.
                        step = len(data)
                        if hub.rate is not None:
                            step = hub.free - sent if sent < hub.free else max(1, hub.rate // 10)
                        self.wfile.write(data[sent : sent + step])
                        sent += step
                        if hub.rate is not None:
                            time.sleep(0.1)
                except ConnectionError:
                    self.close_connection = True

        return Handler
