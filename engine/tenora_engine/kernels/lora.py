"""LoRA of many adapters in one batch: the tokens of a step lie in segments, one adapter each.

    y[segment] += scale * (x[segment] A^T) B^T

The work is by segment and at the adapter's real rank, and tokens without an adapter cost nothing. As attention is, a
step is described once (`prepare_lora`) and then applied to every adapted layer. This file holds the contract and the
reference; `on_triton.py` names what runs on a GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LoraShape:
    """A linear layer that can be adapted, fused of `slices` that share their input: q, k and v, or gate and up."""

    in_features: int
    slices: tuple[int, ...]  # the out_features of each, in the order of the layer's outputs

    @property
    def out_features(self) -> int:
        return sum(self.slices)


@dataclass(frozen=True, slots=True)
class LoraPair:
    """LoRA of one (fused) linear layer, ready to multiply. B holds the adapter's own scaling."""

    a: Tensor  # [in_features, rank], the slices' side by side
    b: Tensor  # [rank, out_features], zero but for each slice's rows in that slice's columns
    ranks: tuple[int, ...]  # of each slice, 0 where the adapter leaves it alone; their sum is the rank


class LoraSlots(Protocol):
    """The pairs of one layer by slot."""

    def put(self, slot: int, pair: LoraPair | None) -> None:
        """Replace what lies in a slot; None: its adapter leaves this layer alone. No step that uses the slot may be
        under way."""


class PairSlots:
    """The reference's slots: it multiplies with the pairs as they come."""

    def __init__(self, num_slots: int) -> None:
        self.pairs: list[LoraPair | None] = [None] * num_slots

    def put(self, slot: int, pair: LoraPair | None) -> None:
        self.pairs[slot] = pair


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens begin..end of the step use the adapter in `slot` at `scale`. Where segments overlap, adapters add up."""

    begin: int
    end: int
    slot: int
    scale: float


class AddLora(Protocol):
    def __call__(self, y: Tensor, x: Tensor, slots: LoraSlots) -> None:
        """Add the step's adapters to one layer, whose `slots` the same implementation made.

        y: [T, out_features], changed in place; x: [T, in_features].
        """


def make_lora_slots(shape: LoraShape, num_slots: int, dtype: torch.dtype, device: torch.device) -> PairSlots:
    return PairSlots(num_slots)


def prepare_lora(segments: Sequence[Segment], device: torch.device) -> AddLora:
    """A short loop over the segments: nothing to prepare."""

    def add_lora(y: Tensor, x: Tensor, slots: LoraSlots) -> None:
        assert isinstance(slots, PairSlots)
        for segment in segments:
            pair = slots.pairs[segment.slot]
            if pair is not None:
                rows = slice(segment.begin, segment.end)
                y[rows].addmm_(x[rows] @ pair.a, pair.b, alpha=segment.scale)

    return add_lora
