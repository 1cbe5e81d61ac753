"""The cables that were found against the plan; the mistakes are in fabric_mistakes.yml."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_compare import (
    fabric_compare,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import PlanError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_plan import fabric_plan

from lab.cabling import cables as lab_cables
from tests.unit.fabrics import names, plan

MISTAKES = yaml.safe_load(
    Path(__file__).with_name("fabric_mistakes.yml").read_text(encoding="utf-8")
)
RING, SWITCH = plan(4), plan(4, "switch")
RIGHT = [[f"spark{k}:0", f"spark{k % 4 + 1}:1"] for k in range(1, 5)]


def lab(cabling: str, hosts: int) -> list[list[str]]:
    """The cables of the lab's cabling of that name."""
    found = lab_cables(cabling, hosts)
    return [[f"spark{end.host + 1}:{end.cage}" for end in cable.ends] for cable in found]


@pytest.mark.parametrize("case", MISTAKES, ids=lambda case: case["case"])
def test_mistakes_are_named(case):
    observed = lab(case["lab"], case["hosts"]) if "lab" in case else case["found"]
    done = fabric_compare(plan(case["hosts"], case["topology"]), observed)
    assert done["ok"] is ("problems" not in case)
    for key in ("problems", "unused", "advice"):
        assert done[key] == case.get(key, []), key


@pytest.mark.parametrize(
    ("fabric", "observed"),
    [
        (RING, RIGHT),
        (RING, RING["cables"]),
        (RING, lab("ring", 4)),
        (plan(3, "triangle"), lab("triangle", 3)),
        (plan(2, "pair"), lab("pair", 2)),
        (SWITCH, lab("switch", 4)),
        # From both ends, by both twins, with what a host hears of itself; an end alone is nothing.
        (RING, [*RIGHT, *(cable[::-1] for cable in RIGHT), ["spark2:1", "spark2:1"], ["spark1:0"]]),
        (RING, [*RIGHT, ["spark1:0", "spark1:1"]]),
        # A switch that is heard in pairs, with the hosts of another cell in it.
        (SWITCH, [["spark1:0", f"spark{n}:0"] for n in (2, 3, 4, 9)]),
        (SWITCH, [list(two) for two in itertools.combinations(lab("switch", 4)[0], 2)]),
    ],
)
def test_cables_as_planned_are_right(fabric, observed):
    assert fabric_compare(fabric, observed) == {
        "ok": True,
        "problems": [],
        "unused": [],
        "advice": [],
        "suggestion": None,
    }


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6, 8])
def test_whatever_makes_a_ring_is_recognised_and_the_plan_for_it_fits(count):
    """Random rings: any order of the hosts, any way round the cages, cables in any order."""
    chance = random.Random(count)
    topology = {2: "pair", 3: "triangle"}.get(count, "ring")
    wrong = 0
    for _attempt in range(60):
        order = chance.sample(names(count), count)
        cages = [chance.randrange(2) for _host in order]
        found = [
            [f"{order[k]}:{cages[k]}", f"{order[k - count + 1]}:{1 - cages[k - count + 1]}"]
            for k in range(count if count > 2 else 1)
        ]
        chance.shuffle(found)
        done = fabric_compare(plan(count, topology), found)
        if not done["ok"]:
            wrong += 1
            suggestion = dict(done["suggestion"])
            again = fabric_plan(suggestion.pop("hosts"), **suggestion)
            assert fabric_compare(again, found)["ok"]
            assert again["fabric"]["head"] == "spark1", "the head stays the head"
    assert wrong > 10


RULES = [
    pytest.param(order, topology, cabling, cage, id=f"{'-'.join(order)}-{cabling}{cage}")
    for topology, orders in {
        "pair": [names(2)],
        "triangle": [names(3)],
        "ring": [names(4), ["spark1", "spark3", "spark2", "spark4"], names(6)],
    }.items()
    for order in orders
    for cabling in ("rotation", "matching")
    for cage in (0, 1)
    if not (len(order) == 3 and cabling == "matching")
]


@pytest.mark.parametrize(("order", "topology", "cabling", "cage"), RULES)
def test_a_cabling_by_rule_is_recognised_as_that(order, topology, cabling, cage):
    made = fabric_plan(order, topology, cabling=cabling, cage=cage)
    done = fabric_compare(plan(len(order), topology), made["cables"])
    if not done["ok"]:
        assert done["suggestion"]["cabling"] in ("rotation", "matching")
        assert done["suggestion"]["topology"] == topology
        if order == names(len(order)):
            assert done["suggestion"]["hosts"] == order, "the ranks stay where they may"
            assert (done["suggestion"]["cabling"], done["suggestion"]["cage"]) == (cabling, cage)


@pytest.mark.parametrize(
    ("fabric", "observed", "problem"),
    [
        (None, [], "the plan is not what fabric_plan returns"),
        ({"cables": []}, [], "the plan is not what fabric_plan returns"),
        (RING, {"spark1:0": "spark2:1"}, "observed is {'spark1:0': 'spark2:1'}, expected a list"),
        (RING, [["spark1:0", 60]], "observed[0]: an end is 60, expected host:cage like spark1:0"),
        (RING, [["spark1:0", "spark2:f1"]], "observed[0]: an end is 'spark2:f1', but a Spark has"),
    ],
)
def test_refuses_what_it_cannot_read(fabric, observed, problem):
    with pytest.raises(PlanError) as caught:
        fabric_compare(fabric, observed)
    (told,) = caught.value.problems
    assert told.startswith(problem)
