"""Where a step's time goes on this CPU: the decoder on torch alone and on the native library, in turns.

    python bench/engine_step.py --model FOLDER

A step is what the engine's runner computes: the decoder's forward pass and the logits of the rows that are drawn. No
scheduler, no sampling. Each side computes in the numbers that the engine chooses for it on this machine. Figures are
medians of interleaved runs, and of these the ratios are what can be compared. The limit is that of `limits.py`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as the engine's process has it

import torch
from limits import Work, linear_sizes, measure_limits
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tenora_adapters.base import weight_files
from tenora_engine.assemble import choose_dtype
from tenora_engine.config import Dtype
from tenora_engine.cpu.abi import OPS
from tenora_engine.cpu.native import native_for
from tenora_engine.cpu.recorded import RecordedDecoder, record
from tenora_engine.kernels import REFERENCE, Kernels
from tenora_engine.kernels.attention import AttentionBatch, Span
from tenora_engine.kernels.kv import allocate_kv
from tenora_engine.kernels.lora import Segment
from tenora_engine.lora.weights import DeviceSlots, ModuleWeights, arrange
from tenora_engine.model.decoder import Batch, Decoder
from tenora_engine.model.hf_config import read_spec
from tenora_engine.model.linear import Linear
from tenora_engine.model.spec import ModelSpec
from tenora_engine.model.weights import load_weights

CPU = torch.device("cpu")
BLOCK = 16
MIXED, RANK8 = (8, 16, 32, 64) * 4, (8,) * 16


class Side:
    """One implementation of the step, with its own copy of everything."""

    def __init__(self, model: Path, kernels: Kernels, dtype: torch.dtype, num_blocks: int, num_rows: int) -> None:
        self.spec = read_spec(model)
        weights = load_weights(weight_files(model), self.spec, dtype, CPU, kernels.make_linear)
        self.dtype = dtype
        self.cache = allocate_kv(
            self.spec.num_layers, num_blocks, BLOCK, self.spec.num_kv_heads, self.spec.head_dim, dtype, CPU
        )
        self.slots = DeviceSlots(len(MIXED) + len(RANK8), self.spec, kernels, dtype, CPU)
        for slot, rank in enumerate((*MIXED, *RANK8)):
            adapter = arrange(random_modules(self.spec, rank, slot), self.spec, dtype)
            self.slots.install(slot, self.slots.place(adapter))
        self.decoder = record(
            Decoder(self.spec, weights, kernels), self.cache, self.slots.adapters, num_rows, torch.get_num_threads()
        )

    def step(self, work: Work) -> torch.Tensor:
        return self.logits(work, self.forward(self.batch(work)))

    def batch(self, work: Work) -> Batch:
        spans, places = [], []
        blocks_each = -(-work.context // BLOCK)
        for index in range(work.num_spans):
            blocks = [1 + index * blocks_each + i for i in range(blocks_each)]
            spans.append(Span(index * work.length, (index + 1) * work.length, work.context, blocks))
            positions = range(work.context - work.length, work.context)
            places += [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in positions]
        kernels = self.decoder.kernels
        return Batch(
            token_ids=torch.arange(work.num_rows) % 1000 + 1000,
            positions=torch.arange(work.context - work.length, work.context).repeat(work.num_spans),
            places=torch.tensor(places),
            attention=kernels.prepare_attention(AttentionBatch(spans, BLOCK), CPU, self.dtype),
            add_lora=kernels.prepare_lora(self._segments(work, work.length), CPU),
        )

    @torch.inference_mode()
    def forward(self, batch: Batch) -> torch.Tensor:
        return self.decoder.forward(batch, self.cache, self.slots.adapters)

    @torch.inference_mode()
    def logits(self, work: Work, hidden: torch.Tensor) -> torch.Tensor:
        """Of each sequence's last row."""
        last = hidden.index_select(0, torch.arange(work.length - 1, work.num_rows, work.length))
        of_last = self.decoder.kernels.prepare_lora(self._segments(work, 1), CPU)
        return self.decoder.logits(last, of_last, self.slots.adapters)

    def _segments(self, work: Work, rows: int) -> list[Segment]:
        """`rows` of each sequence, every one with its own adapter."""
        first = len(MIXED) if work.ranks is RANK8 else 0
        slots = [first + index % len(work.ranks) for index in range(work.num_spans)] if work.ranks else []
        return [Segment(i * rows, (i + 1) * rows, slot, 1.0) for i, slot in enumerate(slots)]


