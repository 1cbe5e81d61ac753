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
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import write_whole
from ansible_collections.sparkfleet.cluster.plugins.module_utils._systemd import (
    ask_at_work,
    read_names,
)

Run = Callable[[Sequence[str]], Command]

CONF = f"{config.FOLDER}/nginx.conf"
MAP = f"{config.FOLDER}/{config.MAP}"
CERTIFICATE = f"{config.FOLDER}/tls.crt"
CERTIFICATE_KEY = f"{config.FOLDER}/tls.key"
WANTED = f"/etc/systemd/system/multi-user.target.wants/{config.UNIT_NAME}"
LOADED = f"{config.STATE}/loaded"
SECRET = {MAP, CERTIFICATE_KEY}  # beside the file of keys
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
    """

    def __init__(
        self, run: Run, root: str = "/", check: bool = False, patience: float = 15
    ) -> None:
        self._run = run
        self._root = root
        self._check = check
        self._patience = patience

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
            CONF: config.configuration(settings),
            config.UNIT: config.unit(),
            **({} if settings.open else {MAP: config.key_map(keys)}),
        }
        modes = {path: 0o600 if path in SECRET else 0o644 for path in texts}
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
        loaded, wanted = self._read(LOADED), _loaded(texts)
        reload_units = unit.get("LoadState") == "loaded" and (
            config.UNIT in different
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
        for folder in (config.FOLDER, config.STATE):
            os.makedirs(self._path(folder), mode=0o755, exist_ok=True)
        if f"make {CERTIFICATE}" in actions:
            self._make_certificate(params["tls_names"])
            digest = self._file_digest(CERTIFICATE, CERTIFICATE_KEY)
            settings = settings._replace(certificate_digest=digest)
            texts = {**texts, CONF: config.configuration(settings)}
        if different:
            self._try_out(settings, keys)
        for path in different:
            self._write(path, texts[path], modes[path])
        for action in actions:
            if action.startswith("systemctl "):
                self._must(action.split())
        self._write(LOADED, _loaded(texts), 0o644)

    def _try_out(self, settings: config.Settings, keys: Sequence[Key]) -> None:
        """Let nginx read everything in a place of its own before anything is replaced."""
        aside = tempfile.mkdtemp(prefix=".try-", dir=self._path(config.FOLDER))
        try:
            trial = os.path.join(aside, "nginx.conf")
            for path, text in (
                (trial, config.configuration(settings, aside)),
                (os.path.join(aside, config.MAP), config.key_map(keys)),
            ):
                with open(path, "w", encoding="utf-8") as stream:
                    stream.write(text)
            done = self._run([config.NGINX, "-t", "-q", "-e", "stderr", "-c", trial])
            if done.rc != 0:
                said = done.complaint.replace(aside, config.FOLDER)
                for key in keys:
                    said = said.replace(key.key, "[key]")
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
                        f"Look at: journalctl -u {config.UNIT_NAME}",
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
            actions.append(f"systemctl stop {config.UNIT_NAME}")
        if self._enabled():
            actions.append(f"systemctl --root=/ disable {config.UNIT_NAME}")
        places = [config.UNIT, config.FOLDER, config.STATE]
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
            certificate, key = CERTIFICATE, CERTIFICATE_KEY
            self._names(params["tls_names"])
            fits = not self._certificate_fault(certificate, key, RENEW) and self._made_out_to(
                certificate, params["tls_names"]
            )
            missing = [] if fits else [CERTIFICATE]
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
        aside = tempfile.mkdtemp(prefix=".tls-", dir=self._path(config.FOLDER))  # mode 0700
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
            os.replace(key, self._path(CERTIFICATE_KEY))
            os.replace(certificate, self._path(CERTIFICATE))
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
        argv = ["systemctl", "show", *(f"--property={name}" for name in names), config.UNIT_NAME]
        done = self._run(argv)
        if done.rc != 0:
            raise _Refused("no-systemd", f"systemctl show: {done.complaint}")
        found = dict(line.split("=", 1) for line in done.out.splitlines() if "=" in line)
        return {name: found.get(name, "") for name in names}

    def _enabled(self) -> bool:
        """By the link itself: what systemd says can be older."""
        return os.path.lexists(self._path(WANTED))

    def _service_actions(
        self, unit: Mapping[str, str], changed: bool, reload_units: bool
    ) -> list[str]:
        """What systemd has to do. Enabling goes past the manager, which would reload all units."""
        name, actions = config.UNIT_NAME, []
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
        ranks = read_names(ask_at_work(self._run).out)
        if ranks:
            what = f"installing {packages[0]}" if packages else "a changed unit"
            raise _Refused(
                "serving",
                f"{what} makes systemd read its units again, which takes the GPU from a running "
                f"container, and {ranks[0]} serves. Stop the ranks first, or set up the entry "
                "with force",
            )

    def _free(self, settings: config.Settings, unit: Mapping[str, str]) -> None:
        wanted = {ipaddress.ip_address(address) for address in settings.addresses}
        any_wanted = any(address.is_unspecified for address in wanted)
        for address, name, pid in self._listeners(settings.port):
            ours = unit["MainPID"] not in ("", "0") and unit["MainPID"] in pid
            meets = any_wanted or address is None or address.is_unspecified or address in wanted
            if meets and not ours:
                raise _Refused(
                    "port-taken",
                    f"port {settings.port} is taken by {name}; stop it, or choose another "
                    "spark_api_port",
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
        if path == params["key_file"] or path in SECRET:
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


def _loaded(texts: Mapping[str, str]) -> str:
    """Digests of what systemd reads and of what nginx reads; the file of keys is in the map."""
    parts = (texts[config.UNIT], "\0".join([texts[CONF], texts.get(MAP, "")]))
    return "".join(f"{hashlib.sha256(part.encode()).hexdigest()}\n" for part in parts)
