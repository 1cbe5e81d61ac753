"""Logs of engines, good and bad, whole and in pieces."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engine_boot import (
    AFTER,
    BEFORE,
    IN_ALL,
    PER_NAME,
    STAGES,
    PatternError,
    examine,
    read_log,
    shown,
)

from tests.support.playbook import ROOT
from tests.unit.fabrics import plan
from tests.unit.servings import serving

LINES: dict[str, Any] = yaml.safe_load(
    Path(__file__).with_name("engine_boot_lines.yml").read_text(encoding="utf-8")
)
PROFILES = ROOT / "roles/sglang/files/profiles"
SWITCH = serving("dsv41-tp4")["checks"]
RING = serving("dsv41-tp4-ring", topology="ring")["checks"]
FOUR_HCAS = serving("dsv41-tp4-ring", fabric=plan(4, nccl="dual-pci-domain"))["checks"]
SKIPPED = serving("dsv41-tp4-ring", fabric=plan(4, nccl="skip-tree-pat"))["checks"]
PROOFS = {
    proof["name"]: proof
    for checks in (SKIPPED, FOUR_HCAS, RING, SWITCH)
    for proof in checks["proofs"]
}
FATALS = [
    pytest.param(name, line, id=f"{name}-{number}")
    for name, lines in LINES["fatals"].items()
    for number, line in enumerate(lines)
]

# The order in which a boot of SGLang prints what belongs to no proof.
BOOT = [
    "server_args=ServerArgs(model_path='/x', api_key='sk-1', max_total_tokens=8000000, tp_size=4)",
    "[2026-10-02 09:57:05 TP1] Init torch distributed begin.",
    "NCCL version 2.30.7+cuda13.0",
    "spark2:71:412 [0] NCCL INFO Using network IB",
    "[2026-10-02 09:57:20 TP1] Init torch distributed ends. elapsed=15.0 s",
    "[2026-10-02 09:57:21 TP1] Load weight begin. avail mem=113.90 GB",
    "Loading checkpoint shards:   0% Completed | 0/48\rLoading: 100% Completed | 48/48 [01:20]",
    "[2026-10-02 09:59:00 TP1] Load weight end. type=DeepseekV41ForCausalLM",
    *(line for lines in LINES["proofs"].values() for line in lines),
    "[2026-10-02 09:59:30 TP0] Capture cuda graph begin. This can take up to several minutes.",
    "[2026-10-02 09:59:30 TP0] Capture cuda graph bs [1, 2, 4, 8, 16]",
    "[2026-10-02 10:00:10] INFO:     Application startup complete.",
    "[2026-10-02 10:00:20] The server is fired up and ready to roll!",
]
GOOD = "\n".join(BOOT) + "\n"


def boot(text: str, checks: dict[str, Any] = SWITCH, **options: Any) -> dict[str, Any]:
    return examine(text, proofs=checks["proofs"], fatals=checks["fatals"], **options)


def states(facts: dict[str, Any]) -> dict[str, str]:
    return {proof["name"]: proof["status"] for proof in facts["proofs"]}


def test_every_proof_and_signature_of_the_profiles_has_its_lines():
    proofs: set[str] = set()
    fatals: set[str] = set()
    for path in PROFILES.glob("*.yml"):
        profile = yaml.safe_load(path.read_text(encoding="utf-8"))
        proofs |= set(profile.get("proofs", {}))
        fatals |= set(profile.get("fatals", {}))
    assert proofs == set(LINES["proofs"])
    assert fatals == set(LINES["fatals"])


@pytest.mark.parametrize("name", LINES["proofs"])
def test_a_proof_is_found_by_its_lines_and_missed_without(name):
    lines = LINES["proofs"][name]
    proof = PROOFS[name]
    assert states(examine("\n".join([*lines, ""]), proofs=[proof])) == {name: "found"}
    if proof["count"] == 1:
        for line in lines:
            assert states(examine(f"{line}\n", proofs=[proof])) == {name: "found"}, line
        lines = lines[:1]
    assert states(examine("\n".join([*lines[1:], ""]), proofs=[proof])) == {name: "missing"}
    others = [line for other in LINES["proofs"] if other != name for line in LINES["proofs"][other]]
    assert states(examine("\n".join([*others, ""]), proofs=[proof])) == {name: "missing"}


@pytest.mark.parametrize(("name", "line"), FATALS)
def test_a_fatal_line_is_named_with_cause_and_remedy(name, line):
    facts = boot(f"before\n{line}\nafter\n")
    assert [entry["name"] for entry in facts["fatals"]] == [name]
    (entry,) = facts["fatals"]
    assert entry["cause"] and entry["remedy"]
    assert (entry["number"], entry["line"]) == (2, line)
    assert entry["context"] == ["before", line, "after"]
    assert facts["failed"] is not entry["weak"]
    assert entry["weak"] is (name == "driver memory warning")


@pytest.mark.parametrize("line", LINES["harmless"])
def test_what_good_boots_print_is_not_fatal(line):
    assert boot(f"{line}\n")["fatals"] == []


@pytest.mark.parametrize("checks", [SWITCH, RING, FOUR_HCAS, SKIPPED])
def test_a_good_boot(checks):
    facts = boot(GOOD, checks)
    assert facts["proven"] is True
    assert not facts["failed"]
    assert facts["stage"] == {"name": "ready", "shard": 48, "shards": 48}
    assert facts["engram"] == [
        {"layer": 1, "rank": 1, "rows": [96001542, 192003084], "mode": "nvme", "packed": True},
        {"layer": 14, "rank": 1, "rows": [96004170, 192008341], "mode": "nvme", "packed": True},
    ]
    assert facts["pool"] == {
        "asked": 8000000,
        "granted": 6490112,
        "clamped": True,
        "chunked_prefill_size": 4096,
        "max_running_requests": 16,
        "context_length": 1048576,
        "full_tokens": 6490112,
        "bytes_per_token": 1670.75,
    }
    assert facts["graphs"] == [1, 2, 4, 8, 16]
    assert facts["speculation"] == {"block": 5, "window": 6}
    assert (facts["nccl"]["version"], facts["nccl"]["network"]) == ("2.30.7", "IB")
    assert "Connected all rings" in "".join(facts["nccl"]["lines"])
    assert "sk-1" not in json.dumps(facts)


def test_an_empty_log_says_nothing_and_does_not_pass():
    facts = boot("")
    assert facts["proven"] is False
    assert facts["stage"] == {"name": None, "shard": None, "shards": None}
    assert set(states(facts).values()) == {"missing"}
    assert facts["pool"]["granted"] is None
    assert facts["pool"]["clamped"] is None


@pytest.mark.parametrize("seed", range(8))
def test_a_log_in_pieces_says_the_same_as_the_whole(seed):
    text = GOOD + "\n".join(f"{line}\nmore" for name, line in [p.values for p in FATALS]) + "\n"
    text = text.replace("\r", "\n")
    whole = boot(text)
    chance = random.Random(seed)
    facts: dict[str, Any] | None = None
    at = 0
    while at < len(text):
        piece = text[at : at + chance.randint(1, 400)]
        facts = json.loads(json.dumps(boot(piece, previous=facts)))
        at += piece.rfind("\n") + 1 if "\n" in piece else 0
        if "\n" not in piece:  # the line is longer than the piece: read on from its beginning
            end = text.index("\n", at) + 1
            facts = json.loads(json.dumps(boot(text[at:end], previous=facts)))
            at = end
    assert facts is not None
    for key in ("stage", "engram", "pool", "graphs", "speculation", "nccl", "lines", "proven"):
        assert facts[key] == whole[key], key
    assert facts["proofs"] == whole["proofs"]
    found = {(entry["name"], entry["number"]): entry["line"] for entry in facts["fatals"]}
    assert len(found) == len(facts["fatals"]), "a line was told twice"
    assert len(found) == IN_ALL


def test_the_lines_after_a_fatal_one_are_added_when_they_come():
    first = boot("".join(f"{n}\n" for n in range(9)) + "Engram retrieval failed: x\n")
    assert first["fatals"][0]["context"] == ["4", "5", "6", "7", "8", "Engram retrieval failed: x"]
    second = boot("one\ntwo\n", previous=first)
    third = boot("".join(f"a{n}\n" for n in range(20)), previous=second)
    (entry,) = third["fatals"]
    assert entry["context"][BEFORE + 1 :] == ["one", "two", *(f"a{n}" for n in range(AFTER - 2))]
    assert (entry["number"], entry["context_from"]) == (10, 5)


def test_a_dying_word_without_a_line_end_is_heard_once():
    first = boot("start\nEngram retrieval fail")
    assert first["fatals"] == []
    second = boot("Engram retrieval failed: short", previous=first)
    assert [entry["line"] for entry in second["fatals"]] == ["Engram retrieval failed: short"]
    third = boot("Engram retrieval failed: short read\nend\n", previous=second)
    assert [entry["line"] for entry in third["fatals"]] == ["Engram retrieval failed: short read"]
    assert third["fatals"][0]["number"] == 2
    assert third["lines"] == 3


def test_the_first_fatal_line_stands_first_and_a_flood_is_cut():
    text = "packed Engram shard is truncated: x\n" + "Traceback (most recent call last):\n" * 50
    names = [entry["name"] for entry in boot(text)["fatals"]]
    assert names == ["truncated Engram table"] + ["exception"] * PER_NAME


def test_dropped_lines_make_missing_ones_unknown():
    """F09: the journal lacks the line, and says that it dropped some."""
    lines = [line for line in BOOT if "indexer chunked" not in line]
    note = "Suppressed 1843 messages from sparkfleet-rank@cell1.service"
    assert boot("\n".join([*lines, ""]))["proven"] is False
    unit = "sparkfleet-rank@cell1.service"
    facts = boot("\n".join([*lines, note, ""]), source=unit)
    assert (facts["suppressed"], facts["proven"]) == (1843, None)
    assert states(facts)["chunked indexer"] == "unknown"
    assert states(facts)["KV pool"] == "found"
    elsewhere = boot("\n".join([*lines, note.replace("cell1", "cell2"), ""]), source=unit)
    assert (elsewhere["suppressed"], elsewhere["proven"]) == (0, False)


def test_a_gap_makes_missing_lines_unknown():
    assert boot("x\n", incomplete=True)["proven"] is None
    assert boot("y\n", previous=boot("x\n", incomplete=True))["proven"] is None


def test_a_weak_signature_alone_does_not_fail_a_boot():
    """F14: the driver's warning is on good boots as well."""
    line = LINES["fatals"]["driver memory warning"][0]
    facts = boot(GOOD + line + "\n")
    assert facts["proven"] is True
    assert not facts["failed"]
    both = boot(f"{line}\nEngram retrieval failed: x\n")
    assert both["failed"]
    assert [entry["weak"] for entry in both["fatals"]] == [True, False]


