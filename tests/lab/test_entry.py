# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The entry and the verification on a container lab, before a scripted engine on loopback."""

from __future__ import annotations

import itertools
import json
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import openai
import pytest
import yaml

from tests.support.labs import ROOT, LabUnderTest
from tests.support.openai_server import MODEL
from tests.support.playbook import (
    Run,
    assert_check_changes_nothing,
    assert_idempotent,
    run_playbook,
)
from tests.support.secrets import PLACES

pytestmark = pytest.mark.containers

VERIFY = ROOT / "playbooks/verify.yml"
PAIR = ("-e", "spark_topology=pair")
ALICE, BOB = "sk-CANARY-alice-0123456789", "sk-CANARY-bob-0123456789"
ENGINE = ROOT / "tests/support/openai_server.py"
# All that the role may touch.
STATE = """
ls -lAR --time-style=full-iso /etc/sparkfleet /var/lib/sparkfleet /etc/systemd/system 2>&1
find /etc/sparkfleet /etc/systemd/system -type f | sort | xargs -r sha256sum
systemctl show -p ActiveState -p UnitFileState -p MainPID sparkfleet-entry nginx; ss -Hltn
"""


@pytest.fixture(scope="module")
def door(make_lab: Callable[..., LabUnderTest]) -> LabUnderTest:
    lab = make_lab("door", "containers", "--bare", "--cabling", "pair", "--hosts", "2")
    lab.root("spark1", f"cat > /opt/openai_server.py <<'EOF'\n{ENGINE.read_text()}\nEOF")
    engine(lab)
    return lab


