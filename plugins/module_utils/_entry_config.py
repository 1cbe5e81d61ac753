# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The entry as text: its nginx configuration, its map of keys and its systemd unit."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._entry_keys import Key

NGINX = "/usr/sbin/nginx"
MAP = "keys.map"
CELLS = "cells.conf"


class Place(NamedTuple):
    """Where one of the entries of a node is kept, by its name."""

    name: str

    @property
    def folder(self) -> str:
        """Its settings."""
        return f"/etc/sparkfleet/{self.name}"

    @property
    def state(self) -> str:
        """What it needs while it runs."""
        return f"/var/lib/sparkfleet/{self.name}"

    @property
    def unit_name(self) -> str:
        """The name of its systemd unit."""
        return f"sparkfleet-{self.name}.service"

    @property
    def unit(self) -> str:
        """The file of that unit."""
        return f"/etc/systemd/system/{self.unit_name}"

    @property
    def wanted(self) -> str:
        """The link that starts it at boot."""
        return f"/etc/systemd/system/multi-user.target.wants/{self.unit_name}"

    @property
    def port_variable(self) -> str:
        """The variable that chooses its port."""
        return "spark_api_port" if self.name == "entry" else "router_api_port"

    def drained(self, cell: str) -> str:
        """The file whose existence keeps new requests from a cell."""
        return f"{self.state}/drained/{cell}"


ENTRY = Place("entry")
ROUTER_ENTRY = Place("router-entry")

# Below /v1/, and yet no business of clients.
_CLOSED = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/loads")
_PATH = re.compile(r"/[A-Za-z0-9._-][A-Za-z0-9._/-]*")
_CELL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_CELL_URL = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?/?")
_RANGES = (
    ("port", 1, 65535),
    ("engine_port", 1, 65535),
    ("body_mib", 1, 65536),
    ("timeout", 1, 86400),
    ("workers", 1, 256),
)
_HEADER = """\
# Written by the Ansible collection sparkfleet.cluster. Its next run undoes what is changed
# here: change the inventory instead.
"""


class Cell(NamedTuple):
    """A cell behind a router: its loopback port here, its own entry, and the key for that."""

    name: str
    port: int
    url: str
    key: str


class Settings(NamedTuple):
    """What the entry is like. Certificate and key are paths on the node; empty is plain HTTP."""

    port: int
    engine_port: int
    addresses: Sequence[str] = ("0.0.0.0",)
    open: bool = False
    paths: Sequence[str] = ("/v1/",)
    body_mib: int = 256
    timeout: int = 3600
    workers: int = 4
    certificate: str = ""
    certificate_key: str = ""
    certificate_digest: str = ""  # so that a renewed certificate is a change
    cells: Sequence[Cell] = ()


def faults(settings: Settings) -> list[str]:
    """Everything that is wrong with the settings, as sentences."""
    said = [
        f"{name} is {getattr(settings, name)}, expected {low} to {high}"
        for name, low, high in _RANGES
        if not low <= getattr(settings, name) <= high
    ]
    ports = [settings.port, settings.engine_port, *(cell.port for cell in settings.cells)]
    if len(set(ports)) < len(ports) and settings.cells:
        said.append(f"the ports of the entry, the router and the cells are not different: {ports}")
    for cell in settings.cells:
        if not _CELL_NAME.fullmatch(cell.name):
            said.append(f"{cell.name!r} is no name of a cell")
        if not _CELL_URL.fullmatch(cell.url):
            said.append(
                f"the cell {cell.name} is at {cell.url!r}, expected http://ADDRESS:PORT or "
                "https://NAME:PORT"
            )
        if not 1 <= cell.port <= 65535:
            said.append(f"the port of the cell {cell.name} is {cell.port}, expected 1 to 65535")
    if settings.port == settings.engine_port:
        said.append(f"the entry and the engine cannot both have port {settings.port}")
    if not settings.addresses:
        said.append("no address to listen on; 0.0.0.0 is every IPv4 address of the host")
    for address in settings.addresses:
        try:
            ipaddress.ip_address(address)
        except ValueError:
            said.append(f"{address!r} is no IP address to listen on")
    return said + [
        f"{path!r} cannot be let through; expected a path such as /v1/ or /metrics, "
        "and never all of them"
        for path in settings.paths
        if not _PATH.fullmatch(path) or ".." in path or "//" in path
    ]


