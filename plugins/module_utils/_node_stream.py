# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Send what a command prints to several nodes at once, over addresses of the fabric.

Installed on nodes as one file and run there without Ansible, with the settings as JSON on standard
input, by ``node_stream.py send`` and ``node_stream.py receive``. What is sent is read once, however
many receive it, and goes at the pace of the slowest.

A receiver asks over HTTP for a path that is a token of this one transfer; whoever does not know it
gets nothing. Chunked encoding makes a stream that was cut recognisable. What arrived is judged by
whoever started the transfer, from its content.
"""

# Also runs without Ansible, whose run_command belongs to modules.
# pylint: disable=ansible-bad-function

from __future__ import annotations

import contextlib
import hmac
import http.client
import http.server
import json
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

CHUNK = 1 << 20
PERIOD = 2.0  # seconds between two lines of progress
STALL = 600.0  # seconds for which one side may not move: docker load stops to unpack
COMPRESS = ("zstd", "-1", "-T0", "-q", "-c")
UNCOMPRESS = ("zstd", "-d", "-q", "-c")


class StreamError(Exception):
    """The transfer did not come to its end; the text is for people."""


class Meter:
    """Tells how far a stream has come, at a calm pace."""

    def __init__(self, expected: int, say: Callable[[str], None], period: float = PERIOD) -> None:
        self._expected = expected
        self._say = say
        self._period = period
        self._begun = self._told = time.monotonic()
        self.bytes = 0

    def add(self, count: int) -> None:
        self.bytes += count
        now = time.monotonic()
        if now - self._told >= self._period:
            self._told = now
            self._say(self.line(now))

    def line(self, now: float) -> str:
        """`3.1 GiB of about 24.0 GiB (13 %), 310 MiB/s, 1:09 left`."""
        rate = self.bytes / max(now - self._begun, 1e-3)
        text = f"{self.bytes / 2**30:.1f} GiB"
        if self._expected:
            # What is expected is an estimate: a stream that goes beyond it is never above 99 %.
            share = min(99, self.bytes * 100 // self._expected)
            text += f" of about {self._expected / 2**30:.1f} GiB ({share} %)"
        text += f", {rate / 2**20:.0f} MiB/s"
        left = self._expected - self.bytes
        if left > 0 and rate:
            seconds = int(left / rate)
            text += f", {seconds // 60}:{seconds % 60:02d} left"
        return text


class _Server(http.server.ThreadingHTTPServer):
    """Collects receivers; the thread of each waits until everything is sent."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], token: str, joined: threading.Condition) -> None:
        self.token = token
        self.joined = joined
        self.receivers: dict[str, socket.socket] = {}
        self.over = threading.Event()
        self.allow_reuse_address = True
        super().__init__(address, _Handler)

    def server_bind(self) -> None:
        """As a plain server: the one for HTTP asks the name service for its own name."""
        socketserver.TCPServer.server_bind(self)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        if not hmac.compare_digest(self.path.encode(), f"/{self.server.token}".encode()):
            self.send_error(404)
            return
        self.connection.settimeout(STALL)
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        with self.server.joined:
            address, port = self.client_address[:2]
            self.server.receivers[f"{address}:{port}"] = self.connection
            self.server.joined.notify_all()
        self.server.over.wait()
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing: the path of a request is the token."""


def send(settings: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Wait for all receivers, then send them what a command prints.

    Args:
        settings: `command` to run, `listen` on these addresses, `port`, `token`, the number of
            `receivers`, `gather` seconds to wait for them, whether to `compress`, and about how
            many `bytes` the command prints.
        say: called with lines for people.

    Raises:
        StreamError: an address cannot be had, the command fails, or not every receiver got all.
    """
    joined = threading.Condition()
    servers: list[_Server] = []
    try:
        for address in settings["listen"]:
            try:
                server = _Server((address, settings["port"]), settings["token"], joined)
            except OSError as error:
                raise StreamError(
                    f"{address} port {settings['port']} cannot be listened on: {error.strerror}. "
                    "Is the fabric configured, and the port free? See: ip -br addr; ss -ltnp"
                ) from error
            servers.append(server)
            threading.Thread(target=server.serve_forever, daemon=True).start()
        receivers = _gather(servers, joined, settings)
        say(f"sending to {', '.join(receivers)}")
        lost = _broadcast(receivers, settings, say)
    finally:
        for server in servers:
            server.over.set()
            server.shutdown()
            server.server_close()
    if lost:
        raise StreamError("not sent to the end: " + "; ".join(lost))


