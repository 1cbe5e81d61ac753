# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is installed and found on nodes, and how all ranks of a cell are judged together."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils import (
    _rank,
    _rank_boot,
    _rank_node,
    _rank_unit,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._bounded import Command
from ansible_collections.sparkfleet.cluster.plugins.module_utils._engine_boot import examine
from ansible_collections.sparkfleet.cluster.plugins.module_utils._image_facts import (
    node_architecture,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_settings import (
    rank_settings,
    unit_text,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._rank_verdict import rank_verdict

from tests.unit import ranks
from tests.unit.fabrics import plan
from tests.unit.servings import serving

UNIT = "sparkfleet-rank@sparks.service"


# --- from the plan to files ---


def test_settings_follow_from_the_plans():
    fabric, launch = plan(4), serving("dsv41-tp4-ring", 4, "ring")
    tables = [{"layer": 1, "rows": 1000}]
    made = {
        host: rank_settings(
            launch,
            host,
            fabric=fabric,
            tables=tables,
            rendezvous_port=20000,
            checkpoint_filesystem="nfs",
        )
        for host in launch["hosts"]
    }
    assert [one["rank"] for one in made.values()] == [0, 1, 2, 3]
    assert [one["checkpoint_filesystem"] for one in made.values()] == ["", "nfs", "nfs", "nfs"]
    second = made["spark2"]
    assert second["engram"] == {"path": "/engram", "tables": tables}
    assert second["gid"]["peers"]["rocep1s0f0"] == "spark3 cage 1"
    assert second["gpu"] == "auto"
    assert json.loads(json.dumps(second)) == second


def test_a_model_without_tables_has_none():
    launch = serving("dsv41-tp4-ring", 4, "ring")
    made = rank_settings(launch, "spark1", fabric=plan(4), tables=[], rendezvous_port=20000)
    assert made["engram"] is None


def test_the_unit_says_what_the_decision_says():
    text = unit_text(ranks.settings())
    for line in (
        "Type=notify",
        "ExecStart=/usr/bin/python3 -I /usr/local/lib/sparkfleet/rank.py run sparks",
        "ExecStopPost=/usr/bin/python3 -I /usr/local/lib/sparkfleet/rank.py clean sparks",
        "RequiresMountsFor=/lib/libnccl.so.2 /srv/checkpoint /srv/engram /var/lib/state",
        "Restart=no",
        "StartLimitIntervalSec=0",
        "LogRateLimitIntervalSec=0",
        "Wants=docker.service network-online.target",
    ):
        assert f"\n{line}\n" in text
    assert "Requires=" not in text  # it would stop the rank with the daemon


def test_a_mount_over_the_network_is_waited_for_and_not_required():
    """F20: after a power cut of all nodes the server of the mount boots as well."""
    text = unit_text(ranks.settings(checkpoint_filesystem="nfs"))
    assert "RequiresMountsFor=/lib/libnccl.so.2 /srv/engram /var/lib/state\n" in text
    assert "After=docker.service network-online.target srv-checkpoint.mount\n" in text


def test_odd_paths_are_one_word_in_a_unit():
    mounts = [{"source": "/a b%c", "target": "/x", "read_only": True}]
    text = unit_text(ranks.settings(container={"mounts": mounts}))
    assert "RequiresMountsFor=/a\\ b%%c\n" in text


def test_files_are_written_once(tmp_path):
    one = _rank_unit.Installation(ranks.settings(), "runtime", str(tmp_path))
    assert len(one.differing()) == 4
    one.write()
    assert one.differing() == []
    assert one.missing_folders() == []
    assert (tmp_path / "var/lib/state").is_dir()
    stored = tmp_path / "etc/sparkfleet/sparks/rank.json"
    assert json.loads(stored.read_text())["gpu"] == "runtime"
    assert stored.stat().st_mode & 0o777 == 0o600
    program = tmp_path / "usr/local/lib/sparkfleet/rank.py"
    assert program.read_text() == Path(str(_rank.__file__)).read_text()
    stored.chmod(0o644)
    assert one.differing() == ["/etc/sparkfleet/sparks/rank.json"]


def test_the_last_rank_takes_the_programs_with_it(tmp_path):
    first = _rank_unit.Installation(ranks.settings(), "none", str(tmp_path))
    second = _rank_unit.Installation(ranks.settings(cell="other"), "none", str(tmp_path))
    first.write()
    second.write()
    _rank_unit.Installation({"cell": "sparks"}, None, str(tmp_path)).remove()
    assert (tmp_path / "usr/local/lib/sparkfleet/rank.py").exists()
    assert first.present() == []
    _rank_unit.Installation({"cell": "other"}, None, str(tmp_path)).remove()
    assert not (tmp_path / "usr/local/lib/sparkfleet/rank.py").exists()
    assert (tmp_path / "var/lib/state").is_dir()  # what the engine keeps stays


class Answers:
    """Answers commands by their beginning, and remembers what was asked."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = answers
        self.asked: list[str] = []

    def __call__(self, argv: Sequence[str]) -> Command:
        line = " ".join(argv)
        self.asked.append(line)
        for beginning, answer in self._answers.items():
            if line.startswith(beginning):
                return answer if isinstance(answer, Command) else Command(0, answer, "")
        return Command(1, "", f"no answer to {line}")


def test_a_start_forgets_earlier_failures_and_says_why_it_failed():
    """F11: a start by us is never refused for what was before."""
    run = Answers({"systemctl reset-failed": "", "systemctl start": ""})
    _rank_unit.start("sparks", run)
    assert run.asked == [f"systemctl reset-failed {UNIT}", f"systemctl start {UNIT}"]
    said = "up\nnot started: found no Engram table; next: pack\nnot started: found no index\n"
    failing = Answers({"systemctl start": Command(1, "", "Job failed"), "journalctl": said})
    with pytest.raises(_rank_unit.UnitError) as raised:
        _rank_unit.start("sparks", failing)
    assert str(raised.value) == "found no Engram table; next: pack\nfound no index"


# --- what a node has ---

IMAGE = json.dumps(
    [
        {
            "Id": "sha256:1",
            "Architecture": "amd64",
            "Os": "linux",
            "RootFS": {"Layers": ["sha256:a"]},
            "Config": {},
        }
    ]
)


def show(state: str = "active", **more: str) -> str:
    found = {"LoadState": "loaded", "ActiveState": state, "ExecMainStatus": "0", **more}
    return "".join(f"{name}={value}\n" for name, value in found.items())


def container(**changes: Any) -> str:
    labels = {
        "sparkfleet.cell": "sparks",
        "sparkfleet.settings": "digest",
        "sparkfleet.gpu": "runtime",
    }
    made = {
        "Config": {"Labels": {**labels, **changes.pop("labels", {})}},
        "Image": "sha256:1",
        "State": {"Running": True, "Pid": 7},
    }
    return json.dumps([{**made, **changes}])


def look(root: Path, answers: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    known = {
        "systemctl list-units": "",
        "systemctl show": show("inactive"),
        "docker info": "{}",
        "docker image inspect": IMAGE.replace("amd64", node_architecture()),
    }
    made = ranks.settings(**{"gpu": "none", **changes})
    return _rank_node.rank_facts(made, Answers({**answers, **known, **answers}), root=str(root))


def problem_codes(facts: Mapping[str, Any]) -> list[str]:
    return [problem["code"] for problem in facts["problems"]]


def test_a_rank_that_can_start_has_no_problem(tmp_path):
    facts = look(ranks.node(tmp_path), {})
    assert facts["problems"] == []
    assert not facts["running"]
    assert set(facts["equal"]) == {
        "config.json of the checkpoint",
        "model.safetensors.index.json of the checkpoint",
        "NCCL library",
        "image",
    }


@pytest.mark.parametrize(
    ("answers", "codes"),
    [
        ({"docker info": Command(127, "", "docker: command not found")}, ["docker-absent"]),
        ({"docker info": Command(1, "", "Cannot connect to the daemon")}, ["docker-down"]),
        ({"docker image inspect": Command(1, "", "No such image: x")}, ["image-missing"]),
        ({"docker image inspect": IMAGE.replace("amd64", "s390x")}, ["image-architecture"]),
        (
            {"docker container inspect": container(labels={"sparkfleet.cell": "x"})},
            ["foreign-container"],
        ),
    ],
)
def test_what_keeps_a_rank_from_starting(tmp_path, answers, codes):
    facts = look(ranks.node(tmp_path), answers)
    assert problem_codes(facts) == codes


def test_a_taken_port_is_named(tmp_path):
    root = ranks.node(tmp_path)
    (root / "proc/net").mkdir()
    rows = "  sl local\n 0: 0100007F:22B8 00000000:0000 0A 0:0\n 1: 00000000:4E20 0:0 0A 0:0\n"
    (root / "proc/net/tcp").write_text(rows)
    facts = look(root, {}, head=True)
    assert problem_codes(facts) == ["port-taken", "port-taken"]
    assert "8888" in facts["problems"][0]["message"]
    assert "20000" in facts["problems"][1]["message"]
    assert problem_codes(look(root, {})) == ["port-taken"]  # nobody meets at a worker
    running = {"systemctl show": show(), "docker container inspect": container()}
    assert problem_codes(look(root, running, head=True)) == []


def test_a_running_rank_is_not_asked_for_its_gpu_again(tmp_path):
    running = {"systemctl show": show(), "docker container inspect": container()}
    facts = look(ranks.node(tmp_path), running, gpu="auto")
    assert facts["gpu"] == "runtime"
    assert facts["settings"] == "digest"
    assert facts["problems"] == []


@pytest.mark.parametrize(
    ("info", "ways"),
    [
        ({"Runtimes": {"runc": {}}}, ["gpus"]),
        ({"Runtimes": {"nvidia": {}, "runc": {}}, "DefaultRuntime": "runc"}, ["runtime", "gpus"]),
        (
            {"DiscoveredDevices": [{"ID": "nvidia.com/gpu=all"}], "Runtimes": {"nvidia": {}}},
            ["cdi", "runtime", "gpus"],
        ),
    ],
)
def test_ways_to_a_gpu_follow_from_the_engine(info, ways):
    """E28: it is asked for in words, whatever the default runtime is."""
    assert _rank_node.gpu_ways(info) == ways


def test_a_way_that_is_refused_is_not_taken():
    """E04: in CDI mode the flag is not supported."""
    refusal = "invoking the NVIDIA Container Runtime Hook directly is not supported"
    run = Answers(
        {
            "docker info": json.dumps({"Runtimes": {"nvidia": {}}}),
            "docker run --rm --pull never --network none --runtime nvidia": Command(1, "", refusal),
            "docker run": "GPU 0: NVIDIA GB10 (UUID: GPU-1)",
        }
    )
    assert _rank_node.find_gpu("engine:1", run) == ("gpus", None)
    nothing = Answers({"docker info": "{}", "docker run": Command(1, "", refusal)})
    way, problem = _rank_node.find_gpu("engine:1", nothing)
    assert way is None
    assert problem
    assert refusal in problem["message"]
    assert "next: " in problem["message"]


# --- all ranks together ---


def found(**changes: Any) -> dict[str, Any]:
    """A rank that runs as planned."""
    made: dict[str, Any] = {
        "problems": [],
        "equal": {"image": "a", "NCCL library": "n"},
        "image": {"exists": True, "id": "sha256:1"},
        "unit": {"state": "active", "at_work": True},
        "container": {"image_id": "sha256:1"},
        "running": True,
        "settings": _rank.digest(ranks.settings()),
        "gpu": "runtime",
        "differs": [],
    }
    return {**made, **changes}


def cell(**changes: Mapping[str, Any]) -> dict[str, Any]:
    hosts = ["spark1", "spark2", "spark3", "spark4"]
    facts = {host: found(**changes.get(host, {})) for host in hosts}
    own = {host: ranks.settings(gpu="auto", head=host == "spark3") for host in hosts}
    for host, one in own.items():
        if "settings" not in changes.get(host, {}):
            facts[host]["settings"] = _rank.digest({**one, "gpu": facts[host]["gpu"]})
    return rank_verdict(facts, own)


def test_a_cell_that_runs_as_planned_is_left_alone():
    assert cell() == {
        "problems": [],
        "serving": True,
        "reasons": {},
        "at_work": ["spark3", "spark1", "spark2", "spark4"],  # the head first
    }


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"settings": "other"}, "it runs with other settings"),
        ({"container": {"image_id": "sha256:0"}}, "it runs an older image of that name"),
        ({"differs": [f"/etc/systemd/system/{UNIT}"]}, "its unit has to change"),
        ({"running": False, "unit": {"state": "failed", "at_work": False}}, "its unit is failed"),
    ],
)
def test_one_rank_that_differs_starts_the_whole_cell_again(change, reason):
    verdict = cell(spark2=change)
    assert not verdict["serving"]
    assert verdict["reasons"] == {"spark2": reason}


def test_a_newer_program_alone_stops_nobody():
    assert cell(spark2={"differs": ["/usr/local/lib/sparkfleet/rank.py"]})["serving"]


def test_what_differs_between_ranks_is_a_problem_with_names():
    verdict = cell(spark2={"equal": {"image": "b", "NCCL library": "n"}})
    (problem,) = verdict["problems"]
    assert problem.startswith("image: found another one on spark2 than on spark1, spark3, spark4")
    assert "next: run the playbook build" in problem


def test_the_same_problem_of_several_hosts_is_told_once():
    missing = {"problems": [{"code": "x", "message": "found no image; next: build"}]}
    verdict = cell(spark1=missing, spark2=missing, spark3=missing)
    assert verdict["problems"] == ["spark1..spark3: found no image; next: build"]


# --- a boot ---

PROOFS = [{"name": "packed tables", "pattern": "packed=True", "scope": "all", "count": 2}]
FATALS: list[dict[str, Any]] = [
    {"name": "memory", "pattern": "out of memory", "cause": "It ran out.", "remedy": "Ask less."},
    {"name": "driver", "pattern": "NV_ERR_NO_MEMORY", "weak": True},
]
GOOD = (
    "server_args=ServerArgs(x)\nlayer 1 packed=True\nlayer 14 packed=True\nmax_total_num_tokens=8\n"
)
READY = GOOD + "The server is fired up and ready to roll!\n"


def rank(number: int, text: str = GOOD, **changes: Any) -> dict[str, Any]:
    head = number == 0
    made: dict[str, Any] = {
        "rank": number,
        "head": head,
        "state": "active",
        "status": "running",
        "problems": [],
        "ended": None,
        "log": examine(
            READY if head and text == GOOD else text, proofs=PROOFS, fatals=FATALS, head=head
        ),
        "log_path": "/var/log/x.log",
        "tail": text.splitlines()[-3:],
        "unjoined": "",
        "limit_problem": "",
        "limit_note": "",
        "answered": 100.0 if head else None,
        "answer_problem": "",
        "time": 101.0,
    }
    return {**made, **changes}


HOSTS = ["a", "b"]


def judge(*made: Mapping[str, Any], **options: Any) -> _rank_boot.Verdict:
    told = dict(zip(HOSTS, made, strict=False))
    wanted = {"elapsed": 5.0, "timeout": 60.0, **options}
    return _rank_boot.judge(told, wanted.pop("expected", HOSTS), **wanted)


def test_a_cell_is_ready_when_all_are_and_the_head_has_answered():
    assert judge(rank(0), rank(1)).state == "ready"
    assert judge(rank(0, answered=None), rank(1)).state == "booting"
    assert judge(rank(0)).state == "booting"  # nothing is known about b
    assert judge(rank(0), rank(1, state="activating")).state == "booting"


def test_the_rank_that_ended_first_is_told_first():
    """E09: whoever waits for it sees nothing."""
    late = rank(
        0, GOOD + "\n", state="failed", ended=20.0, problems=["exit status 1"], answered=None
    )
    first = rank(1, "server_args=ServerArgs(x)\nRuntimeError: out of memory\n", state="failed")
    first.update(ended=10.0, problems=["exit status 1"])
    verdict = judge(late, first)
    assert verdict.state == "failed"
    assert list(verdict.problems) == ["b", "a"]
    assert verdict.problems["a"] == [
        "rank 0 (a) ended (stage: memory pool): exit status 1; b was first"
    ]
    text = "\n".join(verdict.problems["b"])
    assert "rank 1 (b) ended (stage: starting): exit status 1" in text
    assert "Cause: It ran out. Remedy: Ask less." in text
    assert "RuntimeError: out of memory" in text


def test_who_printed_a_cause_comes_before_who_ended_earlier():
    lost = rank(0, GOOD + "\n", state="failed", ended=10.0, problems=["exit status 1"])
    cause = rank(1, "out of memory\n", state="failed", ended=10.4, problems=["exit status 1"])
    assert list(judge({**lost, "answered": None}, cause).problems) == ["b", "a"]


def test_a_fatal_line_of_a_living_rank_ends_the_wait():
    verdict = judge(rank(0, answered=None), rank(1, GOOD + "CUDA out of memory\n"))
    assert verdict.state == "failed"
    assert list(verdict.problems) == ["b"]


def test_a_weak_line_fails_nothing_by_itself():
    """F14."""
    assert judge(rank(0), rank(1, GOOD + "NV_ERR_NO_MEMORY\n")).state == "ready"
    ended = rank(1, GOOD + "NV_ERR_NO_MEMORY\n", state="failed", ended=1.0, problems=["gone"])
    assert "NV_ERR_NO_MEMORY" in "\n".join(judge(rank(0), ended).problems["b"])


def test_proofs_may_be_late_but_not_missing():
    unproven = rank(1, "server_args=ServerArgs(x)\nlayer 1 packed=True\n")
    assert judge(rank(0), unproven).state == "booting"
    verdict = judge(rank(0), {**unproven, "time": 200.0})
    assert verdict.state == "failed"
    assert "does not show: packed tables (1 of 2 lines)" in verdict.problems["b"][0]
    verdict = judge(rank(0), unproven, elapsed=61.0)  # and the head is not to blame
    assert list(verdict.problems) == ["b"] and "does not show" in verdict.problems["b"][0]


def test_lost_lines_are_unknown_and_no_failure():
    """F09."""
    lost = rank(1)
    lost["log"] = examine("", proofs=PROOFS, head=False, incomplete=True)
    verdict = judge(rank(0), {**lost, "time": 200.0})
    assert verdict.state == "ready"
    assert "it is unknown whether" in verdict.notes[0]


def test_a_small_pool_is_a_failure_and_a_smaller_one_a_note():
    clamped = copy.deepcopy(rank(0))
    clamped["log"]["pool"].update(granted=600, asked=800, clamped=True)
    verdict = judge(clamped, rank(1), pool_least=500)
    assert verdict.state == "ready"
    assert "600 tokens of the 800 asked for" in verdict.notes[0]
    verdict = judge(clamped, rank(1), pool_least=700)
    assert verdict.state == "failed"
    assert "expected 700 or more" in verdict.problems["a"][-1]


def test_a_head_that_is_up_and_does_not_answer_is_a_failure():
    """E08: health says 200."""
    verdict = judge(rank(0, answered=None, answer_problem="no answer within 120 s"), rank(1))
    assert verdict.state == "failed"
    assert "no answer within 120 s" in verdict.problems["a"][-1]


def test_limits_of_memory_are_a_failure_or_a_note():
    """E29."""
    assert judge(rank(0), rank(1, limit_problem="8388608 bytes")).state == "failed"
    assert judge(rank(0), rank(1, limit_note="8388608 bytes")).notes == ["b: 8388608 bytes"]


def test_time_ends_every_wait_and_says_how_far_each_rank_got():
    loading = rank(0, "server_args=ServerArgs(x)\n50% Completed | 24/48 [\n", answered=None)
    verdict = judge(loading, elapsed=61.0)
    assert verdict.state == "failed"
    assert "it got as far as: loading 24/48" in verdict.problems["a"][0]
    assert "b said nothing within 60 s" in verdict.problems["b"][0]


def test_the_rank_that_the_others_wait_for_is_told_first():
    waiting = rank(0, "Init torch distributed begin.\n", answered=None)
    missing = rank(1, "Init torch distributed begin.\n")
    lack = missing["unjoined"] = "no connection to TCP port 20000 of the head"
    verdict = judge(waiting, missing, elapsed=61.0)
    assert list(verdict.problems) == ["b", "a"]
    assert verdict.problems["b"] == [
        f"rank 1 (b) is not ready after 60 s; it got as far as: rendezvous, with {lack}",
        "    Init torch distributed begin.",
        "rank 0 (a) is not ready after 60 s; it got as far as: rendezvous",
    ]
    behind = rank(1, "server_args=ServerArgs(x)\n")
    assert list(judge(waiting, behind, elapsed=61.0).problems) == ["b", "a"]


def test_progress_tells_ranks_together():
    loading = "server_args=ServerArgs(x)\n50% Completed | 24/48 [\n"
    told = {"a": rank(0, loading, answered=None), "b": rank(1, loading), "c": rank(2, "")}
    assert _rank_boot.progress("x", told, 75.0, 4) == (
        "x 1:15 rank 0+1 loading 24/48, rank 2 running"
    )
    del told["c"]
    assert _rank_boot.progress("x", told, 5.0, 2) == "x 0:05 all ranks loading 24/48"


def boot(root: Path, unit: str, **changes: Any) -> dict[str, Any]:
    run = Answers({"systemctl show": unit})
    return _rank_node.boot_facts(
        ranks.settings(**changes), run, proofs=PROOFS, fatals=FATALS, root=str(root)
    )


def test_a_boot_is_read_from_the_file_of_this_start(tmp_path):
    logs = tmp_path / "var/log/sparkfleet"
    logs.mkdir(parents=True)
    (logs / "sparks-rank.log").write_text(GOOD)
    # what an earlier start printed proves nothing before the unit ran in this life of the node
    assert boot(tmp_path, show("inactive"))["log"]["proven"] is False
    told = tmp_path / "run/sparkfleet/sparks/rank.json"
    told.parent.mkdir(parents=True)
    told.write_text(json.dumps({"settings": "x", "stage": "running", "since": 1.0, "pid": 77}))
    facts = boot(tmp_path, show())
    assert facts["log"]["proven"] is True
    assert facts["ended"] is None
    (logs / "sparks-rank.boot.log").write_text(GOOD)
    (logs / "sparks-rank.log").write_text("much later\n")
    assert boot(tmp_path, show())["log"]["proven"] is True
    told.write_text(
        json.dumps({"settings": "x", "stage": "ended", "since": 9.0, "problems": ["e"]})
    )
    facts = boot(tmp_path, show("failed"))
    assert (facts["ended"], facts["problems"]) == (9.0, ["e"])


@pytest.mark.parametrize(
    ("head", "row", "lack"),
    [
        (False, "0B01140A:9C40 0A01140A:4E20 01", ""),
        (False, "0B01140A:9C40 0A01140A:4E20 02", "no connection to TCP port 20000 of the head"),
        (False, "0B01140A:4E20 0A01140A:9C40 01", "no connection to TCP port 20000 of the head"),
        (True, "0A01140A:4E20 00000000:0000 0A", ""),
        (True, "0A01140A:22B8 00000000:0000 0A", "nobody listens on TCP port 20000"),
    ],
)
def test_whether_a_rank_meets_the_others_is_read_from_the_kernel(tmp_path, head, row, lack):
    (tmp_path / "proc/net").mkdir(parents=True)
    (tmp_path / "proc/net/tcp").write_text(f"  sl local remote st\n 0: {row} 0:0\n")
    assert boot(tmp_path, show(), head=head)["unjoined"] == lack


def test_the_limit_of_the_engine_is_read_from_the_kernel(tmp_path):
    told = tmp_path / "run/sparkfleet/sparks/rank.json"
    told.parent.mkdir(parents=True)
    told.write_text(json.dumps({"settings": "x", "stage": "running", "since": 1.0, "pid": 77}))
    limits = tmp_path / "proc/77/limits"
    limits.parent.mkdir(parents=True)
    limits.write_text("Max locked memory         8388608              8388608              bytes\n")
    assert "8388608 bytes" in boot(tmp_path, show())["limit_problem"]
    accepted = boot(tmp_path, show(), accept_limits=True)
    assert accepted["limit_problem"] == ""
    assert "accepted" in accepted["limit_note"]
    limits.write_text("Max locked memory         unlimited            unlimited            bytes\n")
    assert boot(tmp_path, show())["limit_problem"] == ""
