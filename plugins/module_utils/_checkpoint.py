# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Whether a directory holds a whole checkpoint, from its index and the headers of its files.

Nothing raises on bad data: every fault is a problem with a code, the file and the tensor. What may
never answer (a dead mount) blocks here; callers run this in a child with a deadline.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.sparkfleet.cluster.plugins.module_utils._checkpoint_files import (
    File,
    Tree,
    verify_hashes,
)
from ansible_collections.sparkfleet.cluster.plugins.module_utils._safetensors import (
    Header,
    SafetensorsError,
    read_header,
)

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
CONFIG = "config.json"
HASHES = ("none", "known", "all")

# Files an engine may take for weights when they lie beside those of the index.
_WEIGHTS = re.compile(
    r".*\.(safetensors|gguf|pt|pth|ckpt|h5)|(pytorch_model|model|consolidated).*\.bin"
)
_SHOWN = 3  # names in a message; the rest is counted

_TABLE = re.compile(r"layers\.([0-9]+)\.engram\.embed\.(weight|scale)")
_TABLE_DTYPES = {"weight": "F8_E4M3", "scale": "F8_E8M0"}
_WEIGHTS_PER_SCALE = 32


class _Part(NamedTuple):
    """The weights or the scales of an Engram table."""

    file: str
    name: str
    header: Header


def inspect(
    path: str,
    expected: Mapping[str, Any] | None = None,
    *,
    within: str | None = None,
    hashes: str = "none",
    sha256: Mapping[str, str] | None = None,
    workers: int = 4,
) -> dict[str, Any]:
    """Look at a checkpoint; see RETURN of `checkpoint_info` for the result.

    Args:
        path: its directory.
        expected: facts about the model, see `model_facts`; those that are None are not checked.
        within: the directory that links may not leave, `path` itself by default.
        hashes: none, known (compare with hashes that are known) or all (tell those of all weights).
        sha256: known hashes by name of file, beside those that the hub's own files tell.
        workers: how many files are hashed at once.
    """
    return _Inspection(path, expected or {}, within).run(hashes, sha256 or {}, workers)


