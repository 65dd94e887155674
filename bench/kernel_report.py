"""Registers, spills and shared memory of every kernel in every shipped configuration, for every GPU that is served.

    make kernel-report                      writes docs/kernel-report.md
    python bench/kernel_report.py --check   compiles the default ones with whatever triton there is, writes nothing

Nothing runs: each kernel is compiled by triton and assembled by its ptxas, or by LLVM for gfx942, as a launch would.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
REPOSITORY = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests/tenora_engine"))

import shipped  # noqa: E402
import shipped_attention  # noqa: E402
import triton  # noqa: E402
from compiled import HOPPER, TARGETS, name_of, usage_of  # noqa: E402
from triton import knobs  # noqa: E402

HEAD = f"""# Kernel report

What `make kernel-report` printed, with triton {triton.__version__}: registers of a thread, bytes that it spills, KiB
of shared memory of a program. Spills are what ptxas gives as stack and local memory, and for gfx942 the private
segment. A dash: not for this target (e4m3 is a number of sm_89 and later). Names: kernel, dtype; LoRA's height of a
tile and block of ranks; attention's dtype of the cache, head dimension and height of a tile.
`tests/tenora_engine/kernels/` holds that nothing spills on sm_90, that shared memory is within each target's limit, and
that this table says what the kernels take.

"""


def check() -> int:
    """One line for each default configuration and target; 1 where one spills on sm_90 or asks for too much memory."""
    wrong = False
    print(f"triton {triton.__version__}")
    for target, limit in TARGETS.items():
        items: list[Any] = [*shipped.defaults(), *shipped_attention.default_attention(target)]
        for item in items:
            usage = usage_of(item.compile(target), target)
            bad = usage.shared > limit or (target == HOPPER and usage.spilled > 0)
            wrong |= bad
            print(f"{'WRONG' if bad else 'ok   '} {name_of(target):7} {item!s:32} {usage}", flush=True)
    return int(wrong)


def write() -> int:
    lines = ["| kernel | " + " | ".join(name_of(target) for target in TARGETS) + " |", "|---|" + "---|" * len(TARGETS)]
    for item in shipped.everything():
        cells = [str(usage_of(item.compile(t), t)) if item.runs_on(t) else "-" for t in TARGETS]
        lines.append(f"| {item} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    shipped.REPORT.write_text(HEAD + "\n".join(lines) + "\n")
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
