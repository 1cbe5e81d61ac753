"""Keys, configuration and refusals of the entry; what nginx makes of it is the lab's matter."""

from __future__ import annotations

import datetime as dt
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _entry_config as config
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    Command,
    run_command,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._entry_keys import (
    Key,
    KeysError,
    generate,
    parse,
    render,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._entry_proxy import Entry, Outcome
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

KEY = "sk-CANARY-aBcDeF0123456789"


# --- keys ----------------------------------------------------------------------------------------


def test_keys_are_lines_and_several_may_have_one_name():
    text = f"# ours\n\nalice:{KEY}\n bob : sk-0123456789abcdef== \nalice:sk-fedcba9876543210\n"
    keys = parse(text, "keys")
    assert [key.name for key in keys] == ["alice", "bob", "alice"]
    assert parse(render(keys), "keys") == keys


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "keys has no key; expected lines of the form name:key"),
        ("\n# a\n", "has no key"),
        (KEY, "line 1: expected name:key"),
        ("alice:secret", "line 1: a key shorter than 16 characters can be guessed"),
        ('alice:secret-secret-"secret"', "line 1: a key has letters, digits and"),
        ("alice:secret-secret-\\Esecret", "line 1: a key has letters, digits and"),
        ('a"b:secret-secret-secret', "line 1: a name has letters, digits and"),
        (f"a:{KEY}\nb:secret\nc\nd:{KEY}", "line 2: a key shorter"),
        (f"a:{KEY}\nb:secret\nc\nd:{KEY}", "line 3: expected name:key; line 4: the same key again"),
    ],
)
def test_wrong_keys_are_told_by_line_and_never_shown(text, told):
    with pytest.raises(KeysError) as raised:
        parse(text, "keys")
    assert told in str(raised.value)
    assert "secret" not in str(raised.value) and KEY not in str(raised.value)


def test_generated_keys_are_long_valid_and_never_the_same():
    first, second = generate("default"), generate("default")
    assert first.key != second.key and len(first.key) > 40
    assert parse(render([first, second]), "keys") == [first, second]


# --- configuration -------------------------------------------------------------------------------

SETTINGS = config.Settings(port=8000, engine_port=8888)


def test_keys_are_compared_as_they_are():
    assert config.key_map([Key("a", "sk-x.y+z/=")]) == '"~^\\Qsk-x.y+z/=\\E$" "a";\n'


def test_without_tls_nothing_speaks_of_it_and_with_it_plain_http_is_told():
    assert "ssl" not in config.configuration(SETTINGS)
    secure = config.configuration(
        SETTINGS._replace(certificate="/c", certificate_key="/k", addresses=["::1", "10.0.0.1"])
    )
    for line in ("listen [::1]:8000 ssl;", "listen 10.0.0.1:8000 ssl;", 'ssl_certificate "/c";'):
        assert line in secure


def test_only_what_is_let_through_goes_to_the_engine():
    text = config.configuration(SETTINGS._replace(paths=["/v1/", "/metrics"]))
    assert [line.strip() for line in text.splitlines() if "proxy_pass" in line] == [
        "proxy_pass http://127.0.0.1:8888/health;",
        "proxy_pass http://127.0.0.1:8888/v1/;",
        "proxy_pass http://127.0.0.1:8888/metrics;",
    ]
    assert text.count('if ($entry_client = "")') == 2
    assert "location = /metrics {" in text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"port": 70000}, "port is 70000, expected 1 to 65535"),
        ({"port": 8888}, "the entry and the engine cannot both have port 8888"),
        ({"addresses": []}, "no address to listen on"),
        ({"addresses": ["spark1"]}, "'spark1' is no IP address"),
        ({"paths": ["/"]}, "'/' cannot be let through"),
        ({"paths": ["/v1/../"]}, "cannot be let through"),
        ({"paths": ["/x {"]}, "cannot be let through"),
        ({"timeout": 0}, "timeout is 0, expected 1 to 86400"),
    ],
)
def test_settings_that_cannot_be(change, told):
    assert any(told in text for text in config.faults(SETTINGS._replace(**change)))
    assert config.faults(SETTINGS) == []