@pytest.fixture(scope="module")
def play(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("play") / "entry.yml"
    play = {
        "name": "Set up the entry",
        "hosts": "sparks",
        "gather_facts": False,
        "roles": ["sparkfleet.cluster.entry"],
    }
    path.write_text(yaml.safe_dump([play], sort_keys=False), encoding="utf-8")
    return path


def engine(lab: LabUnderTest, *options: str) -> None:
    lab.root(
        "spark1",
        "systemctl stop engine 2>/dev/null; systemctl reset-failed engine 2>/dev/null; "
        "systemd-run --quiet --unit=engine python3 /opt/openai_server.py --port 8888 "
        + " ".join(options)
        + "; for n in $(seq 150); do ss -Hltn | grep -q :8888 && break; sleep 0.2; done",
    )


def entry(lab: LabUnderTest, play: Path, *args: str, **variables: Any) -> Run:
    return run_playbook(play, lab.inventory, *PAIR, "-e", json.dumps(variables), *args)


def verify(lab: LabUnderTest, tmp_path: Path, *args: str, **variables: Any) -> Run:
    given = json.dumps({"verify_report_path": str(tmp_path / "report"), **variables})
    return run_playbook(VERIFY, lab.inventory, *PAIR, "-e", given, *args)


def url(lab: LabUnderTest, scheme: str = "http") -> str:
    return f"{scheme}://{lab.lab.host('spark1').address}:8000"


def ask(
    address: str,
    key: str | None = None,
    *,
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Status and body of an answer."""
    sent = dict(headers or {})
    if key:
        sent["Authorization"] = f"Bearer {key}"
    insecure = ssl._create_unverified_context()
    request = urllib.request.Request(address, data, sent)
    try:
        with urllib.request.urlopen(request, timeout=20, context=insecure) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def key_of(lab: LabUnderTest, name: str = "default") -> str:
    lines = lab.root("spark1", "cat /etc/sparkfleet/keys").splitlines()
    return dict(line.split(":", 1) for line in lines)[name]


# --- from nothing --------------------------------------------------------------------------------


def test_check_on_a_bare_head_changes_nothing(door: LabUnderTest, play: Path) -> None:
    assert_check_changes_nothing(
        play, door.inventory, *PAIR, witness=lambda: door.root("spark1", STATE)
    )
    assert "absent" in door.root("spark1", "test -e /etc/sparkfleet && echo there || echo absent")


def test_a_taken_port_is_named_before_anything_is_written(door: LabUnderTest, play: Path) -> None:
    door.root("spark1", "systemd-run --quiet --unit=other python3 -m http.server 8000")
    door.root(
        "spark1", "for n in 1 2 3 4 5 6; do ss -Hltn | grep -q :8000 && break; sleep 0.5; done"
    )
    before = door.root("spark1", STATE)
    try:
        run = entry(door, play)
        assert run.returncode != 0
        assert "port 8000 is taken by python3 (process" in run.output
        assert door.root("spark1", STATE) == before
    finally:
        door.root("spark1", "systemctl stop other")


def test_an_entry_is_set_up_once_and_stays(door: LabUnderTest, play: Path) -> None:
    assert_idempotent(play, door.inventory, *PAIR)
    entry(door, play, entry_state="checked").assert_ok().assert_unchanged()
    assert_check_changes_nothing(
        play, door.inventory, *PAIR, witness=lambda: door.root("spark1", STATE)
    ).assert_unchanged()
    assert door.root(
        "spark1", "stat -c %a%U /etc/sparkfleet/keys /etc/sparkfleet/entry/keys.map"
    ) == ("600root\n600root")
    # nobody asked for the server of the package, nor for anything on the other host
    assert door.root("spark1", "systemctl is-active nginx || true") == "inactive"
    assert "such file" in door.root("spark2", "ls /etc/sparkfleet 2>&1 || true")
    assert ask(f"{url(door)}/v1/models", key_of(door))[0] == 200


def test_drift_is_told_and_put_right(door: LabUnderTest, play: Path) -> None:
    door.root("spark1", "echo '# mine' >> /etc/sparkfleet/entry/nginx.conf")
    run = entry(door, play, entry_state="checked")
    assert run.returncode != 0 and "change /etc/sparkfleet/entry/nginx.conf" in run.output
    assert entry(door, play).assert_ok().hosts["spark1"].changed == 1
    door.root(
        "spark1",
        "systemctl kill -s KILL sparkfleet-entry; sleep 1; systemctl stop "
        "sparkfleet-entry; systemctl disable sparkfleet-entry",
    )
    assert entry(door, play).assert_ok().hosts["spark1"].changed == 1
    assert door.root("spark1", "systemctl is-active sparkfleet-entry") == "active"
    assert door.root("spark1", "systemctl is-enabled sparkfleet-entry") == "enabled"
    entry(door, play).assert_ok().assert_unchanged()


# --- the door ------------------------------------------------------------------------------------


def test_keys_open_and_nothing_else_does(door: LabUnderTest) -> None:
    key, models = key_of(door), f"{url(door)}/v1/models"
    assert ask(models, key)[0] == 200
    assert ask(models, headers={"X-Api-Key": key})[0] == 200
    assert ask(models, headers={"Authorization": f"bearer   {key}"})[0] == 200
    wrong: list[dict[str, str]] = [
        {},
        {"Authorization": key},
        {"Authorization": f"Basic {key}"},
        {"Authorization": f"Bearer {key}x"},
        {"Authorization": f"Bearer {key[:-1]}"},
        {"Authorization": f"Bearer {key.swapcase()}"},
        {"Authorization": f"Bearer {key} {key}"},
        {"Authorization": "Bearer "},
        {"x-api-key": key.upper()},
        {"x-api-key": ""},
    ]
    for headers in wrong:
        status, body = ask(models, headers=headers)
        assert status == 401, headers
        assert json.loads(body)["error"]["code"] == "invalid_api_key"
    assert ask(f"{models}?key={key}")[0] == 401
    assert ask(f"{url(door)}/health")[0] == 200
    seen = json.loads(
        door.root(
            "spark1",
            "python3 -c 'import urllib.request as u; print(u.urlopen("
            '"http://127.0.0.1:8888/seen").read().decode())\'',
        )
    )
    assert seen and key not in json.dumps(seen)
    assert not any(
        {"authorization", "x-api-key"} & {h.lower() for h in one["headers"]} for one in seen
    )


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/server_info",
            "/get_server_info",
            "/flush_cache",
            "/start_profile",
            "/metrics",
            "/generate",
        ),
        *(
            "/update_weights_from_disk",
            "/v1/load_lora_adapter",
            "/seen",
            "/v1",
            "/",
            "//server_info",
        ),
        *(
            "/v1/../seen",
            "/v1/%2e%2e/seen",
            "/v1/..%2Fseen",
            "/v1/x/..%2f..%2fseen",
            "/%73een",
            "/Seen",
        ),
    ],
)
def test_administration_is_closed_whoever_asks(door: LabUnderTest, path: str) -> None:
    """`/seen` is there, at the engine: a 404 of the engine's own would prove nothing."""
    for data in (None, b"{}"):
        status, body = ask(url(door) + path, key_of(door), data=data)
        assert (status, json.loads(body)["error"]["message"]) == (404, "closed at this entry")


def test_a_silent_engine_and_a_large_request_are_told(door: LabUnderTest, play: Path) -> None:
    entry(door, play, entry_body_mib=1).assert_ok()
    status, body = ask(f"{url(door)}/v1/chat/completions", key_of(door), data=b" " * 2**21)
    assert status == 413 and "larger than 1 MiB" in body
    entry(door, play).assert_ok()
    door.root("spark1", "systemctl stop engine")
    try:
        status, body = ask(f"{url(door)}/v1/models", key_of(door))
        assert status == 502 and json.loads(body)["error"]["code"] == "engine_unavailable"
        entry(door, play).assert_ok().assert_unchanged()  # the entry can come before the engine
    finally:
        engine(door)


def test_an_engine_that_listens_for_everybody_is_told(door: LabUnderTest, play: Path) -> None:
    engine(door, "--host", "0.0.0.0")
    try:
        run = entry(door, play).assert_ok().assert_unchanged()
        assert "can be reached past the entry" in run.output
    finally:
        engine(door)


def test_the_official_client_streams_and_calls_a_tool(door: LabUnderTest) -> None:
    client = openai.OpenAI(base_url=f"{url(door)}/v1", api_key=key_of(door), max_retries=0)
    assert [model.id for model in client.models.list()] == [MODEL]
    stream = client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": "Tell a long story."}],
        stream=True,
        stream_options={"include_usage": True},
    )
    arrived, text, usage = [], "", None
    for chunk in stream:
        arrived.append(time.monotonic())
        usage = chunk.usage or usage
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
    assert text.count("keeper") == 20 and usage and usage.completion_tokens == 160
    # token by token: something that collects would bring them together
    assert max(b - a for a, b in itertools.pairwise(arrived)) < 0.5 * (arrived[-1] - arrived[0])
    tool: Any = {
        "type": "function",
        "function": {
            "name": "stock_of_part",
            "parameters": {"type": "object", "properties": {"part": {"type": "string"}}},
        },
    }
    question: Any = {"role": "user", "content": "How many of part K-417 are there?"}
    first = client.chat.completions.create(model=MODEL, messages=[question], tools=[tool])
    (call,) = first.choices[0].message.tool_calls or []
    assert call.type == "function" and json.loads(call.function.arguments) == {"part": "K-417"}
    told: Any = {"role": "tool", "tool_call_id": call.id, "content": '{"pieces": 5813}'}
    asked: Any = first.choices[0].message
    second = client.chat.completions.create(
        model=MODEL, messages=[question, asked, told], tools=[tool]
    )
    assert "5813" in (second.choices[0].message.content or "")
    stranger = openai.OpenAI(base_url=f"{url(door)}/v1", api_key="sk-nobody", max_retries=0)
    with pytest.raises(openai.AuthenticationError, match="missing or wrong API key"):
        stranger.models.list()


# --- keys ----------------------------------------------------------------------------------------


def test_keys_change_under_a_running_stream(door: LabUnderTest, play: Path) -> None:
    engine(door, "--pace", "0.3")
    entry(door, play, entry_keys={"alice": ALICE}).assert_ok()
    client = openai.OpenAI(base_url=f"{url(door)}/v1", api_key=ALICE, max_retries=0)
    came: dict[str, Any] = {"text": "", "finish": None}
    started = threading.Event()

    def listen() -> None:
        for chunk in client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "Tell a story."}], stream=True
        ):
            started.set()
            for choice in chunk.choices:
                came["text"] += choice.delta.content or ""
                came["finish"] = choice.finish_reason or came["finish"]

    listener = threading.Thread(target=listen)
    listener.start()
    try:
        assert started.wait(10)
        entry(door, play, entry_keys={"bob": BOB}).assert_ok()
        assert listener.is_alive()  # or nothing was proven
        assert ask(f"{url(door)}/v1/models", ALICE)[0] == 401
        assert ask(f"{url(door)}/v1/models", BOB)[0] == 200
    finally:
        listener.join(120)
        engine(door)
    assert came["finish"] == "stop" and came["text"].count("keeper") == 20
    entry(door, play, entry_keys={"bob": BOB}).assert_ok().assert_unchanged()


