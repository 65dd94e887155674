"""A forward pass of the decoder recorded once as a list of operations, and run as one call of the library.

The decoder itself is the only description of the model. It is run once on stand-ins for tensors; each operation that it
asks for is kept, with addresses into memory for the largest step and with the number of rows left open. A step then
fills in its rows, spans and segments, and runs the list: no Python and no lock between two operations. What CUDA graphs
are to a GPU, without a bucket for each size.

Stand-ins know views and nothing else of a tensor. A decoder that needs more cannot be recorded: `record` says so, and
the decoder runs operation by operation, with the same results.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from tenora_engine.cpu.abi import Op, Step
from tenora_engine.cpu.native import Native, NativeAttention, NativeLora, NativeSlots, add_lora, attend, native_for
from tenora_engine.kernels.kv import LayerKv
from tenora_engine.kernels.lora import LoraSlots
from tenora_engine.model.decoder import Adapters, Batch, Decoder
from tenora_engine.model.spec import RopeSpec

log = logging.getLogger(__name__)


class NotRecordable(Exception):
    """The decoder asked for something that is no operation of the library."""


class _Buffer:
    """Memory for one result; a later one may have it when nobody refers to this any more."""

    def __init__(self, memory: Tensor) -> None:
        self.memory = memory


class Rows:
    """Stands for a tensor [T, ...] of a step whose T is not known yet."""

    def __init__(self, buffer: _Buffer, view: Tensor) -> None:
        """view: of the buffer's memory, with as many rows as the largest step has."""
        self._buffer = buffer
        self._view = view
        self.shape = view.shape
        self.dtype = view.dtype

    def data_ptr(self) -> int:
        return self._view.data_ptr()

    def stride(self, dim: int) -> int:
        return self._view.stride(dim)

    def view(self, rows: int, *shape: int) -> Rows:
        if rows != -1:
            raise NotRecordable("a view with a number of rows")
        return Rows(self._buffer, self._view.view(rows, *shape))

    def __getitem__(self, index: tuple[slice, slice]) -> Rows:
        rows, columns = index
        if rows != slice(None):
            raise NotRecordable("a part of the rows")
        return Rows(self._buffer, self._view[:, columns])


class Recording:
    """Keeps the operations that a decoder asks for. The sink of a `Native` meanwhile."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.ops: list[Op] = []
        self._free: dict[int, list[Tensor]] = defaultdict(list)  # by size in bytes

    def emit(self, op: Op, step: Step) -> None:
        self.ops.append(op)

    def empty(self, like: Tensor, *shape: int) -> Tensor:
        return self.stand_in(like.dtype, *shape)

    def stand_in(self, dtype: torch.dtype, *shape: int) -> Tensor:
        """What the decoder takes for a tensor [T, *shape]."""
        if dtype not in (torch.float32, torch.bfloat16, torch.int64):
            raise NotRecordable(f"a result in {dtype}")
        size = torch.Size((self.num_rows, *shape)).numel() * dtype.itemsize
        free = self._free[size]
        memory = free.pop() if free else torch.empty(size, dtype=torch.uint8)
        buffer = _Buffer(memory)
        weakref.finalize(buffer, free.append, memory)
        return cast(Tensor, Rows(buffer, memory.view(dtype).view(self.num_rows, *shape)))


@contextmanager
def _recording(native: Native, recording: Recording) -> Iterator[None]:
    sink, native.sink = native.sink, recording
    try:
        yield
    finally:
        native.sink = sink


class RecordedDecoder(Decoder):
    """The same decoder over one cache and one set of slots, for steps of at most `num_rows` rows in one call."""

    def __init__(
        self, decoder: Decoder, native: Native, cache: Sequence[LayerKv], adapters: Adapters, num_rows: int
    ) -> None:
        """Raises NotRecordable."""
        super().__init__(decoder.spec, decoder.weights, decoder.kernels)
        self._native = native
        recording = Recording(num_rows)
        empty = torch.zeros(0, dtype=torch.int64)
        self._x = recording.stand_in(self.weights.embedding.dtype, self.spec.hidden_size)
        self._places = recording.stand_in(torch.int64)
        self._angles = {
            rope: recording.stand_in(angles.dtype, angles.shape[1]) for rope, angles in self.angles(empty).items()
        }
        batch = Batch(empty, empty, self._places, self._attention_op, self._lora_op)
        try:
            with _recording(native, recording):
                self._out = super().layers(self._x, self._angles, batch, cache, adapters)
        except (AttributeError, TypeError) as error:  # of a stand-in
            raise NotRecordable(str(error)) from error
        self._recording = recording  # keeps operations and memory alive
        # Nanoseconds by kind of operation, added up over steps; None: nobody wants to know.
        self.profile: Counter[str] | None = None
        self._ops = (ctypes.c_void_p * len(recording.ops))(*map(ctypes.addressof, recording.ops))

    def layers(
        self,
        x: Tensor,
        angles: Mapping[RopeSpec, Tensor],
        batch: Batch,
        cache: Sequence[LayerKv],
        adapters: Adapters,
    ) -> Tensor:
        num_rows = x.shape[0]
        attention, lora = batch.attention, batch.add_lora
        if num_rows > self._recording.num_rows or batch.changes_norms:
            return super().layers(x, angles, batch, cache, adapters)
        assert isinstance(attention, NativeAttention)
        assert isinstance(lora, NativeLora)
        step = Step(num_rows=num_rows)
        attention.fill(step)
        lora.fill(step)
        _rows(self._x, num_rows).copy_(x)
        _rows(self._places, num_rows).copy_(batch.places)
        for rope, values in angles.items():
            _rows(self._angles[rope], num_rows).copy_(values)
        self._run(step)
        return _rows(self._out, num_rows).clone()

    def _run(self, step: Step) -> None:
        if self.profile is None:
            self._native.library.run(self._ops, len(self._ops), step)
            return
        times = (ctypes.c_int64 * len(self._ops))()
        self._native.library.run(self._ops, len(self._ops), step, times)
        for op, nanoseconds in zip(self._recording.ops, times, strict=True):
            self.profile[type(op).__name__] += nanoseconds

    def _attention_op(self, q: Tensor, cache: LayerKv, scale: float, window: int | None) -> Tensor:
        if cache.keys.dtype != q.dtype:
            raise NotRecordable("a cache in another dtype")
        return attend(self._native, q, cache, scale, window, lambda step: None)

    def _lora_op(self, y: Tensor, x: Tensor, slots: LoraSlots) -> None:
        assert isinstance(slots, NativeSlots)
        add_lora(self._native, y, x, slots, lambda step: None)


def _rows(stand_in: Tensor, num_rows: int) -> Tensor:
    view: Any = stand_in
    tensor: Tensor = view._view
    return tensor[:num_rows]


def record(decoder: Decoder, cache: Sequence[LayerKv], adapters: Adapters, num_rows: int, num_threads: int) -> Decoder:
    """`decoder` for steps of at most `num_rows`: recorded, where it runs on the library and can be; else as it is."""
    native = native_for(num_threads)
    if native is None or decoder.kernels not in (native.kernels, native.int8_kernels):
        return decoder
    try:
        return RecordedDecoder(decoder, native, cache, adapters, num_rows)
    except NotRecordable as reason:
        log.info("the decoder runs operation by operation: %s", reason)
        return decoder
