# Copyright (c) The sparkfleet.cluster contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

# This module utility is private to the sparkfleet.cluster collection.
"""Read the header of a safetensors file, and nothing of its tensors.

A file is a little-endian u64, a JSON object of that many bytes, and the tensors one after another
without gaps. Verdicts are those of the reference library, safetensors 0.8.0, which engines load
with; only forms that no writer makes (a tensor as an array, a dtype as an object) are refused here
and accepted there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

MAX_HEADER = 100_000_000  # bytes, as in the library
_U64 = 2**64 - 1

# Bits of one element, as the library counts them: sub-byte types by logical element.
DTYPE_BITS: Mapping[str, int] = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    **dict.fromkeys(
        ("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8
    ),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("C64", "F64", "I64", "U64"), 64),
}

_LFS = b"version https://git-lfs"
_LFS_LINE = re.compile(
    rb"^(?:oid sha256:(?P<oid>[0-9a-f]{64})|size (?P<size>[0-9]+))$", re.MULTILINE
)


class Tensor(NamedTuple):
    """One tensor; `begin` and `end` are bytes relative to `Header.data_start`."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def nbytes(self) -> int:
        return self.end - self.begin


class Header(NamedTuple):
    """What a file says about itself. `tensors` are in the order of the header."""

    size: int  # of the file, in bytes
    data_start: int  # 8 + length of the header
    tensors: dict[str, Tensor]
    metadata: dict[str, str]

    def span(self, name: str) -> tuple[int, int]:
        """First byte of a tensor in the file, and the one after its last."""
        tensor = self.tensors[name]
        return self.data_start + tensor.begin, self.data_start + tensor.end


class SafetensorsError(ValueError):
    """A file that the reference library would not load; the text names file, tensor and bytes.

    Attributes:
        code: lfs-pointer, header-too-small, header-too-large, truncated-header, empty-header,
            padding, bad-json, metadata, dtype, shape, offsets, overlap, gap, truncated or trailing.
        file: the path that was read.
        tensor: the tensor it is about, if it is about one.
        missing: for `truncated`, bytes missing of every tensor that is cut or absent.
        declared_size: for `lfs-pointer`, bytes of the file it stands for, if it says so.
        declared_sha256: likewise its hash.
    """

    def __init__(
        self,
        code: str,
        file: str,
        text: str,
        *,
        tensor: str | None = None,
        missing: Mapping[str, int] | None = None,
        declared_size: int | None = None,
        declared_sha256: str | None = None,
    ) -> None:
        where = f"{file}: tensor {tensor}" if tensor is not None else file
        super().__init__(f"{where}: {text}")
        self.code = code
        self.file = file
        self.tensor = tensor
        self.missing = dict(missing or {})
        self.declared_size = declared_size
        self.declared_sha256 = declared_sha256


def read_header(path: str | os.PathLike[str]) -> Header:
    """Read and check the header of a file.

    Raises:
        SafetensorsError: the file is not what the reference library would load.
        OSError: it cannot be read, or is a directory.
    """
    file = os.fspath(path)
    with open(file, "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        start = stream.read(8)
        if len(start) < 8:
            raise SafetensorsError(
                "header-too-small",
                file,
                f"{len(start)} bytes; a safetensors file starts with 8 bytes of header length",
            )
        if start == _LFS[:8]:
            start += stream.read(1024)
            if start.startswith(_LFS):
                raise _lfs_pointer(file, start)
        length = int.from_bytes(start[:8], "little")
        if length > MAX_HEADER:
            raise SafetensorsError(
                "header-too-large",
                file,
                f"its first 8 bytes tell a header of {length} bytes, of {MAX_HEADER} at most; not "
                "a safetensors file, or damaged at its start",
            )
        if length > size - 8:
            raise SafetensorsError(
                "truncated-header",
                file,
                f"the header is {length} bytes long, but only {max(size - 8, 0)} bytes follow its "
                "length",
            )
        raw = stream.read(length)
    return _parse(raw, size, file)


def _lfs_pointer(file: str, raw: bytes) -> SafetensorsError:
    told: dict[str, bytes] = {}
    for line in _LFS_LINE.finditer(raw):
        told.update({name: text for name, text in line.groupdict().items() if text is not None})
    declared = int(told["size"]) if "size" in told else None
    of = f"of a file of {declared} bytes" if declared is not None else "of unknown size"
    return SafetensorsError(
        "lfs-pointer",
        file,
        f"a Git LFS pointer {of}, not data; download the file itself (git lfs pull)",
        declared_size=declared,
        declared_sha256=told["oid"].decode() if "oid" in told else None,
    )


class _Object(dict[str, Any]):
    """A JSON object that remembers which names occurred twice; the last one counts."""

    repeated: frozenset[str] = frozenset()


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    made = _Object(pairs)
    if len(made) != len(pairs):
        names = [name for name, _value in pairs]
        made.repeated = frozenset(name for name in names if names.count(name) > 1)
    return made


def _integer(text: str) -> int | float:
    """The library reads -0 and what does not fit 64 bits as floating point."""
    if text != "-0" and len(text) <= 20 and -(2**63) <= (value := int(text)) <= _U64:
        return value
    return _float(text)


def _float(text: str) -> float:
    value = float(text)
    if value in {float("inf"), float("-inf")}:
        raise ValueError(f"number out of range: {text[:40]}")
    return value


def _constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _parse(raw: bytes, size: int, file: str) -> Header:
    loaded = _load(raw, file)
    metadata = _metadata(loaded, file)
    tensors = {
        name: _tensor(name, entry, file) for name, entry in loaded.items() if name != "__metadata__"
    }
    header = Header(size, 8 + len(raw), tensors, metadata)
    _check_layout(header, file)
    return header


def _load(raw: bytes, file: str) -> _Object:
    if not raw:
        raise SafetensorsError(
            "empty-header",
            file,
            "its first 8 bytes are zero, as in a file that was allocated but never written",
        )
    if raw.endswith(b"\0"):
        count = len(raw) - len(raw.rstrip(b"\0"))
        raise SafetensorsError(
            "padding", file, f"the header ends in {count} NUL bytes; only white space may pad it"
        )
    try:
        text = raw.decode("utf-8")
        loaded = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_integer,
            parse_float=_float,
            parse_constant=_constant,
        )
        if "\\ud" in text or "\\uD" in text:
            json.dumps(loaded, ensure_ascii=False).encode()  # refuses half a surrogate pair
    except (ValueError, RecursionError) as error:
        raise SafetensorsError("bad-json", file, f"the header is not JSON: {error}") from error
    if not isinstance(loaded, _Object):
        raise SafetensorsError(
            "bad-json", file, f"the header is {_kind(loaded)}, expected an object of tensors"
        )
    return loaded


