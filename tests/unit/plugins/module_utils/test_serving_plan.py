"""Launches: one for each profile as kept files, and what holds for all of them."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import PlanError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_plan import fabric_plan

from tests.unit.fabrics import plan
from tests.unit.golden import HERE, assert_golden
from tests.unit.servings import MODEL, serving

LAUNCHES: dict[str, tuple[int, str]] = {
    "dsv41-tp4": (4, "switch"),
    "dsv41-tp4-base": (4, "switch"),
    "dsv41-tp4-ring": (4, "ring"),
    "dsv41-tp3": (3, "triangle"),
    "dsv41-tp8": (8, "switch"),
}
each_launch = pytest.mark.parametrize("profile", LAUNCHES)


def launch(profile: str, **options: Any) -> dict[str, Any]:
    hosts, topology = LAUNCHES[profile]
    return serving(profile, hosts, topology, **options)


@each_launch
def test_plan_is_the_one_that_is_kept(profile):
    found = launch(profile)
    # Of the ranks, the head and one other say it all; the rest is in the hashes.
    found["hosts"] = {name: found["hosts"][name] for name in list(found["hosts"])[:2]}
    assert_golden(HERE / "serving" / f"{profile}.json", json.dumps(found, indent=1) + "\n")


@pytest.mark.parametrize(
    ("hosts", "topology", "profile"),
    [
        (4, "ring", "dsv41-tp4-ring"),
        (4, "switch", "dsv41-tp4"),
        (3, "triangle", "dsv41-tp3"),
        (8, "switch", "dsv41-tp8"),
    ],
)
@pytest.mark.parametrize("nothing", [None, ""])
def test_without_a_profile_the_one_that_fits_is_chosen(hosts, topology, profile, nothing):
    assert serving(nothing, hosts, topology) == serving(profile, hosts, topology)


@each_launch
def test_ranks_differ_only_in_what_is_theirs(profile):
    found = launch(profile)["hosts"]
    specs = [host["container"] for host in found.values()]
    assert [host["rank"] for host in found.values()] == list(range(len(found)))
    assert [host["head"] for host in found.values()] == [True, *[False] * (len(found) - 1)]
    differing = {
        name
        for spec in specs
        for name in spec["env"]
        if spec["env"][name] != specs[0]["env"].get(name)
    }
    assert differing == {"NODE_RANK", "HOST_IP", "VLLM_HOST_IP"}
    assert len({frozenset(spec["env"]) for spec in specs}) == 1
    for rank, spec in enumerate(specs):
        words = spec["command"]
        assert words[words.index("--node-rank") + 1] == str(rank) == spec["env"]["NODE_RANK"]
        assert spec["name"] == f"sparkfleet-sparks-r{rank}"
        assert spec["labels"]["sparkfleet.rank"] == str(rank)


@each_launch
def test_no_argument_is_given_twice_and_no_value_is_empty(profile):
    spec = launch(profile)["hosts"]["spark1"]["container"]
    options = [word for word in spec["command"] if word.startswith("--")]
    assert len(options) == len(set(options))
    assert all(spec["env"].values())
    assert not [word for word in spec["command"] if "${" in word or not word]
    assert not [value for value in spec["env"].values() if "${" in value]


@each_launch
def test_every_path_of_the_environment_lies_on_a_mount(profile):
    spec = launch(profile)["hosts"]["spark2"]["container"]
    targets = [mount["target"] for mount in spec["mounts"]]
    paths = [value for value in spec["env"].values() if value.startswith("/")]
    assert paths
    for path in paths:
        assert any(path == target or path.startswith(f"{target}/") for target in targets), path


@each_launch
def test_a_plan_is_plain_data(profile):
    found = launch(profile)
    assert json.loads(json.dumps(found)) == found


def test_the_engine_has_no_way_in_but_loopback():
    found = serving(ports={"engine": "9999", "rendezvous": 21000})
    assert found["engine"] == {"host": "127.0.0.1", "port": 9999}
    for host in found["hosts"].values():
        words = host["container"]["command"]
        assert words[words.index("--host") + 1] == "127.0.0.1"
        assert words[words.index("--port") + 1] == "9999"
        assert words[words.index("--dist-init-addr") + 1] == "10.20.0.11:21000"


@pytest.mark.parametrize(
    ("nccl", "markers"),
    [
        (None, ["SWITCHLESS_RING_ONLY"]),
        ("skip-tree-pat", ["SKIP_TREE_CONNECT"]),
        ("dual-pci-domain", ["SWITCHLESS_RING_ONLY", "IB_EXTENDED_IPV4_GIDS"]),
    ],
)
def test_a_ring_binds_the_patched_nccl_over_that_of_the_image(nccl, markers):
    found = serving(fabric=plan(4, nccl=nccl))
    assert found["nccl"]["patched"]
    assert found["nccl"]["markers"] == markers
    for host in found["hosts"].values():
        assert {
            "source": "/usr/local/lib/sparkfleet/nccl/libnccl.so.2",
            "target": found["nccl"]["container_path"],
            "read_only": True,
        } in host["container"]["mounts"]
    names = {proof["name"] for proof in found["checks"]["proofs"]}
    assert ("four HCAs" in names) is (nccl == "dual-pci-domain")
    assert ("tree connect skipped" in names) is (nccl == "skip-tree-pat")


def test_where_every_two_hosts_are_connected_nccl_is_that_of_the_image():
    found = serving()
    assert not found["nccl"]["patched"]
    targets = [mount["target"] for mount in found["hosts"]["spark1"]["container"]["mounts"]]
    assert targets == ["/models/DeepSeek-V4.1-Flash", "/engram", "/state", "/root/.cache"]


def test_gids_are_chosen_on_the_node():
    switch, ring = serving(), serving(topology="ring")
    assert switch["hosts"]["spark2"]["gid"] == {
        "hcas": "=rocep1s0f0,roceP2p1s0f0",
        "expected": [
            {"hca": "rocep1s0f0", "subnet": "10.20.0.0/24"},
            {"hca": "roceP2p1s0f0", "subnet": "10.20.1.0/24"},
        ],
        "policy": "pin",  # RoCEnante takes a number
    }
    assert ring["hosts"]["spark2"]["gid"]["policy"] == "auto"
    off = serving(settings={"env": {"SGLANG_ROCE_ALLREDUCE": "0", "DSV41_ROCE_GATHER": "0"}})
    assert off["hosts"]["spark2"]["gid"]["policy"] == "auto"
    for found in (switch, ring):
        for host in found["hosts"].values():
            assert "NCCL_IB_GID_INDEX" not in host["container"]["env"]


def test_rocenante_uses_the_devices_of_each_host():
    ports = [
        {"cage": 0, "domain": 0, "netdev": "a0", "hca": "mlx5_0"},
        {"cage": 0, "domain": 2, "netdev": "a2", "hca": "mlx5_2"},
    ]
    hosts = ["spark1", "spark2", "spark3", {"name": "other", "ports": ports}]
    found = serving(fabric=fabric_plan(hosts, "switch"))
    spec = found["hosts"]["other"]["container"]
    assert spec["env"]["B12X_ROCE_HCA"] == "mlx5_0,mlx5_2"
    assert found["hosts"]["other"]["gid"]["hcas"] == "=mlx5_0,mlx5_2"


def test_nccl_compares_subnets_as_they_are():
    found = serving(fabric=plan(4, "switch", prefix_length=26))
    assert found["hosts"]["spark1"]["container"]["env"]["NCCL_IB_SUBNET_PREFIX_LEN"] == "26"


def test_settings_are_merged_everywhere_they_are_used():
    settings = {
        "max_running_requests": "8",
        "mem_fraction_static": "0.78",
        "env": {"DSV41_STATS_SECONDS": 300, "DSV41_HC_FUSED": None, "NEW": "x"},
        "arguments": {"--sleep-on-idle": None, "--log-level": "debug"},
        "container": {"gpus": False, "devices": [], "privileged": True},
        "image": {"build": {"args": {"PIP_INDEX": "https://pypi.example"}}},
        "proofs": {"KV pool": None},
        "memory": {"system": 5000000000},
    }
    found = serving(settings=settings, image="registry.example/x@sha256:1", cell="lab")
    spec = found["hosts"]["spark1"]["container"]
    words = spec["command"]
    for option in ("--max-running-requests", "--cuda-graph-max-bs-decode"):
        assert words[words.index(option) + 1] == "8" == spec["env"]["MAX_RUNNING_REQUESTS"]
    assert spec["env"]["MEM_FRACTION_STATIC"] == "0.78"
    assert (spec["env"]["DSV41_STATS_SECONDS"], spec["env"]["NEW"]) == ("300", "x")
    assert "DSV41_HC_FUSED" not in spec["env"]
    assert "--sleep-on-idle" not in words
    assert words[words.index("--log-level") + 1] == "debug"
    assert (spec["gpus"], spec["devices"], spec["privileged"]) == (False, [], True)
    assert spec["image"] == found["image"]["reference"] == "registry.example/x@sha256:1"
    assert found["image"]["build"]["args"] == {"PIP_INDEX": "https://pypi.example"}
    assert found["image"]["build"]["dockerfile"] == "Dockerfile.canary-roce"
    names = [proof["name"] for proof in found["checks"]["proofs"]]
    assert "KV pool" not in names
    assert "fused hyper-connections" not in names
    assert found["memory"][0] == {"item": "system", "bytes": 5000000000}
    assert found["cell"] == "lab"
    assert "No GPU is asked for (container.gpus is false)." in found["notes"]


def test_slips_in_names_of_variables_are_noted():
    found = serving(settings={"env": {"DSV41_STAT_SECONDS": "1", "UNRELATED": "1"}})
    noted = [note for note in found["notes"] if "spark_settings.env" in note]
    assert noted == [
        (
            "spark_settings.env.DSV41_STAT_SECONDS is not in the profile (did you mean "
            "DSV41_STATS_SECONDS?)."
        )
    ]


def test_hashes_say_what_changed():
    first = serving()["config_hash"]
    assert serving()["config_hash"] == first
    assert len({first["cell"], *first["hosts"].values()}) == 5
    for change in (
        {"settings": {"max_running_requests": 8}},
        {"settings": {"env": {"X": "1"}}},
        {"image": "other"},
        {"engram_dir": "/other"},
        {"ports": {"engine": 9000}},
    ):
        other = serving(**change)["config_hash"]
        assert other["cell"] != first["cell"], change
        assert not set(other["hosts"].values()) & set(first["hosts"].values()), change
    # What only counts while booting starts no cell anew.
    assert serving(settings={"ready_timeout": 60})["config_hash"] == first


def test_one_host_with_other_devices_changes_its_own_hash_and_that_of_the_cell():
    """Names of HCAs are no secret between ranks: that they differ is part of the configuration."""
    ports = [{"cage": 0, "domain": 0, "netdev": "a0", "hca": "mlx5_0"}]
    fabric = fabric_plan(
        ["spark1", "spark2", "spark3", {"name": "spark4", "ports": ports}], "switch"
    )
    one, other = serving()["config_hash"], serving(fabric=fabric)["config_hash"]
    assert one["hosts"]["spark4"] != other["hosts"]["spark4"]


@each_launch
def test_the_memory_of_a_rank_adds_up(profile):
    found = launch(profile)
    workers = sum(item["bytes"] for item in found["memory"] if "host" not in item)
    head = sum(item["bytes"] for item in found["memory"])
    assert 70 * 2**30 < workers < head < 118 * 2**30


def test_the_pool_that_fits_is_near_what_published_boots_granted():
    """5.98 to 6.80 million tokens with 16 slots and a cache of 4 GiB, 10.0 with 8 and none."""
    (note,) = [n for n in serving("dsv41-tp4")["notes"] if "max_total_tokens" in n]
    assert 5_980_000 < int(note.split("about ")[1].split()[0]) < 6_800_000
    found = serving("dsv41-tp4-base", settings={"max_total_tokens": 10_350_000})
    (note,) = [n for n in found["notes"] if "max_total_tokens" in n]
    assert abs(int(note.split("about ")[1].split()[0]) - 10_029_056) < 0.1 * 10_029_056


def test_measured_memory_counts_instead_of_the_usual():
    with pytest.raises(PlanError, match="a rank on spark3 needs"):
        serving(memory={"spark3": 100 * 2**30})
    serving(memory={"spark3": "130664235008"})


def test_another_model_is_another_file():
    tiny = HERE.parent / "fixtures" / "serving" / "tiny-llama.yml"
    found = serving(tiny, 4, "ring", model={}, engram_dir=None)
    spec = found["hosts"]["spark4"]["container"]
    assert spec["entrypoint"] == ["/opt/sglang/bin/python"]
    assert spec["command"][-3:] == ["--stop-words", "a", "b"]
    assert "--disable-cuda-graph" in spec["command"]
    assert [mount["target"] for mount in spec["mounts"]] == [
        "/models/tiny",
        "/opt/stubs/sparks",
    ]
    assert (spec["gpus"], spec["devices"], spec["env"]["NCCL_NET"]) == (False, [], "IB")
    assert [host["gid"] for host in found["hosts"].values()] == [None] * 4
    assert found["nccl"] == {"patched": False, "version": "", "markers": [], "container_path": ""}
    assert found["memory"] == []
    assert "The profile does not say how large its model is: memory not checked." in found["notes"]
    assert [proof["name"] for proof in found["checks"]["proofs"]] == ["ready"]
    assert found["image"] == {"reference": "sglang-cpu:test", "architecture": "amd64", "build": {}}


def test_a_profile_beside_the_one_it_is_based_on(tmp_path):
    (tmp_path / "ours.yml").write_text("based_on: dsv41-tp4\nsettings: {max_running_requests: 4}\n")
    (tmp_path / "mine.yml").write_text("based_on: ours.yml\nenv: {MINE: 'yes'}\n")
    found = serving(tmp_path / "mine.yml")
    env = found["hosts"]["spark1"]["container"]["env"]
    assert (env["MINE"], env["MAX_RUNNING_REQUESTS"]) == ("yes", "4")


def test_a_thousand_hosts_take_less_than_two_seconds():
    tiny = HERE.parent / "fixtures" / "serving" / "tiny-llama.yml"
    few = plan(4, "switch")
    times = []
    for count in (256, 1024):
        hosts = {f"spark{rank}": {**few["hosts"]["spark1"], "rank": rank} for rank in range(count)}
        fabric = {"fabric": {**few["fabric"], "head": "spark0"}, "hosts": hosts}
        start = time.process_time()
        found = serving(tiny, model={}, fabric=fabric)
        times.append(time.process_time() - start)
        assert len(found["hosts"]) == count
    assert times[1] < 2
    assert times[1] < 2 * 4 * times[0] + 0.1, f"grows faster than the hosts: {times}"


@pytest.mark.parametrize(("profile", "ranks"), [("dsv41-tp3", "3"), ("dsv41-tp4", "4")])
def test_sizes_agree_with_the_facts_about_the_model(profile, ranks):
    sizes = {item["item"]: item["bytes"] for item in launch(profile)["memory"]}
    assert sizes["weights"] / 2**30 == pytest.approx(MODEL["weight_gib_per_rank"][ranks], abs=0.5)
    assert sizes["draft model"] / 2**30 == MODEL["draft_gib_per_rank"]
    pin = launch(profile)["checks"]["pool_tokens_asked"]
    assert sizes["KV pool"] == round(MODEL["kv_bytes_per_token"] * pin)
