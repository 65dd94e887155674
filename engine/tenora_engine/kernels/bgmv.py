"""LoRA of few rows, as decoding has them, in one launch: the product with A stays in registers.

    y[rows] += scale * (x[rows] A^T) B^T

The reference is `lora.prepare_lora`; tiles and pieces are those of `lora_tiles`, addresses and ranks those of
`lora_slots`. A program owns some rows and some columns of one slice. The programs of one tile each make the product
with A for themselves: that reads A once more, from the cache, and saves a launch and the way through memory.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from tenora_engine.kernels.lora_launch import Launch, bgmv_width
from tenora_engine.kernels.lora_slots import TableSlots
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
    height: tl.constexpr,
    rank_block: tl.constexpr,
    block: tl.constexpr,
    aligned: tl.constexpr,
):
    """Program (tile, chunk of columns): its pieces one after the other, each added to y."""
    tile = tiles + tl.program_id(0) * 4
    begin, end, first_piece, end_piece = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)
    chunk = columns + tl.program_id(1) * 5
    part, start, size = tl.load(chunk), tl.load(chunk + 3), tl.load(chunk + 4)
    first, last = tl.load(chunk + 1), tl.load(chunk + 2)
    if aligned:
        first, last = tl.multiple_of(first, 16), tl.multiple_of(last, 16)
        start, size = tl.multiple_of(start, 16), tl.multiple_of(size, 16)
    rows = begin + tl.arange(0, height)
    ranks = tl.arange(0, rank_block)
    x_rows = x + rows.to(tl.int64)[:, None] * x_stride
    y_rows = y + rows.to(tl.int64)[:, None] * y_stride
    for index in range(first_piece, end_piece):
        row = table + tl.load(pieces + index * 4 + 2).to(tl.int64) * table_width
        entry = row + 2 + part * 3
        rank = tl.load(entry + 2)
        if rank > 0:
            a = tl.multiple_of(tl.load(row).to(tl.pointer_type(x.dtype.element_ty)), 16)
            b = tl.multiple_of(tl.load(entry).to(tl.pointer_type(y.dtype.element_ty)), 16)
            a_rows = a + (tl.load(entry + 1) + ranks)[:, None] * in_features
            b_rows = b + ranks.to(tl.int64)[:, None] * size
            v = tl.full((height, rank_block), 0.0, tl.float32)
            for k in range(0, in_features, block):
                inner = k + tl.arange(0, block)
                x_block = tl.load(x_rows + inner, mask=(rows < end)[:, None] & (inner < in_features), other=0.0)
                a_block = tl.load(a_rows + inner, mask=(ranks < rank)[:, None] & (inner < in_features), other=0.0)
                v = tl.dot(x_block, a_block.T, v, input_precision="ieee")
            scaled = (v * tl.load(scales + index)).to(y.dtype.element_ty)
            for n in range(first, last, block):
                outs = n + tl.arange(0, block)
                inside = (rows < end)[:, None] & (outs < last)
                b_block = tl.load(b_rows + (outs - start), mask=(ranks < rank)[:, None] & (outs < last), other=0.0)
                old = tl.load(y_rows + outs, mask=inside, other=0.0).to(tl.float32)
                new = tl.dot(scaled, b_block, old, input_precision="ieee")
                tl.store(y_rows + outs, new.to(y.dtype.element_ty), mask=inside)


def bgmv(y: Tensor, x: Tensor, slots: TableSlots, step: LoraStep, launch: Launch) -> None:
    """Add to y, [T, out_features], the LoRA of the rows of x, [T, in_features]."""
    columns = slots.columns(bgmv_width(step.num_tiles, slots.shape.out_features, launch.block))
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
        height=launch.height,
        rank_block=launch.rank_block,
        block=launch.block,
        aligned=slots.aligned,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
    )
