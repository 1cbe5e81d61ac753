# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: fabric_ping_info
short_description: Try full unfragmented frames from the fabric ports of a node
version_added: 0.1.0
description:
  - Sends pings that must not be fragmented, as large as the MTU allows, from given ports to given
    addresses, all at the same time, and asks by ARP who claims each address.
  - Where small packets pass and large ones are lost, it looks for the size that passes and so tells
    the MTU to look for.
  - P(sparkfleet.cluster.link_schedule#filter) makes the list of a host from the plan, and
    P(sparkfleet.cluster.link_verdict#filter) judges the results of all hosts.
  - Never fails for what is wrong with a link. To ask by ARP needs root.
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
  checks:
    description: What to try.
    type: list
    elements: dict
    required: true
    suboptions:
      netdev:
        description: The network interface to send from. A ping does not leave through another one.
        type: str
        required: true
      source:
        description: The IPv4 address of the interface.
        type: str
        required: true
      destination:
        description: The IPv4 address of the port at the other end.
        type: str
        required: true
      mtu:
        description: The size of a full packet in bytes. The payload of the ping is 28 bytes less.
        type: int
        default: 9000
  deadline:
    description: Seconds after which a check that is not done yet counts as failed.
    type: float
    default: 30
"""

EXAMPLES = r"""
---
- name: Try both twins of the cable to spark2
  sparkfleet.cluster.fabric_ping_info:
    checks:
      - netdev: enp1s0f0np0
        source: 10.20.0.11
        destination: 10.20.0.12
      - netdev: enP2p1s0f0np0
        source: 10.20.1.11
        destination: 10.20.1.12
  become: true
  register: pings
"""

RETURN = r"""
checks:
  description: The checks in their order, with what came of them.
  returned: always
  type: list
  elements: dict
  contains:
    netdev:
      description: As given.
      type: str
    source:
      description: As given.
      type: str
    destination:
      description: As given.
      type: str
    mtu:
      description: As given.
      type: int
    ok:
      description: Whether full frames pass in both directions and one MAC claims the address.
      type: bool
    code:
      description:
        - What is wrong, C(no-ping), C(no-port), C(port-down), C(no-address), C(no-route),
          C(local-mtu), C(narrow-path), C(no-arp), C(no-answer), C(loss), C(arp-flux),
          C(ping-failed) or C(no-result). Null when all is well.
      type: str
    message:
      description: What was found, what it means, and what to do. Null when all is well.
      type: str
    rtt_ms:
      description: The mean time for a full packet there and back, in milliseconds.
      type: float
    found_mtu:
      description:
        - The largest packet that passes, in bytes. Null where not even a small one does.
      type: int
    claims:
      description:
        - Every MAC address that claims the destination by ARP. Null where it could not be asked.
      type: list
      elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    Missing,
    ask_all,
    run_command,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_frames import who_has
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_ping import check_path
from ansible_collections.sparkfleet.cluster.plugins.module_utils._tree import Tree


def claims(netdev: str, source: str, destination: str) -> list[str] | None:
    try:
        return who_has(netdev, source, destination)
    except OSError:
        return None


def outcome(check: dict[str, Any], answer: Any) -> dict[str, Any]:
    if not isinstance(answer, Missing):
        found: dict[str, Any] = answer
        return found
    return {
        **check,
        "ok": False,
        "code": "no-result",
        "message": f"the check of {check['destination']} through {check['netdev']} gave {answer}.",
        "rtt_ms": None,
        "found_mtu": None,
        "claims": None,
    }


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "checks": {
                "type": "list",
                "elements": "dict",
                "required": True,
                "options": {
                    "netdev": {"type": "str", "required": True},
                    "source": {"type": "str", "required": True},
                    "destination": {"type": "str", "required": True},
                    "mtu": {"type": "int", "default": 9000},
                },
            },
            "deadline": {"type": "float", "default": 30.0},
        },
        supports_check_mode=True,
    )
    checks = module.params["checks"]

    def question(check: dict[str, Any]) -> Any:
        return lambda: check_path(
            check,
            tree=Tree(),
            command=lambda argv: run_command(argv, timeout=10),
            who_has=claims,
        )

    answers = ask_all(
        {str(number): question(check) for number, check in enumerate(checks)},
        deadline=module.params["deadline"],
    )
    module.exit_json(
        changed=False,
        checks=[outcome(check, answers[str(number)]) for number, check in enumerate(checks)],
    )


if __name__ == "__main__":
    main()
