# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""A small HTTP client for probes: every request ends by its deadline, whatever the server does.

The key goes into a header and nowhere else: no text that this module hands out contains it.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._sse import Decoder

MAX_BYTES = 64 * 2**20  # of one answer; more is an answer that never ends


class ProbeError(Exception):
    """No usable answer.

    Attributes:
        cause: a stable word for the kind of failure.
        remedy: what to do next.
    """

    def __init__(self, cause: str, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.cause = cause
        self.remedy = remedy


class Answer(NamedTuple):
    """A whole HTTP answer; `document` is None where the body is not JSON."""

    status: int
    content_type: str
    text: str
    document: Any


class Chunk(NamedTuple):
    """The data of one event of a stream, and when it came: seconds since the request was sent."""

    data: str
    at: float


class Client:
    """Talks to one server.

    Args:
        url: `http[s]://host[:port][/base]`; a base of `/v1` may be given or left out.
        key: sent as a bearer token; None sends none.
        timeout: longest wait for a connection, in seconds.
        validate_certs: whether the certificate must be valid for the host.
        ca_file: certificates to trust instead of the system's.

    Raises:
        ValueError: the address is none, or the certificates cannot be read; the text is for people.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        *,
        timeout: float = 10,
        validate_certs: bool = True,
        ca_file: str | None = None,
    ) -> None:
        try:
            parts = urllib.parse.urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise ValueError(f"{url!r} is no address of a server: {error}") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no address of a server; expected http://host:port")
        self.url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._base = parts.path.rstrip("/").removesuffix("/v1")
        self._host, self._port = parts.hostname, port
        self._key = key
        self._timeout = timeout
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            try:
                self._tls = ssl.create_default_context(cafile=ca_file)
            except OSError as error:
                raise ValueError(f"{ca_file} cannot be used as certificates: {error}") from error
            if not validate_certs:
                self._tls.check_hostname = False
                self._tls.verify_mode = ssl.CERT_NONE

    def conceal(self, text: str) -> str:
        """The text without the key, should a server send it back."""
        return text.replace(self._key, "[key]") if self._key else text

    def call(
        self,
        path: str,
        body: Any = None,
        *,
        method: str = "",
        headers: Mapping[str, str] | None = None,
        deadline: float = 30,
    ) -> Answer:
        """One request and its whole answer, within `deadline` seconds.

        Args:
            path: below the root of the server, such as `/v1/models`.
            body: sent as JSON; None sends none.
            method: POST with a body and GET without by default.
            headers: replace those that carry the key.
            deadline: seconds for everything.

        Raises:
            ProbeError: refused, unreachable, silent, too slow, endless or no HTTP.
        """
        with _Exchange(self, deadline) as exchange:
            response = exchange.send(path, body, method, headers)
            data = bytearray()
            for portion in exchange.portions(response):
                data += portion
            text = self.conceal(data.decode("utf-8", "replace"))
            return Answer(response.status, _media_type(response), text, _json(text))

    def stream(self, path: str, body: Any, *, deadline: float, idle: float) -> Iterator[Chunk]:
        """The data of the events of a stream, as they come.

        Args:
            path: as in `call`.
            body: sent as JSON.
            deadline: seconds for the whole stream.
            idle: longest silence, in seconds.

        Raises:
            ProbeError: as in `call`, or the answer is no event stream, or it is cut off.
        """
        with _Exchange(self, deadline, idle) as exchange:
            started = time.monotonic()
            response = exchange.send(path, body, "", None)
            kind = _media_type(response)
            if response.status != 200 or kind != "text/event-stream":
                data = b"".join(exchange.portions(response))
                text = self.conceal(data.decode("utf-8", "replace"))
                raise unexpected(Answer(response.status, kind, text, _json(text)), "a stream")
            decoder = Decoder()
            for portion in exchange.portions(response):
                at = time.monotonic() - started
                for event in decoder.feed(portion):
                    yield Chunk(self.conceal(event.data), at)
            if decoder.unfinished:
                raise ProbeError("truncated", "the stream ended inside an event")

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        timeout = min(timeout, self._timeout)
        if self._tls:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=timeout, context=self._tls
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=timeout)


class _Exchange:
    """One connection with a watch over it.

    Socket timeouts begin anew with every byte, so a server that trickles outlasts any of them; at
    the deadline the watch shuts the connection down under whoever reads.
    """

    def __init__(self, client: Client, deadline: float, idle: float | None = None) -> None:
        self._client = client
        self._deadline = deadline
        self._idle = min(idle or deadline, deadline)
        self._connection = client._connection(deadline)  # noqa: SLF001
        self._watch = threading.Timer(deadline, self._expire)
        self._watch.daemon = True
        self._expired = False
        self._socket: socket.socket | None = None

    def __enter__(self) -> _Exchange:
        self._watch.start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._watch.cancel()
        self._connection.close()
        if isinstance(error, (OSError, http.client.HTTPException)):
            raise self._named(error) from error

    def _expire(self) -> None:
        self._expired = True
        if self._socket is not None:
            # the method of the plain socket: that of a TLS socket is not made for two threads
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def send(
        self, path: str, body: Any, method: str, headers: Mapping[str, str] | None
    ) -> http.client.HTTPResponse:
        client = self._client
        sent = {"Accept": "*/*", "Connection": "close"}
        if headers is None:
            headers = {"Authorization": f"Bearer {client._key}"} if client._key else {}  # noqa: SLF001
        sent.update(headers)
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            sent["Content-Type"] = "application/json"
        self._connection.connect()
        self._socket = self._connection.sock
        self._connection.sock.settimeout(self._idle)
        if self._expired:
            raise TimeoutError
        target = client._base + path  # noqa: SLF001
        try:
            self._connection.request(method or ("POST" if data else "GET"), target, data, sent)
        except (BrokenPipeError, ConnectionResetError):
            # refused before all was sent, as with a body too large; the answer may be there already
            if self._expired:
                raise
        response = self._connection.getresponse()
        if self._expired:
            raise TimeoutError
        return response

    def portions(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        # Counted here: older versions of http.client do not count what read1 gives.
        announced = None if response.chunked else response.length
        size = 0
        while announced is None or size < announced:
            portion = response.read1(65536 if announced is None else min(65536, announced - size))
            if self._expired:
                raise TimeoutError
            if not portion:
                if announced is not None:
                    raise http.client.IncompleteRead(b"", announced - size)
                return
            size += len(portion)
            if size > MAX_BYTES:
                raise ProbeError(
                    "endless",
                    f"the answer of {self._client.url} is longer than {MAX_BYTES // 2**20} MiB "
                    "and goes on",
                )
            yield portion

    def _named(self, error: BaseException) -> ProbeError:
        url = self._client.url
        if self._expired or isinstance(error, TimeoutError):
            limit = self._deadline if self._expired else self._idle
            return ProbeError("no-answer", f"no complete answer of {url} within {limit:g} s")
        if isinstance(error, ssl.SSLCertVerificationError):
            return ProbeError(
                "certificate",
                f"the certificate of {url} is not trusted: {error.verify_message}",
                "give the certificate as ca_file, or the name that it is made out to in the URL",
            )
        if isinstance(error, ssl.SSLError):
            return ProbeError(
                "no-tls", f"{url} does not speak TLS: {error.reason}", "use http:// in the URL"
            )
        if isinstance(error, socket.gaierror):
            return ProbeError("no-address", f"the host name in {url} has no address")
        if isinstance(error, ConnectionRefusedError):
            return ProbeError("refused", f"nothing listens at {url}", "start the server first")
        if isinstance(error, http.client.IncompleteRead):
            return ProbeError("truncated", f"the answer of {url} ended before its end")
        if isinstance(error, http.client.HTTPException):
            return ProbeError("no-http", f"{url} does not speak HTTP ({type(error).__name__})")
        return ProbeError("cut", f"the connection to {url} broke: {error}")


def unexpected(answer: Answer, wanted: str) -> ProbeError:
    """What an answer says that is not the one expected."""
    said = _complaint(answer)
    if answer.status in (401, 403):
        return ProbeError(
            "key-refused", f"the key is refused: status {answer.status}{said}", "check the key file"
        )
    if 300 <= answer.status < 400:
        return ProbeError(
            "redirect",
            f"redirected instead of answered: status {answer.status}",
            "give the URL that it leads to",
        )
    if answer.status >= 500:
        return ProbeError("server-error", f"status {answer.status}{said}", "read the engine's log")
    if answer.status >= 400:
        return ProbeError("rejected", f"status {answer.status}{said}")
    return ProbeError(
        "not-openai",
        f"expected {wanted}, found status {answer.status} with "
        f"{answer.content_type or 'no content type'}: {_start(answer.text)}",
        "is this the URL of an OpenAI-compatible server?",
    )


def _complaint(answer: Answer) -> str:
    document = answer.document
    error = document.get("error", document) if isinstance(document, dict) else None
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail")
    return f": {_start(str(error or answer.text))}" if error or answer.text else ""


def _start(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 160 else f"{text[:160]}..."


def _media_type(response: http.client.HTTPResponse) -> str:
    return (response.getheader("Content-Type") or "").partition(";")[0].strip().lower()


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
