"""A step's LoRA on a GPU: which kernels add it to a layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tenora_engine.kernels.bgmv import bgmv
from tenora_engine.kernels.launch_table import target_of
from tenora_engine.kernels.lora import LoraSlots, Segment
from tenora_engine.kernels.lora_launch import Launch, bgmv_launch, is_fused, sgmv_launch
from tenora_engine.kernels.lora_slots import TableSlots
from tenora_engine.kernels.lora_step import Capacity, LoraStep
from tenora_engine.kernels.sgmv import expand, gather, shrink


class PreparedLora:
    """Implements `lora.AddLora`. Nothing is prepared and nothing launched for a step without adapters, or for a layer
    that they leave alone; in memory of a fixed capacity, for a CUDA graph, every layer is launched."""

    def __init__(self, segments: Sequence[Segment], device: torch.device, capacity: Capacity | None = None) -> None:
        self.segments = segments
        self._step = LoraStep(segments, device, capacity) if segments or capacity else None
        self._target = target_of(device)

    def refill(self, segments: Sequence[Segment]) -> None:
        """Another step for the launches made so far, in the same memory. Raises ValueError beyond the capacity."""
        assert self._step is not None
        self._step.refill(segments)
        self.segments = segments

    def __call__(self, y: Tensor, x: Tensor, slots: LoraSlots) -> None:
        assert isinstance(slots, TableSlots)
        step = self._step
        if step is None or not step.touches(slots):
            return
        _check(y, x, slots, step)
        launches = launches_of(step, slots, y.dtype, self._target)
        if "bgmv" in launches:
            bgmv(y, x, slots, step, launches["bgmv"])
        elif "gather" in launches:
            expand(y, gather(x, y, slots, step, launches["gather"]), slots, step, launches["expand"])
        else:
            expand(y, shrink(x, slots, step, launches["shrink"]), slots, step, launches["expand"])


def launches_of(step: LoraStep, slots: TableSlots, dtype: torch.dtype, target: str) -> dict[str, Launch]:
    """The kernels that add a step's adapters to a layer, in their order, and how each is launched."""
    rank = step.largest_slice_rank(slots)
    if slots.shape.is_embedding:
        launch = sgmv_launch("expand", step.height, rank, dtype, target)
        return {"gather": launch, "expand": launch}
    if is_fused(step.height, rank, slots.shape.in_features, dtype, target):
        return {"bgmv": bgmv_launch(rank, dtype, target)}
    return {
        "shrink": sgmv_launch("shrink", step.height, step.largest_rank(slots), dtype, target),
        "expand": sgmv_launch("expand", step.height, rank, dtype, target),
    }


def prepare_lora(segments: Sequence[Segment], device: torch.device) -> PreparedLora:
    return PreparedLora(segments, device)


def _check(y: Tensor, x: Tensor, slots: TableSlots, step: LoraStep) -> None:
    """What the kernels take on trust: they follow addresses. Raises ValueError."""
    shape = slots.shape
    wanted = (y.shape[0],) if shape.is_embedding else (y.shape[0], shape.in_features)
    if x.shape != wanted or y.shape != (x.shape[0], shape.out_features):
        raise ValueError(f"x of shape {tuple(x.shape)} and y of {tuple(y.shape)} for a layer {shape}")
    if step.num_rows > x.shape[0]:
        raise ValueError(f"segments of {step.num_rows} rows for {x.shape[0]}")
    if y.dtype != slots.dtype or x.dtype != (torch.int64 if shape.is_embedding else y.dtype):
        raise ValueError(f"x in {x.dtype} and y in {y.dtype} for adapters in {slots.dtype}")
    if not x.device == y.device == slots.table.device:
        raise ValueError(f"x on {x.device} and y on {y.device} for adapters on {slots.table.device}")
    if x.stride(-1) != 1 or y.stride(1) != 1:
        raise ValueError("the rows of x and y must be contiguous")