def _gather(
    servers: Sequence[_Server], joined: threading.Condition, settings: Mapping[str, Any]
) -> dict[str, socket.socket]:
    def present() -> dict[str, socket.socket]:
        return {name: one for server in servers for name, one in server.receivers.items()}

    with joined:
        joined.wait_for(lambda: len(present()) >= settings["receivers"], settings["gather"])
        found = present()
    if len(found) < settings["receivers"]:
        raise StreamError(
            f"only {len(found)} of {settings['receivers']} receivers came within "
            f"{settings['gather']} s ({', '.join(found) or 'none'})"
        )
    return found


def _broadcast(
    receivers: dict[str, socket.socket], settings: Mapping[str, Any], say: Callable[[str], None]
) -> list[str]:
    """Send to all, and leave behind those that fail; returns who and why."""
    lost: list[str] = []
    meter = Meter(settings.get("bytes", 0), say)
    commands = [list(settings["command"])] + ([list(COMPRESS)] if settings["compress"] else [])
    children: list[subprocess.Popen[bytes]] = []
    with _ended(children):
        for command in commands:
            source = subprocess.PIPE if children else subprocess.DEVNULL
            children.append(_popen(command, stdin=source, stdout=subprocess.PIPE))
        if settings["compress"]:
            # What goes into the compressor is counted: of that, the whole is about known.
            threading.Thread(target=_pump, args=(*children, meter), daemon=True).start()
        for chunk in _chunks(children[-1].stdout):
            if not settings["compress"]:
                meter.add(len(chunk))
            _to_all(receivers, b"%x\r\n%b\r\n" % (len(chunk), chunk), lost)
            if not receivers:
                return lost
        failed = _failures(children, commands)
    if failed:
        raise StreamError(failed)  # without the last chunk: receivers see that the stream was cut
    _to_all(receivers, b"0\r\n\r\n", lost)
    say(f"sent {meter.line(time.monotonic())} to {len(receivers)}")
    return lost


def _pump(source: subprocess.Popen[bytes], sink: subprocess.Popen[bytes], meter: Meter) -> None:
    """From one child into the other; its failure is seen from how they end."""
    with contextlib.suppress(OSError, ValueError):
        for chunk in _chunks(source.stdout):
            meter.add(len(chunk))
            if sink.stdin:
                sink.stdin.write(chunk)
    with contextlib.suppress(OSError, ValueError):
        if sink.stdin:
            sink.stdin.close()


def _chunks(stream: IO[bytes] | None) -> Iterator[bytes]:
    if stream:
        yield from iter(lambda: stream.read(CHUNK), b"")


def _to_all(receivers: dict[str, socket.socket], data: bytes, lost: list[str]) -> None:
    for name, receiver in list(receivers.items()):
        try:
            receiver.sendall(data)
        except OSError as error:
            lost.append(f"{name} ({error.strerror or error})")
            del receivers[name]


