"""Pictures of fabrics: kept ones, and what must hold for all of them.

The kept SVG pictures are those that the documentation shows.
"""

from __future__ import annotations

import itertools
import random
import xml.etree.ElementTree as ET
from typing import Any, NamedTuple

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_input import PlanError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_picture import (
    Picture,
    shortened,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_plan import fabric_plan
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_svg import fabric_svg
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_text import fabric_text

from tests.unit.fabrics import measured, miswired_ring, names, plan, ports
from tests.unit.golden import HERE, ROOT, assert_golden

SVG = "{http://www.w3.org/2000/svg}"
RING, SWITCH = plan(4), plan(4, "switch")
THROUGH_SWITCH = [
    {
        "ends": [f"spark{a}:0", f"spark{b}:0"],
        "gbps": 13.2 if a == 3 or b == 3 else 188,
        "ok": 3 not in (a, b),
    }
    for a, b in itertools.combinations((1, 2, 3, 4), 2)
]
KEPT: dict[str, tuple[Any, ...]] = {
    "pair": (plan(2, "pair"),),
    "triangle": (plan(3, "triangle"),),
    "ring-of-4": (RING,),
    "ring-of-4-matching": (plan(4, cabling="matching"),),
    "ring-of-6": (plan(6),),
    "ring-of-8": (plan(8),),
    "switch-of-4": (SWITCH,),
    "ring-of-4-proven": (RING, RING["cables"], measured(RING)),
    "ring-of-4-miswired": (RING, miswired_ring()),
    "switch-of-4-proven": (SWITCH, SWITCH["cables"], THROUGH_SWITCH),
}


@pytest.mark.parametrize("name", KEPT)
def test_picture_is_the_one_of_the_documentation(name):
    # bandwidths that nobody measured are for tests, not for the documentation
    folder = HERE / "fabric" if name.endswith("-proven") else ROOT / "docs" / "pictures"
    assert_golden(folder / f"{name}.svg", fabric_svg(Picture.of(*KEPT[name])))


@pytest.mark.parametrize("name", KEPT)
def test_text_is_the_one_that_is_kept(name):
    assert_golden(HERE / "fabric" / f"{name}.txt", fabric_text(Picture.of(*KEPT[name])))


# --- what holds for all of them -----------------------------------------------------------------


class Rectangle(NamedTuple):
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: Rectangle) -> bool:
        return not (
            self.right <= other.left
            or other.right <= self.left
            or self.bottom <= other.top
            or other.bottom <= self.top
        )


def rectangles(root: ET.Element, radius: str) -> list[Rectangle]:
    """Cards have corners of 10, labels of 6 and plugs of 4 pixels."""
    found = []
    for rect in root.iter(f"{SVG}rect"):
        if rect.get("rx") == radius:
            x, y, width, height = (float(rect.attrib[key]) for key in ("x", "y", "width", "height"))
            found.append(Rectangle(x, y, x + width, y + height))
    return found


def drawn(*arguments: Any) -> ET.Element:
    return ET.fromstring(fabric_svg(Picture.of(*arguments)))


def lines(root: ET.Element) -> list[str]:
    return [text.text or "" for text in root.iter(f"{SVG}text")]


def cables(root: ET.Element) -> list[tuple[str, bool]]:
    """What each cable is, and whether it is dashed."""
    return [
        (title, "stroke-dasharray" in path.attrib)
        for path in root.iter(f"{SVG}path")
        if (title := path.findtext(f"{SVG}title")) and path.get("stroke") != "#ffffff"
    ]


def extent(text: ET.Element) -> Rectangle:
    """Where a text is, if its letters are rather wide."""
    size = float(text.attrib["font-size"])
    width = len(text.text or "") * size * 0.64
    x = float(text.attrib["x"]) - {"end": width, "middle": width / 2}.get(
        text.get("text-anchor", ""), 0
    )
    y = float(text.attrib["y"])
    return Rectangle(x, y - size, x + width, y + size * 0.2)


