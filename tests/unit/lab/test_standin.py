# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The stand-in engine: it refuses a broken contract, meets, answers and fails as it is told."""

from __future__ import annotations

import http.client
import json
import os
import socket
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engine_boot import examine

from lab import checkpoint
from lab.standin import image
from lab.standin.sglang import answers, api, contract, faults, proofs, rendezvous, settings, shards
from tests.support import packed
from tests.support.playbook import ROOT
from tests.support.ports import free_port
from tests.unit.servings import serving

ROWS = (1201, 1303)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file system of rank 1 of 4 as a container sees it, all as it should be."""
    place = tmp_path_factory.mktemp("root")
    model = place / "models/M"
    model.mkdir(parents=True)
    checkpoint.make(model, rows=ROWS)
    for folder in ("engram", "state", "root/.cache", "dev/infiniband"):
        (place / folder).mkdir(parents=True)
    (place / "dev/infiniband/uverbs0").touch()
    tables = dict(zip(checkpoint.LAYERS, ROWS, strict=True))
    packed.write(place / "engram", model, tables, rank=1, ranks=4)
    return place


def given(rank: int = 1, port: int = 20000, **environment: Any) -> settings.Settings:
    words = f"--model-path /models/M --tp 4 --nnodes 4 --node-rank {rank} --served-model-name m"
    words += f" --dist-init-addr 10.0.0.1:{port} --host 127.0.0.1 --port 0 --enable-metrics"
    env = {
        "NODE_RANK": str(rank),
        "NCCL_NET": "IB",
        "NCCL_SOCKET_IFNAME": "=enP7s7",
        "GLOO_SOCKET_IFNAME": "enP7s7",
        "DSV41_SOURCE": "/models/M",
        "DSV41_PACKED_DIR": "/engram",
        "STATE_PATH": "/state",
        **environment,
    }
    return settings.read(words.split(), env)


def refused(root: Path, one: settings.Settings) -> dict[str, str]:
    findings, _given = contract.check(one, root)
    return {found.name: found.detail for found in findings if found.verdict == "refused"}


def read_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write anywhere, so a mount that is read-only has to be told."""
    usual = os.access
    monkeypatch.setattr(os, "access", lambda p, mode: "models" not in str(p) and usual(p, mode))


def test_a_right_contract_is_accepted(root, monkeypatch):
    read_only(root, monkeypatch)
    assert refused(root, given()) == {}
    _findings, parts = contract.check(given(), root)
    assert parts.tables == [(1, 300, 600), (14, 325, 651)]
    assert len(parts.files) == 48


@pytest.mark.parametrize(
    ("environment", "name", "words"),
    [
        ({"NCCL_IB_GID_INDEX": ""}, "environment", "NCCL_IB_GID_INDEX"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "environment", "NaN"),
        ({"NODE_RANK": "2"}, "environment", "NODE_RANK=2 but --node-rank 1"),
        ({"LD_LIBRARY_PATH": "/nccl"}, "environment", "two NCCLs"),
        ({"B12X_COMPILE_CACHE_DIR": "/tmp/x"}, "mounts", "not kept below /state"),
        ({"NCCL_SWITCHLESS_RING_ONLY": "1"}, "nccl", "libnccl.so.2"),
        ({"DSV41_PACKED_DIR": "/elsewhere"}, "engram", "no packed Engram shard"),
    ],
)
def test_a_broken_contract_is_refused(root, monkeypatch, environment, name, words):
    read_only(root, monkeypatch)
    found = refused(root, given(**environment))
    assert words in found[name]


def test_another_rank_needs_another_table(root):
    found = refused(root, given(rank=2))
    assert "no packed Engram shard" in found["engram"]
    assert "models/M can be written" in found["mounts"]  # nothing made it read-only here


@pytest.mark.parametrize("damage", ["foreign", "truncated", "row", "empty"])
def test_damaged_tables_are_refused(root, tmp_path, damage):
    model = root / "models/M"
    path = tmp_path / "engram/engram-l1-r1of4.bin"
    path.parent.mkdir()
    data = bytearray((root / "engram/engram-l1-r1of4.bin").read_bytes())
    if damage == "foreign":
        data[16] ^= 1
    elif damage == "row":
        data[4096 + 264 * 9 + 3] ^= 1
    cut = {"truncated": len(data) - 1, "empty": 40}.get(damage, len(data))
    path.write_bytes(data[:cut])
    _config, places, _files = shards.checkpoint(model)
    told = {"truncated": "is truncated", "empty": "has no header"}.get(damage, "does not match")
    with pytest.raises(shards.RefusedError, match=told):
        shards.packed(path.parent, 1, ROWS[0], 1, 4, model, places)