CELLS = [
    config.Cell("cell_a", 18001, "http://192.0.2.11:8000", KEY),
    config.Cell("cell_b", 18002, "https://cell-b.example/", KEY),
]


def test_cells_behind_a_router_get_a_port_with_their_key_each():
    settings = SETTINGS._replace(cells=CELLS)
    assert "include /etc/sparkfleet/router-entry/cells.conf;" in config.configuration(
        settings, config.ROUTER_ENTRY
    )
    assert KEY not in config.configuration(settings, config.ROUTER_ENTRY)
    text = config.cells_configuration(settings)
    assert [line.strip() for line in text.splitlines() if "listen" in line or "_pass" in line] == [
        "listen 127.0.0.1:18001;",
        "proxy_pass http://192.0.2.11:8000;",
        "listen 127.0.0.1:18002;",
        "proxy_pass https://cell-b.example;",
    ]
    assert text.count(f'proxy_set_header Authorization "Bearer {KEY}";') == 2
    assert "if (-f /var/lib/sparkfleet/router-entry/drained/cell_b) { return 503" in text
    assert "cells.conf" not in config.configuration(SETTINGS)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"name": "a b"}, "'a b' is no name of a cell"),
        ({"url": "http://h:1/v1"}, "the cell cell_a is at 'http://h:1/v1', expected http://"),
        ({"url": "h:1; }"}, "the cell cell_a is at 'h:1; }'"),
        ({"port": 8888}, "the ports of the entry, the router and the cells are not different"),
        ({"port": 0}, "the port of the cell cell_a is 0, expected 1 to 65535"),
    ],
)
def test_cells_that_cannot_be(change, told):
    cells = [CELLS[0]._replace(**change), CELLS[1]]
    assert any(told in text for text in config.faults(SETTINGS._replace(cells=cells)))
    assert config.faults(SETTINGS._replace(cells=CELLS)) == []


# --- refusals ------------------------------------------------------------------------------------

PARAMS: dict[str, Any] = {
    "port": 8000,
    "engine_port": 8888,
    "addresses": ["0.0.0.0"],
    "open": False,
    "keys": {},
    "key_file": "/etc/sparkfleet/keys",
    "paths": ["/v1/"],
    "body_mib": 256,
    "timeout": 3600,
    "workers": 4,
    "tls": "off",
    "tls_certificate": "",
    "tls_certificate_key": "",
    "tls_names": [],
    "force": False,
}
DOWN = "LoadState=not-found\nActiveState=inactive\nMainPID=0\n"
ACTIVE = "LoadState=loaded\nActiveState=active\nMainPID=8\n"
See = Callable[..., Outcome]


@pytest.fixture
def see(tmp_path: Path) -> See:
    """What a run in check mode says of a host made of files and of what commands answer there."""

    def run(answers: dict[str, str | Command], argv: Sequence[str]) -> Command:
        if argv[0] == "openssl":
            return run_command(argv)
        for words, answer in answers.items():
            if " ".join(argv).startswith(words):
                return answer if isinstance(answer, Command) else Command(0, answer, "")
        return Command(1, "", f"{argv[0]}: no answer")

    def look(answers: dict[str, str | Command] | None = None, **params: Any) -> Outcome:
        usual: dict[str, str | Command] = {
            "systemctl show": DOWN,
            "ss": "",
            "systemctl list-units": "",
        }
        # what a test says comes first
        said = {**(answers or {}), **{k: v for k, v in usual.items() if k not in (answers or {})}}
        place = config.Place(params.get("instance", "entry"))
        entry = Entry(lambda argv: run(said, argv), str(tmp_path), check=True, place=place)
        return entry.present({**PARAMS, **params})

    nginx = tmp_path / "usr/sbin/nginx"
    nginx.parent.mkdir(parents=True)
    nginx.touch()
    (tmp_path / "etc/sparkfleet").mkdir(parents=True)
    return look


def problem(outcome: Outcome, code: str) -> str:
    assert [one.code for one in outcome.problems] == [code], outcome.problems
    return outcome.problems[0].message


