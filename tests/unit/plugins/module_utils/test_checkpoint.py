"""A checkpoint is whole, or every fault of it is named with its file and tensor."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import ask_all
from ansible_collections.sparkfleet.cluster.plugins.module_utils._checkpoint import (
    inspect,
    lines,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._checkpoint_files import (
    unreadable_as,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._safetensors import read_header

from lab import checkpoint
from lab.checkpoint import shard

INDEX = "model.safetensors.index.json"
COMMIT, OTHER = "1" * 40, "2" * 40
Facts = dict[str, Any]


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Facts]:
    directory = tmp_path_factory.mktemp("whole") / "checkpoint"
    return directory, checkpoint.make(directory, rows=(101, 103))


@pytest.fixture
def whole(template: tuple[Path, Facts], tmp_path: Path) -> tuple[Path, Facts]:
    """A checkpoint of one's own, whole until the test damages it, and the facts about it."""
    shutil.copytree(template[0], tmp_path / "checkpoint")
    return tmp_path / "checkpoint", json.loads(json.dumps(template[1]))


def codes(result: dict[str, Any]) -> list[str]:
    return [problem["code"] for problem in result["problems"]]


def the_problem(result: dict[str, Any]) -> dict[str, Any]:
    assert len(result["problems"]) == 1, lines(result["problems"])
    assert (result["state"], result["complete"]) == ("incomplete", False)
    problem: dict[str, Any] = result["problems"][0]
    return problem


def test_a_whole_one(whole):
    path, facts = whole
    found = inspect(str(path), facts)
    assert (found["state"], found["complete"], found["problems"]) == ("complete", True, [])
    assert (found["weight_files"], found["weight_bytes"]) == (48, facts["weight_bytes"])
    assert found["directories"] == [found["resolved_root"]] == [str(path)]
    assert json.loads(json.dumps(found)) == found


def test_tables_are_told_with_their_places(whole):
    path, facts = whole
    tables = inspect(str(path), facts)["engram"]
    assert [(table["layer"], table["rows"], table["file"]) for table in tables] == [
        (1, 101, shard(47)),
        (14, 103, shard(48)),
    ]
    for table in tables:
        data = Path(table["path"]).read_bytes()
        for part in ("weight", "scale"):
            place = table[part]
            assert data[place["begin"] : place["end"]] == checkpoint.table_bytes(
                1, table["layer"], part, 0, table["rows"]
            )


def test_real_sizes_from_a_sparse_one(tmp_path):
    facts = checkpoint.make(tmp_path, rows=checkpoint.REAL_ROWS, sparse=True)
    found = inspect(str(tmp_path), facts)
    assert found["complete"], lines(found["problems"])
    assert [t["weight"]["end"] - t["weight"]["begin"] for t in found["engram"]] == [
        98_305_579_008,
        98_308_270_592,
    ]


# --- files and index ---


def test_nothing_there(tmp_path):
    for path in (tmp_path / "no", tmp_path):
        found = inspect(str(path), {"weight_bytes": 5})
        assert (found["state"], codes(found)) == ("absent", ["absent"])
        assert found["free_bytes"] > 0
    (tmp_path / "file").touch()
    assert "not a directory" in inspect(str(tmp_path / "file"))["problems"][0]["message"]


def test_a_missing_file_names_its_tensors(whole):
    path, facts = whole
    (path / shard(3)).unlink()
    found = inspect(str(path), facts)
    problem = the_problem(found)
    assert (problem["code"], problem["file"]) == ("missing-file", shard(3))
    assert "layers.2.attn.wq.scale" in problem["message"]
    assert found["missing"] == [shard(3)]


def test_thirty_of_forty_eight(whole):
    path, facts = whole
    gone = [shard(number) for number in range(31, 49)]
    for name in gone:
        (path / name).unlink()
    found = inspect(str(path), facts)
    assert found["missing"] == gone
    assert set(codes(found)) == {"missing-file"}


