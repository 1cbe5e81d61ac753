# Copyright (c) 2026, the sparkfleet.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lab only: keep the compiled form of what Python imports from a zip.

Ansible sends every module as a zip of sources that Python compiles anew on every call; on an
emulated processor that is most of a task's time. Keyed by the source's hash; Ansible and the plays
are not changed. Loaded by the .pth file beside it, hence at every start of Python: no imports here
that a plain start does not have.
"""

import sys


def _install() -> None:
    import _imp
    import marshal
    import os
    import zipimport

    store = "/var/cache/sparklab-bytecode"
    compile_source = getattr(zipimport, "_compile_source")  # noqa: B009  (private, and untyped)
    get_module_code = getattr(zipimport, "_get_module_code")  # noqa: B009
    waiting: dict[tuple[str, str, str], object] = {}

    def cached(pathname: str, source: bytes) -> object:
        digest = _imp.source_hash(0x53504152, source).hex()
        path = f"{store}/{digest}-{sys.implementation.cache_tag}"
        try:
            with open(path, "rb") as stored:
                return marshal.load(stored)
        except (OSError, EOFError, ValueError, TypeError):
            pass
        code = compile_source(pathname, source)
        try:
            aside = f"{path}.{os.getpid()}"
            with open(aside, "wb") as stored:
                marshal.dump(code, stored)
            os.replace(aside, path)
        except OSError:  # root's store: what others could write there would be code they planted
            pass
        return code

    def once(importer: zipimport.zipimporter, fullname: str) -> object:
        """Every module is asked for twice in a row: for its file name, then to run it."""
        key = (importer.archive, importer.prefix, fullname)
        if key in waiting:
            return waiting.pop(key)
        waiting[key] = found = get_module_code(importer, fullname)
        return found

    if os.geteuid() == 0:
        try:
            os.makedirs(store, 0o755, exist_ok=True)
        except OSError:
            return
    setattr(zipimport, "_compile_source", cached)  # noqa: B010
    setattr(zipimport, "_get_module_code", once)  # noqa: B010


try:  # noqa: SIM105  (contextlib would be such an import)
    _install()
except Exception:  # noqa: BLE001  (no shortcut is worth a Python that does not start)
    pass
