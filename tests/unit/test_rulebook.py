"""The rulebook for Event-Driven Ansible fits the alerts there are and the playbooks there are."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml

from tests.support.playbook import ROOT

RULEBOOK = ROOT / "extensions/eda/rulebooks/sparkfleet.yml"
ALERTS = ROOT / "roles/monitoring/files/alerts.yml"
# What ansible-rulebook 1.1 knows of a rule and of its throttle.
RULE = {"name", "condition", "throttle", "action", "enabled"}
THROTTLE = re.compile(r"\d+ (second|minute|hour|day)s?$")
WANTED = {
    "SparkfleetCellDead": "recover",
    "SparkfleetRankDown": "recover",
    "SparkfleetGidDrift": "status",
    "SparkfleetLinkDown": "doctor",
    "SparkfleetTwinMtu": "doctor",
    "SparkfleetShardMissing": "pack",
    "SparkfleetCanarySlow": "status",
    "SparkfleetRestartBoundReached": "logs",
    "SparkfleetDiskLow": "status",
    "SparkfleetMemoryPressure": "status",
}


def rules() -> list[dict[str, Any]]:
    (ruleset,) = yaml.safe_load(RULEBOOK.read_text())
    assert set(ruleset) == {"name", "hosts", "sources", "rules"}
    found: list[dict[str, Any]] = ruleset["rules"]
    return found


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["name"]))
def test_a_rule_has_the_shape_of_one(rule: dict[str, Any]) -> None:
    assert set(rule) <= RULE
    assert list(rule["condition"]) == ["all"]
    assert rule["condition"]["all"][0] == 'event.alert.status == "firing"'
    assert THROTTLE.match(rule["throttle"]["once_within"])
    assert all(name.startswith("event.") for name in rule["throttle"]["group_by_attributes"])
    assert list(rule["action"]) == ["run_playbook"]


def test_every_alert_leads_to_a_playbook_that_exists() -> None:
    leads: dict[str, str] = {}
    for rule in rules():
        name = rule["action"]["run_playbook"]["name"].removeprefix("sparkfleet.cluster.")
        assert (ROOT / f"playbooks/{name}.yml").exists()
        named = re.findall(r'"(Sparkfleet\w+)"', json.dumps(rule["condition"]).replace('\\"', '"'))
        leads |= dict.fromkeys(named, name)
    assert leads == WANTED


def test_the_alerts_are_those_of_the_monitoring() -> None:
    if not ALERTS.exists():
        pytest.skip("there is no monitoring in this checkout")
    known = {
        rule["alert"]
        for group in yaml.safe_load(ALERTS.read_text())["groups"]
        for rule in group["rules"]
    }
    assert set(WANTED) <= known
