"""The decoder's forward pass of a step of decoding, launched as a whole: CUDA graphs by size of the step.

A graph has its inputs, block tables and segments in memory of its own. A step copies its there and replays the graph of
the next larger size; rows that it lacks compute into the null block, and tiles that it lacks are empty. What is in the
adapters' slots a graph reads from their tables, so that adapters come and go between two replays. Any other step
(prompts in it, more rows than the largest graph has, norms that an adapter changes) runs operation by operation.
Imports triton.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, Protocol

import torch
from torch import Tensor

from tenora_engine.kernels.attention import AttentionBatch
from tenora_engine.kernels.attention_step import Capacity as AttentionCapacity
from tenora_engine.kernels.attention_step import PagedAttention
from tenora_engine.kernels.kv import LayerKv
from tenora_engine.kernels.lora_apply import PreparedLora
from tenora_engine.kernels.lora_launch import power_of_two
from tenora_engine.kernels.lora_slots import TableSlots, share_ranks
from tenora_engine.kernels.lora_step import Capacity as LoraCapacity
from tenora_engine.model.decoder import Adapters, Batch, Decoder

log = logging.getLogger(__name__)

ROWS: Final = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
RANKS: Final = (16, 64)  # recorded ahead; of larger ones, powers of two when they come


class Recorder(Protocol):
    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Call `run` and keep what it launches: the result launches that again, on the same memory."""


class CudaRecorder:
    """CUDA graphs that share one pool of memory: a result holds until the next replay of any."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, run: Callable[[], Tensor]) -> Callable[[], Tensor]:
        run()  # compiles kernels, and libraries allocate what they keep
        graph = torch.cuda.CUDAGraph()
        # Other threads may go on: they load adapters.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            out = run()

        def replay() -> Tensor:
            graph.replay()
            return out

        return replay


@dataclass(frozen=True, slots=True)
class Size:
    num_rows: int
    rank: int  # the largest of an adapter in the step; 0: the base alone


class Graph:
    """One size's memory and what was launched on it."""

    def __init__(self, size: Size, context: int, block_size: int, device: torch.device, dtype: torch.dtype) -> None:
        rows = size.num_rows
        self.inputs = torch.zeros(3, rows, dtype=torch.int64, device=device)
        capacity = AttentionCapacity.for_decoding(rows, context, block_size)
        self.attention = PagedAttention(AttentionBatch([], block_size), device, dtype, capacity)
        self.lora = PreparedLora([], device, LoraCapacity(rows, size.rank) if size.rank else None)
        token_ids, positions, places = self.inputs
        self.batch = Batch(token_ids, positions, places, self.attention, self.lora)
        self.replay: Callable[[], Tensor] | None = None

    def load(self, batch: Batch, attention: AttentionBatch, lora: PreparedLora) -> None:
        """Nobody waits for the copies. What is beyond the batch are tokens 0 at positions 0, in the null block."""
        self.inputs.zero_()
        for place, values in zip(self.inputs, (batch.token_ids, batch.positions, batch.places), strict=True):
            place[: len(values)].copy_(values)
        self.attention.refill(attention)
        if lora.segments:
            self.lora.refill(lora.segments)


class GraphedDecoder(Decoder):
    """The same decoder over one cache and one set of slots."""

    def __init__(
        self,
        decoder: Decoder,
        cache: Sequence[LayerKv],
        adapters: Adapters,
        *,
        max_rows: int,
        context: int,
        recorder: Recorder,
    ) -> None:
        """max_rows: of a step of decoding, at most; context: tokens of a sequence, at most."""
        super().__init__(decoder.spec, decoder.weights, decoder.kernels)
        self._cache, self._adapters = cache, adapters
        self._rows = [rows for rows in ROWS if rows < max_rows] + [min(max_rows, ROWS[-1])]
        self._context = context
        self._block_size = cache[0].keys.shape[1]
        self._device, self._dtype = decoder.weights.embedding.device, decoder.weights.embedding.dtype
        self._recorder = recorder
        self._graphs: dict[Size, Graph] = {}
        self._ranks = share_ranks(_tables(adapters))

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Record all sizes, the largest first: the others fit into its memory."""
        began = time.monotonic()
        for num_rows in reversed(self._rows):
            for rank in (*reversed(RANKS), 0):
                self._graph(Size(num_rows, rank))
        log.info("%d graphs of decoding, in %.1f s", len(self._graphs), time.monotonic() - began)

    def forward(self, batch: Batch, cache: Sequence[LayerKv], adapters: Adapters) -> Tensor:
        assert cache is self._cache
        assert adapters is self._adapters
        attention, lora = batch.attention, batch.add_lora
        assert isinstance(attention, PagedAttention)
        assert isinstance(lora, PreparedLora)
        size = None if batch.changes_norms else self._size(attention.batch, lora)
        if size is None:
            return super().forward(batch, cache, adapters)
        graph = self._graph(size)
        graph.load(batch, attention.batch, lora)
        assert graph.replay is not None
        return graph.replay()[: len(batch.token_ids)].clone()

    def _size(self, attention: AttentionBatch, lora: PreparedLora) -> Size | None:
        num_rows = next((rows for rows in self._rows if rows >= len(attention.spans)), None)
        if num_rows is None or any(span.length > 1 for span in attention.spans):
            return None
        if not lora.segments:
            return Size(num_rows, 0)
        if not LoraCapacity(num_rows, 0).holds(lora.segments):
            return None
        largest = int(self._ranks[:, [segment.slot for segment in lora.segments]].max())
        return Size(num_rows, next((rank for rank in RANKS if rank >= largest), power_of_two(largest)))

    def _graph(self, size: Size) -> Graph:
        if size not in self._graphs:
            graph = self._graphs[size] = Graph(size, self._context, self._block_size, self._device, self._dtype)
            plain = super().forward
            graph.replay = self._recorder.record(lambda: plain(graph.batch, self._cache, self._adapters))
        return self._graphs[size]


def _tables(adapters: Adapters) -> Iterable[TableSlots]:
    for slots in (adapters.embedding, *chain.from_iterable(layer.linears for layer in adapters.layers)):
        assert isinstance(slots, TableSlots)
        yield slots