def key_map(keys: Sequence[Key]) -> str:
    r"""The keys as regular expressions: plain strings in a map of nginx are compared caseless.

    >>> key_map([Key("alice", "sk-a.b")])
    '"~^\\Qsk-a.b\\E$" "alice";\n'
    """
    return "".join(f'"~^\\Q{key}\\E$" "{name}";\n' for name, key in keys)


def configuration(settings: Settings, place: Place = ENTRY, folder: str = "") -> str:
    """The nginx configuration that reads its map of keys from `folder`, by default the place's."""
    return "\n".join(_lines(settings, place, folder or place.folder)) + "\n"


def cells_configuration(settings: Settings, place: Place = ROUTER_ENTRY) -> str:
    """Servers on loopback for a router, each of which passes all to one cell with that cell's key.

    A connection is one request, so that those still running can be counted. Where the file of
    `Place.drained` exists new requests are refused in a way that makes the router try another cell.
    """
    return _HEADER + "".join(
        _CELL.format(
            port=cell.port,
            body_mib=settings.body_mib,
            timeout=settings.timeout,
            key=cell.key,
            url=cell.url.rstrip("/"),
            flag=place.drained(cell.name),
            drained=_error(f"the cell {cell.name} is drained", "cell_drained"),
            silent=_error(f"the cell {cell.name} does not answer", "cell_unavailable"),
        )
        for cell in settings.cells
    )


def _lines(settings: Settings, place: Place, folder: str) -> Iterator[str]:
    yield _HEADER.rstrip()
    yield "user www-data;"
    yield f"worker_processes {settings.workers};"
    yield f"pid /run/sparkfleet-{place.name}.pid;"
    yield "daemon off;"
    yield "error_log stderr error;"
    yield "events { worker_connections 4096; }"
    yield "http {"
    for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"):
        yield f"    {kind}_temp_path {place.state}/{kind};"
    yield _LOG.format(tag=f"sparkfleet_{place.name}".replace("-", "_"))
    yield from _clients(settings, folder)
    yield "    server {"
    secure = bool(settings.certificate)
    for address in settings.addresses:
        host = f"[{address}]" if ":" in address else address
        yield f"        listen {host}:{settings.port}{' ssl' if secure else ''};"
    if secure:
        yield f"        # sha256 {settings.certificate_digest}"
        yield f'        ssl_certificate "{settings.certificate}";'
        yield f'        ssl_certificate_key "{settings.certificate_key}";'
        yield "        ssl_protocols TLSv1.2 TLSv1.3;"
        yield "        error_page 497 =400 @plain;"
        yield _answer("@plain", 400, "this port speaks https", "https_required")
    yield f"        client_max_body_size {settings.body_mib}m;"
    yield _SERVER.format(timeout=settings.timeout)
    yield _answer("@large", 413, f"the request is larger than {settings.body_mib} MiB", "too_large")
    yield _answer("@silent", 502, "the engine does not answer", "engine_unavailable")
    yield _answer("/", 404, "closed at this entry", "not_found")
    # nginx would redirect from there, which is an answer too many
    for path in [*_CLOSED, *(path[:-1] for path in settings.paths if path.endswith("/"))]:
        yield _answer(f"= {path}", 404, "closed at this entry", "not_found")
    yield _location("= /health", "/health", settings, guarded=False)
    for path in settings.paths:
        yield _location(path if path.endswith("/") else f"= {path}", path, settings)
    yield "    }"
    if settings.cells:
        yield f"    include {folder}/{CELLS};"
    yield "}"


def _clients(settings: Settings, folder: str) -> Iterator[str]:
    """The name behind a key, empty without a right one. Nothing else of a key is ever logged."""
    if settings.open:
        yield '    map "" $entry_client { default anyone; }'
        return
    yield "    map $http_authorization $entry_token {"
    yield '        "~^(?i:bearer) +(?<entry_key>[^ ]+) *$" $entry_key;'
    yield "    }"
    for source, name in (("$entry_token", "bearer"), ("$http_x_api_key", "header")):
        yield f"    map {source} $entry_{name} {{ include {folder}/{MAP}; }}"
    yield '    map $entry_bearer $entry_client { default $entry_bearer; "" $entry_header; }'


