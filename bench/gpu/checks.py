"""Every kernel on the device against the same operation in float64 on the CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tenora_engine.kernels import REFERENCE
from tenora_engine.kernels.attention import AttentionBatch, Span
from tenora_engine.kernels.heads import HeadNorms
from tenora_engine.kernels.kv import LARGEST, LayerKv, allocate_kv, dequantise, store_kv
from tenora_engine.kernels.lora import LoraPair, LoraShape, LoraSlots, Segment
from tenora_engine.kernels.on_triton import TRITON
from tenora_engine.kernels.philox import exponential_of_vocabulary
from tenora_engine.kernels.race import race
from tenora_engine.model.spec import Activation

CPU, FP64 = torch.device("cpu"), torch.float64
HQ, HKV, BLOCK = 8, 2, 16
RANKS = ((1, 1, 1), (8, 8, 8), (0, 0, 0), (0, 33, 0), (64, 16, 128))  # by slot, of q, k and v
# Of the largest magnitude of the result: some units in the last place, accumulated.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
# Of the largest magnitude of a vector: half of the format's widest step.
HALF_STEP = {torch.int8: 0.5 / 127, torch.float8_e4m3fn: 16 / 448}


@dataclass(frozen=True)
class Check:
    operation: str
    dtype: str
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance


@dataclass(frozen=True)
class Results:
    got: Tensor
    want: Tensor

    @property
    def error(self) -> float:
        got = self.got.to(CPU, FP64)
        if not got.isfinite().all():
            return float("inf")
        return float((got - self.want).abs().max() / self.want.abs().max())


class Inputs:
    """Random numbers that the tested dtype holds exactly: both sides start from the same."""

    def __init__(self, device: torch.device, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        self.hidden, self.head_dim, self.many, self.context = (
            (512, 64, 700, 3000) if device.type == "cuda" else (96, 16, 150, 300)
        )
        self._generator = torch.Generator().manual_seed(7)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator).to(self.dtype).double()

    def integers(self, end: int, *shape: int) -> Tensor:
        return torch.randint(end, shape, generator=self._generator)

    def put(self, values: Tensor) -> Tensor:
        """On the device, in the dtype under test."""
        return values.to(self.device, self.dtype)


def norm(inputs: Inputs) -> Results:
    size = inputs.hidden
    x, residual, weight = inputs.random(37, size), inputs.random(37, size), inputs.random(size)
    got = TRITON.add_rms_norm(inputs.put(x), inputs.put(residual), weight.float().to(inputs.device), 1e-5)
    want = REFERENCE.add_rms_norm(x, residual, weight, 1e-5)
    return Results(torch.cat([got.out, got.residual]), torch.cat([want.out, want.residual]))


def silu(inputs: Inputs) -> Results:
    return _gated(inputs, Activation.SILU)


def gelu(inputs: Inputs) -> Results:
    return _gated(inputs, Activation.GELU_TANH)


def _gated(inputs: Inputs, activation: Activation) -> Results:
    gate_up = inputs.random(37, 2 * inputs.hidden)
    return Results(TRITON.gated(inputs.put(gate_up), activation), REFERENCE.gated(gate_up, activation))


def heads(inputs: Inputs, normed: bool, kv_dtype: torch.dtype | None = None) -> Results:
    """Queries, keys and values; of a quantised cache, what is read from it, of each vector's largest magnitude."""
    dim = inputs.head_dim
    placed, angles, norms = inputs.random(37, HQ + 2 * HKV, dim), inputs.random(37, dim // 2), inputs.random(2, dim)
    places = torch.randperm(16 * BLOCK, generator=torch.Generator().manual_seed(1))[:37]
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=-1).float()
    (cache,) = allocate_kv(1, 16, BLOCK, HKV, dim, kv_dtype or inputs.dtype, inputs.device)
    (want,) = allocate_kv(1, 16, BLOCK, HKV, dim, FP64, CPU)
    on_device = inputs.put(placed)
    q, k = norms.float().to(inputs.device)
    head_norms = HeadNorms(q, k, 1e-5) if normed else None
    exact_norms = HeadNorms(norms[0], norms[1], 1e-5) if normed else None
    TRITON.place_heads(on_device, cos_sin.to(inputs.device), head_norms, cache, places.to(inputs.device), HQ)
    REFERENCE.place_heads(placed, cos_sin.double(), exact_norms, want, places, HQ)
    if kv_dtype is None:
        parts = [(on_device[:, :HQ], placed[:, :HQ]), (cache.keys, want.keys), (cache.values, want.values)]
        return Results(*(torch.cat([part[side].flatten().cpu() for part in parts]) for side in (0, 1)))
    got_kv, want_kv = _widened(cache), want
    rows = [(_rows(a, places), _rows(b, places)) for a, b in zip(got_kv.pages, want_kv.pages, strict=True)]
    got, wanted = torch.cat([a for a, _ in rows]), torch.cat([b for _, b in rows])
    largest = wanted.abs().amax(-1, keepdim=True)
    return Results(got / largest, wanted / largest)


