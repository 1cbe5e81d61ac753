"""Launches: one for each profile as kept files, and what holds for all of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.golden import HERE, assert_golden
from tests.unit.servings import serving

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
