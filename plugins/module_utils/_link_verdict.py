# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Judge what was tried on the links of a cell: which of them is right, and what is wrong where.

Link up, 200 Gb/s and no errors prove little: a NIC with throttled firmware, a twin on two PCIe
lanes and a RoCE MTU of 1024 look exactly like that. The numbers tell them apart.
"""

from __future__ import annotations

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
    "no-result": "no measurement is known; make the host reachable, and run without --limit.",
    "rping": (
        "rping over twin {domain} of {host}: {error}. Does a firewall drop it (ufw status), or "
        "does the wrong twin answer ARP (arp_ignore, arp_announce)?"
    ),
    "perftest": "{kind} over twin {domain} of {host}: {error}.{hint}",
    "perftest-together": "bandwidth of all twins together, {way}: {error}.{hint}",
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
WARNINGS = ("asymmetric", "lost-packets")
_UNKNOWN = ("not-measured", "no-result")

# What a message of a program means on this fabric.
_HINTS = {
    "status 12": " The packets do not arrive: see the ping checks, or a firewall drops them.",
    "errno 61": " The slot of the GID table is empty: run roce_gid_info again.",
    "No data available": " The slot of the GID table is empty: run roce_gid_info again.",
    "did not answer": " Something drops packets: a firewall, or the wrong twin answers ARP.",
}
_KINDS = {"latency": "latency", "in": "bandwidth {there}", "out": "bandwidth {back}"}

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
    rdma: Results,
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
        "gate": asdict(gate),
    }
    return {**judged, "text": render(judged)}


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
    """One link. `there` is from its first host to its second, `back` the other way.

    The second host measured, so what it sends out is `back`.
    """

    def __init__(
        self,
        link: Mapping[str, Any],
        pings: Mapping[str, Mapping[str, Any]],
        rdma: Results,
        macs: Mapping[tuple[str, str], str],
        gate: Gate,
    ) -> None:
        self._link = link
        self._pings = pings
        self._macs = macs
        self._gate = gate
        self._first, self._second = link["hosts"]
        self._ways = {
            "there": f"from {self._first} to {self._second}",
            "back": f"from {self._second} to {self._first}",
        }
        self._server = self._find(rdma, self._first, ("serve", "collect"))
        self._client = self._find(rdma, self._second, ("measure",))
        self._problems: list[dict[str, Any]] = []
        self._twins = [self._twin(place) for place in range(len(link["twins"]))]

    def _find(self, rdma: Results, host: str, stages: Sequence[str]) -> Mapping[str, Any]:
        """The last result of a host for this link."""
        found = [
            result
            for result in rdma.get(host, ())
            if result.get("link") == self._link["link"] and result.get("stage") in stages
        ]
        return found[-1] if found else {}

    def _twin(self, place: int) -> dict[str, Any]:
        """What was measured of one twin; null where nothing was."""
        twins = self._client.get("twins")
        told: Mapping[str, Any] = twins[place] if twins else {}
        latency, there, back = (told.get(kind) or {} for kind in ("latency", "in", "out"))
        mtus = [part["mtu"] for part in (latency, there, back) if part.get("mtu")]
        return {
            "domain": self._link["twins"][place]["domain"],
            "ping": {},
            "rping": (told.get("rping") or {}).get("ok"),
            "latency_us": latency.get("typical_us"),
            "roce_mtu": min(mtus, default=None),
            "there": there.get("gbps"),
            "back": back.get("gbps"),
        }

    def _totals(self) -> dict[str, Any]:
        """The bandwidth of the whole link in each direction."""
        if len(self._twins) == 1:
            return {way: self._twins[0][way] for way in self._ways}
        both = self._client.get("both") or {}
        return {
            way: (both.get(kind) or {}).get("gbps")
            for way, kind in (("there", "in"), ("back", "out"))
        }

    def result(self) -> dict[str, Any]:
        for place, twin in enumerate(self._twins):
            twin["ping"] = {"there": self._ping(place, 0), "back": self._ping(place, 1)}
        if self._was_measured():
            self._check_programs()
            self._check_pcie()
            for twin in self._twins:
                self._check_twin(twin)
            self._check_together()
            self._check_latency()
            self._check_counters()
        codes = {problem["code"] for problem in self._problems}
        failed = codes.difference(WARNINGS, _UNKNOWN)
        total = self._totals()
        rates = [rate for rate in total.values() if rate is not None]
        latencies = [twin["latency_us"] for twin in self._twins if twin["latency_us"] is not None]
        return {
            "link": self._link["link"],
            "ends": list(self._link["ends"]),
            "hosts": list(self._link["hosts"]),
            "verdict": "failed" if failed else "not measured" if codes & set(_UNKNOWN) else "ok",
            **total,
            "gbps": min(rates) if len(rates) == len(total) else None,
            "latency_us": max(latencies, default=None),
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
        told = {self._first: self._server, self._second: self._client}
        for host, result in told.items():
            if not result:
                self._say("no-result", host=host)
            elif not result["measured"]:
                self._say("not-measured", host=host, why=result["why"])
        return all(result.get("measured") for result in told.values())

    def _check_programs(self) -> None:
        """Programs that failed; what was not tried because of them needs no words."""
        for place, twin in enumerate(self._client["twins"]):
            for kind in ("rping", "latency", "in", "out"):
                words = self._failure(twin[kind], kind, place)
                if words:
                    named = _KINDS.get(kind, "").format(**self._ways)
                    code = "rping" if kind == "rping" else "perftest"
                    self._say(code, kind=named, domain=twin["domain"], host=self._second, **words)
        together = self._client["both"] or {}
        for way, kind in (("there", "in"), ("back", "out")):
            words = self._failure(together.get(kind), kind, None)
            if words:
                self._say("perftest-together", way=self._ways[way], **words)

    def _failure(
        self, told: Mapping[str, Any] | None, kind: str, place: int | None
    ) -> dict[str, str]:
        """What both ends said of a program that failed; empty where it did not."""
        if not told or told["ok"] or told["error"].startswith("not tried"):
            return {}
        served = [
            f" ({self._first}: {server['error']})"
            for server in self._server.get("servers") or ()
            if server["kind"] == kind
            and server["together"] == (place is None)
            and server["twin"] == (place or 0)
        ]
        error = told["error"] + "".join(served)
        return {"error": error, "hint": _hint(error)}

    def _hcas(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        for host, result in ((self._first, self._server), (self._second, self._client)):
            for hca in result.get("hcas") or ():
                yield host, hca

    def _narrow(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """HCAs whose PCIe link is not what it should be, as far as it is known."""
        for host, hca in self._hcas():
            width, speed = hca["pcie_width"], hca["pcie_speed"]
            if width and speed and (width < _PCIE_WIDTH or speed < _PCIE_SPEED):
                yield host, hca

    def _check_pcie(self) -> None:
        for host, hca in self._narrow():
            words = {"width": hca["pcie_width"], "speed": hca["pcie_speed"]}
            self._say("pcie-link", host=host, hca=hca["name"], **words)

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
            return "pcie-link" if any(self._narrow()) else "half-rate"
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
        for host, hca in self._hcas():
            if hca["errors"]:
                counters = ", ".join(f"{name} {count}" for name, count in hca["errors"].items())
                self._say("lost-packets", host=host, hca=hca["name"], counters=counters)

    def _cleanly(self) -> str:
        """That no packets were lost, where it is known of every HCA."""
        errors = [hca["errors"] for _host, hca in self._hcas()]
        return " without a lost packet" if errors and all(e == {} for e in errors) else ""


def _between(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def _roce_mtu(mtu: int) -> int:
    """The largest RoCE MTU whose packets fit into frames of the netdev."""
    return next((size for size in _ROCE_MTUS if size + _ROCE_HEADERS <= mtu), _ROCE_MTUS[-1])


def _hint(error: str) -> str:
    return next((hint for sign, hint in _HINTS.items() if sign in error), "")
