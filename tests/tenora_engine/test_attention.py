"""Paged attention and the KV store against the formula, with NaN wherever nobody should look."""

from __future__ import annotations

import itertools

import pytest
import torch

from tenora_engine.kernels.attention import AttentionBatch, Span, prepare_attention
from tenora_engine.kernels.kv import allocate_kv, store_kv

BLOCK = 4


def naive(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, first: int, window: int | None = None
) -> torch.Tensor:
    """q: [t, Hq, D] at positions first..; keys, values: [L, Hkv, D]."""
    group = q.shape[1] // keys.shape[1]
    out = torch.empty_like(q)
    for token, head in itertools.product(range(q.shape[0]), range(q.shape[1])):
        end = first + token + 1
        seen = slice(0 if window is None else max(0, end - window), end)
        scores = keys[seen, head // group] @ q[token, head] / q.shape[2] ** 0.5
        out[token, head] = scores.softmax(0) @ values[seen, head // group]
    return out


@pytest.mark.parametrize("window", [None, 1, 4, 5, 9, 100])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (6, 2), (5, 1)])
def test_any_mix_of_lengths(num_heads: int, num_kv_heads: int, window: int | None):
    """Chunks over a cached prefix and single tokens, lengths around block multiples, blocks in any order. Those that no
    token sees any more are gone."""
    torch.manual_seed(0)
    head_dim = 8
    shapes = [(1, 1), (1, 4), (1, 5), (3, 3), (5, 12), (1, 33), (7, 8), (1, 16), (2, 40)]  # (new tokens, context)
    layer = allocate_kv(1, 80, BLOCK, num_kv_heads, head_dim, torch.float32, torch.device("cpu"))[0]
    layer.keys.fill_(float("nan"))
    layer.values.fill_(float("nan"))
    free = torch.randperm(80).add(1).tolist()
    spans, queries, expected, begin = [], [], [], 0
    for length, context in shapes:
        blocks = [free.pop() for _ in range(-(-context // BLOCK))]
        keys, values = torch.randn(2, context, num_kv_heads, head_dim)
        places = torch.tensor([blocks[p // BLOCK] * BLOCK + p % BLOCK for p in range(context)])
        store_kv(layer, keys, values, places)
        q = torch.randn(length, num_heads, head_dim)
        expected.append(naive(q, keys, values, context - length, window))
        gone = 0 if window is None else max(0, context - length - window + 1) // BLOCK
        spans.append(Span(begin, begin + length, context, [0] * gone + blocks[gone:]))
        begin += length
        queries.append(q)
    attention = prepare_attention(AttentionBatch(spans, BLOCK), torch.device("cpu"), torch.float32)
    torch.testing.assert_close(
        attention(torch.cat(queries), layer, head_dim**-0.5, window), torch.cat(expected), atol=1e-5, rtol=1e-5
    )
