"""Tests against the real SGLang, which takes minutes and 7 GB to install."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "engine: needs the real SGLang (tools/real_engine.py); heavy"
    )
