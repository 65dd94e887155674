"""The operations of the kernel seam on the native library. What it cannot take goes to the reference, by operation."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Protocol

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tenora_engine.cpu import abi
from tenora_engine.cpu.abi import DType, Op, Step
from tenora_engine.cpu.library import Library, open_library
from tenora_engine.kernels import REFERENCE, Kernels
from tenora_engine.kernels.attention import Attention, AttentionBatch
from tenora_engine.kernels.heads import HeadNorms
from tenora_engine.kernels.kv import LayerKv
from tenora_engine.kernels.lora import AddLora, LoraPair, LoraShape, LoraSlots, Segment
from tenora_engine.kernels.lora_slots import TableSlots
from tenora_engine.kernels.norm import Normed
from tenora_engine.model.linear import Linear
from tenora_engine.model.spec import Activation

DTYPES: Final = {torch.float32: DType.FLOAT32, torch.bfloat16: DType.BFLOAT16, torch.int8: DType.INT8}
FLOATS: Final = frozenset({torch.float32, torch.bfloat16})  # of activations
_COLUMNS: Final = 96  # `kColumns` in `src/lora.h`
_ACTIVATIONS: Final = {Activation.SILU: 0, Activation.GELU_TANH: 1}


@functools.cache
def native_for(num_threads: int) -> Native | None:
    """None: the library was not built, or does not run here."""
    native = open_library(num_threads)
    return None if native is None else Native(native)


class Sink(Protocol):
    """Where operations go, and where the memory of their results comes from."""

    def emit(self, op: Op, step: Step) -> None: ...

    def empty(self, like: Tensor, *shape: int) -> Tensor:
        """A result of as many rows as `like` has: [T, *shape]."""


class _AtOnce:
    """Operations are run as they come."""

    def __init__(self, native: Library) -> None:
        self._library = native

    def emit(self, op: Op, step: Step) -> None:
        pointer = ctypes.c_void_p(ctypes.addressof(op))
        self._library.run(ctypes.byref(pointer), 1, step)

    def empty(self, like: Tensor, *shape: int) -> Tensor:
        return torch.empty(like.shape[0], *shape, dtype=like.dtype)


class Native:
    """Makes the operations for one library."""

    def __init__(self, native: Library) -> None:
        self.library = native
        self.sink: Sink = _AtOnce(native)
        self.kernels = Kernels(
            make_linear=self.make_linear,
            add_rms_norm=self.add_rms_norm,
            place_heads=self.place_heads,
            prepare_attention=self.prepare_attention,
            gated=self.gated,
            make_lora_slots=self.make_lora_slots,
            prepare_lora=self.prepare_lora,
            race=REFERENCE.race,
        )
        self.int8_kernels = replace(self.kernels, make_linear=self.make_int8_linear)

    def make_linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        if weight.dtype not in FLOATS:
            return REFERENCE.make_linear(weight, bias)
        return NativeLinear(self, weight, None, bias)

    def make_int8_linear(self, weight: Tensor, bias: Tensor | None) -> Linear:
        """w = scale * round(w / scale), by output channel, the largest magnitude of a channel at 127."""
        weight = weight.float()
        scales = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / 127
        return NativeLinear(self, (weight / scales[:, None]).round().to(torch.int8), scales, bias)

    def add_rms_norm(self, x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Normed:
        if not _rows_are_dense(x if residual is None else residual) or not _rows_are_dense(x):
            return REFERENCE.add_rms_norm(x, residual, weight, eps)
        out = self.sink.empty(x, x.shape[1])
        op = abi.Norm(
            DTYPES[x.dtype],
            x=x.data_ptr(),
            x_stride=x.stride(0),
            residual=None if residual is None else residual.data_ptr(),
            residual_stride=0 if residual is None else residual.stride(0),
            weight=weight.data_ptr(),
            out=out.data_ptr(),
            size=x.shape[1],
            eps=eps,
        )
        self.sink.emit(op, Step(num_rows=x.shape[0]))
        return Normed(out, x if residual is None else residual)

    def place_heads(
        self,
        heads: Tensor,
        cos_sin: Tensor | None,
        norms: HeadNorms | None,
        cache: LayerKv,
        places: Tensor,
        num_heads: int,
    ) -> None:
        if not _plain_pages(cache, heads):
            return REFERENCE.place_heads(heads, cos_sin, norms, cache, places, num_heads)
        op = abi.PlaceHeads(
            DTYPES[heads.dtype],
            heads=heads.data_ptr(),
            heads_stride=heads.stride(0),
            num_heads=num_heads,
            num_kv_heads=(heads.shape[1] - num_heads) // 2,
            head_dim=heads.shape[2],
            cos_sin=None if cos_sin is None else cos_sin.data_ptr(),
            rotary_dim=0 if cos_sin is None else cos_sin.shape[1],
            q_norm=None if norms is None else norms.q.data_ptr(),
            k_norm=None if norms is None else norms.k.data_ptr(),
            eps=0.0 if norms is None else norms.eps,
            keys=cache.keys.data_ptr(),
            values=cache.values.data_ptr(),
            places=places.data_ptr(),
        )
        self.sink.emit(op, Step(num_rows=heads.shape[0]))
        return None

    def prepare_attention(self, batch: AttentionBatch, device: torch.device, dtype: torch.dtype) -> Attention:
        return NativeAttention(self, batch, device, dtype)

    def gated(self, gate_up: Tensor, activation: Activation) -> Tensor:
        if not _rows_are_dense(gate_up):
            return REFERENCE.gated(gate_up, activation)
        out = self.sink.empty(gate_up, gate_up.shape[1] // 2)
        op = abi.Gated(
            DTYPES[gate_up.dtype],
            gate_up=gate_up.data_ptr(),
            gate_up_stride=gate_up.stride(0),
            out=out.data_ptr(),
            size=out.shape[1],
            activation=_ACTIVATIONS[activation],
        )
        self.sink.emit(op, Step(num_rows=gate_up.shape[0]))
        return out

    def make_lora_slots(self, shape: LoraShape, num_slots: int, dtype: torch.dtype, device: torch.device) -> LoraSlots:
        make = NativeSlots if dtype in FLOATS else REFERENCE.make_lora_slots
        return make(shape, num_slots, dtype, device)

    def prepare_lora(self, segments: Sequence[Segment], device: torch.device) -> AddLora:
        return NativeLora(self, segments, device)


def _rows_are_dense(x: Tensor) -> bool:
    return x.dtype in FLOATS and x.stride(-1) == 1


def _plain_pages(cache: LayerKv, heads: Tensor) -> bool:
    """Whether the library reads this cache, and heads [T, n, D] whose rows are dense."""
    head_dim = heads.shape[2]
    dense = heads.stride(2) == 1 and heads.stride(1) == head_dim
    return heads.dtype in FLOATS and cache.keys.dtype == heads.dtype and dense and head_dim % 2 == 0


class NativeLinear:
    """y = scales * (x W^T) + b, with the weights in panels (`src/linear.h`)."""

    def __init__(self, native: Native, weight: Tensor, scales: Tensor | None, bias: Tensor | None) -> None:
        """weight: [out_features, in_features] in fp32, bf16 or int8; scales: fp32 [out_features], of int8."""
        self._native = native
        self._scales = scales
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self._bias = None if bias is None else bias.float().contiguous()
        self._packed = pack(native.library, weight)

    def __call__(self, x: Tensor) -> Tensor:
        y = self._native.sink.empty(x, self.out_features)
        op = abi.Linear(
            DTYPES[x.dtype],
            x=x.data_ptr(),
            x_stride=x.stride(0),
            y=y.data_ptr(),
            weights=self._packed.data_ptr(),
            scales=None if self._scales is None else self._scales.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            in_features=self.in_features,
            out_features=self.out_features,
            weights_dtype=DTYPES[self._packed.dtype],
            y_dtype=DTYPES[y.dtype],
        )
        self._native.sink.emit(op, Step(num_rows=x.shape[0]))
        return y


def pack(native: Library, weight: Tensor) -> Tensor:
    out_features, in_features = weight.shape
    packed = torch.empty(native.packed_elements(out_features, in_features), dtype=weight.dtype)
    weight = weight.contiguous()
    native.pack(DTYPES[weight.dtype], weight.data_ptr(), packed.data_ptr(), out_features, in_features)
    return packed


class NativeAttention:
    """A step's spans as the library reads them; every layer's attention straight from its pages."""

    def __init__(self, native: Native, batch: AttentionBatch, device: torch.device, dtype: torch.dtype) -> None:
        self._native = native
        self._batch, self._device, self._dtype = batch, device, dtype
        self._reference: Attention | None = None
        size = batch.block_size
        counts = [-(-span.context // size) for span in batch.spans]
        self._blocks = np.fromiter(
            (block for span, count in zip(batch.spans, counts, strict=True) for block in span.blocks[:count]),
            np.int32,
            sum(counts),
        )
        firsts = np.cumsum([0, *counts])
        self._spans = (abi.Span * len(counts))(
            *(
                abi.Span(span.begin, span.end, span.context, first)
                for span, first in zip(batch.spans, firsts.tolist(), strict=False)
            )
        )

    def fill(self, step: Step) -> None:
        """`step` looks at this object's memory: keep it alive."""
        step.spans = ctypes.addressof(self._spans)
        step.num_spans = len(self._spans)
        step.blocks = self._blocks.ctypes.data
        step.block_size = self._batch.block_size

    def __call__(self, q: Tensor, cache: LayerKv, scale: float, window: int | None) -> Tensor:
        if not _plain_pages(cache, q):
            self._reference = self._reference or REFERENCE.prepare_attention(self._batch, self._device, self._dtype)
            return self._reference(q, cache, scale, window)
        return attend(self._native, q, cache, scale, window, self.fill)


