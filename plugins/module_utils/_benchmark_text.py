# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Prose that does not repeat itself, as much as is wanted, another one for every request.

A prompt of one repeated token hits the same Engram rows, the same experts and, the second time, the
same prefix cache again and again: what it measures no user ever sees. This prose is made, from
words and sentences of everyday English with names, dates and numbers; it has no meaning worth an
answer, but nearly every three words in a row occur only once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

_NOUNS = """
anchor apple archive argument autumn bakery barge basket bell bicycle blanket boat bottle bridge
brother bucket butcher button cabin calendar candle canvas captain carpet castle cellar chapter
cheese chimney choir circle clerk cloud coat coin colour compass copper corner cottage council
cousin crane crowd cup curtain daughter debt desk dinner doctor door drawer dream driver dust
echo engine envelope evening factory farmer feather fence ferry field fire flag flour forest
fountain friend frost garden gate glass glove grain granite guest hammer harbour harvest hat
hedge hill horse hour house inch island jacket jar journey judge kettle key kitchen ladder lake
lamp lantern lawyer leaf lemon letter library lid lock machine magnet map market meadow meal
memory merchant metal mill minute mirror month morning motor mountain mouse museum needle
neighbour net newspaper notebook oak ocean office onion orchard oven owl painter paper parcel
path pencil pepper pianist pillow pipe plank plum pocket poem pond porter price prince pump
quarrel question queue rail rain reason recipe ribbon river road roof room rope sail salt
schedule school sculptor season secret servant shadow sheep shelf ship shoe signal silver sister
smoke snow soldier soup spoon stable stair station steam stone storm story stranger street
student sugar summer surgeon table tailor teacher tent theatre thread ticket tide timber tower
town traveller treaty tunnel umbrella uncle valley village violin voyage wagon wall watch water
weather wheat wheel whistle widow willow window winter witness wood wool workshop yard year
""".split()
_VERBS = """
abandoned admired answered avoided borrowed bought broke brought built buried carried changed
chose cleaned climbed collected compared copied counted covered crossed damaged defended
delivered described designed discovered divided doubted drew dropped emptied examined exchanged
explained followed forgot found gathered guarded heard held hid ignored imagined inherited
inspected invented kept knew lifted lit lost lowered measured mended met missed moved named
noticed offered opened ordered owned packed painted passed planted polished praised promised
pulled pushed questioned reached recalled recorded refused remembered removed repaired replaced
rescued returned ruined saved saw sealed searched sent sketched sold sorted spared stole
studied surrounded threw tied took touched traded trusted understood used visited waited-for
warmed washed watched weighed welcomed wrapped wrote-about
""".split()
_ADJECTIVES = """
absent ancient ashen bitter blue borrowed brave bright broken brown calm careful careless cheap
clever cold common crooked curious damp dark deaf deep distant double dry dull eager early
eastern empty endless faint false famous flat foreign forgotten fragile fresh gentle golden
grateful grey half-finished hasty heavy hidden hollow honest hungry idle innocent lame late
lazy light little lonely long lucky muddy narrow nervous new northern obvious odd old orange
ordinary painted pale patient plain pleasant polite poor private proud quick quiet rare red
rough round rusty sad second sharp short silent simple sleepy slow small smooth soft sour
southern square steep stiff strange striped stubborn sudden sweet tall tame thick thin third
tired torn ugly unknown upper useless warm weary western white wide wild wise wooden young
""".split()
_NAMES = """
Abel Adele Agnes Albert Alma Anselm Astrid Basil Beatrix Bertram Blanche Boris Cecily Clement
Cora Cyrus Dagmar Delia Edgar Edith Elias Ellen Emil Esther Felix Flora Frida Gerda Gideon
Greta Hanna Hector Hilda Hugo Ida Ilse Irma Ivo Jasper Judith Karl Konrad Lena Leopold Lotte
Ludwig Mabel Magnus Martha Max Mina Nora Olga Oscar Otto Paula Quentin Ralf Rosa Rufus Selma
Silas Sybil Theo Tilda Ulrich Ursula Vera Victor Walter Wanda Xaver Yvonne Zelda
""".split()
_PLACES = """
Aldwick Ambleford Arnsberg Barrowmere Brackenholm Calderby Corvale Dunmoor Eastwater Elmstead
Fallowdene Farnleigh Gatesby Grenloch Halden Hartmere Ivybridge Kesselbach Kirkdale Langholt
Lindow Marsden Merrowfield Northwick Oakhampton Ostergard Pellworm Quarrington Ravensby Rothwell
Sandhaven Selwood Stanmere Tarnbrook Thornaby Ulverdale Wendmoor Westerhope Yarrowby Zellhof
""".split()
_SENTENCES = (
    "{Name} {verb} the {adj} {noun} near {place}, although the {noun} was {adj}.",
    "In {year} a {noun} from {place} cost {number} crowns, and every {adj} {noun} {verb} it.",
    "Nobody in {place} {verb} the {noun} until {Name} {verb} its {adj} {noun}.",
    "The {noun} of {Name} stood between a {adj} {noun} and {number} {adj} {noun}s.",
    "Was it the {noun} or the {noun} that {Name} {verb} on the {day}?",
    '"A {adj} {noun}," said {Name}, "is worth {number} times the {noun} of {place}."',
    "After {number} days the {adj} {noun} {verb} what {Name} and {Name} once {verb}.",
    "If a {noun} is {adj}, {Name} wrote in {year}, then the {noun} must be {adj} as well.",
    "From {place} to {place} it is {number} miles by {noun}, or {number} by the {adj} {noun}.",
    "{Name}, whose {noun} {verb} the {noun}, never {verb} {place} again.",
    "There were {number} {noun}s on the {noun}; the {adj} one {verb} a {noun}.",
    "The {adj} {noun} and the {adj} {noun} {verb} each other before the {noun} at {place}.",
    "On the {day} of that {noun} {Name} {verb} the {noun} and {verb} the {adj} {noun}.",
    "What the {noun} {verb}, the {noun} {verb}; so {Name} {verb} neither.",
    "Without a {noun} the {adj} {noun} of {place} was nothing but a {adj} {noun}.",
    "{Name} asked for {number} {noun}s, got a {adj} {noun}, and {verb} the {noun} anyway.",
)
_DAYS = (
    "first",
    "second",
    "third",
    "fourth",
    "ninth",
    "twelfth",
    "last",
    "seventeenth",
    "thirtieth",
)


