# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Measure one direction of a link with rping and perftest: each twin alone, then all together.

Both ends work through the same list of tests, each with a port of its own: the server starts all of
them at once and they wait, the client goes through them one after the other, and sends. (perftest
can let the server send, with --reversed, but that fails with rdma_cm and loses the connection
otherwise: perftest 6.24.)
"""

# Also runs without Ansible, whose run_command belongs to modules.
# pylint: disable=ansible-bad-function

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from ipaddress import IPv6Address
from typing import Any

from ansible_collections.sparkfleet.cluster.plugins.module_utils import _link_detached
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    Command,
    Missing,
    Runner,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_detached import Leash
from ansible_collections.sparkfleet.cluster.plugins.module_utils._link_perftest import (
    complaint,
    no_device,
    not_listening,
    read_result,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rdma_sysfs import (
    INFINIBAND,
    rdma_devices,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._tree import Tree

PROGRAMS = {"rping": "rdmacm-utils", "ib_write_bw": "perftest", "ib_write_lat": "perftest"}
# Signs of lost, repeated or damaged packets.
ERROR_COUNTERS = (
    "hw_counters/packet_seq_err",
    "hw_counters/out_of_sequence",
    "hw_counters/roce_adp_retrans",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/req_transport_retries_exceeded",
    "counters/symbol_error",
    "counters/port_rcv_errors",
    "counters/port_xmit_discards",
    "counters/link_downed",
)

_NAME = "fabric-rdma-test"
_UNUSABLE = (
    "programs cannot use the RDMA devices in /sys/class/infiniband ({error}); look at "
    "ls -l /dev/infiniband, and apt install ibverbs-providers"
)
_RPING = ("-C", "10", "-S", "8192", "-V")  # ten messages of more than one packet, validated
# Messages on their way, for each queue pair: a hundred times what fills such a link, and few enough
# for a slow one to deliver in time at the end.
_DEPTH = "32"
_ATTEMPTS = 3  # the server's program may not listen yet
_PAUSE = 0.5


_KINDS = ("rping", "latency", "bandwidth")


@dataclass(frozen=True)
class Settings:
    """How to measure. The same at both ends."""

    port: int
    duration: int
    message_size: int
    queue_pairs: int
    latency_iterations: int
    grace: float  # seconds that a program may take beyond its duration


@dataclass(frozen=True)
class Test:
    """One run of one program at both ends of one twin."""

    kind: str  # rping, latency or bandwidth
    twin: int
    together: bool  # with the other twins at the same time
    port: int

    def argv(self, twin: Mapping[str, Any], settings: Settings, *, server: bool) -> list[str]:
        """The command line of one end."""
        if self.kind == "rping":
            if server:
                return ["rping", "-s", "-a", twin["address"], "-p", str(self.port), *_RPING]
            way = ["-a", twin["peer_address"], "-I", twin["address"]]
            return ["rping", "-c", *way, "-p", str(self.port), *_RPING]
        argv = ["ib_write_lat" if self.kind == "latency" else "ib_write_bw", "-F"]
        argv += ["-d", twin["hca"], "-p", str(self.port), "-x", str(twin["gid_index"])]
        if self.kind == "latency":
            argv += ["-s", "2", "-n", str(settings.latency_iterations)]
        else:
            argv += ["-s", str(settings.message_size), "-q", str(settings.queue_pairs)]
            argv += ["-t", _DEPTH, "-D", str(settings.duration), "--report_gbits"]
        return argv if server else [*argv, twin["peer_address"]]


def steps(twins: int, settings: Settings) -> list[list[Test]]:
    """All tests of a link, each step at the same time."""
    kinds = [[(kind, twin, False)] for twin in range(twins) for kind in _KINDS]
    if twins > 1:
        kinds.append([("bandwidth", twin, True) for twin in range(twins)])
    port = settings.port
    found: list[list[Test]] = []
    for step in kinds:
        found.append([Test(*test, port + place) for place, test in enumerate(step)])
        port += len(step)
    return found


def with_gids(twins: Sequence[Mapping[str, Any]], tree: Tree) -> list[dict[str, Any]]:
    """The twins with `gid_index`: the slot in which the RoCE v2 GID of the own address is now.

    None where there is none. rdma_cm would find it as well, but NCCL uses no rdma_cm.
    """
    return [{**twin, "gid_index": _gid_index(tree, twin["hca"], twin["address"])} for twin in twins]


def _gid_index(tree: Tree, hca: str, address: str) -> int | None:
    port = f"{INFINIBAND}/{hca}/ports/1"
    gid = IPv6Address(f"::ffff:{address}").packed.hex(":", 2)
    slots = tree.names(f"{port}/gids")
    for slot in [] if isinstance(slots, Missing) else sorted(map(int, slots)):
        ours = tree.text(f"{port}/gids/{slot}").lower() == gid
        if ours and tree.text(f"{port}/gid_attrs/types/{slot}").lower() == "roce v2":
            return slot
    return None


def has_rdma(tree: Tree) -> bool:
    """Whether this host has RDMA devices at all."""
    devices = rdma_devices(tree)
    return not isinstance(devices, Missing) and bool(devices)


def why_not(twins: Sequence[Mapping[str, Any]], tree: Tree, command: Runner) -> str | None:
    """Why nothing can be measured on this host; None where it can. `twins` are those with GIDs."""
    devices = rdma_devices(tree)
    if isinstance(devices, Missing):
        return "this host has no RDMA stack; on a Spark: modprobe mlx5_ib, and look at dmesg"
    known = {device["name"]: device for device in devices}
    reasons: list[str] = []
    for twin in twins:
        hca = twin["hca"]
        if hca not in known:
            reasons.append(f"there is no RDMA device {hca}; rdma link shows what there is")
        elif not known[hca]["uverbs_present"]:
            node = known[hca]["uverbs"]
            missing = f"/dev/infiniband/{node}" if node else "device node in /dev/infiniband"
            reasons.append(f"{hca} has no {missing}, so no program can use it; modprobe ib_uverbs")
        elif twin["gid_index"] is None:
            wanted = f"{hca} has no RoCE v2 GID of {twin['address']}"
            reasons.append(f"{wanted}; roce_gid_info and ip -br addr tell more")
    for program, package in PROGRAMS.items():
        if not reasons and command([program, "--version"]).rc == NOT_FOUND:
            reasons.append(f"{program} is not installed; apt install {package}")
    return "; ".join(reasons) or None


def serve(twins: Sequence[Mapping[str, Any]], settings: Settings, tree: Tree) -> dict[str, Any]:
    """Start the server of every test, in a process that is left behind.

    Returns:
        Nothing; or `why` it was not started, and `lost`.
    """
    tests = [test for step in steps(len(twins), settings) for test in step]
    # Every test may take its time and its grace, in turn, on the busiest of hosts.
    lifetime = len(tests) * timeout(settings)

    def work(leash: Leash) -> dict[str, Any]:
        before = error_counters(twins, tree)
        children: list[tuple[Test, subprocess.Popen[str] | str]] = []
        try:
            children += [
                (test, _spawn(test.argv(twins[test.twin], settings, server=True))) for test in tests
            ]
            while not leash.pulled():
                leash.wait()
        finally:
            told = [_end(test, child) for test, child in children]
        return {
            "servers": [entry for entry in told if entry],
            "hcas": hcas(twins, before, tree),
        }

    why = _link_detached.start(_NAME, lifetime, work)
    return {"why": why, "lost": True} if why else {}


def collect() -> dict[str, Any]:
    """End the servers.

    Returns:
        What the ones that failed said, and the HCAs; or `why` there are none: because the servers
        are `lost`, or programs find no `usable` device.
    """
    result = _link_detached.collect(_NAME)
    if isinstance(result, Missing):
        return {"why": str(result), "lost": True}
    errors = [server["error"] for server in result["servers"] if no_device(server["error"])]
    return _unusable(errors[0]) if errors else result


def _unusable(error: str) -> dict[str, Any]:
    return {"why": _UNUSABLE.format(error=error), "usable": False}


def _spawn(argv: Sequence[str]) -> subprocess.Popen[str] | str:
    try:
        return subprocess.Popen(  # pylint: disable=consider-using-with  # ended by _end
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # so that _end reaches what it may have started
        )
    except OSError as error:
        return f"{argv[0]}: {error.strerror}"


def _end(test: Test, child: subprocess.Popen[str] | str) -> dict[str, Any] | None:
    """End a server. None where it served, or was never called."""
    if isinstance(child, str):
        error = child
    else:
        waiting = child.poll() is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        if waiting or child.returncode == 0:
            return None
        error = complaint(Command(child.returncode, out, err))
    return {"kind": test.kind, "twin": test.twin, "together": test.together, "error": error}


def measure(
    twins: Sequence[Mapping[str, Any]], settings: Settings, tree: Tree, command: Runner
) -> dict[str, Any]:
    """The client: all tests of the link, one step after the other.

    When a perftest program fails on a twin, the rest of that twin's are not tried: each would take
    its full time to fail as well.

    Returns:
        Results for each twin, for all of them together, and the HCAs; or `why` there are none,
        because programs find no `usable` device.
    """
    before = error_counters(twins, tree)
    results: list[dict[str, Any]] = [
        {**{key: twin[key] for key in ("domain", "hca", "gid_index")}, **dict.fromkeys(_KINDS)}
        for twin in twins
    ]
    together: dict[str, Any] | None = None
    broken: dict[int, str] = {}
    for step in steps(len(twins), settings):
        first = step[0]
        answers: list[dict[str, Any]]
        stopped = next((broken[test.twin] for test in step if test.twin in broken), None)
        if stopped and first.kind != "rping":
            answers = [{"ok": False, "error": f"not tried, because {stopped} failed"}] * len(step)
        else:
            argvs = [test.argv(twins[test.twin], settings, server=False) for test in step]
            with ThreadPoolExecutor(len(step)) as pool:
                answers = list(pool.map(lambda argv: _call(argv, command), argvs))
        if any(no_device(answer["error"]) for answer in answers):
            return _unusable(answers[0]["error"])
        if first.together:
            together = _sum(answers)
            continue
        results[first.twin][first.kind] = answers[0]
        if not answers[0]["ok"] and first.kind != "rping":
            broken.setdefault(first.twin, first.kind)
    return {"twins": results, "together": together, "hcas": hcas(twins, before, tree)}


def timeout(settings: Settings) -> float:
    """Seconds after which a program counts as failed."""
    return settings.duration + settings.grace


def _call(argv: Sequence[str], command: Runner) -> dict[str, Any]:
    answer = command(argv)
    for _attempt in range(_ATTEMPTS - 1):
        if not not_listening(answer):
            break
        time.sleep(_PAUSE)
        answer = command(argv)
    return read_result(argv[0], answer)


def _sum(answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The bandwidth of twins that ran together."""
    failed = [answer for answer in answers if not answer["ok"]]
    if failed:
        return {"ok": False, "error": failed[0]["error"]}
    each = [answer["gbps"] for answer in answers]
    return {"ok": True, "error": None, "gbps": round(sum(each), 2), "each": each}


