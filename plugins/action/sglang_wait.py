# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from ansible import constants as C  # noqa: N812  # its usual name
from ansible import context
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.sparkfleet.cluster.plugins.module_utils import _rank_boot
from ansible_collections.sparkfleet.cluster.plugins.module_utils._plain import plain
from ansible_collections.sparkfleet.cluster.plugins.module_utils._state_file import write_whole

display = Display()

_LINES: dict[str, Any] = {"type": "list", "elements": "dict", "default": []}
LOOK: dict[str, dict[str, Any]] = {
    "settings": {"type": "dict", "required": True},
    "proofs": _LINES,
    "fatals": _LINES,
    "pool_tokens_asked": {"type": "int"},
    "served_name": {"type": "str", "required": True},
    "answer_timeout": {"type": "float", "default": 120},
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    **LOOK,
    "cell": {"type": "str", "required": True},
    "hosts": {"type": "list", "elements": "str", "required": True},
    "pool_tokens_least": {"type": "int"},
    "ready_timeout": {"type": "float", "default": 3600},
    "interval": {"type": "float", "default": 2},
}
_SETTLE = 30.0  # seconds for the last look at every rank of a broken cell
_GLANCE = 0.1  # seconds between two glances at what the other hosts saw
_REPEAT = 30.0  # seconds after which an unchanged line of progress is told again


class ActionModule(ActionBase):
    """Look at the rank of one host until all ranks together are ready, or one is broken.

    The processes of this task, one for each host, tell each other what they saw through files in
    the directory that Ansible makes for its run and removes after it.
    """

    _requires_connection = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        _validation, validated = self.validate_argument_spec(argument_spec=ARGUMENTS)
        options = plain(validated)
        look = {name: options[name] for name in LOOK}
        run = self._task._uuid  # noqa: SLF001  # the same in the process of every host
        board = Path(C.DEFAULT_LOCAL_TMP, f"sglang-{run}")  # type: ignore[attr-defined]
        board.mkdir(mode=0o700, exist_ok=True)
        host = str(variables["inventory_hostname"])
        hosts: list[str] = options["hosts"]
        # With too few forks some hosts of the cell have no process beside this one.
        forks = int(context.CLIARGS.get("forks", 5))
        expected = hosts if forks >= len(hosts) else []
        begun = time.monotonic()
        shown, shown_at = "", 0.0
        answered = None  # when the head did for the first time; every look asks it anew
        while True:
            looked = time.time()
            seen: dict[str, Any] = self._execute_module(
                module_name="sparkfleet.cluster.sglang_boot_info",
                module_args=look,
                task_vars=variables,
            )
            if seen.get("failed") or seen.get("unreachable"):
                return {**result, **seen}
            answered = answered or seen["answered"]
            seen["answered"] = seen["answered"] and answered
            write_whole(str(board / host), json.dumps({**seen, "looked": looked}))
            # Until it is time to look again, what lacks may be told by the others.
            pause = time.monotonic() + options["interval"]
            while True:
                ranks = self._read(board)
                elapsed = time.monotonic() - begun
                verdict = _rank_boot.judge(
                    ranks,
                    expected,
                    elapsed=elapsed,
                    timeout=options["ready_timeout"],
                    pool_least=options["pool_tokens_least"],
                )
                done = verdict.state != "booting" or self._task.check_mode
                if done or not expected or time.monotonic() > pause:
                    break
                time.sleep(_GLANCE)
            line = _rank_boot.progress(options["cell"], ranks, elapsed, len(hosts))
            news = line.partition(" ")[2].partition(" ")[2] != shown
            if seen["head"] and (news or elapsed - shown_at > _REPEAT or verdict.state == "ready"):
                display.display(line)
                shown, shown_at = line.partition(" ")[2].partition(" ")[2], elapsed
            if verdict.state == "ready" or self._task.check_mode:
                break
            if verdict.state == "failed" and self._settled(board, ranks, expected):
                break
            if not expected and not seen["head"] and seen["state"] == "active":
                break  # gives its turn to the next host; the head is waited for first
            time.sleep(max(0.0, pause - time.monotonic()))
        notes = verdict.notes
        for note in notes if seen["head"] else ():
            display.warning(note)
        result.update(
            changed=False,
            seconds=round(elapsed, 1),
            stage=_rank_boot.stage_text(seen),
            pool_tokens=seen["log"]["pool"]["granted"],
            boot={name: seen[name] for name in ("state", "status", "problems")}
            | {"log": {name: seen["log"][name] for name in ("stage", "pool")}},
            notes=notes,
        )
        if verdict.state == "failed" and not self._task.check_mode:
            own = verdict.problems.get(host)
            first = next(iter(verdict.problems))
            told = own or [f"the cell {options['cell']} does not come up, because of {first}"]
            result.update(failed=True, msg="\n".join(told), first=first == host)
        return result

    @staticmethod
    def _settled(board: Path, ranks: dict[str, Any], expected: list[str]) -> bool:
        """Whether every rank was looked at after the first was found broken.

        One that dies takes others with it within a second, and whoever is seen first need not be
        the cause.
        """
        mark = board / ".failed"
        if not mark.exists():
            mark.touch()
        since = mark.stat().st_mtime
        fresh = all(host in ranks and ranks[host]["looked"] >= since for host in expected)
        return fresh or time.time() - since > _SETTLE

    @staticmethod
    def _read(board: Path) -> dict[str, Any]:
        """What every host saw last; files are replaced as a whole, so none is half there."""
        return {
            name: json.loads((board / name).read_text(encoding="utf-8"))
            for name in sorted(os.listdir(board))
            if not name.startswith(".")
        }
