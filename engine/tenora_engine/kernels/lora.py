"""LoRA of many adapters in one batch: the tokens of a step lie in segments, one adapter each.

    y[segment] += scale * (gain * y[segment] + offset + (x[segment] A^T) B^T)

`gain` and `offset` are DoRA's (Liu et al. 2024, arXiv:2402.09353) and those of trained biases; plain LoRA has neither.
`y` on the right is the base's output, also where several adapters add up. The work is by segment and at the adapter's
real rank, and tokens without an adapter cost nothing. As attention is, a step is described once (`prepare_lora`) and
then applied to every adapted layer. This file holds the contract and the reference; `lora_apply.py` is what runs on a
GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LoraShape:
    """A linear layer that can be adapted, fused of `slices` that share their input: q, k and v, or gate and up."""

    in_features: int
    slices: tuple[int, ...]  # the out_features of each, in the order of the layer's outputs
    is_embedding: bool = False  # in_features is the vocabulary, x the token ids

    @property
    def out_features(self) -> int:
        return sum(self.slices)


@dataclass(frozen=True, slots=True)
class LoraPair:
    """LoRA of one (fused) layer, ready to multiply. B holds the adapter's own scaling, and DoRA's row scale."""

    a: Tensor  # [in_features, rank], the slices' side by side
    b: Tensor  # [rank, out_features], zero but for each slice's rows in that slice's columns
    ranks: tuple[int, ...]  # of each slice, 0 where the adapter leaves it alone; their sum is the rank
    affine: Tensor | None = None  # fp32 [2, out_features]: gain, offset


class LoraSlots(Protocol):
    """The pairs of one layer by slot."""

    def place(self, pair: LoraPair | None) -> Any:
        """All of `put` that takes time, on any thread: what `install` makes a slot's content. None: the adapter leaves
        this layer alone."""

    def install(self, slot: int, placed: Any) -> None:
        """Replace what lies in a slot. No step that uses the slot may be under way."""

    def put(self, slot: int, pair: LoraPair | None) -> None:
        """Both at once."""


class PairSlots:
    """The reference's slots: it multiplies with the pairs as they come."""

    def __init__(self, num_slots: int) -> None:
        self.pairs: list[LoraPair | None] = [None] * num_slots

    def place(self, pair: LoraPair | None) -> LoraPair | None:
        return pair

    def install(self, slot: int, placed: LoraPair | None) -> None:
        self.pairs[slot] = placed

    def put(self, slot: int, pair: LoraPair | None) -> None:
        self.install(slot, self.place(pair))


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

        y: [T, out_features], the base's output, changed in place; x: [T, in_features], or int64 [T] token ids.
        """


def make_lora_slots(shape: LoraShape, num_slots: int, dtype: torch.dtype, device: torch.device) -> PairSlots:
    return PairSlots(num_slots)


def prepare_lora(segments: Sequence[Segment], device: torch.device) -> AddLora:
    """A short loop over the segments: nothing to prepare."""

    def add_lora(y: Tensor, x: Tensor, slots: LoraSlots) -> None:
        assert isinstance(slots, PairSlots)
        used = [(slice(s.begin, s.end), s.scale, slots.pairs[s.slot]) for s in segments]
        of_base = [  # before anything is added
            (rows, scale * (pair.affine[0] * y[rows] + pair.affine[1]))
            for rows, scale, pair in used
            if pair is not None and pair.affine is not None
        ]
        for rows, scale, pair in used:
            if pair is not None:
                low = pair.a[x[rows]] if x.dim() == 1 else x[rows] @ pair.a
                y[rows].addmm_(low, pair.b, alpha=scale)
        for rows, addition in of_base:
            y[rows] += addition

    return add_lora