def test_an_unpacked_table_is_a_fact_and_a_failure():
    facts = boot(LINES["fatals"]["unpacked Engram table"][0] + "\n")
    assert facts["engram"][0]["packed"] is False
    assert facts["failed"]


def test_less_is_asked_of_a_worker():
    asked = {proof["name"] for proof in boot("", head=False)["proofs"]}
    assert "packed Engram tables" in asked
    assert not asked & {"KV pool", "DSpark draft", "RoCEnante"}


@pytest.mark.parametrize(
    ("granted", "asked", "clamped"),
    [
        (8000000, 8000000, False),
        (7999744, 8000000, True),
        (7999744, 7999800, False),
        (5, None, None),
    ],
)
def test_a_pool_that_is_smaller_than_asked_is_clamped(granted, asked, clamped):
    facts = examine(f"max_total_num_tokens={granted}, context_len=4\n", asked=asked)
    assert facts["pool"]["clamped"] is clamped


def test_only_the_last_boot_in_a_log_counts():
    text = "BOOT\nEngram retrieval failed: x\nBOOT\nDSV41 indexer chunked ARMED\n"
    facts = boot(text, start="^BOOT$")
    assert not facts["failed"]
    assert states(facts)["chunked indexer"] == "found"
    again = boot("x\nBOOT\n", start="^BOOT$", previous=facts)
    assert states(again)["chunked indexer"] == "missing"
    assert again["lines"] == 6