def test_no_index_and_no_configuration(whole):
    path, facts = whole
    (path / INDEX).unlink()
    (path / "config.json").unlink()
    found = inspect(str(path), facts)
    assert {p["file"] for p in found["problems"] if p["code"] == "missing-file"} == {
        INDEX,
        "config.json",
    }


@pytest.mark.parametrize(
    ("text", "code", "told"),
    [
        ('{"weight_map": {"a": "b", "c": NaN}}', "bad-json", "NaN"),
        ('{"weight_map": ', "bad-json", "not JSON"),
        ("[]", "bad-json", "expected an object"),
        ("{}", "index", "no weight_map"),
        ('{"weight_map": []}', "index", "no weight_map"),
        ('{"weight_map": {"t": "/etc/passwd"}}', "index", "t is in '/etc/passwd'"),
        ('{"weight_map": {"t": "../x"}}', "index", "t is in '../x'"),
        ('{"weight_map": {"t": 5}}', "index", "t is in 5"),
        ('{"weight_map": {"t": ""}}', "index", "t is in ''"),
        ("[" * 100000, "bad-json", "not JSON"),
    ],
)
def test_an_index_that_is_none(text, code, told, tmp_path):
    (tmp_path / INDEX).write_text(text)
    (tmp_path / "config.json").write_text("{}")
    problem = the_problem(inspect(str(tmp_path)))
    assert (problem["code"], problem["file"]) == (code, INDEX)
    assert told in problem["message"]


def test_one_file_needs_no_index(whole, tmp_path):
    single = tmp_path / "single"
    single.mkdir()
    shutil.copy(whole[0] / shard(1), single / "model.safetensors")
    (single / "config.json").write_text("{}")
    found = inspect(str(single))
    assert found["complete"], found["problems"]
    assert found["weight_files"] == 1


def test_a_directory_in_place_of_a_file(whole):
    path, facts = whole
    (path / shard(3)).unlink()
    (path / shard(3)).mkdir()
    problem = the_problem(inspect(str(path), facts))
    assert (problem["code"], problem["file"]) == ("not-a-file", shard(3))
    assert "a directory, expected a file" in problem["message"]


def test_a_pipe_is_not_opened(whole):
    path, facts = whole
    (path / shard(3)).unlink()
    os.mkfifo(path / shard(3))
    assert the_problem(inspect(str(path), facts))["code"] == "not-a-file"


def test_second_sets_of_weights(whole):
    path, facts = whole
    names = [f"model-{n:05d}-of-00008.safetensors" for n in range(1, 9)]
    for name in [*names, "consolidated.safetensors"]:
        shutil.copy(path / shard(1), path / name)
    (path / "training_args.bin").touch()
    found = inspect(str(path), facts)
    problem = the_problem(found)
    assert problem["code"] == "foreign-weights"
    assert problem["files"] == found["foreign"] == ["consolidated.safetensors", *names]
    assert problem["message"].startswith("9 files")


def test_index_and_headers_both_ways(whole):
    path, facts = whole
    index = json.loads((path / INDEX).read_text())
    index["weight_map"]["layers.2.ghost"] = shard(3)
    del index["weight_map"]["layers.1.attn_norm.weight"]
    index["weight_map"]["layers.0.attn_norm.weight"] = shard(3)
    (path / INDEX).write_text(json.dumps(index))
    found = inspect(str(path), facts)
    told = {(p["code"], p["file"], p["tensor"]) for p in found["problems"]}
    assert told == {
        ("tensor-not-in-file", shard(3), "layers.0.attn_norm.weight"),
        ("tensor-not-indexed", shard(2), "layers.1.attn_norm.weight"),
        ("tensor-not-indexed", shard(1), "layers.0.attn_norm.weight"),
    }
    assert "layers.2.ghost" in "".join(lines(found["problems"]))


# --- headers ---


