"""The helpers that judge playbooks must themselves tell good from bad."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.playbook import assert_check_changes_nothing, assert_idempotent, run_playbook

INVENTORY = "localhost,"
PLAY = """
- name: Sample
  hosts: localhost
  connection: local
  gather_facts: false
  vars:
    ansible_python_interpreter: "{{{{ ansible_playbook_python }}}}"
  tasks:
    - name: Sample task
      {task}
"""


@pytest.fixture
def sample(tmp_path: Path):
    def write(task: str) -> Path:
        playbook = tmp_path / "sample.yml"
        playbook.write_text(PLAY.format(task=task), encoding="utf-8")
        return playbook

    return write


def test_tells_what_ran(sample):
    run = run_playbook(sample("ansible.builtin.command: 'true'"), INVENTORY)
    assert run.returncode == 0
    assert run.hosts["localhost"].changed == 1
    assert [str(n) for n in run.changed] == [
        "localhost: Sample task (ansible.builtin.command)",
    ]


def test_tells_what_failed(sample):
    run = run_playbook(sample("ansible.builtin.fail: {msg: no link}"), INVENTORY)
    assert run.returncode == 2
    assert run.hosts["localhost"].failures == 1
    assert run.failed[0].message == "no link"
    with pytest.raises(AssertionError, match="no link"):
        run.assert_ok()


def test_nothing_matched_is_not_ok(sample):
    run = run_playbook(sample("ansible.builtin.meta: noop"), "elsewhere,", "--limit", "elsewhere")
    assert run.returncode == 0
    with pytest.raises(AssertionError, match="did nothing"):
        run.assert_ok()


def test_a_syntax_error_has_no_hosts(sample):
    run = run_playbook(sample("no_such_module: {}"), INVENTORY)
    assert run.returncode == 4
    assert not run.hosts


def test_idempotent(sample, tmp_path):
    target = tmp_path / "made"
    assert_idempotent(
        sample(f"ansible.builtin.copy: {{dest: {target}, content: x, mode: '0600'}}"), INVENTORY
    )


def test_not_idempotent(sample):
    with pytest.raises(AssertionError, match="changed something\nlocalhost: Sample task"):
        assert_idempotent(sample("ansible.builtin.command: 'true'"), INVENTORY)


def test_check_mode_kept(sample, tmp_path):
    target = tmp_path / "made"
    run = assert_check_changes_nothing(
        sample(f"ansible.builtin.copy: {{dest: {target}, content: x, mode: '0600'}}"),
        INVENTORY,
        witness=target.exists,
    )
    with pytest.raises(AssertionError, match="changed something"):
        run.assert_unchanged()


def test_check_mode_broken(sample, tmp_path):
    target = tmp_path / "made"
    task = f"""ansible.builtin.command: touch {target}
      check_mode: false
      changed_when: false"""
    with pytest.raises(AssertionError, match="--check changed the hosts: False became True"):
        assert_check_changes_nothing(sample(task), INVENTORY, witness=target.exists)


def test_facts_are_not_injected(sample):
    task = (
        "ansible.builtin.setup: {gather_subset: ['!all', '!min', distribution]}\n"
        "    - ansible.builtin.assert:\n"
        "        that: [ansible_os_family is not defined, ansible_facts.os_family is defined]"
    )
    run_playbook(sample(task), INVENTORY).assert_ok()