def test_the_stages_come_in_their_order():
    told = []
    facts: dict[str, Any] | None = None
    for line in BOOT:
        facts = boot(f"{line}\n", previous=facts)
        name = facts["stage"]["name"]
        if name and name not in told:
            told.append(name)
    assert told == [name for name, _pattern in STAGES]


def test_the_same_from_the_words_of_sglang_0_5_23():
    text = (
        "server_args={'model_path': '/x', 'api_key': 'sk-1', 'max_total_tokens': 4096}\n"
        "Init parallel begin.\n"
    )
    facts = boot(text)
    assert facts["stage"]["name"] == "rendezvous"
    assert facts["pool"]["asked"] == 4096
    facts = boot("Init parallel ends. elapsed=0.52 s\n", previous=facts)
    assert facts["stage"]["name"] == "connected"
    facts = boot("Capture target decode CUDA graph begin. backend=full\n", previous=facts)
    assert facts["stage"]["name"] == "graphs"
    facts = boot(
        "Capture target decode CUDA graph end. bs=[1, 2, 4], elapsed=9 s\n", previous=facts
    )
    assert facts["graphs"] == [1, 2, 4]


def test_progress_within_loading():
    text = "Loading safetensors checkpoint shards:  25% Completed | 12/48 [00:10<00:30]\r"
    assert boot(text)["stage"] == {"name": "loading", "shard": 12, "shards": 48}


