"""The paged KV cache's memory, and the write to it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerKv:
    """Keys and values of one layer, each [num_blocks, block_size, Hkv, D]."""

    keys: Tensor
    values: Tensor


def allocate_kv(
    num_layers: int,
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
) -> tuple[LayerKv, ...]:
    """Memory for `num_blocks` blocks and the null block before them. The CPU's pages are touched at first use only."""
    shape = (num_blocks + 1, block_size, num_kv_heads, head_dim)
    return tuple(
        LayerKv(torch.zeros(shape, dtype=dtype, device=device), torch.zeros(shape, dtype=dtype, device=device))
        for _ in range(num_layers)
    )


def store_kv(cache: LayerKv, keys: Tensor, values: Tensor, places: Tensor) -> None:
    """Write the step's keys and values. keys, values: [T, Hkv, D]; places: int64 [T], block * block_size + offset."""
    cache.keys.view(-1, *keys.shape[1:]).index_copy_(0, places, keys)
    cache.values.view(-1, *values.shape[1:]).index_copy_(0, places, values)
