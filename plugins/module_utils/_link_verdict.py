# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Judge what was tried on the links of a cell: which of them is right, and what is wrong where.

Link up, 200 Gb/s and no errors prove little: a NIC with throttled firmware, a twin on two PCIe
lanes and a RoCE MTU of 1024 look exactly like that. The numbers tell them apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_table import render

# Every problem there is: what was found, what it means, and what to do.
PROBLEMS = {
    "ping": "{host}: {message}",
    "no-ping-result": (
        "{host} did not try {destination} through {netdev}; make it reachable, and run without "
        "--limit."
    ),
    "wrong-port": (
        "{destination}, which {host} reaches through {netdev}, is claimed by {claims}, but "
        "{peer_netdev} of {peer} is {mac}: RDMA would go to the wrong function. Set "
        "net.ipv4.conf.all.arp_ignore=1 and net.ipv4.conf.all.arp_announce=2 on {peer}."
    ),
    "not-measured": "not measured: {why}.",
    "measurement-lost": "{host} lost a measurement: {why}. Again: -e roce_fabric_state=checked.",
    "not-asked": "not measured in this run; -e roce_fabric_measure=always asks for it.",
    "no-result": "no measurement is known; make the host reachable, and run without --limit.",
    "rping": (
        "rping {way} over twin {domain}: {error}. Does a firewall drop it (ufw status), or does "
        "the wrong twin answer ARP (arp_ignore, arp_announce)?"
    ),
    "perftest": "{kind} {way} over twin {domain}: {error}.{hint}",
    "perftest-together": "bandwidth {way} over all twins together: {error}.{hint}",
    "repeated": (
        "{kind} {way} {over} failed at first and passed when tried again: {error}. Seen often, a "
        "cable or a NIC loses packets: compare the error counters of both ends."
    ),
    "roce-mtu": (
        "twin {domain} runs at a RoCE MTU of {mtu}, expected {wanted}; it follows from the lower "
        "MTU of the two netdevs, and 1500 gives 1024: ip link set DEV mtu {netdev_mtu}, at both "
        "ends, and in netplan."
    ),
    "throttled": (
        "{gbps} Gb/s {way} over twin {domain}{clean}: the NIC is throttled or wedged. "
        "Reboot both hosts with the cable seated; if that does not help, shut both down, pull "
        "power and cable for a minute, then start them."
    ),
    "pcie-link": (
        "{hca} of {host} has a PCIe link of x{width} at {speed:g} GT/s, expected x4 at 32: "
        "fwupdmgr update, then power the host off and on."
    ),
    "half-rate": (
        "{gbps} Gb/s {way} over twin {domain}, about half of what a twin gives; compare the PCIe "
        "links at both ends: lspci -vv -d 15b3: | grep LnkSta."
    ),
    "one-twin-only": (
        "{gbps} Gb/s {way} over all twins together, no more than over one alone: they share a "
        "function or a PCIe link. Compare the claims of the ping checks, and lspci -vv -d 15b3:."
    ),
    "below-gate": "{gbps} Gb/s {way} over {what}, expected {gate:g} or more.",
    "asymmetric": (
        "{gbps} Gb/s {way} over {what}, but {other} the other way; compare MTU, PCIe links and "
        "load at both ends."
    ),
    "latency": "{latency} us over twin {domain}, expected {gate:g} or less.",
    "lost-packets": (
        "{hca} of {host} lost or repeated packets meanwhile ({counters}); seat the cable anew, and "
        "through a switch check flow control and MTU."
    ),
}
# These do not make a link fail.
WARNINGS = ("asymmetric", "lost-packets", "repeated")
_UNKNOWN = ("not-measured", "not-asked", "no-result")
_UNFINISHED = ("rping", "perftest", "perftest-together")  # where measuring again may help

# What a message of a program means on this fabric.
_HINTS = {
    "status 12": " The packets do not arrive: see the ping checks, or a firewall drops them.",
    "errno 61": " The slot of the GID table is empty: run roce_gid_info again.",
    "No data available": " The slot of the GID table is empty: run roce_gid_info again.",
    "did not answer": " Something drops packets: a firewall, or the wrong twin answers ARP.",
    "not one message": " Something drops packets: a firewall, or the wrong twin answers ARP.",
}

