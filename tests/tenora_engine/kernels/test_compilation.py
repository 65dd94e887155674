"""Every kernel in its shipped configurations, compiled for the GPUs that are served, without a GPU at hand."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tenora_engine.kernels.bgmv import bgmv_kernel
from tenora_engine.kernels.lora_launch import Launch, bgmv_launch, sgmv_launch
from tenora_engine.kernels.sgmv import expand_kernel, shrink_kernel

HOPPER = GPUTarget("cuda", 90, 32)
# And the shared memory that one program may ask for there, in bytes.
TARGETS = {
    GPUTarget("cuda", 80, 32): 163 * 1024,
    GPUTarget("cuda", 89, 32): 99 * 1024,
    HOPPER: 227 * 1024,
    GPUTarget("cuda", 100, 32): 227 * 1024,
    GPUTarget("hip", "gfx942", 64): 64 * 1024,
}
BF16, FP32 = torch.bfloat16, torch.float32
KERNELS = {"shrink": shrink_kernel, "expand": expand_kernel, "bgmv": bgmv_kernel}
# The rest are int32, as the sizes of any batch are.
POINTERS = {
    "pieces": "*i32",
    "tiles": "*i32",
    "columns": "*i32",
    "table": "*i64",
    "scales": "*fp32",
    "scratch": "*fp32",
}


@dataclass(frozen=True)
class Shipped:
    kernel: str
    dtype: torch.dtype
    launch: Launch

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        return f"{self.kernel}-{name}-{self.launch.height}-rank{self.launch.rank_block}"

    def compile(self, target: GPUTarget) -> Any:
        """As a launch on a layer of q, k and v does whose sizes are multiples of 16."""
        fixed: dict[str, Any] = {
            "table_width": 11,
            "height": self.launch.height,
            "rank_block": self.launch.rank_block,
            "block": self.launch.block,
            "aligned": True,
        }
        kernel = KERNELS[self.kernel]
        of_dtype = "*bf16" if self.dtype is BF16 else "*fp32"
        signature = {
            name: "constexpr" if name in fixed else of_dtype if name in "xy" else POINTERS.get(name, "i32")
            for name in kernel.arg_names
        }
        multiples = {"x_stride", "y_stride", "in_features", "split_size", "width"}
        hints = {
            (index,): [["tt.divisibility", 16]]
            for index, name in enumerate(kernel.arg_names)
            if signature[name].startswith("*") or name in multiples
        }
        constants = {name: value for name, value in fixed.items() if name in signature}
        source = ASTSource(kernel, signature, constants, hints)
        options = {"num_warps": self.launch.num_warps, "num_stages": self.launch.num_stages}
        return triton.compile(source, target=target, options=options)


def shipped() -> list[Shipped]:
    """All that the launchers can choose."""
    of_sgmv = [
        Shipped(kernel, dtype, sgmv_launch(height, rank, dtype))
        for kernel in ("shrink", "expand")
        for dtype in (BF16, FP32)
        for height in (16, 64)
        for rank in (16, 32, 64)
    ]
    of_bgmv = [Shipped("bgmv", dtype, bgmv_launch(rank, dtype)) for dtype in (BF16, FP32) for rank in (16, 32, 64, 128)]
    return list(dict.fromkeys(of_sgmv + of_bgmv))


# What decoding (bgmv) and prefilling (the pair) use in bf16 at rank 16, and bgmv's largest rank.
DEFAULT = [
    Shipped("shrink", BF16, sgmv_launch(64, 16, BF16)),
    Shipped("expand", BF16, sgmv_launch(64, 16, BF16)),
    Shipped("bgmv", BF16, bgmv_launch(16, BF16)),
    Shipped("bgmv", BF16, bgmv_launch(128, BF16)),
]


@pytest.fixture(scope="module", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is compiled here is compiled, not found."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
        patch.setattr(knobs.cache, "dir", str(tmp_path_factory.mktemp("triton")))
        yield


def check(item: Shipped, target: GPUTarget, folder: Path) -> None:
    """Within the target's shared memory; on Hopper without spills, and with wide loads."""
    compiled = item.compile(target)
    assert compiled.metadata.shared <= TARGETS[target]
    if target == HOPPER:
        assert local_bytes(compiled, folder) == 0
        assert "ld.global.b16" not in compiled.asm["ptx"]  # one value at a time: what wide loads become unaligned


def local_bytes(compiled: Any, folder: Path) -> int:
    """What each thread keeps in memory because its registers do not suffice."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(cubin)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:\d+ STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    assert found, usage
    return int(found[1]) + int(found[2])


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.arch))
@pytest.mark.parametrize("item", DEFAULT, ids=str)
def test_default_configurations(item: Shipped, target: GPUTarget, tmp_path: Path):
    check(item, target, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: str(target.arch))
@pytest.mark.parametrize("item", shipped(), ids=str)
def test_all_configurations(item: Shipped, target: GPUTarget, tmp_path: Path):
    check(item, target, tmp_path)


@pytest.mark.parametrize("kernel", KERNELS)
def test_offsets_are_of_64_bits(kernel: str):
    """Rows times strides pass 2^31 elements with a long prompt and a large vocabulary: only scalars that are small by
    their nature (four words for each tile, a place in the grid) are multiplied in 32 bits, no vector of rows is."""
    item = next(item for item in DEFAULT if item.kernel == kernel)
    products = [line for line in item.compile(HOPPER).asm["ttir"].splitlines() if "arith.muli" in line]
    assert any("xi64>" in line for line in products)
    assert not [line for line in products if "xi32>" in line]
