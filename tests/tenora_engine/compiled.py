"""Compiling kernels for the GPUs that are served, without a GPU at hand."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

HOPPER = GPUTarget("cuda", 90, 32)
GFX942 = GPUTarget("hip", "gfx942", 64)
# And the shared memory that one program may ask for there, in bytes.
TARGETS = {
    GPUTarget("cuda", 80, 32): 163 * 1024,
    GPUTarget("cuda", 89, 32): 99 * 1024,
    HOPPER: 227 * 1024,
    GPUTarget("cuda", 100, 32): 227 * 1024,
    GFX942: 64 * 1024,
}


def compile_for(
    target: GPUTarget,
    kernel: Any,
    types: Mapping[str, str],
    fixed: Mapping[str, Any],
    multiples: Collection[str] = (),
    **options: int,
) -> Any:
    """As a launch does whose pointers, and the sizes named in `multiples`, are multiples of 16.

    types: of arguments by name, int32 where there is none; fixed: the values of those that are constants.
    """
    signature = {name: "constexpr" if name in fixed else types.get(name, "i32") for name in kernel.arg_names}
    hints = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or name in multiples
    }
    return triton.compile(ASTSource(kernel, signature, dict(fixed), hints), target=target, options=options)


@dataclass(frozen=True)
class Usage:
    """What one program takes, as the assembler says."""

    registers: int  # of a thread
    spilled: int  # bytes that a thread keeps in memory because its registers do not suffice
    shared: int  # bytes of shared memory

    def __str__(self) -> str:
        return f"{self.registers} / {self.spilled} / {self.shared / 1024:.0f}"


def usage_of(compiled: Any, target: GPUTarget) -> Usage:
    if target == GFX942:
        text, names = compiled.asm["amdgcn"], [r"\.vgpr_count:\s+", r"\.private_segment_fixed_size:\s+"]
    else:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            Path(file.name).write_bytes(compiled.asm["cubin"])
            command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        names = ["REG:", "STACK:", "LOCAL:"]
    registers, *spilled = (int(re.search(rf"{name}(\d+)", text)[1]) for name in names)  # type: ignore[index]
    return Usage(registers, sum(spilled), compiled.metadata.shared)


def name_of(target: GPUTarget) -> str:
    return str(target.arch) if target == GFX942 else f"sm_{target.arch}"


def read_report(text: str) -> dict[tuple[str, str], str]:
    """The table that bench/kernel_report.py wrote: usage by kernel and target."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    targets = rows[0][1:]
    return {(name, target): cell for name, *cells in rows[1:] for target, cell in zip(targets, cells, strict=True)}
