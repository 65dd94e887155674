"""DoRA (Liu et al. 2024, arXiv:2402.09353): the adapted weight's rows are given the lengths m that were trained.

    y = s * (W x + scaling * B A x) + bias,    s = m / |W + scaling * B A|, the length of each row

The row scale s hangs on weights alone, so it is computed once, when an adapter is loaded. In the form of `kernels.lora`
B takes s in, and what is left of the base's output y0 = W x + bias is gain * y0 + offset:

    y = y0 + (s - 1) * y0 - (s - 1) * bias + s * scaling * B A x

A request's scale weighs all that is added to y0, as it does for plain LoRA: at 0 the base answers, at 1 PEFT's DoRA.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import torch
from safetensors import safe_open
from torch import Tensor

# A tied head has no tensor of its own.
_TIED: Final = {"lm_head.weight": "model.embed_tokens.weight"}


class BaseWeights:
    """The base's own weights, read again from its files: on the host, whatever form they have where they are used."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files: dict[str, Path] = {}
        for path in files:
            with safe_open(path, framework="pt") as tensors:
                self._files.update(dict.fromkeys(tensors.keys(), path))

    def parameter(self, name: str) -> Tensor:
        """In fp32, as the checkpoint names it. Raises KeyError, OSError and SafetensorError."""
        return self._read(name if name in self._files else _TIED[name])

    def bias(self, module: str) -> Tensor | None:
        """fp32 [out_features]."""
        name = f"{module}.bias"
        return self._read(name) if name in self._files else None

    def _read(self, name: str) -> Tensor:
        with safe_open(self._files[name], framework="pt") as tensors:
            value: Tensor = tensors.get_tensor(name)
        return value.float()


def row_scale(weight: Tensor, a: Tensor, b: Tensor, scaling: float, magnitude: Tensor) -> Tensor:
    """s: fp32 [out_features]. weight: [out, in]; a: [rank, in]; b: [out, rank]; magnitude: [out].

    0 for a row without direction that is to have no length, as an untrained adapter leaves an unused token's row of the
    head (PEFT's answer there is NaN).
    """
    adapted = weight.float().addmm(b.float(), a.float(), alpha=scaling)
    lengths: Tensor = torch.linalg.vector_norm(adapted, dim=1)
    return (magnitude.float() / lengths).masked_fill((lengths == 0) & (magnitude == 0), 0.0)


def gain_and_offset(scale: Tensor, bias: Tensor | None) -> Tensor:
    """fp32 [2, out_features]. scale: s; bias: the base's."""
    gain = scale - 1
    return torch.stack([gain, torch.zeros_like(gain) if bias is None else -gain * bias])
