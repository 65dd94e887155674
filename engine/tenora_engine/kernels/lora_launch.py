"""The launch configurations of the LoRA kernels, all in one place. Chosen by shape; none was measured on a GPU yet.

Bounds that they keep: operands of a product are at least 16 in every dimension (tensor cores), and what a stage of the
pipeline holds stays far below the smallest shared memory that is served (64 KiB on gfx942, 99 KiB on sm_89).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

# Steps of at most this many adapted rows are taken for decoding: low tiles, shrink and expand in one launch.
DECODE_ROWS: Final = 256
DECODE_HEIGHT: Final = 16
PREFILL_HEIGHT: Final = 64
# The largest rank whose intermediate bgmv keeps in registers.
BGMV_RANK: Final = 128

_OPERAND_BYTES: Final = 16384
_PROGRAMS: Final = 256  # about two for each multiprocessor of a large GPU
_MAX_SPLITS: Final = 8


@dataclass(frozen=True, slots=True)
class Launch:
    height: int  # rows of a tile
    rank_block: int
    block: int  # along in_features (shrink), out_features (expand) or both (bgmv)
    num_warps: int
    num_stages: int


def tile_height(num_rows: int) -> int:
    return DECODE_HEIGHT if num_rows <= DECODE_ROWS else PREFILL_HEIGHT


def sgmv_launch(height: int, rank: int, dtype: torch.dtype) -> Launch:
    """For the largest rank of the step: of all slices together for shrink, of one for expand."""
    block = 128 // dtype.itemsize
    return Launch(height, min(_power_of_two(rank), block), block, 4, 3)


def bgmv_launch(rank: int, dtype: torch.dtype) -> Launch:
    """For the largest rank of one slice in the step, at most BGMV_RANK."""
    rank_block = _power_of_two(rank)
    block = min(128, _OPERAND_BYTES // (rank_block * dtype.itemsize))
    num_warps = 8 if rank_block >= 64 and block > 32 else 4  # small blocks over 8 warps left sm_90 a stack of 8 bytes
    return Launch(DECODE_HEIGHT, rank_block, block, num_warps, 2)


def shrink_splits(num_programs: int, in_features: int, block: int) -> int:
    """In how many parts the sum over in_features is made where there are too few programs: a power of two, each part
    at least four blocks long."""
    splits = 1
    while splits < _MAX_SPLITS and num_programs * splits < _PROGRAMS // 2 and in_features >= 8 * splits * block:
        splits *= 2
    return splits


def bgmv_width(num_tiles: int, out_features: int, block: int) -> int:
    """Columns that one program adds to. Each program makes the product with A anew: as few as fill the machine."""
    width = block
    while width < out_features and num_tiles * (out_features // width) > _PROGRAMS:
        width *= 2
    return width


def _power_of_two(rank: int) -> int:
    return max(16, 1 << (rank - 1).bit_length())
