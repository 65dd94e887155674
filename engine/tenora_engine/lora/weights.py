"""An adapter's weights in the decoder's layout, and the slots that hold them. Imports torch only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tenora_engine.kernels.lora import LoraPair
from tenora_engine.model.decoder import Adapters, LayerPairs
from tenora_engine.model.spec import ModelSpec


class UnknownModule(Exception):
    """An adapter names a module that the decoder cannot adapt."""


@dataclass(frozen=True, slots=True)
class ModuleWeights:
    """LoRA of one linear layer as it lies in the file: y += scaling * B (A x)."""

    a: Tensor  # [rank, in_features]
    b: Tensor  # [out_features, rank]
    scaling: float


@dataclass(frozen=True, slots=True)
class AdapterLayer:
    """The pairs of one decoder layer; None where the adapter leaves a projection alone."""

    qkv: LoraPair | None = None
    output: LoraPair | None = None
    gate_up: LoraPair | None = None
    down: LoraPair | None = None


@dataclass(frozen=True, slots=True)
class AdapterWeights:
    layers: tuple[AdapterLayer, ...]
    lm_head: LoraPair | None = None


@dataclass(frozen=True, slots=True)
class _Slice:
    """Where one module's outputs lie in the fused projection."""

    module: str
    size: int


LM_HEAD: Final = "lm_head"


def arrange(modules: Mapping[str, ModuleWeights], spec: ModelSpec, dtype: torch.dtype) -> AdapterWeights:
    """`modules` by path ("model.layers.0.self_attn.q_proj"), fused as the base is. Raises UnknownModule."""
    remaining = dict(modules)
    q, kv, inner, hidden = spec.q_size, spec.kv_size, spec.intermediate_size, spec.hidden_size

    def fuse(prefix: str, *slices: _Slice) -> LoraPair | None:
        return _fuse([(remaining.pop(f"{prefix}{part.module}", None), part.size) for part in slices], dtype)

    layers = []
    for index in range(spec.num_layers):
        prefix = f"model.layers.{index}."
        layers.append(
            AdapterLayer(
                qkv=fuse(f"{prefix}self_attn.", _Slice("q_proj", q), _Slice("k_proj", kv), _Slice("v_proj", kv)),
                output=fuse(f"{prefix}self_attn.", _Slice("o_proj", hidden)),
                gate_up=fuse(f"{prefix}mlp.", _Slice("gate_proj", inner), _Slice("up_proj", inner)),
                down=fuse(f"{prefix}mlp.", _Slice("down_proj", hidden)),
            )
        )
    lm_head = fuse("", _Slice(LM_HEAD, spec.vocab_size))
    if remaining:
        raise UnknownModule(sorted(remaining)[0])
    return AdapterWeights(tuple(layers), lm_head)


def _fuse(parts: Sequence[tuple[ModuleWeights | None, int]], dtype: torch.dtype) -> LoraPair | None:
    """One pair for modules that share their input: the A side by side, the B on a diagonal, scaling folded into B."""
    present = [weights for weights, _ in parts if weights is not None]
    if not present:
        return None
    a = torch.cat([weights.a for weights in present]).to(dtype).t().contiguous()
    b = torch.zeros(a.shape[1], sum(size for _, size in parts), dtype=dtype)
    row = column = 0
    for weights, size in parts:
        if weights is not None:
            rank = weights.a.shape[0]
            b[row : row + rank, column : column + size] = (weights.b.float() * weights.scaling).t()
            row += rank
        column += size
    return LoraPair(a, b)


class DeviceSlots:
    """The adapters that a step can use, by slot index. `adapters` is what the decoder reads; it never moves."""

    def __init__(self, num_slots: int, num_layers: int) -> None:
        self._layers = [
            (_empty(num_slots), _empty(num_slots), _empty(num_slots), _empty(num_slots)) for _ in range(num_layers)
        ]
        self._lm_head = _empty(num_slots)
        self.adapters = Adapters([LayerPairs(*lists) for lists in self._layers], self._lm_head)

    def put(self, slot: int, weights: AdapterWeights) -> None:
        """Replace what lies in a slot. No step that uses the slot may be under way."""
        for (qkv, output, gate_up, down), layer in zip(self._layers, weights.layers, strict=True):
            qkv[slot], output[slot], gate_up[slot], down[slot] = layer.qkv, layer.output, layer.gate_up, layer.down
        self._lm_head[slot] = weights.lm_head


def _empty(num_slots: int) -> list[LoraPair | None]:
    return [None] * num_slots
