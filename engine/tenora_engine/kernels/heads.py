"""What happens to a step's heads between the projection and attention: norm, rotation, and the write to the cache."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from tenora_engine.kernels.kv import LayerKv, store_kv
from tenora_engine.kernels.norm import rms_norm
from tenora_engine.kernels.rope import rotate


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """RMSNorm of each query and each key head (QK-norm, Dehghani et al. 2023, arXiv:2302.05442)."""

    q: Tensor  # fp32 [D]
    k: Tensor  # fp32 [D]
    eps: float


def place_heads(
    heads: Tensor, cos_sin: Tensor | None, norms: HeadNorms | None, cache: LayerKv, places: Tensor, num_heads: int
) -> None:
    """Norm and rotate queries and keys in place, then store keys and values.

    heads: [T, Hq + 2 Hkv, D], queries, keys, values, of which `num_heads` = Hq are queries; cos_sin: fp32 [T, D],
    cosines then sines, or None for a layer without positions; places: int64 [T], block * block_size + offset.
    """
    first_value = (num_heads + heads.shape[1]) // 2
    queries, keys, values = heads[:, :num_heads], heads[:, num_heads:first_value], heads[:, first_value:]
    if norms is not None:
        queries.copy_(rms_norm(queries, norms.q, norms.eps))
        keys.copy_(rms_norm(keys, norms.k, norms.eps))
    if cos_sin is not None:
        rotate(heads[:, :first_value], cos_sin)
    store_kv(cache, keys, values, places)