def _rows(pages: Tensor, places: Tensor) -> Tensor:
    return pages.flatten(0, 1)[places]


def _widened(cache: LayerKv) -> LayerKv:
    """What is stored, in float64 on the CPU."""
    if cache.key_scales is None or cache.value_scales is None:
        return LayerKv(cache.keys.to(CPU, FP64), cache.values.to(CPU, FP64))
    pairs = ((cache.keys, cache.key_scales), (cache.values, cache.value_scales))
    return LayerKv(*(dequantise(stored.to(CPU), scales.to(CPU, FP64), FP64) for stored, scales in pairs))


def lora(inputs: Inputs, num_rows: int, affine: bool = False) -> Results:
    """On a q/k/v layer: ranks mixed, a slot without this layer, rows without an adapter, two adapters over one segment,
    one token each, one long segment. affine: DoRA's gain and offset on some."""
    each = [Segment(row, row + 1, row % len(RANKS), 1.0) for row in range(7, 19)]
    segments = [Segment(0, 6, 0, 0.5), *each, Segment(19, num_rows, 4, 2.0), Segment(19, num_rows, 1, -1.0)]
    q, kv = HQ * inputs.head_dim, HKV * inputs.head_dim
    shape = LoraShape(inputs.hidden, (q, kv, kv))
    x, y = inputs.random(num_rows, inputs.hidden), inputs.random(num_rows, shape.out_features)
    return _lora(inputs, shape, RANKS, segments, x, y, range(0, 5, 2) if affine else ())


def embedding(inputs: Inputs) -> Results:
    shape = LoraShape(301, (inputs.hidden,), is_embedding=True)
    segments = [Segment(0, 20, 0, 1.0), Segment(10, 30, 1, 0.5)]
    tokens, y = inputs.integers(301, 37), inputs.random(37, inputs.hidden)
    return _lora(inputs, shape, ((9,), (64,)), segments, tokens, y, ())


def _lora(
    inputs: Inputs,
    shape: LoraShape,
    ranks_by_slot: Sequence[tuple[int, ...]],
    segments: Sequence[Segment],
    x: Tensor,
    y: Tensor,
    affine: Sequence[int],
) -> Results:
    ours: LoraSlots = TRITON.make_lora_slots(shape, len(ranks_by_slot), inputs.dtype, inputs.device)
    plain: LoraSlots = REFERENCE.make_lora_slots(shape, len(ranks_by_slot), FP64, CPU)
    for slot, ranks in enumerate(ranks_by_slot):
        blocks = [inputs.random(rank, size) for rank, size in zip(ranks, shape.slices, strict=True)]
        a, b = inputs.random(shape.in_features, sum(ranks)), torch.block_diag(*blocks)
        extra = inputs.random(2, shape.out_features) if slot in affine else None
        if sum(ranks) or extra is not None:
            wide = None if extra is None else extra.float().to(inputs.device)
            ours.put(slot, LoraPair(inputs.put(a), inputs.put(b), ranks, wide))
            plain.put(slot, LoraPair(a, b, ranks, extra))
    got = inputs.put(y)
    on_device = x.to(inputs.device) if shape.is_embedding else inputs.put(x)
    TRITON.prepare_lora(segments, inputs.device)(got, on_device, ours)
    REFERENCE.prepare_lora(segments, CPU)(y, x, plain)
    return Results(got, y)


