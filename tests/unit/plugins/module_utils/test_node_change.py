# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""fabric_network on a node made of files, whose commands do to them what the real ones do."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _dead_man, _node_change
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import (
    NOT_FOUND,
    Command,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._dead_man import DeadMan
from ansible_collections.sparkfleet.cluster.plugins.module_utils._node_change import (
    Changer,
    Outcome,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._node_files import (
    MANAGER_CONF,
    MODES,
    NETPLAN,
    SCRIPT,
    SYSCTL,
    UNIT_NAME,
    own_files,
    read_wanted,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._node_state import KERNEL, Node

NETDEVS = ("enp1s0f0np0", "enP2p1s0f0np0", "enp1s0f1np1", "enP2p1s0f1np1")
PORTS: list[dict[str, Any]] = [
    {"netdev": "enp1s0f0np0", "address": "10.100.0.11", "prefix": 24, "hca": "rocep1s0f0"},
    {"netdev": "enP2p1s0f0np0", "address": "10.100.1.11", "prefix": 24, "cage": 0},
]
ROUTES = [{"to": "10.100.4.0/23", "via": "10.100.0.12", "netdev": None}]
GIVEN: dict[str, Any] = {
    "state": "present",
    "ports": PORTS,
    "routes": ROUTES,
    "mtu": 9000,
    "forward": False,
    "management_interface": "enP7s7",
    "renderer": "auto",
    "rollback_after": 90,
    "timeout": 0.05,
    "accept_foreign": False,
    "rank_units": ["sparkfleet-rank@*.service"],
    "force": False,
}
PROFILE = """network:
  ethernets:
    enp1s0f0np0:
      match: {}
      addresses: [169.254.7.7/16]
      networkmanager: {name: Wired connection 2}
"""
RANDOM = "proc/sys/kernel/random/boot_id"


class Spark:
    """A node. What network managers do to a port they do when they are told about it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.links: dict[str, dict[str, Any]] = {
            name: {"up": False, "mtu": 1500, "addresses": []} for name in NETDEVS
        }
        self.links["enP7s7"] = {"up": True, "mtu": 1500, "addresses": ["192.0.2.11/24"]}
        self.links["docker0"] = {"up": True, "mtu": 1500, "addresses": ["172.17.0.1/16"]}
        self.routes = [{"dst": "default", "gateway": "192.0.2.1", "dev": "enP7s7"}]
        self.active = {"systemd-networkd.service"}
        self.enabled: set[str] = set()
        self.serving: list[str] = []
        self.chains = {"-P FORWARD DROP", "-N DOCKER-USER"}
        self.said: list[str] = []
        self.timer = False
        self.broken: dict[str, Command | Callable[[Sequence[str]], Command]] = {}
        self.deaf: set[str] = set()
        self.released: set[str] = {"enP7s7"}  # by NetworkManager
        for name in (*NETDEVS, "enP7s7"):
            for form in KERNEL:
                self.write(f"proc/sys/net/{form.format(name)}", "0\n")
        self.write("proc/sys/net/ipv4/ip_forward", "0\n")
        self.write(RANDOM, "first-boot\n")
        self.write("run/x", "")
        self.write(
            "etc/netplan/01-management.yaml",
            "network: {ethernets: {enP7s7: {dhcp4: true}}}",
        )

    def write(self, path: str, text: str) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)

    def read(self, path: str) -> str | None:
        place = self.root / path.lstrip("/")
        return place.read_text() if place.exists() else None

    @property
    def ours(self) -> set[str]:
        return {path for path in MODES if self.read(path) is not None}

    def state(self) -> Any:
        """Everything that could differ, for comparisons."""
        lists = [self.links, self.routes, sorted(self.enabled), sorted(self.released)]
        return json.loads(json.dumps(lists)), {
            str(place.relative_to(self.root)): place.read_text()
            for top in ("etc", "proc", "usr")
            for place in (self.root / top).rglob("*")
            if place.is_file()
        }

    # --- commands --------------------------------------------------------------------------------

    def run(self, argv: Sequence[str]) -> Command:
        line = " ".join(argv)
        self.said.append(line)
        for words, answer in self.broken.items():
            if words in line:
                return answer if isinstance(answer, Command) else answer(argv)
        name = argv[0].rsplit("/", 1)[-1].replace("-", "_")
        handler: Callable[[Sequence[str]], str | None] | None = getattr(self, f"_{name}", None)
        if handler is None:
            return Command(NOT_FOUND, "", f"{argv[0]}: command not found")
        said = handler(argv)
        return Command(0 if said is not None else 1, said or "", "")

    def run_apart(self, argv: Sequence[str], timeout: float) -> tuple[int, str]:
        done = self.run(argv)
        return done.rc or 0, done.complaint

    def _ip(self, argv: Sequence[str]) -> str | None:
        words = list(argv[1:])
        if words[:3] == ["-j", "address", "show"]:
            return json.dumps([self._shown(*item) for item in self.links.items()])
        if words[:4] == ["-j", "-4", "route", "show"]:
            return json.dumps([*self.routes, {"dst": "x", "dev": "enP7s7", "protocol": "kernel"}])
        link = self.links[words[words.index("dev") + 1]]
        if words[:2] == ["address", "del"]:
            if words[2] not in link["addresses"]:
                return None
            link["addresses"].remove(words[2])
        elif words[:2] == ["address", "replace"]:
            link["addresses"] = sorted({*link["addresses"], words[2]})
        elif words[:2] == ["link", "set"]:
            link |= {"mtu": int(words[-1])} if "mtu" in words else {"up": words[-1] != "down"}
        elif words[:2] == ["route", "replace"]:
            via = {"gateway": words[4]} if words[3] == "via" else {}
            self.routes.append({"dst": words[2], "dev": words[-1], **via})
        return ""

    @staticmethod
    def _shown(name: str, link: Mapping[str, Any]) -> dict[str, Any]:
        infos: list[dict[str, Any]] = []
        for text in link["addresses"]:
            address, length = text.split("/")
            scope = "link" if address.startswith("fe80") else "global"
            family = "inet6" if ":" in address else "inet"
            info = {"local": address, "prefixlen": int(length), "scope": scope, "family": family}
            infos.append(info)
        for text in link.get("leased", []):
            address, length = text.split("/")
            leased = {"scope": "global", "family": "inet", "dynamic": True}
            infos.append({"local": address, "prefixlen": int(length), **leased})
        return {
            "ifname": name,
            "flags": ["UP"] if link["up"] else [],
            "mtu": link["mtu"],
            "address": "4c:bb:47:00:00:01",
            "addr_info": infos,
            **({"master": link["master"]} if "master" in link else {}),
        }

    def _systemctl(self, argv: Sequence[str]) -> str | None:
        verb, unit = argv[1], argv[-1]
        if verb == "show":
            units = [word for word in argv[2:] if not word.startswith("--")]
            return "\n\n".join(self._shown_unit(name) for name in units)
        if verb == "list-units":
            return "".join(f"{name} loaded active running x\n" for name in self.serving)
        if verb == "start" and unit == UNIT_NAME:
            self.run([SCRIPT, "accept"])
        elif verb == "start":
            self.active.add(unit)
        elif verb == "enable":
            self.enabled.add(unit)
        elif verb == "disable":
            self.enabled.discard(unit)
            self.active.discard(unit)
        elif verb == "stop" and unit.endswith(".timer"):
            self.timer = False
        return ""

    def _shown_unit(self, name: str) -> str:
        return (
            f"Id={name}\nLoadState=loaded\n"
            f"ActiveState={'active' if name in self.active else 'inactive'}\n"
            f"UnitFileState={'enabled' if name in self.enabled else 'disabled'}"
        )

    def _systemd_run(self, argv: Sequence[str]) -> str | None:
        if any(word.startswith("--on-active") for word in argv):
            self.timer = True
            return ""
        return "" if getattr(DeadMan(str(self.root), self.run_apart), argv[-1])() else None

    def fire(self) -> None:
        assert self.timer
        self.timer = False
        DeadMan(str(self.root), self.run_apart).rollback()

    def _netplan(self, argv: Sequence[str]) -> str | None:
        return ""

    def _udevadm(self, argv: Sequence[str]) -> str | None:
        return None  # as in containers

    def _networkctl(self, argv: Sequence[str]) -> str | None:
        if argv[1] == "reload":
            self._release("networkd")
        for name in argv[2:]:
            self._configure(name, "networkd")
        return ""

    def _nmcli(self, argv: Sequence[str]) -> str | None:
        if "NetworkManager.service" not in self.active:
            return None
        if argv[-1] == "device":
            told = {name: "unmanaged" if name in self.released else "x" for name in self.links}
            return "".join(f"{name}:{state}\n" for name, state in told.items())
        if argv[1:3] == ["device", "set"]:
            (self.released.discard if argv[-1] == "yes" else self.released.add)(argv[3])
            if argv[-1] == "no":
                self.links[argv[3]]["addresses"] = []
        if list(argv[-2:]) == ["connection", "reload"]:
            self._release("NetworkManager")
        if argv[-2] == "up":
            self._configure(argv[-1].removeprefix("netplan-"), "NetworkManager")
        return ""

    def _fabric_forward(self, argv: Sequence[str]) -> str | None:
        mine = {rule for rule in self.chains if "SPARKFLEET-FABRIC" in rule}
        self.chains -= mine
        if argv[1] == "accept":
            rules = re.findall(r"^-A SPARKFLEET.*$", self.read(SCRIPT) or "", re.MULTILINE)
            self.chains |= {*rules, "-A DOCKER-USER -j SPARKFLEET-FABRIC"}
        return ""

    def _iptables(self, argv: Sequence[str]) -> str | None:
        return "\n".join(sorted(self.chains))

    # --- what network managers do ----------------------------------------------------------------

    def defined(self) -> dict[str, Any]:
        text = self.read(NETPLAN)
        return yaml.safe_load(text)["network"]["ethernets"] if text else {}

    def _release(self, renderer: str) -> None:
        for name, link in self.links.items():
            if link.get("by") == renderer and name not in self.defined():
                del link["by"], link["leased"]
                link["addresses"] = []
                self.routes = [route for route in self.routes if route["dev"] != name]

    def _configure(self, name: str, renderer: str) -> None:
        definition = self.defined()[name]
        assert definition["renderer"] == renderer, "told the wrong one"
        if name in self.deaf:
            return
        self.links[name] |= {
            "by": renderer,
            "leased": [],
            "up": True,
            "mtu": definition["mtu"],
            "addresses": [*definition["addresses"], "fe80::1/64"],
        }
        self.routes = [route for route in self.routes if route["dev"] != name]
        for route in definition.get("routes", []):
            self.routes.append({"dst": route["to"], "gateway": route["via"], "dev": name})


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Spark:
    monkeypatch.setattr(_node_change, "SETTLED", 0.0)
    monkeypatch.setattr(_node_change, "PAUSE", 0.0)
    monkeypatch.setattr("os.fsync", lambda handle: None)  # no power fails here
    return Spark(tmp_path)


def reach(spark: Spark, check: bool = False, **changes: Any) -> Outcome:
    spark.said.clear()
    root = str(spark.root)
    return Changer(
        node=Node(root, spark.run, MODES, UNIT_NAME),
        dead_man=DeadMan(root, spark.run_apart),
        run=spark.run,
        root=root,
        source=Path(_dead_man.__file__).read_bytes(),
        check=check,
    ).reach({**GIVEN, **changes})


def done(spark: Spark, **changes: Any) -> Outcome:
    outcome = reach(spark, **changes)
    assert not outcome.problems and outcome.changed, outcome
    return outcome


def is_nothing(outcome: Outcome) -> bool:
    return not any(outcome)


def codes(outcome: Outcome) -> list[str]:
    return [problem.code for problem in outcome.problems]


def changing(spark: Spark) -> list[str]:
    """The commands that were no questions."""
    questions = (
        "ip -j",
        "nmcli --terse",
        "systemctl show",
        "systemctl list",
        "iptables",
        "netplan --help",
    )
    return [line for line in spark.said if not line.startswith(questions)]


# --- present ---


def test_a_bare_node_gets_everything(spark):
    outcome = done(spark)
    port = spark.links["enp1s0f0np0"]
    assert (port["up"], port["mtu"], port["addresses"][0]) == (True, 9000, "10.100.0.11/24")
    assert spark.read("proc/sys/net/ipv4/conf/enP2p1s0f0np0/arp_announce") == "2\n"
    assert spark.ours == {NETPLAN, SYSCTL}
    assert spark.read("proc/sys/net/ipv4/ip_forward") == "0\n"
    assert spark.timer and outcome.deadline is not None
    assert "enp1s0f0np0 is down, MTU 1500, no address, expected up, MTU 9000, 10.100.0.11/24" in (
        outcome.actions
    )


def test_the_second_run_changes_nothing_and_tells_that_the_first_waits(spark):
    deadline = done(spark).deadline
    again = reach(spark)
    assert (again.changed, again.deadline, again.diff) == (False, deadline, ())
    assert changing(spark) == []
    done(spark, state="confirmed")
    assert is_nothing(reach(spark))


@pytest.mark.parametrize("state", ["present", "absent"])
def test_check_mode_tells_the_same_and_changes_nothing(spark, state):
    if state == "absent":
        done(spark)
        done(spark, state="confirmed")
    before = spark.state()
    told = reach(spark, check=True, state=state)
    assert spark.state() == before and not spark.timer
    assert not [p for p in (spark.root / "run").iterdir() if p.name != "x"]
    did = done(spark, state=state)
    assert (told.changed, told.actions, told.diff) == (True, did.actions, did.diff)


def test_the_diff_shows_files_and_live_state(spark):
    shown = {part["after_header"]: part for part in done(spark).diff}
    assert list(shown) == [NETPLAN, SYSCTL, "live state"]
    assert shown[NETPLAN]["after"] == spark.read(NETPLAN) and shown[NETPLAN]["before"] == ""
    assert "enp1s0f0np0: down, MTU 1500, no address\n" in shown["live state"]["before"]
    assert "route 10.100.4.0/23: via 10.100.0.12 dev enp1s0f0np0\n" in shown["live state"]["after"]


@pytest.mark.parametrize(
    ("name", "changes", "told"),
    [
        ("enp1s0f0np0", {"mtu": 1500}, "up, MTU 1500, 10.100.0.11/24"),
        ("enp1s0f0np0", {"up": False}, "down, MTU 9000, 10.100.0.11/24"),
        ("enp1s0f0np0", {"addresses": []}, "up, MTU 9000, no address"),
        (
            "enP2p1s0f0np0",
            {"addresses": ["10.100.1.11/24", "10.9.9.9/24"]},
            "up, MTU 9000, 10.100.1.11/24, 10.9.9.9/24",
        ),
        ("enP2p1s0f0np0", {"addresses": ["10.100.1.11/16"]}, "up, MTU 9000, 10.100.1.11/16"),
        (
            "enP2p1s0f0np0",
            {"addresses": ["10.100.1.11/24", "2001:db8::1/64"]},
            "up, MTU 9000, 10.100.1.11/24, 2001:db8::1/64",
        ),
    ],
)
def test_what_somebody_changed_by_hand_is_put_right_and_only_there(spark, name, changes, told):
    done(spark)
    done(spark, state="confirmed")
    spark.links[name] |= changes
    outcome = done(spark)
    assert outcome.actions[0].startswith(f"{name} is {told}, expected ")
    assert [line for line in spark.said if "reconfigure" in line] == [
        f"networkctl reconfigure {name}"
    ]
    assert reach(spark).changed is False


@pytest.mark.parametrize(
    ("routes", "told"),
    [
        ([], "none"),
        ([{"dst": "10.100.4.0/23", "gateway": "10.100.0.9", "dev": "enp1s0f0np0"}], "10.100.0.9"),
        (
            [
                {"dst": "10.100.4.0/23", "gateway": "10.100.0.12", "dev": "enp1s0f0np0"},
                {"dst": "10.100.4.0/23", "dev": "enP2p1s0f0np0"},
            ],
            "via 10.100.0.12 dev enp1s0f0np0, via None dev enP2p1s0f0np0",
        ),
    ],
)
def test_a_route_that_is_missing_or_contested_is_a_difference(spark, routes, told):
    done(spark)
    spark.routes = routes
    assert told in reach(spark, check=True).actions[0]


def test_a_changed_file_is_a_difference_even_where_the_node_still_works(spark):
    done(spark)
    spark.write(NETPLAN, (spark.read(NETPLAN) or "").replace("9000", "1500"))
    assert "write /etc/netplan/99-sparkfleet-fabric.yaml" in done(spark).actions


def test_mode_and_comments_of_our_file_are_no_reason_to_touch_the_network(spark):
    done(spark)
    place = spark.root / NETPLAN.lstrip("/")
    place.write_text("# other words\n" + place.read_text())
    place.chmod(0o644)
    assert done(spark).actions == [f"write {NETPLAN}"]
    assert not [
        line for line in changing(spark) if not line.startswith(("systemd-run", "systemctl stop"))
    ]
    assert place.stat().st_mode & 0o777 == 0o600


def test_a_kernel_setting_alone_does_not_touch_the_network(spark):
    done(spark)
    spark.write("proc/sys/net/ipv4/conf/enp1s0f0np0/arp_ignore", "0\n")
    path = "/proc/sys/net/ipv4/conf/enp1s0f0np0/arp_ignore"
    assert done(spark).actions == [f"{path} is 0, expected 1"]
    assert spark.read(path) == "1\n"


def test_a_port_that_left_the_plan_is_as_it_was(spark):
    spark.links["enP2p1s0f0np0"]["addresses"] = ["10.7.7.7/24"]
    before = json.loads(json.dumps(spark.links["enP2p1s0f0np0"]))
    done(spark)
    done(spark, state="confirmed")
    done(spark, ports=PORTS[:1])
    assert spark.links["enP2p1s0f0np0"] == {**before, "up": True} | {"up": False}
    assert spark.read("proc/sys/net/ipv4/conf/enP2p1s0f0np0/arp_ignore") == "0\n"
    assert reach(spark, ports=PORTS[:1]).changed is False


# --- NetworkManager ---


def managed(spark: Spark) -> None:
    spark.active.add("NetworkManager.service")
    spark.write("lib/netplan/00-all.yaml", "network: {renderer: NetworkManager}")


def test_networkmanager_keeps_what_it_manages_and_addresses_outlive_the_peer(spark):
    managed(spark)
    done(spark)
    assert spark.links["enp1s0f0np0"]["by"] == "NetworkManager"
    assert spark.ours == {NETPLAN, SYSCTL, MANAGER_CONF}
    assert "match-device=interface-name:=enp1s0f0np0,interface-name:=enP2p1s0f0np0\n" in (
        spark.read(MANAGER_CONF) or ""
    )
    told = [line for line in changing(spark) if line.startswith(("nmcli", "networkctl"))]
    assert told == [
        "nmcli general reload conf",
        "nmcli connection reload",
        "networkctl reload",
        "nmcli device set enp1s0f0np0 managed yes",
        "nmcli device set enP2p1s0f0np0 managed yes",
        "nmcli --wait 60 connection up netplan-enp1s0f0np0",
        "nmcli --wait 60 connection up netplan-enP2p1s0f0np0",
    ]
    done(spark, state="absent")
    assert spark.ours == set() and spark.links["enp1s0f0np0"]["addresses"] == []


@pytest.mark.parametrize("first", ["networkd", "NetworkManager"])
def test_from_one_manager_to_the_other_and_back(spark, first):
    managed(spark)
    before = spark.state()
    done(spark, renderer=first)
    done(spark, state="confirmed")
    for renderer in ("networkd", "NetworkManager", "networkd"):
        if renderer != first or spark.links["enp1s0f0np0"]["by"] != renderer:
            done(spark, renderer=renderer)
        assert spark.links["enp1s0f0np0"]["by"] == renderer
        assert spark.released == {"enP7s7"} | (
            {port["netdev"] for port in PORTS} if renderer == "networkd" else set()
        )
        assert not reach(spark, renderer=renderer).changed
    assert spark.ours == {NETPLAN, SYSCTL}
    spark.fire()
    assert spark.links["enp1s0f0np0"]["by"] == first
    done(spark, state="absent")
    assert spark.state() == before


def test_networkmanager_that_does_not_run_is_no_manager(spark):
    assert codes(reach(spark, renderer="NetworkManager")) == ["no-networkmanager"]
    assert spark.ours == set()


def test_the_renderer_is_never_at_the_top(spark):
    managed(spark)
    done(spark)
    assert "renderer" not in yaml.safe_load(spark.read(NETPLAN) or "")["network"]


# --- forwarding ---


def test_a_node_between_others_forwards(spark):
    done(spark, forward=True)
    assert spark.read("proc/sys/net/ipv4/ip_forward") == "1\n"
    assert UNIT_NAME in spark.enabled
    assert "-A SPARKFLEET-FABRIC -i enp1s0f0np0 -o enP2p1s0f0np0 -j ACCEPT" in spark.chains
    assert reach(spark, forward=True).changed is False


def test_rules_that_are_gone_come_back_without_touching_the_network(spark):
    done(spark, forward=True)
    spark.chains = {"-P FORWARD DROP"}
    outcome = done(spark, forward=True)
    assert outcome.actions[0].startswith("chain SPARKFLEET-FABRIC is not in force")
    assert not [line for line in spark.said if line.startswith(("networkctl", "netplan generate"))]


def test_a_node_that_need_not_forward_any_more(spark):
    done(spark, forward=True)
    done(spark)
    assert spark.ours == {NETPLAN, SYSCTL} and spark.enabled == set()
    assert not [rule for rule in spark.chains if "SPARKFLEET" in rule]


def forwarding_script() -> str:
    wanted, problems = read_wanted({**GIVEN, "forward": True})
    assert wanted is not None and not problems
    return own_files(wanted, {port["netdev"]: "networkd" for port in PORTS})[SCRIPT]


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_the_script_is_sound(tmp_path):
    place = tmp_path / "fabric-forward"
    place.write_text(forwarding_script())
    done = subprocess.run(["shellcheck", place], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_script_asks_for_a_verb(tmp_path):
    place = tmp_path / "fabric-forward"
    place.write_text(forwarding_script())
    (tmp_path / "iptables-restore").write_text("#!/bin/sh\n")
    (tmp_path / "iptables").write_text("#!/bin/sh\n")
    for tool in tmp_path.iterdir():
        tool.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", place], capture_output=True, text=True, check=False, env={"PATH": str(tmp_path)}
    )
    assert done.returncode == 2 and "accept|remove" in done.stderr


# --- undone, confirmed, absent ---


@pytest.mark.parametrize("forward", [False, True])
def test_without_confirmation_everything_is_as_before(spark, forward):
    spark.links["enp1s0f0np0"] |= {"up": True, "addresses": ["10.9.9.9/24"]}
    spark.routes.append({"dst": "10.55.0.0/16", "gateway": "10.9.9.1", "dev": "enp1s0f0np0"})
    before, chains = spark.state(), set(spark.chains)
    done(spark, forward=forward)
    assert spark.state() != before
    spark.fire()
    assert spark.state() == before and spark.chains == chains
    told = reach(spark, state="confirmed")
    assert (
        codes(told) == ["undone"] and "nobody confirmed it within 90 s" in told.problems[0].message
    )


def test_without_confirmation_a_second_plan_goes_back_to_the_first(spark):
    done(spark)
    done(spark, state="confirmed")
    first = spark.state()
    done(spark, ports=[{**PORTS[0], "address": "10.100.0.21"}], routes=[])
    spark.fire()
    assert spark.state() == first
    assert codes(reach(spark, state="confirmed")) == ["undone"]
    assert reach(spark).changed is False
    assert is_nothing(reach(spark, state="confirmed"))  # there is what was asked for last


def test_an_address_from_dhcp_is_not_made_permanent(spark):
    spark.links["enp1s0f0np0"]["leased"] = ["198.51.100.77/24"]
    done(spark)
    spark.fire()
    assert not [line for line in spark.said if "198.51.100.77" in line]


def test_what_never_comes_true_is_undone_at_once(spark):
    spark.deaf.add("enP2p1s0f0np0")
    before = spark.state()
    outcome = reach(spark)
    assert codes(outcome) == ["undone"] and not outcome.changed
    assert "enP2p1s0f0np0 is down, MTU 1500, no address, expected up" in outcome.problems[0].message
    assert spark.state() == before and not spark.timer


def test_confirmed_twice_is_confirmed_once(spark):
    done(spark)
    assert reach(spark, check=True, state="confirmed").changed is True
    assert spark.timer
    done(spark, state="confirmed")
    assert not spark.timer
    assert is_nothing(reach(spark, state="confirmed"))
    assert is_nothing(reach(spark, check=True, state="confirmed"))


def test_notes_that_somebody_damaged_are_named(spark):
    spark.write("var/lib/sparkfleet/fabric/undo.json", "{")
    for state in ("present", "confirmed"):
        (problem,) = reach(spark, state=state).problems
        assert "/var/lib/sparkfleet/fabric/undo.json is damaged" in problem.message


def test_absent_is_as_before_and_leaves_nothing(spark):
    spark.links["enp1s0f0np0"] |= {"up": True, "addresses": ["10.9.9.9/24"]}
    before = spark.state()
    done(spark, forward=True)
    done(spark, state="confirmed")
    done(spark, state="absent")
    assert spark.state() == before
    assert reach(spark, state="absent").changed is False
    done(spark, state="confirmed")
    assert not (spark.root / "var/lib/sparkfleet/fabric").exists()
    assert is_nothing(reach(spark, state="absent"))


def test_absent_without_confirmation_comes_back(spark):
    done(spark, forward=True)
    done(spark, state="confirmed")
    before, chains = spark.state(), set(spark.chains)
    done(spark, state="absent")
    assert spark.ours == set()
    spark.fire()
    assert spark.state() == before and spark.chains == chains
    assert reach(spark, forward=True).changed is False


def test_absent_after_a_restart_does_not_bring_handmade_addresses_back(spark):
    spark.links["enp1s0f0np0"]["addresses"] = ["10.9.9.9/24"]
    done(spark)
    done(spark, state="confirmed")
    spark.write(RANDOM, "second-boot\n")
    done(spark, state="absent")
    assert spark.links["enp1s0f0np0"]["addresses"] == []
    assert spark.links["enp1s0f0np0"]["mtu"] == 1500


def test_absent_leaves_forwarding_to_docker(spark):
    done(spark, forward=True)
    spark.active.add("docker.service")
    done(spark, state="absent")
    assert spark.read("proc/sys/net/ipv4/ip_forward") == "1\n"


def test_absent_where_what_was_before_is_forgotten(spark):
    done(spark)
    done(spark, state="confirmed")
    shutil.rmtree(spark.root / "var/lib/sparkfleet/fabric")
    done(spark, state="absent")
    assert spark.links["enp1s0f0np0"]["addresses"] == [] and spark.ours == set()


# --- what forbids it ---


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"ports": []}, "ports is empty"),
        ({"ports": [{"netdev": "x"}]}, "ports[0] has no prefix"),
        ({"ports": [{"netdev": "x", "prefix": 24}]}, "ports[0] has no address"),
        (
            {"ports": [{"netdev": "x", "prefix": 24, "address": "10.1.1.300"}]},
            "ports[0] has no usable address or prefix: ",
        ),
        (
            {"ports": [{"netdev": "x", "prefix": "long", "address": "10.1.1.3"}]},
            "ports[0] has no usable address or prefix: ",
        ),
        ({"ports": [{**PORTS[0], "netdev": "a/b"}]}, "'a/b' is no name of a network interface"),
        ({"ports": [{**PORTS[0], "netdev": None}]}, "None is no name of a network interface"),
        ({"ports": [PORTS[0], PORTS[0]]}, "two ports have the same netdev: enp1s0f0np0"),
        ({"ports": [PORTS[0], PORTS[0]]}, "two ports have the same address: 10.100.0.11"),
        ({"management_interface": "enp1s0f0np0"}, "enp1s0f0np0 is the management interface"),
        ({"mtu": 500}, "mtu is 500, expected 1280 to 9216"),
        ({"routes": [{"to": "10.1.0.0/33", "via": "10.100.0.12"}]}, "route to 10.1.0.0/33"),
        ({"routes": [{"to": "0.0.0.0/0", "via": "10.100.0.12"}]}, "a default route belongs"),
        (
            {"routes": [{"to": "10.1.0.0/16", "via": "10.200.0.12"}]},
            "route to 10.1.0.0/16: its gateway 10.200.0.12 is in no subnet of a port",
        ),
        (
            {"routes": [{"to": "10.1.0.0/16", "via": "10.100.0.12", "netdev": "enP2p1s0f0np0"}]},
            "its gateway 10.100.0.12 is on enp1s0f0np0, expected it on enP2p1s0f0np0",
        ),
        (
            {"routes": [{"to": "10.1.0.0/16", "via": "10.100.0.11"}]},
            "its gateway 10.100.0.11 is in no subnet",
        ),
    ],
)
def test_input_that_cannot_be_meant(spark, changes, told):
    outcome = reach(spark, **changes)
    assert set(codes(outcome)) == {"input"}
    assert [p for p in outcome.problems if told in p.message], outcome.problems
    assert not outcome.changed and changing(spark) == []


def test_a_route_finds_its_port_by_the_gateway():
    wanted, _problems = read_wanted(
        {**GIVEN, "routes": [{"to": "10.1.0.0/16", "via": "10.100.1.9"}]}
    )
    assert wanted is not None and wanted.routes[0].netdev == "enP2p1s0f0np0"


def without(name: str) -> Callable[[Spark], Any]:
    return lambda spark: spark.links.pop(name)


def address(name: str, text: str) -> Callable[[Spark], None]:
    return lambda spark: spark.links[name]["addresses"].append(text)


@pytest.mark.parametrize(
    ("prepare", "code", "told"),
    [
        (
            without("enP2p1s0f0np0"),
            "unknown-netdev",
            "enP2p1s0f0np0 is not on this node, which has",
        ),
        (without("enP7s7"), "unknown-netdev", "enP7s7 is not on this node"),
        (
            lambda spark: spark.links["enp1s0f0np0"].update(master="bond0"),
            "enslaved",
            "enp1s0f0np0 is part of bond0",
        ),
        (
            lambda spark: spark.routes.append({"dst": "default", "dev": "enp1s0f0np0"}),
            "default-route",
            "the default route of this node leads through enp1s0f0np0",
        ),
        (
            address("enP7s7", "10.100.1.200/16"),
            "overlap",
            "enP2p1s0f0np0's subnet 10.100.1.0/24 overlaps 10.100.0.0/16 of enP7s7",
        ),
        (
            address("docker0", "10.100.4.1/24"),
            "overlap",
            "the route to 10.100.4.0/23 overlaps 10.100.4.0/24 of docker0",
        ),
        (
            lambda spark: spark.write("etc/netplan/90-NM-1b2c.yaml", PROFILE),
            "foreign-netplan",
            (
                "enp1s0f0np0 is already claimed by /etc/netplan/90-NM-1b2c.yaml: NetworkManager "
                "keeps a profile for it (169.254.7.7/16); "
                "nmcli connection delete 'Wired connection 2'"
            ),
        ),
        (
            lambda spark: spark.write("etc/netplan/50-x.yaml", "network: [}"),
            "broken-netplan",
            "/etc/netplan/50-x.yaml, line 1 is not YAML",
        ),
        (
            lambda spark: spark.serving.append("sparkfleet-rank@cell1.service"),
            "rank-serving",
            "sparkfleet-rank@cell1.service serves",
        ),
        (
            lambda spark: spark.broken.update({"ip -j": Command(1, "", "Dump terminated\n")}),
            "unreadable",
            "ip -j address show: Dump terminated",
        ),
        (
            lambda spark: spark.broken.update(
                {"netplan --help": Command(NOT_FOUND, "", "netplan: command not found")}
            ),
            "no-netplan",
            "apt install netplan.io",
        ),
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_what_forbids_a_change_is_said_and_nothing_is_changed(spark, prepare, code, told, check):
    prepare(spark)
    before = spark.state()
    outcome = reach(spark, check=check)
    assert code in codes(outcome), outcome.problems
    assert [p for p in outcome.problems if p.code == code and told in p.message], outcome.problems
    assert spark.state() == before and not spark.timer


def test_all_that_forbids_it_is_said_at_once(spark):
    spark.write(
        "etc/netplan/50-x.yaml", "network: {ethernets: {enp1s0f0np0: {gateway4: 10.1.1.1}}}"
    )
    spark.serving.append("sparkfleet-rank@cell1.service")
    outcome = reach(spark, renderer="NetworkManager")
    assert codes(outcome) == ["no-networkmanager", "foreign-netplan", "rank-serving"]
    assert outcome.actions and outcome.diff


def test_what_is_accepted_is_done(spark):
    spark.write("etc/netplan/50-x.yaml", PROFILE)
    spark.serving.append("sparkfleet-rank@cell1.service")
    done(spark, accept_foreign=True, force=True)
    spark.links["enp1s0f0np0"]["addresses"].append("169.254.7.7/16")
    assert not reach(spark, accept_foreign=True).changed
    spark.links["enp1s0f0np0"]["addresses"].remove("10.100.0.11/24")
    assert reach(spark, accept_foreign=True, force=True).changed


def test_a_subnet_may_move_to_another_port(spark):
    done(spark)
    done(spark, state="confirmed")
    done(spark, ports=[{**PORTS[0], "netdev": "enp1s0f1np1"}])
    assert spark.links["enp1s0f0np0"]["addresses"] == []
    assert "10.100.0.11/24" in spark.links["enp1s0f1np1"]["addresses"]


def test_a_rank_may_serve_while_nothing_differs(spark):
    done(spark)
    spark.serving.append("sparkfleet-rank@cell1.service")
    assert not reach(spark).problems
    assert codes(reach(spark, state="absent")) == ["rank-serving"]


def test_a_foreign_file_is_named_also_where_nothing_differs(spark):
    done(spark)
    spark.write("etc/netplan/99-z.yaml", "network: {ethernets: {enp1s0f0np0: {mtu: 1500}}}")
    outcome = reach(spark)
    assert codes(outcome) == ["foreign-netplan"]
    assert "/etc/netplan/99-z.yaml: it sets mtu; take the port out" in outcome.problems[0].message


def test_a_file_netplan_refuses_never_lands_and_foreign_lines_are_not_quoted(spark):
    spark.write("etc/netplan/50-wifi.yaml", "network: {wifis: {w: {password: secret}}}")
    said: list[str] = []

    def refuse(argv: Sequence[str]) -> Command:
        folder = Path(argv[-1])
        assert folder.stat().st_mode & 0o777 == 0o700
        said.extend(sorted(place.name for place in (folder / "etc/netplan").iterdir()))
        where = folder / "etc/netplan/50-wifi.yaml"
        return Command(1, "", f"{where}:1:7: Error\n{{password: secret}}\n   ^\n")

    spark.broken["netplan generate --root-dir"] = refuse
    (problem,) = reach(spark).problems
    assert said == ["01-management.yaml", "50-wifi.yaml", "99-sparkfleet-fabric.yaml"]
    told = "netplan would refuse it: /etc/netplan/50-wifi.yaml:1:7: Error"
    assert problem == ("broken-netplan", told)
    assert spark.ours == set() and not list((spark.root / "run").glob("sparkfleet-*"))


def test_no_yaml_module(spark, monkeypatch):
    monkeypatch.setattr(_node_change, "HAS_YAML", False)
    outcome = reach(spark)
    assert codes(outcome) == ["no-yaml"] and "/usr/bin/python3" in outcome.problems[0].message
