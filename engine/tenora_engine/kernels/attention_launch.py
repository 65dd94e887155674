"""How paged attention and the write to the cache are launched.

Blocks, warps and stages come from the launch table by classes of shapes: the tiles' height, the head dimension, and the
bytes of a stored number. Bounds that its rows keep: operands of a product are at least 16 in every dimension, what a
program holds stays below the smallest shared memory that is served (64 KiB on gfx942), and nothing spills on sm_90, but
for fp32 over a quantised cache, which is for tests. How a span is cut is the same on every GPU, so that its bits are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from tenora_engine.kernels.launch_table import ANY, find

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


def attention_launch(
    height: int, head_dim: int, dtype: torch.dtype, kv_dtype: torch.dtype, target: str = ANY
) -> AttentionLaunch:
    """`dtype`: in which the products are made; `kv_dtype`: of the cache."""
    shape = attention_class(height, head_dim, dtype, kv_dtype)
    return AttentionLaunch(height, **find("attend", target, dtype, **shape))


def attention_class(height: int, head_dim: int, dtype: torch.dtype, kv_dtype: torch.dtype) -> dict[str, int]:
    """The shape by which the launch table knows a launch."""
    return {
        "height": SHORT_HEIGHT if height <= SHORT_HEIGHT else LONG_HEIGHT[dtype],
        "head_dim": min(max(_power_of_two(head_dim), 64), 256),
        "kv_bytes": kv_dtype.itemsize,
    }


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