def test_a_wrong_pattern_is_named():
    with pytest.raises(PatternError, match="proof x is no regular expression: missing"):
        examine("", proofs=[{"name": "x", "pattern": "("}])


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("ServerArgs(api_key='sk-CANARY', x=1)", "sk-CANARY"),
        ('"admin_api_key": "sk-CANARY"', "sk-CANARY"),
        ("launch --api-key sk-CANARY --port 1", "sk-CANARY"),
        ("Authorization: Bearer sk-CANARY", "sk-CANARY"),
        ("HF_TOKEN=hf_CANARY", "hf_CANARY"),
    ],
)
def test_keys_are_not_shown(line, secret):
    assert secret not in shown(line)
    assert "***" in shown(line)


def test_numbers_of_tokens_are_no_keys():
    line = "full_token=10029056 max_total_num_tokens=10029056"
    assert shown(line) == line
    assert len(shown("x" * 9999)) < 500


# --- files ----------------------------------------------------------------------------------------


def test_a_growing_file_is_read_on(tmp_path):
    log = tmp_path / "log"
    assert read_log(str(log), 0, 1000) is None
    log.write_bytes(b"one\ntwo")
    assert read_log(str(log), 0, 1000) == ("one\ntwo", 4, 0)
    log.write_bytes(b"one\ntwo\nthree\n")
    assert read_log(str(log), 4, 1000) == ("two\nthree\n", 14, 0)
    assert read_log(str(log), 14, 1000) == ("", 14, 0)
    log.write_bytes(b"new\n")  # rotated
    assert read_log(str(log), 14, 1000) == ("new\n", 4, 0)


def test_of_a_large_file_beginning_and_end_are_read(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"".join(b"line %04d\n" % number for number in range(1000)))
    text, offset, skipped = read_log(str(log), 0, 105) or ("", 0, 0)
    assert text.splitlines() == [f"line {n:04d}" for n in (*range(5), *range(995, 1000))]
    assert (offset, skipped) == (10000, 9900)


def test_what_is_no_text_is_no_crash(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"\xff\xfe\x00 packed Engram shard is truncated\n")
    text, _offset, _skipped = read_log(str(log), 0, 1000) or ("", 0, 0)
    assert boot(text)["failed"]


def test_a_real_log_of_sglang_0_5_23():
    """One rank of it on a CPU with a toy model, without warnings of imports and most arguments."""
    path = ROOT / "tests/unit/fixtures/serving/sglang-0.5.23-cpu.log"
    stages: list[str] = []
    facts: dict[str, Any] | None = None
    with path.open(newline="", encoding="utf-8") as log:
        for line in log:
            facts = boot(line, previous=facts)
            name = facts["stage"]["name"]
            if name and name not in stages:
                stages.append(name)
    assert facts is not None
    assert stages == [name for name, _pattern in STAGES if name != "graphs"]  # it had none
    assert facts["stage"] == {"name": "ready", "shard": 1, "shards": 1}
    assert (facts["pool"]["asked"], facts["pool"]["granted"]) == (4096, 4096)
    assert facts["pool"]["clamped"] is False
    assert facts["pool"]["context_length"] == 4096
    assert facts["fatals"] == []
    assert states(facts)["KV pool"] == "found"
