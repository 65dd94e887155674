"""RMSNorm with the residual addition before it."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


class Normed(NamedTuple):
    out: Tensor  # [T, H]
    residual: Tensor  # [T, H], the sum that goes around the block


def add_rms_norm(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Normed:
    """residual += x; out = residual / sqrt(mean(residual^2) + eps) * weight, the mean in fp32.

    x: [T, H]; residual: [T, H], changed in place, or None for the first block, whose residual is x.
    """
    residual = x if residual is None else residual.add_(x)
    return Normed(F.rms_norm(residual, weight.shape, weight, eps), residual)
