"""Verdicts on a ring of four that is right, with one thing wrong each."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleTemplatePluginError
from ansible_collections.sparkfleet.cluster.plugins.filter import link_verdict as filter_plugin
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_schedule import (
    link_schedule,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_table import WIDTH
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_verdict import (
    PROBLEMS,
    WARNINGS,
    Gate,
    link_verdict,
)

from tests.unit.fabrics import plan

GOLDEN = Path(__file__).parents[2] / "fixtures" / "link"


def good(**told: Any) -> dict[str, Any]:
    return {"ok": True, "error": None, **told}


def bad(error: str) -> dict[str, Any]:
    return {"ok": False, "error": error}


class Proof:
    """Everything that was tried on a fabric; healthy until a test changes it.

    Link 0 is from spark1 to spark2. What spark1 sends is "there", what spark2 sends is "back".
    """

    def __init__(self, hosts: int = 4, topology: str = "ring", **options: Any) -> None:
        self.schedule = link_schedule(plan(hosts, topology, **options))
        self.pings: dict[str, Any] = {
            host: {
                "checks": [
                    {**check, "ok": True, "code": None, "message": None, "claims": ["02:00"]}
                    for check in checks
                ]
            }
            for host, checks in self.schedule["pings"].items()
        }
        self.rdma: dict[str, list[dict[str, Any]]] = {host: [] for host in self.schedule["pings"]}
        self.cables: dict[str, Any] | None = None
        for entry in self.schedule["rounds"]:
            for host, part in entry["hosts"].items():
                self.rdma[host].append(self._result(part))

    def _result(self, part: dict[str, Any]) -> dict[str, Any]:
        healthy = {"pcie_speed": 32.0, "pcie_width": 4, "fw_ver": "28.45.4028", "errors": {}}
        common = {
            "link": part["link"],
            "measured": True,
            "why": None,
            "hcas": [{"name": twin["hca"], **healthy} for twin in part["twins"]],
        }
        if part["role"] == "server":
            return {**common, "stage": "collect", "servers": []}
        twins = [
            {
                "domain": twin["domain"],
                "hca": twin["hca"],
                "gid_index": 3,
                "rping": good(),
                "latency": good(typical_us=1.47, p99_us=1.57, mtu=4096),
                "bandwidth": good(gbps=110.62, mtu=4096),
            }
            for twin in part["twins"]
        ]
        together = good(gbps=195.84) if len(twins) > 1 else None
        return {**common, "stage": "measure", "twins": twins, "together": together}

    def result(self, host: str, stage: str = "measure", link: int = 0) -> dict[str, Any]:
        """The result of a host as client of a link, or as its server."""
        return next(r for r in self.rdma[host] if (r["link"], r["stage"]) == (link, stage))

    def twin(self, host: str, place: int, link: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.result(host, link=link)["twins"][place]
        return found

    def ping(self, source: str) -> dict[str, Any]:
        return next(
            check
            for pinged in self.pings.values()
            for check in pinged["checks"]
            if check["source"] == source
        )

    def judge(self, **gate: float) -> dict[str, Any]:
        return link_verdict(
            self.schedule, self.pings, self.rdma, gate=Gate(**gate), cables=self.cables
        )


@pytest.mark.parametrize(
    ("hosts", "topology", "options"),
    [
        (2, "pair", {}),
        (3, "triangle", {}),
        (4, "ring", {}),
        (5, "switch", {}),
        (4, "ring", {"twins": "first"}),
    ],
)
def test_healthy_fabrics(hosts: int, topology: str, options: dict[str, Any]) -> None:
    verdict = Proof(hosts, topology, **options).judge()
    assert verdict["ok"]
    assert verdict["problems"] == []
    assert len(verdict["passed"]) == len(verdict["links"]) == len(verdict["measured"])
    assert {link["gbps"] for link in verdict["links"]} == {110.62 if options else 195.84}


def test_numbers_of_a_link() -> None:
    proof = Proof()
    proof.twin("spark2", 1)["bandwidth"]["gbps"] = 111.71
    proof.twin("spark2", 1)["latency"]["typical_us"] = 1.5
    proof.result("spark2")["together"]["gbps"] = 196.03
    verdict = proof.judge()
    both = {"there": True, "back": True}
    assert verdict["links"][0] == {
        "link": 0,
        "ends": ["spark1:0", "spark2:1"],
        "hosts": ["spark1", "spark2"],
        "verdict": "ok",
        "there": 195.84,
        "back": 196.03,
        "gbps": 195.84,
        "latency_us": 1.5,
        "twins": [
            {
                "domain": domain,
                "ping": both,
                "rping": both,
                "latency_us": latency,
                "roce_mtu": 4096,
                "there": 110.62,
                "back": back,
            }
            for domain, latency, back in ((0, 1.47, 110.62), (2, 1.5, 111.71))
        ],
        "problems": [],
    }
    assert verdict["matrix"]["spark1"] == {
        "spark2": {"gbps": 195.84, "latency_us": 1.5, "verdict": "ok"},
        "spark4": {"gbps": 195.84, "latency_us": 1.47, "verdict": "ok"},
    }
    assert verdict["matrix"]["spark2"]["spark1"]["gbps"] == 196.03
    assert verdict["measured"][0] == {"ends": ["spark1:0", "spark2:1"], "gbps": 195.84, "ok": True}


# --- each problem, on link 0 unless it says otherwise ---


def lost_ping(proof: Proof) -> None:
    proof.ping("10.20.1.12").update(ok=False, code="no-arp", message="nobody behind it.")


def no_ping(proof: Proof) -> None:
    del proof.pings["spark2"]


def wrong_port(proof: Proof) -> None:
    ports = [
        {"netdev": "enp1s0f1np1", "mac": "02:00:00:00:02:20"},
        {"netdev": "enP2p1s0f1np1", "mac": None},
    ]
    proof.cables = {"hosts": {"spark2": {"ports": ports}}}
    proof.ping("10.20.0.11")["claims"] = ["02:00:00:00:02:21"]


def no_rdma(proof: Proof) -> None:
    for stage in ("measure", "collect"):
        result = proof.result("spark2", stage)
        result.update(measured=False, why="no RDMA stack")
        for key in ("twins", "together", "hcas", "servers"):
            result.pop(key, None)


def no_client(proof: Proof) -> None:
    proof.rdma["spark2"].remove(proof.result("spark2"))


def rping_fails(proof: Proof) -> None:
    proof.twin("spark2", 1)["rping"] = bad("rping did not answer within 13 s")


def perftest_fails(proof: Proof) -> None:
    twin = proof.twin("spark2", 0)
    twin["latency"] = bad("Failed status 12: wr_id 0 syndrom 0x81")
    twin["bandwidth"] = bad("not tried, because latency failed")
    proof.result("spark2")["together"] = twin["bandwidth"]


def server_fails(proof: Proof) -> None:
    perftest_fails(proof)
    proof.twin("spark2", 0)["latency"] = bad("Couldn't connect to 10.20.0.11:18516")
    proof.result("spark1", "collect")["servers"] = [
        {"kind": "latency", "twin": 0, "together": False, "error": "Address already in use"}
    ]


def together_fails(proof: Proof) -> None:
    proof.result("spark1")["together"] = bad("ib_write_bw got not one message through")


def small_mtu(proof: Proof) -> None:
    for kind in ("latency", "bandwidth"):
        proof.twin("spark1", 1)[kind]["mtu"] = 1024


def slow(proof: Proof, place: int, there: float, back: float) -> None:
    """One twin, and what all together can reach then."""
    for host, gbps in (("spark1", there), ("spark2", back)):
        proof.twin(host, place)["bandwidth"]["gbps"] = gbps
        proof.result(host)["together"]["gbps"] = gbps * 2


def throttled(proof: Proof) -> None:
    slow(proof, 0, 13.2, 13.35)


def throttled_and_losing(proof: Proof) -> None:
    throttled(proof)
    for stage in ("measure", "collect"):
        proof.result("spark2", stage)["hcas"][0]["errors"] = {"out_of_sequence": 3}


def two_lanes(proof: Proof) -> None:
    slow(proof, 1, 54.8, 55.1)
    for stage in ("measure", "collect"):
        proof.result("spark1", stage)["hcas"][1]["pcie_width"] = 2


def half_rate(proof: Proof) -> None:
    slow(proof, 1, 54.8, 55.1)


def old_generation(proof: Proof) -> None:
    """The gate is met, but it will not be under load."""
    proof.result("spark2")["hcas"][0]["pcie_speed"] = 16.0


def one_twin_only(proof: Proof) -> None:
    proof.result("spark1")["together"]["gbps"] = 111.0
    proof.result("spark2")["together"]["gbps"] = 112.5


def slow_together(proof: Proof) -> None:
    proof.result("spark1")["together"]["gbps"] = 168.0


def slow_twin(proof: Proof) -> None:
    proof.twin("spark1", 1)["bandwidth"]["gbps"] = 88.0


def uneven(proof: Proof) -> None:
    proof.twin("spark2", 1)["bandwidth"]["gbps"] = 112.0
    proof.twin("spark1", 1)["bandwidth"]["gbps"] = 92.5


def late(proof: Proof) -> None:
    proof.twin("spark2", 1)["latency"]["typical_us"] = 2.6


def losing(proof: Proof) -> None:
    proof.result("spark2")["hcas"][1]["errors"] = {"packet_seq_err": 7, "out_of_sequence": 9}
    proof.result("spark2", "collect")["hcas"][1]["errors"] = {"packet_seq_err": 1}


def test_measuring_that_was_not_asked_for_is_no_fault_of_a_host() -> None:
    proof = Proof()
    judged = link_verdict(proof.schedule, proof.pings, None, gate=Gate())
    assert judged["not_measured"] == [0, 1, 2, 3]
    told = [(problem["code"], problem["host"]) for problem in judged["problems"]]
    assert told[:2] == [("not-asked", "spark1"), ("not-asked", "spark2")]
    assert len(told) == 8
    assert (
        "spark1..spark4: not measured in this run; -e roce_fabric_measure=always asks"
        in (judged["text"])
    )


def test_a_host_without_rdma_says_so_once_for_all_its_links() -> None:
    proof = Proof()
    told = {"measured": False, "why": "no RDMA stack", "usable": False, "stage": "measure"}
    proof.rdma["spark1"] = [{**told, "link": 3}]
    problems = proof.judge()["problems"]
    assert [(p["link"], p["code"], p["host"]) for p in problems] == [
        (0, "not-measured", "spark1"),
        (3, "not-measured", "spark1"),
    ]


def server_vanished(proof: Proof) -> None:
    result = proof.result("spark2", "collect")
    result.update(measured=False, why="no process is running", lost=True)


THERE, BACK = "from spark1 to spark2", "from spark2 to spark1"


@pytest.mark.parametrize(
    ("change", "verdict", "told"),
    [
        (lost_ping, "failed", [("ping", "spark2: nobody behind it.")]),
        (
            no_ping,
            "failed",
            [
                ("no-ping-result", "spark2 did not try 10.20.0.11 through enp1s0f1np1; make it"),
                ("no-ping-result", "spark2 did not try 10.20.1.11 through enP2p1s0f1np1; make it"),
            ],
        ),
        (
            wrong_port,
            "failed",
            [
                (
                    "wrong-port",
                    (
                        "10.20.0.12, which spark1 reaches through enp1s0f0np0, is claimed by "
                        "02:00:00:00:02:21, but enp1s0f1np1 of spark2 is 02:00:00:00:02:20"
                    ),
                )
            ],
        ),
        (no_rdma, "not measured", [("not-measured", "not measured: no RDMA stack.")]),
        (
            server_vanished,
            "failed",
            [("measurement-lost", "spark2 lost a measurement: no process is running. Again:")],
        ),
        (no_client, "not measured", [("no-result", "no measurement is known; make the host")]),
        (
            rping_fails,
            "failed",
            [("rping", f"rping {BACK} over twin 2: rping did not answer within 13 s. Does a")],
        ),
        (
            perftest_fails,
            "failed",
            [
                (
                    "perftest",
                    f"latency {BACK} over twin 0: Failed status 12: wr_id 0 syndrom 0x81. The",
                )
            ],
        ),
        (
            server_fails,
            "failed",
            [("perftest", "connect to 10.20.0.11:18516 (spark1: Address already in use).")],
        ),
        (
            together_fails,
            "failed",
            [
                (
                    "perftest-together",
                    (
                        f"bandwidth {THERE} over all twins together: ib_write_bw got not one "
                        "message through. Something drops packets"
                    ),
                )
            ],
        ),
        (small_mtu, "failed", [("roce-mtu", "twin 2 runs at a RoCE MTU of 1024, expected 4096;")]),
        (
            throttled,
            "failed",
            [
                (
                    "throttled",
                    (
                        f"13.2 and 13.35 Gb/s {THERE} and back over twin 0 without a lost packet: "
                        "the NIC is throttled or wedged. Reboot both hosts with the cable seated;"
                    ),
                )
            ],
        ),
        (
            throttled_and_losing,
            "failed",
            [
                ("throttled", "and back over twin 0: the NIC is throttled or wedged."),
                ("lost-packets", "rocep1s0f1 of spark2 lost or repeated packets meanwhile (out"),
            ],
        ),
        (
            two_lanes,
            "failed",
            [("pcie-link", "roceP2p1s0f0 of spark1 has a PCIe link of x2 at 32 GT/s, expected")],
        ),
        (
            half_rate,
            "failed",
            [("half-rate", f"54.8 and 55.1 Gb/s {THERE} and back over twin 2, about half of")],
        ),
        (
            old_generation,
            "failed",
            [("pcie-link", "rocep1s0f1 of spark2 has a PCIe link of x4 at 16 GT/s, expected")],
        ),
        (
            one_twin_only,
            "failed",
            [("one-twin-only", f"111 and 112.5 Gb/s {THERE} and back over all twins together, ")],
        ),
        (
            slow_together,
            "failed",
            [("below-gate", f"168 Gb/s {THERE} over all twins together, expected 175 or more.")],
        ),
        (
            slow_twin,
            "failed",
            [
                ("below-gate", f"88 Gb/s {THERE} over twin 2, expected 92 or more."),
                ("asymmetric", f"88 Gb/s {THERE} over twin 2, but 110.62 the other way;"),
            ],
        ),
        (uneven, "ok", [("asymmetric", f"92.5 Gb/s {THERE} over twin 2, but 112 the other way")]),
        (late, "failed", [("latency", "2.6 us over twin 2, expected 2 or less.")]),
        (
            losing,
            "ok",
            [
                (
                    "lost-packets",
                    "of spark2 lost or repeated packets meanwhile (packet_seq_err 8, out",
                )
            ],
        ),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_problems(
    change: Callable[[Proof], None], verdict: str, told: list[tuple[str, str]]
) -> None:
    proof = Proof()
    change(proof)
    judged = proof.judge(latency_us=2.0)
    link = judged["links"][0]
    assert [problem["code"] for problem in link["problems"]] == [code for code, _text in told]
    failures = [p["message"] for p in link["problems"] if p["severity"] == "failure"]
    ours = [text for text in judged["failures"] if text.startswith("spark1:0 - spark2:1: ")]
    assert ours == [f"spark1:0 - spark2:1: {message}" for message in failures]
    for problem, (code, text) in zip(link["problems"], told, strict=True):
        assert text in problem["message"]
        assert (problem["severity"] == "warning") == (code in WARNINGS)
    assert link["verdict"] == verdict
    assert judged["ok"] == (verdict == "ok")
    assert max(map(len, judged["text"].splitlines())) <= WIDTH
    for other in judged["links"][1:]:
        assert other["verdict"] == ("failed" if change is no_ping and other["link"] == 1 else "ok")


def test_a_fabric_without_links_is_not_right() -> None:
    nothing = {"links": [], "pings": {"spark1": []}, "rounds": []}
    judged = link_verdict(nothing, {}, {}, gate=Gate())
    assert not judged["ok"]
    assert "There are no links." in judged["text"]


def test_nothing_tried_is_nothing_right() -> None:
    judged = link_verdict(Proof().schedule, {}, {}, gate=Gate())
    assert (judged["ok"], judged["passed"], judged["measured"]) == (False, [], [])


def test_the_gate_is_free() -> None:
    """Soft-RoCE reaches a thousandth of what a Spark does, and is no NIC with a fault."""
    proof = Proof()
    for result in (r for results in proof.rdma.values() for r in results if "twins" in r):
        for twin in result["twins"]:
            twin["bandwidth"]["gbps"], twin["latency"]["typical_us"] = 0.13, 900.0
        result["together"]["gbps"] = 0.15
    assert proof.judge(twin_gbps=0.05, both_gbps=0.05)["ok"]
    assert not proof.judge()["ok"]


def test_the_last_of_several_results_counts() -> None:
    proof = Proof()
    old = {**proof.result("spark2"), "measured": False, "why": "interrupted"}
    proof.rdma["spark2"].insert(0, old)
    assert proof.judge()["ok"]


def test_a_link_that_was_measured_again_tells_what_failed_at_first() -> None:
    proof = Proof()
    good_one = copy.deepcopy(proof.result("spark1"))
    result = proof.result("spark1")
    result["twins"][1]["latency"] = bad("ended without a result")
    result["twins"][1]["bandwidth"] = bad("not tried, since latency failed")
    result["together"] = bad("timed out")
    first = proof.judge()
    assert (first["failed"], first["unfinished"]) == ([0], [0])
    proof.rdma["spark1"].append(good_one)
    again = proof.judge()
    assert (again["ok"], again["unfinished"]) == (True, [])
    told = [problem["message"].split(". ")[0] for problem in again["problems"]]
    assert [problem["code"] for problem in again["problems"]] == 2 * ["repeated"]
    why = "failed at first and passed when tried again"
    assert told == [
        f"latency {THERE} over twin 2 {why}: ended without a result",
        f"bandwidth {THERE} over all twins together {why}: timed out",
    ]


@pytest.mark.parametrize("slow", [12.9, 55.0])
def test_a_link_that_is_slow_is_not_measured_again(slow: float) -> None:
    proof = Proof()
    proof.twin("spark1", 0)["bandwidth"]["gbps"] = slow
    assert proof.judge()["unfinished"] == []


def test_the_table_for_people() -> None:
    proof = Proof()
    lost_ping(proof)
    throttled(proof)
    proof.twin("spark2", 0, link=1)["latency"]["mtu"] = 1024
    proof.result("spark3", link=1)["hcas"][1]["errors"] = {"out_of_sequence": 12}
    for host in ("spark3", "spark4"):
        result = proof.result(host, link=2)
        result.update(measured=False, why="no RDMA stack", twins=None, together=None)
    text = proof.judge()["text"] + "\n"
    assert text == (GOLDEN / "verdict.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("hosts", [8, 16])
def test_long_names_and_many_hosts_keep_the_width(hosts: int) -> None:
    text = Proof(hosts, "switch").judge()["text"].replace("spark", "s")
    assert max(map(len, text.splitlines())) <= WIDTH
    names = [f"rack-7-spark-{number:02}-of-a-customer.example.org" for number in range(8)]
    proof = Proof(8)
    for link in proof.schedule["links"]:
        link["hosts"] = [names[int(host[-1]) - 1] for host in link["hosts"]]
        link["ends"] = [f"{name}:0" for name in link["hosts"]]
    proof.schedule["pings"] = {name: [] for name in names}
    assert max(map(len, proof.judge()["text"].splitlines())) <= WIDTH


def test_every_code_is_tried_and_documented() -> None:
    source = Path(__file__).read_text(encoding="utf-8")
    for code in PROBLEMS:
        assert f'("{code}"' in source or f'"{code}"' in source, code
        assert f"C({code})" in filter_plugin.RETURN, code


@pytest.mark.parametrize(
    ("values", "gate", "message"),
    [
        ((None, {}, {}), {}, "the schedule is not what link_schedule returns"),
        (({"links": [], "pings": {}}, [], {}), {}, "pings is no mapping"),
        (({"links": [], "pings": {}}, {}, "x"), {}, "rdma is no mapping"),
        (({"links": [], "pings": {}}, {}, {}), {"twin_gbps": "fast"}, "could not convert"),
        (({"links": [], "pings": {}}, {}, {}), {"gate": 1}, "unexpected keyword argument 'gate'"),
    ],
)
def test_the_filter_refuses_what_it_cannot_read(
    values: tuple[Any, ...], gate: dict[str, Any], message: str
) -> None:
    with pytest.raises(AnsibleTemplatePluginError, match=message):
        filter_plugin.link_verdict(*values, **gate)