def test_gids_are_read_by_their_meaning(root, tmp_path):
    port = tmp_path / "sys/class/infiniband/rocep1s0f0/ports/1"
    for folder in ("gids", "gid_attrs/types"):
        (port / folder).mkdir(parents=True)
    table = {
        "0": ("fe80::1", "RoCE v2"),
        "2": ("::ffff:10.20.0.11", "IB/RoCE v1"),
        "3": ("::ffff:10.20.0.11", "RoCE v2"),
        "5": ("::ffff:169.254.3.4", "RoCE v2"),
    }
    for slot, (address, kind) in table.items():
        (port / "gids" / slot).write_text(f"{address}\n")
        (port / "gid_attrs/types" / slot).write_text(f"{kind}\n")
    env: dict[str, Any] = {"NCCL_IB_HCA": "=rocep1s0f0", "NCCL_IB_ADDR_RANGE": "10.20.0.0/16"}

    def gid(**more: Any) -> list[str]:
        return [str(one) for one in contract._gids(given(**env, **more), tmp_path)]

    assert gid() == ["contract gid: ok: rocep1s0f0 slot 3 is 10.20.0.11"]
    assert "refused" in gid(NCCL_IB_GID_INDEX="5")[0]
    (verdict,) = contract._gids(given(**env), root)
    assert verdict.verdict == "not checked"


def meet(members: list[settings.Settings], timeout: float = 10) -> list[str]:
    """What each rank says after the rendezvous: an empty text, or why it failed."""

    def one(member: settings.Settings) -> str:
        try:
            rendezvous.meet(member, lambda _line: None, timeout).close()
        except rendezvous.FailedError as error:
            return str(error)
        return ""

    with ThreadPoolExecutor(len(members)) as pool:
        return list(pool.map(one, members))


def at_home(member: settings.Settings) -> settings.Settings:
    port = member.text("dist-init-addr").rpartition(":")[2]
    return member._replace(arguments={**member.arguments, "dist-init-addr": f"127.0.0.1:{port}"})


def test_equal_ranks_meet():
    port = free_port()
    assert (
        meet([at_home(given(rank, port, HOST_IP=f"10.0.0.{rank}")) for rank in range(4)])
        == [""] * 4
    )


def test_nothing_is_computed_while_one_rank_is_silent():
    port = free_port()
    members = [at_home(given(rank, port, HOST_IP=f"10.0.0.{rank}")) for rank in range(4)]
    with ThreadPoolExecutor(8) as pool:
        groups = list(pool.map(lambda member: rendezvous.meet(member, lambda _line: None), members))
        head, *workers = groups
        serving = [pool.submit(group.serve) for group in (head, *workers[:2])]
        step = pool.submit(head.step)
        with pytest.raises(TimeoutError):
            step.result(timeout=0.3)
        serving.append(pool.submit(workers[2].serve))
        step.result(timeout=10)
        head.step()
        for group in groups:
            for connection in group._members.values():
                connection.shutdown(socket.SHUT_RDWR)
        assert all(gone.result(timeout=10) in range(4) for gone in serving)
        for group in groups:
            group.close()


def test_ranks_that_differ_are_told_in_what():
    port = free_port()
    members = [at_home(given(rank, port)) for rank in range(3)]
    members.append(at_home(given(3, port, CHUNKED_PREFILL_SIZE="1024")))
    said = meet(members)
    assert "rank 3 differs from rank 0 in CHUNKED_PREFILL_SIZE" in said[0]
    assert "rank 3 differs" in said[3]


def test_two_ranks_with_one_number_do_not_meet():
    port = free_port()
    said = meet([at_home(given(rank, port)) for rank in (0, 1, 1)])
    assert "rank 1 of 4 came twice" in said[0]


def test_a_rank_that_stays_away_is_named():
    port = free_port()
    said = meet([at_home(given(rank, port)) for rank in (0, 1, 3)], timeout=1)
    assert "no word from rank 2" in said[0]


