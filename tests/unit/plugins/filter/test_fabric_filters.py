"""The filters as playbooks use them: through Ansible's own templating, variables and fact cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.module_utils._fabric_plan import fabric_plan

from tests.support.playbook import Run, run_playbook
from tests.unit.fabrics import measured, miswired_ring, plan

INVENTORY = """
sparks:
  vars:
    ansible_connection: local
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
    # One gateway stands before all hosts: no address of the fabric comes from these.
    ansible_host: 198.51.100.7
    plan: >-
      {{ groups['sparks'] | map('extract', hostvars, 'described')
         | sparkfleet.cluster.fabric_plan('ring', management_networks=groups['sparks']
         | map('extract', hostvars, 'ansible_host')) }}
    described: "{{ {'name': inventory_hostname, 'ports': ports | default([])} }}"
  hosts:
    spark1:
      ansible_port: 2201
    spark2:
      ansible_port: 2202
      ports:
        - {cage: 0, domain: 0, hca: mlx5_0}
    spark3:
      ansible_port: 2203
    spark4:
      ansible_port: 2204
"""


@pytest.fixture
def play(tmp_path: Path):
    """Run tasks on the hosts of an inventory that plans a ring for itself."""
    inventory = tmp_path / "inventory.yml"
    inventory.write_text(INVENTORY, encoding="utf-8")

    def run(tasks: list[dict[str, Any]], *arguments: str, path: str = "", **variables: Any) -> Run:
        playbook = tmp_path / "play.yml"
        content = {
            "name": "Use the filters",
            "hosts": "sparks",
            "gather_facts": False,
            "vars": variables,
            "tasks": [{"name": f"Task {n}", **task} for n, task in enumerate(tasks)],
        }
        playbook.write_text(yaml.safe_dump([content], sort_keys=False), encoding="utf-8")
        env = {
            "ANSIBLE_CACHE_PLUGIN": "jsonfile",
            "ANSIBLE_CACHE_PLUGIN_CONNECTION": str(tmp_path / "cache"),
            "PYTHONPATH": path,
        }
        return run_playbook(playbook, inventory, *arguments, env=env)

    return run


@pytest.fixture
def without(tmp_path: Path):
    """A place to import from that lacks a library."""

    def hide(library: str) -> str:
        module = tmp_path / "hidden" / f"{library}.py"
        module.parent.mkdir()
        module.write_text("raise ImportError(__name__)\n", encoding="utf-8")
        return str(module.parent)

    return hide


def copied(expression: str, target: Path) -> dict[str, Any]:
    """What an expression gives on each host, as JSON in a file for it."""
    content = "{{ " + expression + " | to_json }}"
    dest = f"{target}/{{{{ inventory_hostname }}}}.json"
    return {"ansible.builtin.copy": {"content": content, "dest": dest, "mode": "0600"}}


SECOND = {"name": "spark2", "ports": [{"cage": 0, "domain": 0, "hca": "mlx5_0"}]}
EXPECTED = fabric_plan(["spark1", SECOND, "spark3", "spark4"], "ring")


def test_plan_from_the_inventory_is_the_same_on_every_host_and_under_limit(play, tmp_path):
    play([copied("plan", tmp_path)]).assert_ok()
    for number in range(1, 5):
        assert json.loads((tmp_path / f"spark{number}.json").read_text()) == EXPECTED
    (tmp_path / "spark2.json").unlink()
    run = play([copied("plan", tmp_path)], "--limit", "spark2").assert_ok()
    assert list(run.hosts) == ["spark2"]
    assert json.loads((tmp_path / "spark2.json").read_text()) == EXPECTED


def test_plan_survives_facts_and_their_cache(play, tmp_path):
    kept = {"ansible.builtin.set_fact": {"kept": "{{ plan }}", "cacheable": True}}
    play([kept], "--limit", "spark3").assert_ok()
    checks = [
        "kept == plan",
        "kept.hosts.spark3.peer_hcas[0].rank == 1",
        "kept.hosts[inventory_hostname].forward is true",
        "kept.hosts.spark3.ports[0].address == '10.20.4.13'",
    ]
    tasks = [copied("kept", tmp_path), {"ansible.builtin.assert": {"that": checks}}]
    play(tasks, "--limit", "spark3", kept="{{ ansible_facts['kept'] }}").assert_ok()
    assert json.loads((tmp_path / "spark3.json").read_text()) == EXPECTED


def test_compare_and_diagram_take_the_plan_and_what_was_found(play, tmp_path):
    ring = plan(4)
    (tmp_path / "text").mkdir()
    tasks = [
        copied("plan | sparkfleet.cluster.fabric_compare(found)", tmp_path),
        copied("plan | sparkfleet.cluster.fabric_diagram('text', found, rates)", tmp_path / "text"),
        {
            "ansible.builtin.assert": {
                "that": [
                    "(plan | sparkfleet.cluster.fabric_compare(plan.cables)).ok",
                    "(plan | sparkfleet.cluster.fabric_diagram).startswith('<?xml')",
                    "'✗ 13.2 Gb/s' in (plan | sparkfleet.cluster.fabric_diagram(measured=rates))",
                ]
            }
        },
    ]
    play(tasks, "--limit", "spark1", found=miswired_ring(), rates=measured(ring)).assert_ok()
    compared = json.loads((tmp_path / "spark1.json").read_text())
    assert compared["problems"][-1] == "there is no cable between spark4 cage 0 and spark1 cage 1"
    assert "cable 0, not found" in json.loads((tmp_path / "text" / "spark1.json").read_text())


BAD = {
    "['a', 'b'] | sparkfleet.cluster.fabric_plan('rnig', mtu=1)": (
        "2 problems:\n- topology is 'rnig', expected pair, triangle, ring or switch (did you mean "
        "ring?).\n- mtu is 1, expected a number from 1280 to 9216."
    ),
    "none | sparkfleet.cluster.fabric_plan('ring')": "the hosts are None, expected a list of names",
    "'x' | sparkfleet.cluster.fabric_compare([])": "the plan is not what fabric_plan returns",
    "plan | sparkfleet.cluster.fabric_compare(4)": "observed is 4, expected a list of cables like",
    "plan | sparkfleet.cluster.fabric_diagram('png')": "format is 'png', expected svg or text.",
}


def test_bad_input_ends_in_sentences(play):
    tasks = [
        {"ansible.builtin.debug": {"msg": "{{ " + bad + " }}"}, "ignore_errors": True}
        for bad in BAD
    ]
    run = play(tasks, "--limit", "spark1")
    assert run.hosts["spark1"].ignored == len(BAD)
    assert "Traceback" not in run.output
    for told in BAD.values():
        assert told in run.output


@pytest.mark.parametrize(
    ("library", "expression"),
    [
        ("netaddr", "plan"),
        ("drawsvg", "plan | sparkfleet.cluster.fabric_diagram"),
    ],
)
def test_without_a_library_there_is_one_line_that_names_it(play, without, library, expression):
    task = {"ansible.builtin.debug": {"msg": "{{ " + expression + " }}"}}
    run = play([task], "--limit", "spark1", path=without(library))
    assert run.returncode == 2
    assert "Traceback" not in run.output
    (line,) = (line for line in run.failed[0].message.splitlines() if library in line)
    assert line.endswith(
        f"the Python library {library} is missing on the controller; install it for the Python "
        f"that runs Ansible: python3 -m pip install {library}."
    )


def test_pictures_for_the_terminal_need_no_drawing_library(play, without, tmp_path):
    task = copied("plan | sparkfleet.cluster.fabric_diagram('text')", tmp_path)
    play([task], "--limit", "spark1", path=without("drawsvg")).assert_ok()
