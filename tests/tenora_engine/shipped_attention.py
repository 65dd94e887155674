"""Paged attention and the write to its cache in their shipped configurations, for test_attention_compilation.py and the
report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from compiled import GFX942, TARGETS, compile_for
from triton.backends.compiler import GPUTarget

from tenora_engine.kernels.attention_launch import (
    HEADS_BLOCK,
    LONG_HEIGHT,
    MAX_PARTS,
    SHORT_HEIGHT,
    attention_launch,
)
from tenora_engine.kernels.kv import LARGEST, SMALLEST
from tenora_engine.kernels.paged_attention import attend_kernel, merge_kernel
from tenora_engine.kernels.place_heads import place_heads_kernel

BF16, FP32, FP8, INT8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int8
POINTER = {BF16: "*bf16", FP32: "*fp32", FP8: "*fp8e4nv", INT8: "*i8"}
NUM_HEADS, NUM_KV_HEADS, BLOCK_SIZE = 32, 8, 16
# Where e4m3 is a number of the hardware's.
HAS_FP8 = [target for target in TARGETS if target != GFX942 and target.arch >= 89]


class ShippedAttention:
    aligned = True  # the rows that it reads begin at multiples of 16 elements

    def runs_on(self, target: GPUTarget) -> bool:
        """int8 takes the place of fp8 where there is none."""
        return getattr(self, "kv_dtype", None) is not FP8 or target in HAS_FP8

    def compile(self, target: GPUTarget) -> Any:
        raise NotImplementedError


@dataclass(frozen=True)
class Attend(ShippedAttention):
    dtype: torch.dtype
    kv_dtype: torch.dtype
    head_dim: int
    height: int

    def __str__(self) -> str:
        return f"attend-{_name(self.dtype)}-{_name(self.kv_dtype)}-{self.head_dim}-{self.height}"

    def compile(self, target: GPUTarget) -> Any:
        launch = attention_launch(self.height, self.head_dim, self.dtype, self.kv_dtype)
        of_q, of_kv, quantised = POINTER[self.dtype], POINTER[self.kv_dtype], self.kv_dtype in LARGEST
        of_scales = "*fp32" if quantised else of_kv
        types = {"out": of_q, "q": of_q, "keys": of_kv, "values": of_kv, "scale": "fp32"}
        types |= {"key_scales": of_scales, "value_scales": of_scales, "scratch": "*fp32", "weights": "*fp32"}
        types |= dict.fromkeys(("num_tiles", "tiles", "blocks"), "*i32")
        fixed = _shape(self.head_dim) | {"num_kv_heads": NUM_KV_HEADS, "block_size": BLOCK_SIZE, "windowed": True}
        fixed |= {"padded_dim": _padded(self.head_dim), "quantised": quantised}
        fixed |= {"height": launch.height, "width": launch.width}
        options = {"num_warps": launch.num_warps, "num_stages": launch.num_stages}
        return compile_for(target, attend_kernel, types, fixed, ["q_stride"], **options)


@dataclass(frozen=True)
class Merge(ShippedAttention):
    dtype: torch.dtype
    head_dim: int

    def __str__(self) -> str:
        return f"merge-{_name(self.dtype)}-{self.head_dim}"

    def compile(self, target: GPUTarget) -> Any:
        types = {"out": POINTER[self.dtype], "scratch": "*fp32", "weights": "*fp32"}
        types |= {"num_merges": "*i32", "merges": "*i32"}
        fixed = _shape(self.head_dim) | {"padded_dim": _padded(self.head_dim), "max_parts": MAX_PARTS}
        return compile_for(target, merge_kernel, types, fixed, num_warps=4)


@dataclass(frozen=True)
class Place(ShippedAttention):
    dtype: torch.dtype
    kv_dtype: torch.dtype
    head_dim: int

    def __str__(self) -> str:
        return f"place-{_name(self.dtype)}-{_name(self.kv_dtype)}-{self.head_dim}"

    def compile(self, target: GPUTarget) -> Any:
        of_heads, of_kv, quantised = POINTER[self.dtype], POINTER[self.kv_dtype], self.kv_dtype in LARGEST
        of_scales = "*fp32" if quantised else of_heads
        types = {"heads": of_heads, "keys": of_kv, "values": of_kv, "places": "*i64", "eps": "fp32"}
        types |= dict.fromkeys(("cos_sin", "q_norm", "k_norm", "key_offset"), "*fp32")
        types |= {"key_scales": of_scales, "value_scales": of_scales}
        fixed = _shape(self.head_dim) | {"num_kv_heads": NUM_KV_HEADS, "heads_block": HEADS_BLOCK}
        fixed |= {"padded_half": _padded(self.head_dim // 2), "normed": True, "rotated": True, "shifted": quantised}
        fixed |= {"largest": LARGEST.get(self.kv_dtype, 0.0), "smallest": SMALLEST}
        return compile_for(target, place_heads_kernel, types, fixed, ["heads_stride"], num_warps=4)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _padded(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _shape(head_dim: int) -> dict[str, Any]:
    return {"num_heads": NUM_HEADS, "head_dim": head_dim}


def shipped_attention(dtype: torch.dtype) -> Iterator[ShippedAttention]:
    """All that the launchers can choose; of fp32 without quantised caches, which are for tests there."""
    for head_dim in (64, 96, 128, 256):
        yield Merge(dtype, head_dim)
        for kv_dtype in (dtype, FP8, INT8) if dtype is BF16 else (dtype,):
            yield Place(dtype, kv_dtype, head_dim)
            yield from (Attend(dtype, kv_dtype, head_dim, height) for height in (SHORT_HEIGHT, LONG_HEIGHT[dtype]))


def default_attention(target: GPUTarget) -> list[ShippedAttention]:
    """bf16 at head dimension 128: prefilling from a plain cache, decoding from the quantised one of this target."""
    kv_dtype = FP8 if target in HAS_FP8 else INT8
    return [Attend(BF16, BF16, 128, 64), Attend(BF16, kv_dtype, 128, 16), Merge(BF16, 128), Place(BF16, kv_dtype, 128)]
