"""Verdicts on headers are those of the reference library, and name file, tensor and bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.sparkfleet.cluster.plugins.module_utils._safetensors import (
    DTYPE_BITS,
    SafetensorsError,
    Tensor,
    read_header,
)
from safetensors import SafetensorError, deserialize

TWO = (
    '{"a":{"dtype":"F8_E4M3","shape":[2,4],"data_offsets":[0,8]},'
    '"b":{"dtype":"F8_E8M0","shape":[2,1],"data_offsets":[8,10]}'
)


def entry(shape: str = "[4]", offsets: str = "[0,4]", dtype: str = "I8", rest: str = "") -> str:
    return f'{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}{rest}}}'


def one(shape: str = "[4]", offsets: str = "[0,4]", dtype: str = "I8", rest: str = "") -> str:
    return f'{{"a":{entry(shape, offsets, dtype, rest)}}}'


def write(path: Path, header: str | bytes, data: int = 0, length: int | None = None) -> Path:
    raw = header if isinstance(header, bytes) else header.encode()
    count = len(raw) if length is None else length
    path.write_bytes(count.to_bytes(8, "little") + raw + b"x" * data)
    return path


def pair(first: str, second: str) -> str:
    four, rest = entry(offsets=first), entry(offsets=second)
    return f'{{"a":{four},"b":{rest}}}'


GOOD: dict[str, tuple[str, int]] = {
    "five spaces behind": (TWO + "}     ", 10),
    "tab and newline behind": (TWO + "}\t\n", 10),
    "space before": (" " + TWO + "}", 10),
    "metadata": (TWO + ',"__metadata__":{"format":"pt"}}', 10),
    "metadata empty": (TWO + ',"__metadata__":{}}', 10),
    "metadata null": (TWO + ',"__metadata__":null}', 10),
    "no elements": (one("[0,5]", "[0,0]"), 0),
    "no elements at the end": (f'{{"a":{entry()},"b":{entry("[0]", "[4,4]")}}}', 4),
    "scalar": (one("[]", "[0,1]"), 1),
    "header order b, a": (f'{{"b":{entry(offsets="[4,8]")},"a":{entry()}}}', 8),
    "unknown field": (one(rest=',"x":null'), 4),
    "tensor twice, the last one counts": (f'{{"a":{entry("[2]", "[0,2]")},"a":{entry()}}}', 4),
    "surrogate pair": (f'{{"\\ud83d\\ude00":{entry()}}}', 4),
    "no tensors": ("{}", 0),
    "F4": (one("[4]", "[0,2]", "F4"), 2),
    "zero hides an overflow behind it": (
        one("[0,4294967296,4294967296,4]", "[0,0]"),
        0,
    ),
}

# name: (header, bytes of data, code)
BAD: dict[str, tuple[str | bytes, int, str]] = {
    "NUL behind": (TWO + "}\0\0\0", 10, "padding"),
    "byte order mark": ("\ufeff" + TWO + "}", 10, "bad-json"),
    "form feed behind": (TWO + "}\f", 10, "bad-json"),
    "metadata with a number": (TWO + ',"__metadata__":{"n":0}}', 10, "metadata"),
    "metadata a list": (TWO + ',"__metadata__":[]}', 10, "metadata"),
    "metadata twice": (TWO + ',"__metadata__":{},"__metadata__":{}}', 10, "metadata"),
    "hole": (pair("[0,4]", "[6,10]"), 10, "gap"),
    "hole at the start": (one(offsets="[2,6]"), 6, "gap"),
    "overlap": (pair("[0,4]", "[2,6]"), 6, "overlap"),
    "overlap of other sizes": (f'{{"a":{entry()},"b":{entry("[6]", "[2,8]")}}}', 8, "overlap"),
    "one byte too many": (one(), 5, "trailing"),
    "one byte short": (one(), 3, "truncated"),
    "data without tensors": ("{}", 1, "trailing"),
    "end before begin": (one("[8]", "[8,0]"), 8, "offsets"),
    "three offsets": (one(offsets="[0,4,4]"), 4, "offsets"),
    "fractions": (one(offsets="[0.0,4.0]"), 4, "offsets"),
    "minus zero": (one(offsets="[-0,4]"), 4, "offsets"),
    "false for zero": (one(offsets="[false,4]"), 4, "offsets"),
    "negative shape": (one("[-4]"), 4, "shape"),
    "overflow": (one("[4294967296,4294967296,4]", "[0,0]"), 0, "shape"),
    "overflow before a zero": (
        one("[4294967296,4294967296,4,0]", "[0,0]"),
        0,
        "shape",
    ),
    "shape against bytes": (one("[5]"), 4, "shape"),
    "F4, half a byte": (one("[3]", "[0,2]", "F4"), 2, "shape"),
    "F7": (one(dtype="F7"), 4, "dtype"),
    "dtype null": ('{"a":{"dtype":null,"shape":[4],"data_offsets":[0,4]}}', 4, "dtype"),
    "no dtype": ('{"a":{"shape":[4],"data_offsets":[0,4]}}', 4, "bad-json"),
    "dtype twice": (
        '{"a":{"dtype":"I8","dtype":"I8","shape":[4],"data_offsets":[0,4]}}',
        4,
        "bad-json",
    ),
    "null for a tensor": ('{"a":null}', 0, "bad-json"),
    "NaN": (one(rest=',"x":NaN'), 4, "bad-json"),
    "NaN for an offset": (one(offsets="[0,NaN]"), 4, "bad-json"),
    "1e999": (one(rest=',"x":1e999'), 4, "bad-json"),
    "half a surrogate pair": (f'{{"\\ud800":{entry()}}}', 4, "bad-json"),
    "invalid UTF-8 in a name": (b'{"\xff":' + entry().encode() + b"}", 4, "bad-json"),
    "array": (f"[{entry()}]", 4, "bad-json"),
    "comma at the end": (f'{{"a":{entry()},}}', 4, "bad-json"),
    "deep": (one(rest=',"x":' + "[" * 99999 + "]" * 99999), 4, "bad-json"),
    "nothing": ("", 0, "empty-header"),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_the_library_loads_is_read(name, tmp_path):
    path = write(tmp_path / "x", *GOOD[name])
    theirs = dict(deserialize(path.read_bytes()))
    ours = read_header(path)
    assert {k: (t.dtype, list(t.shape), t.nbytes) for k, t in ours.tensors.items()} == {
        k: (t["dtype"], t["shape"], len(t["data"])) for k, t in theirs.items()
    }


@pytest.mark.parametrize("name", BAD)
def test_what_the_library_refuses_is_refused_by_name(name, tmp_path):
    header, data, code = BAD[name]
    path = write(tmp_path / "shard", header, data)
    with pytest.raises(SafetensorError):
        deserialize(path.read_bytes())
    with pytest.raises(SafetensorsError, match="shard: ") as refused:
        read_header(path)
    assert refused.value.code == code


@pytest.mark.parametrize("dtype", [*DTYPE_BITS, "F7", "E4M3", "I4", "C128", "f32", ""])
def test_sizes_of_all_dtypes(dtype, tmp_path):
    size = DTYPE_BITS.get(dtype, 8)
    path = write(tmp_path / "x", one("[8]", f"[0,{size}]", dtype), size)
    if dtype in DTYPE_BITS:
        assert len(dict(deserialize(path.read_bytes()))["a"]["data"]) == size
        assert read_header(path).tensors["a"] == Tensor(dtype, (8,), 0, size)
    else:
        with pytest.raises(SafetensorError):
            deserialize(path.read_bytes())
        with pytest.raises(SafetensorsError, match=f"x: tensor a: unknown dtype '{dtype}'"):
            read_header(path)


def test_positions_in_the_file(tmp_path):
    header = read_header(write(tmp_path / "x", TWO + ',"__metadata__":{"format":"pt"}}', 10))
    assert header.size == header.data_start + 10
    assert header.span("b") == (header.data_start + 8, header.data_start + 10)
    assert header.metadata == {"format": "pt"}


def test_a_cut_file_names_what_is_cut(tmp_path):
    path = write(tmp_path / "x", f'{{"a":{entry()},"b":{entry("[6]", "[4,10]")}}}', 7)
    with pytest.raises(SafetensorsError, match=r"3 bytes missing.*b \(3\)") as refused:
        read_header(path)
    assert refused.value.code == "truncated"
    assert refused.value.missing == {"b": 3}


def test_a_pointer_says_what_it_stands_for(tmp_path):
    path = tmp_path / "x"
    path.write_text(
        f"version https://git-lfs.github.com/spec/v1\noid sha256:{'ab' * 32}\nsize 10627385344\n"
    )
    with pytest.raises(
        SafetensorsError, match="Git LFS pointer of a file of 10627385344 bytes"
    ) as e:
        read_header(path)
    assert (e.value.code, e.value.declared_size) == ("lfs-pointer", 10627385344)
    assert e.value.declared_sha256 == "ab" * 32


@pytest.mark.parametrize(
    ("length", "code"),
    [(100_000_001, "header-too-large"), (2**63, "header-too-large"), (500, "truncated-header")],
)
def test_absurd_lengths(length, code, tmp_path):
    path = write(tmp_path / "x", "{}", 4, length)
    with pytest.raises(SafetensorError):
        deserialize(path.read_bytes())
    with pytest.raises(SafetensorsError, match=str(length)) as refused:
        read_header(path)
    assert refused.value.code == code


def test_a_file_of_a_few_bytes(tmp_path):
    (tmp_path / "x").write_bytes(b"12345")
    with pytest.raises(SafetensorsError, match="5 bytes") as refused:
        read_header(tmp_path / "x")
    assert refused.value.code == "header-too-small"
