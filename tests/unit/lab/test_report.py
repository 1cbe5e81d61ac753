# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a demonstration ends with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lab.report import summary_text
from lab.spec import Lab
from lab.system import LabError


def test_a_check_counts_as_proven_only_where_every_host_passed_it(tmp_path: Path) -> None:
    statuses = {
        "gpu": ["ok", "ok"],
        "clock": ["ok", "warn"],
        "driver": ["unknown", "ok"],
        "swap": ["note", "ok"],
        "ports": ["skip", "skip"],
        "disk": ["fail", "unknown"],
    }
    rows = [{"check": c, "status": s} for c, found in statuses.items() for s in found]
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"rows": rows}))
    text = summary_text(Lab("x", 0, stood_in={"GPU": "a stand-in"}), report)
    assert text.splitlines()[:6] == [
        "proven on every host: gpu",
        "worth knowing: swap",
        "skipped, as asked: ports",
        "could not be read: driver",
        "to look at: clock",
        "FAILED: disk",
    ]
    assert "GPU:" in text


def test_a_missing_report_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="run the playbook first"):
        summary_text(Lab("x", 0), tmp_path / "none.json")
