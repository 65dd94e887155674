"""The gated activation of the MLP."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor


def silu_mul(gate_up: Tensor) -> Tensor:
    """silu(gate) * up. gate_up: [T, 2 I], gates then ups; out: [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)