def test_a_cut_file(whole):
    path, facts = whole
    last = list(read_header(path / shard(3)).tensors)[-1]
    os.truncate(path / shard(3), (path / shard(3)).stat().st_size - 3)
    found = inspect(str(path), facts)
    problem = the_problem(found)
    assert (problem["code"], problem["missing"]) == ("truncated", {last: 3})
    assert problem["message"].startswith(f"{shard(3)}: 3 bytes missing")
    assert found["damaged"] == [shard(3)]


def test_a_pointer(whole):
    path, facts = whole
    (path / shard(9)).write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'a' * 64}\nsize 10627385344\n"
    )
    found = inspect(str(path), facts)
    problem = the_problem(found)
    assert (problem["code"], problem["declared_size"]) == ("lfs-pointer", 10627385344)
    assert found["damaged"] == [shard(9)]


# --- what is expected ---


@pytest.mark.parametrize(
    ("change", "code", "told"),
    [
        ({"weight_files": 47}, "wrong-count", "names 48 files, expected 47"),
        ({"weight_bytes": 12}, "wrong-size", "expected 12"),
        ({"config_sha256": "0" * 64}, "wrong-config", f"expected {'0' * 64}"),
    ],
)
def test_other_facts(change, code, told, whole):
    path, facts = whole
    problem = the_problem(inspect(str(path), {**facts, **change}))
    assert problem["code"] == code
    assert told in problem["message"]


def test_without_facts_nothing_is_compared(whole):
    assert inspect(str(whole[0]))["complete"]
    assert inspect(str(whole[0]), dict.fromkeys(whole[1]))["complete"]


def test_rows_of_another_model(whole):
    path, facts = whole
    facts["engram"]["tables"][0]["rows"] = 100
    found = inspect(str(path), facts)
    assert codes(found) == ["engram-config", "engram-rows", "engram-rows"]
    assert (
        "layer 1: 101 rows, layer 14: 103 rows, expected layer 1: 100"
        in found["problems"][0]["message"]
    )
    assert found["problems"][1]["tensor"] == "layers.1.engram.embed.weight"
    assert [table["layer"] for table in found["engram"]] == [14]


def test_rows_against_the_configuration(whole):
    path, _facts = whole
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["engram_num_embeddings"] = [101, 104]
    (path / "config.json").write_text(json.dumps(config))
    found = inspect(str(path))
    assert codes(found) == ["engram-rows", "engram-rows"]
    assert "has 103 rows, expected 104" in found["problems"][0]["message"]


def test_a_configuration_that_contradicts_itself(whole):
    path, _facts = whole
    config = json.loads((path / "config.json").read_text())
    config["text_config"]["engram_num_embeddings"] = [101]
    (path / "config.json").write_text(json.dumps(config))
    assert the_problem(inspect(str(path)))["code"] == "engram-config"


Rewrite = Callable[[dict[str, Any]], None]


def rewrite(path: Path, change: Rewrite, data: int) -> None:
    """Another header over `data` bytes."""
    raw = path.read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(data))


WEIGHT, SCALE = "layers.1.engram.embed.weight", "layers.1.engram.embed.scale"


@pytest.mark.parametrize(
    ("tensors", "code", "told"),
    [
        ({WEIGHT: ("F8_E5M2", [101, 256]), SCALE: ("F8_E8M0", [101, 8])}, "dtype", "F8_E5M2"),
        ({WEIGHT: ("F8_E4M3", [101, 256]), SCALE: ("U8", [101, 8])}, "dtype", "U8"),
        ({WEIGHT: ("F8_E4M3", [101, 128]), SCALE: ("F8_E8M0", [101, 8])}, "width", "rows of 256"),
        ({WEIGHT: ("F8_E4M3", [101, 256]), SCALE: ("F8_E8M0", [808])}, "width", "rows of 8"),
        ({WEIGHT: ("F8_E4M3", [101, 256]), SCALE: ("F8_E8M0", [100, 8])}, "rows", "has 100 rows"),
        ({WEIGHT: ("F8_E4M3", [101, 256])}, "missing", SCALE),
    ],
)
def test_tables_that_cannot_be_packed(tensors, code, told, whole):
    path, facts = whole
    entries: dict[str, Any] = {}
    at = 0
    for name, (dtype, shape) in tensors.items():
        size = shape[0] * (shape[1] if len(shape) > 1 else 1)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size

    def change(header: dict[str, Any]) -> None:
        header.clear()
        header.update(entries)

    rewrite(path / shard(47), change, at)
    found = inspect(str(path), {**facts, "weight_bytes": None})
    wanted = [p for p in found["problems"] if p["code"].startswith("engram-")]
    assert [p["code"] for p in wanted] == [f"engram-{code}"]
    assert told in wanted[0]["message"]
    assert [table["layer"] for table in found["engram"]] == [14]