def test_a_bare_host_gets_everything(see, tmp_path):
    outcome = see()
    assert list(outcome.actions) == [
        "write /etc/sparkfleet/entry/nginx.conf",
        "write /etc/systemd/system/sparkfleet-entry.service",
        "write /etc/sparkfleet/entry/keys.map",
        "write /etc/sparkfleet/keys",
        "systemctl --root=/ enable sparkfleet-entry.service",
        "systemctl start sparkfleet-entry.service",
    ]
    assert outcome.keys == ["default"] and not list((tmp_path / "etc/sparkfleet").iterdir())
    shown = str(outcome.diff)
    assert "sk-" not in shown and "its content is secret" in shown


def test_an_entry_of_a_router_stands_beside_that_of_a_cell(see):
    cell = {"name": "cell_a", "port": 18001, "url": "http://192.0.2.11:8000"}
    router = {"instance": "router-entry", "port": 8080, "engine_port": 8889}
    outcome = see(**router, cells=[cell], cell_keys={"cell_a": f"# ours\ndefault:{KEY}\n"})
    assert list(outcome.actions) == [
        "write /etc/sparkfleet/router-entry/nginx.conf",
        "write /etc/systemd/system/sparkfleet-router-entry.service",
        "write /etc/sparkfleet/router-entry/keys.map",
        "write /etc/sparkfleet/router-entry/cells.conf",
        "write /etc/sparkfleet/keys",
        "systemctl --root=/ enable sparkfleet-router-entry.service",
        "systemctl start sparkfleet-router-entry.service",
    ]
    assert KEY not in str(outcome)
    told = problem(see(**router, cells=[cell], cell_keys={"cell_a": "secret!"}), "keys")
    assert "the key of the cell cell_a" in told and "secret" not in told
    taken = {"ss -Hltnp sport = :18001": 'LISTEN 0 5 127.0.0.1:18001 * users:(("x",pid=9,fd=3))'}
    told = problem(see(**router, cells=[cell], cell_keys={}), "keys")
    assert "the key of the cell cell_a has no key" in told
    told = problem(see(taken, **router, cells=[cell], cell_keys={"cell_a": KEY}), "port-taken")
    assert "port 18001 is taken by x (process 9)" in told and "router_cell_port" in told


def test_a_missing_nginx_is_installed_unless_a_rank_serves(see, tmp_path):
    (tmp_path / "usr/sbin/nginx").unlink()
    assert see().packages == ["nginx"]
    serving = {"systemctl list-units": "sparkfleet-rank@sparks.service loaded active running x\n"}
    assert "installing nginx makes systemd read" in problem(see(serving), "serving")
    assert see(serving, force=True).packages == ["nginx"]
    silent = {"systemctl list-units": Command(1, "", "Failed to list units: Timed out")}
    assert "and systemctl list-units: Failed to list" in problem(see(silent), "serving")


