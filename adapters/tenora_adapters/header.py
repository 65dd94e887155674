"""The header of a safetensors file, checked by ourselves before anything else reads the file.

8 bytes   N, little-endian            the length of the header
N bytes   JSON object, then spaces    {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}
the rest  the tensors, back to back, no hole, nothing behind the last
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from tenora_adapters.errors import WeightsRejected
from tenora_adapters.limits import DEFAULT_LIMITS, Limits
from tenora_adapters.manifest import TensorEntry
from tenora_adapters.strict_json import JsonRejected, read_object

ITEM_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}
_LENGTH_BYTES: Final = 8
_METADATA: Final = "__metadata__"
_MAX_NAME_CHARS: Final = 512
_MAX_DIMENSIONS: Final = 8
_MAX_ELEMENTS: Final = 1 << 62


@dataclass(frozen=True)
class Header:
    tensors: tuple[TensorEntry, ...]  # in the order of their bytes
    data_start: int  # bytes from the beginning of the file


def read_header(file: BinaryIO, size: int, limits: Limits = DEFAULT_LIMITS) -> Header:
    """Header of `file` (at its beginning), which has `size` bytes in all. Raises WeightsRejected naming the rule."""
    length = file.read(_LENGTH_BYTES)
    if len(length) < _LENGTH_BYTES:
        raise _broken("the file is shorter than 8 bytes")
    header_bytes = int.from_bytes(length, "little")
    if header_bytes > limits.max_header_bytes:
        raise _broken(f"the header claims {header_bytes} bytes, at most {limits.max_header_bytes} are allowed")
    data_start = _LENGTH_BYTES + header_bytes
    if data_start > size:
        raise _broken("the header ends beyond the end of the file")
    text = file.read(header_bytes)
    if not text.startswith(b"{"):
        raise _broken("the header does not begin with '{'")
    try:
        fields = read_object(text)
    except JsonRejected as error:
        raise _broken(f"the header: {error}") from error
    _check_metadata(fields.pop(_METADATA, {}))
    if len(fields) > limits.max_tensors:
        raise _broken(f"the file holds {len(fields)} tensors, at most {limits.max_tensors} are allowed")
    tensors = sorted((_entry(name, value) for name, value in fields.items()), key=lambda t: (t.begin, t.end))
    end = 0
    for tensor in tensors:
        if tensor.begin != end:
            raise _broken("the tensors' bytes overlap or leave a hole", tensor.name)
        end = tensor.end
    if end != size - data_start:
        raise _broken(f"the tensors end at byte {end} of the data, which has {size - data_start} bytes")
    return Header(tuple(tensors), data_start)


def _check_metadata(value: object) -> None:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _broken("__metadata__ is not an object of texts", _METADATA)


def _entry(name: str, value: Any) -> TensorEntry:
    if not 0 < len(name) <= _MAX_NAME_CHARS or not name.isprintable():
        raise _broken(
            "a tensor's name is empty, too long or not printable", name[:80].encode("ascii", "replace").decode()
        )
    if not isinstance(value, dict) or value.keys() != {"dtype", "shape", "data_offsets"}:
        raise _broken("a tensor has exactly dtype, shape and data_offsets", name)
    dtype = value["dtype"]
    if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
        raise _broken(f"the dtype is one of {', '.join(ITEM_BYTES)}, found {dtype!r:.40}", name)
    shape, offsets = value["shape"], value["data_offsets"]
    if not _are_counts(shape) or len(shape) > _MAX_DIMENSIONS:
        raise _broken(f"the shape is a list of at most {_MAX_DIMENSIONS} counts, found {shape!r:.80}", name)
    if not _are_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _broken(f"data_offsets are [begin, end] with begin <= end, found {offsets!r:.80}", name)
    elements = 1
    for dimension in shape:
        elements *= dimension
        if max(elements, dimension) > _MAX_ELEMENTS:
            raise _broken("the shape's product is too large", name)
    if elements * ITEM_BYTES[dtype] != offsets[1] - offsets[0]:
        raise _broken(f"shape {shape!r:.80} of {dtype} does not take {offsets[1] - offsets[0]} bytes", name)
    return TensorEntry(name=name, dtype=dtype, shape=tuple(shape), begin=offsets[0], end=offsets[1])


def _are_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _broken(rule: str, tensor: str | None = None) -> WeightsRejected:
    return WeightsRejected(f"not a valid safetensors file: {rule}", param=tensor, code="invalid_safetensors")
