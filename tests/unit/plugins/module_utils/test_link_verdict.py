"""Verdicts on a ring of four that is right, with one thing wrong each."""

from __future__ import annotations

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

    Link 0 is from spark1, who serves, to spark2, who measures. Bandwidth that spark2 receives is
    "there", what it sends is "back".
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
                "gid_index": None,
                "rping": good(),
                "latency": good(typical_us=1.47, p99_us=1.57, mtu=4096),
                "out": good(gbps=111.71, mtu=4096),
                "in": good(gbps=110.62, mtu=4096),
            }
            for twin in part["twins"]
        ]
        both = {"out": good(gbps=196.03), "in": good(gbps=195.84)} if len(twins) > 1 else None
        return {**common, "stage": "measure", "twins": twins, "both": both}

    def result(self, link: int, stage: str = "measure") -> dict[str, Any]:
        """The result of the client of a link, or of its server."""
        return next(
            result
            for results in self.rdma.values()
            for result in results
            if (result["link"], result["stage"]) == (link, stage)
        )

    def twin(self, link: int, place: int) -> dict[str, Any]:
        found: dict[str, Any] = self.result(link)["twins"][place]
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
    verdict = Proof().judge()
    assert verdict["links"][0] == {
        "link": 0,
        "ends": ["spark1:0", "spark2:1"],
        "hosts": ["spark1", "spark2"],
        "verdict": "ok",
        "there": 195.84,
        "back": 196.03,
        "gbps": 195.84,
        "latency_us": 1.47,
        "twins": [
            {
                "domain": domain,
                "ping": {"there": True, "back": True},
                "rping": True,
                "latency_us": 1.47,
                "roce_mtu": 4096,
                "there": 110.62,
                "back": 111.71,
            }
            for domain in (0, 2)
        ],
        "problems": [],
    }
    assert verdict["matrix"]["spark1"] == {
        "spark2": {"gbps": 195.84, "latency_us": 1.47, "verdict": "ok"},
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
        result = proof.result(0, stage)
        result.update(measured=False, why="no RDMA stack")
        for key in ("twins", "both", "hcas", "servers"):
            result.pop(key, None)


def no_client(proof: Proof) -> None:
    proof.rdma["spark2"] = [r for r in proof.rdma["spark2"] if r["link"] != 0]


def rping_fails(proof: Proof) -> None:
    proof.twin(0, 1)["rping"] = bad("rping did not answer within 13 s")


def perftest_fails(proof: Proof) -> None:
    twin = proof.twin(0, 0)
    twin["latency"] = bad("Failed status 12: wr_id 0 syndrom 0x81")
    twin["out"] = twin["in"] = bad("not tried, because latency failed")
    proof.result(0)["both"] = {
        way: bad("not tried, because latency failed") for way in ("out", "in")
    }


def server_fails(proof: Proof) -> None:
    perftest_fails(proof)
    proof.twin(0, 0)["latency"] = bad("Couldn't connect to 10.20.0.11:18516")
    proof.result(0, "collect")["servers"] = [
        {"kind": "latency", "twin": 0, "together": False, "error": "Address already in use"}
    ]


def together_fails(proof: Proof) -> None:
    proof.result(0)["both"]["in"] = bad("ib_write_bw did not answer within 13 s")


def small_mtu(proof: Proof) -> None:
    for kind in ("latency", "in", "out"):
        proof.twin(0, 1)[kind]["mtu"] = 1024


def throttled(proof: Proof) -> None:
    proof.twin(0, 0)["in"]["gbps"], proof.twin(0, 0)["out"]["gbps"] = 13.2, 13.35
    proof.result(0)["both"] = {"in": good(gbps=26.5), "out": good(gbps=26.6)}


def throttled_and_losing(proof: Proof) -> None:
    throttled(proof)
    proof.result(0)["hcas"][0]["errors"] = {"out_of_sequence": 3}


def two_lanes(proof: Proof) -> None:
    proof.twin(0, 1)["in"]["gbps"] = 54.8
    proof.twin(0, 1)["out"]["gbps"] = 55.1
    proof.result(0)["both"] = {"in": good(gbps=109.0), "out": good(gbps=110.0)}
    proof.result(0, "collect")["hcas"][1]["pcie_width"] = 2


def half_rate(proof: Proof) -> None:
    two_lanes(proof)
    proof.result(0, "collect")["hcas"][1]["pcie_width"] = None


def old_generation(proof: Proof) -> None:
    """The gate is met, but it will not be under load."""
    proof.result(0)["hcas"][0]["pcie_speed"] = 16.0


def one_twin_only(proof: Proof) -> None:
    proof.result(0)["both"] = {"in": good(gbps=111.0), "out": good(gbps=112.5)}


def slow_together(proof: Proof) -> None:
    proof.result(0)["both"]["in"]["gbps"] = 168.0


def slow_twin(proof: Proof) -> None:
    proof.twin(0, 1)["in"]["gbps"] = 88.0


def uneven(proof: Proof) -> None:
    proof.twin(0, 1)["in"]["gbps"] = 92.5


def late(proof: Proof) -> None:
    proof.twin(0, 1)["latency"]["typical_us"] = 2.6


def losing(proof: Proof) -> None:
    proof.result(0)["hcas"][1]["errors"] = {"packet_seq_err": 7, "out_of_sequence": 9}


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
        (
            no_rdma,
            "not measured",
            [("not-measured", "not measured: no RDMA stack.")] * 2,
        ),
        (no_client, "not measured", [("no-result", "no measurement is known; make the host")]),
        (
            rping_fails,
            "failed",
            [("rping", "rping over twin 2 of spark2: rping did not answer within 13 s. Does a")],
        ),
        (
            perftest_fails,
            "failed",
            [
                (
                    "perftest",
                    (
                        "latency over twin 0 of spark2: Failed status 12: wr_id 0 syndrom 0x81. "
                        "The packets do not arrive"
                    ),
                )
            ],
        ),
        (
            server_fails,
            "failed",
            [
                (
                    "perftest",
                    (
                        "latency over twin 0 of spark2: Couldn't connect to 10.20.0.11:18516 "
                        "(spark1: Address already in use)."
                    ),
                )
            ],
        ),
        (
            together_fails,
            "failed",
            [
                (
                    "perftest-together",
                    (
                        f"bandwidth of all twins together, {THERE}: ib_write_bw did not answer "
                        "within 13 s. Something drops packets"
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
            [("pcie-link", "roceP2p1s0f0 of spark1 has a PCIe link of x2 at 32 GT/s, expected x4")],
        ),
        (
            half_rate,
            "failed",
            [("half-rate", f"54.8 and 55.1 Gb/s {THERE} and back over twin 2, about half of what")],
        ),
        (
            old_generation,
            "failed",
            [
                (
                    "pcie-link",
                    "rocep1s0f1 of spark2 has a PCIe link of x4 at 16 GT/s, expected x4 at",
                )
            ],
        ),
        (
            one_twin_only,
            "failed",
            [("one-twin-only", f"111 and 112.5 Gb/s {THERE} and back over all twins together, no")],
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
                ("asymmetric", f"88 Gb/s {THERE} over twin 2, but 111.71 the other way;"),
            ],
        ),
        (
            uneven,
            "ok",
            [("asymmetric", f"92.5 Gb/s {THERE} over twin 2, but 111.71 the other way")],
        ),
        (late, "failed", [("latency", "2.6 us over twin 2, expected 2 or less.")]),
        (
            losing,
            "ok",
            [
                (
                    "lost-packets",
                    (
                        "roceP2p1s0f1 of spark2 lost or repeated packets meanwhile (packet_seq_err "
                        "7, out_of_sequence 9);"
                    ),
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
    for result in (proof.result(link) for link in range(4)):
        for twin in result["twins"]:
            twin["in"]["gbps"], twin["out"]["gbps"] = 0.13, 0.14
            twin["latency"]["typical_us"] = 900.0
        result["both"] = {"in": good(gbps=0.15), "out": good(gbps=0.15)}
    assert proof.judge(twin_gbps=0.05, both_gbps=0.05)["ok"]
    assert not proof.judge()["ok"]


def test_the_last_of_several_results_counts() -> None:
    proof = Proof()
    old = {**proof.result(0), "measured": False, "why": "interrupted"}
    proof.rdma["spark2"].insert(0, old)
    assert proof.judge()["ok"]


def test_the_table_for_people() -> None:
    proof = Proof()
    lost_ping(proof)
    throttled(proof)
    proof.twin(1, 0)["latency"]["mtu"] = 1024
    proof.result(1)["hcas"][1]["errors"] = {"out_of_sequence": 12}
    for stage in ("measure", "collect"):
        proof.result(2, stage).update(measured=False, why="no RDMA stack", twins=None, both=None)
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
        assert f'("{code}"' in source or f'"{code}",' in source, code
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
