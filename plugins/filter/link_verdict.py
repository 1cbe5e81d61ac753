# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: link_verdict
short_description: Judge what was tried on the links of a cell
version_added: 0.1.0
description:
  - Puts together the results of M(sparkfleet.cluster.fabric_ping_info) and
    M(sparkfleet.cluster.fabric_rdma_test) of all hosts, and says which links are right, and what is
    wrong with the others.
  - A link is right when a full frame passes on each twin in each direction and only the right
    function claims the address, when every program of the measurement ended well, the RoCE MTU is
    the largest the netdevs allow, the bandwidth of each twin alone and of all together is up to the
    gate in both directions, and no PCIe link is narrower or slower than it should be.
  - A link that was not measured is never right.
author:
  - The sparkfleet.cluster contributors (@sparkfleet)
positional: _input
options:
  _input:
    description: The result of P(sparkfleet.cluster.link_schedule#filter).
    type: dict
    required: true
  pings:
    description: The results of M(sparkfleet.cluster.fabric_ping_info), by host name.
    type: dict
    required: true
  rdma:
    description:
      - The results of M(sparkfleet.cluster.fabric_rdma_test) of all rounds and stages, as one list
        for each host name. Of several for one link and stage the last one counts.
      - None where measuring was not asked for.
    type: dict
  cables:
    description:
      - The result of P(sparkfleet.cluster.link_cables#filter). With it is known which MAC address
        has to claim which IP address.
    type: dict
  twin_gbps:
    description:
      - What each twin has to reach, in Gb/s. A healthy one gives 105 to 112 with a RoCE MTU of
        4096.
    type: float
    default: 92
  both_gbps:
    description: What all twins together have to reach, in Gb/s. Healthy ones give 185 to 198.
    type: float
    default: 175
  latency_us:
    description:
      - What the typical latency of a write may be, in microseconds. A direct cable gives 1.5 to
        1.6, a switch 2.4 to 2.6. V(0) allows any.
    type: float
    default: 0
"""

EXAMPLES = r"""
---
- name: Show what is wrong with the links
  ansible.builtin.debug:
    msg: "{{ verdict.text.splitlines() }}"
  vars:
    verdict: "{{ schedule | sparkfleet.cluster.link_verdict(pings, rdma, cables=cables) }}"
"""

RETURN = r"""
_value:
  description: The verdict.
  type: dict
  contains:
    ok:
      description: Whether every link is right.
      type: bool
    passed:
      description: The numbers of the links that are right.
      type: list
      elements: int
    failed:
      description: The numbers of the links that are not.
      type: list
      elements: int
    not_measured:
      description:
        - The numbers of the links of which nothing bad is known, but which were not measured.
      type: list
      elements: int
    unfinished:
      description:
        - The numbers of the links on which a program of the measurement ended without a result, so
          that measuring once more may help.
      type: list
      elements: int
    links:
      description:
        - Each link with C(link), C(ends), C(hosts), C(verdict) (C(ok), C(failed) or C(not
          measured)), its bandwidth in Gb/s C(there) (from the first end to the second), C(back),
          and the lower of both as C(gbps), the higher C(latency_us) of its twins, its C(problems),
          and C(twins) with C(domain), C(ping) and C(rping) (both
          for C(there) and C(back)), C(latency_us), C(roce_mtu), C(there)
          and C(back).
      type: list
      elements: dict
    matrix:
      description:
        - For each host the hosts it has a link to, with C(gbps) on the way there, C(latency_us) and
          C(verdict).
      type: dict
    measured:
      description:
        - The links that were measured, with C(ends), C(gbps) and C(ok), as pictures take them.
      type: list
      elements: dict
    problems:
      description: Everything that was noticed, link by link.
      type: list
      elements: dict
      contains:
        link:
          description: The number of the link.
          type: int
        ends:
          description: Its two ends.
          type: list
          elements: str
        code:
          description:
            - C(ping), C(no-ping-result), C(wrong-port), C(not-measured),
              C(measurement-lost), C(not-asked), C(no-result), C(rping), C(perftest),
              C(perftest-together), C(repeated), C(roce-mtu), C(throttled), C(pcie-link),
              C(half-rate), C(one-twin-only), C(below-gate), C(asymmetric), C(latency) or
              C(lost-packets).
          type: str
        severity:
          description:
            - C(failure), C(warning) for C(asymmetric), C(lost-packets) and C(repeated), which
              fail no link, or C(unknown) for C(not-measured), C(not-asked) and C(no-result).
          type: str
        host:
          description: The host it is about, null where it is about both.
          type: str
        message:
          description: What was found, what it means, and what to do.
          type: str
    failures:
      description: What makes links fail, as sentences.
      type: list
      elements: str
    gate:
      description: What was demanded.
      type: dict
    text:
      description: All of it as a table for people, in lines of at most 110 characters.
      type: str
"""

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_verdict import Gate
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_verdict import (
    link_verdict as verdict,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain


def link_verdict(
    schedule: Any, pings: Any, rdma: Any = None, cables: Any = None, **gate: Any
) -> dict[str, Any]:
    schedule, pings, rdma, cables = (plain(value) for value in (schedule, pings, rdma, cables))
    if not (isinstance(schedule, Mapping) and {"links", "pings"} <= set(schedule)):
        raise AnsibleTemplatePluginError(
            "link_verdict: the schedule is not what link_schedule returns"
        )
    for name, value in (("pings", pings), ("rdma", rdma or {}), ("cables", cables or {})):
        if not isinstance(value, Mapping):
            raise AnsibleTemplatePluginError(f"link_verdict: {name} is no mapping of host names")
    try:
        wanted = Gate(**{name: float(value) for name, value in gate.items()})
    except (TypeError, ValueError) as error:
        raise AnsibleTemplatePluginError(f"link_verdict: {error}") from error
    return verdict(schedule, pings, rdma, gate=wanted, cables=cables or None)


class FilterModule:
    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"link_verdict": link_verdict}
