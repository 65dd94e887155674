"""Attention over the paged cache: each token of the step sees its sequence's tokens up to itself.

A step is described once (`AttentionBatch`), prepared once (`prepare_attention`) and then applied in every layer.
The reference gathers the pages of sequences of similar length and lets torch's fused attention work on them. What lies
in the cache beyond a sequence's length is never let through, not even as 0 * NaN.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tenora_engine.kernels.kv import LayerKv


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
    """Group the step's sequences so that padding costs at most half: by power of two of their number of blocks."""
    decodes: dict[int, list[Span]] = defaultdict(list)
    groups: list[_Group] = []
    for span in batch.spans:
        if span.length == 1:
            decodes[_num_blocks(span, batch.block_size).bit_length()].append(span)
        else:
            groups.append(_Group((span,), batch.block_size, device, dtype))
    groups += [_Group(spans, batch.block_size, device, dtype) for spans in decodes.values()]
    return _Reference(tuple(groups))


def _num_blocks(span: Span, block_size: int) -> int:
    return -(-span.context // block_size)


class _Group:
    """Spans of one length t each, attended together: S spans over at most N blocks, L = N * block_size positions."""

    def __init__(self, spans: Sequence[Span], block_size: int, device: torch.device, dtype: torch.dtype) -> None:
        self.num_spans = len(spans)
        self.length = spans[0].length
        self.rows = torch.cat([torch.arange(span.begin, span.end) for span in spans]).to(device)  # [S * t]
        num_blocks = max(_num_blocks(span, block_size) for span in spans)
        self.capacity = num_blocks * block_size
        table = torch.zeros(self.num_spans, num_blocks, dtype=torch.int64)  # zero: the null block
        for index, span in enumerate(spans):
            used = _num_blocks(span, block_size)
            table[index, :used] = torch.tensor(span.blocks[:used])
        self.blocks = table.flatten().to(device)  # [S * N]

        positions = torch.arange(self.capacity)
        contexts = torch.tensor([span.context for span in spans])
        self.padding = (positions >= contexts[:, None]).flatten().nonzero().flatten().to(device)  # rows of [S * L]
        last_seen = contexts[:, None] - self.length + torch.arange(self.length)  # [S, t], own position
        self._distance = last_seen[:, :, None] - positions  # [S, t, L], how far back each position lies
        self._dtype, self._device = dtype, device
        self._biases: dict[int | None, Tensor] = {}

    def _bias(self, window: int | None) -> Tensor:
        """[S, 1, t, L], made once a step for each window of the model."""
        if window not in self._biases:
            hidden = self._distance < 0
            if window is not None:
                hidden |= self._distance >= window
            bias = torch.zeros(hidden.shape, dtype=self._dtype).masked_fill_(hidden, float("-inf"))
            self._biases[window] = bias.unsqueeze(1).to(self._device)
        return self._biases[window]

    def attend(self, q: Tensor, cache: LayerKv, out: Tensor, scale: float, window: int | None) -> None:
        keys, values = self._gather(cache.keys), self._gather(cache.values)  # [S, Hkv, L, D]
        num_kv_heads, head_dim = keys.shape[1], keys.shape[3]
        # The query heads that share a key head become rows of one query: nothing of the cache is repeated.
        q = q.index_select(0, self.rows).view(self.num_spans, self.length, num_kv_heads, -1, head_dim)
        shared = q.shape[3]
        q = q.permute(0, 2, 3, 1, 4).reshape(self.num_spans, num_kv_heads, shared * self.length, head_dim)
        bias = self._bias(window)
        if self.length > 1:
            bias = bias.repeat(1, 1, shared, 1)
        y = F.scaled_dot_product_attention(q, keys, values, attn_mask=bias, scale=scale)
        y = y.view(self.num_spans, num_kv_heads, shared, self.length, head_dim).permute(0, 3, 1, 2, 4)
        out.index_copy_(0, self.rows, y.reshape(-1, num_kv_heads * shared, head_dim))

    def _gather(self, pages: Tensor) -> Tensor:
        num_kv_heads, head_dim = pages.shape[2:]
        gathered = pages.index_select(0, self.blocks).view(-1, num_kv_heads, head_dim)  # [S * L, Hkv, D]
        gathered.index_fill_(0, self.padding, 0)
        return gathered.view(self.num_spans, self.capacity, num_kv_heads, head_dim).transpose(1, 2)


class _Reference:
    def __init__(self, groups: tuple[_Group, ...]) -> None:
        self._groups = groups

    def __call__(self, q: Tensor, cache: LayerKv, scale: float, window: int | None) -> Tensor:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        for group in self._groups:
            group.attend(q, cache, out, scale, window)
        return out