def test_keys_are_never_seen(door: LabUnderTest, play: Path, tmp_path: Path) -> None:
    door.root("spark1", "rm -f /etc/sparkfleet/keys")
    outputs = [entry(door, play, "-vvv", "--diff").assert_ok().output]
    generated = key_of(door)
    outputs.append(verify(door, tmp_path, "-vvv").assert_ok().output)
    # given keys come out of a file, as out of a vault: what is on a command line is seen there
    given = tmp_path / "keys.yml"
    given.write_text(json.dumps({"entry_keys": {"alice": ALICE, "bob": BOB}}))
    for args in (("--check", "--diff", "-vvv"), ("--diff", "-vvv"), ("-vvv",)):
        run = run_playbook(play, door.inventory, *PAIR, "-e", f"@{given}", *args)
        outputs.append(run.assert_ok().output)
    wrong = tmp_path / "wrong.yml"
    for value in ({"alice": f"{ALICE} x"}, [ALICE], {"alice": [BOB]}):
        wrong.write_text(json.dumps({"entry_keys": value}))
        run = run_playbook(play, door.inventory, *PAIR, "-e", f"@{wrong}", "-vvv")
        assert run.returncode != 0
        outputs.append(run.output)
    keys = tmp_path / "key"
    keys.write_text(f"{BOB}\n")
    # the lab knows its hosts by ssh alone; people have the address in their inventory
    address = door.lab.host("spark1").address
    known = tmp_path / "known.yml"
    known.write_text(json.dumps({"all": {"hosts": {"spark1": {"ansible_host": address}}}}))
    where = ("-i", str(known), "-vvv")
    from_here = verify(
        door, tmp_path, *where, verify_from="controller", verify_key_file=str(keys)
    ).assert_ok()
    assert f"at http://{address}:8000, cell sparks" in from_here.output
    outputs.append(from_here.output)
    for key in (ALICE, BOB, generated):
        ask(f"{url(door)}/v1/models", key)
        _status, body = ask(f"{url(door)}/v1/nothing", key)
        outputs.append(body)
    outputs += [path.read_text() for path in tmp_path.glob("report.*")]
    assert len(list(tmp_path.glob("report.*"))) == 3
    places = door.root("spark1", PLACES)
    # the search can find something, and requests are logged under the name of their key
    assert "sparkfleet-entry" in places and '\\"client\\":\\"bob\\"' in places
    for key in (ALICE, BOB, generated):
        assert key not in places
        for output in outputs:
            assert key not in output


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "/etc/sparkfleet/keys has no key; expected lines of the form name:key. Repair it"),
        ("alice\\n", "/etc/sparkfleet/keys: line 1: expected name:key"),
        ("alice:secret\\n", "line 1: a key shorter than 16 characters can be guessed"),
        ("\\377\\376", "/etc/sparkfleet/keys is no text"),
    ],
)
def test_a_broken_file_of_keys_leaves_the_door_as_it_is(
    door: LabUnderTest, play: Path, content: str, told: str
) -> None:
    entry(door, play, entry_keys={"bob": BOB}).assert_ok()
    door.root("spark1", f"printf '{content}' > /etc/sparkfleet/keys")
    run = entry(door, play)
    assert run.returncode != 0 and told in run.output and "Traceback" not in run.output
    assert ask(f"{url(door)}/v1/models", BOB)[0] == 200
    entry(door, play, entry_keys={"bob": BOB}).assert_ok()


