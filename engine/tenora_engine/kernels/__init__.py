"""The operations between the projections, behind one seam: `kernels_for(device)` says who computes them.

Every operation has a reference in plain torch, which is the truth that faster ones are tested against. Imports torch
only. Shapes: T tokens of the step, H hidden, Hq query heads, Hkv key/value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tenora_engine.kernels import activation, attention, kv, lora, norm, rope


@dataclass(frozen=True, slots=True)
class Kernels:
    """One implementation of every operation."""

    add_rms_norm: Callable[[Tensor, Tensor | None, Tensor, float], norm.Normed]
    rotate: Callable[[Tensor, Tensor], None]
    store_kv: Callable[[kv.LayerKv, Tensor, Tensor, Tensor], None]
    prepare_attention: Callable[[attention.AttentionBatch, torch.device, torch.dtype], attention.Attention]
    silu_mul: Callable[[Tensor], Tensor]
    add_lora: Callable[[Tensor, Tensor, lora.Pairs, lora.Segments], None]


REFERENCE = Kernels(
    add_rms_norm=norm.add_rms_norm,
    rotate=rope.rotate,
    store_kv=kv.store_kv,
    prepare_attention=attention.prepare_attention,
    silu_mul=activation.silu_mul,
    add_lora=lora.add_lora,
)


def kernels_for(device: torch.device) -> Kernels:
    """Today every device has the reference only."""
    return REFERENCE
