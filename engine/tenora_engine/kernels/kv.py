"""The paged KV cache's memory, and the write to it, plain or quantised.

Quantised, each token's key and value of each head keeps a scale of its own, beside the block: its largest magnitude
over the largest that the format holds. It is made from the vector itself, so there is nothing to calibrate and nothing
that an adapter could shift out of range.

    stored = round((x - offset) / scale)          scale = max |x - offset| / largest

The offset is of keys only, a constant of each channel that every key has alike, as a model with a bias on its K
projection has. It is never added back: it would add one and the same q . offset to all scores of a query, and softmax
does not see that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tenora_engine.kernels.rope import rotate

# The formats, and the largest magnitude of each. e4m3 has no infinity: beyond 448 is NaN.
LARGEST: Final = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
# Vectors of less than this are stored with the scale of this: a smaller scale would lose its own digits, or be 0.
SMALLEST: Final = 1e-30


@dataclass(frozen=True, slots=True)
class LayerKv:
    """Keys and values of one layer."""

    keys: Tensor  # [num_blocks, block_size, Hkv, D], in the model's dtype, or in one of LARGEST
    values: Tensor  # like keys
    key_scales: Tensor | None = None  # fp32 [num_blocks, block_size, Hkv]; a quantised cache has both
    value_scales: Tensor | None = None
    key_offset: Tensor | None = None  # fp32 [Hkv, D], what is taken off each key before it is quantised

    @property
    def pages(self) -> tuple[Tensor, ...]:
        """All that belongs to a block, each [num_blocks, ...]: what moves with it."""
        tensors = (self.keys, self.values, self.key_scales, self.value_scales)
        return tuple(tensor for tensor in tensors if tensor is not None)


def allocate_kv(
    num_layers: int,
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    device: torch.device,
    key_offsets: Sequence[Tensor] | None = None,
) -> tuple[LayerKv, ...]:
    """Memory for `num_blocks` blocks and the null block before them. The CPU's pages are touched at first use only.

    dtype: the model's, or one of LARGEST for a quantised cache; key_offsets: by layer, [Hkv, D], for a quantised one.
    """
    shape = (num_blocks + 1, block_size, num_kv_heads, head_dim)

    def layer(index: int) -> LayerKv:
        keys, values = (torch.zeros(shape, dtype=dtype, device=device) for _ in range(2))
        if dtype not in LARGEST:
            return LayerKv(keys, values)
        key_scales, value_scales = (torch.zeros(shape[:-1], dtype=torch.float32, device=device) for _ in range(2))
        return LayerKv(keys, values, key_scales, value_scales, key_offsets[index].float() if key_offsets else None)

    return tuple(map(layer, range(num_layers)))


def kv_token_bytes(num_kv_heads: int, head_dim: int, dtype: torch.dtype) -> int:
    """What one token takes in one layer of the cache, its scales included."""
    scale_bytes = torch.float32.itemsize if dtype in LARGEST else 0
    return 2 * num_kv_heads * (head_dim * dtype.itemsize + scale_bytes)


def store_kv(cache: LayerKv, keys: Tensor, values: Tensor, places: Tensor) -> None:
    """Write the step's keys and values. keys, values: [T, Hkv, D]; places: int64 [T], block * block_size + offset."""
    if cache.key_offset is not None:
        keys = keys - cache.key_offset
    _store(cache.keys, cache.key_scales, keys, places)
    _store(cache.values, cache.value_scales, values, places)


def _store(pages: Tensor, scales: Tensor | None, vectors: Tensor, places: Tensor) -> None:
    if scales is not None:
        vectors, of_vectors = quantise(vectors, pages.dtype)
        scales.view(-1, scales.shape[2]).index_copy_(0, places, of_vectors)
        vectors, pages = vectors.view(torch.uint8), pages.view(torch.uint8)  # torch copies no fp8 by index
    pages.view(-1, *vectors.shape[1:]).index_copy_(0, places, vectors)


def quantise(vectors: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Vectors [..., D] in `dtype`, and their scales, fp32 [...].

    One that is not finite is stored as zeros with the scale NaN: whoever reads it gets NaN, and nobody else does.
    """
    vectors = vectors.float()
    largest = vectors.abs().amax(-1)
    sound = largest.isfinite()
    scales = (largest.clamp(min=SMALLEST) / LARGEST[dtype]).masked_fill(~sound, float("nan"))
    stored = (vectors / scales.unsqueeze(-1)).masked_fill(~sound.unsqueeze(-1), 0)
    return (stored.round() if dtype is torch.int8 else stored).to(dtype), scales


def dequantise(stored: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """The vectors that `quantise` stored, in `dtype`: stored [..., D], scales [...]."""
    return (stored.float() * scales.unsqueeze(-1)).to(dtype)


def key_offset(bias: Tensor, cos_sin: Tensor) -> Tensor:
    """What the bias of a K projection adds to every key, as far as that is one constant: its mean over positions.

    RoPE turns the bias with the position. The pairs that turn slowly keep it, and it is in these that models with a
    bias have their large values; of those that turn fast the mean is next to nothing, and nothing is taken off.
    bias: [Hkv, D]; cos_sin: fp32 [L, D] of the first L positions; fp32 [Hkv, D].
    """
    offset = bias.float().unsqueeze(0).clone()
    rotate(offset, cos_sin.mean(0, keepdim=True))
    return offset.squeeze(0)