def test_a_changed_unit_waits_for_the_ranks(see, tmp_path):
    unit = tmp_path / "etc/systemd/system/sparkfleet-entry.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\n")
    active = {"systemctl show": ACTIVE}
    assert list(see(active).actions)[-2:] == [
        "systemctl daemon-reload",
        "systemctl restart sparkfleet-entry.service",
    ]
    ranks = "sparkfleet-rank@sparks.service loaded active running x\n"
    told = problem(see({**active, "systemctl list-units": ranks}), "serving")
    assert "sparkfleet-rank@sparks.service serves" in told
    unit.write_text(config.unit())
    assert "systemctl daemon-reload" not in see(active).actions
    loaded = tmp_path / "var/lib/sparkfleet/entry/loaded"
    loaded.parent.mkdir(parents=True)
    loaded.write_text("of the unit before\n")  # by a run that broke off
    assert "systemctl daemon-reload" in see(active).actions


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "has no key; expected lines of the form name:key. Repair it, or remove it"),
        (b"alice\n", "/etc/sparkfleet/keys: line 1: expected name:key"),
        (b"\xff\xfe", "/etc/sparkfleet/keys is no text. Repair it"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used(see, tmp_path, content, told):
    (tmp_path / "etc/sparkfleet/keys").write_bytes(content)
    assert told in problem(see(), "keys")


def test_given_keys_replace_whatever_was_there(see, tmp_path):
    (tmp_path / "etc/sparkfleet/keys").write_bytes(b"\xff\xfe")
    assert "change /etc/sparkfleet/keys" in see(keys={"alice": KEY}).actions


def test_a_directory_is_no_file_of_keys(see, tmp_path):
    (tmp_path / "etc/sparkfleet/keys").mkdir()
    assert "cannot be read: Is a directory" in problem(see(), "keys")


def test_given_keys_that_are_wrong_and_open_with_keys(see):
    message = problem(see(keys={"alice": "secret"}), "keys")
    assert message.startswith("the given keys: line 1: a key shorter") and "secret" not in message
    problem(see(open=True, keys={"alice": KEY}), "open-with-keys")


def test_a_file_of_keys_that_others_may_read_is_shut(see, tmp_path):
    keys = tmp_path / "etc/sparkfleet/keys"
    keys.write_text(f"alice:{KEY}\n")
    keys.chmod(0o644)
    assert "change /etc/sparkfleet/keys" in see().actions
    keys.chmod(0o600)
    assert "change /etc/sparkfleet/keys" not in see().actions


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            'LISTEN 0 5 0.0.0.0:8000 0.0.0.0:* users:(("python3",pid=42,fd=3))',
            "python3 (process 42",
        ),
        ("LISTEN 0 5 *:8000 *:*", "taken by a process"),
        ('LISTEN 0 5 [::]:8000 [::]:* users:(("caddy",pid=7,fd=3))', "caddy (process 7)"),
        ('LISTEN 0 5 127.0.0.1%lo:8000 0.0.0.0:* users:(("x",pid=7,fd=3))', "x (process 7)"),
    ],
)
def test_a_taken_port_is_named_with_whoever_has_it(see, line, told):
    assert told in problem(see({"ss -Hltnp sport = :8000": line}), "port-taken")


def test_our_own_listener_and_another_address_are_no_obstacle(see):
    ours = 'LISTEN 0 5 0.0.0.0:8000 0.0.0.0:* users:(("nginx",pid=9,fd=3),("nginx",pid=8,fd=3))'
    answers = {"ss -Hltnp sport = :8000": ours, "systemctl show": ACTIVE}
    assert not see(answers).problems
    other = {"ss -Hltnp sport = :8000": "LISTEN 0 5 10.1.1.1:8000 0.0.0.0:*"}
    assert not see(other, addresses=["10.1.1.2"]).problems


def test_an_engine_that_can_be_reached_past_the_entry_is_told(see):
    answers = {
        "ss -Hltnp sport = :8888": 'LISTEN 0 5 0.0.0.0:8888 0.0.0.0:* users:(("sglang",pid=9,fd=3))'
    }
    assert "can be reached past the entry" in see(answers).warnings[0]
    inside = {"ss -Hltnp sport = :8888": "LISTEN 0 5 127.0.0.1:8888 0.0.0.0:*"}
    assert not see(inside).warnings
    assert "OPEN" in see(open=True).warnings[0]


def test_all_problems_are_told_in_one_run(see, tmp_path):
    (tmp_path / "etc/sparkfleet/keys").touch()
    taken = {"ss -Hltnp sport = :8000": "LISTEN 0 5 *:8000 *:*"}
    outcome = see(taken, tls="given", timeout=0)
    assert [one.code for one in outcome.problems] == ["settings", "keys", "tls", "port-taken"]


def test_without_systemd_there_is_no_entry(see):
    outcome = see({"systemctl show": ""} | {"systemctl": ""})
    assert not outcome.problems  # an empty answer is a unit that is not known

    def silent(argv: Sequence[str]) -> Command:
        return Command(1, "", "System has not been booted with systemd")

    told = Entry(silent, "/nonexistent", check=True).present(PARAMS)
    assert "not been booted with systemd" in problem(told, "no-systemd")


# --- certificates --------------------------------------------------------------------------------


def certificate(folder: Path, name: str, *more: str) -> tuple[Path, Path]:
    key, crt = folder / f"{name}.key", folder / f"{name}.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        + ["-nodes", "-subj", f"/CN={name}", "-keyout", key, "-out", crt, *more],
        check=True,
        capture_output=True,
    )
    return crt, key