def receive(settings: Mapping[str, Any], say: Callable[[str], None]) -> None:
    """Fetch a stream and feed it to a command.

    Args:
        settings: `address`, `port` and `token` of the sender, the `command` that reads the stream,
            whether it is `compress`ed, about how many `bytes` come, and for how many seconds
            (`gather`) the sender is tried for.
        say: called with lines for people.

    Raises:
        StreamError: the sender cannot be reached, the stream is cut, or the command fails.
    """
    answer = _ask(settings)
    # Of what is compressed on its way the whole is not known here; the sender tells it.
    meter = Meter(0 if settings["compress"] else settings.get("bytes", 0), say)
    commands = ([list(UNCOMPRESS)] if settings["compress"] else []) + [list(settings["command"])]
    children: list[subprocess.Popen[bytes]] = []
    with _ended(children):
        for number, command in enumerate(commands):
            source = children[-1].stdout if children else subprocess.PIPE
            last = number == len(commands) - 1
            children.append(_popen(command, stdin=source, stdout=None if last else subprocess.PIPE))
            if children[:-1] and children[-2].stdout:
                children[-2].stdout.close()  # so that the first learns when the second ends
        sink = children[0].stdin
        try:
            for chunk in iter(lambda: answer.read(CHUNK), b""):
                meter.add(len(chunk))
                if sink:
                    sink.write(chunk)
        except (http.client.HTTPException, OSError) as error:
            # The last first: it would take an orderly end for the whole.
            for child in reversed(children):
                child.kill()
                child.wait()
            why = error.strerror if isinstance(error, OSError) else type(error).__name__
            raise StreamError(f"the stream was cut after {meter.bytes} bytes: {why}") from error
        say(f"received {meter.line(time.monotonic())}; waiting for {commands[-1][0]}")
        with contextlib.suppress(OSError):
            if sink:
                sink.close()
        failed = _failures(children, commands)
    if failed:
        raise StreamError(failed)
    say(f"received {meter.bytes / 2**30:.1f} GiB")


def _ask(settings: Mapping[str, Any]) -> http.client.HTTPResponse:
    until = time.monotonic() + settings["gather"]
    while True:
        connection = http.client.HTTPConnection(
            settings["address"], settings["port"], timeout=STALL
        )
        try:
            connection.request("GET", f"/{settings['token']}")
            answer = connection.getresponse()
        except OSError as error:
            connection.close()
            if time.monotonic() > until:
                raise StreamError(
                    f"the sender {settings['address']} port {settings['port']} was not reached "
                    f"within {settings['gather']} s: {error.strerror or error}"
                ) from error
            time.sleep(0.3)
            continue
        if answer.status != 200:
            connection.close()
            raise StreamError(f"the sender answers {answer.status}: it sends something else")
        return answer


def _popen(command: Sequence[str], **streams: Any) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, **streams)  # pylint: disable=consider-using-with
    except OSError as error:
        raise StreamError(f"{command[0]}: {error.strerror}") from error


@contextlib.contextmanager
def _ended(children: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Whatever happens, no child is left behind."""
    try:
        yield
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
            child.wait()
            for stream in (child.stdin, child.stdout):
                if stream:
                    with contextlib.suppress(OSError):
                        stream.close()


def _failures(
    children: Sequence[subprocess.Popen[bytes]], commands: Sequence[Sequence[str]]
) -> str:
    """Which of the commands did not end well; waits for all of them."""
    return "; ".join(
        f"{' '.join(command[:3])} ended with status {child.returncode}"
        for child, command in zip(children, commands, strict=True)
        if child.wait() != 0
    )


def _say(line: str, stream: IO[str]) -> None:
    stream.write(f"{line}\n")
    stream.flush()


def main(argv: Sequence[str]) -> int:
    """The program: `send` or `receive`, settings as JSON on standard input."""
    actions = {"send": send, "receive": receive}
    if len(argv) != 1 or argv[0] not in actions:
        _say("usage: node_stream.py send|receive < settings.json", sys.stderr)
        return 2
    try:
        settings = json.load(sys.stdin)
        actions[argv[0]](settings, lambda line: _say(line, sys.stdout))
    except (ValueError, KeyError, TypeError) as error:
        _say(f"the settings are not usable: {error!r}", sys.stderr)
        return 2
    except StreamError as error:
        _say(str(error), sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
