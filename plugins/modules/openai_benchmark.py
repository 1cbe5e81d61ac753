# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: openai_benchmark
short_description: Measure how fast an OpenAI-compatible endpoint reads and writes
version_added: 0.1.0
description:
  - Measures one point, which is so many streams at once with prompts and answers of such a length.
    It works against any server with OpenAI's chat completions that reports usage in streams.
  - Prompts are prose that does not repeat itself, another one for every request. A repeated token
    would hit the same rows and experts, and the prefix cache, and measure what no user sees.
  - Tokens are those the server reports. The first rounds warm up and are not counted.
  - Puts the endpoint under load, and changes nothing. In check mode it does nothing.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
attributes:
  check_mode:
    description:
      - Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
    details:
      - Asks nothing; RV(point) is empty.
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: none
options:
  url:
    description: The root of the server, as in V(http://127.0.0.1:8888).
    type: str
    required: true
  key_file:
    description: A file on the host that the module runs on, with C(name:key) or nothing but a key.
    type: path
  model:
    description: The model to ask. The default is the first that the server lists.
    type: str
    default: ""
  streams:
    description: How many requests are sent at once.
    type: int
    default: 1
  prompt_tokens:
    description: About how many tokens a prompt has. RV(point) has how many they were.
    type: int
    default: 512
  output_tokens:
    description: How many tokens an answer has.
    type: int
    default: 256
  warmups:
    description: How many rounds are not counted.
    type: int
    default: 1
  rounds:
    description: How many rounds are.
    type: int
    default: 3
  timeout:
    description: How many seconds an answer may take.
    type: float
    default: 900
  text_file:
    description:
      - A text on the host that the module runs on, of which prompts are parts, such as a long book.
        The default is prose that is made.
    type: path
  seed:
    description: What prompts are made from. The default is another one each time.
    type: str
    default: ""
  validate_certs:
    description: Whether the certificate of the server has to be valid.
    type: bool
    default: true
  ca_file:
    description: A file of certificates to trust instead of the system's.
    type: path
"""

EXAMPLES = r"""
---
- name: Measure eight streams
  sparkfleet.cluster.openai_benchmark:
    url: http://127.0.0.1:8888
    streams: 8
  register: eight

- name: Measure how long prompts are read
  sparkfleet.cluster.openai_benchmark:
    url: http://127.0.0.1:8888
    prompt_tokens: 32768
    output_tokens: 1
"""

RETURN = r"""
url:
  description: The endpoint.
  returned: always
  type: str
  sample: http://127.0.0.1:8888
point:
  description:
    - What was measured. Times are seconds, rates tokens per second. Each figure with C(_low) and
      C(_high) is a median with the least and the most; those of one stream are over all requests,
      C(total_tokens_per_second) and C(prefill_tokens_per_second) over the rounds. V(null) where the
      server does not tell what is needed.
  returned: always
  type: dict
  contains:
    streams:
      description: How many there were at once.
      type: int
    model:
      description: The model that was asked.
      type: str
    stand_in:
      description: Whether the server says that its model only stands in for one.
      type: bool
    prompt_tokens:
      description: Of a prompt, as the server counted.
      type: float
    output_tokens:
      description: Of an answer, as the server counted.
      type: float
    cached_tokens:
      description: Of a prompt, those that were in the prefix cache, if the server tells.
      type: float
    ttft_seconds:
      description: Until the first piece of the answer.
      type: float
    itl_seconds:
      description: Between two tokens of a stream, taken over all of it.
      type: float
    decode_tokens_per_second:
      description: Of one stream, after its first token.
      type: float
    total_tokens_per_second:
      description: Of all streams together.
      type: float
    prefill_tokens_per_second:
      description: Tokens of all prompts over the time until the last first piece.
      type: float
    failures:
      description: A sentence for each request without an answer.
      type: list
      elements: str
"""

import secrets

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._benchmark import Bench, Point
from ansible_collections.sparkfleet.cluster.plugins.module_utils._entry_keys import KeysError, pick
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_http import (
    Client,
    ProbeError,
)

_COUNTS = {"streams": 1, "prompt_tokens": 1, "output_tokens": 1, "warmups": 0, "rounds": 1}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "key_file": {"type": "path", "no_log": False},
            "model": {"type": "str", "default": ""},
            "streams": {"type": "int", "default": 1},
            "prompt_tokens": {"type": "int", "default": 512, "no_log": False},
            "output_tokens": {"type": "int", "default": 256, "no_log": False},
            "warmups": {"type": "int", "default": 1},
            "rounds": {"type": "int", "default": 3},
            "timeout": {"type": "float", "default": 900},
            "text_file": {"type": "path"},
            "seed": {"type": "str", "default": ""},
            "validate_certs": {"type": "bool", "default": True},
            "ca_file": {"type": "path"},
        },
        supports_check_mode=True,
    )
    given = module.params
    for name, least in _COUNTS.items():
        if given[name] < least:
            module.fail_json(msg=f"{name} is {given[name]}, expected {least} or more")
    if given["timeout"] <= 0:
        module.fail_json(msg=f"timeout is {given['timeout']:g}, expected more than 0")
    key = _file(module, given["key_file"], "key_file")
    point = Point(
        text=_file(module, given["text_file"], "text_file") or "",
        **{name: given[name] for name in (*_COUNTS, "timeout", "model")},
    )
    try:
        client = Client(
            given["url"],
            pick(key, "", given["key_file"]) if key is not None else None,
            validate_certs=given["validate_certs"],
            ca_file=given["ca_file"],
        )
        measured = (
            {}
            if module.check_mode
            else Bench(client, given["seed"] or secrets.token_hex(4)).measure(point)
        )
    except ProbeError as error:
        remedy = f"; next: {error.remedy}" if error.remedy else ""
        module.fail_json(msg=f"{error}{remedy}")
    except (KeysError, ValueError) as error:
        module.fail_json(msg=str(error))
    else:
        module.exit_json(changed=False, url=client.url, point=measured)


def _file(module: AnsibleModule, path: str | None, name: str) -> str | None:
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except OSError as error:
        module.fail_json(msg=f"{name}: {path} cannot be read: {error.strerror}")
    except UnicodeDecodeError:
        module.fail_json(msg=f"{name}: {path} is no text")
    return None


if __name__ == "__main__":
    main()