class Stopwatch:
    """Kernels that add up nanoseconds by kind of operation, under the names of the native library's operations."""

    def __init__(self, kernels: Kernels) -> None:
        self.profile = Counter({kind.__name__: 0 for kind in OPS})
        self.kernels = replace(
            kernels,
            make_linear=lambda weight, bias: TimedLinear(kernels.make_linear(weight, bias), self),
            add_rms_norm=self.timed("Norm", kernels.add_rms_norm),
            place_heads=self.timed("PlaceHeads", kernels.place_heads),
            prepare_attention=lambda *given: self.timed("Attention", kernels.prepare_attention(*given)),
            gated=self.timed("Gated", kernels.gated),
            prepare_lora=lambda *given: self.timed("Lora", kernels.prepare_lora(*given)),
        )

    def timed(self, kind: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def timed_run(*given: Any) -> Any:
            began = time.perf_counter_ns()
            try:
                return run(*given)
            finally:
                self.profile[kind] += time.perf_counter_ns() - began

        return timed_run


class TimedLinear:
    def __init__(self, linear: Linear, stopwatch: Stopwatch) -> None:
        self.bias = linear.bias
        self._run = stopwatch.timed("Linear", linear)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self._run(x)
        return y


def random_modules(spec: ModelSpec, rank: int, seed: int) -> dict[str, ModuleWeights]:
    torch.manual_seed(seed)
    modules = {}
    for layer in range(spec.num_layers):
        for name, (inputs, outputs) in linear_sizes(spec).items():
            part = "mlp" if name in ("gate_proj", "up_proj", "down_proj") else "self_attn"
            factors = ModuleWeights(torch.randn(rank, inputs) * 0.02, torch.randn(outputs, rank) * 0.02, 1.0)
            modules[f"model.layers.{layer}.{part}.{name}"] = factors
    return modules


def works(contexts: int) -> list[Work]:
    decodes = [Work(f"decode, {n} sequences", n, 1, contexts) for n in (1, 4, 16, 32)]
    return [
        *decodes,
        Work("decode, 16 sequences, 16 adapters of rank 8", 16, 1, contexts, RANK8),
        Work("decode, 16 sequences, 16 adapters of ranks 8 to 64", 16, 1, contexts, MIXED),
        Work("prefill, 128 tokens", 1, 128, 128),
        Work("prefill, 128 tokens behind 1,920", 1, 128, 2048),
        Work("prefill, 128 tokens, rank 64", 1, 128, 128, MIXED[3:]),
    ]


def measure(sides: dict[str, Side], todo: Sequence[Work], rounds: int, bar: Progress) -> dict[tuple[str, str], float]:
    """Milliseconds of each step by work and side; the first two runs of each are not counted."""
    task = bar.add_task("Steps", total=len(todo) * (rounds + 2))
    times: dict[tuple[str, str], list[float]] = {}
    for work in todo:
        for _ in range(rounds + 2):
            for name, side in sides.items():
                times.setdefault((work.name, name), []).append(seconds(partial(side.step, work)) * 1e3)
            bar.advance(task)
    return {key: statistics.median(values[2:]) for key, values in times.items()}


def seconds(run: Callable[[], object]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def parts(side: Side, work: Work, profile: Counter[str], rounds: int) -> dict[str, float]:
    """Milliseconds of a step by kind of operation, and of what lies around them.

    profile: to which the side's operations add their nanoseconds.
    """
    for _ in range(2):
        side.step(work)
    profile.clear()
    found = {"tables": 0.0, "forward": 0.0, "head": 0.0}
    by_kind: Counter[str] = Counter()
    for _ in range(rounds):
        began = time.perf_counter()
        batch = side.batch(work)
        tables = time.perf_counter()
        hidden = side.forward(batch)
        forward = time.perf_counter()
        by_kind.update(profile)
        side.logits(work, hidden)
        found["head"] += time.perf_counter() - forward
        found["forward"] += forward - tables
        found["tables"] += tables - began
        profile.clear()
    kinds = {kind.__name__: by_kind[kind.__name__] / 1e9 for kind in OPS}
    kinds["between them"] = found.pop("forward") - sum(kinds.values())
    return {name: value * 1e3 / rounds for name, value in (kinds | found).items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a Hugging Face folder; `prepare` makes one")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--context", type=int, default=160, help="tokens of a sequence that decodes")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--native-only", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    native = native_for(arguments.threads)
    if native is None:
        raise SystemExit("the native library was not built")

    todo = works(arguments.context)
    num_blocks = max(work.num_spans * -(-work.context // BLOCK) for work in todo)
    profiles: dict[str, Counter[str]] = {}
    sides: dict[str, Side] = {}
    if not arguments.native_only:
        stopwatch = Stopwatch(REFERENCE)
        dtype = choose_dtype(Dtype.AUTO, REFERENCE)
        sides["torch"] = Side(arguments.model, stopwatch.kernels, dtype, num_blocks, 128)
        profiles["torch"] = stopwatch.profile
    sides["native"] = Side(arguments.model, native.kernels, choose_dtype(Dtype.AUTO, native.kernels), num_blocks, 128)
    limits = measure_limits()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        times = measure(sides, todo, arguments.rounds, bar)
    decoder = sides["native"].decoder
    assert isinstance(decoder, RecordedDecoder)
    profiles["native"] = decoder.profile = Counter()

    console = Console(width=140)
    numbers = ", ".join(f"{name} in {str(side.dtype).removeprefix('torch.')}" for name, side in sides.items())
    console.print(f"{native.library.isa_name}, {arguments.threads} threads; {numbers}; {limits}")
    table = Table("step", *(f"{name}, ms" for name in sides), "torch : native", "limit, ms", "native, tokens/s")
    for work in todo:
        of_sides = [times[work.name, name] for name in sides]
        side = sides["native"]
        limit = limits.seconds(work.num_bytes(side.spec, side.dtype), work.num_flops(side.spec)) * 1e3
        table.add_row(
            work.name,
            *(f"{value:.1f}" for value in of_sides),
            f"{of_sides[0] / of_sides[-1]:.1f}" if len(of_sides) > 1 else "",
            f"{limit:.1f} ({100 * limit / of_sides[-1]:.0f} %)",
            f"{work.num_rows / of_sides[-1] * 1e3:.0f}",
        )
    console.print(table)
    chosen = [todo[0], todo[2], todo[5], todo[6], todo[7]]
    for name, side in sides.items():
        of_work = {work.name: parts(side, work, profiles[name], arguments.rounds) for work in chosen}
        table = Table(f"{name}, ms", *of_work[todo[0].name])
        for work_name, found in of_work.items():
            table.add_row(work_name, *(f"{value:.2f}" for value in found.values()))
        console.print(table)


if __name__ == "__main__":
    main()
