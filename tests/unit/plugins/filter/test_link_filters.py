"""The filters of the link proof in a playbook, where values are tagged and lazy."""

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
  vars:
    ansible_connection: local
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
    heard: {probed: false, why: no lab, ports: [], macs: {}, lldp: null}
    pinged: {checks: []}
"""
PLAY = """
- name: Use the filters
  hosts: sparks
  gather_facts: false
  vars:
    plan: "{{ groups['sparks'] | sparkfleet.cluster.fabric_plan('pair') }}"
    schedule: "{{ plan | sparkfleet.cluster.link_schedule }}"
    everybody: "{{ ansible_play_hosts | map('extract', hostvars) }}"
    heards: "{{ dict(ansible_play_hosts | zip(everybody | map(attribute='heard'))) }}"
    pings: "{{ dict(ansible_play_hosts | zip(everybody | map(attribute='pinged'))) }}"
  tasks:
    - name: Keep as facts, which takes plain values only
      ansible.builtin.set_fact:
        cables: "{{ heards | sparkfleet.cluster.link_cables(plan=plan) }}"
        verdict: "{{ schedule | sparkfleet.cluster.link_verdict(pings, {}, twin_gbps='92') }}"
      run_once: true
    - name: Write
      ansible.builtin.copy:
        content: "{{ {'cables': cables, 'verdict': verdict} | to_json }}"
        dest: "{{ out }}"
        mode: "0600"
      run_once: true
"""


def test_filters_in_a_playbook(tmp_path: Path) -> None:
    for name, text in (("inventory.yml", INVENTORY), ("play.yml", PLAY)):
        (tmp_path / name).write_text(yaml.safe_dump(yaml.safe_load(text), sort_keys=False))
    out = tmp_path / "out.json"
    args = ("-e", f"out={out}")
    run_playbook(tmp_path / "play.yml", tmp_path / "inventory.yml", *args).assert_ok()
    found = json.loads(out.read_text(encoding="utf-8"))
    assert [problem["message"] for problem in found["cables"]["problems"]] == [
        "spark1 did not listen: no lab.",
        "spark2 did not listen: no lab.",
    ]
    assert found["verdict"]["gate"] == {"twin_gbps": 92.0, "both_gbps": 175.0, "latency_us": 0.0}
    assert not found["verdict"]["ok"]
