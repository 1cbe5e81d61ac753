# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The built documentation, opened in Chromium; `make docs-browser` builds it before.

Chromium is the distribution's, and is installed when missing. It runs without a network, so that a
page that needs something from elsewhere shows it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support import browser
from tests.support.playbook import ROOT

SITE = ROOT / ".cache/docs/site"
PAGES = sorted(SITE.rglob("*.html"))
# Guides, a role, a module with many options, and a picture.
LOOKED_AT = ["index.html", "docs/quick-start.html", "reference/cell_page_module.html"]


def look(page: Path, *options: str) -> str:
    return browser.look(page.as_uri(), "--virtual-time-budget=4000", *options).stdout


def test_the_site_is_whole():
    """Every role, module, filter and guide has its page."""
    names = {str(page.relative_to(SITE)) for page in PAGES}
    for guide in (ROOT / "docs").glob("*.md"):
        assert f"docs/{guide.stem}.html" in names
    for role in (ROOT / "roles").glob("*/README.md"):
        assert f"roles/{role.parent.name}/README.html" in names
    for kind, word in (("modules", "module"), ("filter", "filter")):
        for plugin in (ROOT / "plugins" / kind).glob("[a-z]*.py"):
            assert f"reference/{plugin.stem}_{word}.html" in names


def test_pages_ask_nothing_of_others_by_themselves():
    loads = re.compile(r'<(?:script|img|link|iframe)[^>]+(?:src|href)="((?:https?:)?//[^"]+)"')
    for page in PAGES:
        assert not loads.findall(page.read_text(encoding="utf-8")), page


@pytest.mark.parametrize("name", LOOKED_AT)
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_shows_itself(name, width, tmp_path):
    picture = tmp_path / "page.png"
    look(SITE / name, f"--window-size={width},1600", f"--screenshot={picture}")
    # A page of one colour has a few kilobytes.
    assert picture.stat().st_size > 30_000


@pytest.mark.parametrize("name", LOOKED_AT)
def test_images_are_loaded_and_scripts_ran(name):
    shown = look(SITE / name, "--dump-dom")
    assert "<h1" in shown
    for source in re.findall(r'<img[^>]+src="([^"]+)"', shown):
        assert ((SITE / name).parent / source).is_file(), source
    # The theme's script has chosen light or dark.
    assert 'data-theme="' in shown
