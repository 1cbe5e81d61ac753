"""Runs one step of a make target visibly, remembers its outcome, and adds outcomes up.

``step.py run NAME [--junit FILE] -- COMMAND...`` prints a headline, runs the command with its own
output, and prints how it ended and how long it took. A step counts as one, passed or failed; with
``--junit`` the tests in that report are counted instead. ``step.py tally`` prints what all steps
since ``step.py forget`` came to, and ends in the one line ``N passed, N failed, N skipped``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import asdict, dataclass
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / ".cache" / "results.jsonl"


@dataclass
class Outcome:
    """What one step came to: wall-clock seconds, and counts of its tests or of itself."""

    name: str
    seconds: float
    passed: int
    failed: int
    skipped: int


def count(name: str, seconds: float, returncode: int, junit: Path | None) -> Outcome:
    """Count a finished step; a failure that no report shows counts as one failed."""
    passed = failed = skipped = 0
    if junit is not None and junit.exists():
        for suite in ET.parse(junit).getroot().iter("testsuite"):
            failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped += int(suite.get("skipped", 0))
            passed += int(suite.get("tests", 0))
        passed -= failed + skipped
    elif returncode == 0 and junit is None:
        passed = 1
    if returncode != 0 and failed == 0:
        failed = 1
    return Outcome(name, round(seconds, 1), passed, failed, skipped)


def run(name: str, junit: Path | None, command: list[str]) -> int:
    """Run ``command`` as step ``name`` and return its exit code."""
    print(f"\n=== {name}", flush=True)
    if junit is not None:
        junit.parent.mkdir(parents=True, exist_ok=True)
        junit.unlink(missing_ok=True)
        command = [*command, f"--junitxml={junit}"]
    start = time.monotonic()
    try:
        returncode = subprocess.run(command, check=False).returncode
    except OSError as error:
        print(f"{name}: cannot run {command[0]}: {error.strerror}; next: make setup")
        returncode = 127
    except KeyboardInterrupt:
        returncode = 130
    outcome = count(name, time.monotonic() - start, returncode, junit)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    with RESULTS.open("a", encoding="utf-8") as results:
        results.write(json.dumps(asdict(outcome)) + "\n")
    verdict = "passed" if returncode == 0 else f"FAILED with exit code {returncode}"
    print(f"=== {name}: {verdict} in {outcome.seconds} s", flush=True)
    return returncode if returncode >= 0 else 128 - returncode


def tally(returncode: int) -> int:
    """Print every remembered step and the sum; ``returncode`` is that of the steps' caller."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines() if RESULTS.exists() else []
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    print(f"\n{'step':36} {'seconds':>8} {'passed':>7} {'failed':>7} {'skipped':>8}")
    for o in outcomes:
        print(f"{o.name:36} {o.seconds:8.1f} {o.passed:7} {o.failed:7} {o.skipped:8}")
    passed = sum(o.passed for o in outcomes)
    failed = sum(o.failed for o in outcomes)
    skipped = sum(o.skipped for o in outcomes)
    if returncode != 0 and failed == 0:
        failed = 1  # something outside the steps broke: set-up, a time limit, a signal
    print(f"\n{passed} passed, {failed} failed, {skipped} skipped", flush=True)
    return 0 if passed and not failed else 1


def main() -> int:
    """Parse the command line and act on it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="action", required=True)
    one = commands.add_parser("run", help="run one step")
    one.add_argument("name")
    one.add_argument(
        "--junit", type=Path, help="pytest writes its report here; its tests are counted"
    )
    one.add_argument("command", nargs="+")
    total = commands.add_parser("tally", help="print all steps and their sum")
    total.add_argument("--status", type=int, default=0, help="exit code of what ran the steps")
    commands.add_parser("forget", help="forget all steps")
    args = parser.parse_args()
    if args.action == "run":
        return run(args.name, args.junit, args.command)
    if args.action == "tally":
        return tally(args.status)
    RESULTS.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