def hcas(
    twins: Sequence[Mapping[str, Any]], before: Mapping[str, Mapping[str, int]], tree: Tree
) -> list[dict[str, Any]]:
    """The HCAs of this host as they are, and the error counters that moved since `before`.

    `errors` is null where no counter can be read: then nobody knows whether packets were lost.
    """
    now = error_counters(twins, tree)
    devices = rdma_devices(tree)
    wanted = [twin["hca"] for twin in twins]
    return [
        {
            **{key: device[key] for key in ("name", "pcie_speed", "pcie_width", "fw_ver")},
            "errors": {
                counter: count - before[device["name"]].get(counter, count)
                for counter, count in now[device["name"]].items()
                if count != before[device["name"]].get(counter, count)
            }
            if now[device["name"]]
            else None,
        }
        for device in ([] if isinstance(devices, Missing) else devices)
        if device["name"] in wanted
    ]


def error_counters(twins: Sequence[Mapping[str, Any]], tree: Tree) -> dict[str, dict[str, int]]:
    """The counters of lost packets of each HCA, without those its driver does not have."""
    found: dict[str, dict[str, int]] = {}
    for hca in (twin["hca"] for twin in twins):
        read = {
            counter.rpartition("/")[2]: tree.integer(f"{INFINIBAND}/{hca}/ports/1/{counter}")
            for counter in ERROR_COUNTERS
        }
        found[hca] = {k: count for k, count in read.items() if not isinstance(count, Missing)}
    return found