# --- what cannot be ------------------------------------------------------------------------------


def test_nginx_reads_a_configuration_before_it_counts(door: LabUnderTest, play: Path) -> None:
    before = door.root("spark1", STATE)
    run = entry(door, play, entry_keys={"bob": BOB}, entry_addresses=["192.0.2.77"])
    assert run.returncode != 0
    assert "nginx refuses the new configuration, so the old one stays" in run.output
    assert "192.0.2.77" in run.output and "Traceback" not in run.output
    after = door.root("spark1", STATE)
    assert [line for line in after.splitlines() if "/etc/sparkfleet/" in line] == [
        line for line in before.splitlines() if "/etc/sparkfleet/" in line
    ]
    assert ask(f"{url(door)}/v1/models", BOB)[0] == 200


def test_a_rank_that_serves_keeps_its_systemd(door: LabUnderTest, play: Path) -> None:
    door.root("spark1", "systemd-run --quiet --unit=sparkfleet-rank@sparks.service sleep infinity")
    unit = "/etc/systemd/system/sparkfleet-entry.service"
    try:
        entry(door, play, entry_keys={"alice": ALICE}).assert_ok()  # keys may change
        door.root("spark1", f"echo '# mine' >> {unit}")
        run = entry(door, play, entry_keys={"alice": ALICE})
        assert run.returncode != 0 and "sparkfleet-rank@sparks.service serves" in run.output
        entry(door, play, entry_keys={"alice": ALICE}, entry_force=True).assert_ok()
        assert "mine" not in door.root("spark1", f"cat {unit}")
    finally:
        door.root("spark1", "systemctl stop sparkfleet-rank@sparks.service")


