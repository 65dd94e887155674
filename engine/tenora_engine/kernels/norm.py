"""RMSNorm (Zhang and Sennrich 2019, arXiv:1910.07467), alone and with the residual addition before it.

Weights are fp32 whatever the model is computed in: they are few, and Gemma's are 1 + w, which bf16 would cut short.
"""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class Normed(NamedTuple):
    out: Tensor  # [T, H]
    residual: Tensor  # [T, H], the sum that goes around the block


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight over the last dimension, in fp32, rounded once to x's dtype."""
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype)


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Normed:
    """residual += x; out = rms_norm(residual).

    x: [T, H]; residual: [T, H], changed in place, or None for the first block, whose residual is x; weight: fp32 [H].
    """
    residual = x if residual is None else residual.add_(x)
    return Normed(rms_norm(residual, weight, eps), residual)
