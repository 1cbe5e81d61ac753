"""The filter in a playbook, where values are tagged and lazy and host variables no dictionaries."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from tests.support.playbook import run_playbook

INVENTORY = """
sparks:
  hosts:
    spark1:
    spark2:
    spark3:
    spark4:
  vars:
    ansible_connection: local
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
    spark_profile: ""
    spark_settings: {max_running_requests: "{{ slots }}"}
    slots: "8"
"""
PLAY = """
- name: Use the filter
  hosts: sparks
  gather_facts: false
  vars:
    fabric: "{{ groups['sparks'] | sparkfleet.cluster.fabric_plan('ring') }}"
    serving: >-
      {{ (spark_profile or none) | sparkfleet.cluster.serving_plan(
         fabric, settings=spark_settings, cell='sparks',
         model={'engram': {'tables': []}}, checkpoint_dir='/srv/c', engram_dir='/srv/e',
         ports={'engine': 8888, 'rendezvous': 20000}) }}
  tasks:
    - name: Keep as a fact, which takes plain values only
      ansible.builtin.set_fact:
        mine: "{{ serving.hosts[inventory_hostname] }}"
    - name: Write
      ansible.builtin.copy:
        content: "{{ mine | to_json }}"
        dest: "{{ out }}/{{ inventory_hostname }}"
        mode: "0600"
"""


def test_filter_in_a_playbook(tmp_path: Path) -> None:
    for name, text in (("inventory.yml", INVENTORY), ("play.yml", PLAY)):
        (tmp_path / name).write_text(yaml.safe_dump(yaml.safe_load(text), sort_keys=False))
    args = ("-e", f"out={tmp_path}")
    run_playbook(tmp_path / "play.yml", tmp_path / "inventory.yml", *args).assert_ok()
    for rank in range(4):
        found = json.loads((tmp_path / f"spark{rank + 1}").read_text(encoding="utf-8"))
        assert found["rank"] == rank
        assert found["container"]["env"]["MAX_RUNNING_REQUESTS"] == "8"


def test_a_refusal_is_a_message_with_every_reason(tmp_path: Path) -> None:
    for name, text in (("inventory.yml", INVENTORY), ("play.yml", PLAY)):
        (tmp_path / name).write_text(yaml.safe_dump(yaml.safe_load(text), sort_keys=False))
    given = json.dumps({"out": str(tmp_path), "slots": "0", "spark_profile": "dsv41-tp4"})
    wrong = run_playbook(tmp_path / "play.yml", tmp_path / "inventory.yml", "-e", given)
    assert wrong.returncode != 0
    assert "profile dsv41-tp4 is for switch of 4, but the cell is a ring of 4 hosts" in wrong.output
    assert "Traceback" not in wrong.output