def attention(inputs: Inputs, kv_dtype: torch.dtype | None = None, window: int | None = None) -> Results:
    """Decodes, one of them in parts, and chunks, lengths around multiples of a block, read through block tables."""
    dim, lengths = inputs.head_dim, ((1, 17), (1, 33), (16, 16), (20, 50), (1, inputs.context))
    num_blocks = sum(-(-context // BLOCK) for _, context in lengths)
    free = torch.randperm(num_blocks, generator=torch.Generator().manual_seed(2)).add(1).tolist()
    (host,) = allocate_kv(1, num_blocks, BLOCK, HKV, dim, kv_dtype or inputs.dtype, CPU)
    spans, row = [], 0
    for length, context in lengths:
        blocks = [free.pop() for _ in range(-(-context // BLOCK))]
        places = torch.tensor([blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(context)])
        stored_as = torch.float32 if kv_dtype else inputs.dtype
        keys, values = inputs.random(2, context, HKV, dim).to(stored_as)
        store_kv(host, keys, values, places)
        spans.append(Span(row, row + length, context, blocks))
        row += length
    cache = LayerKv(*(pages.to(inputs.device) for pages in host.pages))
    q, batch = inputs.random(row, HQ, dim), AttentionBatch(spans, BLOCK)
    got = TRITON.prepare_attention(batch, inputs.device, inputs.dtype)(inputs.put(q), cache, dim**-0.5, window)
    want = REFERENCE.prepare_attention(batch, CPU, FP64)(q, _widened(host), dim**-0.5, window)
    return Results(got, want)


def sampling(inputs: Inputs) -> Results:
    """The same tokens win: of weights that let the noise decide."""
    weights = torch.rand(9, 5003, generator=torch.Generator().manual_seed(3))
    keys = inputs.integers(2**32, 9, 4)
    want = (weights / exponential_of_vocabulary(keys, 5003)).argmax(-1)
    return Results(race(weights.to(inputs.device), keys.to(inputs.device)), want.double())


def operations(kv_dtypes: Sequence[torch.dtype]) -> Iterator[tuple[str, Callable[[Inputs], Results], float | None]]:
    """Name, check, and its tolerance where it is not the dtype's."""
    yield "add_rms_norm", norm, None
    yield "gated, SiLU", silu, None
    yield "gated, GELU", gelu, None
    yield "place_heads", lambda inputs: heads(inputs, False), None
    yield "place_heads, QK-norm", lambda inputs: heads(inputs, True), None
    yield "lora, few rows", lambda inputs: lora(inputs, 37), None
    yield "lora, many rows", lambda inputs: lora(inputs, inputs.many), None
    yield "dora, few rows", lambda inputs: lora(inputs, 37, affine=True), None
    yield "dora, many rows", lambda inputs: lora(inputs, inputs.many, affine=True), None
    yield "lora, embedding", embedding, None
    yield "attention", attention, None
    yield "attention, window", lambda inputs: attention(inputs, None, 19), None
    for kv_dtype in kv_dtypes:
        assert kv_dtype in LARGEST
        name = str(kv_dtype).removeprefix("torch.")
        yield f"place_heads, {name}", partial(heads, normed=False, kv_dtype=kv_dtype), HALF_STEP[kv_dtype] * 1.01
        yield f"attention, {name}", partial(attention, kv_dtype=kv_dtype), None
    yield "race", sampling, 0.0


def run_checks(
    device: torch.device, dtypes: Sequence[torch.dtype], kv_dtypes: Sequence[torch.dtype], tell: Callable[[str], None]
) -> list[Check]:
    checks = []
    for dtype in dtypes:
        for name, operation, tolerance in operations(kv_dtypes):
            limit = TOLERANCE[dtype] if tolerance is None else tolerance
            check = Check(name, str(dtype).removeprefix("torch."), operation(Inputs(device, dtype)).error, limit)
            checks.append(check)
            tell(f"{'ok   ' if check.ok else 'WRONG'} {name:28} {check.dtype:9} error {check.error:.1e}")
    return checks