class _Inspection:
    def __init__(self, path: str, expected: Mapping[str, Any], within: str | None) -> None:
        self._path = path
        self._expected = expected
        self._within = within
        self._problems: list[dict[str, Any]] = []
        self._headers: dict[str, Header] = {}

    def _problem(self, code: str, message: str, file: str | None = None, **more: Any) -> None:
        self._problems.append({"code": code, "file": file, "message": message, **more})

    def run(self, hashes: str, sha256: Mapping[str, str], workers: int) -> dict[str, Any]:
        tree = Tree(self._path)
        if tree.absent:
            self._problem("absent", f"{self._path}: {tree.absent}")
            return self._result(tree, {}, [], {})
        weight_map = self._index(tree)
        named = sorted(set(weight_map.values()))
        tensors = defaultdict(list)
        for tensor, name in weight_map.items():
            tensors[name].append(tensor)
        for name in named:
            self._read(tree, name, tensors[name])
        self._compare(weight_map)
        self._foreign(tree, named)
        self._links(tree)
        self._downloads(tree)
        config = self._config(tree)
        # A table in a file that cannot be read is not missed a second time.
        engram = self._engram(tree, config, whole=len(self._headers) == len(named) > 0)
        self._compare_totals(named)
        told: dict[str, str] = {}
        if hashes != "none":
            wanted = named if hashes == "all" else []
            told, wrong = verify_hashes(tree, wanted, sha256, workers)
            for name, text in wrong.items():
                self._problem("hash", f"{name}: {text}; download it again", name)
        return self._result(tree, weight_map, engram, told)

    # --- the index and its files ---

    def _index(self, tree: Tree) -> dict[str, str]:
        """{tensor: file}; a checkpoint of one file needs no index."""
        if INDEX not in tree.files and SINGLE in tree.files:
            header = self._header(tree, SINGLE)
            return dict.fromkeys(header.tensors if header else (), SINGLE)
        index = self._json(tree, INDEX, "the index of the weights")
        if index is None:
            return {}
        weight_map = index.get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            self._problem("index", f"{INDEX}: no weight_map, expected tensors and files", INDEX)
            return {}
        good = {}
        for tensor, file in weight_map.items():
            if isinstance(file, str) and _is_inside(file):
                good[tensor] = file
                continue
            self._problem(
                "index",
                f"{INDEX}: {tensor} is in {file!r}, which is no name of a file in the directory",
                INDEX,
                tensor=tensor,
            )
        return good

    def _json(self, tree: Tree, name: str, what: str) -> dict[str, Any] | None:
        file = tree.files.get(name)
        if file is None or file.fault:
            self._missing(name, file, f"{what} is missing")
            return None
        try:
            with open(file.path, encoding="utf-8") as stream:
                loaded = json.load(stream, parse_constant=_no_constant)
        except OSError as error:
            self._problem("unreadable", f"{name}: {error.strerror}", name)
            return None
        except (ValueError, RecursionError) as error:
            self._problem("bad-json", f"{name} is not JSON: {error}", name)
            return None
        if not isinstance(loaded, dict):
            self._problem("bad-json", f"{name}: expected an object", name)
            return None
        return loaded

    def _missing(self, name: str, file: File | None, text: str) -> None:
        if file is None:
            self._problem("missing-file", f"{name}: {text}", name)
        else:
            self._problem(file.fault, f"{name}: {file.reason}", name)

    def _header(self, tree: Tree, name: str) -> Header | None:
        file = tree.files[name]
        try:
            header = read_header(file.path)
        except SafetensorsError as error:
            text = str(error).replace(f"{file.path}: ", "", 1)
            more: dict[str, Any] = {"tensor": error.tensor} if error.tensor is not None else {}
            if error.missing:
                more["missing"] = error.missing
            if error.code == "lfs-pointer":
                more["declared_size"] = error.declared_size
                more["declared_sha256"] = error.declared_sha256
            self._problem(error.code, f"{name}: {text}", name, **more)
            return None
        except OSError as error:
            self._problem("unreadable", f"{name}: {error.strerror}", name)
            return None
        self._headers[name] = header
        return header

    def _read(self, tree: Tree, name: str, tensors: Sequence[str]) -> None:
        file = tree.files.get(name) or tree.look(name)
        if file is None or file.fault:
            self._missing(name, file, f"missing, with {_some(tensors, 'tensor')} of the index")
        elif name not in self._headers:
            self._header(tree, name)

    def _compare(self, weight_map: Mapping[str, str]) -> None:
        """Tensors that the index puts into a file must be there, and the other way round."""
        absent, extra = defaultdict(list), defaultdict(list)
        for tensor, name in weight_map.items():
            if name in self._headers and tensor not in self._headers[name].tensors:
                absent[name].append(tensor)
        for name, header in self._headers.items():
            for tensor in header.tensors:
                if weight_map.get(tensor) != name:
                    extra[name].append(tensor)
        for name, tensors in absent.items():
            self._problem(
                "tensor-not-in-file",
                f"{name}: the index has {_some(tensors, 'tensor')} in it, the file has not",
                name,
                tensor=tensors[0],
            )
        for name, tensors in extra.items():
            self._problem(
                "tensor-not-indexed",
                f"{name}: it has {_some(tensors, 'tensor')} that the index does not have in it",
                name,
                tensor=tensors[0],
            )

    def _foreign(self, tree: Tree, named: Sequence[str]) -> None:
        foreign = self._foreign_files(tree, named)
        if foreign and named:
            size = sum(file.size for file in foreign.values())
            self._problem(
                "foreign-weights",
                f"{_some(list(foreign), 'file')} of weights ({size} bytes) that the index does not "
                "name; an engine may load them too. Move them away",
                next(iter(foreign)),
                files=list(foreign),
            )

    @staticmethod
    def _foreign_files(tree: Tree, named: Sequence[str]) -> dict[str, File]:
        return {
            name: file
            for name, file in tree.files.items()
            if "/" not in name and name not in named and _WEIGHTS.fullmatch(name)
        }

    # --- links and downloads ---

    def _links(self, tree: Tree) -> None:
        within = os.path.realpath(self._within or self._path)
        outside = [
            name
            for name, file in tree.files.items()
            if not file.fault and os.path.commonpath([within, file.path]) != within
        ]
        if outside:
            first = tree.files[outside[0]]
            self._problem(
                "links-leave",
                f"{_some(outside, 'file')} are links that leave {within}, as {outside[0]} to "
                f"{first.path}. Who gets only that directory gets dangling links; the directories "
                f"really needed are {', '.join(tree.directories)}",
                outside[0],
                target=first.path,
            )
        for name, file in tree.files.items():
            if file.fault in {"link-loop", "link-dangling"} and not self._told(name):
                self._problem(file.fault, f"{name}: {file.reason}", name)

    def _told(self, name: str) -> bool:
        return any(problem["file"] == name for problem in self._problems)

    def _downloads(self, tree: Tree) -> None:
        for name, path in tree.unfinished.items():
            self._problem(
                "download-unfinished",
                f"{name}: a download of it is still running or broke off; where none is wanted, "
                f"remove {path}",
                name,
            )
        if len(tree.revisions) > 1:
            counts = ", ".join(f"{len(names)} of {rev}" for rev, names in tree.revisions.items())
            odd = min(tree.revisions.values(), key=len)
            self._problem(
                "mixed-revisions",
                f"files of {len(tree.revisions)} revisions: {counts}; as {odd[0]}",
                odd[0],
            )
        wanted = self._expected.get("revision")
        if wanted and len(tree.revisions) == 1 and wanted not in tree.revisions:
            self._problem(
                "wrong-revision", f"the files are of revision {tree.revision}, expected {wanted}"
            )

    # --- what is expected ---

    def _config(self, tree: Tree) -> dict[str, Any]:
        config = self._json(tree, CONFIG, "the model's configuration")
        if config is None:
            return {}
        wanted = self._expected.get("config_sha256")
        if wanted:
            with open(tree.files[CONFIG].path, "rb") as stream:
                found = hashlib.sha256(stream.read()).hexdigest()
            if found != wanted:
                self._problem(
                    "wrong-config",
                    f"{CONFIG}: its SHA-256 is {found}, expected {wanted}: it is of another "
                    "revision, or was edited",
                    CONFIG,
                )
        return config

    def _compare_totals(self, named: Sequence[str]) -> None:
        whole = [name for name in named if name in self._headers]
        files, size = len(named), sum(self._headers[name].size for name in whole)
        wanted = self._expected.get("weight_files")
        if wanted and named and files != wanted:
            self._problem("wrong-count", f"the index names {files} files, expected {wanted}", INDEX)
        wanted = self._expected.get("weight_bytes")
        # A file that is missing or cut has been told already.
        if wanted and named and len(whole) == files and size != wanted:
            self._problem(
                "wrong-size", f"the files of weights have {size} bytes together, expected {wanted}"
            )

    def _engram(
        self, tree: Tree, config: Mapping[str, Any], *, whole: bool
    ) -> list[dict[str, Any]]:
        parts: dict[int, dict[str, _Part]] = defaultdict(dict)
        for file, header in self._headers.items():
            for name in header.tensors:
                match = _TABLE.fullmatch(name)
                if match:
                    parts[int(match[1])][match[2]] = _Part(file, name, header)
        wanted = self._wanted_tables(config)
        found = [
            self._table(tree, layer, parts[layer], wanted.get(layer)) for layer in sorted(parts)
        ]
        if whole:
            for layer in sorted({*wanted, *parts}):
                for kind in _TABLE_DTYPES:
                    if kind not in parts[layer]:
                        name = f"layers.{layer}.engram.embed.{kind}"
                        self._problem(
                            "engram-missing", f"no file has the tensor {name}", tensor=name
                        )
        return [table for table in found if table]

    def _wanted_tables(self, config: Mapping[str, Any]) -> dict[int, int]:
        """{layer: rows} as expected; where that is not told, as the configuration has it."""
        text = config.get("text_config", config)
        text = text if isinstance(text, Mapping) else {}
        layers, rows = text.get("engram_layer_ids") or [], text.get("engram_num_embeddings") or []
        configured = {}
        if _are_counts(layers) and _are_counts(rows) and len(layers) == len(rows):
            configured = dict(zip(layers, rows, strict=True))
        elif layers or rows:
            self._problem(
                "engram-config",
                f"{CONFIG}: engram_layer_ids {layers!r} and engram_num_embeddings {rows!r} are no "
                "lists of numbers of the same length",
                CONFIG,
            )
        engram = self._expected.get("engram") or {}
        tables = engram.get("tables")
        if tables is None:
            return configured
        wanted = {int(table["layer"]): int(table["rows"]) for table in tables}
        if configured and configured != wanted:
            self._problem(
                "engram-config",
                f"{CONFIG}: Engram tables {_rows(configured)}, expected {_rows(wanted)}",
                CONFIG,
            )
        return wanted

    def _table(
        self, tree: Tree, layer: int, parts: Mapping[str, _Part], rows: int | None
    ) -> dict[str, Any] | None:
        """Where the two tensors of a table are; None, and problems, where they cannot be packed."""
        before = len(self._problems)
        if len(parts) < 2:
            return None
        weight, scale = parts["weight"], parts["scale"]
        if weight.file != scale.file:
            self._problem(
                "engram-split",
                f"{weight.name} is in {weight.file}, but {scale.name} in {scale.file}; they must "
                "be in the same file",
                weight.file,
                tensor=weight.name,
            )
        widths = self._widths(weight)
        for kind, part in (("weight", weight), ("scale", scale)):
            tensor = part.header.tensors[part.name]
            if tensor.dtype != _TABLE_DTYPES[kind]:
                self._problem(
                    "engram-dtype",
                    f"{part.file}: {part.name} is {tensor.dtype}, expected {_TABLE_DTYPES[kind]}",
                    part.file,
                    tensor=part.name,
                )
            if len(tensor.shape) != 2 or tensor.shape[1] != widths[kind]:
                self._problem(
                    "engram-width",
                    f"{part.file}: {part.name} is {list(tensor.shape)}, expected rows of "
                    f"{widths[kind]}",
                    part.file,
                    tensor=part.name,
                )
            elif rows is not None and tensor.shape[0] != rows:
                self._problem(
                    "engram-rows",
                    f"{part.file}: {part.name} has {tensor.shape[0]} rows, expected {rows}",
                    part.file,
                    tensor=part.name,
                )
        shapes = [part.header.tensors[part.name].shape for part in (weight, scale)]
        if len(self._problems) == before and shapes[0][0] != shapes[1][0]:
            self._problem(
                "engram-rows",
                f"{weight.file}: {weight.name} has {shapes[0][0]} rows, but {scale.name} has "
                f"{shapes[1][0]}",
                weight.file,
                tensor=scale.name,
            )
        if len(self._problems) > before:
            return None
        return {
            "layer": layer,
            "file": weight.file,
            "path": tree.files[weight.file].path,
            "rows": shapes[0][0],
            "weight": _place(weight),
            "scale": _place(scale),
        }

    def _widths(self, weight: _Part) -> dict[str, int]:
        engram = self._expected.get("engram") or {}
        shape = weight.header.tensors[weight.name].shape
        width = engram.get("weight_bytes_per_row") or (shape[1] if len(shape) == 2 else 0)
        scale = engram.get("scale_bytes_per_row") or width // _WEIGHTS_PER_SCALE
        return {"weight": width, "scale": scale}

    # --- the result ---

    def _result(
        self,
        tree: Tree,
        weight_map: Mapping[str, str],
        engram: list[dict[str, Any]],
        hashes: Mapping[str, str],
    ) -> dict[str, Any]:
        named = sorted(set(weight_map.values()))
        weights = {
            name: file
            for name, file in tree.files.items()
            if not file.fault and (name in named or _WEIGHTS.fullmatch(os.path.basename(name)))
        }
        size = sum(file.size for file in weights.values())
        state = "incomplete" if self._problems else "complete"
        return {
            "state": "absent" if tree.absent else state,
            "complete": not self._problems,
            "problems": self._problems,
            "missing": [p["file"] for p in self._problems if p["code"] == "missing-file"],
            "damaged": sorted(
                {p["file"] for p in self._problems if p["code"] in _DAMAGED and p["file"]}
            ),
            "revision": tree.revision,
            "tensors": len(weight_map),
            "weight_files": len(weights),
            "weight_bytes": size,
            "missing_bytes": max(
                0, (self._expected.get("weight_bytes") or 0) - size - tree.unfinished_bytes
            ),
            "files": len(tree.files),
            "bytes": sum(file.size for file in tree.files.values()),
            "unfinished_bytes": tree.unfinished_bytes,
            "foreign": sorted(self._foreign_files(tree, named)),
            "leftovers": tree.leftovers,
            "engram": engram,
            "resolved_root": tree.root,
            "directories": tree.directories,
            "device": tree.device,
            "free_bytes": tree.free,
            "hashes": dict(hashes),
        }