def sentences(seed: str) -> Iterator[str]:
    """Sentences without an end; the same for the same seed."""
    chosen = random.Random(seed)

    def filled(pattern: str) -> str:
        parts = []
        for number, piece in enumerate(pattern.replace("}", "{").split("{")):
            if number % 2 == 0:
                parts.append(piece)
            elif piece == "number":
                parts.append(str(chosen.randrange(2, 9000)))
            elif piece == "year":
                parts.append(str(chosen.randrange(1480, 1990)))
            else:
                parts.append(chosen.choice(words[piece]).replace("-", " "))
        return "".join(parts)

    words = {
        "noun": _NOUNS,
        "verb": _VERBS,
        "adj": _ADJECTIVES,
        "Name": _NAMES,
        "place": _PLACES,
        "day": _DAYS,
    }
    while True:
        yield filled(chosen.choice(_SENTENCES))


def prose(seed: str, characters: int) -> str:
    """At least that much of it, in paragraphs, ending with a sentence.

    >>> prose("one", 40) == prose("one", 40) != prose("two", 40)
    True
    """
    lines, size = [], 0
    for number, sentence in enumerate(sentences(seed), 1):
        if size >= characters:
            break
        lines.append(sentence + ("\n\n" if number % 7 == 0 else " "))
        size += len(lines[-1])
    return "".join(lines).strip()


def excerpt(text: str, seed: str, characters: int) -> str:
    """Another part of a given text for every seed, from the start of a word.

    Raises:
        ValueError: the text is shorter than that.
    """
    if len(text) < characters:
        raise ValueError(f"the text has {len(text)} characters, and a prompt needs {characters}")
    start = random.Random(seed).randrange(len(text) - characters + 1)
    part = text[start : start + characters]
    return part if start == 0 else part.partition(" ")[2] or part
