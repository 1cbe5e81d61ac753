"""Facts about a model: found by name or path, every mistake of a file told at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.filter.model_facts import FOLDER, model_facts


def told(tmp_path: Path, **facts: Any) -> str:
    path = tmp_path / "mine.yml"
    path.write_text(yaml.safe_dump(facts))
    return str(path)


def test_the_model_of_the_collection():
    facts = model_facts("deepseek-v4.1-flash")
    assert facts["repository"] == "deepseek-ai/DeepSeek-V4.1-Flash"
    assert (facts["weight_files"], facts["weight_bytes"]) == (48, 510310549975)
    assert facts["engram"]["tables"] == [
        {"layer": 1, "rows": 384006168},
        {"layer": 14, "rows": 384016682},
    ]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.yml")), ids=lambda path: path.stem)
def test_every_file_of_the_collection_tells_everything(path):
    assert None not in model_facts(path.stem).values()


def test_a_slip_of_the_pen():
    with pytest.raises(AnsibleTemplatePluginError, match=r"did you mean deepseek-v4\.1-flash\?"):
        model_facts("deepseek-v41-flash")


def test_what_a_file_does_not_tell_is_none(tmp_path):
    facts = model_facts(told(tmp_path, served_name="tiny"))
    assert facts["served_name"] == "tiny"
    assert facts["weight_bytes"] is None
    assert facts["engram"]["tables"] == []


def test_every_mistake_at_once(tmp_path):
    path = told(
        tmp_path,
        repositori="a/b",
        revision="main",
        weight_files="48",
        weight_bytes=-1,
        config_sha256="ab",
        vocabulary=True,
    )
    with pytest.raises(AnsibleTemplatePluginError) as refused:
        model_facts(path)
    for text in (
        "repositori is unknown (did you mean repository?)",
        "revision is 'main', expected a full commit hash",
        "weight_files is '48', expected a number above 0",
        "weight_bytes is -1",
        "config_sha256 is 'ab'",
        "vocabulary is True",
        "served_name is missing",
    ):
        assert f"{path}: {text}" in str(refused.value)


@pytest.mark.parametrize(
    ("engram", "text"),
    [
        ({"tables": [{"layer": 1}]}, r"engram\.tables\[0\]\.rows is missing"),
        ({"tables": [{"layer": 1, "rows": 2.5}]}, r"tables\[0\]\.rows is 2\.5"),
        ({"tables": [3]}, r"tables\[0\] is 3, expected layer and rows"),
        ({"tables": [{"layer": 1, "rows": 2}] * 2}, r"tables\[1\]\.layer 1 has a table already"),
        ({"tables": {"1": 5}}, r"expected a list"),
        ({"table": []}, r"engram\.table is unknown \(did you mean tables\?\)"),
        ([], r"engram is \[\], expected a mapping"),
    ],
)
def test_mistakes_about_tables(engram, text, tmp_path):
    if isinstance(engram, dict) and "tables" in engram:
        engram = {"weight_bytes_per_row": 256, "scale_bytes_per_row": 8, **engram}
    with pytest.raises(AnsibleTemplatePluginError, match=text):
        model_facts(told(tmp_path, served_name="tiny", engram=engram))


def test_bytes_of_a_row_are_needed_with_tables(tmp_path):
    engram = {"tables": [{"layer": 1, "rows": 2}]}
    with pytest.raises(
        AnsibleTemplatePluginError, match=r"engram\.weight_bytes_per_row is missing"
    ):
        model_facts(told(tmp_path, served_name="tiny", engram=engram))


@pytest.mark.parametrize(
    ("text", "complaint"), [("- a", "expected a mapping"), ("a: [", "mine.yml"), (None, "no file")]
)
def test_files_that_are_none(text, complaint, tmp_path):
    path = tmp_path / "mine.yml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(AnsibleTemplatePluginError, match=complaint):
        model_facts(str(path))


@pytest.mark.parametrize("model", [None, 5, "", "no-such"])
def test_no_name(model):
    with pytest.raises(AnsibleTemplatePluginError, match="model_facts: "):
        model_facts(model)
