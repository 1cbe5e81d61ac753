"""The plans of image and NCCL in a playbook, where values are tagged and lazy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.filter import image_plan, nccl_plan

from tests.support.playbook import run_playbook

PLAY = """
- name: Use the filters
  hosts: all
  gather_facts: false
  vars:
    fabric: "{{ ['spark1', 'spark2'] | sparkfleet.cluster.fabric_plan('pair') }}"
    seen: {content: x, exists: true, architecture: arm64, node_architecture: arm64, labels: {},
           size: 1, store: classic, zstd: true, serving: [], problems: []}
    images: "{{ dict(['spark1', 'spark2'] | zip([seen, seen | combine({'content': 'y'})])) }}"
    wish: {reference: 'e:1', source: present, builder: spark1}
    library: {path: /x, sha256: aa, machine: x, node_machine: x, version: '2.30.7', serving: [],
              problems: []}
  tasks:
    - name: Refuse
      ansible.builtin.fail:
        msg: >-
          {{ (images | sparkfleet.cluster.image_plan(fabric, **wish)).problems
             + ({'spark1': library, 'spark2': library | combine({'sha256': 'bb'})}
                | sparkfleet.cluster.nccl_plan({'source': 'none'})).problems }}
"""


def test_in_a_playbook(tmp_path: Path) -> None:
    play = tmp_path / "play.yml"
    play.write_text(PLAY, encoding="utf-8")
    run = run_playbook(play, "localhost,", "-c", "local")
    assert "spark2 has another e:1 than spark1" in run.output, run.output
    assert "the ranks have different NCCL libraries" in run.output, run.output


WISH: Mapping[str, Any] = {"reference": "e:1", "source": "present", "builder": "spark1"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (([], {}), "images is not a dictionary"),
        (({}, []), "fabric is not a dictionary"),
        (({}, {}, {"args": ["x"]}), "args is not a dictionary"),
        (({}, {}, {"source": "registry"}), "source is 'registry', expected build, pull"),
    ],
)
def test_an_image_plan_of_something_else(arguments: tuple[Any, ...], told: str) -> None:
    images, fabric, *more = arguments
    with pytest.raises(AnsibleTemplatePluginError, match=told):
        image_plan.image_plan(images, fabric, **{**WISH, **(more[0] if more else {})})


@pytest.mark.parametrize(
    ("libraries", "wish", "told"),
    [
        ([], {"source": "none"}, "libraries is not a dictionary"),
        ({}, {}, "source is not one of none, file"),
        ({}, {"source": "none", "fiel": "x"}, "fiel"),
    ],
)
def test_an_nccl_plan_of_something_else(libraries: Any, wish: Any, told: str) -> None:
    with pytest.raises(AnsibleTemplatePluginError, match=told):
        nccl_plan.nccl_plan(libraries, wish)
