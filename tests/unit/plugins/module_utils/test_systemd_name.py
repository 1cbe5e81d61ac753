# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Unit names of paths, also against systemd's own tool where there is one."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._systemd_name import mount_unit

NAMES = {
    "/models/DeepSeek-V4.1-Flash": r"models-DeepSeek\x2dV4.1\x2dFlash.mount",
    "/srv/spark/checkpoint": "srv-spark-checkpoint.mount",
    "/a b": r"a\x20b.mount",
    "/mnt/.hidden": "mnt-.hidden.mount",
    "/.hidden": r"\x2ehidden.mount",
    "/": "-.mount",
    "//srv///x/": "srv-x.mount",
    "/modèle": r"mod\xc3\xa8le.mount",
    "/a@b+c:d_e": r"a\x40b\x2bc:d_e.mount",
}


@pytest.mark.parametrize(("path", "name"), NAMES.items())
def test_a_unit_is_named_by_the_rule_of_systemd(path: str, name: str) -> None:
    assert mount_unit(path) == name


@pytest.mark.skipif(not shutil.which("systemd-escape"), reason="needs systemd-escape")
@pytest.mark.parametrize("path", NAMES)
def test_systemd_says_the_same(path: str) -> None:
    words = ["systemd-escape", "--path", "--suffix=mount", path]
    said = subprocess.run(words, check=True, text=True, capture_output=True).stdout.strip()
    assert mount_unit(path) == said
