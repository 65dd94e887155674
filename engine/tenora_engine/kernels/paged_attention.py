"""Attention over the paged cache, plain or quantised, for any mix of decoding and prefilling spans.

    out[token, head] = sum_n p_n v_n,    p = softmax over n of scale * q k_n

The reference is `attention.prepare_attention`; tiles and merges are those of `attention_tiles`. Keys stream past a
tile of queries with a running maximum (Dao et al. 2022, arXiv:2205.14135); parts of one reading are merged by the
logarithms of their sums. A quantised cache is widened in registers, exactly, and its scales go where they cost one
product for each key rather than for each of its elements: those of keys into the scores, those of values into the
probabilities.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["window"])
def attend_kernel(
    out,  # [T, num_heads, head_dim]
    scratch,  # fp32 [num_scratch_rows, num_heads, head_dim]
    weights,  # fp32 [num_scratch_rows, num_heads]: log2 of the sum that a row of scratch was divided by
    q,  # [T, num_heads, head_dim]
    q_stride,  # from token to token
    keys,  # [num_blocks, block_size, num_kv_heads, head_dim]
    values,
    key_scales,  # fp32 [num_blocks, block_size, num_kv_heads], or keys where these are plain
    value_scales,
    num_blocks,
    num_tiles,  # int32 [1]
    tiles,  # int32 [num_tiles, 8]
    blocks,  # int32, those of all spans
    scale,  # of the scores, times log2(e)
    window,
    num_heads: tl.constexpr,
    num_kv_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    block_size: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    quantised: tl.constexpr,
    windowed: tl.constexpr,
):
    """Program (tile, key head). Beyond the last tile there is nothing to do: a graph's grid covers its maximum."""
    if tl.program_id(0) >= tl.load(num_tiles):
        return
    tile = tiles + tl.program_id(0) * 8
    row, num_tokens, position = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    first_key, end_key, first_block = tl.load(tile + 3), tl.load(tile + 4), tl.load(tile + 5)
    scratch_row, num_parts = tl.load(tile + 6), tl.load(tile + 7)
    tl.device_assert(end_key <= position + num_tokens, "keys beyond the tile's own tokens")

    group: tl.constexpr = num_heads // num_kv_heads
    kv_head = tl.program_id(1)
    rows = tl.arange(0, height)
    token, head = rows // group, kv_head * group + rows % group
    dims = tl.arange(0, padded_dim)
    inside = (token < num_tokens)[:, None] & (dims < head_dim)
    q_rows = q + (row + token).to(tl.int64) * q_stride + head * head_dim
    query = tl.load(q_rows[:, None] + dims, mask=inside, other=0.0)

    peak = tl.full((height,), float("-inf"), tl.float32)
    total = tl.full((height,), 0.0, tl.float32)
    sums = tl.full((height, padded_dim), 0.0, tl.float32)
    for start in range(first_key, end_key, width):
        key = start + tl.arange(0, width)
        there = key < end_key
        block = tl.load(blocks + first_block + key // block_size, mask=there, other=0)
        tl.device_assert(((block > 0) & (block < num_blocks)) | (key >= end_key), "a block that no sequence holds")
        place = (block.to(tl.int64) * block_size + key % block_size) * num_kv_heads + kv_head
        elements = place[:, None] * head_dim + dims
        held = there[:, None] & (dims < head_dim)
        k = tl.load(keys + elements, mask=held, other=0.0)
        v = tl.load(values + elements, mask=held, other=0.0)
        if quantised:  # every value of e4m3 and int8 is one of bf16
            k, v = k.to(tl.float32), v.to(tl.float32)
        scores = tl.dot(query, k.to(query.dtype).T, input_precision="ieee") * scale
        if quantised:
            scores *= tl.load(key_scales + place, mask=there, other=0.0)
        seen = there & (key <= (position + token)[:, None])
        if windowed:
            seen &= key > (position + token - window)[:, None]
        scores = tl.where(seen, scores, float("-inf"))
        new_peak = tl.maximum(peak, tl.max(scores, 1))
        base = tl.where(new_peak == float("-inf"), 0.0, new_peak)  # of a row that has seen nothing yet
        p = tl.exp2(scores - base[:, None])
        shrunk = tl.exp2(peak - base)
        total = total * shrunk + tl.sum(p, 1)
        if quantised:
            p *= tl.load(value_scales + place, mask=there, other=0.0)
        sums = tl.dot(p.to(query.dtype), v.to(query.dtype), sums * shrunk[:, None], input_precision="ieee")
        peak = new_peak

    mean = sums / tl.where(total == 0.0, 1.0, total)[:, None]
    if num_parts == 1:
        places = ((row + token).to(tl.int64) * num_heads + head) * head_dim
        tl.store(out + places[:, None] + dims, mean.to(out.dtype.element_ty), mask=inside)
    else:
        places = (scratch_row + token).to(tl.int64) * num_heads + head
        tl.store(scratch + places[:, None] * head_dim + dims, mean, mask=inside)
        tl.store(weights + places, peak + tl.log2(total), mask=token < num_tokens)


@triton.jit
def merge_kernel(
    out,  # [T, num_heads, head_dim]
    scratch,  # fp32 [num_scratch_rows, num_heads, head_dim]
    weights,  # fp32 [num_scratch_rows, num_heads]
    num_merges,  # int32 [1]
    merges,  # int32 [num_merges, 4]
    num_heads: tl.constexpr,
    head_dim: tl.constexpr,
    padded_dim: tl.constexpr,
    max_parts: tl.constexpr,
):
    """Program (merge, head): the parts of one token's sum, each at its share of the weight."""
    if tl.program_id(0) >= tl.load(num_merges):
        return
    merge = merges + tl.program_id(0) * 4
    row, first, stride, num_parts = tl.load(merge), tl.load(merge + 1), tl.load(merge + 2), tl.load(merge + 3)
    head = tl.program_id(1)
    part = tl.arange(0, max_parts)
    dims = tl.arange(0, padded_dim)
    places = (first + part * stride).to(tl.int64) * num_heads + head
    there = part < num_parts
    weight = tl.load(weights + places, mask=there, other=float("-inf"))
    share = tl.exp2(weight - tl.max(weight, 0))
    share /= tl.sum(share, 0)
    inside = there[:, None] & (dims < head_dim)
    sums = tl.load(scratch + places[:, None] * head_dim + dims, mask=inside, other=0.0)
    place = (row.to(tl.int64) * num_heads + head) * head_dim
    tl.store(out + place + dims, tl.sum(sums * share[:, None], 0).to(out.dtype.element_ty), mask=dims < head_dim)
