# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""The program of the unit of the router: SGLang's own, with settings from a file."""

from __future__ import annotations

import importlib
import json
from typing import Any

SETTINGS = "/etc/sparkfleet/router/settings.json"


def load(path: str = SETTINGS) -> dict[str, Any]:
    """The arguments of the router.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not what the collection writes.
    """
    with open(path, encoding="utf-8") as stream:
        found = json.load(stream)
    router = found.get("router") if isinstance(found, dict) else None
    if not isinstance(router, dict):
        raise ValueError(f"{path} has no settings of a router; run the playbook router again")
    return router


def run(settings: dict[str, Any]) -> None:
    """Run the router until it is told to stop; it ends when the requests that run have ended."""
    # Not the launcher of the package: that needs a web server for debugging beside the router.
    package = importlib.import_module("sglang_router.router")
    arguments = importlib.import_module("sglang_router.router_args")
    package.Router.from_args(arguments.RouterArgs(**settings)).start()


if __name__ == "__main__":
    run(load())
