"""UPL-05: bytes that are no safetensors file, and that what we accept the library accepts too, with equal tensors."""

from __future__ import annotations

import io
import json
import random
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from tenora_adapters.errors import WeightsRejected
from tenora_adapters.header import Header, read_header
from tenora_adapters.limits import Limits
from tenora_adapters.numeric import decode_floats


def pack(header: bytes | dict[str, Any], data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def tensor(begin: Any, end: Any, shape: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def read(data: bytes, limits: Limits = Limits()) -> Header:
    return read_header(io.BytesIO(data), len(data), limits)


GOOD = pack({"__metadata__": {"format": "pt"}, "a": tensor(0, 8, [2]), "b": tensor(8, 12, [1, 2], "BF16")}, bytes(12))

BAD: dict[str, bytes] = {
    "empty": b"",
    "shorter than 8": b"1234567",
    "length above the cap": (100 << 20).to_bytes(8, "little") + b"{}",
    "length of all ones": b"\xff" * 8,
    "length beyond the end": (50).to_bytes(8, "little") + b"{}",
    "not UTF-8": pack(b'{"\xff": 1}'),
    "not JSON": pack(b"{nothing}"),
    "no object": pack(b"[]"),
    "leading space": pack(b" {}"),
    "empty header": pack(b""),
    "duplicate tensor": pack(b'{"a": %s, "a": %s}' % ((json.dumps(tensor(0, 4, [1])).encode(),) * 2), bytes(4)),
    "ten on one buffer": pack({f"t{i}": tensor(0, 4, [1]) for i in range(10)}, bytes(4)),
    "overlap": pack({"a": tensor(0, 8, [2]), "b": tensor(4, 12, [2])}, bytes(12)),
    "hole": pack({"a": tensor(0, 4, [1]), "b": tensor(8, 12, [1])}, bytes(12)),
    "hole at the beginning": pack({"a": tensor(4, 8, [1])}, bytes(8)),
    "end before begin": pack({"a": tensor(4, 0, [1])}, bytes(4)),
    "trailing bytes": pack({"a": tensor(0, 4, [1])}, bytes(5)),
    "missing bytes": pack({"a": tensor(0, 4, [1])}, bytes(3)),
    "shape against length": pack({"a": tensor(0, 4, [2])}, bytes(4)),
    "product overflows to the length": pack({"a": tensor(0, 0, [2, 2**63])}),
    "product overflows before a zero": pack({"a": tensor(0, 0, [2**62, 2**62, 0])}),
    "huge beside a zero": pack({"a": tensor(0, 0, [0, 2**70])}),
    "negative dimension": pack({"a": tensor(0, 4, [-1])}, bytes(4)),
    "negative offset": pack({"a": tensor(-4, 0, [1])}, bytes(4)),
    "boolean dimension": pack({"a": tensor(0, 4, [True])}, bytes(4)),
    "float offset": pack({"a": tensor(0, 4.0, [1])}, bytes(4)),
    "too many dimensions": pack({"a": tensor(0, 4, [1] * 9)}, bytes(4)),
    "unknown dtype": pack({"a": tensor(0, 4, [1], "F33")}, bytes(4)),
    "integers": pack({"a": tensor(0, 4, [1], "I32")}, bytes(4)),
    "sub-byte": pack({"a": tensor(0, 1, [2], "F4")}, bytes(1)),
    "no dtype": pack({"a": {"shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "one more field": pack({"a": tensor(0, 4, [1]) | {"x": 1}}, bytes(4)),
    "metadata of numbers": pack({"__metadata__": {"a": 1}}),
    "metadata no object": pack({"__metadata__": []}),
    "name not printable": pack({"a\n": tensor(0, 4, [1])}, bytes(4)),
    "lone surrogate": pack(b'{"\\ud800": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', bytes(4)),
    "name of a megabyte": pack({"a" * 2**20: tensor(0, 4, [1])}, bytes(4)),
    "deeply nested": pack(b'{"a":' * 50_000 + b"}" * 50_000),
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_upl_05_bad_headers_are_refused(data: bytes) -> None:
    with pytest.raises(WeightsRejected) as refused:
        read(data)
    assert refused.value.code == "invalid_safetensors"


def test_upl_05_a_good_header() -> None:
    header = read(GOOD)
    assert [(t.name, t.dtype, t.shape, t.begin, t.end) for t in header.tensors] == [
        ("a", "F32", (2,), 0, 8),
        ("b", "BF16", (1, 2), 8, 12),
    ]
    assert header.data_start == len(GOOD) - 12


def test_upl_05_a_tensor_of_no_size_is_legal_here() -> None:
    assert read(pack({"a": tensor(0, 0, [2, 0])})).tensors[0].shape == (2, 0)


def test_upl_05_too_many_tensors() -> None:
    data = pack({f"t{i}": tensor(0, 0, [0]) for i in range(11)})
    assert len(read(data, Limits(max_tensors=11)).tensors) == 11
    with pytest.raises(WeightsRejected, match="at most 10"):
        read(data, Limits(max_tensors=10))


def test_upl_05_what_we_accept_the_library_accepts_with_equal_tensors() -> None:
    """Mutations of good files, seeded: never another exception, and never more lenient than the library."""
    rng = random.Random(5)
    values = np.arange(6, dtype=np.float32)
    seeds = [
        safetensors.numpy.save({"w": values.reshape(2, 3), "v": values.astype(np.float16)}),
        safetensors.numpy.save({"w": values[:0], "x": values}, {"format": "pt"}),
        pack({"a": tensor(0, 8, [2]), "b": tensor(8, 16, [2, 1])}, bytes(16)),
    ]
    accepted = 0
    for _ in range(2000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            match rng.randrange(4):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    data[at : at + rng.randint(1, 9)] = b""
                case 2:
                    data[at:at] = rng.choice([b"0", b" ", b'"', b",", b"9", b"[", b"\0"])
                case 3:
                    data[at] = rng.choice(b'0123456789[]{},:" ')
            if not data:
                break
        try:
            header = read(bytes(data))
        except WeightsRejected:
            continue
        accepted += 1
        theirs = safetensors.numpy.load(bytes(data))
        assert {t.name for t in header.tensors} == set(theirs)
        for t in header.tensors:
            if t.dtype != "BF16":
                raw = bytes(data[header.data_start + t.begin : header.data_start + t.end])
                ours = decode_floats(raw, t.dtype).reshape(t.shape)
                np.testing.assert_array_equal(ours, theirs[t.name].astype(np.float32))
    assert accepted > 50
