"""The kernels of LoRA, rows and sampling in their shipped configurations, for test_compilation.py and the report."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from compiled import HOPPER, TARGETS, compile_for, name_of, read_report, usage_of
from shipped_attention import shipped_attention
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.errors import TritonError

from tenora_engine.kernels.bgmv import bgmv_kernel
from tenora_engine.kernels.launch_table import ANY, SHIPPED, Row, find, read_rows
from tenora_engine.kernels.lora_launch import DECODE_HEIGHT
from tenora_engine.kernels.race import race_kernel
from tenora_engine.kernels.rowwise import add_rms_norm_kernel, gated_kernel, norm_warps
from tenora_engine.kernels.sgmv import expand_kernel, gather_kernel, shrink_kernel

BF16, FP32 = torch.bfloat16, torch.float32
_POINTERS = {BF16: "*bf16", FP32: "*fp32"}
_TABLES = {"pieces": "*i32", "tiles": "*i32", "columns": "*i32", "table": "*i64", "scales": "*fp32", "scratch": "*fp32"}
# As a layer of q, k and v has them whose sizes are multiples of 16.
_MULTIPLES = ("x_stride", "y_stride", "in_features", "out_features", "split_size", "width", "size")
_LORA = {"bgmv": bgmv_kernel, "shrink": shrink_kernel, "expand": expand_kernel, "gather": gather_kernel}


@dataclass(frozen=True)
class Shipped:
    name: str
    kernel: Any
    types: dict[str, str]
    fixed: dict[str, Any]
    options: dict[str, int]
    # Whether the rows that it reads begin at multiples of 16 elements. A row of an embedding's A has `rank` elements,
    # and a rank can be any: what `gather` reads, 2 * rank bytes for each token, it reads element by element.
    aligned: bool = True

    def __str__(self) -> str:
        return self.name

    def runs_on(self, target: GPUTarget) -> bool:
        return True

    def compile(self, target: GPUTarget) -> Any:
        fixed = {name: value for name, value in self.fixed.items() if name in self.kernel.arg_names}
        return compile_for(target, self.kernel, self.types, fixed, _MULTIPLES, **self.options)


REPORT = Path(__file__).parents[2] / "docs/kernel-report.md"


def check(item: Any, target: GPUTarget) -> None:
    """Within the target's shared memory; on Hopper without spills, and with wide loads of what is 16 bits wide; and all
    as the checked-in report says."""
    compiled = item.compile(target)
    usage = usage_of(compiled, target)
    assert usage.shared <= TARGETS[target]
    if target == HOPPER:
        assert usage.spilled == 0
        assert not (item.aligned and "ld.global.b16" in compiled.asm["ptx"])
    report = REPORT.read_text()
    if f"triton {triton.__version__}" in report:  # others allocate registers otherwise
        assert str(usage) == read_report(report)[str(item), name_of(target)], "stale: make kernel-report"


def outcome(index: int, target: GPUTarget) -> str:
    """What is wrong with one of `everything` for a target, in a process that others are compiled beside."""
    item = list(everything())[index]
    with tempfile.TemporaryDirectory() as folder:
        knobs.cache.dir = folder  # what is compiled here is compiled, not found
        try:
            check(item, target)
        except (AssertionError, KeyError, RuntimeError, TritonError) as error:
            return f"{item} on {name_of(target)}: {error!r}"
    return ""


def everything() -> list[Any]:
    """All that ships, of the step and of attention."""
    return [*shipped(), *shipped_attention(BF16), *shipped_attention(FP32)]


def lora(op: str, dtype: torch.dtype, height: int, rank: int, launch: dict[str, int]) -> Shipped:
    pointer = _POINTERS[dtype]
    types = _TABLES | {"x": pointer, "y": pointer, "like": pointer, "token_ids": "*i64"}
    fixed = {"table_width": 12, "height": height, "rank_block": rank, "block": launch.get("block"), "aligned": True}
    options = {name: value for name, value in launch.items() if name in ("num_warps", "num_stages")}
    name = f"{op}-{_name(dtype)}-{height}-rank{rank}"
    return Shipped(name, _LORA[op], types, fixed, options, aligned=op != "gather")


def norm(dtype: torch.dtype, size: int) -> Shipped:
    pointer = _POINTERS[dtype]
    types = {"out": pointer, "residual": pointer, "x": pointer, "weight": "*fp32", "eps": "fp32"}
    return Shipped(
        f"norm-{_name(dtype)}-{size}",
        add_rms_norm_kernel,
        types,
        {"block": size, "adds": True},
        {"num_warps": norm_warps(size)},
    )


def gated(dtype: torch.dtype, is_gelu: bool) -> Shipped:
    launch = find("gated", ANY, dtype)
    types = dict.fromkeys(("out", "gate_up"), _POINTERS[dtype])
    fixed = {"block": launch["block"], "is_gelu": is_gelu}
    name = f"gated-{_name(dtype)}-{'gelu' if is_gelu else 'silu'}"
    return Shipped(name, gated_kernel, types, fixed, {"num_warps": launch["num_warps"]})


def race() -> Shipped:
    launch = find("race", ANY, FP32)
    types = {"scores": "*fp32", "winners": "*i64", "weights": "*fp32", "keys": "*i64"}
    return Shipped("race", race_kernel, types, {"block": launch["block"]}, {"num_warps": launch["num_warps"]})


def shipped() -> Iterator[Shipped]:
    """Every row of the launch table that ships, and what has no row."""
    for row in read_rows(SHIPPED):
        if row.op in _LORA:
            yield _of_row(row)
    for dtype in (BF16, FP32):
        yield lora("gather", dtype, 64, 64 if dtype is BF16 else 32, {})
        yield from (norm(dtype, size) for size in (1024, 4096, 8192))
        yield from (gated(dtype, is_gelu) for is_gelu in (False, True))
    yield race()


def defaults() -> list[Shipped]:
    """Decoding and prefilling in bf16 at rank 16, bgmv's largest rank, and the rest of a step."""
    wanted = {
        "bgmv-bfloat16-16-rank16",
        "bgmv-bfloat16-16-rank128",
        "shrink-bfloat16-16-rank16",
        "shrink-bfloat16-64-rank16",
        "expand-bfloat16-64-rank16",
        "norm-bfloat16-4096",
        "gated-bfloat16-silu",
        "race",
    }
    return [item for item in shipped() if item.name in wanted]


def _of_row(row: Row) -> Shipped:
    dtype = {"bfloat16": BF16, "float32": FP32}[row.dtype]
    return lora(row.op, dtype, row.shape.get("height", DECODE_HEIGHT), row.shape["rank"], dict(row.launch))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
