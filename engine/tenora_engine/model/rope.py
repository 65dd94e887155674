"""Rotary position embedding: the table of cosines and sines (Su et al. 2021, arXiv:2104.09864)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tenora_engine.model.spec import ModelSpec, RopeKind, RopeSpec


def inverse_frequencies(rope: RopeSpec, head_dim: int) -> Tensor:
    """Angle per position of each pair of dimensions, fp32 [head_dim / 2]."""
    base = 1.0 / rope.theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    if rope.kind is RopeKind.LINEAR:
        return base / rope.factor
    if rope.kind is RopeKind.LLAMA3:
        # Llama 3.1: wavelengths beyond the original context are stretched, short ones kept, a linear ramp between.
        turns = rope.original_context * base / (2 * math.pi)  # full turns within the original context
        ramp = ((turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)).clamp(0, 1)
        return base / rope.factor * (1 - ramp) + base * ramp
    return base


def rope_table(spec: ModelSpec, length: int) -> Tensor:
    """fp32 [length, head_dim]: cosines of the first half of the dimensions, then their sines."""
    angles = torch.outer(torch.arange(length, dtype=torch.float32), inverse_frequencies(spec.rope, spec.head_dim))
    return torch.cat((angles.cos(), angles.sin()), dim=-1)