# --- TLS -----------------------------------------------------------------------------------------


def test_a_certificate_of_our_own_is_trusted_by_who_has_it(
    door: LabUnderTest, play: Path, tmp_path: Path
) -> None:
    keys = {"bob": BOB}
    address = door.lab.host("spark1").address
    tls = {"entry_tls": "self-signed", "entry_tls_names": [address]}
    entry(door, play, entry_keys=keys, **tls).assert_ok()
    entry(door, play, entry_keys=keys, **tls).assert_ok().assert_unchanged()
    assert "600" in door.root("spark1", "stat -c %a /etc/sparkfleet/entry/tls.key")
    authority = tmp_path / "ca.pem"
    authority.write_text(door.root("spark1", "cat /etc/sparkfleet/entry/tls.crt") + "\n")
    context = ssl.create_default_context(cafile=str(authority))
    request = urllib.request.Request(
        f"{url(door, 'https')}/v1/models", headers={"Authorization": f"Bearer {BOB}"}
    )
    with urllib.request.urlopen(request, timeout=10, context=context) as answer:
        assert answer.status == 200
    status, body = ask(f"{url(door)}/v1/models", BOB)
    assert status == 400 and "this port speaks https" in body
    verify(door, tmp_path, verify_checks=["auth", "streaming"], **tls).assert_ok()
    other = verify(
        door, tmp_path, verify_checks=["auth"], verify_ca_file="/etc/ssl/certs/nothing.pem", **tls
    )
    assert other.returncode != 0 and "cannot be used as certificates" in other.output
    plain = verify(door, tmp_path, verify_checks=["auth"])
    assert plain.returncode != 0 and "this port speaks https" in plain.output


def test_certificates_that_do_not_match_are_refused(door: LabUnderTest, play: Path) -> None:
    door.root(
        "spark1",
        "cd /opt; for n in a b; do openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 "
        "-nodes -days 90 -subj /CN=$n -keyout $n.key -out $n.crt 2>/dev/null; done",
    )
    given = {
        "entry_keys": {"bob": BOB},
        "entry_tls": "given",
        "entry_tls_certificate": "/opt/a.crt",
    }
    run = entry(door, play, **given, entry_tls_certificate_key="/opt/b.key")
    assert run.returncode != 0
    assert "the key /opt/b.key does not belong to the certificate /opt/a.crt" in run.output
    assert ask(f"{url(door, 'https')}/v1/models", BOB)[0] == 200  # the old one stays
    entry(door, play, **given, entry_tls_certificate_key="/opt/a.key").assert_ok()
    door.root("spark1", "cp /opt/b.crt /opt/a.crt; cp /opt/b.key /opt/a.key")  # renewed
    run = entry(door, play, **given, entry_tls_certificate_key="/opt/a.key").assert_ok()
    assert run.hosts["spark1"].changed == 1
    entry(door, play, entry_keys={"bob": BOB}).assert_ok()
    assert ask(f"{url(door)}/v1/models", BOB)[0] == 200


# --- verification --------------------------------------------------------------------------------


