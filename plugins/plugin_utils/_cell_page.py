# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This plugin utility is private to the sparkfleet.cluster collection.
"""A cell as one page of HTML that needs nothing beside itself: no script, no font, no request.

Everything comes from results of other modules and is escaped where it is written. What is not known
is left out or said to be; nothing is judged here that was not judged before.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils import _cell_status as status
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _verify_report as answers
from ansible_collections.sparkfleet.cluster.plugins.module_utils._preflight_checks import STATUSES
from ansible_collections.sparkfleet.cluster.plugins.module_utils._text import fold_hosts, gib
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

Result = Mapping[str, Any]

# The worst first; what is open is neither good nor bad.
_SEVERITIES = ("failed", "unknown", "warned")
_OF_PREFLIGHT = {"fail": "failed", "unknown": "unknown", "warn": "warned"}
_OF_LINKS = {"failure": "failed", "unknown": "unknown", "warning": "warned"}


class Problem(NamedTuple):
    """One thing that is wrong, doubtful or not known."""

    severity: str  # one of _SEVERITIES
    where: str
    found: str
    expected: str = ""
    remedy: str = ""


class Bar(NamedTuple):
    """One bar of a plot; `share` is its length from 0 to 1."""

    label: str
    value: str
    share: float
    good: bool | None = None


def page(
    cell: str,
    *,
    written: str,
    plan: Result | None = None,
    picture: str = "",
    drawing: str = "",
    launch: Result | None = None,
    hosts: Sequence[Result] = (),
    tables: Mapping[str, Result] | None = None,
    entry: Result | None = None,
    preflight: Result | None = None,
    fabric: Result | None = None,
    verify: Result | None = None,
    benchmark: Result | None = None,
    head: str = "",
    times: Mapping[str, str] | None = None,
) -> str:
    """The page.

    Args:
        cell: what it is called.
        written: when this is, as text.
        plan: the fabric, of the fabric_plan filter.
        picture: the fabric as SVG of our own renderer. It is not escaped.
        drawing: the fabric as text, for where there is no picture.
        launch: the serving_plan.
        hosts: the ranks as for `_cell_status.status_lines`.
        tables: results of engram_pack, by host.
        entry: the result of the role entry.
        preflight: the result of preflight_report.
        fabric: the result of the link_verdict filter.
        verify: the result of openai_probe with checks, or its report.
        benchmark: the report of benchmark_report.
        head: the host with the entry.
        times: of parts that an earlier run found, when that was.
    """
    serving = (
        {"model": launch["model"]["served_name"], "profile": launch["profile"]} if launch else None
    )
    told = status.summary(
        preflight=preflight,
        fabric=fabric,
        tables=tables,
        serving=serving,
        entry=entry,
        verify=verify,
        head=head,
    )
    problems = sorted(
        [*_of_nodes(preflight), *_of_links(fabric), *_of_ranks(hosts), *_of_answers(verify)],
        key=lambda problem: _SEVERITIES.index(problem.severity),
    )
    environment = Environment(
        loader=FileSystemLoader(os.path.dirname(__file__)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("cell_page.html.j2").render(
        cell=cell,
        written=written,
        times=times or {},
        serving=serving,
        verdict=_verdict(problems, verify),
        told=told,
        problems=problems,
        picture=Markup(picture[picture.find("<svg") :]) if picture else "",
        drawing=drawing,
        links=list(_links(fabric)),
        gate=(fabric or {}).get("gate"),
        headings=status.HEADINGS,
        rows=[status.row(number, host) for number, host in enumerate(hosts)],
        shards=list(_shards(tables)),
        checks=list(_checks(verify)),
        counts=answers.summary(verify) if verify else "",
        nodes=_nodes(preflight),
        ports=list(_ports(plan)),
        fabric_facts=_facts(plan),
        launch_facts=_launch_facts(launch),
        memory=_memory(launch),
        command=_command(launch),
        plots=list(_plots(benchmark)),
        benchmark=benchmark,
    )


def _verdict(problems: Sequence[Problem], verify: Result | None) -> tuple[str, str]:
    """How the whole is, as a class of colour and a word."""
    failed = sum(problem.severity == "failed" for problem in problems)
    if failed:
        return "failed", f"{failed} problem{'s' * (failed != 1)}"
    if not verify:
        return "unknown", "not verified"
    if verify.get("stand_in"):
        return "unknown", "verified against a stand-in"
    return ("warned", "verified, with doubts") if problems else ("passed", "verified")


def _of_nodes(preflight: Result | None) -> Iterator[Problem]:
    folded: dict[tuple[str, ...], list[str]] = {}
    for row in (preflight or {}).get("rows", ()):
        if row["status"] in _OF_PREFLIGHT:
            key = (row["status"], row["check"], row["found"], row["expected"], row["fix"])
            folded.setdefault(key, []).append(row["host"])
    for (found_as, check, found, expected, fix), names in folded.items():
        where = f"{check} of {fold_hosts(names)}"
        yield Problem(_OF_PREFLIGHT[found_as], where, found, expected, fix)


def _of_links(fabric: Result | None) -> Iterator[Problem]:
    """What was noticed on links; the same on several links or hosts once."""
    folded: dict[tuple[str, str], list[str]] = {}
    for problem in (fabric or {}).get("problems", ()):
        where = problem.get("host") or " to ".join(problem["ends"])
        names = folded.setdefault((problem["severity"], problem["message"]), [])
        if where not in names:
            names.append(where)
    for (severity, message), names in folded.items():
        yield Problem(_OF_LINKS[severity], f"links of {fold_hosts(names)}", message)


def _of_ranks(hosts: Sequence[Result]) -> Iterator[Problem]:
    for text in status.rank_problems(hosts):
        host, _colon, message = text.partition(": ")
        yield Problem("failed", f"rank on {host}", message)


def _of_answers(verify: Result | None) -> Iterator[Problem]:
    optional = (verify or {}).get("optional", ())
    for check in (verify or {}).get("checks", ()):
        if check["verdict"] == "failed":
            severity = "warned" if check["name"] in optional else "failed"
            where = f"check {check['name']}"
            yield Problem(severity, where, check["detail"], remedy=check.get("remedy", ""))


def _links(fabric: Result | None) -> Iterator[dict[str, Any]]:
    links = (fabric or {}).get("links", ())
    top = max((link["gbps"] or 0 for link in links), default=0) or 1
    for link in links:
        pings = [ok for twin in link["twins"] for ok in twin["ping"].values()]
        yield {
            "ends": link["ends"],
            "verdict": link["verdict"],
            "frames": f"{sum(ok is True for ok in pings)} of {len(pings)}",
            "whole": all(ok is True for ok in pings),
            "rate": None if link["gbps"] is None else f"{link['gbps']:.1f}",
            "share": (link["gbps"] or 0) / top,
            "latency": "" if link["latency_us"] is None else f"{link['latency_us']:.1f}",
        }


def _shards(tables: Mapping[str, Result] | None) -> Iterator[tuple[str, int, int]]:
    """For each host how many of its Engram files are whole."""
    for host, result in (tables or {}).items():
        states = [shard["state"] for shard in result.get("shards", ())]
        if states:
            yield host, states.count("complete"), len(states)


def _checks(verify: Result | None) -> Iterator[dict[str, Any]]:
    optional = (verify or {}).get("optional", ())
    for check in (verify or {}).get("checks", ()):
        yield {
            "name": check["name"],
            "verdict": check["verdict"],
            "word": check["verdict"].replace("_", " "),
            "detail": check["detail"],
            "remedy": check.get("remedy") if check["verdict"] == "failed" else "",
            "optional": check["name"] in optional,
            "figures": answers.figures(check.get("figures") or {}),
        }


def _nodes(preflight: Result | None) -> list[tuple[str, str, str, str]]:
    """Status, check, hosts and what was found, the worst first and equal hosts folded."""
    folded: dict[tuple[str, str, str], list[str]] = {}
    for row in (preflight or {}).get("rows", ()):
        folded.setdefault((row["status"], row["check"], row["found"]), []).append(row["host"])
    found = [(*key, names) for key, names in folded.items()]
    found.sort(key=lambda entry: STATUSES.index(entry[0]))
    return [(how, check, fold_hosts(names), text) for how, check, text, names in found]


def _ports(plan: Result | None) -> Iterator[dict[str, Any]]:
    for name, host in ((plan or {}).get("hosts") or {}).items():
        for port in host["ports"]:
            peer = port.get("peer") or {}
            yield {
                "host": name,
                "cage": port["cage"],
                "netdev": port["netdev"],
                "hca": port["hca"],
                "address": f"{port['address']}/{port['prefix']}",
                "peer": f"{peer['host']}, cage {peer['cage']}" if peer else "switch",
            }


def _facts(plan: Result | None) -> list[tuple[str, str]]:
    if not plan:
        return []
    fabric, hosts = plan["fabric"], plan["hosts"]
    return [
        ("topology", f"{fabric['topology']} of {len(hosts)}"),
        ("cabling", str(fabric.get("cabling") or "-")),
        ("addresses", f"{fabric['range']} in /{fabric['prefix']}"),
        ("MTU", str(fabric["mtu"])),
        ("head", f"{fabric['head']} ({fabric['head_address']})"),
        ("forwarding", fold_hosts(name for name in hosts if hosts[name]["forward"]) or "nobody"),
    ]


def _launch_facts(launch: Result | None) -> list[tuple[str, str]]:
    if not launch:
        return []
    model = launch["model"]
    facts = [
        ("model", model["served_name"]),
        ("context", f"{model['context_length']:,} tokens"),
        ("profile", launch["profile"]),
        ("image", launch["image"]["reference"] or "-"),
        ("configuration", launch["config_hash"]["cell"]),
    ]
    if launch["nccl"]["patched"]:
        facts.append(("NCCL", f"patched {launch['nccl']['version']}"))
    return [*facts, *(("note", note) for note in launch["notes"])]


def _memory(launch: Result | None) -> list[Bar]:
    items = (launch or {}).get("memory", ())
    top = max((item["bytes"] for item in items), default=0) or 1
    return [
        Bar(
            item["item"] + (f" ({item['host']})" if item.get("host") else ""),
            gib(item["bytes"]),
            item["bytes"] / top,
        )
        for item in items
    ]


def _command(launch: Result | None) -> str:
    """The launch of the first rank, an option a line."""
    for host in ((launch or {}).get("hosts") or {}).values():
        container = host["container"]
        words = [shlex.quote(word) for word in (*container["entrypoint"], *container["command"])]
        return " ".join(words).replace(" --", " \\\n  --")
    return ""


def _plots(benchmark: Result | None) -> Iterator[tuple[str, list[Bar]]]:
    """Bars for writing and for reading, in tokens per second."""
    points = (benchmark or {}).get("points", ())
    for kind, title, figure, label in (
        ("decode", "Writing, all streams together", "total_tokens_per_second", _streams),
        ("prefill", "Reading a prompt", "prefill_tokens_per_second", _prompt),
    ):
        told = [point for point in points if point["kind"] == kind and point.get(figure)]
        top = max((point[figure] for point in told), default=1)
        if told:
            yield (
                f"{title}, tokens/s",
                [Bar(label(point), f"{point[figure]:,.1f}", point[figure] / top) for point in told],
            )


def _streams(point: Result) -> str:
    return f"{point['streams']} stream{'s' * (point['streams'] != 1)}"


def _prompt(point: Result) -> str:
    return f"{point['prompt_tokens']:,.0f} tokens"