def _location(match: str, path: str, settings: Settings, *, guarded: bool = True) -> str:
    """A path to the engine. The URI in proxy_pass makes nginx send the path that it has judged."""
    lines = [f"        location {match} {{"]
    if guarded:
        refusal = _error("missing or wrong API key", "invalid_api_key")
        lines += [
            '            if ($entry_client = "") {',
            "                add_header WWW-Authenticate Bearer always;",
            f"                return 401 '{refusal}';",
            "            }",
        ]
    else:
        lines.append("            access_log off;")
    lines.append(f"            proxy_pass http://127.0.0.1:{settings.engine_port}{path};")
    return "\n".join([*lines, "        }"])


def _answer(match: str, status: int, message: str, code: str) -> str:
    return f"        location {match} {{ return {status} '{_error(message, code)}'; }}"


def _error(message: str, code: str) -> str:
    """As OpenAI's clients expect it."""
    return f'{{"error": {{"message": "{message}", "type": "entry", "code": "{code}"}}}}'


def unit(place: Place = ENTRY) -> str:
    """The systemd unit; the site's own nginx, if there is one, has nothing to do with it."""
    return f"""{_HEADER}[Unit]
Description={_PURPOSES[place.name]}
Wants=network-online.target
After=network-online.target

[Service]
Type=exec
ExecStart={NGINX} -e stderr -c {place.folder}/nginx.conf
ExecReload=/bin/kill -HUP $MAINPID
KillSignal=SIGQUIT
KillMode=mixed
TimeoutStopSec=10
Restart=on-failure
RestartSec=5
NoNewPrivileges=yes
PrivateTmp=yes
ProtectHome=read-only
ProtectSystem=strict
ReadWritePaths=/run {place.state}

[Install]
WantedBy=multi-user.target
"""


_PURPOSES = {
    "entry": "Entry of the sparkfleet cell",
    "router-entry": "Entry of the sparkfleet router",
}

_LOG = """\
    # The path without its query, and the name of the key instead of the key.
    log_format entry escape=json '{{"client":"$entry_client","from":"$remote_addr",'
        '"request":"$request_method $uri","status":$status,"bytes":$body_bytes_sent,'
        '"seconds":$request_time,"first_byte":"$upstream_header_time"}}';
    access_log syslog:server=unix:/dev/log,nohostname,tag={tag} entry;
    default_type application/json;
    server_tokens off;"""

_SERVER = """\
        # Prompts and answers pass as they come and never touch the disk.
        proxy_request_buffering off;
        proxy_buffering off;
        proxy_http_version 1.1;
        # An engine that closes an idle connection meanwhile would cost the next request.
        proxy_set_header Connection close;
        proxy_set_header Host $host;
        proxy_set_header X-Forwarded-For $remote_addr;
        # The engine never sees a key.
        proxy_set_header Authorization "";
        proxy_set_header X-Api-Key "";
        proxy_read_timeout {timeout}s;
        proxy_send_timeout {timeout}s;
        send_timeout {timeout}s;
        error_page 413 = @large;
        error_page 502 504 = @silent;"""

_CELL = """\
server {{
    listen 127.0.0.1:{port};
    keepalive_timeout 0;
    access_log off;
    client_max_body_size {body_mib}m;
    proxy_request_buffering off;
    proxy_buffering off;
    proxy_http_version 1.1;
    proxy_set_header Connection close;
    proxy_set_header Authorization "Bearer {key}";
    proxy_set_header X-Api-Key "";
    proxy_connect_timeout 5s;
    proxy_read_timeout {timeout}s;
    proxy_send_timeout {timeout}s;
    send_timeout {timeout}s;
    proxy_ssl_server_name on;
    proxy_ssl_verify on;
    proxy_ssl_verify_depth 4;
    proxy_ssl_trusted_certificate /etc/ssl/certs/ca-certificates.crt;
    error_page 502 504 = @silent;
    location @silent {{ return 502 '{silent}'; }}
    location / {{
        if (-f {flag}) {{ return 503 '{drained}'; }}
        proxy_pass {url};
    }}
}}
"""
