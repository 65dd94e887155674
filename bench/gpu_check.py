"""Every kernel on this machine's GPU: right to float64, how fast, and what that makes of a model with many adapters.

    make gpu-check
    python bench/gpu_check.py --only checks

Needs torch, triton, safetensors and numpy; made to end within six minutes on one Hopper GPU. Prints tables, and writes
the same as JSON. Exit status 1 when a kernel is wrong, or a figure misses its target. Without a GPU the kernels run in
Triton's interpreter, on tiny sizes: that shows that this script works, and its times mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / "bench"), str(REPOSITORY / "engine")]

import torch  # noqa: E402

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
import triton  # noqa: E402
from gpu import checks, clock, llama, timings  # noqa: E402

PARTS = ("checks", "timings", "model")


@dataclass(frozen=True)
class Target:
    what: str
    figure: float
    at_least: float

    @property
    def met(self) -> bool:
        return self.figure >= self.at_least


def targets(timed: Sequence[timings.Timing], rates: Sequence[llama.Rate]) -> Iterator[Target]:
    """What is to be met on an H200, or explained."""
    by_work = {(rate.what, rate.num_adapters): rate.tokens_per_s for rate in rates if rate.graphs}
    if base := by_work.get(("base", 0)):
        for what, count, share in (("rank 16", 32, 0.95), ("ranks 8 to 64", 64, 0.90)):
            if (what, count) in by_work:
                yield Target(f"{count} adapters, {what}: of the base's rate", by_work[what, count] / base, share)
    decoding = {timing.work: timing for timing in timed if timing.kernel == "decode attention"}
    plain = [timing for work, timing in decoding.items() if work.endswith("bfloat16")]
    if plain:
        yield Target("decode attention: of the copy bandwidth, the least of all", min(t.share for t in plain), 0.80)
    for work, timing in decoding.items():
        if "x 32768 tokens, float8" in work:
            of_bf16 = decoding[work.rsplit(",", 1)[0] + ", bfloat16"]
            yield Target(
                "fp8 at 32k: of twice its speed in bf16", of_bf16.microseconds / 2 / timing.microseconds, 1 / 1.1
            )


def machine(device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU"
    return {
        "device": name,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "interpreted": device.type == "cpu",
    }


def formats(device: torch.device) -> tuple[list[torch.dtype], list[torch.dtype]]:
    """Those of the model and of quantised caches. The interpreter multiplies bf16 as integers, and cuts fp8 off."""
    if device.type != "cuda":
        return [torch.float32], [torch.int8]
    has_fp8 = not torch.version.hip and torch.cuda.get_device_capability(device) >= (8, 9)
    return [torch.float32, torch.bfloat16], [torch.int8, *([torch.float8_e4m3fn] if has_fp8 else [])]


def run(parts: Sequence[str], device: torch.device, tell: Callable[[str], None]) -> dict[str, Any]:
    dtypes, kv_dtypes = formats(device)
    report: dict[str, Any] = {"machine": machine(device)}
    checked: list[checks.Check] = []
    timed: list[timings.Timing] = []
    rates: list[llama.Rate] = []
    if "checks" in parts:
        tell("\nCorrectness, of the largest magnitude\n")
        checked += checks.run_checks(device, dtypes, kv_dtypes, tell)
    if "timings" in parts:
        bandwidth = clock.copy_bandwidth(device, 1 << (30 if device.type == "cuda" else 20))
        report["copy_gigabytes_per_s"] = bandwidth / 1e9
        tell(f"\nTimes, and shares of what a copy moves: {bandwidth / 1e9:.0f} GB/s\n")
        shape = timings.LLAMA_8B if device.type == "cuda" else timings.TINY
        timed += timings.run_timings(timings.Clock(device, dtypes[-1], bandwidth, tell), shape, kv_dtypes)
    if "model" in parts:
        size = llama.size_for(device)
        tell(f"\nA Llama of {size.spec.num_layers} layers, {size.batch} sequences of {size.context} tokens\n")
        model = llama.Model(size, device, dtypes[-1])
        rates += llama.run_model(model, tell)
        checked += llama.check_graphs(model)
        for check in checked[-2:]:
            tell(f"{'ok   ' if check.ok else 'WRONG'} {check.operation:28} {check.dtype:9} error {check.error:.1e}")
    report |= {"checks": [{**asdict(c), "ok": c.ok} for c in checked]}
    report |= {"timings": [asdict(t) for t in timed], "model": [asdict(r) for r in rates]}
    found = list(targets(timed, rates)) if device.type == "cuda" else []
    for target in found:
        met = "met   " if target.met else "MISSED"
        tell(f"{met} {target.what:60} {target.figure:.3f}, at least {target.at_least:.3f}")
    return report | {"targets": [{**asdict(t), "met": t.met} for t in found]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=PARTS, action="append", help="one part alone; may be given again")
    parser.add_argument("--json", type=Path, default=REPOSITORY / "build/gpu-check.json", help="where the figures go")
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(" ".join(f"{name} {value}" for name, value in machine(device).items()))
    with torch.inference_mode():
        report = run(options.only or PARTS, device, lambda line: print(line, flush=True))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1) + "\n")
    print(f"\nwritten to {options.json}")
    return 0 if all(check["ok"] for check in report["checks"]) and all(t["met"] for t in report["targets"]) else 1


if __name__ == "__main__":
    sys.exit(main())