# What a downloader may take for whole although it is not.
_DAMAGED = {
    "bad-json",
    "dtype",
    "empty-header",
    "gap",
    "hash",
    "header-too-large",
    "header-too-small",
    "lfs-pointer",
    "metadata",
    "offsets",
    "overlap",
    "padding",
    "shape",
    "trailing",
    "truncated",
    "truncated-header",
    "wrong-config",
}


def _is_inside(file: str) -> bool:
    """Whether it is a plain name, or one below a directory of the checkpoint."""
    return (
        file not in {"", "."}
        and os.path.normpath(file) == file
        and file[:3] not in {"../", ".."}
        and file[0] != "/"
    )


def _place(part: _Part) -> dict[str, Any]:
    begin, end = part.header.span(part.name)
    tensor = part.header.tensors[part.name]
    return {"dtype": tensor.dtype, "shape": list(tensor.shape), "begin": begin, "end": end}


def _some(names: Sequence[str], what: str) -> str:
    if len(names) == 1:
        return f"the {what} {names[0]}"
    shown = ", ".join(names[:_SHOWN])
    rest = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} {what}s ({shown}{rest})"


def _rows(tables: Mapping[int, int]) -> str:
    return ", ".join(f"layer {layer}: {rows} rows" for layer, rows in tables.items()) or "none"


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, int) and not isinstance(value, bool) for value in values
    )


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def lines(problems: Iterable[Mapping[str, Any]]) -> list[str]:
    """The problems as sentences for people."""
    return [str(problem["message"]) for problem in problems]
