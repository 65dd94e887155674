"""How the LoRA kernels are launched: which of the two ways a layer takes, and the configuration of each kernel.

Configurations come from the launch table by classes of shapes: the height of the tiles and the largest rank, rounded up
to a power of two. Bounds that its rows keep: operands of a product are at least 16 in every dimension (tensor cores),
and what a pipeline holds stays below the smallest shared memory that is served (64 KiB on gfx942, 99 KiB on sm_89).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from tenora_engine.kernels.launch_table import ANY, find

# Steps of at most this many adapted rows are taken for decoding: low tiles, and sums over in_features in parts.
DECODE_ROWS: Final = 256
DECODE_HEIGHT: Final = 16
PREFILL_HEIGHT: Final = 64
# The largest rank whose intermediate bgmv keeps in registers.
BGMV_RANK: Final = 128
# The largest block of ranks of shrink and expand, which loop over more.
RANK_BLOCK: Final = {torch.bfloat16: 64, torch.float32: 32}
_PROGRAMS: Final = 256  # about two for each multiprocessor of a large GPU
_MAX_SPLITS: Final = 8


@dataclass(frozen=True, slots=True)
class Launch:
    height: int  # rows of a tile
    rank_block: int
    block: int  # along in_features (shrink), out_features (expand) or both (bgmv)
    num_warps: int
    num_stages: int
    split: int = 0  # of in_features, by one program of shrink; 0: by the number of programs


def tile_height(num_rows: int) -> int:
    return DECODE_HEIGHT if num_rows <= DECODE_ROWS else PREFILL_HEIGHT


def is_fused(height: int, rank: int, in_features: int, dtype: torch.dtype, target: str = ANY) -> bool:
    """Whether bgmv does it: each of its programs reads all of A, which must be small for that."""
    if height != DECODE_HEIGHT or rank > BGMV_RANK:
        return False
    limit = find("lora", target, dtype)["fused_bytes"]
    return power_of_two(rank) * in_features * dtype.itemsize <= limit


def sgmv_launch(op: str, height: int, rank: int, dtype: torch.dtype, target: str = ANY) -> Launch:
    """`op`: shrink or expand; for the largest rank of the step: of all slices together, and of one, respectively."""
    rank_block = min(power_of_two(rank), RANK_BLOCK[dtype])
    return Launch(height, rank_block, **find(op, target, dtype, height=height, rank=rank_block))


def bgmv_launch(rank: int, dtype: torch.dtype, target: str = ANY) -> Launch:
    """For the largest rank of one slice in the step, at most BGMV_RANK."""
    rank_block = power_of_two(rank)
    return Launch(DECODE_HEIGHT, rank_block, **find("bgmv", target, dtype, rank=rank_block))


def bgmv_width(num_tiles: int, out_features: int, block: int) -> int:
    """Columns that one program adds to. Each program makes the product with A anew: as few as fill the machine."""
    width = block
    while width < out_features and num_tiles * (out_features // width) > _PROGRAMS:
        width *= 2
    return width


def power_of_two(rank: int) -> int:
    """The class of a rank: at least what a tensor core takes."""
    return max(16, 1 << (rank - 1).bit_length())


def num_splits(launch: Launch, num_programs: int, in_features: int) -> int:
    """In how many parts shrink makes the sum over in_features.

    Of few rows: parts of one length, so that a row's sum is the same in any batch, and a long sum has many programs.
    Of many: a power of two where there are few programs, each part at least four blocks long, else one.
    """
    if launch.split:
        return -(-in_features // launch.split)
    splits = 1
    while splits < _MAX_SPLITS and num_programs * splits < _PROGRAMS // 2 and in_features >= 8 * splits * launch.block:
        splits *= 2
    return splits
