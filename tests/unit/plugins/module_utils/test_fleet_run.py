# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The runs for the cells of a fleet: what they are started with, what they say."""

from __future__ import annotations

import pytest
from ansible.cli.playbook import PlaybookCLI
from ansible.utils.context_objects import CLIArgs
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _fleet_run

GROUPS = {"cell_a": ["s1", "s2"], "cell_b": ["s3", "s4"], "both": ["s2", "s3"]}


def options(*words: str):
    cli = PlaybookCLI(["ansible-playbook", *words, "fleet.yml"])
    cli.init_parser()
    assert cli.parser is not None
    found = cli.post_process_args(cli.parser.parse_args(cli.args[1:]))
    return CLIArgs.from_options(found)


def test_a_run_for_a_cell_has_the_options_of_the_run_for_all(tmp_path):
    words = [
        *("-i", "a,", "-i", "b,", "-e", "x=1", "-e", '{"y": [2]}', "--check", "--diff", "-vv"),
        *("--tags", "sglang,verify", "--skip-tags", "nccl", "-f", "9", "-u", "root", "--become"),
        *("--become-password-file", "/p", "--vault-id", "prod@/v", "--private-key", "/k"),
    ]
    argv = _fleet_run.command("python3", options(*words), "/c/site.yml", "cell_a")
    assert argv[:4] == ["python3", "-m", "ansible", "playbook"]
    assert argv[-3:] == ["--extra-vars", "spark_group=cell_a", "/c/site.yml"]
    again = PlaybookCLI(["ansible-playbook", *argv[4:]])
    again.init_parser()
    assert again.parser is not None
    parsed = again.post_process_args(again.parser.parse_args(again.args[1:]))
    first = dict(options(*words))
    second = dict(CLIArgs.from_options(parsed))
    assert second.pop("extra_vars") == (*first.pop("extra_vars"), "spark_group=cell_a")
    assert {n: v for n, v in second.items() if n != "args"} == {
        n: v for n, v in first.items() if n != "args"
    }


@pytest.mark.parametrize(
    ("words", "cells", "told"),
    [
        ((), [], "router_cells names no cell"),
        ((), ["cell_a", "cell_c"], "the inventory has no group cell_c with hosts"),
        ((), ["cell_a", "both"], "s2 is in cell_a and in both; a node has one rank"),
        (("--limit", "s1"), ["cell_a"], "--limit s1 would leave half a cell"),
        (("-K",), ["cell_a"], "give it in a file, with --become-password-file"),
        (("-k",), ["cell_a"], "give it in a file, with --connection-password-file"),
        (("--step",), ["cell_a"], "--step and --start-at-task are for one cell"),
    ],
)
def test_what_cannot_be_done_for_all_is_refused(words, cells, told):
    assert any(told in text for text in _fleet_run.problems(options(*words), cells, GROUPS))
    assert _fleet_run.problems(options(), ["cell_a", "cell_b"], GROUPS) == []


LINES = """\
TASK [Verify] ****
[ERROR]: Task failed: the endpoint does not work
fatal: [s1]: FAILED! =>
    changed: false
    msg: the endpoint does not work
PLAY RECAP ****
s1                         : ok=5    changed={}    unreachable=0    failed=1    skipped=0
""".splitlines()


def test_what_a_run_said_is_read():
    lines = [line.format(0) for line in LINES]
    assert not _fleet_run.changed(lines)
    assert _fleet_run.changed([line.format(2) for line in LINES])
    assert "msg: the endpoint does not work" in _fleet_run.cause(lines)
    assert _fleet_run.cause(["no such file"]) == "no such file"
