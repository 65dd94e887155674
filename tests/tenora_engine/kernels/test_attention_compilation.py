"""Paged attention and the write to its cache, compiled for the GPUs that are served, without a GPU at hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled import GFX942, HOPPER, TARGETS, compile_for, local_bytes
from triton import knobs
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


@dataclass(frozen=True)
class Attend:
    dtype: torch.dtype
    kv_dtype: torch.dtype
    head_dim: int
    height: int

    def __str__(self) -> str:
        return f"attend-{_name(self.dtype)}-{_name(self.kv_dtype)}-{self.head_dim}-{self.height}"

    def compile(self, target: GPUTarget) -> Any:
        launch = attention_launch(self.height, self.head_dim, self.dtype)
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
class Merge:
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
class Place:
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


Shipped = Attend | Merge | Place


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _padded(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _shape(head_dim: int) -> dict[str, Any]:
    return {"num_heads": NUM_HEADS, "head_dim": head_dim}


def shipped(dtype: torch.dtype) -> Iterator[Shipped]:
    """All that the launchers can choose."""
    for head_dim in (64, 96, 128, 256):
        yield Merge(dtype, head_dim)
        for kv_dtype in (dtype, FP8, INT8):
            yield Place(dtype, kv_dtype, head_dim)
            yield from (Attend(dtype, kv_dtype, head_dim, height) for height in (SHORT_HEIGHT, LONG_HEIGHT[dtype]))


def defaults(target: GPUTarget) -> list[Shipped]:
    """bf16 at head dimension 128: prefilling from a plain cache, decoding from the quantised one of this target."""
    kv_dtype = FP8 if target in HAS_FP8 else INT8
    return [Attend(BF16, BF16, 128, 64), Attend(BF16, kv_dtype, 128, 16), Merge(BF16, 128), Place(BF16, kv_dtype, 128)]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is compiled here is compiled, not found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
        patch.setattr(knobs.cache, "dir", str(tmp_path_factory.mktemp("triton")))
        yield


def check(item: Shipped, target: GPUTarget, folder: Path) -> None:
    """Within the target's shared memory; on Hopper without spills, and with wide loads of what is 16 bits wide."""
    compiled = item.compile(target)
    assert compiled.metadata.shared <= TARGETS[target]
    if target == HOPPER:
        assert local_bytes(compiled, folder) == 0
        assert "ld.global.b16" not in compiled.asm["ptx"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.arch))
def test_default_configurations(target: GPUTarget, tmp_path: Path):
    for item in defaults(target):
        check(item, target, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.arch))
@pytest.mark.parametrize("item", [*shipped(BF16), *shipped(FP32)], ids=str)
def test_all_configurations(item: Shipped, target: GPUTarget, tmp_path: Path):
    if getattr(item, "kv_dtype", None) is FP8 and target not in HAS_FP8:
        pytest.skip("no e4m3 in this hardware: int8 takes its place")
    check(item, target, tmp_path)


@pytest.mark.parametrize(
    ("item", "num_small"),
    [(Attend(BF16, FP8, 128, 16), 1), (Merge(BF16, 128), 1), (Place(BF16, INT8, 128), 2)],
    ids=str,
)
def test_offsets_are_of_64_bits(item: Shipped, num_small: int):
    """A cache passes 2^31 elements, and so do rows of scratch. In 32 bits stay the products of a head (of queries; of
    the keys' offset) with its size, and of a part with the tokens of its tile: these are small by their nature."""
    products = [line for line in item.compile(HOPPER).asm["ttir"].splitlines() if "arith.muli" in line]
    assert any("xi64>" in line for line in products)
    assert sum("xi32>" in line for line in products) == num_small
