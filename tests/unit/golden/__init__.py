"""Outputs that are kept and looked at when they change.

``UPDATE_GOLDEN=1 pytest tests/unit`` writes them anew; ``git diff`` then shows what that changes.
"""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).resolve().parent


def assert_golden(path: Path, text: str) -> None:
    """Fail unless the file holds exactly this text."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    name = path.relative_to(ROOT)
    assert path.exists(), f"{name} does not exist; see {Path(__file__).relative_to(ROOT)}"
    assert path.read_text(encoding="utf-8") == text, f"{name} differs"
