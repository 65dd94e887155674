"""LoRA of any number of rows in two launches: `shrink` multiplies with A into scratch memory, `expand` with B.

    scratch[piece] = x[piece] A^T               fp32 [num_splits, num_scratch_rows, width]
    y[tile] += sum over its pieces of (scale * scratch[piece]) B^T

The reference is `lora.prepare_lora`; tiles and pieces are those of `lora_tiles`, addresses and ranks those of
`lora_slots`. Loops end at a slot's real rank. The sum over in_features may be split among programs; `expand` adds the
parts in their order, so that there are no atomics and a result is the same every time. Only what was written of the
scratch memory is read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenora_engine.kernels.lora_launch import Launch, shrink_splits
from tenora_engine.kernels.lora_slots import TableSlots
from tenora_engine.kernels.lora_step import LoraStep


@triton.jit(do_not_specialize=["num_scratch_rows"])
def shrink_kernel(
    x,  # [T, in_features]
    x_stride,
    pieces,  # int32 [num_pieces, 4]
    table,  # int64 [num_slots, table_width]
    table_width: tl.constexpr,
    scratch,  # fp32 [num_splits, num_scratch_rows, width]
    num_scratch_rows,
    width,
    in_features,
    split_size,  # of in_features, by one program
    num_rank_blocks,
    height: tl.constexpr,
    rank_block: tl.constexpr,
    block: tl.constexpr,
):
    """Program (piece, rank block and split): its rows times its rows of A, over its part of in_features."""
    piece = pieces + tl.program_id(0) * 4
    begin, end, slot, first = tl.load(piece), tl.load(piece + 1), tl.load(piece + 2), tl.load(piece + 3)
    split = tl.program_id(1) // num_rank_blocks
    first_rank = tl.program_id(1) % num_rank_blocks * rank_block
    row = table + slot.to(tl.int64) * table_width
    rank = tl.load(row + 1)
    if first_rank < rank:
        a = tl.multiple_of(tl.load(row).to(tl.pointer_type(x.dtype.element_ty)), 16)
        rows = begin + tl.arange(0, height)
        ranks = first_rank + tl.arange(0, rank_block)
        x_rows = x + rows.to(tl.int64)[:, None] * x_stride
        a_rows = a + ranks.to(tl.int64)[:, None] * in_features
        sums = tl.full((height, rank_block), 0.0, tl.float32)
        split_end = tl.minimum((split + 1) * split_size, in_features)
        for start in range(split * split_size, split_end, block):
            inner = start + tl.arange(0, block)
            x_block = tl.load(x_rows + inner, mask=(rows < end)[:, None] & (inner < split_end), other=0.0)
            a_block = tl.load(a_rows + inner, mask=(ranks < rank)[:, None] & (inner < split_end), other=0.0)
            sums = tl.dot(x_block, a_block.T, sums, input_precision="ieee")
        scratch_rows = split.to(tl.int64) * num_scratch_rows + first + tl.arange(0, height)
        places = scratch + scratch_rows[:, None] * width + ranks
        tl.store(places, sums, mask=(rows < end)[:, None] & (ranks < rank))


@triton.jit(do_not_specialize=["num_scratch_rows"])
def expand_kernel(
    y,  # [T, out_features]
    y_stride,
    tiles,  # int32 [num_tiles, 4]
    pieces,  # int32 [num_pieces, 4]
    scales,  # fp32 [num_pieces]
    table,  # int64 [num_slots, table_width]
    table_width: tl.constexpr,
    columns,  # int32 [num_chunks, 5]
    scratch,  # fp32 [num_splits, num_scratch_rows, width]
    num_splits,
    num_scratch_rows,
    width,
    height: tl.constexpr,
    rank_block: tl.constexpr,
    block: tl.constexpr,
    aligned: tl.constexpr,
):
    """Program (tile, chunk of `block` columns): what all pieces of the tile add to these outputs, added once."""
    tile = tiles + tl.program_id(0) * 4
    begin, end, first_piece, end_piece = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    chunk = columns + tl.program_id(1) * 5
    part, start, size = tl.load(chunk), tl.load(chunk + 3), tl.load(chunk + 4)
    first, last = tl.load(chunk + 1), tl.load(chunk + 2)
    if aligned:
        first, last = tl.multiple_of(first, 16), tl.multiple_of(last, 16)
        start, size = tl.multiple_of(start, 16), tl.multiple_of(size, 16)
    rows = begin + tl.arange(0, height)
    outs = first + tl.arange(0, block)
    sums = tl.full((height, block), 0.0, tl.float32)
    total_rank = tl.full((), 0, tl.int64)
    for index in range(first_piece, end_piece):
        slot, first_row = tl.load(pieces + index * 4 + 2), tl.load(pieces + index * 4 + 3)
        scale = tl.load(scales + index)
        entry = table + slot.to(tl.int64) * table_width + 2 + part * 3
        b = tl.multiple_of(tl.load(entry).to(tl.pointer_type(y.dtype.element_ty)), 16)
        first_rank, rank = tl.load(entry + 1), tl.load(entry + 2)
        total_rank += rank
        scratch_rows = scratch + (first_row + tl.arange(0, height)).to(tl.int64)[:, None] * width + first_rank
        split_stride = num_scratch_rows.to(tl.int64) * width
        for r in range(0, rank, rank_block):
            ranks = r + tl.arange(0, rank_block)
            inside = (rows < end)[:, None] & (ranks < rank)
            v = tl.load(scratch_rows + ranks, mask=inside, other=0.0)
            for split in range(1, num_splits):
                v += tl.load(scratch_rows + split * split_stride + ranks, mask=inside, other=0.0)
            b_places = b + ranks.to(tl.int64)[:, None] * size + (outs - start)
            b_block = tl.load(b_places, mask=(ranks < rank)[:, None] & (outs < last), other=0.0)
            sums = tl.dot((v * scale).to(y.dtype.element_ty), b_block, sums, input_precision="ieee")
    if total_rank > 0:
        places = y + rows.to(tl.int64)[:, None] * y_stride + outs
        inside = (rows < end)[:, None] & (outs < last)
        old = tl.load(places, mask=inside, other=0.0).to(tl.float32)
        tl.store(places, (old + sums).to(y.dtype.element_ty), mask=inside)


def shrink(x: Tensor, slots: TableSlots, step: LoraStep, launch: Launch) -> Tensor:
    """The product with A of all slices, for each piece; fp32 [num_splits, num_scratch_rows, width]."""
    num_rank_blocks = triton.cdiv(step.largest_rank(slots), launch.rank_block)
    in_features = slots.shape.in_features
    num_splits = shrink_splits(step.num_pieces * num_rank_blocks, in_features, launch.block)
    split_size = triton.cdiv(triton.cdiv(in_features, launch.block), num_splits) * launch.block
    width = num_rank_blocks * launch.rank_block
    scratch = torch.empty(num_splits, step.num_scratch_rows, width, dtype=torch.float32, device=x.device)
    shrink_kernel[(step.num_pieces, num_rank_blocks * num_splits)](
        x,
        x.stride(0),
        step.pieces,
        slots.table,
        slots.table.shape[1],
        scratch,
        step.num_scratch_rows,
        width,
        in_features,
        split_size,
        num_rank_blocks,
        height=launch.height,
        rank_block=launch.rank_block,
        block=launch.block,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return scratch


def expand(y: Tensor, scratch: Tensor, slots: TableSlots, step: LoraStep, launch: Launch) -> None:
    """Add to y, [T, out_features], the product of what `shrink` gave with each slice's B."""
    columns = slots.columns(launch.block)
    expand_kernel[(step.num_tiles, columns.num_chunks)](
        y,
        y.stride(0),
        step.tiles,
        step.pieces,
        step.scales,
        slots.table,
        slots.table.shape[1],
        columns.table,
        scratch,
        scratch.shape[0],
        step.num_scratch_rows,
        scratch.shape[2],
        height=launch.height,
        rank_block=launch.rank_block,
        block=launch.block,
        aligned=slots.aligned,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
