"""LoRA of many adapters in one batch: the tokens of a step lie in segments, one adapter each.

    y[segment] += scale * (x[segment] A^T) B^T

The work is by segment and at the adapter's real rank: nothing is padded, and tokens without an adapter cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class LoraPair:
    """LoRA of one (fused) linear layer, ready to multiply. B holds the adapter's own scaling."""

    a: Tensor  # [in_features, rank]
    b: Tensor  # [rank, out_features]


# The pairs of one layer by slot; None: that adapter leaves this layer alone.
Pairs = Sequence[LoraPair | None]


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens begin..end of the step use the adapter in `slot` at `scale`. Where segments overlap, adapters add up."""

    begin: int
    end: int
    slot: int
    scale: float


Segments = Sequence[Segment]


def add_lora(y: Tensor, x: Tensor, pairs: Pairs, segments: Segments) -> None:
    """y: [T, out_features], added to in place; x: [T, in_features]; pairs: by slot."""
    for segment in segments:
        pair = pairs[segment.slot]
        if pair is not None:
            rows = slice(segment.begin, segment.end)
            y[rows].addmm_(x[rows] @ pair.a, pair.b, alpha=segment.scale)
