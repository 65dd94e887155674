"""Compiling kernels for the GPUs that are served, without a GPU at hand."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Mapping
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


def local_bytes(compiled: Any, folder: Path) -> int:
    """What each thread keeps in memory because its registers do not suffice."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(cubin)]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:\d+ STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", usage)
    assert found, usage
    return int(found[1]) + int(found[2])