EVERY = [
    pytest.param(plan(count, topology), proven, id=f"{topology}-of-{count}{'-proven' * proven}")
    for topology, counts in {
        "pair": [2],
        "triangle": [3],
        "ring": range(2, 10),
        "switch": range(2, 10),
    }.items()
    for count in counts
    for proven in (False, True)
]


@pytest.mark.parametrize(("fabric", "proven"), EVERY)
def test_nothing_lies_over_anything_else(fabric, proven):
    rates = (
        [
            {"ends": two, "gbps": 187.25}
            for cable in fabric["cables"]
            for two in itertools.combinations(cable["ends"], 2)
        ]
        if proven
        else None
    )
    root = drawn(fabric, fabric["cables"] if proven else None, rates)
    boxes = rectangles(root, "10") + rectangles(root, "6")
    assert len(boxes) >= len(fabric["hosts"])
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    canvas = Rectangle(0, 0, float(root.attrib["width"]), float(root.attrib["height"]))
    words = [extent(text) for text in root.iter(f"{SVG}text")]
    for box in boxes + words:
        assert box.left >= 0
        assert box.top >= 0
        assert box.right <= canvas.right
        assert box.bottom <= canvas.bottom
    for one, other in itertools.combinations(words, 2):
        assert not one.overlaps(other)


@pytest.mark.parametrize(("fabric", "proven"), EVERY[::2])
def test_everything_of_the_plan_is_in_it(fabric, proven):
    picture = Picture.of(fabric)
    words, text = "\n".join(lines(drawn(fabric))), fabric_text(picture)
    for name, port in ports(fabric):
        assert name in words
        assert name in text
        assert port["address"] in words
        assert port["address"] in text
        assert port["netdev"] in words
        assert port["subnet"] in words
        assert port["subnet"] in text
    assert max(map(len, text.splitlines())) <= 100


def test_what_was_found_and_what_is_expected_differ_in_stroke_and_not_only_in_colour():
    root = drawn(RING, miswired_ring())
    assert [title.split(":")[0] for title, _dashed in cables(root)] == [
        *("cable 0", "cable 1", "cable 2", "cable 3", "found", "found")
    ]
    assert [title for title, dashed in cables(root) if dashed] == [
        "cable 0: spark1 cage 0 to spark2 cage 1",
        "cable 1: spark2 cage 0 to spark3 cage 1",
        "cable 3: spark4 cage 0 to spark1 cage 1",
    ]
    words = lines(root)
    for legend in ("as planned", "expected, not found", "found, not planned"):
        assert legend in words
    assert "cage 1 of spark2 is wired to spark3 cage 1, expected spark1 cage 0" in words


def test_crossed_cables_never_hide_a_label():
    chance = random.Random(8)
    for count in (4, 6, 8):
        for _attempt in range(20):
            order = chance.sample(names(count), count)
            found = fabric_plan(order, "ring")["cables"]
            boxes = rectangles(drawn(plan(count), found), "6")
            assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2))


def test_of_a_switch_only_the_wrong_plug_is_wrong():
    root = drawn(SWITCH, [["spark1:0", "spark2:0", "spark4:0", "spark3:1", "spark9:0"]])
    assert [title for title, dashed in cables(root) if dashed] == ["spark3 cage 0 to the switch"]
    text = fabric_text(Picture.of(SWITCH, [["spark1:0", "spark2:0", "spark4:0", "spark3:1"]]))
    assert "spark3 cage 1 ━━━ switch" in text
    assert text.count("╌╌") == 1


def test_hosts_that_hear_each_other_meet_in_a_point():
    root = drawn(RING, [[f"spark{n}:0" for n in (1, 2, 3, 4)]])
    assert "4 hear each other" in lines(root)


