"""How fast each kernel is, as a share of the device's bandwidth: the bytes that it must move, over its time.

Adapters come cold, as in a model of many layers: as many are timed together as exceed the device's cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import roofline
import torch
from torch import Tensor

from gpu.clock import cache_bytes, seconds
from tenora_engine.kernels.attention import AttentionBatch, Span
from tenora_engine.kernels.kv import LARGEST, allocate_kv
from tenora_engine.kernels.lora import LoraPair, LoraShape, Segment
from tenora_engine.kernels.lora_slots import TableSlots
from tenora_engine.kernels.on_triton import TRITON
from tenora_engine.kernels.race import race
from tenora_engine.model.spec import Activation


@dataclass(frozen=True)
class Timing:
    kernel: str
    work: str
    microseconds: float
    gigabytes_per_s: float  # of the bytes that must be moved
    share: float  # of the copy bandwidth
    teraflops: float | None = None  # of the operations that must be made


@dataclass(frozen=True)
class Shape:
    """Of a model's layers, and how much work is timed."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    bgmv: Sequence[tuple[int, int]]  # rows, adapters
    sgmv_rows: Sequence[int]
    contexts: Sequence[int]
    attention_tokens: int  # of all sequences together
    rows: Sequence[int]  # of the kernels by row

    @property
    def layers(self) -> list[LoraShape]:
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return [
            LoraShape(self.hidden, (q, kv, kv)),
            LoraShape(q, (self.hidden,)),
            LoraShape(self.hidden, (self.inner, self.inner)),
            LoraShape(self.inner, (self.hidden,)),
        ]


LLAMA_8B = Shape(
    hidden=4096,
    inner=14336,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocab=128256,
    bgmv=[(rows, n) for rows in (1, 4, 16, 64, 128, 256) for n in (1, 4, 16, 64) if n <= rows],
    sgmv_rows=(512, 1024, 2048, 4096, 8192, 16384),
    contexts=(1024, 4096, 16384, 32768, 65536),
    attention_tokens=1 << 19,
    rows=(64, 4096),
)
TINY = Shape(
    hidden=32,
    inner=48,
    heads=2,
    kv_heads=1,
    head_dim=16,
    vocab=60,
    bgmv=[(2, 2)],
    sgmv_rows=(8,),
    contexts=(20,),
    attention_tokens=40,
    rows=(2,),
)


class Clock:
    def __init__(self, device: torch.device, dtype: torch.dtype, bandwidth: float, tell: Callable[[str], None]) -> None:
        self.device, self.dtype = device, dtype
        self._bandwidth, self._tell = bandwidth, tell

    def time(self, kernel: str, work: str, least: roofline.Least, run: Callable[[], object], times: int = 1) -> Timing:
        """`run` does it `times` times."""
        took = seconds(run, self.device) / times
        moved = least.moved / took
        flops = least.operations / took / 1e12 if least.operations else None
        timing = Timing(kernel, work, took * 1e6, moved / 1e9, moved / self._bandwidth, flops)
        flops_text = "" if flops is None else f"{flops:9.2f} TFLOP/s"
        self._tell(f"{kernel:16} {work:36} {timing.microseconds:11.1f} us {timing.share:7.1%}{flops_text}")
        return timing


def run_timings(clock: Clock, shape: Shape, kv_dtypes: Sequence[torch.dtype]) -> Iterator[Timing]:
    for rows, num_adapters in shape.bgmv:
        yield _lora(clock, "bgmv", shape, rows, [16] * num_adapters)
    for rows in shape.sgmv_rows:
        for ranks in ([16] * 8, [8, 16, 32, 64] * 2):
            yield _lora(clock, "sgmv", shape, rows, ranks)
    for context in shape.contexts:
        for kv_dtype in (clock.dtype, *kv_dtypes):
            yield _attention(clock, shape, context, kv_dtype)
    for rows in shape.rows:
        yield from _by_row(clock, shape, rows, kv_dtypes)


