"""LoRA of any number of rows in two launches: `shrink` multiplies with A into scratch memory, `expand` with B.

    scratch[piece] = x[piece] A^T               fp32 [num_splits, num_scratch_rows, width]
    y[tile] += sum over its pieces of scale * (gain * y[tile] + offset + scratch[piece] B^T)

For an adapted embedding `gather` takes the place of `shrink`: a token's product with A is a row of it. The reference is
`lora.prepare_lora`. Loops end at a slot's real rank. The sum over in_features may be split among programs; `expand`
adds the parts in their order, so that there are no atomics and a result is the same every time. Only what was written
of the scratch memory is read; empty tiles and pieces do nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from tenora_engine.kernels.lora_launch import Launch, num_splits
from tenora_engine.kernels.lora_read import add_affine, load_address, product_with_a, read_chunk, read_tile, slot_of
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
    begin, end, _, first = read_tile(pieces, tl.program_id(0))
    split = tl.program_id(1) // num_rank_blocks
    first_rank = tl.program_id(1) % num_rank_blocks * rank_block
    row = slot_of(pieces, table, table_width, tl.program_id(0))
    rank = tl.load(row + 1)
    if (first_rank < rank) & (begin < end):
        rows = begin + tl.arange(0, height)
        ranks = first_rank + tl.arange(0, rank_block)
        x_rows = x + rows.to(tl.int64)[:, None] * x_stride
        a_rows = load_address(row, x) + ranks.to(tl.int64)[:, None] * in_features
        start = split * split_size
        stop = tl.minimum(start + split_size, in_features)
        low = product_with_a(x_rows, a_rows, rows < end, ranks < rank, start, stop, height, rank_block, block)
        scratch_rows = split.to(tl.int64) * num_scratch_rows + first + tl.arange(0, height)
        places = scratch + scratch_rows[:, None] * width + ranks
        tl.store(places, low, mask=(rows < end)[:, None] & (ranks < rank))


@triton.jit
def gather_kernel(
    token_ids,  # int64 [T]
    pieces,  # int32 [num_pieces, 4]
    table,  # int64 [num_slots, table_width]
    table_width: tl.constexpr,
    like,  # of the adapters' dtype
    scratch,  # fp32 [num_scratch_rows, width]
    width,
    height: tl.constexpr,
    rank_block: tl.constexpr,
):
    """Program (piece, rank block): the tokens' rows of A, which lies as [vocabulary, rank] here."""
    begin, end, _, first = read_tile(pieces, tl.program_id(0))
    row = slot_of(pieces, table, table_width, tl.program_id(0))
    rank = tl.load(row + 1)
    ranks = tl.program_id(1) * rank_block + tl.arange(0, rank_block)
    rows = begin + tl.arange(0, height)
    inside = (rows < end)[:, None] & (ranks < rank)
    tokens = tl.load(token_ids + rows, mask=rows < end, other=0)
    low = tl.load(load_address(row, like) + tokens[:, None] * rank + ranks, mask=inside, other=0.0)
    scratch_rows = (first + tl.arange(0, height)).to(tl.int64)
    tl.store(scratch + scratch_rows[:, None] * width + ranks, low.to(tl.float32), mask=inside)


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
    out_features,
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
    begin, end, first_piece, end_piece = read_tile(tiles, tl.program_id(0))
    part, first, last, start, size = read_chunk(columns, tl.program_id(1), aligned)
    rows = begin + tl.arange(0, height)
    outs = first + tl.arange(0, block)
    split_stride = num_scratch_rows.to(tl.int64) * width
    sums = tl.full((height, block), 0.0, tl.float32)
    something = tl.full((), 0, tl.int64)  # a rank or a gain: there is something to add
    for index in range(first_piece, end_piece):
        row = slot_of(pieces, table, table_width, index)
        entry = row + 3 + part * 3
        b = load_address(entry, y)
        first_rank, rank = tl.load(entry + 1), tl.load(entry + 2)
        something |= rank | tl.load(row + 2)
        scratch_rows = (tl.load(pieces + index * 4 + 3) + tl.arange(0, height)).to(tl.int64)
        low_rows = scratch + scratch_rows[:, None] * width + first_rank
        scale = tl.load(scales + index)
        for r in range(0, rank, rank_block):
            ranks = r + tl.arange(0, rank_block)
            inside = (rows < end)[:, None] & (ranks < rank)
            low = tl.load(low_rows + ranks, mask=inside, other=0.0)
            for split in range(1, num_splits):
                low += tl.load(low_rows + split * split_stride + ranks, mask=inside, other=0.0)
            b_places = b + ranks.to(tl.int64)[:, None] * size + (outs - start)
            b_block = tl.load(b_places, mask=(ranks < rank)[:, None] & (outs < last), other=0.0)
            sums = tl.dot((low * scale).to(y.dtype.element_ty), b_block, sums, input_precision="ieee")
    if something != 0:
        places = y + rows.to(tl.int64)[:, None] * y_stride + outs
        inside = (rows < end)[:, None] & (outs < last)
        old = tl.load(places, mask=inside, other=0.0).to(tl.float32)
        old = add_affine(
            old, outs, outs < last, pieces, scales, table, table_width, first_piece, end_piece, out_features
        )
        tl.store(places, (old + sums).to(y.dtype.element_ty), mask=inside)


