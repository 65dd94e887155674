"""The operations as Triton kernels where there are some, and the reference for the rest. Imports triton."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from tenora_engine.kernels import REFERENCE, Kernels
from tenora_engine.kernels.bgmv import bgmv
from tenora_engine.kernels.lora import AddLora, LoraSlots, Segment
from tenora_engine.kernels.lora_launch import BGMV_RANK, DECODE_HEIGHT, bgmv_launch, sgmv_launch
from tenora_engine.kernels.lora_slots import TableSlots
from tenora_engine.kernels.lora_step import LoraStep
from tenora_engine.kernels.sgmv import expand, shrink


def prepare_lora(segments: Sequence[Segment], device: torch.device) -> AddLora:
    """Nothing is prepared and nothing launched for a step without adapters, or for a layer that they leave alone."""
    step = LoraStep(segments, device) if segments else None

    def add_lora(y: Tensor, x: Tensor, slots: LoraSlots) -> None:
        assert isinstance(slots, TableSlots)
        rank = step.largest_slice_rank(slots) if step else 0
        if step is None or rank == 0:
            return
        _check(y, x, slots, step)
        if step.height == DECODE_HEIGHT and rank <= BGMV_RANK:
            bgmv(y, x, slots, step, bgmv_launch(rank, x.dtype))
        else:
            scratch = shrink(x, slots, step, sgmv_launch(step.height, step.largest_rank(slots), x.dtype))
            expand(y, scratch, slots, step, sgmv_launch(step.height, rank, x.dtype))

    return add_lora


def _check(y: Tensor, x: Tensor, slots: TableSlots, step: LoraStep) -> None:
    """What the kernels take on trust: they follow addresses. Raises ValueError."""
    shape = slots.shape
    if x.shape != (y.shape[0], shape.in_features) or y.shape != (x.shape[0], shape.out_features):
        raise ValueError(f"x of shape {tuple(x.shape)} and y of {tuple(y.shape)} for a layer {shape}")
    if step.num_rows > x.shape[0]:
        raise ValueError(f"segments of {step.num_rows} rows for {x.shape[0]}")
    if not x.dtype == y.dtype == slots.dtype:
        raise ValueError(f"x in {x.dtype} and y in {y.dtype} for adapters in {slots.dtype}")
    if not x.device == y.device == slots.table.device:
        raise ValueError(f"x on {x.device} and y on {y.device} for adapters on {slots.table.device}")
    if x.stride(1) != 1 or y.stride(1) != 1:
        raise ValueError("the rows of x and y must be contiguous")


TRITON: Final[Kernels] = replace(REFERENCE, make_lora_slots=TableSlots, prepare_lora=prepare_lora)
