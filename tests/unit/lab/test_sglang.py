# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The real engine in the lab: its toy model, its image, and a profile that is nothing but data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _model_facts
from ansible_collections.sparkfleet.cluster.plugins.module_utils._checkpoint import inspect

from lab.sglang import image, model
from lab.system import LabError
from tests.support.playbook import ROOT
from tests.unit.servings import serving

FOLDER = ROOT / "lab/sglang"
FACTS = yaml.safe_load((FOLDER / "model.yml").read_text())


def test_the_file_of_facts_is_that_of_the_model(tmp_path):
    assert model.make(tmp_path) == FACTS
    assert _model_facts.check(FACTS, "model.yml")["attention_heads"] == 4


def test_the_checkpoint_is_whole_in_the_eyes_of_the_collection(tmp_path):
    model.make(tmp_path)
    found = inspect(str(tmp_path), _model_facts.check(FACTS, "model.yml"))
    assert found["problems"] == []
    (tmp_path / model.SHARD).write_bytes((tmp_path / model.SHARD).read_bytes()[:-1])
    assert inspect(str(tmp_path), FACTS)["problems"]


def test_weights_follow_from_the_seed(tmp_path):
    for name, seed in {"a": 1, "b": 1, "c": 2}.items():
        model.make(tmp_path / name, seed=seed)
    a, b, c = ((tmp_path / name / model.SHARD).read_bytes() for name in "abc")
    assert a == b
    assert a != c


def test_every_byte_is_a_token_of_its_own(tmp_path):
    model.make(tmp_path)
    tokenizer = json.loads((tmp_path / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(256))
    assert (vocabulary["a"], vocabulary["\u0120"], vocabulary["\u010a"]) == (97, 32, 10)
    ids = [*vocabulary.values(), *(token["id"] for token in tokenizer["added_tokens"])]
    assert sorted(ids) == list(range(model.VOCABULARY))


def test_the_head_prefers_letters():
    tensors = model._tensors(np.random.Generator(np.random.PCG64(1)))
    steady = tensors["lm_head.weight"][:, 0].astype(np.uint32) << 16
    likely = np.flatnonzero(steady.view(np.float32) > 0)
    assert set(likely) == {32, *range(97, 123)}


def test_the_profile_is_planned_like_any_other():
    plan = serving(FOLDER / "profile.yml", 4, "ring", model=FACTS)
    hosts = plan["hosts"].values()
    assert [host["container"]["command"].count("--tp") for host in hosts] == [1] * 4
    container = plan["hosts"]["spark3"]["container"]
    words = dict(zip(container["command"][2::1], container["command"][3::1], strict=False))
    assert (words["--node-rank"], words["--device"], words["--port"]) == ("2", "cpu", "8888")
    assert container["gpus"] is False
    assert container["devices"] == []
    assert container["mounts"][-1]["target"] == container["env"]["PYTHONPATH"]
    assert plan["image"]["reference"] == image.REFERENCE
    assert plan["checks"]["pool_tokens_asked"] >= model.CONTEXT


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(image, "INSTALLED", tmp_path)
    return tmp_path


@pytest.mark.parametrize(("python", "suite"), [("3.11", "bookworm"), ("3.13", "trixie")])
def test_the_debian_of_the_image_has_the_python_of_the_engine(installed, python, suite):
    packages = installed / f"sglang-1/lib/python{python}/site-packages"
    packages.mkdir(parents=True)
    (installed / "site-packages").symlink_to(packages.relative_to(installed))
    assert image.image().suite == suite


def test_an_engine_that_is_not_there_is_refused(installed):
    with pytest.raises(LabError, match=r"not installed in .*; next: lab sglang"):
        image.image()


def test_an_engine_of_another_python_is_refused(installed):
    packages = installed / "sglang-1/lib/python3.12/site-packages"
    packages.mkdir(parents=True)
    (installed / "site-packages").symlink_to(packages)
    with pytest.raises(LabError, match=r"Python 3\.12, and no Debian .* Python 3\.11 or 3\.13"):
        image.image()
