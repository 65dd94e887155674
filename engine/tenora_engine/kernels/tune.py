"""Finds the fastest launch configurations for a model's shapes. `tenora_engine.tune` is its command.

A case is a row of the launch table that is to be found: work that launches by it, and the launches to try. Of these the
fastest becomes the row for this GPU. Later cases run on what the earlier ones found.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import torch
from triton.errors import TritonError

from tenora_engine.kernels.attention import AttentionBatch, Span
from tenora_engine.kernels.attention_launch import attention_class, long_height, short_height
from tenora_engine.kernels.attention_step import PagedAttention
from tenora_engine.kernels.kv import allocate_kv
from tenora_engine.kernels.launch_table import Row, find, trying
from tenora_engine.kernels.lora import LoraPair, LoraShape, Segment
from tenora_engine.kernels.lora_apply import PreparedLora
from tenora_engine.kernels.lora_launch import BGMV_RANK, DECODE_HEIGHT, PREFILL_HEIGHT, RANK_BLOCK
from tenora_engine.kernels.lora_slots import TableSlots
from tenora_engine.kernels.race import race
from tenora_engine.kernels.rowwise import gated
from tenora_engine.model.spec import ModelSpec

Launch: TypeAlias = Mapping[str, int]
# Of calls of a function, on the device: microseconds each.
Timer: TypeAlias = Callable[[Callable[[], object]], float]

_ALWAYS: Final = {"fused_bytes": 1 << 62}
_NEVER: Final = {"fused_bytes": 0}


@dataclass(frozen=True, slots=True)
class Sizes:
    """Of the work that is timed."""

    decode_rows: int = 64
    prefill_rows: int = 2048
    num_adapters: int = 8  # with equal parts of the rows
    context: int = 4096  # of each sequence that decodes
    block_size: int = 16  # of the cache


@dataclass(frozen=True, slots=True)
class Case:
    op: str
    dtype: torch.dtype
    shape: Mapping[str, int]
    candidates: Sequence[Launch]
    run: Callable[[], object]
    lora: Launch | None = None  # which of the two ways LoRA takes meanwhile

    def row(self, target: str, launch: Launch) -> Row:
        return Row(self.op, target, _name(self.dtype), self.shape, launch)


def tune(cases: Iterable[Case], target: str, timer: Timer, tell: Callable[[str], None]) -> list[Row]:
    """The fastest launch of each case, with its time. What does not compile or fit on this GPU is passed over; the
    launch that was in use until now is always tried, and its failure raised."""
    found = []
    with ExitStack() as settled:
        for case in cases:
            present = find(case.op, target, case.dtype, **case.shape)
            times = [(_time(case, target, present, timer), present)]
            for launch in case.candidates:
                if launch != present:
                    try:
                        times.append((_time(case, target, launch, timer), launch))
                    except (TritonError, RuntimeError):
                        continue
            best, launch = min(times, key=lambda timed: timed[0])
            row = case.row(target, launch)
            settled.enter_context(trying(row))
            found.append(replace(row, microseconds=round(best, 2)))
            shape = " ".join(f"{name} {size}" for name, size in case.shape.items())
            tell(f"{case.op:7} {_name(case.dtype):9} {shape:32} {times[0][0]:10.1f} -> {best:10.1f} us  {dict(launch)}")
    return found


def _time(case: Case, target: str, launch: Launch, timer: Timer) -> float:
    with ExitStack() as rows:
        if case.lora is not None:
            rows.enter_context(trying(Row("lora", target, _name(case.dtype), {}, case.lora)))
        rows.enter_context(trying(case.row(target, launch)))
        return timer(case.run)


def cases(spec: ModelSpec, dtype: torch.dtype, device: torch.device, sizes: Sizes) -> Iterator[Case]:
    """All rows that a model of this shape looks up, one after the other: their memory is not there all at once."""
    yield from _attention(spec, dtype, device, sizes)
    yield from _lora(spec, dtype, device, sizes)
    gate_up = torch.randn(sizes.prefill_rows, 2 * spec.intermediate_size, device=device).to(dtype)
    blocks = _product(block=(512, 1024, 2048, 4096), num_warps=(2, 4, 8))
    yield Case("gated", dtype, {}, blocks, lambda: gated(gate_up, spec.activation))
    weights = torch.rand(sizes.decode_rows, spec.vocab_size, device=device)
    keys = torch.zeros(sizes.decode_rows, 4, dtype=torch.int64, device=device)
    yield Case("race", torch.float32, {}, blocks, lambda: race(weights, keys))


def _attention(spec: ModelSpec, dtype: torch.dtype, device: torch.device, sizes: Sizes) -> Iterator[Case]:
    """Decoding, and a chunk over as many cached tokens; over plain and quantised caches."""
    group = spec.num_heads // spec.num_kv_heads
    heights = {short_height(group): (sizes.decode_rows, 1, sizes.context)}
    heights[long_height(group, dtype)] = (1, sizes.prefill_rows, 2 * sizes.prefill_rows)
    launches = _product(width=(16, 32, 64, 128), num_warps=(4, 8), num_stages=(2, 3, 4))
    for kv_dtype in (dtype, _quantised(device)):
        for height, (num_spans, length, context) in heights.items():
            num_blocks = -(-context // sizes.block_size)
            spans = [
                Span(at * length, (at + 1) * length, context, range(1 + at * num_blocks, 1 + (at + 1) * num_blocks))
                for at in range(num_spans)
            ]
            (cache,) = allocate_kv(
                1, num_spans * num_blocks, sizes.block_size, spec.num_kv_heads, spec.head_dim, kv_dtype, device
            )
            q = torch.randn(num_spans * length, spec.num_heads, spec.head_dim, device=device).to(dtype)
            attention = PagedAttention(AttentionBatch(spans, sizes.block_size), device, dtype)
            shape = attention_class(height, spec.head_dim, dtype, kv_dtype)

            def run(attention: PagedAttention = attention, q: torch.Tensor = q, cache: object = cache) -> object:
                return attention(q, cache, spec.attention_scale, None)  # type: ignore[arg-type]

            yield Case("attend", dtype, shape, launches, run)


def _lora(spec: ModelSpec, dtype: torch.dtype, device: torch.device, sizes: Sizes) -> Iterator[Case]:
    """Each block of ranks, on layers of one slice: there the rank of a step and that of a slice are one."""
    layers = [
        LoraShape(spec.hidden_size, (spec.q_size + 2 * spec.kv_size,)),
        LoraShape(spec.q_size, (spec.hidden_size,)),
        LoraShape(spec.hidden_size, (2 * spec.intermediate_size,)),
        LoraShape(spec.intermediate_size, (spec.hidden_size,)),
    ]
    decoding: list[Callable[[], None]] = []
    for rank in (16, 32, 64, 128):
        for height, rows in ((DECODE_HEIGHT, sizes.decode_rows), (PREFILL_HEIGHT, sizes.prefill_rows)):
            run = _lora_run(layers, rank, rows, sizes.num_adapters, dtype, device)
            if rank <= RANK_BLOCK[dtype]:
                shape = {"height": height, "rank": rank}
                few = height == DECODE_HEIGHT
                launches = _product(block=(32, 64, 128, 256), num_warps=(4, 8), num_stages=(2, 3, 4))
                splits = (512, 1024, 2048) if few else (0,)
                of_shrink = [{**launch, "split": split} for launch in launches for split in splits]
                yield Case("shrink", dtype, shape, of_shrink, run, _NEVER)
                yield Case("expand", dtype, shape, launches, run, _NEVER)
            if height == DECODE_HEIGHT and rank <= BGMV_RANK:
                launches = _product(block=(32, 64, 128, 256), num_warps=(4, 8), num_stages=(2, 3, 4))
                yield Case("bgmv", dtype, {"rank": rank}, launches, run, _ALWAYS)
                decoding.append(run)

    def all_ranks() -> None:
        for run in decoding:
            run()

    borders = [_NEVER, *({"fused_bytes": 1 << power} for power in range(14, 23)), _ALWAYS]
    yield Case("lora", dtype, {}, borders, all_ranks)


def _lora_run(
    layers: Sequence[LoraShape], rank: int, num_rows: int, num_adapters: int, dtype: torch.dtype, device: torch.device
) -> Callable[[], None]:
    bounds = [num_rows * slot // num_adapters for slot in range(num_adapters + 1)]
    segments = [Segment(bounds[at], bounds[at + 1], at, 1.0) for at in range(num_adapters)]
    add_lora = PreparedLora(segments, device)
    work = []
    for shape in layers:
        slots = TableSlots(shape, num_adapters, dtype, device)
        for slot in range(num_adapters):
            a, b = torch.randn(shape.in_features, rank), torch.randn(rank, shape.out_features)
            slots.put(slot, LoraPair(a.to(dtype), b.to(dtype), (rank,)))
        x = torch.randn(num_rows, shape.in_features, device=device).to(dtype)
        work.append((torch.zeros(num_rows, shape.out_features, dtype=dtype, device=device), x, slots))

    def run() -> None:
        for y, x, slots in work:
            add_lora(y, x, slots)

    return run


def _quantised(device: torch.device) -> torch.dtype:
    """The format of one byte that this GPU has; the launch table knows them by their size."""
    has_fp8 = device.type == "cuda" and not torch.version.hip and torch.cuda.get_device_capability(device) >= (8, 9)
    return torch.float8_e4m3fn if has_fp8 else torch.int8


def _product(**choices: Sequence[int]) -> list[Launch]:
    return [dict(zip(choices, chosen, strict=True)) for chosen in itertools.product(*choices.values())]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def on_device(run: Callable[[], object]) -> float:
    """Triton's own: many calls in one CUDA graph, so that launching costs nothing."""
    from triton.testing import do_bench_cudagraph

    return 1000 * float(do_bench_cudagraph(run, return_mode="median"))