def test_weights_and_scales_in_different_files(whole):
    path, facts = whole
    index = json.loads((path / INDEX).read_text())
    scale = {"dtype": "F8_E8M0", "shape": [101, 8], "data_offsets": [0, 808]}
    kept = read_header(path / shard(47)).tensors[WEIGHT]

    def only_weight(header: dict[str, Any]) -> None:
        header.clear()
        header[WEIGHT] = {
            "dtype": "F8_E4M3",
            "shape": list(kept.shape),
            "data_offsets": [0, kept.nbytes],
        }

    def only_scale(header: dict[str, Any]) -> None:
        header.clear()
        header[SCALE] = scale

    rewrite(path / shard(47), only_weight, kept.nbytes)
    rewrite(path / shard(46), only_scale, 808)
    index["weight_map"] = {
        name: file
        for name, file in index["weight_map"].items()
        if file not in (shard(46), shard(47))
    } | {WEIGHT: shard(47), SCALE: shard(46)}
    (path / INDEX).write_text(json.dumps(index))
    problem = the_problem(inspect(str(path), {**facts, "weight_bytes": None}))
    assert problem["code"] == "engram-split"
    assert f"{WEIGHT} is in {shard(47)}, but {SCALE} in {shard(46)}" in problem["message"]


# --- links ---


def farm(whole: Path, hub: Path) -> Path:
    """The hub's cache over two hops, as newer downloaders make it; returns the snapshot."""
    model = hub / "models--org--m"
    snapshot = model / "snapshots" / COMMIT
    for folder in (snapshot, model / "blobs", hub / "blobs"):
        folder.mkdir(parents=True)
    for file in whole.iterdir():
        etag = hashlib.sha256(file.read_bytes()).hexdigest()
        (hub / "blobs" / etag[:2]).mkdir(exist_ok=True)
        shutil.copy(file, hub / "blobs" / etag[:2] / etag)
        (model / "blobs" / etag).symlink_to(f"../../blobs/{etag[:2]}/{etag}")
        (snapshot / file.name).symlink_to(f"../../blobs/{etag}")
    return snapshot


def test_a_farm_of_links(whole, tmp_path):
    path, facts = whole
    hub = tmp_path / "hub"
    snapshot = farm(path, hub)
    told = {**facts, "revision": COMMIT}
    found = inspect(str(snapshot), told, within=str(hub / "models--org--m"))
    problem = the_problem(found)
    assert problem["code"] == "links-leave"
    assert found["resolved_root"] == str(hub)
    assert str(hub / "blobs") in problem["target"]
    assert found["revision"] == COMMIT
    assert inspect(str(snapshot), told)["state"] == "incomplete"
    assert inspect(str(snapshot), told, within=str(hub))["complete"]


def test_links_within_the_directory_are_fine(whole):
    path, facts = whole
    (path / "blobs").mkdir()
    (path / shard(3)).rename(path / "blobs" / "abc")
    (path / shard(3)).symlink_to("blobs/abc")
    found = inspect(str(path), facts)
    assert found["complete"], found["problems"]
    assert found["directories"] == [str(path), str(path / "blobs")]


