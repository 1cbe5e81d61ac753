"""The report's arguments are told three times: in code, to readers, and as the role's variables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.action import preflight_report
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import default_path
from ansible_collections.sparkfleet.cluster.plugins.modules import preflight_report as documented
from ansible_collections.sparkfleet.cluster.plugins.plugin_utils._report_file import keep

from tests.support.playbook import ROOT


def _shape(options: dict[str, Any], nested: str) -> dict[str, Any]:
    """What code and documentation both say about options."""
    return {
        name: (
            option["type"],
            option.get("elements"),
            option.get("required", False),
            option.get("default"),
            _shape(option[nested], nested) if nested in option else None,
        )
        for name, option in options.items()
    }


def test_the_documentation_is_that_of_the_code() -> None:
    told = yaml.safe_load(documented.DOCUMENTATION)["options"]
    assert _shape(told, "suboptions") == _shape(preflight_report.ARGUMENTS, "options")


def test_the_role_hands_over_every_setting() -> None:
    tasks = yaml.safe_load((ROOT / "roles/preflight/tasks/main.yml").read_text("utf-8"))
    (judge,) = [task for task in tasks if "sparkfleet.cluster.preflight_report" in task]
    settings = judge["sparkfleet.cluster.preflight_report"]["settings"]
    assert settings == {name: f"{{{{ preflight_{name} }}}}" for name in preflight_report.SETTINGS}


@pytest.mark.parametrize(
    ("variables", "path"),
    [
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/sparkfleet/preflight-a.json"),
        ({"XDG_STATE_HOME": "", "HOME": "/h"}, "/h/.local/state/sparkfleet/preflight-a.json"),
    ],
)
def test_reports_lie_where_programs_keep_state(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], path: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_path("preflight-a.json") == path


def test_a_report_is_written_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.json"
    assert keep(str(path), '{"rows": [1]}') == [str(path)]
    assert json.loads(path.read_text()) == {"rows": [1]}
    assert keep(str(path), '{"rows": [2]}') == [str(path)]
    assert [entry.name for entry in path.parent.iterdir()] == ["report.json"]


def test_what_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    """The name is taken by a directory: known only after the text is written beside it."""
    taken = tmp_path / "report.json"
    taken.mkdir()
    assert keep(str(taken), '{"rows": []}') == []
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.json"]