@dataclass(frozen=True, slots=True)
class ShrinkSizes:
    num_rank_blocks: int
    num_splits: int
    split_size: int  # of in_features, by one program


def shrink_sizes(slots: TableSlots, step: LoraStep, launch: Launch) -> ShrinkSizes:
    """The grid is [num_pieces, num_rank_blocks * num_splits]."""
    num_rank_blocks = triton.cdiv(step.largest_rank(slots), launch.rank_block)
    in_features = slots.shape.in_features
    splits = num_splits(launch, step.num_pieces * num_rank_blocks, in_features)
    split_size = triton.cdiv(triton.cdiv(in_features, launch.block), splits) * launch.block
    return ShrinkSizes(num_rank_blocks, splits, split_size)


def shrink(x: Tensor, slots: TableSlots, step: LoraStep, launch: Launch) -> Tensor:
    """The product with A of all slices, for each piece; fp32 [num_splits, num_scratch_rows, width]."""
    sizes = shrink_sizes(slots, step, launch)
    width = sizes.num_rank_blocks * launch.rank_block
    scratch = torch.empty(sizes.num_splits, step.num_scratch_rows, width, dtype=torch.float32, device=x.device)
    shrink_kernel[(step.num_pieces, sizes.num_rank_blocks * sizes.num_splits)](
        x,
        x.stride(0),
        step.pieces,
        slots.table,
        slots.table.shape[1],
        scratch,
        step.num_scratch_rows,
        width,
        slots.shape.in_features,
        sizes.split_size,
        sizes.num_rank_blocks,
        height=launch.height,
        rank_block=launch.rank_block,
        block=launch.block,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
    return scratch


def gather(token_ids: Tensor, y: Tensor, slots: TableSlots, step: LoraStep, launch: Launch) -> Tensor:
    """As `shrink`, for an embedding: fp32 [1, num_scratch_rows, width]."""
    num_rank_blocks = triton.cdiv(step.largest_rank(slots), launch.rank_block)
    width = num_rank_blocks * launch.rank_block
    scratch = torch.empty(1, step.num_scratch_rows, width, dtype=torch.float32, device=y.device)
    gather_kernel[(step.num_pieces, num_rank_blocks)](
        token_ids,
        step.pieces,
        slots.table,
        slots.table.shape[1],
        y,
        scratch,
        width,
        height=launch.height,
        rank_block=launch.rank_block,
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
        slots.shape.out_features,
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