def test_links_that_lead_nowhere(whole):
    path, facts = whole
    for name, target in ((shard(3), "/no/where"), (shard(4), shard(5)), (shard(5), shard(4))):
        (path / name).unlink()
        (path / name).symlink_to(target)
    (path / "extra.txt").symlink_to("gone")
    (path / "self").symlink_to("self")
    found = inspect(str(path), facts)
    assert {(p["code"], p["file"]) for p in found["problems"]} == {
        ("link-dangling", shard(3)),
        ("link-loop", shard(4)),
        ("link-loop", shard(5)),
        ("link-dangling", "extra.txt"),
        ("link-loop", "self"),
    }
    assert "/no/where, which does not exist" in "".join(lines(found["problems"]))


# --- what the downloader left ---


def metadata(path: Path, name: str, commit: str, etag: str = "x") -> None:
    folder = path / ".cache/huggingface/download"
    folder.mkdir(parents=True, exist_ok=True)
    when = (path / name).stat().st_mtime
    (folder / f"{name}.metadata").write_text(f"{commit}\n{etag}\n{when}\n")


def test_the_revision_the_downloader_noted(whole):
    path, facts = whole
    metadata(path, shard(9), COMMIT)
    metadata(path, shard(10), COMMIT)
    assert inspect(str(path), {**facts, "revision": COMMIT})["revision"] == COMMIT
    problem = the_problem(inspect(str(path), {**facts, "revision": OTHER}))
    assert problem["code"] == "wrong-revision"
    assert COMMIT in problem["message"]
    metadata(path, shard(10), OTHER)
    found = inspect(str(path), facts)
    assert (the_problem(found)["code"], found["revision"]) == ("mixed-revisions", None)


def test_notes_about_a_file_that_changed_are_void(whole):
    path, facts = whole
    metadata(path, shard(9), COMMIT)
    os.utime(path / shard(9), (2e9, 2e9))
    assert inspect(str(path), facts)["revision"] is None


HASHED = "5EN2oK5nnY5dXTxcEQ7GPdMRidY="  # of shard 9, as versions 1.17 and 2.4 of it have it
ETAG = "fb" * 32


@pytest.mark.parametrize(
    ("start", "resumable"),
    [(f"{shard(9)}.{ETAG}", 1), (f"{HASHED}.{ETAG}", 1), (f"{HASHED}.{ETAG}.eab28e6c", 0)],
    ids=["by name", "by hash", "never resumed"],
)
def test_an_unfinished_download(start, resumable, whole):
    path, facts = whole
    metadata(path, shard(9), facts["revision"])
    partial = path / ".cache/huggingface/download" / f"{start}.incomplete"
    partial.write_bytes(bytes(1 << 20))
    os.utime(partial, (2e9, 2e9))
    found = inspect(str(path), facts)
    problem = the_problem(found)
    assert (problem["code"], problem["file"]) == ("download-unfinished", shard(9))
    assert found["unfinished_bytes"] == resumable << 20
    os.utime(partial, (1, 1))
    found = inspect(str(path), facts)
    assert (found["complete"], found["leftovers"]) == (True, [str(partial)])


def test_an_unfinished_download_of_what_is_not_there(whole):
    path, facts = whole
    folder = path / ".cache/huggingface/download"
    folder.mkdir(parents=True)
    (folder / "aGFzaA==.abc.incomplete").touch()
    assert the_problem(inspect(str(path), facts))["code"] == "download-unfinished"


def test_a_download_that_goes_on_meanwhile(whole):
    """Partial files vanish when they are whole, and a file may be a link without its blob yet."""
    path, facts = whole
    folder = path / ".cache/huggingface/download"
    folder.mkdir(parents=True)
    (folder / f"{shard(8)}.abc.incomplete").symlink_to("gone")
    (folder / f"{shard(9)}.abc.incomplete").touch()
    (path / shard(9)).unlink()
    (path / shard(9)).symlink_to("/no/where")
    found = inspect(str(path), facts)
    assert codes(found) == ["link-dangling", "download-unfinished"]


# --- hashes ---


