"""Attention over the paged cache: each token of the step sees its sequence's tokens up to itself.

A step is described once (`AttentionBatch`), prepared once (`prepare_attention`) and then applied in every layer.
The reference gathers the pages of sequences of similar length and lets torch's fused attention work on them. What lies
in the cache beyond a sequence's length is never let through, not even as 0 * NaN.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tenora_engine.kernels.kv import LayerKv, dequantise


@dataclass(frozen=True, slots=True)
class Span:
    """One sequence's part of a step: rows begin..end are its tokens context - (end - begin) .. context."""

    begin: int
    end: int
    context: int  # tokens of the sequence, those of this step included
    blocks: Sequence[int]  # at least ceil(context / block_size)

    @property
    def length(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class AttentionBatch:
    spans: Sequence[Span]  # in row order, without gaps
    block_size: int


class Attention(Protocol):
    def __call__(self, q: Tensor, cache: LayerKv, scale: float, window: int | None) -> Tensor:
        """softmax(scale q k^T) v. q: [T, Hq, D], whose keys and values are stored already; out: [T, Hq, D].

        window: how many tokens a token sees, itself included; None: all before it.
        """


def prepare_attention(batch: AttentionBatch, device: torch.device, dtype: torch.dtype) -> Attention:
    return _Reference(batch, device, dtype)


class _Reference:
    def __init__(self, batch: AttentionBatch, device: torch.device, dtype: torch.dtype) -> None:
        self._batch, self._device, self._dtype = batch, device, dtype
        self._groups: dict[int | None, tuple[_Group, ...]] = {}  # by window: a model has one or two

    def __call__(self, q: Tensor, cache: LayerKv, scale: float, window: int | None) -> Tensor:
        if window not in self._groups:
            self._groups[window] = tuple(self._group(window))
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for group in self._groups[window]:
            group.attend(q, cache, scale, out)
        return out

    def _group(self, window: int | None) -> Iterator[_Group]:
        """Sequences together so that padding costs at most half: by power of two of the blocks that they look at."""
        size = self._batch.block_size
        decodes: dict[int, list[Span]] = defaultdict(list)
        for span in self._batch.spans:
            if span.length == 1:
                seen = _num_blocks(span.context, size) - _first_block(span, window, size)
                decodes[seen.bit_length()].append(span)
            else:
                yield _Group((span,), size, window, self._device, self._dtype)
        for spans in decodes.values():
            yield _Group(spans, size, window, self._device, self._dtype)


def _num_blocks(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def _first_block(span: Span, window: int | None, block_size: int) -> int:
    """Of the span's first token, which looks back the furthest."""
    return 0 if window is None else max(0, span.context - span.length - window + 1) // block_size


class _Group:
    """Spans of one length t each, attended together: S spans over at most N blocks, L = N * block_size positions."""

    def __init__(
        self, spans: Sequence[Span], block_size: int, window: int | None, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.num_spans = len(spans)
        self.length = spans[0].length
        self.rows = torch.cat([torch.arange(span.begin, span.end) for span in spans]).to(device)  # [S * t]
        firsts = [_first_block(span, window, block_size) for span in spans]
        seen = [
            span.blocks[first : _num_blocks(span.context, block_size)]
            for span, first in zip(spans, firsts, strict=True)
        ]
        num_blocks = max(map(len, seen))
        self.capacity = num_blocks * block_size
        table = torch.zeros(self.num_spans, num_blocks, dtype=torch.int64)  # zero: the null block
        for row, blocks in zip(table, seen, strict=True):
            row[: len(blocks)] = torch.tensor(blocks)
        self.blocks = table.flatten().to(device)  # [S * N]

        positions = torch.tensor(firsts)[:, None] * block_size + torch.arange(self.capacity)  # [S, L]
        contexts = torch.tensor([span.context for span in spans])[:, None]
        self.padding = (positions >= contexts).flatten().nonzero().flatten().to(device)  # rows of [S * L]
        own = (contexts - self.length + torch.arange(self.length))[:, :, None]  # [S, t, 1], each token's position
        hidden = positions[:, None] > own  # [S, t, L]
        if window is not None:
            hidden |= positions[:, None] <= own - window
        bias = torch.zeros(hidden.shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
        self.bias = bias.unsqueeze(1).to(device)  # [S, 1, t, L]

    def attend(self, q: Tensor, cache: LayerKv, scale: float, out: Tensor) -> None:
        # [S, Hkv, L, D], of a quantised cache the gathered pages only
        keys = self._gather(cache.keys, cache.key_scales, q.dtype)
        values = self._gather(cache.values, cache.value_scales, q.dtype)
        num_kv_heads, head_dim = keys.shape[1], keys.shape[3]
        # The query heads that share a key head become rows of one query: nothing of the cache is repeated.
        q = q.index_select(0, self.rows).view(self.num_spans, self.length, num_kv_heads, -1, head_dim)
        shared = q.shape[3]
        q = q.permute(0, 2, 3, 1, 4).reshape(self.num_spans, num_kv_heads, shared * self.length, head_dim)
        bias = self.bias if self.length == 1 else self.bias.repeat(1, 1, shared, 1)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=bias, scale=scale)
        y = y.view(self.num_spans, num_kv_heads, shared, self.length, head_dim).permute(0, 3, 1, 2, 4)
        out.index_copy_(0, self.rows, y.reshape(-1, num_kv_heads * shared, head_dim))

    def _gather(self, pages: Tensor, scales: Tensor | None, dtype: torch.dtype) -> Tensor:
        gathered = self._rows(pages)  # [S * L, Hkv, D]
        if scales is not None:
            gathered = dequantise(gathered, self._rows(scales), dtype)
        gathered.index_fill_(0, self.padding, 0)
        return gathered.view(self.num_spans, self.capacity, *pages.shape[2:]).transpose(1, 2)

    def _rows(self, pages: Tensor) -> Tensor:
        return pages.index_select(0, self.blocks).flatten(0, 1)
