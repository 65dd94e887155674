"""What the LoRA kernels have in common: reading tiles, chunks of columns and slots, the product with A, and DoRA.

The layouts are those of `lora_tiles` (tiles, pieces) and `lora_slots` (columns, table).
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def read_tile(tiles, index):
    """First row, end row, first piece, end piece."""
    tile = tiles + index * 4
    return tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3)


@triton.jit
def read_chunk(columns, index, aligned: tl.constexpr):
    """Slice, first column, end column, the slice's first column, its size."""
    chunk = columns + index * 5
    part, first, last = tl.load(chunk), tl.load(chunk + 1), tl.load(chunk + 2)
    start, size = tl.load(chunk + 3), tl.load(chunk + 4)
    if aligned:
        first, last = tl.multiple_of(first, 16), tl.multiple_of(last, 16)
        start, size = tl.multiple_of(start, 16), tl.multiple_of(size, 16)
    return part, first, last, start, size


@triton.jit
def slot_of(pieces, table, table_width: tl.constexpr, index):
    """Where the slot of piece `index` lies in the table."""
    return table + tl.load(pieces + index * 4 + 2).to(tl.int64) * table_width


@triton.jit
def load_address(place, like):
    """The pointer that a table holds, to values of the type that `like` points to."""
    return tl.multiple_of(tl.load(place).to(tl.pointer_type(like.dtype.element_ty)), 16)


@triton.jit
def product_with_a(
    x_rows, a_rows, in_rows, in_ranks, begin, end, height: tl.constexpr, rank_block: tl.constexpr, block: tl.constexpr
):
    """The rows of x times the ranks of A, over begin..end of in_features: fp32 [height, rank_block]."""
    sums = tl.full((height, rank_block), 0.0, tl.float32)
    for k in range(begin, end, block):
        inner = k + tl.arange(0, block)
        x_block = tl.load(x_rows + inner, mask=in_rows[:, None] & (inner < end), other=0.0)
        a_block = tl.load(a_rows + inner, mask=in_ranks[:, None] & (inner < end), other=0.0)
        sums = tl.dot(x_block, a_block.T, sums, input_precision="ieee")
    return sums


@triton.jit
def is_affine(pieces, table, table_width: tl.constexpr, first_piece, end_piece):
    """Whether any adapter of a tile has a gain and an offset."""
    found = tl.full((), 0, tl.int64)
    for index in range(first_piece, end_piece):
        found |= tl.load(slot_of(pieces, table, table_width, index) + 2)
    return found != 0


@triton.jit
def add_affine(y, outs, inside, pieces, scales, table, table_width: tl.constexpr, first_piece, end_piece, out_features):
    """y (1 + sum of scale * gain) + sum of scale * offset, over a tile's pieces. y: fp32 [height, block]."""
    factor = tl.full(outs.shape, 1.0, tl.float32)
    shift = tl.full(outs.shape, 0.0, tl.float32)
    for index in range(first_piece, end_piece):
        address = tl.load(slot_of(pieces, table, table_width, index) + 2)
        if address != 0:
            gains = address.to(tl.pointer_type(tl.float32))
            scale = tl.load(scales + index)
            factor += scale * tl.load(gains + outs, mask=inside, other=0.0)
            shift += scale * tl.load(gains + out_features + outs, mask=inside, other=0.0)
    return y * factor[None, :] + shift[None, :]
