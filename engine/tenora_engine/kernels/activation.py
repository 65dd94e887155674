"""The gated activation of the MLP (Shazeer 2020, arXiv:2002.05202)."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tenora_engine.model.spec import Activation


def gated(gate_up: Tensor, activation: Activation) -> Tensor:
    """activation(gate) * up. gate_up: [T, 2 I], gates then ups; out: [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    if activation is Activation.GELU_TANH:
        return F.gelu(gate, approximate="tanh").mul_(up)
    return F.silu(gate).mul_(up)
