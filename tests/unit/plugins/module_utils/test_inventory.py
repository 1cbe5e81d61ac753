"""Every refusal that the inventory or the command line alone can bring about, word by word."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.module_utils._inventory import (
    DEFAULT_GROUP,
    VARIABLES,
    Unreadable,
    check_addresses,
    check_group,
    check_variables,
    check_whole,
    unknown_variables,
)

READ = "YAML read what stands there as"
FOUR = ["spark1", "spark2", "spark3", "spark4"]


@pytest.mark.parametrize(
    ("groups", "problems"),
    [
        ({"all": FOUR, "ungrouped": [], "sparks": FOUR}, []),
        ({"sparks": FOUR[:2]}, []),
        (
            {"all": ["a", "b", "c"], "ungrouped": ["c"], "dgx": ["a", "b"], "nas": ["c"], "x": []},
            [
                (
                    "the inventory has no group 'sparks'; it has dgx (2 hosts), nas (1 host). Put "
                    "the nodes of the cell into 'sparks', or name their group with -e "
                    "spark_group=NAME."
                )
            ],
        ),
        (
            {"all": [], "ungrouped": []},
            [
                (
                    "the inventory has no group 'sparks'; it has no group with hosts. Put the "
                    "nodes of the cell into 'sparks', or name their group with -e spark_group=NAME."
                )
            ],
        ),
        (
            {"sparks": ["spark1"]},
            [
                (
                    "group 'sparks' has only spark1; a cell needs two hosts or more. Add the "
                    "others to it."
                )
            ],
        ),
        (
            {"sparks": []},
            ["group 'sparks' has no host; a cell needs two hosts or more. Add the others to it."],
        ),
    ],
)
def test_groups(groups: Mapping[str, Sequence[str]], problems: list[str]) -> None:
    assert check_group(groups, DEFAULT_GROUP) == problems


@pytest.mark.parametrize(
    ("variable", "text", "problem"),
    [
        ("spark_management_interface", "enP7s7", None),
        ("spark_management_interface", "eth0.100", None),
        (
            "spark_management_interface",
            "44:11:22:33:44:55",
            f"is 34361833495: {READ} a number; quote it",
        ),
        ("spark_management_interface", "on", f"is True: {READ} a boolean; quote it"),
        ("spark_management_interface", "[a]", "is ['a']; it must be a single text"),
        ("spark_management_interface", "{a: b}", "is {'a': 'b'}; it must be a single text"),
        ("spark_management_interface", "", "is empty"),
        ("spark_management_interface", "' '", "is empty"),
        (
            "spark_management_interface",
            "enP2p1s0f0np0.100",
            "is 'enP2p1s0f0np0.100', which is no interface name",
        ),
        ("spark_management_interface", "en/0", "is 'en/0', which is no interface name"),
        ("ansible_host", "192.0.2.11", None),
        ("ansible_host", "2001:db8::1", None),
        ("ansible_host", "spark1.example.org", None),
        ("ansible_host", "10.1", f"is 10.1: {READ} a number; quote it"),
        (
            "ansible_host",
            "2026-09-25",
            f"is {dt.date(2026, 9, 25)!r}: {READ} a date; quote it",
        ),
        ("ansible_host", "a b", "is 'a b', which is no address or host name"),
        ("ansible_port", "22", None),
        ("ansible_port", "'22'", None),
        ("spark_api_port", "8000", None),
        ("spark_api_port", "'8000'", None),  # as -e gives it
        ("spark_api_port", "0", "is 0, which is no TCP port (1 to 65535)"),
        ("spark_api_port", "65536", "is 65536, which is no TCP port (1 to 65535)"),
        ("spark_api_port", "true", "is True, which is no TCP port (1 to 65535)"),
        ("spark_api_port", "http", "is 'http', which is no TCP port (1 to 65535)"),
        ("spark_api_port", "80.5", "is 80.5, which is no TCP port (1 to 65535)"),
        ("spark_checkpoint_dir", "/srv/x", None),
        (
            "spark_checkpoint_dir",
            "~/models",
            "is '~/models', which is no absolute path (~ would be root's home there)",
        ),
        (
            "spark_engram_dir",
            "engram",
            "is 'engram', which is no absolute path (~ would be root's home there)",
        ),
        ("spark_partial", "yes", None),
        ("spark_partial", "'false'", None),
        ("spark_partial", "maybe", "is 'maybe', which is neither true nor false"),
        ("spark_weights_mode", "nfs", None),
        ("spark_weights_mode", "smb", "is 'smb'; it must be one of nfs, local, both"),
        ("spark_home", "44:11:22:33:44:55", None),  # somebody else's
    ],
)
def test_forms(variable: str, text: str, problem: str | None) -> None:
    """Values as the YAML loader hands them over: it turns what is unquoted into other types."""
    values = yaml.safe_load(f"{variable}: {text}")
    found = [str(complaint) for complaint in check_variables({"spark3": values})]
    assert found == ([] if problem is None else [f"spark3: {variable} {problem}."])


def test_shared_values_are_complained_about_once() -> None:
    hosts = {host: {"spark_api_port": 0} for host in FOUR} | {"spark2": {"spark_api_port": -1}}
    assert [str(complaint) for complaint in check_variables(hosts)] == [
        "spark1, spark3, spark4: spark_api_port is 0, which is no TCP port (1 to 65535).",
        "spark2: spark_api_port is -1, which is no TCP port (1 to 65535).",
    ]


def test_a_template_that_fails() -> None:
    hosts = {"spark1": {"spark_home": Unreadable("'disk' is undefined")}}
    assert [str(complaint) for complaint in check_variables(hosts)] == [
        "spark1: spark_home cannot be evaluated: 'disk' is undefined."
    ]


@pytest.mark.parametrize(
    ("hosts", "problems"),
    [
        ({"spark1": {}, "spark2": {}}, []),
        (
            {
                "spark1": {"ansible_host": "198.51.100.7", "ansible_port": 2201},
                "spark2": {"ansible_host": "198.51.100.7", "ansible_port": 2202},
            },
            [],  # one gateway, two ports
        ),
        (
            {
                "spark1": {"ansible_host": "192.0.2.11"},
                "spark2": {"ansible_host": "192.0.2.12"},
                "spark3": {"ansible_host": "192.0.2.11", "ansible_port": "22"},
            },
            [
                (
                    "spark1, spark3 have the same address 192.0.2.11 port 22; correct "
                    "ansible_host, or ansible_port behind a gateway."
                )
            ],
        ),
        (
            {"spark1": {"ansible_host": "Spark2"}, "spark2": {}},
            [
                (
                    "spark1, spark2 have the same address spark2 port 22; correct ansible_host, or "
                    "ansible_port behind a gateway."
                )
            ],
        ),
    ],
)
def test_addresses(hosts: Mapping[str, Mapping[str, Any]], problems: list[str]) -> None:
    assert check_addresses(hosts) == problems


PREFIX = "this step needs every host of the cell"
WHOLE: dict[str, tuple[list[str], list[str], list[str], str | None, list[str]]] = {
    "all at once": (FOUR, FOUR, FOUR, None, []),
    "others may be there too": (["nas", *FOUR], ["nas", *FOUR], ["nas", *FOUR], None, []),
    "limit": (
        *(["spark2"], ["spark2"], ["spark2"], "spark2"),
        [f"--limit spark2 leaves out spark1, spark3, spark4; {PREFIX}. Run it without --limit."],
    ),
    "a limit that leaves out nobody": (FOUR, FOUR, FOUR, "all", []),
    "another play": (
        *(["spark2"], ["spark2"], ["spark2"], None),
        [
            (
                "this play does not include spark1, spark3, spark4; it needs every host of the "
                "cell. Let its hosts be the whole group."
            )
        ],
    ),
    "unreachable before": (
        *(FOUR, ["spark1", "spark2", "spark4"], ["spark1", "spark2", "spark4"], None),
        [
            (
                f"spark3 failed or became unreachable earlier in this run; {PREFIX}. Repair them "
                "first: ansible-playbook sparkfleet.cluster.doctor."
            )
        ],
    ),
    "serial": (
        *(FOUR, FOUR, ["spark1"], None),
        [
            (
                f"serial leaves spark2..spark4 for later; {PREFIX} at once. Remove serial, and "
                "make cells of the hosts to go one after the other."
            )
        ],
    ),
}


@pytest.mark.parametrize(
    ("everyone", "alive", "batch", "limit", "problems"), WHOLE.values(), ids=WHOLE
)
def test_whole_cells(
    everyone: list[str], alive: list[str], batch: list[str], limit: str | None, problems: list[str]
) -> None:
    assert list(check_whole(FOUR, everyone, alive, batch, limit)) == problems


def test_likely_slips_of_the_pen_are_told() -> None:
    names = ["spark_managment_interface", "spark_home", "ansible_hosst", "spark_api_port"]
    assert unknown_variables(names) == [
        (
            "nothing reads the variable spark_managment_interface "
            "(did you mean spark_management_interface?)."
        )
    ]


def test_every_variable_of_a_cell_has_a_form() -> None:
    """The role's argument spec is the documentation; this table is what is enforced early."""
    root = Path(__file__).resolve().parents[4]
    spec = yaml.safe_load((root / "roles/spark/meta/argument_specs.yml").read_text("utf-8"))
    options = spec["argument_specs"]["main"]["options"]
    assert set(options) == {name for name in VARIABLES if name.startswith("spark_")}
    defaults = {name: option["default"] for name, option in options.items() if "default" in option}
    assert check_variables({"spark1": defaults}) == []
    assert defaults["spark_group"] == DEFAULT_GROUP
