# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lines of exports, the active table, and what is wrong with them."""

from __future__ import annotations

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _nfs_exports as exports

OPTIONS = exports.wanted_options(1000, 1000)


def parse(text: str) -> list[tuple[str, str, str]]:
    return [(e.path, e.client, ",".join(e.options)) for e in exports.parse_exports(text, "f")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("# /srv *(rw)\n\n", []),
        ("/srv 10.0.0.1(ro) h2(rw,sync)", [("/srv", "10.0.0.1", "ro"), ("/srv", "h2", "rw,sync")]),
        ("/srv/", [("/srv", "*", "")]),
        ("/srv (ro)", [("/srv", "*", "ro")]),
        ("/srv h1 (ro)", [("/srv", "h1", ""), ("/srv", "*", "ro")]),
        ("/srv -ro,sync h1 h2(rw)", [("/srv", "h1", "ro,sync"), ("/srv", "h2", "ro,sync,rw")]),
        ('"/a b" h1(ro)', [("/a b", "h1", "ro")]),
        (r"/a\040b h1(ro)", [("/a b", "h1", "ro")]),
        ("/srv \\\n  h1(ro) \\\n  h2(ro)\n/x h3", [
            ("/srv", "h1", "ro"), ("/srv", "h2", "ro"), ("/x", "h3", "")]),
        ("/srv h1(ro) # the lab", [("/srv", "h1", "ro")]),
        ("/srv h1(ro", [("/srv", "h1", "ro")]),
        ("/srv *.lan(ro) @group(ro)", [("/srv", "*.lan", "ro"), ("/srv", "@group", "ro")]),
    ],
)  # fmt: skip
def test_the_syntax_of_exports(text: str, found: list[tuple[str, str, str]]) -> None:
    assert parse(text) == found


def test_an_entry_knows_its_line() -> None:
    _first, second = exports.parse_exports("/a h1\n\n/b \\\n h2(ro)\n", "/etc/exports")
    assert second.where == "/etc/exports:3"


def test_what_is_written_is_read_back() -> None:
    """Whatever is in a path: blanks, quotes, a hash sign, letters beyond ASCII."""
    for path in ("/srv/models", "/a b/c", '/q"uote', "/ha#sh", "/modèle", "/back\\040slash"):
        text = exports.render(path, ["10.20.0.12", "10.20.2.13"], OPTIONS)
        assert [(e.path, e.client, e.options) for e in exports.parse_exports(text, "f")] == [
            (path, "10.20.0.12", OPTIONS),
            (path, "10.20.2.13", OPTIONS),
        ]


# As nfs-utils 2.8.3 printed it.
TABLE = """\
/data/models  \t10.20.0.12(sync,wdelay,hide,crossmnt,no_subtree_check,anonuid=1000,anongid=1000,sec=sys,ro,root_squash,all_squash)
/data/mod els \t<world>(sync,wdelay,hide,no_subtree_check,sec=sys,ro,root_squash,no_all_squash)
/data/checkpoint
\t\t10.20.0.12(sync,wdelay,hide,crossmnt,no_subtree_check,sec=sys,ro,root_squash,all_squash)
"""  # noqa: E501


def test_the_active_table() -> None:
    assert [(e.path, e.client) for e in exports.parse_table(TABLE)] == [
        ("/data/models", "10.20.0.12"),
        ("/data/mod els", "*"),
        ("/data/checkpoint", "10.20.0.12"),
    ]


@pytest.mark.parametrize(
    ("path", "uid", "clients", "told"),
    [
        ("/data/models", 1000, ["10.20.0.12"], []),
        ("/data/models", 1001, ["10.20.0.12"], ["without anongid=1001,anonuid=1001"]),
        ("/data/models", 1000, ["10.20.0.12", "10.20.0.300"], ["not exported to 10.20.0.300"]),
        ("/data/mod els", 1000, ["10.20.0.12"], ["not exported to", "exported to everybody"]),
        # the usual anonymous account is not shown
        ("/data/checkpoint", 65534, ["10.20.0.12"], []),
    ],
)
def test_deviations(path: str, uid: int, clients: list[str], told: list[str]) -> None:
    wanted = {client: exports.wanted_options(uid, uid) for client in clients}
    found = exports.deviations(exports.parse_table(TABLE), path, wanted)
    assert len(found) == len(told)
    for sentence, words in zip(found, told, strict=True):
        assert words in sentence


def test_a_blank_before_the_parenthesis_opens_the_directory() -> None:
    text = "/srv/models 10.20.0.0/24 (ro,insecure,no_subtree_check)"
    foreign = exports.parse_exports(text, "/etc/exports")
    _twice, problems = exports.conflicts(foreign, "/srv/models", ["10.20.0.12"])
    (problem,) = problems
    assert problem.code == "world"
    assert "/etc/exports:1 gives /srv/models to everybody" in problem.message
    assert repr(text) in problem.message
    # of another directory it is told, and no reason to refuse
    assert exports.conflicts(foreign, "/srv/other", ["10.20.0.12"]) == ({}, [])
    (warning,) = exports.warnings(foreign, "/srv/other")
    assert "/srv/models to everybody" in warning


def test_a_line_for_the_same_directory_and_client() -> None:
    foreign = exports.parse_exports("/srv/models 10.20.0.12(rw,sync)", "/etc/exports")
    twice, problems = exports.conflicts(foreign, "/srv/models", ["10.20.0.12", "10.20.2.13"])
    assert (list(twice), problems) == (["10.20.0.12"], [])
    (problem,) = exports.duplicates(twice)
    assert "/etc/exports:1" in problem.message
    assert "'/srv/models 10.20.0.12(rw,sync)'" in problem.message
    assert exports.adoptable(twice["10.20.0.12"]) == ["it is writable (rw)"]


def test_a_parent_that_others_export_is_told() -> None:
    foreign = exports.parse_exports("/srv *(rw,crossmnt)", "/etc/exports")
    (warning,) = exports.warnings(foreign, "/srv/models")
    assert "exports /srv, which /srv/models is part of, to * (rw,crossmnt)" in warning


@pytest.mark.parametrize(
    ("line", "path", "told"),
    [
        ("/srv 10.0.0.0/8(ro,fsid=0)", "/models", None),
        ("/srv *(ro,fsid=root)", "/models", None),
        ("/ 10.20.0.12(ro,fsid=0)", "/srv/models", None),
        ("/srv/models 10.20.0.12(ro,fsid=0)", "/", None),
        ("/srv 192.168.0.0/16(ro,fsid=0)", "/srv/models", None),
        ("/srv 10.20.0.12(ro,fsid=1)", "/srv/models", None),
        ("/data 10.0.0.0/8(ro,fsid=0)", None, "'/data 10.0.0.0/8(ro,fsid=0)'"),
        ("/srv spark2.lan(ro,fsid=0)", None, "only a name service knows"),
    ],
)
def test_a_pseudo_root_of_others(line: str, path: str | None, told: str | None) -> None:
    foreign = exports.parse_exports(line, "/etc/exports")
    found, problem = exports.client_path(foreign, "/srv/models", "10.20.0.12")
    assert found == path
    assert (problem is None) == (told is None)
    if problem and told:
        assert told in problem.message
