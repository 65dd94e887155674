"""In which numbers a model's keys and values are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from tenora_engine.config import KvDtype
from tenora_engine.errors import StartError
from tenora_engine.kernels.kv import LARGEST, key_offset
from tenora_engine.model.linear import Linear
from tenora_engine.model.rope import Rope
from tenora_engine.model.spec import ModelSpec, RopeSpec
from tenora_engine.model.weights import ModelWeights

# Positions over which a bias is averaged: where most of the tokens are, whatever a model's longest context.
_OFFSET_POSITIONS: Final = 2048


@dataclass(frozen=True, slots=True)
class KvFormat:
    dtype: torch.dtype
    key_offsets: tuple[Tensor, ...] | None = None  # by layer, fp32 [Hkv, D]

    @property
    def name(self) -> str:
        """All that decides the stored numbers, besides the model: a part of every prefix-cache key."""
        parts = [str(self.dtype).removeprefix("torch.")]
        if self.dtype in LARGEST:
            parts.append("scaled-by-token-and-head")
        if self.key_offsets is not None:
            parts.append("key-offset")
        return "/".join(parts)


def choose_kv_dtype(asked: KvDtype, dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """For a model in `dtype`. Raises StartError for fp8 on a GPU whose hardware does not convert it."""
    if asked is KvDtype.AUTO:
        return dtype
    if asked is KvDtype.INT8:
        return torch.int8
    if device.type == "cuda" and (torch.version.hip or torch.cuda.get_device_capability(device) < (8, 9)):
        raise StartError("--kv-dtype fp8 needs an NVIDIA GPU of compute capability 8.9 or more: use int8")
    return torch.float8_e4m3fn


def kv_format(dtype: torch.dtype, spec: ModelSpec, weights: ModelWeights) -> KvFormat:
    """For a cache in `dtype`: quantised, it leaves out what the bias of a K projection adds to every key."""
    if dtype not in LARGEST or not spec.qkv_bias or spec.qk_norm:
        return KvFormat(dtype)
    layers = zip(spec.layers, weights.layers, strict=True)
    return KvFormat(dtype, tuple(_key_offset(spec, layer_spec.rope, layer.qkv) for layer_spec, layer in layers))


def _key_offset(spec: ModelSpec, rope: RopeSpec | None, qkv: Linear) -> Tensor:
    assert qkv.bias is not None
    bias = qkv.bias[spec.q_size : spec.q_size + spec.kv_size].view(spec.num_kv_heads, spec.head_dim)
    if rope is None:
        return bias.float()
    positions = torch.arange(_OFFSET_POSITIONS, device=bias.device)
    return key_offset(bias, Rope(rope, spec.head_dim, bias.device).cos_sin(positions))
