"""A frozen linear layer, with its weight in the layout that this device multiplies fastest."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F  # noqa: N812  # the name everybody knows
from torch import Tensor


class Linear(Protocol):
    """y = x W^T + b for x of shape [num_tokens, in_features]."""

    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor: ...


class TorchLinear:
    """By torch, on any device."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self._packed = can_pack(weight)
        # oneDNN's own blocked layout: two to five times plain F.linear from two rows on, equal at one.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight, None) if self._packed else weight

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self.bias, "none", [], "")
            return y
        return F.linear(x, self._weight, self.bias)


def can_pack(weight: Tensor) -> bool:
    """Whether oneDNN takes this weight on this machine."""
    if weight.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32
