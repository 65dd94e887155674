"""The launch configurations of paged attention and of the write to the cache. Reasoned, none measured on a GPU yet.

What they keep to: operands of a product are at least 16 in every dimension, what a program holds stays below the
smallest shared memory that is served (64 KiB on gfx942), and nothing spills on sm_90, but for fp32 over a quantised
cache, which is for tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

SHORT_HEIGHT: Final = 16
LONG_HEIGHT: Final = {torch.bfloat16: 64, torch.float32: 32}  # fp32 has no tensor cores: its sums are in registers
# One sequence's keys are read by up to this many programs (for each of its heads) ...
MAX_PARTS: Final = 32
# ... each of which has at least this many to read.
MIN_PART: Final = 256
# Parts end at multiples of this, the widest block below.
PART_STEP: Final = 64
HEADS_BLOCK: Final = 8  # heads that one program of place_heads works on


@dataclass(frozen=True, slots=True)
class AttentionLaunch:
    height: int  # rows of a tile: each a token and one of the query heads that share a key head
    width: int  # keys of a block
    num_warps: int
    num_stages: int


def short_height(group: int) -> int:
    """For decoding and verifying a few guesses: spans that fit one tile. `group`: query heads of a key head."""
    return max(SHORT_HEIGHT, _power_of_two(group))


def long_height(group: int, dtype: torch.dtype) -> int:
    return max(LONG_HEIGHT[dtype], _power_of_two(group))


def attention_launch(height: int, head_dim: int, dtype: torch.dtype) -> AttentionLaunch:
    """`dtype`: in which the products are made, whatever the cache holds."""
    padded = _power_of_two(head_dim)
    if dtype is torch.float32:
        return AttentionLaunch(height, *((32, 4) if padded <= 64 else (16, 8)), num_stages=2)
    # Three stages: while one block is multiplied, the next one's keys are on their way, and the place of the one after.
    if height <= SHORT_HEIGHT:
        return AttentionLaunch(height, 32, num_warps=4, num_stages=3)
    return AttentionLaunch(height, *((PART_STEP, 4) if padded <= 128 else (32, 8)), num_stages=3)


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
