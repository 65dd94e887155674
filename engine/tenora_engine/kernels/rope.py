"""Rotary embedding of queries and keys, in the half-split layout of Llama checkpoints."""

from __future__ import annotations

from torch import Tensor


def rotate(heads: Tensor, cos_sin: Tensor) -> None:
    """Rotate in place: (a, b) -> (a cos - b sin, b cos + a sin), a and b the halves of each head.

    heads: [T, Hq + Hkv, D], queries and keys together; cos_sin: fp32 [T, D], cosines then sines.
    """
    half = heads.shape[-1] // 2
    cos_sin = cos_sin.to(heads.dtype).unsqueeze(1)
    cos, sin = cos_sin[..., :half], cos_sin[..., half:]
    a, b = heads[..., :half], heads[..., half:]
    turned = a * sin
    a.mul_(cos).addcmul_(b, sin, value=-1)
    b.mul_(cos).add_(turned)