_ROCE_MTUS = (4096, 2048, 1024, 512, 256)
_ROCE_HEADERS = 58  # of IPv4, UDP, transport and checksum, at most
_PCIE_WIDTH, _PCIE_SPEED = 4, 32.0
_THROTTLED = (12.5, 14.0)  # Gb/s; 13.0 to 13.4 were seen
_HALF = (0.4, 0.6)  # of the gate of a twin, and more: of what a twin gives
_TWIN_GBPS = 105.0  # at a RoCE MTU of 4096
_NO_MORE = 1.15  # times one twin
_UNEVEN = 1.2  # times the other direction


@dataclass(frozen=True)
class Gate:
    """What a link has to reach. Zero demands nothing."""

    twin_gbps: float = 92.0
    both_gbps: float = 175.0
    latency_us: float = 0.0


Results = Mapping[str, Sequence[Mapping[str, Any]]]


def link_verdict(
    schedule: Mapping[str, Any],
    pings: Mapping[str, Mapping[str, Any]],
    rdma: Results | None,
    *,
    gate: Gate,
    cables: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Judge every link of a schedule; the filter documents options and result."""
    macs = {
        (host, port["netdev"]): str(port["mac"])
        for host, found in (cables or {"hosts": {}})["hosts"].items()
        for port in found["ports"]
        if port["mac"]
    }
    links = [_Link(link, pings, rdma, macs, gate).result() for link in schedule["links"]]
    hosts = list(schedule["pings"])
    numbers = {
        verdict: [link["link"] for link in links if link["verdict"] == verdict]
        for verdict in ("ok", "failed", "not measured")
    }
    judged = {
        "ok": bool(links) and len(numbers["ok"]) == len(links),
        "passed": numbers["ok"],
        "failed": numbers["failed"],
        "not_measured": numbers["not measured"],
        "unfinished": [
            link["link"]
            for link in links
            if any(problem["code"] in _UNFINISHED for problem in link["problems"])
        ],
        "links": links,
        "matrix": _matrix(links, hosts),
        "measured": [
            {"ends": link["ends"], "gbps": link["gbps"], "ok": link["verdict"] == "ok"}
            for link in links
            if link["gbps"] is not None
        ],
        "problems": [
            {"link": link["link"], "ends": link["ends"], **problem}
            for link in links
            for problem in link["problems"]
        ],
        "failures": _failures(links),
        "gate": asdict(gate),
    }
    return {**judged, "text": render(judged)}


def _failures(links: Iterable[Mapping[str, Any]]) -> list[str]:
    """What makes links fail, as sentences that begin with the link; each once."""
    told = [
        f"{' - '.join(link['ends'])}: {problem['message']}"
        for link in links
        for problem in link["problems"]
        if problem["severity"] == "failure"
    ]
    return list(dict.fromkeys(told))


def _matrix(links: Iterable[Mapping[str, Any]], hosts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """For each host the hosts it has a link to, and what was measured on the way there."""
    matrix: dict[str, dict[str, Any]] = {host: {} for host in hosts}
    for link in links:
        one, two = link["hosts"]
        for here, there, way in ((one, two, "there"), (two, one, "back")):
            matrix[here][there] = {
                "gbps": link[way],
                "latency_us": link["latency_us"],
                "verdict": link["verdict"],
            }
    return matrix


class _Link:
    """One link. `there` is from its first host to its second, `back` the other way."""

    def __init__(
        self,
        link: Mapping[str, Any],
        pings: Mapping[str, Mapping[str, Any]],
        rdma: Results | None,
        macs: Mapping[tuple[str, str], str],
        gate: Gate,
    ) -> None:
        self._link = link
        self._pings = pings
        self._macs = macs
        self._gate = gate
        self._asked = rdma is not None
        first, second = link["hosts"]
        self._directions = {"there": (first, second), "back": (second, first)}
        self._ways = {way: f"from {one} to {two}" for way, (one, two) in self._directions.items()}
        self._clients, self._servers = (
            {host: self._find(rdma or {}, host, stages) for host in link["hosts"]}
            for stages in (("measure",), ("serve", "collect"))
        )
        self._earlier = {
            host: self._all(rdma or {}, host, ("measure",))[:-1] for host in link["hosts"]
        }
        self._problems: list[dict[str, Any]] = []
        self._twins = [self._twin(place) for place in range(len(link["twins"]))]

    def _find(self, rdma: Results, host: str, stages: Sequence[str]) -> Mapping[str, Any]:
        """The last result of a host for this link."""
        found = self._all(rdma, host, stages)
        return found[-1] if found else {}

    def _all(self, rdma: Results, host: str, stages: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        """Every result of a host for this link, the oldest first.

        A host without RDMA says so once, for all its links.
        """
        return [
            result
            for result in rdma.get(host, ())
            if (result.get("link") == self._link["link"] and result.get("stage") in stages)
            or result.get("usable") is False
        ]

    def _measured(self, way: str, place: int) -> Mapping[str, Any]:
        """What the host that sends measured of one twin; empty where it did not."""
        twins = self._clients[self._directions[way][0]].get("twins")
        return twins[place] if twins else {}

    def _twin(self, place: int) -> dict[str, Any]:
        """What was measured of one twin; null where nothing was."""
        told = {way: self._measured(way, place) for way in self._ways}
        parts = [
            each.get(kind) or {} for each in told.values() for kind in ("latency", "bandwidth")
        ]
        rpings = {way: (each.get("rping") or {}).get("ok") for way, each in told.items()}
        rates = {way: (each.get("bandwidth") or {}).get("gbps") for way, each in told.items()}
        return {
            "domain": self._link["twins"][place]["domain"],
            "ping": {},
            "rping": rpings,
            "latency_us": max(_known(part.get("typical_us") for part in parts), default=None),
            "roce_mtu": min(_known(part.get("mtu") for part in parts), default=None),
            **rates,
        }

    def _totals(self) -> dict[str, Any]:
        """The bandwidth of the whole link in each direction."""
        if len(self._twins) == 1:
            return {way: self._twins[0][way] for way in self._ways}
        return {way: self._together(way).get("gbps") for way in self._ways}

    def _together(self, way: str) -> Mapping[str, Any]:
        return self._clients[self._directions[way][0]].get("together") or {}

    def result(self) -> dict[str, Any]:
        for place, twin in enumerate(self._twins):
            twin["ping"] = {"there": self._ping(place, 0), "back": self._ping(place, 1)}
        if self._was_measured():
            self._check_programs()
            self._check_earlier()
            self._check_pcie()
            for twin in self._twins:
                self._check_twin(twin)
            self._check_together()
            self._check_latency()
            self._check_counters()
        codes = {problem["code"] for problem in self._problems}
        failed = codes.difference(WARNINGS, _UNKNOWN)
        total = self._totals()
        rates = _known(total.values())
        return {
            "link": self._link["link"],
            "ends": list(self._link["ends"]),
            "hosts": list(self._link["hosts"]),
            "verdict": "failed" if failed else "not measured" if codes & set(_UNKNOWN) else "ok",
            **total,
            "gbps": min(rates) if len(rates) == len(total) else None,
            "latency_us": max(_known(twin["latency_us"] for twin in self._twins), default=None),
            "twins": self._twins,
            "problems": self._problems,
        }

    def _say(self, code: str, **words: Any) -> None:
        severity = "warning" if code in WARNINGS else "unknown" if code in _UNKNOWN else "failure"
        message = PROBLEMS[code].format(**words)
        self._problems.append(
            {"code": code, "severity": severity, "host": words.get("host"), "message": message}
        )

    # --- ping ---------------------------------------------------------------------------------

    def _ping(self, place: int, here: int) -> bool:
        """Whether one direction of one twin passes, to the right function."""
        own, peer = (self._link["twins"][place]["ports"][end] for end in (here, 1 - here))
        words = {"host": own["host"], "netdev": own["netdev"], "destination": peer["address"]}
        checks = [
            check
            for check in self._pings.get(own["host"], {}).get("checks") or ()
            if (check["netdev"], check["destination"]) == (own["netdev"], peer["address"])
        ]
        if not checks:
            self._say("no-ping-result", **words)
            return False
        if not checks[0]["ok"]:
            self._say("ping", host=own["host"], message=checks[0]["message"])
            return False
        mac, claims = self._macs.get((peer["host"], peer["netdev"])), checks[0]["claims"]
        if mac and claims and mac not in claims:
            named = {"peer": peer["host"], "peer_netdev": peer["netdev"], "mac": mac}
            self._say("wrong-port", claims=" and ".join(claims), **named, **words)
            return False
        return True

    # --- RDMA ---------------------------------------------------------------------------------

    def _was_measured(self) -> bool:
        results = [
            (host, each[host])
            for host in self._link["hosts"]
            for each in (self._clients, self._servers)
        ]
        for host in self._link["hosts"]:
            told = [result for its_host, result in results if its_host == host]
            without = next((r for r in told if r and not r["measured"]), None)
            if without:
                code = "measurement-lost" if without.get("lost") else "not-measured"
                self._say(code, host=host, why=without["why"])
            elif not all(told):
                self._say("no-result" if self._asked else "not-asked", host=host)
        return all(result.get("measured") for _host, result in results)

    def _check_programs(self) -> None:
        """Programs that failed; what was not tried because of them needs no words."""
        for way, text in self._ways.items():
            for place, twin in enumerate(self._twins):
                words = {"way": text, "domain": twin["domain"]}
                for kind in ("rping", "latency", "bandwidth"):
                    failure = self._failure(self._measured(way, place)[kind], way, kind, place)
                    if failure:
                        code = "rping" if kind == "rping" else "perftest"
                        self._say(code, kind=kind, **failure, **words)
            failure = self._failure(self._together(way), way, "bandwidth", None)
            if failure:
                self._say("perftest-together", way=text, **failure)

    def _check_earlier(self) -> None:
        """What went wrong before this link was measured again; its result stands."""
        for way, text in self._ways.items():
            for result in self._earlier[self._directions[way][0]]:
                tried = [
                    (f"over twin {twin['domain']}", kind, twin[kind])
                    for twin in result.get("twins") or ()
                    for kind in ("rping", "latency", "bandwidth")
                ]
                together = ("over all twins together", "bandwidth", result.get("together") or {})
                for over, kind, told in (*tried, together):
                    error = told.get("error") or "not tried"
                    if not told.get("ok") and not error.startswith("not tried"):
                        self._say("repeated", kind=kind, way=text, over=over, error=error)

    def _failure(
        self, told: Mapping[str, Any], way: str, kind: str, place: int | None
    ) -> dict[str, str]:
        """What both ends said of a program that failed; empty where it did not."""
        if not told or told["ok"] or told["error"].startswith("not tried"):
            return {}
        server = self._directions[way][1]
        served = [
            f" ({server}: {failed['error']})"
            for failed in self._servers[server].get("servers") or ()
            if failed["kind"] == kind
            and failed["together"] == (place is None)
            and failed["twin"] == (place or 0)
        ]
        error = told["error"] + "".join(served)
        return {"error": error, "hint": _hint(error)}

    def _hcas(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """The HCAs at both ends, each as its host sent and as it received."""
        for each in (self._clients, self._servers):
            for host, result in each.items():
                for hca in result.get("hcas") or ():
                    yield host, hca

    def _narrow(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """HCAs whose PCIe link is not what it should be, as far as it is known."""
        found: dict[tuple[str, str], Mapping[str, Any]] = {}
        for host, hca in self._hcas():
            width, speed = hca["pcie_width"], hca["pcie_speed"]
            if width and speed and (width < _PCIE_WIDTH or speed < _PCIE_SPEED):
                found[host, hca["name"]] = hca
        return found

    def _check_pcie(self) -> None:
        for (host, name), hca in self._narrow().items():
            words = {"width": hca["pcie_width"], "speed": hca["pcie_speed"]}
            self._say("pcie-link", host=host, hca=name, **words)

    def _check_twin(self, twin: Mapping[str, Any]) -> None:
        domain = twin["domain"]
        mtu, wanted = twin["roce_mtu"], _roce_mtu(self._link["mtu"])
        if mtu is not None and mtu < wanted:
            words = {"mtu": mtu, "wanted": wanted, "netdev_mtu": self._link["mtu"]}
            self._say("roce-mtu", domain=domain, **words)
        gate = self._gate.twin_gbps
        low: dict[str, list[str]] = {}
        for way in self._ways:
            if twin[way] is not None and twin[way] < gate:
                low.setdefault(self._why_low(twin[way]), []).append(way)
        for code, ways in low.items():
            if code != "pcie-link":  # which is told of the function itself
                words = {"domain": domain, "what": f"twin {domain}", "gate": gate}
                self._say(code, clean=self._cleanly(), **self._rates(twin, ways), **words)
        if not low.keys() - {"below-gate"}:
            self._check_even(twin, f"twin {domain}")

    def _why_low(self, rate: float) -> str:
        """The code of what is wrong with a twin whose bandwidth is below the gate."""
        gate = self._gate.twin_gbps
        if gate > _THROTTLED[1] and _between(rate, _THROTTLED):
            return "throttled"
        if gate > _TWIN_GBPS * _HALF[1] and _between(rate / _TWIN_GBPS, _HALF):
            return "pcie-link" if self._narrow() else "half-rate"
        return "below-gate"

    def _rates(self, measured: Mapping[str, Any], ways: Sequence[str]) -> dict[str, Any]:
        """How bandwidth in one direction or in both is told."""
        return {
            "gbps": " and ".join(f"{measured[way]:g}" for way in ways),
            "way": self._ways[ways[0]] if len(ways) == 1 else f"{self._ways['there']} and back",
        }

    def _check_together(self) -> None:
        if len(self._twins) == 1:
            return
        gate, total = self._gate.both_gbps, self._totals()
        low: dict[str, list[str]] = {}
        for way, rate in total.items():
            singles = [twin[way] for twin in self._twins if twin[way] is not None]
            # Where a twin alone is too slow already, that is told.
            if rate is not None and rate < gate and singles:
                if min(singles) < self._gate.twin_gbps:
                    return
                code = "one-twin-only" if rate <= _NO_MORE * max(singles) else "below-gate"
                low.setdefault(code, []).append(way)
        for code, ways in low.items():
            self._say(code, what="all twins together", gate=gate, **self._rates(total, ways))
        if "one-twin-only" not in low:
            self._check_even(total, "all twins together")

    def _check_even(self, measured: Mapping[str, Any], what: str) -> None:
        slow, fast = sorted(self._ways, key=lambda way: measured[way] or 0)
        if measured[slow] and measured[fast] / measured[slow] > _UNEVEN:
            other = f"{measured[fast]:g}"
            self._say("asymmetric", what=what, other=other, **self._rates(measured, [slow]))

    def _check_latency(self) -> None:
        worst = max(self._twins, key=lambda twin: float(twin["latency_us"] or 0))
        gate = self._gate.latency_us
        if worst["latency_us"] and 0 < gate < worst["latency_us"]:
            words = {"latency": worst["latency_us"], "domain": worst["domain"]}
            self._say("latency", gate=gate, **words)

    def _check_counters(self) -> None:
        lost: dict[tuple[str, str], Counter[str]] = {}
        for host, hca in self._hcas():
            lost.setdefault((host, hca["name"]), Counter()).update(hca["errors"] or {})
        for (host, name), counted in lost.items():
            counters = ", ".join(f"{counter} {count}" for counter, count in counted.items())
            if counters:
                self._say("lost-packets", host=host, hca=name, counters=counters)

    def _cleanly(self) -> str:
        """That no packets were lost, where it is known of every HCA."""
        errors = [hca["errors"] for _host, hca in self._hcas()]
        return " without a lost packet" if errors and all(e == {} for e in errors) else ""


def _known(values: Iterable[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def _between(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def _roce_mtu(mtu: int) -> int:
    """The largest RoCE MTU whose packets fit into frames of the netdev."""
    return next((size for size in _ROCE_MTUS if size + _ROCE_HEADERS <= mtu), _ROCE_MTUS[-1])


def _hint(error: str) -> str:
    return next((hint for sign, hint in _HINTS.items() if sign in error), "")
