"""The structs of `src/abi.h`, field by field, and in its order."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from enum import IntEnum
from typing import Any, ClassVar, Final

Fields = Sequence[tuple[str, Any]]


class DType(IntEnum):
    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2


class Span(Structure):
    _fields_: ClassVar[Fields] = (("begin", c_int64), ("end", c_int64), ("context", c_int64), ("first_block", c_int64))


class Segment(Structure):
    _fields_: ClassVar[Fields] = (("begin", c_int64), ("end", c_int64), ("slot", c_int64), ("scale", c_float))


class Step(Structure):
    _fields_: ClassVar[Fields] = (
        ("num_rows", c_int64),
        ("spans", c_void_p),
        ("num_spans", c_int64),
        ("blocks", c_void_p),
        ("block_size", c_int64),
        ("segments", c_void_p),
        ("num_segments", c_int64),
    )


class Op(Structure):
    """What all operations begin with. `KIND` is filled in by each."""

    KIND: ClassVar[int]
    _fields_: ClassVar[Fields] = (("kind", c_int32), ("dtype", c_int32))

    def __init__(self, dtype: DType, **values: Any) -> None:
        super().__init__(self.KIND, dtype, **values)


class Norm(Op):
    KIND: ClassVar[int] = 0
    _fields_: ClassVar[Fields] = (
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("residual", c_void_p),
        ("residual_stride", c_int64),
        ("weight", c_void_p),
        ("out", c_void_p),
        ("size", c_int64),
        ("eps", c_float),
    )


class Linear(Op):
    KIND: ClassVar[int] = 1
    _fields_: ClassVar[Fields] = (
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("y", c_void_p),
        ("weights", c_void_p),
        ("scales", c_void_p),
        ("bias", c_void_p),
        ("in_features", c_int64),
        ("out_features", c_int64),
        ("weights_dtype", c_int32),
        ("y_dtype", c_int32),
    )


class PlaceHeads(Op):
    KIND: ClassVar[int] = 2
    _fields_: ClassVar[Fields] = (
        ("heads", c_void_p),
        ("heads_stride", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("cos_sin", c_void_p),
        ("rotary_dim", c_int64),
        ("q_norm", c_void_p),
        ("k_norm", c_void_p),
        ("eps", c_float),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("places", c_void_p),
    )


class Attention(Op):
    KIND: ClassVar[int] = 3
    _fields_: ClassVar[Fields] = (
        ("q", c_void_p),
        ("q_stride", c_int64),
        ("out", c_void_p),
        ("keys", c_void_p),
        ("values", c_void_p),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("window", c_int64),
        ("scale", c_float),
    )


class Gated(Op):
    KIND: ClassVar[int] = 4
    _fields_: ClassVar[Fields] = (
        ("gate_up", c_void_p),
        ("gate_up_stride", c_int64),
        ("out", c_void_p),
        ("size", c_int64),
        ("activation", c_int32),
    )


class Lora(Op):
    KIND: ClassVar[int] = 5
    _fields_: ClassVar[Fields] = (
        ("x", c_void_p),
        ("x_stride", c_int64),
        ("y", c_void_p),
        ("y_stride", c_int64),
        ("slots", c_void_p),
        ("num_slices", c_int64),
        ("slices", c_void_p),
        ("in_features", c_int64),
        ("is_embedding", c_int32),
    )


OPS: Final[Sequence[type[Op]]] = (Norm, Linear, PlaceHeads, Attention, Gated, Lora)
STRUCTS: Final[Sequence[type[Structure]]] = (Span, Segment, Step, *OPS)
