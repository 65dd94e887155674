"""Rotary position embedding: cosines and sines of a step's positions (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tenora_engine.model.spec import LinearScaling, Llama3Scaling, RopeSpec, YarnScaling


class Rope:
    """Made once for each RoPE of a model; angles are computed for the positions of a step, not kept for all."""

    def __init__(self, spec: RopeSpec, head_dim: int, device: torch.device) -> None:
        self._frequencies = inverse_frequencies(spec, head_dim).to(device)
        self._magnitude = spec.scaling.magnitude if isinstance(spec.scaling, YarnScaling) else 1.0

    def cos_sin(self, positions: Tensor) -> Tensor:
        """positions: int64 [T]; fp32 [T, head_dim]: cosines of the first half of the dimensions, then their sines."""
        angles = torch.outer(positions.float(), self._frequencies)
        return torch.cat((angles.cos(), angles.sin()), dim=-1).mul_(self._magnitude)


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """Angle per position of each pair of dimensions, fp32 [head_dim / 2]."""
    wavelengths = rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)  # in radians
    base = 1.0 / wavelengths
    match rope.scaling:
        case None:
            return base
        case LinearScaling(factor):
            return base / factor
        case Llama3Scaling() as scaling:
            turns = scaling.original_context * base / (2 * math.pi)  # full turns within the original context
            ramp = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
            ramp = ramp.clamp(0, 1)
            return base / scaling.factor * (1 - ramp) + base * ramp
        case YarnScaling() as scaling:
            kept = _yarn_kept(scaling, rope.theta, head_dim)
            return 1.0 / (scaling.factor * wavelengths) * (1 - kept) + base * kept


def _yarn_kept(scaling: YarnScaling, theta: float, head_dim: int) -> Tensor:
    """fp32 [head_dim / 2]: 1 where a dimension is kept as it is, 0 where it is stretched."""

    def dimension(turns: float) -> float:
        """The one that makes so many full turns within the original context."""
        return head_dim * math.log(scaling.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low or 0.001  # a step where the ends meet
    return 1 - ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