def test_a_cable_that_somebody_else_hears_too_is_not_as_planned():
    found = [*RING["cables"], ["spark1:0", "spark3:0"]]
    states = dict(cables(drawn(RING, found)))
    assert states["cable 0: spark1 cage 0 to spark2 cage 1"]
    assert not states["cable 1: spark2 cage 0 to spark3 cage 1"]


def test_a_cable_to_another_cell_ends_beside_the_cage():
    root = drawn(RING, [["spark1:0", "spark2:1"], ["spark2:0", "spark9:1"]])
    assert "spark2:0 to spark9:1" in lines(root)


def test_bandwidth_of_a_cable_is_the_lowest_and_at_a_switch_the_best():
    twice = [
        {"ends": ["spark1:0", "spark2:1"], "gbps": 190},
        {"ends": ["spark2:1", "spark1:0"], "gbps": 98.04, "ok": False},
    ]
    for rates in (twice, twice[::-1]):
        assert "✗ 98.0 Gb/s" in fabric_text(Picture.of(RING, None, rates))
    text = fabric_text(Picture.of(SWITCH, None, THROUGH_SWITCH)).splitlines()
    assert [" ".join(line.split()[-3:]) for line in text if "Gb/s" in line] == [
        "✓ 188.0 Gb/s",
        "✓ 188.0 Gb/s",
        "✗ 13.2 Gb/s",
        "✓ 188.0 Gb/s",
    ]


LONG = [
    "spark-7f3a.rack-12.lab.example.com",
    "gx10-in-the-kitchen-cupboard-left",
    "<b>&'\"",
    "ä" * 60,
]


def test_names_that_are_long_or_strange_fit():
    fabric = fabric_plan(LONG, "ring", pool="172.30.128.0/17", management_networks=[])
    for observed in (None, [[f"{LONG[0]}:0", f"{LONG[3]}:0"]]):
        root = drawn(fabric, observed)
        shown = lines(root)
        assert "spark-7f3a…" in shown
        assert "<b>&'\"" in shown
        text = fabric_text(Picture.of(fabric, observed))
        assert max(map(len, text.splitlines())) <= 100
        cards = rectangles(root, "10")
        for word in (w for w in root.iter(f"{SVG}text") if w.get("font-size") == "15"):
            assert any(
                c.left < extent(word).left and extent(word).right < c.right - 40 for c in cards
            )


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("spark1", 6, "spark1"),
        ("spark1.example.com", 12, "spark1…"),
        ("a-very-long-name.example.com", 12, "a-very…e.com"),
        ("gx10-in-the-kitchen", 12, "gx10-i…tchen"),
    ],
)
def test_names_lose_their_domain_first(name, width, shown):
    assert shortened(name, width) == shown
    assert len(shown) <= width


def test_pictures_are_complete_in_themselves():
    for arguments in KEPT.values():
        text = fabric_svg(Picture.of(*arguments))
        assert fabric_svg(Picture.of(*arguments)) == text
        for outside in ("<script", "<image", "<style", "href=", "url("):
            assert outside not in text


@pytest.mark.parametrize(
    ("rates", "problem"),
    [
        ([{"ends": ["spark1:0", "spark2:1"]}], "measured[0]: gbps is None, expected a number."),
        (
            [{"ends": ["spark1:0", "spark2:1"], "gbps": "187"}],
            "measured[0]: gbps is '187', expected a number.",
        ),
        (
            [{"ends": ["spark1:0", "spark2:1"], "gbps": 187, "ok": "yes"}],
            "measured[0]: ok is 'yes', expected true or false.",
        ),
        ([{"gbps": 187}], "measured[0] is {'gbps': 187}, expected the two ends of a cable, like "),
        (187, "measured is 187, expected a list of cables like [spark1:0, spark2:1]."),
    ],
)
def test_refuses_measurements_it_cannot_read(rates, problem):
    with pytest.raises(PlanError) as caught:
        Picture.of(RING, None, rates)
    assert caught.value.problems[0].startswith(problem)
