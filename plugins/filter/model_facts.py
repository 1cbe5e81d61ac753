# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: model_facts
short_description: What is known about a model
version_added: 0.1.0
description:
  - Reads a file of facts about a model on the controller and checks its form. The collection brings
    some; another model or revision is another file, in the same form, of the user's own.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
positional: _input
options:
  _input:
    description:
      - The name of a file that the collection brings, without its ending, as
        V(deepseek-v4.1-flash); or the path of a file, with a slash in it.
    type: str
    required: true
"""

EXAMPLES = r"""
---
- name: Verify the checkpoint of the model
  sparkfleet.cluster.checkpoint_info:
    path: /srv/spark/checkpoint
    expected: "{{ spark_model | sparkfleet.cluster.model_facts }}"
"""

RETURN = r"""
_value:
  description:
    - The facts. Those that the file does not tell are V(null), and so not checked by anybody.
  type: dict
  contains:
    served_name:
      description: What clients call the model.
      type: str
    repository:
      description: The repository on the hub, as C(organisation/name).
      type: str
    revision:
      description: The full commit hash there.
      type: str
    weight_files:
      description: How many files of weights the checkpoint has.
      type: int
    weight_bytes:
      description: Their sizes together, in bytes.
      type: int
    config_sha256:
      description: The SHA-256 of C(config.json).
      type: str
    engram:
      description:
        - The C(tables) with C(layer) and C(rows) of each, and C(weight_bytes_per_row) and
          C(scale_bytes_per_row). A model without has an empty list of tables.
      type: dict
    context_limit:
      description: The most tokens of a sequence. What else a plan of serving needs is beside it.
      type: int
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleTemplatePluginError
from ansible.module_utils.common.yaml import yaml_load
from ansible_collections.sparkfleet.cluster.plugins.module_utils._model_facts import (
    ModelFactsError,
    check,
    find,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain

FOLDER = Path(__file__).parents[2] / "roles" / "spark" / "files" / "models"


def model_facts(model: Any) -> dict[str, Any]:
    if not isinstance(model, str):
        raise AnsibleTemplatePluginError(f"model_facts: {model!r} is no name and no path")
    try:
        path = find(str(model), str(FOLDER))
        text = Path(path).read_text(encoding="utf-8")
        facts: dict[str, Any] = plain(check(plain(yaml_load(text)), path))
    except ModelFactsError as error:
        raise AnsibleTemplatePluginError(f"model_facts: {error}") from error
    except Exception as error:
        raise AnsibleTemplatePluginError(f"model_facts: {model}: {error}") from error
    return facts


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"model_facts": model_facts}
