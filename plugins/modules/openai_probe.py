# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: openai_probe
short_description: Check that an OpenAI-compatible endpoint really works
version_added: 0.1.0
description:
  - Sends real requests to an endpoint and judges the answers. It works against any server with
    OpenAI's chat completions, behind an entry of this collection or not.
  - A check that fails does not fail the module. Each has a verdict, and V(passed) is only said of
    what was done. Where nothing serves, the other checks are V(skipped).
  - Every request has a deadline, whatever the server does. The key goes from the file into a header
    and nowhere else.
  - Changes nothing. Uses the host it runs on as the client and needs nothing but Python there.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
attributes:
  check_mode:
    description:
      - Can run in C(check_mode) and return changed status prediction without modifying target.
    support: full
  diff_mode:
    description: Will return details on what has changed when in diff mode.
    support: none
options:
  url:
    description: The root of the server, as in V(http://spark1:8000). A final C(/v1) may be given.
    type: str
    required: true
  key_file:
    description:
      - A file on the host that the module runs on, with lines of the form C(name:key), or with
        nothing but a key. Without it no key is sent.
    type: path
  key_name:
    description: Which key of O(key_file) to send. The default is the first.
    type: str
    default: ""
  open:
    description: Whether the endpoint is meant to answer without a key. The result shows it.
    type: bool
    default: false
  model:
    description: The name of the model to ask. The default is the first that the server lists.
    type: str
    default: ""
  checks:
    description:
      - What to check. V(serves), a completion of one token within O(canary_timeout), always comes
        first.
      - "Of the launch recipe: V(load), the time until it served; V(chat), a plain question answered
        and stopped by itself; V(reasoning), apart from the answer, which is right; V(tools), a tool
        called with the right arguments and its result used; V(context), a code recalled from a
        prompt that fills O(needle_share) of the window; V(speed), tokens per second while
        decoding, as the server counts them."
      - "Further: V(vision), a picture; V(structured), a JSON schema kept; V(streaming), framing and
        usage; V(concurrency), answers to several requests at once that do not mix; V(auth), refusal
        without a key and with wrong ones; V(closed), administrative endpoints out of reach."
    type: list
    elements: str
    choices:
      [serves, load, chat, reasoning, tools, context, speed, vision, structured, streaming,
       concurrency, auth, closed]
    default:
      [load, chat, reasoning, tools, context, speed, vision, structured, streaming, concurrency,
       auth, closed]
  thinking:
    description:
      - Whether the model understands and thinks. If not, as with random weights, or if the server
        lists its model as a stand-in, checks that need understanding are V(not_applicable).
    type: bool
    default: true
  thinking_on:
    description:
      - Fields of a request that ask for thinking. A server that refuses them is asked without.
    type: dict
    default: {chat_template_kwargs: {thinking: true, enable_thinking: true}}
  thinking_off:
    description: Fields of a request that ask for an answer without thinking.
    type: dict
    default: {chat_template_kwargs: {thinking: false, enable_thinking: false}}
  window:
    description:
      - The context window in tokens, where the server does not tell it in its list of models.
    type: int
    default: 0
  wait:
    description: How many seconds to wait for a server that does not serve yet.
    type: float
    default: 0
  load_seconds:
    description: How long loading took, from whoever started the engine.
    type: float
  load_limit:
    description: How many seconds loading may take.
    type: float
    default: 3600
  canary_timeout:
    description: How many seconds an answer of one token may take.
    type: float
    default: 30
  request_timeout:
    description: How many seconds any other answer may take.
    type: float
    default: 120
  needle_timeout:
    description: How many seconds the answer to the long prompt may take.
    type: float
    default: 1800
  needle_share:
    description: Which share of the context window the long prompt fills.
    type: float
    default: 0.85
  decode_min:
    description: How many tokens per second decoding has to reach.
    type: float
    default: 15
  decode_tokens:
    description: How many tokens each of the three measurements of speed asks for.
    type: int
    default: 256
  concurrency:
    description: How many requests are sent at once.
    type: int
    default: 4
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
- name: See whether the endpoint works
  sparkfleet.cluster.openai_probe:
    url: http://127.0.0.1:8000
    key_file: /etc/sparkfleet/keys
  become: true
  register: probe

- name: Only what a deployment of random weights can show, on a server without this collection
  sparkfleet.cluster.openai_probe:
    url: https://llm.example.com/v1
    key_file: ~/.config/llm-key
    checks: [streaming, concurrency, auth]
    thinking: false
  delegate_to: localhost
"""

RETURN = r"""
url:
  description: The endpoint.
  returned: always
  type: str
  sample: http://127.0.0.1:8000
model:
  description: The model that was asked.
  returned: always
  type: str
  sample: deepseek-v4.1-flash
stand_in:
  description: Whether the server says of its model that it only stands in for one.
  returned: always
  type: bool
  sample: false
open:
  description: Whether it was checked without a key by decision.
  returned: always
  type: bool
  sample: false
passed:
  description: Whether no check failed.
  returned: always
  type: bool
  sample: true
checks:
  description: What came out, V(serves) first.
  returned: always
  type: list
  elements: dict
  contains:
    name:
      description: The name of the check.
      type: str
      sample: reasoning
    verdict:
      description: V(passed), V(failed), V(not_applicable) or V(skipped).
      type: str
      sample: passed
    detail:
      description: What was found, and where it failed what was expected.
      type: str
      sample: thought in reasoning_content, answered 391 in content
    cause:
      description:
        - A stable name for the kind of failure, empty otherwise.
        - "Of the connection: V(refused), V(no-address), V(no-answer), V(cut), V(truncated),
          V(endless), V(no-http), V(no-tls), V(certificate), V(redirect)."
        - "Of the answer: V(key-refused), V(rejected), V(server-error), V(not-openai),
          V(error-event), V(empty-choices), V(malformed-stream), V(no-usage), V(no-text),
          V(no-model), V(other-model), V(group-dead)."
        - "Of what was asked: V(did-not-stop), V(wrong-answer), V(no-reasoning), V(thinking-leaked),
          V(budget), V(no-tool-call), V(wrong-tool-call), V(markup-leaked), V(result-unused),
          V(code-forgotten), V(prompt-cut), V(no-window), V(slow), V(slow-load), V(too-short),
          V(no-images), V(schema-ignored), V(mixed-answers), V(open), V(reachable), V(key-told)."
      type: str
      sample: ""
    remedy:
      description: What to do next, where that is known.
      type: str
      sample: ""
    figures:
      description:
        - What was measured. V(null) where the server does not tell what is needed.
        - Times are seconds. Rates are tokens per second, by tokens as the server counts them.
      type: dict
      sample: {ttft_seconds: 0.31, decode_tokens_per_second: 87.7, runs: 3}
    seconds:
      description: How long the check took.
      type: float
      sample: 2.41
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._entry_keys import KeysError, pick
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_checks import (
    CHECKS,
    Probe,
    Settings,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._openai_http import Client

_TEMPLATE = "chat_template_kwargs"


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "key_file": {"type": "path", "no_log": False},
            "key_name": {"type": "str", "default": "", "no_log": False},
            "open": {"type": "bool", "default": False},
            "model": {"type": "str", "default": ""},
            "checks": {
                "type": "list",
                "elements": "str",
                "choices": list(CHECKS),
                "default": [name for name in CHECKS if name != "serves"],
            },
            "thinking": {"type": "bool", "default": True},
            "thinking_on": {
                "type": "dict",
                "default": {_TEMPLATE: {"thinking": True, "enable_thinking": True}},
            },
            "thinking_off": {
                "type": "dict",
                "default": {_TEMPLATE: {"thinking": False, "enable_thinking": False}},
            },
            "window": {"type": "int", "default": 0},
            "wait": {"type": "float", "default": 0},
            "load_seconds": {"type": "float"},
            "load_limit": {"type": "float", "default": 3600},
            "canary_timeout": {"type": "float", "default": 30},
            "request_timeout": {"type": "float", "default": 120},
            "needle_timeout": {"type": "float", "default": 1800},
            "needle_share": {"type": "float", "default": 0.85},
            "decode_min": {"type": "float", "default": 15},
            "decode_tokens": {"type": "int", "default": 256, "no_log": False},
            "concurrency": {"type": "int", "default": 4},
            "validate_certs": {"type": "bool", "default": True},
            "ca_file": {"type": "path"},
        },
        supports_check_mode=True,
    )
    given = dict(module.params)
    url, trust = given.pop("url"), {name: given.pop(name) for name in ("validate_certs", "ca_file")}
    key = _key(module, given.pop("key_file"), given.pop("key_name"))
    for name in ("canary_timeout", "request_timeout", "needle_timeout", "concurrency"):
        if given[name] <= 0:
            module.fail_json(msg=f"{name} is {given[name]:g}, expected more than 0")
    if not 0 < given["needle_share"] <= 1:
        module.fail_json(msg=f"needle_share is {given['needle_share']:g}, expected 0 to 1")
    try:
        probe = Probe(lambda one: Client(url, one, **trust), key, Settings(**given))
    except ValueError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **probe.run())


def _key(module: AnsibleModule, path: str | None, name: str) -> str | None:
    if not path:
        return None
    try:
        with open(path, encoding="utf-8") as stream:
            text = stream.read()
        return pick(text, name, path)
    except OSError as error:
        module.fail_json(
            msg=f"the key file {path} cannot be read: {error.strerror}. "
            "It is for root alone where the role entry made it; set become to true"
        )
    except UnicodeDecodeError:
        module.fail_json(msg=f"the key file {path} is no text")
    except KeysError as error:
        module.fail_json(msg=str(error))
    return None


if __name__ == "__main__":
    main()