def test_a_verification_shows_keeps_and_tells(door: LabUnderTest, tmp_path: Path) -> None:
    run = verify(door, tmp_path, verify_load_seconds=171).assert_ok().assert_unchanged()
    assert "13 passed, 0 failed" in run.output
    report = json.loads((tmp_path / "report.json").read_text())
    verdicts = {check["name"]: check["verdict"] for check in report["checks"]}
    assert set(verdicts.values()) == {"passed"} and len(verdicts) == 13
    speed = next(check for check in report["checks"] if check["name"] == "speed")
    assert speed["figures"]["decode_tokens_per_second"] > 15
    assert ET.parse(tmp_path / "report.xml").getroot().get("failures") == "0"
    assert "| reasoning | passed |" in (tmp_path / "report.md").read_text()


def test_a_verification_fails_after_its_table(door: LabUnderTest, tmp_path: Path) -> None:
    engine(door, "--fault", "leaks-dsml")
    try:
        some = {"verify_checks": ["tools", "streaming"]}
        run = verify(door, tmp_path, **some)
        assert run.returncode != 0 and "the tool parser is not active" in run.output
        assert run.output.index("1 failed") < run.output.index("FAILED!")
        assert ET.parse(tmp_path / "report.xml").getroot().get("failures") == "1"
        verify(door, tmp_path, **some, verify_optional=["tools"]).assert_ok()
    finally:
        engine(door)


def test_a_stand_in_passes_nothing_that_needs_a_model(door: LabUnderTest, tmp_path: Path) -> None:
    engine(door, "--stand-in")
    try:
        run = verify(door, tmp_path).assert_ok()
        assert "A STAND-IN" in run.output
        assert "5 passed, 0 failed, 7 not applicable, 1 skipped" in run.output
    finally:
        engine(door)


def test_a_report_that_cannot_be_written_fails_nothing(door: LabUnderTest, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = str(tmp_path / "file" / "report")
    run = verify(door, tmp_path, verify_checks=["auth"], verify_report_path=path).assert_ok()
    assert "Not written:" in run.output and "Traceback" not in run.output


def test_a_dead_engine_is_told_in_seconds(door: LabUnderTest, tmp_path: Path) -> None:
    door.root("spark1", "systemctl stop engine")
    try:
        run = verify(door, tmp_path)
        assert run.returncode != 0 and "the engine does not answer" in run.output
        assert "0 passed, 1 failed, 12 skipped" in run.output
    finally:
        engine(door)


def test_from_the_controller_a_key_is_needed_here(door: LabUnderTest, tmp_path: Path) -> None:
    run = verify(door, tmp_path, verify_from="controller")
    assert run.returncode != 0 and "there is no verify_key_file" in run.output


def test_in_check_mode_nothing_is_asked(door: LabUnderTest, tmp_path: Path) -> None:
    verify(door, tmp_path, "--check", "--diff").assert_ok().assert_unchanged()
    assert not list(tmp_path.glob("report.*"))


def test_an_open_entry_says_so_everywhere(door: LabUnderTest, play: Path, tmp_path: Path) -> None:
    run = entry(door, play, entry_open=True).assert_ok()
    assert "the entry is OPEN: whoever reaches port 8000 may use it" in run.output
    entry(door, play, entry_open=True).assert_ok().assert_unchanged()
    assert ask(f"{url(door)}/v1/models")[0] == 200
    assert ask(f"{url(door)}/seen")[0] == 404
    run = verify(door, tmp_path, verify_checks=["auth", "closed"], entry_open=True).assert_ok()
    assert "OPEN: whoever reaches the port may use it" in run.output
    assert json.loads((tmp_path / "report.json").read_text())["open"] is True
    # what is open by accident is a failure
    run = verify(door, tmp_path, verify_checks=["auth"])
    assert run.returncode != 0 and "expected status 401, found 200" in run.output


def test_gone_without_a_trace_but_for_the_keys(door: LabUnderTest, play: Path) -> None:
    entry(door, play).assert_ok()
    keys = door.root("spark1", "cat /etc/sparkfleet/keys")
    entry(door, play, entry_state="absent").assert_ok()
    entry(door, play, entry_state="absent").assert_ok().assert_unchanged()
    assert door.root("spark1", "ls -A /etc/sparkfleet; ls -A /var/lib/sparkfleet") == "keys"
    assert (
        door.root("spark1", "ss -Hltn 'sport = :8000'; ls /etc/systemd/system | grep entry || true")
        == ""
    )
    entry(door, play).assert_ok()
    assert ask(f"{url(door)}/v1/models", keys.partition(":")[2])[0] == 200
