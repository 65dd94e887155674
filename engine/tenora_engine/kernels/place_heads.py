"""QK-norm, rotation and the write to the cache, quantised or not, in one launch: each head is read once.

The reference is `heads.place_heads` with `kv.store_kv`. Between reading and writing everything is fp32. Unlike there,
the keys in `heads` stay as they are: nobody reads them again.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from tenora_engine.kernels.attention_launch import HEADS_BLOCK
from tenora_engine.kernels.heads import HeadNorms
from tenora_engine.kernels.kv import LARGEST, SMALLEST, LayerKv


@triton.jit
def rounded(x):
    """To the nearest integer, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no bits behind the point."""
    return (x + 12582912.0) - 12582912.0


@triton.jit
def store_halves(pages, scales, vector, inside, a, b, half, head_dim, largest: tl.constexpr, smallest: tl.constexpr):
    """Vectors (a, b), quantised where `largest` says so, to places `vector` of the cache, counted in vectors."""
    if largest > 0:
        magnitude = tl.maximum(tl.max(tl.abs(a), 1), tl.max(tl.abs(b), 1))
        # A maximum may pass over NaN, a count of what is not finite does not.
        finite = (tl.abs(a) < float("inf")) & (tl.abs(b) < float("inf"))
        sound = tl.min(finite.to(tl.int32), 1) > 0
        scale = tl.where(sound, tl.maximum(magnitude, smallest) / largest, float("nan"))
        a = tl.where(sound[:, None], a / scale[:, None], 0.0)
        b = tl.where(sound[:, None], b / scale[:, None], 0.0)
        if largest == 127:
            a, b = rounded(a), rounded(b)
        tl.store(scales + vector, scale, mask=inside)
    dims = tl.arange(0, a.shape[1])
    places = pages + vector[:, None] * head_dim + dims
    mask = inside[:, None] & (dims < half)
    tl.store(places, a.to(pages.dtype.element_ty), mask=mask)
    tl.store(places + half, b.to(pages.dtype.element_ty), mask=mask)


@triton.jit
def place_heads_kernel(
    heads,  # [T, num_heads + 2 num_kv_heads, head_dim]
    heads_stride,  # from token to token
    cos_sin,  # fp32 [T, head_dim]
    q_norm,  # [head_dim]
    k_norm,
    eps,
    keys,  # [num_blocks, block_size, num_kv_heads, head_dim]
    values,
    key_scales,  # fp32 [num_blocks, block_size, num_kv_heads]
    value_scales,
    key_offset,  # fp32 [num_kv_heads, head_dim]
    places,  # int64 [T]
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded_half: tl.constexpr,
    heads_block: tl.constexpr,
    normed: tl.constexpr,
    rotated: tl.constexpr,
    shifted: tl.constexpr,
    largest: tl.constexpr,  # of the cache's format; 0: not quantised
    smallest: tl.constexpr,
):
    """Program (token, `heads_block` heads). A head is worked on in halves a and b, which rotation mixes."""
    half: tl.constexpr = head_dim // 2
    token = tl.program_id(0)
    head = tl.program_id(1) * heads_block + tl.arange(0, heads_block)
    is_query, is_value = head < num_heads, head >= num_heads + num_kv_heads
    dims = tl.arange(0, padded_half)
    there = (head < num_heads + 2 * num_kv_heads)[:, None] & (dims < half)
    first = heads + token.to(tl.int64) * heads_stride + head[:, None] * head_dim + dims
    a = tl.load(first, mask=there, other=0.0).to(tl.float32)
    b = tl.load(first + half, mask=there, other=0.0).to(tl.float32)
    if normed:
        inverse = tl.rsqrt((tl.sum(a * a, 1) + tl.sum(b * b, 1)) / head_dim + eps)[:, None]
        of_q, of_k = is_query[:, None] & (dims < half), ~(is_query | is_value)[:, None] & (dims < half)
        weight = tl.load(q_norm + dims, mask=of_q, other=0.0) + tl.load(k_norm + dims, mask=of_k, other=0.0)
        a = tl.where(is_value[:, None], a, a * inverse * weight)
        weight = tl.load(q_norm + half + dims, mask=of_q, other=0.0)
        weight += tl.load(k_norm + half + dims, mask=of_k, other=0.0)
        b = tl.where(is_value[:, None], b, b * inverse * weight)
    if rotated:
        angle = cos_sin + token.to(tl.int64) * head_dim + dims
        turning = ~is_value[:, None]
        cos = tl.where(turning, tl.load(angle, mask=dims < half, other=0.0), 1.0)
        sin = tl.where(turning, tl.load(angle + half, mask=dims < half, other=0.0), 0.0)
        a, b = a * cos - b * sin, b * cos + a * sin
    if normed or rotated:
        mask = is_query[:, None] & (dims < half)
        tl.store(first, a.to(heads.dtype.element_ty), mask=mask)
        tl.store(first + half, b.to(heads.dtype.element_ty), mask=mask)

    first_vector = tl.load(places + token) * num_kv_heads
    kv_head = head - num_heads - num_kv_heads
    value_there = is_value & (kv_head < num_kv_heads)
    store_halves(values, value_scales, first_vector + kv_head, value_there, a, b, half, head_dim, largest, smallest)
    kv_head = head - num_heads
    is_key = ~(is_query | is_value)
    if shifted:
        offset = key_offset + kv_head[:, None] * head_dim + dims
        a -= tl.load(offset, mask=is_key[:, None] & (dims < half), other=0.0)
        b -= tl.load(offset + half, mask=is_key[:, None] & (dims < half), other=0.0)
    store_halves(keys, key_scales, first_vector + kv_head, is_key, a, b, half, head_dim, largest, smallest)


def place_heads(
    heads: Tensor, cos_sin: Tensor | None, norms: HeadNorms | None, cache: LayerKv, places: Tensor, num_heads: int
) -> None:
    """As `heads.place_heads`. Raises ValueError."""
    num_tokens, num_all, head_dim = heads.shape
    num_kv_heads = cache.keys.shape[2]
    if num_all != num_heads + 2 * num_kv_heads or cache.keys.shape[3] != head_dim or head_dim % 2:
        raise ValueError(f"heads of shape {tuple(heads.shape)} for a cache of {tuple(cache.keys.shape)}")
    if heads.stride(2) != 1 or heads.stride(1) != head_dim:
        raise ValueError("the heads of a token must be contiguous")
    if len(places) != num_tokens or (cos_sin is not None and cos_sin.shape != (num_tokens, head_dim)):
        raise ValueError(f"{len(places)} places for {num_tokens} tokens")
    absent = heads  # stands for what the launch leaves out
    place_heads_kernel[(num_tokens, triton.cdiv(num_all, HEADS_BLOCK))](
        heads,
        heads.stride(0),
        absent if cos_sin is None else cos_sin,
        absent if norms is None else norms.q,
        absent if norms is None else norms.k,
        0.0 if norms is None else norms.eps,
        cache.keys,
        cache.values,
        absent if cache.key_scales is None else cache.key_scales,
        absent if cache.value_scales is None else cache.value_scales,
        absent if cache.key_offset is None else cache.key_offset,
        places,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        padded_half=max(16, triton.next_power_of_2(head_dim // 2)),
        heads_block=HEADS_BLOCK,
        normed=norms is not None,
        rotated=cos_sin is not None,
        shifted=cache.key_offset is not None,
        largest=LARGEST.get(cache.keys.dtype, 0.0),
        smallest=SMALLEST,
        num_warps=4,
    )