def _lora(clock: Clock, kernel: str, shape: Shape, rows: int, ranks: Sequence[int]) -> Timing:
    """The four adapted layers of a decoder layer. The launcher chooses the kernels; they are named in the work."""
    num = len(ranks)
    bounds = [rows * slot // num for slot in range(num + 1)]
    segments = [Segment(bounds[slot], bounds[slot + 1], slot, 1.0) for slot in range(num)]
    works = [
        roofline.LoraWork(segments, layer, [(r,) * len(layer.slices) for r in ranks], clock.dtype)
        for layer in shape.layers
    ]
    least = roofline.Least(sum(w.least().operations for w in works), sum(w.least().moved for w in works))
    copies = max(1, min(32, 3 * cache_bytes(clock.device) // least.moved))
    add_lora = TRITON.prepare_lora(segments, clock.device)

    def random(*size: int) -> Tensor:
        return torch.randn(*size, dtype=clock.dtype, device=clock.device)

    layers = []
    for _ in range(copies):
        for layer in shape.layers:
            slots = TableSlots(layer, num, clock.dtype, clock.device)
            for slot, rank in enumerate(ranks):
                blocks = [random(rank, size) for size in layer.slices]
                own = (rank,) * len(layer.slices)
                slots.put(slot, LoraPair(random(layer.in_features, sum(own)), torch.block_diag(*blocks), own))
            layers.append((random(rows, layer.out_features), random(rows, layer.in_features), slots))

    def run() -> None:
        for y, x, slots in layers:
            add_lora(y, x, slots)

    chosen = sorted({name for work in works for name in work.launches()})
    spread = f"rank {ranks[0]}" if len(set(ranks)) == 1 else f"ranks {min(ranks)} to {max(ranks)}"
    name = f"{rows} rows, {num} adapters, {spread}"
    return clock.time(f"{kernel}: {'+'.join(chosen)}"[:30], name, least, run, copies)


def _attention(clock: Clock, shape: Shape, context: int, kv_dtype: torch.dtype) -> Timing:
    num_spans = max(1, min(256, shape.attention_tokens // context))
    num_blocks = -(-context // 16)
    order = torch.randperm(num_spans * num_blocks).add(1).view(num_spans, num_blocks).tolist()
    batch = AttentionBatch([Span(row, row + 1, context, blocks) for row, blocks in enumerate(order)], 16)
    (cache,) = allocate_kv(1, num_spans * num_blocks, 16, shape.kv_heads, shape.head_dim, kv_dtype, clock.device)
    for pages in cache.pages:
        pages.view(torch.uint8).random_(0, 64)  # finite in every format
    q = torch.randn(num_spans, shape.heads, shape.head_dim, dtype=clock.dtype, device=clock.device)
    attend = TRITON.prepare_attention(batch, clock.device, clock.dtype)
    work = roofline.AttentionWork(batch, kv_dtype, clock.dtype, shape.heads, shape.kv_heads, shape.head_dim)
    name = str(kv_dtype).removeprefix("torch.")
    return clock.time(
        "decode attention",
        f"{num_spans} x {context} tokens, {name}",
        work.least(),
        lambda: attend(q, cache, shape.head_dim**-0.5, None),
    )


def _by_row(clock: Clock, shape: Shape, rows: int, kv_dtypes: Sequence[torch.dtype]) -> Iterator[Timing]:
    def random(*size: int) -> Tensor:
        return torch.randn(*size, dtype=clock.dtype, device=clock.device)

    work = f"{rows} rows"
    x, residual, weight = random(rows, shape.hidden), random(rows, shape.hidden), torch.ones(shape.hidden)
    weight = weight.to(clock.device)
    least, _ = roofline.norm(rows, shape.hidden, clock.dtype)
    yield clock.time("add_rms_norm", work, least, lambda: TRITON.add_rms_norm(x, residual, weight, 1e-5))
    gate_up = random(rows, 2 * shape.inner)
    least, _ = roofline.gated(rows, shape.inner, clock.dtype)
    yield clock.time("gated", work, least, lambda: TRITON.gated(gate_up, Activation.SILU))
    heads = random(rows, shape.heads + 2 * shape.kv_heads, shape.head_dim)
    cos_sin = torch.ones(rows, shape.head_dim, device=clock.device)
    places = torch.arange(16, 16 + rows, device=clock.device)
    for kv_dtype in (clock.dtype, *kv_dtypes):
        assert kv_dtype is clock.dtype or kv_dtype in LARGEST
        (cache,) = allocate_kv(1, -(-rows // 16), 16, shape.kv_heads, shape.head_dim, kv_dtype, clock.device)
        least, _ = roofline.place_heads(rows, kv_dtype, clock.dtype, shape.heads, shape.kv_heads, shape.head_dim)
        name = f"{work}, {str(kv_dtype).removeprefix('torch.')}"
        yield clock.time(
            "place_heads",
            name,
            least,
            partial(TRITON.place_heads, heads, cos_sin, None, cache, places, shape.heads),
        )
    few = min(rows, 64)
    weights = torch.rand(few, shape.vocab, device=clock.device)
    keys = torch.zeros(few, 4, dtype=torch.int64, device=clock.device)
    least, _ = roofline.race(few, shape.vocab)
    yield clock.time("race", f"{few} rows", least, lambda: race(weights, keys))
