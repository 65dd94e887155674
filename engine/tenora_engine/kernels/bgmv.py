"""LoRA of few rows, as decoding has them, in one launch: the product with A stays in registers.

    y[rows] += scale * (gain * y[rows] + offset + (x[rows] A^T) B^T)

The reference is `lora.prepare_lora`. A program owns some rows and some columns of one slice. The programs of one tile
each make the product with A for themselves: that reads A once more, from the cache, and saves a launch and the way
through memory. It pays where A is small; `lora_launch.is_fused` says where that is.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from tenora_engine.kernels.lora_launch import Launch, bgmv_width
from tenora_engine.kernels.lora_read import (
    add_affine,
    is_affine,
    load_address,
    product_with_a,
    read_chunk,
    read_tile,
    slot_of,
)
from tenora_engine.kernels.lora_slots import Columns, TableSlots
from tenora_engine.kernels.lora_step import LoraStep


@triton.jit
def bgmv_kernel(
    y,  # [T, out_features]
    y_stride,
    x,  # [T, in_features]
    x_stride,
    tiles,  # int32 [num_tiles, 4]
    pieces,  # int32 [num_pieces, 4]
    scales,  # fp32 [num_pieces]
    table,  # int64 [num_slots, table_width]
    table_width: tl.constexpr,
    columns,  # int32 [num_chunks, 5]
    in_features,
    out_features,
    height: tl.constexpr,
    rank_block: tl.constexpr,
    block: tl.constexpr,
    aligned: tl.constexpr,
):
    """Program (tile, chunk of columns): its pieces one after the other, each added to y; an empty tile does nothing."""
    begin, end, first_piece, end_piece = read_tile(tiles, tl.program_id(0))
    part, first, last, start, size = read_chunk(columns, tl.program_id(1), aligned)
    rows = begin + tl.arange(0, height)
    ranks = tl.arange(0, rank_block)
    x_rows = x + rows.to(tl.int64)[:, None] * x_stride
    y_rows = y + rows.to(tl.int64)[:, None] * y_stride
    affine = is_affine(pieces, table, table_width, first_piece, end_piece)
    for index in range(first_piece, end_piece):
        row = slot_of(pieces, table, table_width, index)
        entry = row + 3 + part * 3
        rank = tl.load(entry + 2)
        of_base = affine & (index == first_piece)  # while y is the base's output still
        if (rank > 0) | of_base:
            a_rows = load_address(row, x) + (tl.load(entry + 1) + ranks)[:, None] * in_features
            b_rows = load_address(entry, y) + ranks.to(tl.int64)[:, None] * size
            low = product_with_a(x_rows, a_rows, rows < end, ranks < rank, 0, in_features, height, rank_block, block)
            low = (low * tl.load(scales + index)).to(y.dtype.element_ty)
            for n in range(first, last, block):
                outs = n + tl.arange(0, block)
                inside = (rows < end)[:, None] & (outs < last)
                b_block = tl.load(b_rows + (outs - start), mask=(ranks < rank)[:, None] & (outs < last), other=0.0)
                old = tl.load(y_rows + outs, mask=inside, other=0.0).to(tl.float32)
                if of_base:
                    old = add_affine(
                        old, outs, outs < last, pieces, scales, table, table_width, first_piece, end_piece, out_features
                    )
                new = tl.dot(low, b_block, old, input_precision="ieee")
                tl.store(y_rows + outs, new.to(y.dtype.element_ty), mask=inside)


def bgmv_columns(slots: TableSlots, step: LoraStep, launch: Launch) -> Columns:
    """The grid is [num_tiles, num_chunks of these]."""
    return slots.columns(bgmv_width(step.num_tiles, slots.shape.out_features, launch.block))


def bgmv(y: Tensor, x: Tensor, slots: TableSlots, step: LoraStep, launch: Launch) -> None:
    """Add to y, [T, out_features], the LoRA of the rows of x, [T, in_features]."""
    columns = bgmv_columns(slots, step, launch)
    bgmv_kernel[(step.num_tiles, columns.num_chunks)](
        y,
        y.stride(0),
        x,
        x.stride(0),
        step.tiles,
        step.pieces,
        step.scales,
        slots.table,
        slots.table.shape[1],
        columns.table,
        slots.shape.in_features,
        slots.shape.out_features,
        height=launch.height,
        rank_block=launch.rank_block,
        block=launch.block,
        aligned=slots.aligned,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