def _metadata(loaded: _Object, file: str) -> dict[str, str]:
    if "__metadata__" in loaded.repeated:
        raise SafetensorsError("metadata", file, "__metadata__ occurs twice in the header")
    found = loaded.get("__metadata__")
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise SafetensorsError(
            "metadata", file, f"__metadata__ is {_kind(found)}, expected an object of texts"
        )
    for name, value in found.items():
        if not isinstance(value, str):
            raise SafetensorsError(
                "metadata", file, f"__metadata__ has {_kind(value)} for {name!r}, expected a text"
            )
    return dict(found)


def _tensor(name: str, entry: Any, file: str) -> Tensor:
    def refuse(code: str, text: str) -> SafetensorsError:
        return SafetensorsError(code, file, text, tensor=name)

    if not isinstance(entry, _Object):
        raise refuse("bad-json", f"{_kind(entry)} in the header, expected an object")
    fields = ("dtype", "shape", "data_offsets")
    if entry.repeated & set(fields):
        raise refuse("bad-json", f"{min(entry.repeated)} occurs twice in the header")
    for field in fields:
        if field not in entry:
            raise refuse("bad-json", f"no {field} in the header")
    dtype, shape, offsets = (entry[field] for field in fields)
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise refuse("dtype", f"unknown dtype {dtype!r}")
    if not isinstance(shape, list) or not all(_is_size(item) for item in shape):
        raise refuse("shape", f"the shape is {shape!r}, expected a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(map(_is_size, offsets)):
        raise refuse("offsets", f"data_offsets are {offsets!r}, expected begin and end in bytes")
    begin, end = offsets
    if begin > end:
        raise refuse("offsets", f"data_offsets begin at {begin} and end before it, at {end}")
    bits = _bits(dtype, shape)
    if bits is None:
        raise refuse("shape", f"the shape {shape} is of more than 2^64 bits")
    if bits % 8:
        raise refuse("shape", f"{dtype} {shape} is {bits} bits, which are no whole bytes")
    if bits // 8 != end - begin:
        raise refuse(
            "shape", f"{dtype} {shape} is {bits // 8} bytes, data_offsets span {end - begin}"
        )
    return Tensor(dtype, tuple(shape), begin, end)


def _bits(dtype: str, shape: list[int]) -> int | None:
    """Bits of a tensor; None where the library's 64-bit arithmetic overflows on the way."""
    product = 1
    for factor in (*shape, DTYPE_BITS[dtype]):
        product *= factor
        if product > _U64:
            return None
    return product


def _check_layout(header: Header, file: str) -> None:
    """One tensor begins where the one before it ends, and the last one ends with the file."""
    tensors = header.tensors
    reached, before = 0, "the start of the data"
    for name in sorted(tensors, key=lambda name: (tensors[name].begin, tensors[name].end)):
        begin = tensors[name].begin
        if begin != reached:
            code, what = ("overlap", "reaches to") if begin < reached else ("gap", "ends at")
            raise SafetensorsError(
                code, file, f"begins at byte {begin}, but {before} {what} {reached}", tensor=name
            )
        reached, before = tensors[name].end, name
    present = header.size - header.data_start
    if present > reached:
        raise SafetensorsError(
            "trailing",
            file,
            f"{present - reached} bytes after the last tensor; the file is {header.size} bytes, "
            f"its header describes {header.data_start + reached}",
        )
    if present < reached:
        missing = {
            name: tensor.end - max(tensor.begin, present)
            for name, tensor in tensors.items()
            if tensor.end > present and tensor.nbytes
        }
        shown = ", ".join(f"{name} ({count})" for name, count in list(missing.items())[:3])
        rest = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise SafetensorsError(
            "truncated",
            file,
            f"{reached - present} bytes missing: the file is {header.size} bytes, its header "
            f"describes {header.data_start + reached}; tensors cut or absent (bytes missing): "
            f"{shown}{rest}",
            missing=missing,
        )


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _U64


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    kinds = {bool: "true or false", str: "a text", list: "an array", _Object: "an object"}
    return kinds.get(type(value), "a number")
