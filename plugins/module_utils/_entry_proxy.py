# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Bring the entry of a node to a state: what runs is only replaced by what was tried before."""

from __future__ import annotations

import hashlib
import ipaddress
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils import _entry_config as config
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _entry_keys as entry_keys
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._entry_keys import Key, KeysError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_http import (
    Client,
    ProbeError,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._ranks import serving
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import write_whole

Run = Callable[[Sequence[str]], Command]

DAYS = 3650  # a certificate of our own lasts
RENEW = 30 * 86400  # seconds before its end in which a certificate counts as ended
_NO_NGINX = f"there is no {config.NGINX}; install the package nginx of the distribution"
_PROCESS = re.compile(r'"([^"]+)",pid=(\d+)')


class Problem(NamedTuple):
    """Why nothing is done; `code` is stable, `message` is for people."""

    code: str
    message: str


class Outcome(NamedTuple):
    """What the module returns. `keys` are names."""

    actions: Sequence[str] = ()
    diff: Sequence[Mapping[str, str]] = ()
    problems: Sequence[Problem] = ()
    warnings: Sequence[str] = ()
    keys: Sequence[str] = ()
    packages: Sequence[str] = ()


class _Refused(Exception):  # noqa: N818  # carries a problem
    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(code, message)


class Entry:
    """The entry of one node.

    Args:
        run: runs a command there, for a bounded time.
        root: its root directory.
        check: only say what would be done.
        patience: seconds until a started entry has to answer.
        place: where it is kept, of which a node can have several.
    """

    def __init__(
        self,
        run: Run,
        root: str = "/",
        check: bool = False,
        patience: float = 15,
        place: config.Place = config.ENTRY,
    ) -> None:
        self._run = run
        self._root = root
        self._check = check
        self._patience = patience
        self._place = place
        self._conf = f"{place.folder}/nginx.conf"
        self._map = f"{place.folder}/{config.MAP}"
        self._cells = f"{place.folder}/{config.CELLS}"
        self._certificate = f"{place.folder}/tls.crt"
        self._certificate_key = f"{place.folder}/tls.key"
        self._loaded = f"{place.state}/loaded"
        # beside the file of keys
        self._secret = {self._map, self._cells, self._certificate_key}

    # --- present ---------------------------------------------------------------------------------

    def present(self, params: Mapping[str, Any]) -> Outcome:
        """An entry that was tried and answers; whatever forbids it is among the problems.

        Args:
            params: those of the module `entry_proxy`.
        """
        problems: list[Problem] = []
        settings = config.Settings(
            port=params["port"],
            engine_port=params["engine_port"],
            addresses=params["addresses"],
            open=params["open"],
            paths=params["paths"],
            body_mib=params["body_mib"],
            timeout=params["timeout"],
            workers=params["workers"],
            cells=self._part(problems, lambda: self._cells_of(params)) or (),
        )
        problems += [Problem("settings", text) for text in config.faults(settings)]
        keys, key_text = self._part(problems, lambda: self._keys(params)) or ([], None)
        tls = self._part(problems, lambda: self._tls(params)) or {}
        settings = settings._replace(
            **{name: tls[name] for name in settings._fields if name in tls}
        )
        unit = self._part(problems, self._unit_state) or {}
        if unit:
            self._part(problems, lambda: self._free(settings, unit))
        packages = [] if os.path.exists(self._path(config.NGINX)) else ["nginx"]
        texts = {
            self._conf: config.configuration(settings, self._place),
            self._place.unit: config.unit(self._place),
            **({} if settings.open else {self._map: config.key_map(keys)}),
            **(
                {self._cells: config.cells_configuration(settings, self._place)}
                if settings.cells
                else {}
            ),
        }
        modes = {path: 0o600 if path in self._secret else 0o644 for path in texts}
        if key_text is not None:
            texts[params["key_file"]], modes[params["key_file"]] = key_text, 0o600
        before = {path: self._read(path) for path in texts}
        different = [
            path
            for path, text in texts.items()
            if before[path] != text or self._mode(path) != modes[path]
        ]
        # systemd reads a unit that it has never seen by itself, and remembers one that was removed.
        # A run that broke off may have written what was never loaded.
        loaded, wanted = self._read(self._loaded), self._digests(texts)
        reload_units = unit.get("LoadState") == "loaded" and (
            self._place.unit in different
            or (loaded is not None and loaded.partition("\n")[0] != wanted.partition("\n")[0])
        )
        if unit and (packages or reload_units) and not params["force"]:
            self._part(problems, lambda: self._nobody_serves(packages))
        if problems:
            return Outcome(problems=problems)
        actions = [f"install {', '.join(packages)}"] if packages else []
        actions += [f"make {path}" for path in tls.get("missing", ())]
        actions += [f"{'write' if before[path] is None else 'change'} {path}" for path in different]
        changed = bool(different or tls.get("missing")) or loaded != wanted
        actions += self._service_actions(unit, changed, reload_units)
        outcome = Outcome(
            actions=actions,
            diff=[self._diff(path, before[path], texts[path], params) for path in different],
            warnings=self._warnings(settings, tls),
            keys=[key.name for key in keys],
            packages=packages,
        )
        if self._check and actions:
            return outcome
        if packages:
            return Outcome(problems=[Problem("no-nginx", _NO_NGINX)])
        try:
            if actions:
                self._apply(settings, params, keys, texts, modes, different, actions)
            self._prove(settings, keys)
        except _Refused as refused:
            return outcome._replace(problems=[refused.problem])
        return outcome

    def _apply(
        self,
        settings: config.Settings,
        params: Mapping[str, Any],
        keys: Sequence[Key],
        texts: Mapping[str, str],
        modes: Mapping[str, int],
        different: Sequence[str],
        actions: Sequence[str],
    ) -> None:
        for folder in (self._place.folder, self._place.state):
            os.makedirs(self._path(folder), mode=0o755, exist_ok=True)
        if f"make {self._certificate}" in actions:
            self._make_certificate(params["tls_names"])
            digest = self._file_digest(self._certificate, self._certificate_key)
            settings = settings._replace(certificate_digest=digest)
            texts = {**texts, self._conf: config.configuration(settings, self._place)}
        if different:
            self._try_out(settings, keys)
        for path in different:
            self._write(path, texts[path], modes[path])
        for action in actions:
            if action.startswith("systemctl "):
                self._must(action.split())
        self._write(self._loaded, self._digests(texts), 0o644)

    def _try_out(self, settings: config.Settings, keys: Sequence[Key]) -> None:
        """Let nginx read everything in a place of its own before anything is replaced."""
        aside = tempfile.mkdtemp(prefix=".try-", dir=self._path(self._place.folder))
        try:
            trial = os.path.join(aside, "nginx.conf")
            for path, text in (
                (trial, config.configuration(settings, self._place, aside)),
                (os.path.join(aside, config.MAP), config.key_map(keys)),
                (
                    os.path.join(aside, config.CELLS),
                    config.cells_configuration(settings, self._place),
                ),
            ):
                with open(path, "w", encoding="utf-8") as stream:
                    stream.write(text)
            done = self._run([config.NGINX, "-t", "-q", "-e", "stderr", "-c", trial])
            if done.rc != 0:
                said = done.complaint.replace(aside, self._place.folder)
                for secret in [key.key for key in keys] + [cell.key for cell in settings.cells]:
                    said = said.replace(secret, "[key]")
                raise _Refused(
                    "refused-by-nginx",
                    f"nginx refuses the new configuration, so the old one stays: {said}",
                )
        finally:
            shutil.rmtree(aside)

    def _prove(self, settings: config.Settings, keys: Sequence[Key]) -> None:
        """Ask at the door: without a key it must say 401, and with one anything but that."""
        address = settings.addresses[0]
        if ipaddress.ip_address(address).is_unspecified:
            address = "127.0.0.1" if ":" not in address else "::1"
        host = f"[{address}]" if ":" in address else address
        url = f"{'https' if settings.certificate else 'http'}://{host}:{settings.port}"
        cases: list[tuple[str, str | None, bool]] = [("no key", None, settings.open)]
        if keys and not settings.open:
            cases.append((f"the key {keys[-1].name}", keys[-1].key, True))
        until = time.monotonic() + self._patience
        for name, key, welcome in cases:
            while True:
                try:
                    client = Client(url, key, validate_certs=False)
                    # a path that the engine has to answer at once, or the door in its place
                    status = client.call("/v1/models", deadline=5).status
                    found = f"status {status}"
                    if (status != 401) is welcome:
                        break
                except ProbeError as error:
                    found = str(error)
                    if error.cause == "no-answer" and welcome:
                        break  # let in, to an engine that hangs
                if time.monotonic() > until:
                    expected = "anything but status 401" if welcome else "status 401"
                    raise _Refused(
                        "not-answering",
                        f"the entry at {url} with {name}: expected {expected}, found {found}. "
                        f"Look at: journalctl -u {self._place.unit_name}",
                    )
                time.sleep(0.2)

    # --- absent ----------------------------------------------------------------------------------

    def absent(self) -> Outcome:
        """No entry. Keys stay, so that clients need no new ones when it comes back."""
        try:
            unit = self._unit_state()
        except _Refused as refused:
            return Outcome(problems=[refused.problem])
        actions = []
        if unit["ActiveState"] not in ("inactive", "failed"):
            actions.append(f"systemctl stop {self._place.unit_name}")
        if self._enabled():
            actions.append(f"systemctl --root=/ disable {self._place.unit_name}")
        places = [self._place.unit, self._place.folder, self._place.state]
        removed = [place for place in places if os.path.lexists(self._path(place))]
        actions += [f"remove {place}" for place in removed]
        if not self._check:
            try:
                for action in actions:
                    if action.startswith("systemctl "):
                        self._must(action.split())
            except _Refused as refused:
                return Outcome(problems=[refused.problem])
            for place in map(self._path, removed):
                if os.path.isdir(place):
                    shutil.rmtree(place)
                else:
                    os.unlink(place)
        return Outcome(actions=actions)

    # --- parts -----------------------------------------------------------------------------------

    @staticmethod
    def _part(problems: list[Problem], part: Callable[[], Any]) -> Any:
        """All problems are told in one run."""
        try:
            return part()
        except _Refused as refused:
            problems.append(refused.problem)
            return None

    def _keys(self, params: Mapping[str, Any]) -> tuple[list[Key], str | None]:
        """The keys, and the text of their file where that is ours to write."""
        if params["open"]:
            if params["keys"]:
                raise _Refused("open-with-keys", "the entry cannot be open and have keys")
            return [], None
        path = params["key_file"]
        try:
            if params["keys"]:
                given = [Key(str(name), str(key)) for name, key in params["keys"].items()]
                text = entry_keys.render(given)
                return entry_keys.parse(text, "the given keys"), text
            old = self._read(path)
            if old is not None:
                if "\ufffd" in old:
                    raise KeysError(f"{path} is no text")
                return entry_keys.parse(old, path), old
        except KeysError as error:
            hint = "" if params["keys"] else ". Repair it, or remove it and a key is generated"
            raise _Refused("keys", f"{error}{hint}") from error
        except OSError as error:
            message = f"the key file {path} cannot be read: {error.strerror}"
            raise _Refused("keys", message) from error
        new = entry_keys.generate("default")
        return [new], entry_keys.render([new])

    @staticmethod
    def _cells_of(params: Mapping[str, Any]) -> list[config.Cell]:
        """The cells behind a router; what is given as a key may be the text of a file of keys."""
        found, wrong = [], []
        for cell in params.get("cells") or ():
            try:
                text = str(params["cell_keys"].get(cell["name"], ""))
                key = entry_keys.pick(text, "", f"the key of the cell {cell['name']}")
                found.append(config.Cell(cell["name"], cell["port"], cell["url"], key))
            except KeysError as error:
                wrong.append(str(error))
        if wrong:
            raise _Refused("keys", "; ".join(wrong))
        return found

    def _tls(self, params: Mapping[str, Any]) -> dict[str, Any]:
        mode = params["tls"]
        if mode == "off":
            return {}
        if mode == "given":
            certificate, key = params["tls_certificate"], params["tls_certificate_key"]
            reason = self._certificate_fault(certificate, key, 0)
            if reason:
                raise _Refused("tls", reason)
            missing: list[str] = []
        else:
            certificate, key = self._certificate, self._certificate_key
            self._names(params["tls_names"])
            fits = not self._certificate_fault(certificate, key, RENEW) and self._made_out_to(
                certificate, params["tls_names"]
            )
            missing = [] if fits else [self._certificate]
        return {
            "certificate": certificate,
            "certificate_key": key,
            "certificate_digest": "" if missing else self._file_digest(certificate, key),
            "missing": missing,
            "soon": mode == "given" and self._ends_within(certificate, RENEW),
        }

    def _certificate_fault(self, certificate: str, key: str, within: int) -> str:
        """Why a certificate and a key cannot serve; empty if they can."""
        public = []
        for path, words in (
            (certificate, ["x509", "-noout", "-pubkey", "-in"]),
            (key, ["pkey", "-pubout", "-passin", "pass:", "-in"]),
        ):
            if not os.path.exists(self._path(path)):
                return f"there is no file {path or '(no path given)'} on the host"
            done = self._run(["openssl", *words, self._path(path)])
            if done.rc != 0:
                what = "certificate" if path == certificate else "private key without passphrase"
                return f"{path} is no {what} in PEM form: {done.complaint}"
            public.append(done.out.strip())
        if public[0] != public[1]:
            return f"the key {key} does not belong to the certificate {certificate}"
        if self._ends_within(certificate, within):
            return f"the certificate {certificate} has ended; renew it"
        return ""

    def _ends_within(self, certificate: str, seconds: int) -> bool:
        path = self._path(certificate)
        argv = ["openssl", "x509", "-noout", "-checkend", str(seconds), "-in", path]
        return self._run(argv).rc != 0

    def _made_out_to(self, certificate: str, names: Sequence[str]) -> bool:
        path = self._path(certificate)
        done = self._run(["openssl", "x509", "-noout", "-ext", "subjectAltName", "-in", path])
        found = set(re.findall(r"(?:DNS|IP Address):([^,\s]+)", done.out))
        return {name.lower() for name in names} == {name.lower() for name in found}

    @staticmethod
    def _names(names: Sequence[str]) -> str:
        """The names of a certificate in the form of openssl."""
        parts = []
        for name in names:
            try:
                parts.append(f"IP:{ipaddress.ip_address(name)}")
            except ValueError:
                if not re.fullmatch(r"[A-Za-z0-9*]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", name):
                    raise _Refused(
                        "tls", f"{name!r} is no name that a certificate can be made out to"
                    ) from None
                parts.append(f"DNS:{name}")
        if not parts:
            raise _Refused("tls", "a certificate needs at least one name or address")
        return ",".join(parts)

    def _make_certificate(self, names: Sequence[str]) -> None:
        aside = tempfile.mkdtemp(prefix=".tls-", dir=self._path(self._place.folder))  # mode 0700
        try:
            key, certificate = os.path.join(aside, "key"), os.path.join(aside, "crt")
            self._must(
                ["openssl", "req", "-x509", "-newkey", "ec", "-nodes", "-days", str(DAYS)]
                + ["-pkeyopt", "ec_paramgen_curve:P-256", "-subj", "/CN=sparkfleet entry"]
                + ["-addext", f"subjectAltName={self._names(names)}"]
                + ["-keyout", key, "-out", certificate]
            )
            os.chmod(key, 0o600)
            os.chmod(certificate, 0o644)
            os.replace(key, self._path(self._certificate_key))
            os.replace(certificate, self._path(self._certificate))
        finally:
            shutil.rmtree(aside)

    def _file_digest(self, *paths: str) -> str:
        digest = hashlib.sha256()
        for path in paths:
            with open(self._path(path), "rb") as stream:
                digest.update(stream.read())
        return digest.hexdigest()

    def _unit_state(self) -> dict[str, str]:
        names = ("LoadState", "ActiveState", "MainPID")
        argv = [
            "systemctl",
            "show",
            *(f"--property={name}" for name in names),
            self._place.unit_name,
        ]
        done = self._run(argv)
        if done.rc != 0:
            raise _Refused("no-systemd", f"systemctl show: {done.complaint}")
        found = dict(line.split("=", 1) for line in done.out.splitlines() if "=" in line)
        return {name: found.get(name, "") for name in names}

    def _enabled(self) -> bool:
        """By the link itself: what systemd says can be older."""
        return os.path.lexists(self._path(self._place.wanted))

    def _service_actions(
        self, unit: Mapping[str, str], changed: bool, reload_units: bool
    ) -> list[str]:
        """What systemd has to do. Enabling goes past the manager, which would reload all units."""
        name, actions = self._place.unit_name, []
        if not self._enabled():
            actions.append(f"systemctl --root=/ enable {name}")
        if reload_units:
            actions += ["systemctl daemon-reload", f"systemctl restart {name}"]
        elif unit["ActiveState"] != "active":
            actions.append(f"systemctl start {name}")
        elif changed:
            actions.append(f"systemctl reload {name}")
        return actions

    def _nobody_serves(self, packages: Sequence[str]) -> None:
        ranks, unknown = serving(self._run)
        if ranks or unknown:
            what = f"installing {packages[0]}" if packages else "a changed unit"
            raise _Refused(
                "serving",
                f"{what} makes systemd read its units again, which takes the GPU from a running "
                f"container, and {ranks[0] + ' serves' if ranks else unknown}. Stop the ranks "
                "first, or set up the entry with force",
            )

    def _free(self, settings: config.Settings, unit: Mapping[str, str]) -> None:
        wanted = {ipaddress.ip_address(address) for address in settings.addresses}
        loopback = ipaddress.ip_address("127.0.0.1")
        asked = [(settings.port, wanted, self._place.port_variable)]
        asked += [(cell.port, {loopback}, "router_cell_port") for cell in settings.cells]
        for port, addresses, variable in asked:
            for address, name, pid in self._listeners(port):
                ours = unit["MainPID"] not in ("", "0") and unit["MainPID"] in pid
                everywhere = any(wish.is_unspecified for wish in addresses)
                meets = everywhere or address is None or address.is_unspecified
                if (meets or address in addresses) and not ours:
                    raise _Refused(
                        "port-taken",
                        f"port {port} is taken by {name}; stop it, or choose another {variable}",
                    )

    def _warnings(self, settings: config.Settings, tls: Mapping[str, Any]) -> list[str]:
        said = []
        if settings.open:
            said.append(f"the entry is OPEN: whoever reaches port {settings.port} may use it")
        if tls.get("soon"):
            said.append(f"the certificate {tls['certificate']} ends within 30 days")
        for address, name, _pids in self._listeners(settings.engine_port):
            if address is None or not address.is_loopback:
                place = f"{address or 'all addresses'}, port {settings.engine_port}"
                said.append(
                    f"{name} listens on {place}, and can be reached past the entry; let the engine "
                    "listen on 127.0.0.1"
                )
        return said

    def _listeners(self, port: int) -> list[tuple[Any, str, list[str]]]:
        """Who listens: address or None for all, a name for messages, process numbers."""
        done = self._run(["ss", "-Hltnp", f"sport = :{port}"])
        found = []
        for line in done.out.splitlines() if done.rc == 0 else []:
            fields = line.split()
            if len(fields) < 4:
                continue
            text = fields[3].rpartition(":")[0].strip("[]").partition("%")[0]
            try:
                address = ipaddress.ip_address(text)
            except ValueError:
                address = None
            processes = _PROCESS.findall(line)
            name = f"{processes[0][0]} (process {processes[0][1]})" if processes else "a process"
            found.append((address, name, [pid for _name, pid in processes]))
        return found

    def _diff(
        self, path: str, before: str | None, after: str, params: Mapping[str, Any]
    ) -> dict[str, str]:
        if path == params["key_file"] or path in self._secret:
            before = after = "its content is secret\n"
        return {
            "before": before or "",
            "after": after,
            "before_header": path,
            "after_header": path,
        }

    def _must(self, argv: Sequence[str]) -> None:
        done = self._run(argv)
        if done.rc != 0:
            raise _Refused("failed", f"{' '.join(argv[:2])}: {done.complaint}")

    def _path(self, path: str) -> str:
        return os.path.join(self._root, path.lstrip("/"))

    def _read(self, path: str) -> str | None:
        """A file as far as it is text, None for one that is not there."""
        try:
            with open(self._path(path), encoding="utf-8", errors="replace") as stream:
                return stream.read()
        except FileNotFoundError:
            return None

    def _mode(self, path: str) -> int | None:
        try:
            return os.stat(self._path(path)).st_mode & 0o777
        except FileNotFoundError:
            return None

    def _write(self, path: str, text: str, mode: int) -> None:
        write_whole(self._path(path), text, mode)

    def _digests(self, texts: Mapping[str, str]) -> str:
        """Digests of what systemd reads and what nginx reads; the file of keys is in the map."""
        read = [texts.get(path, "") for path in (self._conf, self._map)]
        if self._cells in texts:
            read.append(texts[self._cells])
        parts = (texts[self._place.unit], "\0".join(read))
        return "".join(f"{hashlib.sha256(part.encode()).hexdigest()}\n" for part in parts)
