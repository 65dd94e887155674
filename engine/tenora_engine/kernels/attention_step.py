"""A step's attention on a GPU: cut once and copied once for each kind of layer, launched in every layer.

For a CUDA graph the tables lie in memory of a fixed size (`Capacity`), which the launches in the graph read anew at
each replay: `refill` puts another step there. Grids cover the capacity; what a step leaves unused of it ends at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import torch
import triton
from torch import Tensor

from tenora_engine.kernels.attention import AttentionBatch
from tenora_engine.kernels.attention_launch import (
    MAX_PARTS,
    MIN_PART,
    AttentionLaunch,
    attention_launch,
    long_height,
    short_height,
)
from tenora_engine.kernels.attention_tiles import MERGE_WORDS, TILE_WORDS, Ints, block_list, cut
from tenora_engine.kernels.kv import LARGEST, LayerKv
from tenora_engine.kernels.launch_table import target_of
from tenora_engine.kernels.paged_attention import attend_kernel, merge_kernel

# The three counts come first, each where a load can be wide.
_COUNTS: Final = (0, 4, 8)
_HEADER_WORDS: Final = 12


@dataclass(frozen=True, slots=True)
class Capacity:
    """Sizes of a step's tables: those of one step, or the largest that a graph is made for."""

    num_short: int  # tiles of spans that fit one, and their parts
    num_long: int
    num_merges: int
    num_scratch_rows: int
    num_blocks: int

    @classmethod
    def for_decoding(cls, num_spans: int, context: int, block_size: int) -> Self:
        """Spans of one token each and at most `context` tokens."""
        num_tiles = num_spans * min(MAX_PARTS, -(-context // MIN_PART))
        return cls(num_tiles, 0, num_spans, num_tiles, num_spans * -(-context // block_size))

    def holds(self, other: Capacity) -> bool:
        return all(
            getattr(self, name) >= getattr(other, name)
            for name in ("num_short", "num_long", "num_merges", "num_scratch_rows", "num_blocks")
        )


class Tables:
    """Tiles, merges and blocks for the layers of one grouping and one window, in one piece of memory (int32)."""

    def __init__(
        self,
        batch: AttentionBatch,
        group: int,
        window: int | None,
        device: torch.device,
        dtype: torch.dtype,
        capacity: Capacity | None,
    ) -> None:
        self.window = window
        self.short_height, self.short_tokens = short_height(group), short_height(group) // group
        self.long_height, self.long_tokens = long_height(group, dtype), long_height(group, dtype) // group
        parts, needed = self._cut(batch)
        self.capacity = capacity or needed
        sizes = (
            self.capacity.num_short * TILE_WORDS,
            self.capacity.num_long * TILE_WORDS,
            self.capacity.num_merges * MERGE_WORDS,
            self.capacity.num_blocks,
        )
        self._starts = np.cumsum([_HEADER_WORDS, *sizes]).tolist()
        self._memory = torch.zeros(self._starts[-1], dtype=torch.int32, device=device)
        self.short, self.long, self.merges, self.blocks = (
            self._memory[begin:end] for begin, end in zip(self._starts, self._starts[1:], strict=False)
        )
        self.num_short, self.num_long, self.num_merges = (self._memory[at : at + 1] for at in _COUNTS)
        self._copy(parts, needed)

    def refill(self, batch: AttentionBatch) -> None:
        self._copy(*self._cut(batch))

    def _cut(self, batch: AttentionBatch) -> tuple[list[Ints], Capacity]:
        blocks, first_blocks = block_list(batch.spans, batch.block_size)
        is_short = np.array([span.length <= self.short_tokens for span in batch.spans], dtype=bool)
        shorts = [span for span in batch.spans if span.length <= self.short_tokens]
        longs = [span for span in batch.spans if span.length > self.short_tokens]
        short = cut(shorts, self.short_tokens, self.window, first_blocks[is_short], 0)
        long = cut(longs, self.long_tokens, self.window, first_blocks[~is_short], short.num_scratch_rows)
        merges = np.concatenate([short.merges, long.merges])
        needed = Capacity(len(short.tiles), len(long.tiles), len(merges), long.num_scratch_rows, len(blocks))
        return [short.tiles, long.tiles, merges, blocks], needed

    def _copy(self, parts: list[Ints], needed: Capacity) -> None:
        """One copy to the device that nobody waits for. Raises ValueError."""
        if not self.capacity.holds(needed):
            raise ValueError(f"a step of {needed} for tables of {self.capacity}")
        words = np.zeros(self._starts[3] + needed.num_blocks, dtype=np.int32)
        words[list(_COUNTS)] = needed.num_short, needed.num_long, needed.num_merges
        for start, part in zip(self._starts, parts, strict=False):
            words[start : start + part.size] = part.ravel()
        packed = torch.from_numpy(words)
        if self._memory.is_cuda:
            packed = packed.pin_memory()
        self._memory[: len(words)].copy_(packed, non_blocking=True)


class PagedAttention:
    """Implements `attention.Attention`."""

    def __init__(
        self, batch: AttentionBatch, device: torch.device, dtype: torch.dtype, capacity: Capacity | None = None
    ) -> None:
        self.batch, self._device, self._dtype, self._capacity = batch, device, dtype, capacity
        self._target = target_of(device)
        self._tables: dict[tuple[int, int | None], Tables] = {}

    def refill(self, batch: AttentionBatch) -> None:
        """Another step for the launches made so far, in the same memory. Raises ValueError beyond the capacity."""
        self.batch = batch
        for tables in self._tables.values():
            tables.refill(batch)

    def tables(self, group: int, window: int | None) -> Tables:
        """For the layers with `group` query heads to a key head, and this window."""
        kind = (group, window)
        if kind not in self._tables:
            self._tables[kind] = Tables(self.batch, *kind, self._device, self._dtype, self._capacity)
        return self._tables[kind]

    def __call__(self, q: Tensor, cache: LayerKv, scale: float, window: int | None) -> Tensor:
        _check(q, cache, self.batch)
        num_heads, head_dim = q.shape[1:]
        tables = self.tables(num_heads // cache.keys.shape[2], window)
        capacity = tables.capacity
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        scratch = torch.empty(capacity.num_scratch_rows, num_heads, head_dim, dtype=torch.float32, device=q.device)
        weights = torch.empty(capacity.num_scratch_rows, num_heads, dtype=torch.float32, device=q.device)

        def attend(num_tiles: int, count: Tensor, tiles: Tensor, launch: AttentionLaunch) -> None:
            attend_kernel[(num_tiles, cache.keys.shape[2])](
                out,
                scratch,
                weights,
                q,
                q.stride(0),
                cache.keys,
                cache.values,
                cache.keys if cache.key_scales is None else cache.key_scales,
                cache.values if cache.value_scales is None else cache.value_scales,
                cache.keys.shape[0],
                count,
                tiles,
                tables.blocks,
                scale * math.log2(math.e),
                0 if window is None else window,
                num_heads=num_heads,
                num_kv_heads=cache.keys.shape[2],
                head_dim=head_dim,
                padded_dim=triton.next_power_of_2(head_dim),
                block_size=cache.keys.shape[1],
                height=launch.height,
                width=launch.width,
                quantised=cache.key_scales is not None,
                windowed=window is not None,
                num_warps=launch.num_warps,
                num_stages=launch.num_stages,
            )

        if capacity.num_short:
            launch = attention_launch(tables.short_height, head_dim, q.dtype, cache.keys.dtype, self._target)
            attend(capacity.num_short, tables.num_short, tables.short, launch)
        if capacity.num_long:
            launch = attention_launch(tables.long_height, head_dim, q.dtype, cache.keys.dtype, self._target)
            attend(capacity.num_long, tables.num_long, tables.long, launch)
        if capacity.num_merges:
            merge_kernel[(capacity.num_merges, num_heads)](
                out,
                scratch,
                weights,
                tables.num_merges,
                tables.merges,
                num_heads=num_heads,
                head_dim=head_dim,
                padded_dim=triton.next_power_of_2(head_dim),
                max_parts=MAX_PARTS,
                num_warps=4,
            )
        return out


def prepare_attention(batch: AttentionBatch, device: torch.device, dtype: torch.dtype) -> PagedAttention:
    return PagedAttention(batch, device, dtype)


def _check(q: Tensor, cache: LayerKv, batch: AttentionBatch) -> None:
    """What the kernels take on trust: they follow addresses. Raises ValueError."""
    _, block_size, num_kv_heads, head_dim = cache.keys.shape
    if q.shape[2] != head_dim or q.shape[1] % num_kv_heads or cache.values.shape != cache.keys.shape:
        raise ValueError(f"q of shape {tuple(q.shape)} for a cache of {tuple(cache.keys.shape)}")
    if batch.block_size != block_size:
        raise ValueError(f"a step with blocks of {batch.block_size} tokens for a cache with {block_size}")
    if batch.spans and batch.spans[-1].end > q.shape[0]:
        raise ValueError(f"spans of {batch.spans[-1].end} rows for {q.shape[0]}")
    quantised = cache.keys.dtype in LARGEST
    if cache.values.dtype != cache.keys.dtype or not (quantised or cache.keys.dtype == q.dtype):
        raise ValueError(f"q in {q.dtype} for a cache in {cache.keys.dtype} and {cache.values.dtype}")
    if quantised and (cache.key_scales is None or cache.value_scales is None):
        raise ValueError(f"a cache in {cache.keys.dtype} without scales")
    if any(pages.device != q.device or not pages.is_contiguous() for pages in cache.pages):
        raise ValueError(f"a cache that is not contiguous or not on {q.device}")
    if q.stride(2) != 1 or q.stride(1) != head_dim:
        raise ValueError("the heads of q must be contiguous")
