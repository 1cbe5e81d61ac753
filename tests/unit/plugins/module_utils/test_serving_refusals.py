"""Every reason for refusing a launch, word by word; the cases are in serving_refusals.yml."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.filter.serving_plan import read_profile
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import PlanError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._serving_plan import serving_plan

from tests.unit.fabrics import plan
from tests.unit.servings import serving

CASES = yaml.safe_load(Path(__file__).with_name("serving_refusals.yml").read_text(encoding="utf-8"))


def refused(**options: Any) -> list[str]:
    with pytest.raises(PlanError) as caught:
        serving(**options)
    return caught.value.problems


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["problems"][-1][:60])
def test_refuses(case):
    given = {name: value for name, value in case.items() if name != "problems"}
    assert refused(**given) == case["problems"]


@pytest.mark.parametrize(
    ("works", "does_not"),
    [
        ({"max_total_tokens": 13393920}, {"max_total_tokens": 13393920 + 256}),
        ({"max_running_requests": 37}, {"max_running_requests": 38}),
        ({"expert_parallel": 2}, {"expert_parallel": 3}),
        ({"mem_fraction_static": 0.74}, {"mem_fraction_static": 0.73}),
        ({"chunked_prefill_size": 2048}, {"chunked_prefill_size": 2047}),
    ],
    ids=str,
)
def test_the_setting_that_is_named_works_and_the_next_does_not(works, does_not):
    serving("dsv41-tp4", settings=works)
    refused(profile="dsv41-tp4", settings=does_not)


def test_the_chunk_that_is_named_works_and_the_next_does_not():
    serving("dsv41-tp4-base", settings={"chunked_prefill_size": 1280})
    refused(profile="dsv41-tp4-base", settings={"chunked_prefill_size": 1536})
    chunked = {"chunked_prefill_size": 4096, "env": {"DSV41_INDEXER_CHUNKED": "1"}}
    serving("dsv41-tp4-base", settings=chunked)


@pytest.mark.parametrize(
    "settings",
    [
        {"expert_parallel": "2"},
        {"expert_parallel": 4},
        {"expert_parallel": 2.0},
        {"max_total_tokens": 0},
        {"env": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False,max_split_size_mb:64"}},
        {
            "env": {"DSV41_ENGRAM_DRM_NODE": "/dev/dri/card0"},
            "container": {"devices": ["/dev/dri/card0"]},
        },
        {"env": {"LD_LIBRARY_PATH": "/usr/local/cuda/lib64", "NCCL_CROSS_NIC": "1"}},
        {"env": {"SPARK_PREFILL_TP_SPLIT": "0", "SPARK_PREFILL_TP_MIN_ROWS": "1"}},
        {"context_length": 4096, "max_total_tokens": 4096},
        {"container": {"privileged": True}},
        {},
        "",
        None,
    ],
    ids=str,
)
def test_accepts_what_only_looks_like_these(settings):
    serving("dsv41-tp4", settings=settings)


def test_a_ring_with_a_forwarded_diagonal_may_use_rocenante():
    env = {
        "SGLANG_ROCE_ALLREDUCE": "1",
        "SGLANG_ROCE_MAX_SIZE": "262144",
        "DSV41_ROCE_RING": "1",
        "B12X_ROCE_PEER_HCA_MAPS": "a;b;c;d",
    }
    found = serving("dsv41-tp4-ring", topology="ring", settings={"env": env})
    assert found["hosts"]["spark1"]["gid"]["policy"] == "pin"


def broken(change: Any) -> list[str]:
    fabric = copy.deepcopy(plan(4))
    change(fabric)
    return refused(fabric=fabric)


def test_two_hosts_with_one_rank_and_a_rank_without_a_host():
    def change(fabric: dict[str, Any]) -> None:
        fabric["hosts"]["spark3"]["rank"] = 1

    assert broken(change) == ["spark2 and spark3 both have rank 1.", "no host has rank 2."]


def test_a_ring_with_stock_nccl():
    def change(fabric: dict[str, Any]) -> None:
        for host in fabric["hosts"].values():
            del host["nccl_env"]["NCCL_SWITCHLESS_RING_ONLY"]

    assert broken(change) == [
        (
            "a ring of 4 hosts needs a patched NCCL, because stock NCCL connects trees between "
            "hosts that share no cable; set spark_nccl to switchless-cycle."
        )
    ]


@pytest.mark.parametrize("fabric", [None, {}, [], {"hosts": {}}, {"fabric": {}, "hosts": {}}])
def test_what_is_no_fabric(fabric):
    with pytest.raises(PlanError, match="not what fabric_plan returns"):
        serving_plan(None, fabric, read=read_profile)


def test_another_model_than_that_of_the_profile():
    assert refused(model={"repository": "someone/else"}) == [
        (
            "profile dsv41-tp4 serves deepseek-ai/DeepSeek-V4.1-Flash, but spark_model is "
            "someone/else; change one of them."
        )
    ]


# --- profiles of users ----------------------------------------------------------------------------


def own(tmp_path: Path, text: str, name: str = "own.yml") -> str:
    (tmp_path / name).write_text(text, encoding="utf-8")
    return str(tmp_path / name)


def test_a_setting_that_reaches_no_rank(tmp_path):
    path = own(tmp_path, "based_on: dsv41-tp4\nsettings: {colour: red}\n")
    assert refused(profile=path) == [
        (
            f"profile {path}: the setting colour reaches no rank, because neither env nor "
            "arguments refer to ${colour}; add that, or remove it."
        )
    ]


def test_a_reference_to_nothing(tmp_path):
    path = own(tmp_path, "based_on: dsv41-tp4\nenv: {X: '${contxt_length}'}\n")
    assert refused(profile=path) == [
        (
            f"profile {path}: env.X refers to ${{contxt_length}}, which does not exist (did you "
            "mean context_length?)."
        )
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("- a\n", "{path} is no profile: expected a mapping of keys and values."),
        ("enviroment: {}\n", "{path}: nothing reads 'enviroment'"),
        ("env: [A]\n", "{path}: env is ['A'], expected a mapping."),
        ("fits: {host: 4}\n", "{path}: fits: nothing reads 'host' (did you mean hosts?)"),
        ("fits: {topologies: ring}\n", "{path}: fits.topologies is 'ring', expected a list."),
        ("settings: {env: 1}\n", "{path}: settings.env cannot be the name of a setting."),
        (
            "settings: {a: [1]}\n",
            "{path}: settings.a is [1], expected text, a number or a boolean.",
        ),
        ("proofs: {a: {patern: x}}\n", "{path}: proofs.a: nothing reads 'patern' (did you mean"),
        ("fatals: {a: {when: x}}\n", "{path}: fatals.a.when is 'x', expected a mapping."),
        ("fits: {hosts: four}\n", "{path}: fits.hosts is 'four', expected a whole number."),
        ("arguments: {--a: {b: c}}\n", "{path}: arguments.--a is {{'b': 'c'}}, expected text"),
        ("container: {mounts: ['a:b']}\n", "{path}: container.mounts[0] is 'a:b', expected source"),
        ("container: {mounts: [{source: a, target: b, mode: ro}]}\n", "nothing reads 'mode'"),
        ("based_on: dsv41-tp4\nproofs: {a: {count: 1}}\n", "profile {path}: proofs.a has no"),
        ("a: {b\n", "profile {path} is no YAML:"),
        ("based_on: dsv41-tp9\n", "{path} names 'dsv41-tp9', but the collection has no such"),
        ("based_on: own.yml\n", "profile own.yml is based on itself, by way of {path}."),
        ("based_on: ./none.yml\n", "none.yml cannot be read: No such file or directory."),
    ],
)
def test_a_profile_of_the_wrong_form(tmp_path, text, problem):
    path = own(tmp_path, text)
    found = refused(profile=path)
    assert problem.format(path=path) in found[0]


def test_a_profile_without_an_image(tmp_path):
    path = own(tmp_path, "description: bare\n")
    assert refused(profile=path) == [
        f"profile {path} names no image; set spark_image to its reference."
    ]