def test_given_certificates_have_to_fit_and_last(see, tmp_path):
    folder = tmp_path / "tls"
    folder.mkdir()
    crt, key = certificate(folder, "a")
    _crt, other = certificate(folder, "b")
    (folder / "text").write_text("hello\n")
    subprocess.run(
        ["openssl", "pkey", "-in", key, "-out", folder / "locked.key", "-aes256"]
        + ["-passout", "pass:secret"],
        check=True,
    )

    def given(crt: str, key: str) -> Outcome:
        where = {"tls_certificate": f"/tls/{crt}", "tls_certificate_key": f"/tls/{key}"}
        outcome: Outcome = see(tls="given", **where)
        return outcome

    told = "the key /tls/b.key does not belong to the certificate /tls/a.crt"
    assert told in problem(given(crt.name, other.name), "tls")
    assert "there is no file /tls/none" in problem(given("none", key.name), "tls")
    assert "/tls/text is no certificate in PEM" in problem(given("text", key.name), "tls")
    assert "/tls/text is no private key" in problem(given(crt.name, "text"), "tls")
    assert "no private key without passphrase" in problem(given(crt.name, "locked.key"), "tls")
    fits = given(crt.name, key.name)
    assert not fits.problems and not any("make" in action for action in fits.actions)
    assert "ends within 30 days" in fits.warnings[0]  # openssl's own default
    before = fits.diff[0]["after"]
    certificate(folder, "a", "-days", "90")
    renewed = given(crt.name, key.name)
    assert renewed.diff[0]["after"] != before and not renewed.warnings


def test_an_ended_certificate_is_refused(see, tmp_path):
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a")])
    day = dt.timedelta(days=1)
    now = dt.datetime.now(dt.timezone.utc)
    ended = (
        x509.CertificateBuilder(name, name, key.public_key(), 7, now - 2 * day, now - day)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    (tmp_path / "a.crt").write_bytes(ended)
    (tmp_path / "a.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    outcome = see(tls="given", tls_certificate="/a.crt", tls_certificate_key="/a.key")
    assert "has ended; renew it" in problem(outcome, "tls")


def test_a_certificate_of_our_own_is_made_once_and_again_for_other_names(see, tmp_path):
    assert "make /etc/sparkfleet/entry/tls.crt" in see(tls="self-signed", tls_names=["a"]).actions
    folder = tmp_path / "etc/sparkfleet/entry"
    folder.mkdir()
    names = "subjectAltName=DNS:spark1,IP:10.0.0.1"
    crt, key = certificate(folder, "tls", "-days", "3650", "-addext", names)
    assert (crt.name, key.name) == ("tls.crt", "tls.key")
    same = see(tls="self-signed", tls_names=["10.0.0.1", "Spark1"])
    assert not any(action.startswith("make") for action in same.actions)
    other = see(tls="self-signed", tls_names=["10.0.0.1", "spark1", "llm.example.com"])
    assert "make /etc/sparkfleet/entry/tls.crt" in other.actions
    assert "is no name" in problem(see(tls="self-signed", tls_names=["a b"]), "tls")
    assert "needs at least one name" in problem(see(tls="self-signed"), "tls")


def test_nothing_of_ours_is_left_but_the_keys(tmp_path):
    for place in (config.ENTRY.folder, config.ENTRY.state):
        (tmp_path / place.lstrip("/")).mkdir(parents=True)
    keys = tmp_path / "etc/sparkfleet/keys"
    keys.write_text(f"alice:{KEY}\n")
    link = tmp_path / "etc/systemd/system/multi-user.target.wants" / config.ENTRY.unit_name
    link.parent.mkdir(parents=True)
    link.symlink_to(config.ENTRY.unit)
    ran = []

    def run(argv: Sequence[str]) -> Command:
        ran.append(" ".join(argv))
        return Command(0, ACTIVE, "")

    outcome = Entry(run, str(tmp_path)).absent()
    assert ran[1:] == [
        "systemctl stop sparkfleet-entry.service",
        "systemctl --root=/ disable sparkfleet-entry.service",
    ]
    assert len(outcome.actions) == 4 and list((tmp_path / "etc/sparkfleet").iterdir()) == [keys]
    assert not (tmp_path / config.ENTRY.state.lstrip("/")).exists()
