"""Where a step's time goes on this CPU: the decoder on torch alone and on the native library, in turns.

    python bench/engine_step.py --model FOLDER

A step is what the engine's runner computes: the decoder's forward pass and the logits of the rows that are drawn. No
scheduler, no sampling. Figures are medians of interleaved runs, and of these the ratios are what can be compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as the engine's process has it

import torch
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tenora_adapters.base import weight_files
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
from tenora_engine.model.spec import ModelSpec
from tenora_engine.model.weights import load_weights

CPU = torch.device("cpu")
BLOCK = 16
MIXED, RANK8 = (8, 16, 32, 64) * 4, (8,) * 16
MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True)
class Work:
    """`num_spans` sequences whose next `length` tokens follow `context - length` others."""

    name: str
    num_spans: int
    length: int
    context: int
    ranks: Sequence[int] = ()  # of the adapters, one for each sequence in turn

    @property
    def num_rows(self) -> int:
        return self.num_spans * self.length


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
            self.slots.put(slot, arrange(random_modules(self.spec, rank, slot), self.spec, dtype))
        self.decoder = record(
            Decoder(self.spec, weights, kernels), self.cache, self.slots.adapters, num_rows, torch.get_num_threads()
        )

    @torch.inference_mode()
    def step(self, work: Work) -> torch.Tensor:
        spans, places = [], []
        blocks_each = -(-work.context // BLOCK)
        for index in range(work.num_spans):
            blocks = [1 + index * blocks_each + i for i in range(blocks_each)]
            spans.append(Span(index * work.length, (index + 1) * work.length, work.context, blocks))
            positions = range(work.context - work.length, work.context)
            places += [blocks[p // BLOCK] * BLOCK + p % BLOCK for p in positions]
        first = len(MIXED) if work.ranks is RANK8 else 0
        slot_of = [first + index % len(work.ranks) for index in range(work.num_spans)] if work.ranks else []
        kernels = self.decoder.kernels
        batch = Batch(
            token_ids=torch.arange(work.num_rows) % 1000 + 1000,
            positions=torch.arange(work.context - work.length, work.context).repeat(work.num_spans),
            places=torch.tensor(places),
            attention=kernels.prepare_attention(AttentionBatch(spans, BLOCK), CPU, self.dtype),
            add_lora=kernels.prepare_lora(
                [Segment(i * work.length, (i + 1) * work.length, slot, 1.0) for i, slot in enumerate(slot_of)], CPU
            ),
        )
        hidden = self.decoder.forward(batch, self.cache, self.slots.adapters)
        last = torch.arange(work.length - 1, work.num_rows, work.length)
        of_last = kernels.prepare_lora([Segment(i, i + 1, slot, 1.0) for i, slot in enumerate(slot_of)], CPU)
        return self.decoder.logits(hidden.index_select(0, last), of_last, self.slots.adapters)


def random_modules(spec: ModelSpec, rank: int, seed: int) -> dict[str, ModuleWeights]:
    torch.manual_seed(seed)
    hidden, inner = spec.hidden_size, spec.intermediate_size
    sizes = {
        "q_proj": (hidden, spec.q_size),
        "k_proj": (hidden, spec.kv_size),
        "v_proj": (hidden, spec.kv_size),
        "o_proj": (spec.q_size, hidden),
        "gate_proj": (hidden, inner),
        "up_proj": (hidden, inner),
        "down_proj": (inner, hidden),
    }
    modules = {}
    for layer in range(spec.num_layers):
        for name in MODULES:
            inputs, outputs = sizes[name]
            path = f"model.layers.{layer}.{'mlp' if name in MODULES[4:] else 'self_attn'}.{name}"
            modules[path] = ModuleWeights(torch.randn(rank, inputs) * 0.02, torch.randn(outputs, rank) * 0.02, 1.0)
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


def parts(side: Side, work: Work, rounds: int) -> dict[str, float]:
    """Milliseconds of a step by kind of operation, and of what lies around them: embedding, angles, logits, Python."""
    decoder = side.decoder
    assert isinstance(decoder, RecordedDecoder)
    decoder.profile = Counter({kind.__name__: 0 for kind in OPS})
    whole = sum(seconds(lambda: side.step(work)) for _ in range(rounds)) * 1e3
    found = {name: nanoseconds / 1e6 for name, nanoseconds in decoder.profile.items()}
    decoder.profile = None
    found["around"] = whole - sum(found.values())
    return {name: value / rounds for name, value in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
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
    implementations = (
        {"native": native.kernels} if arguments.native_only else {"torch": REFERENCE, "native": native.kernels}
    )
    sides = {
        name: Side(arguments.model, kernels, torch.bfloat16, num_blocks, 128)
        for name, kernels in implementations.items()
    }
    console = Console(width=140)
    with Progress(console=Console(stderr=True), transient=True) as bar:
        times = measure(sides, todo, arguments.rounds, bar)
    table = Table("step", *(f"{name}, ms" for name in sides), "torch : native", "native, tokens/s")
    for work in todo:
        of_sides = [times[work.name, name] for name in sides]
        table.add_row(
            work.name,
            *(f"{value:.1f}" for value in of_sides),
            f"{of_sides[0] / of_sides[-1]:.1f}" if len(of_sides) > 1 else "",
            f"{work.num_rows / of_sides[-1] * 1e3:.0f}",
        )
    console.print(f"{native.library.isa_name}, {arguments.threads} threads, bf16")
    console.print(table)
    chosen = [todo[0], todo[2], todo[5], todo[6], todo[7]]
    of_work = {work.name: parts(sides["native"], work, arguments.rounds) for work in chosen}
    table = Table("native, ms", *of_work[todo[0].name])
    for name, found in of_work.items():
        table.add_row(name, *(f"{value:.2f}" for value in found.values()))
    console.print(table)


if __name__ == "__main__":
    main()