def test_known_hashes(whole):
    path, facts = whole
    right = hashlib.sha256((path / shard(9)).read_bytes()).hexdigest()
    assert inspect(str(path), facts, hashes="known", sha256={shard(9): right})["hashes"] == {
        shard(9): right
    }
    metadata(path, shard(9), facts["revision"], right)
    raw = bytearray((path / shard(9)).read_bytes())
    raw[-1] ^= 1
    (path / shard(9)).write_bytes(raw)
    metadata(path, shard(9), facts["revision"], right)
    assert inspect(str(path), facts)["complete"]
    found = inspect(str(path), facts, hashes="known")
    problem = the_problem(found)
    assert (problem["code"], problem["file"], found["damaged"]) == ("hash", shard(9), [shard(9)])
    assert right in problem["message"]


def test_small_files_have_the_hash_of_git(whole):
    path, facts = whole
    data = (path / "README.md").read_bytes()
    right = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    metadata(path, "README.md", facts["revision"], right)
    assert inspect(str(path), facts, hashes="known")["complete"]
    (path / "README.md").write_bytes(data[::-1])
    metadata(path, "README.md", facts["revision"], right)
    assert the_problem(inspect(str(path), facts, hashes="known"))["file"] == "README.md"


def test_all_hashes(whole):
    path, facts = whole
    found = inspect(str(path), facts, hashes="all", workers=2)
    assert found["complete"]
    assert found["hashes"] == {
        shard(n): hashlib.sha256((path / shard(n)).read_bytes()).hexdigest() for n in range(1, 49)
    }


def test_hashes_of_a_cache_are_its_names(whole, tmp_path):
    path, facts = whole
    snapshot = farm(path, tmp_path / "hub")
    told = {**facts, "revision": COMMIT}
    within = str(tmp_path / "hub")
    assert inspect(str(snapshot), told, within=within, hashes="known")["complete"]
    blob = (snapshot / shard(9)).resolve()
    blob.write_bytes(blob.read_bytes()[:-1] + b"?")
    found = inspect(str(snapshot), told, within=within, hashes="known")
    assert (the_problem(found)["code"], the_problem(found)["file"]) == ("hash", shard(9))


# --- access and space ---


def access(path: Path, uid: int = 65534, gid: int = 65534) -> list[dict[str, Any]]:
    answer = ask_all({"access": lambda: unreadable_as(str(path), uid, gid)}, 20)["access"]
    assert isinstance(answer, list), answer
    return answer


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
def test_who_can_read(whole):
    path, _facts = whole
    ours = takewhile(lambda parent: parent != Path(tempfile.gettempdir()), path.parents)
    for parent in (path, *ours):  # what pytest keeps to itself
        parent.chmod(0o755)
    assert access(path) == []
    path.parent.chmod(0o750)
    for name in (shard(1), shard(2)):
        (path / name).chmod(0o600)
    told = access(path)
    assert [problem["code"] for problem in told] == ["not-traversable", "unreadable-as"]
    assert told[0]["file"] == str(path.parent)
    path.parent.chmod(0o755)
    told = access(path)
    assert [problem["code"] for problem in told] == ["unreadable-as"]
    assert told[0]["message"].startswith("2 of 54 files cannot be read by account 65534:65534")
    assert access(path, 0, 0) == []


def test_what_is_still_to_come(whole):
    path, facts = whole
    size = (path / shard(47)).stat().st_size
    (path / shard(47)).unlink()
    assert inspect(str(path), facts)["missing_bytes"] == size
    (path / f".{shard(47)}.{size}-123.part").write_bytes(b"x" * 4096)
    (path / ".cache/hub-home").mkdir(parents=True)
    found = inspect(str(path), facts)
    assert found["missing_bytes"] == size - 4096
    assert found["leftovers"] == [
        str(path / f".{shard(47)}.{size}-123.part"),
        str(path / ".cache/hub-home"),
    ]
    assert inspect(str(path / "no"), facts)["missing_bytes"] == facts["weight_bytes"]
    assert inspect(str(path))["missing_bytes"] == 0