@pytest.mark.parametrize(
    ("request_", "content", "reasons"),
    [
        ({"messages": [{"role": "user", "content": "What is 17 x 23?"}]}, "391", True),
        ({"messages": [{"role": "user", "content": "17 × 23 = ?"}]}, "391", True),  # noqa: RUF001
        (
            {
                "messages": [{"role": "user", "content": "19 + 23"}],
                "chat_template_kwargs": {"thinking": False},
            },
            "42",
            False,
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": "Lorem ipsum. " * 900
                        + "The secret code is QX-7741-ZB. "
                        + "dolor sit. " * 900
                        + "What is the secret code?",
                    }
                ]
            },
            "QX-7741-ZB",
            True,
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "add 2 and 3"},
                    {"role": "assistant", "content": None},
                    {"role": "tool", "content": "5"},
                ]
            },
            "The tool says: 5",
            True,
        ),
    ],
)
def test_answers_follow_rules(request_, content, reasons):
    said = answers.answer(request_)
    assert said.content == content
    assert (said.reasoning is not None) == reasons
    assert said.finish == "stop"


def test_a_tool_is_called_with_what_was_said():
    tools = [
        {
            "type": "function",
            "function": {
                "name": "get_weather",
                "description": "The weather of a city",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "city": {"type": "string"},
                        "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
                    },
                },
            },
        },
        {
            "type": "function",
            "function": {
                "name": "add",
                "description": "Add two numbers",
                "parameters": {"properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
            },
        },
    ]
    ask = {"messages": [{"role": "user", "content": "Please add 128 and 64."}], "tools": tools}
    said = answers.answer(ask)
    assert said.finish == "tool_calls"
    assert said.calls == [{"name": "add", "arguments": '{"a": 128, "b": 64}'}]
    ask["messages"] = [{"role": "user", "content": "What is the weather in Paris, in kelvin?"}]
    assert json.loads(answers.answer(ask).calls[0]["arguments"]) == {
        "city": "Paris",
        "unit": "kelvin",
    }


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[api.Server]:
    changes = getattr(request, "param", "")
    server = api.Server(given(0), changes)
    server.ready.set()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def ask(server: api.Server, method: str, path: str, body: object = None) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def chat(
    server: api.Server, content: object = "What is 17 x 23?", **more: object
) -> dict[str, Any]:
    status, text = ask(
        server,
        "POST",
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": content}], **more},
    )
    return {"status": status, **json.loads(text)}


def test_the_api_answers(served):
    assert ask(served, "GET", "/health")[0] == 200
    card = json.loads(ask(served, "GET", "/v1/models")[1])["data"][0]
    assert card["id"] == "m"
    assert "computes no model" in card["description"]
    found = chat(served)
    assert found["choices"][0]["message"]["content"] == "391"
    assert found["usage"]["completion_tokens"] == 6
    assert chat(served, max_tokens=2)["choices"][0]["message"]["content"] is None
    assert chat(served, max_tokens=2)["choices"][0]["finish_reason"] == "length"
    assert chat(served, max_tokens=-1)["status"] == 400
    image_ = [{"type": "text", "text": "Look"}, {"type": "image_url", "image_url": {"url": "x"}}]
    assert chat(served, image_)["usage"]["prompt_tokens"] > 1024
    metrics = ask(served, "GET", "/metrics")[1]
    assert 'sglang:num_requests_total{model_name="m"} 4.0' in metrics
    assert 'sglang:num_running_reqs{model_name="m"} 0.0' in metrics


def test_a_stream_ends_with_usage_and_done(served):
    _status, text = ask(
        served,
        "POST",
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "What is 17 x 23?"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        },
    )
    events = [line[6:] for line in text.split("\n\n") if line]
    assert events[-1] == "[DONE]"
    frames = [json.loads(event) for event in events[:-1]]
    deltas = [choice["delta"] for frame in frames for choice in frame["choices"]]
    assert "".join(d.get("content") or "" for d in deltas) == "391"
    assert "".join(d.get("reasoning_content", "") for d in deltas) == "17 x 23 makes 391."
    assert frames[-1]["usage"]["completion_tokens"] == 6
    assert frames[-1]["choices"] == []