def attend(
    native: Native, q: Tensor, cache: LayerKv, scale: float, window: int | None, fill: Callable[[Step], None]
) -> Tensor:
    out = native.sink.empty(q, *q.shape[1:])
    op = abi.Attention(
        DTYPES[q.dtype],
        q=q.data_ptr(),
        q_stride=q.stride(0),
        out=out.data_ptr(),
        keys=cache.keys.data_ptr(),
        values=cache.values.data_ptr(),
        num_heads=q.shape[1],
        num_kv_heads=cache.keys.shape[2],
        head_dim=q.shape[2],
        window=window or 0,
        scale=scale,
    )
    step = Step(num_rows=q.shape[0])
    fill(step)
    native.sink.emit(op, step)
    return out


class NativeSlots(TableSlots):
    """B of each slice in panels, [panels, rank, _COLUMNS], so that it is read from front to back."""

    def __init__(self, shape: LoraShape, num_slots: int, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__(shape, num_slots, dtype, device)
        self.slices = torch.tensor(shape.slices)

    def _slices(self, pair: LoraPair) -> list[Tensor]:
        return [_panels(block) for block in super()._slices(pair)]


def _panels(block: Tensor) -> Tensor:
    rank, size = block.shape
    padded = F.pad(block, (0, -size % _COLUMNS))
    return padded.view(rank, padded.shape[1] // _COLUMNS, _COLUMNS).transpose(0, 1).contiguous()


class NativeLora:
    """A step's segments as the library reads them, added to every adapted layer."""

    def __init__(self, native: Native, segments: Sequence[Segment], device: torch.device) -> None:
        self._native = native
        self._reference = REFERENCE.prepare_lora(segments, device)
        self._segments = (abi.Segment * len(segments))(
            *(abi.Segment(s.begin, s.end, s.slot, s.scale) for s in segments)
        )

    def fill(self, step: Step) -> None:
        """`step` looks at this object's memory: keep it alive."""
        step.segments = ctypes.addressof(self._segments)
        step.num_segments = len(self._segments)

    def __call__(self, y: Tensor, x: Tensor, slots: LoraSlots) -> None:
        if not isinstance(slots, NativeSlots):
            self._reference(y, x, slots)
        elif self._segments:
            add_lora(self._native, y, x, slots, self.fill)


def add_lora(native: Native, y: Tensor, x: Tensor, slots: NativeSlots, fill: Callable[[Step], None]) -> None:
    op = abi.Lora(
        DTYPES[y.dtype],
        x=x.data_ptr(),
        x_stride=x.stride(0),
        y=y.data_ptr(),
        y_stride=y.stride(0),
        slots=slots.table.data_ptr(),
        num_slices=len(slots.shape.slices),
        slices=slots.slices.data_ptr(),
        in_features=slots.shape.in_features,
        is_embedding=slots.shape.is_embedding,
    )
    step = Step(num_rows=y.shape[0])
    fill(step)
    native.sink.emit(op, step)
