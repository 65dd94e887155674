"""Registers, spills and shared memory of every kernel in every shipped configuration, for every GPU that is served.

    make kernel-report                      writes docs/kernel-report.md
    python bench/kernel_report.py --check   compiles the default ones with whatever triton there is, writes nothing

Nothing runs: each kernel is compiled by triton and assembled by its ptxas, or by LLVM for gfx942, as a launch would.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / "tests/tenora_engine"), str(REPOSITORY / "tests/tenora_engine/kernels")]

import shipped as of_the_step  # noqa: E402
import test_attention_compilation as of_attention  # noqa: E402
import triton  # noqa: E402
from compiled import GFX942, HOPPER, TARGETS  # noqa: E402
from triton import knobs  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402

REPORT = REPOSITORY / "docs/kernel-report.md"
HEAD = f"""# Kernel report

What `make kernel-report` printed, with triton {triton.__version__}: registers of a thread, bytes that it spills, KiB
of shared memory of a program. Spills are what ptxas gives as stack, and for gfx942 the private segment. A dash: not for
this target (e4m3 is a number of sm_89 and later). `tests/tenora_engine/kernels/` holds that nothing spills on sm_90,
and that shared memory is within each target's limit.

"""


@dataclass(frozen=True)
class Usage:
    registers: int
    spilled: int
    shared: int

    def __str__(self) -> str:
        return f"{self.registers} / {self.spilled} / {self.shared / 1024:.0f}"


def usage_of(compiled: Any, target: GPUTarget) -> Usage:
    if target == GFX942:
        text = compiled.asm["amdgcn"]
        found = [re.search(rf"\.{name}:\s+(\d+)", text) for name in ("vgpr_count", "private_segment_fixed_size")]
    else:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            Path(file.name).write_bytes(compiled.asm["cubin"])
            command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
            text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = [re.search(rf"{name}:(\d+)", text) for name in ("REG", "STACK")]
    registers, spilled = (int(match[1]) for match in found if match)
    return Usage(registers, spilled, compiled.metadata.shared)


def is_for(item: Any, target: GPUTarget) -> bool:
    return getattr(item, "kv_dtype", None) is not of_attention.FP8 or target in of_attention.HAS_FP8


def everything() -> Iterator[Any]:
    yield from of_the_step.shipped()
    for dtype in (of_attention.BF16, of_attention.FP32):
        yield from of_attention.shipped(dtype)


def name_of(target: GPUTarget) -> str:
    return target.arch if target == GFX942 else f"sm_{target.arch}"


def check() -> int:
    """One line for each default configuration and target; 1 where one spills on sm_90 or asks for too much memory."""
    wrong = 0
    print(f"triton {triton.__version__}")
    for target, limit in TARGETS.items():
        for item in [*of_the_step.defaults(), *of_attention.defaults(target)]:
            usage = usage_of(item.compile(target), target)
            bad = usage.shared > limit or (target == HOPPER and usage.spilled > 0)
            wrong |= bad
            print(f"{'WRONG' if bad else 'ok   '} {name_of(target):7} {item!s:32} {usage}")
    return int(wrong)


def write() -> int:
    lines = ["| kernel | " + " | ".join(name_of(target) for target in TARGETS) + " |", "|---|" + "---|" * len(TARGETS)]
    for item in everything():
        cells = [str(usage_of(item.compile(t), t)) if is_for(item, t) else "-" for t in TARGETS]
        lines.append(f"| {item} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    REPORT.write_text(HEAD + "\n".join(lines) + "\n")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compile the default configurations only, write nothing")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        knobs.cache.dir = folder  # what is compiled here is compiled, not found
        return check() if options.check else write()


if __name__ == "__main__":
    sys.exit(main())