@pytest.mark.parametrize("served", ["error-500"], indirect=True)
def test_a_fault_changes_the_answers(served):
    assert chat(served)["status"] == 500
    assert ask(served, "GET", "/health")[0] == 200


def test_faults_are_chosen_by_name_and_rank(tmp_path):
    file = tmp_path / "fault"
    assert faults.chosen({}, 0, file) == faults.Fault()
    file.write_text("oom:2\n")
    assert faults.chosen({}, 2, file).ends == 1
    assert faults.chosen({}, 1, file) == faults.Fault()
    with pytest.raises(ValueError, match="no fault is called oops"):
        faults.chosen({"SPARKFLEET_STANDIN_FAULT": "oops"}, 0, file)


def test_proof_lines_have_the_values_of_the_rank():
    parts = contract.Given([(1, 300, 600)], ["a", "b"])
    assert "layer=1 rows=[300,600) row_bytes=264 packed=True" in next(proofs.engram(parts, True))
    one = given(DSV41_SHARED_PAD_K="1", DSV41_INDEXER_CHUNKED="1")
    lines = list(proofs.adapters(one))
    assert any("(5120, 576) -> (5120, 640)" in line for line in lines)
    assert len([line for line in proofs.adapters(given()) if "ARMED" in line]) == 0
    pinned = settings.read(["--max-total-tokens", "8000000"], {})
    assert proofs.pool(pinned, clamped=True)[0] == 6000000


def test_an_archive_is_what_docker_save_writes(tmp_path):
    layers = [b"one", b"two"]
    image.image().write(tmp_path / "a.tar", layers, "arm64")
    image.image().write(tmp_path / "b.tar", layers, "arm64")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    with tarfile.open(tmp_path / "a.tar") as tar:
        (manifest,) = json.load(tar.extractfile("manifest.json"))  # type: ignore[arg-type]
        config = json.load(tar.extractfile(manifest["Config"]))  # type: ignore[arg-type]
        assert config["architecture"] == "arm64"
        assert len(config["rootfs"]["diff_ids"]) == len(manifest["Layers"]) == 2


@pytest.mark.parametrize(
    ("profile", "hosts", "topology"),
    [
        ("dsv41-tp4", 4, "switch"),
        ("dsv41-tp4-base", 4, "switch"),
        ("dsv41-tp4-ring", 4, "ring"),
        ("dsv41-tp3", 3, "triangle"),
        ("dsv41-tp8", 8, "switch"),
        (ROOT / "lab/standin/pair.yml", 2, "pair"),
    ],
)
def test_every_profile_is_proven_by_what_a_boot_prints(profile, hosts, topology):
    """The launch as it is planned keeps the contract, and its ranks agree with each other."""
    plan = serving(profile, hosts, topology)
    common = []
    for one in plan["hosts"].values():
        container = one["container"]
        started = settings.read(container["command"][2:], container["env"])
        common.append(started.common())
        parts = contract.Given([(1, 0, 10), (14, 0, 10)], ["a", "b"])
        findings = [*contract._environment(started, Path()), *contract._arguments(started, Path())]
        assert [str(found) for found in findings if found.verdict != "ok"] == []
        _granted, pool = proofs.pool(started, clamped=False)
        lines = [
            *proofs.nccl(started),
            *proofs.load(parts),
            *proofs.engram(parts, True),
            *proofs.adapters(started),
            *pool,
            *(proofs.ready(started) if one["head"] else ()),
        ]
        facts = examine(
            "\n".join([*lines, ""]),
            proofs=plan["checks"]["proofs"],
            fatals=plan["checks"]["fatals"],
            head=one["head"],
        )
        missing = [proof["name"] for proof in facts["proofs"] if proof["status"] != "found"]
        assert missing == []
        assert facts["fatals"] == []
    assert all(one == common[0] for one in common)


@pytest.mark.parametrize("name", sorted(faults.FAULTS))
def test_every_fault_that_prints_is_a_signature_of_the_profiles(name):
    told = faults.FAULTS[name].lines
    signatures = serving("dsv41-tp4-ring", 4, "ring")["checks"]["fatals"]
    facts = examine("\n".join([*told, ""]), fatals=signatures)
    known_by_ending = {"die-in-boot", "port-taken"}  # said by the unit, not by a signature
    assert facts["failed"] == (bool(told) and name not in known_by_ending)
