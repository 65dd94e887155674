"""Each native operation against the reference in float64: odd shapes, unaligned rows, NaN where nobody should look."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tenora_engine.cpu.library import open_library
from tenora_engine.cpu.native import Native, native_for
from tenora_engine.kernels import REFERENCE, kernels_for
from tenora_engine.kernels.attention import AttentionBatch, Span
from tenora_engine.kernels.heads import HeadNorms
from tenora_engine.kernels.kv import LayerKv, allocate_kv
from tenora_engine.kernels.lora import LoraPair, LoraShape, Segment
from tenora_engine.model.spec import Activation

CPU = torch.device("cpu")
NAN = float("nan")
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def tolerance(dtype: torch.dtype) -> float:
    """Of the largest magnitude: some last places of fp32, or two roundings to bf16."""
    return 3e-6 if dtype is torch.float32 else 8e-3


def assert_near(got: Tensor, want: Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    assert got.shape == want.shape
    assert (got.double() - want).abs().max() <= tolerance(dtype) * want.abs().max()


def odd_rows(values: Tensor) -> Tensor:
    """The same values, each row with NaN behind it, and none at an address of more than an element's alignment."""
    around = torch.full((values.shape[0], values[0].numel() + 3), NAN, dtype=values.dtype)
    rows = around[:, 1:-2].copy_(values.reshape(values.shape[0], -1))
    return rows if values.dim() == 2 else rows.unflatten(1, values.shape[1:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 16, 30, 576, 1030])
@pytest.mark.parametrize("adds", [True, False])
def test_norm(native: Native, dtype: torch.dtype, size: int, adds: bool):
    """The residual is changed in place, and x is not."""
    x = odd_rows(torch.randn(5, size).to(dtype))
    residual = odd_rows(torch.randn(5, size).to(dtype)) if adds else None
    weight = torch.rand(size) + 0.5
    want = REFERENCE.add_rms_norm(x.double(), None if residual is None else residual.double(), weight.double(), 1e-5)
    kept = x.clone()
    got = native.kernels.add_rms_norm(x, residual, weight, 1e-5)
    assert_near(got.out, want.out, dtype)
    assert_near(got.residual, want.residual, dtype)
    assert got.residual is (x if residual is None else residual)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 30, 513, 1536])
@pytest.mark.parametrize("activation", Activation)
def test_gated(native: Native, dtype: torch.dtype, size: int, activation: Activation):
    """Gates far on both sides too, where e^x would overflow."""
    gate_up = odd_rows((4 * torch.randn(3, 2 * size)).to(dtype))
    gate_up[1, :size] *= 100
    assert_near(native.kernels.gated(gate_up, activation), REFERENCE.gated(gate_up.double(), activation), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("out_features", "in_features"), [(1, 1), (33, 7), (64, 96), (100, 577)])
@pytest.mark.parametrize("has_bias", [True, False])
def test_linear(native: Native, dtype: torch.dtype, out_features: int, in_features: int, has_bias: bool):
    weight = torch.randn(out_features, in_features).to(dtype)
    bias = torch.randn(out_features).to(dtype) if has_bias else None
    linear = native.kernels.make_linear(weight, bias)
    for num_rows in (1, 2, 5, 12, 13, 40):
        x = odd_rows(torch.randn(num_rows, in_features).to(dtype))
        want = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
        assert_near(linear(x), want, dtype)


def test_a_rows_result_is_its_own(native: Native):
    """Bit for bit the same alone, among others, and on another number of threads."""
    weight, x = torch.randn(70, 50).bfloat16(), torch.randn(40, 50).bfloat16()
    together = native.kernels.make_linear(weight, None)(x)
    alone = open_library(1, native.library.isa_name)
    assert alone is not None
    linear = Native(alone).kernels.make_linear(weight, None)
    for row in (0, 11, 12, 39):
        assert torch.equal(linear(x[row : row + 1])[0], together[row])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head_dim", [8, 24, 64, 80, 256])
@pytest.mark.parametrize(("has_norms", "rotates"), [*itertools.product([True, False], repeat=2)])
def test_place_heads(native: Native, dtype: torch.dtype, head_dim: int, has_norms: bool, rotates: bool):
    """Only the cells that are named are written, and values stay as they are."""
    num_heads, num_kv_heads, num_rows = 6, 2, 5
    heads = odd_rows(torch.randn(num_rows, num_heads + 2 * num_kv_heads, head_dim).to(dtype))
    angles = 10 * torch.randn(num_rows, head_dim // 2)
    cos_sin = torch.cat([angles.cos(), angles.sin()], dim=-1) if rotates else None
    norms = HeadNorms(torch.rand(head_dim) + 0.5, torch.rand(head_dim) + 0.5, 1e-6) if has_norms else None
    places = torch.tensor([17, 3, 30, 4, 9])
    (cache,) = allocate_kv(1, 7, 4, num_kv_heads, head_dim, dtype, CPU)
    cache.keys.fill_(NAN)
    cache.values.fill_(NAN)
    exact = LayerKv(cache.keys.double(), cache.values.double())
    exact_heads = heads.double()
    exact_norms = None if norms is None else HeadNorms(norms.q.double(), norms.k.double(), norms.eps)
    exact_angles = None if cos_sin is None else cos_sin.double()
    REFERENCE.place_heads(exact_heads, exact_angles, exact_norms, exact, places, num_heads)
    native.kernels.place_heads(heads, cos_sin, norms, cache, places, num_heads)
    assert_near(heads, exact_heads, dtype)
    for got, want in ((cache.keys, exact.keys), (cache.values, exact.values)):
        assert_near(got.flatten(0, 1)[places], want.flatten(0, 1)[places], dtype)
        assert torch.equal(got.isnan(), want.isnan())


class Sequences:
    """Sequences of random keys and values in pages of four tokens, of which some are new; NaN everywhere else."""

    BLOCK = 4

    def __init__(
        self, shapes: Sequence[tuple[int, int]], num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> None:
        """shapes: new tokens and all tokens of each."""
        num_blocks = sum(-(-context // self.BLOCK) for _, context in shapes)
        (self.cache,) = allocate_kv(1, num_blocks, self.BLOCK, num_kv_heads, head_dim, dtype, CPU)
        self.cache.keys.fill_(NAN)
        self.cache.values.fill_(NAN)
        self.keys = [torch.randn(context, num_kv_heads, head_dim).to(dtype) for _, context in shapes]
        self.values = [torch.randn(context, num_kv_heads, head_dim).to(dtype) for _, context in shapes]
        free = torch.randperm(num_blocks).add(1).tolist()
        self.spans: list[Span] = []
        for (length, context), keys, values in zip(shapes, self.keys, self.values, strict=True):
            blocks = [free.pop() for _ in range(-(-context // self.BLOCK))]
            places = torch.tensor([blocks[p // self.BLOCK] * self.BLOCK + p % self.BLOCK for p in range(context)])
            self.cache.keys.flatten(0, 1)[places] = keys
            self.cache.values.flatten(0, 1)[places] = values
            begin = self.spans[-1].end if self.spans else 0
            self.spans.append(Span(begin, begin + length, context, blocks))
        self.q = torch.randn(self.spans[-1].end, num_heads, head_dim).to(dtype)

    def want(self, scale: float, window: int | None) -> Tensor:
        """The formula, in float64."""
        out = torch.empty(self.q.shape, dtype=torch.float64)
        for span, keys, values in zip(self.spans, self.keys, self.values, strict=True):
            shared = self.q.shape[1] // keys.shape[1]
            keys, values = (t.double().repeat_interleave(shared, dim=1) for t in (keys, values))
            position = torch.arange(span.context - span.length, span.context)[:, None]
            seen = torch.arange(span.context) <= position
            if window is not None:
                seen &= torch.arange(span.context) > position - window
            scores = scale * torch.einsum("qhd,khd->hqk", self.q[span.begin : span.end].double(), keys)
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            out[span.begin : span.end] = torch.einsum("hqk,khd->qhd", weights, values)
        return out

    def attend(self, native: Native, scale: float, window: int | None) -> Tensor:
        attention = native.kernels.prepare_attention(AttentionBatch(self.spans, self.BLOCK), CPU, self.q.dtype)
        return attention(odd_rows(self.q), self.cache, scale, window)


# New tokens and all tokens: around multiples of a block and of a tile of 64 keys, one token and chunks.
SHAPES = [(1, 1), (1, 4), (1, 5), (3, 3), (5, 12), (1, 63), (1, 64), (1, 65), (70, 130), (2, 200), (64, 64), (17, 129)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(4, 4, 8), (6, 2, 64), (5, 1, 24), (16, 1, 80), (2, 1, 256), (9, 3, 128)],
)
@pytest.mark.parametrize("window", [None, 1, 5, 64, 100])
def test_attention(
    native: Native, dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int, window: int | None
):
    torch.manual_seed(0)
    sequences = Sequences(SHAPES, num_heads, num_kv_heads, head_dim, dtype)
    assert_near(sequences.attend(native, 0.3, window), sequences.want(0.3, window), dtype)


@pytest.mark.parametrize("window", [None, 50])
def test_attention_of_a_token_is_its_own(native: Native, window: int | None):
    """Bit for bit the same alone and as part of a chunk, whatever else is in the step."""
    sequences = Sequences([(1, 7), (90, 150), (3, 64)], 6, 2, 16, torch.bfloat16)
    together = sequences.attend(native, 0.25, window)
    chunk, q = sequences.spans[1], sequences.q
    for row in (0, 1, 47, 89):
        context = chunk.context - chunk.length + row + 1
        sequences.spans = [Span(0, 1, context, chunk.blocks)]
        sequences.q = q[chunk.begin + row : chunk.begin + row + 1]
        assert torch.equal(sequences.attend(native, 0.25, window)[0], together[chunk.begin + row])


def test_attention_over_scores_far_apart(native: Native):
    """Scores in the thousands: weights that vanish, and a largest one that comes late."""
    sequences = Sequences([(3, 140)], 2, 1, 8, torch.float32)
    sequences.q *= 300
    assert_near(sequences.attend(native, 1.0, None), sequences.want(1.0, None), torch.float32)


def test_attention_gives_on_what_is_not_a_number(native: Native):
    """A sequence with NaN in its past has NaN in its result, and no other sequence has."""
    sequences = Sequences([(1, 70), (1, 70)], 2, 1, 8, torch.float32)
    block = sequences.spans[1].blocks[3]
    sequences.cache.keys[block] = NAN
    got = sequences.attend(native, 1.0, None)
    assert got[0].isfinite().all()
    assert got[1].isnan().all()


SLICES = LoraShape(40, (90, 24, 100))
Ranks = Sequence[tuple[int, ...]]  # by slot, of each slice


def pair_of(shape: LoraShape, ranks: tuple[int, ...], dtype: torch.dtype, is_affine: bool) -> LoraPair | None:
    if not sum(ranks) and not is_affine:
        return None
    blocks = [torch.randn(rank, size) for rank, size in zip(ranks, shape.slices, strict=True)]
    affine = torch.randn(2, shape.out_features) if is_affine else None
    return LoraPair(
        torch.randn(shape.in_features, sum(ranks)).to(dtype), torch.block_diag(*blocks).to(dtype), ranks, affine
    )


def check_lora(
    native: Native,
    shape: LoraShape,
    ranks: Ranks,
    segments: Sequence[Segment],
    num_rows: int,
    dtype: torch.dtype,
    affine: Sequence[int] = (),
) -> None:
    """Right where an adapter is, the same bits where none is; x is NaN where nobody looks, and behind the rows of y."""
    torch.manual_seed(0)
    slots = native.kernels.make_lora_slots(shape, len(ranks), dtype, CPU)
    exact_slots = REFERENCE.make_lora_slots(shape, len(ranks), torch.float64, CPU)
    for slot, of_slices in enumerate(ranks):
        if pair := pair_of(shape, of_slices, dtype, slot in affine):
            slots.put(slot, pair)
            exact_affine = None if pair.affine is None else pair.affine.double()
            exact_slots.put(slot, LoraPair(pair.a.double(), pair.b.double(), pair.ranks, exact_affine))
    adapted = torch.zeros(num_rows, dtype=torch.bool)
    for segment in segments:
        adapted[segment.begin : segment.end] |= sum(ranks[segment.slot]) > 0 or segment.slot in affine
    if shape.is_embedding:
        x = torch.randint(shape.in_features, (num_rows,))
    else:
        x = odd_rows(torch.randn(num_rows, shape.in_features).to(dtype))
        x[~adapted] = NAN
    y = odd_rows(torch.randn(num_rows, shape.out_features).to(dtype))
    before, want = y.clone(), y.double()
    REFERENCE.prepare_lora(segments, CPU)(want, x.double() if x.is_floating_point() else x, exact_slots)
    native.kernels.prepare_lora(segments, CPU)(y, x, slots)
    assert_near(y, want, dtype)
    assert torch.equal(y[~adapted], before[~adapted])


@pytest.mark.parametrize("dtype", DTYPES)
def test_lora_of_mixed_ranks(native: Native, dtype: torch.dtype):
    """Ranks from 1 to 128 side by side, slices that are left alone, a slot without this layer, gaps, two adapters over
    one segment, one of many rows, more groups than threads."""
    ranks: Ranks = [(1, 0, 0), (8, 8, 8), (0, 0, 0), (0, 33, 7), (64, 16, 128), (0, 0, 1), (16, 16, 16)]
    each = [Segment(row, row + 1, row % len(ranks), 0.5 * row) for row in range(1, 20)]
    check_lora(
        native,
        SLICES,
        ranks,
        [*each, Segment(22, 51, 4, 2.0), Segment(22, 51, 1, -1.0), Segment(40, 55, 3, 1)],
        56,
        dtype,
    )
    check_lora(native, SLICES, ranks, [Segment(0, 1, 4, 1.0)], 1, dtype)
    check_lora(native, SLICES, ranks, [], 3, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [1, 2, 15, 16, 17, 128])
def test_lora_on_one_layer(native: Native, dtype: torch.dtype, rank: int):
    """Sizes that no vector divides."""
    check_lora(native, LoraShape(577, (131,)), [(rank,)], [Segment(0, 13, 0, 1.0)], 13, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_lora_with_gain_and_offset(native: Native, dtype: torch.dtype):
    """DoRA's form: the base's output on the right, also under a second adapter; and an offset without a product."""
    ranks: Ranks = [(4, 4, 4), (0, 0, 0), (8, 0, 3)]
    segments = [Segment(0, 3, 0, 0.5), Segment(0, 3, 2, 1.0), Segment(4, 5, 1, 2.0), Segment(5, 9, 2, 1.0)]
    check_lora(native, SLICES, ranks, segments, 10, dtype, affine=(0, 1))


def test_lora_on_the_embedding(native: Native):
    shape = LoraShape(50, (70,), is_embedding=True)
    check_lora(native, shape, [(5,), (17,)], [Segment(0, 2, 0, 1.0), Segment(3, 9, 1, 0.5)], 9, torch.float32)


def test_what_the_library_cannot_take_goes_to_the_reference():
    """float64 and a quantised cache: the seam is complete on every CPU."""
    kernels = kernels_for(CPU)
    x, weight = torch.randn(3, 6, dtype=torch.float64), torch.rand(6, dtype=torch.float64)
    want = REFERENCE.add_rms_norm(x.clone(), None, weight, 1e-5).out
    assert torch.equal(kernels.add_rms_norm(x.clone(), None, weight, 1e-5).out, want)
    heads = torch.randn(2, 4, 8)
    (cache,) = allocate_kv(1, 2, 4, 1, 8, torch.int8, CPU)
    kernels.place_heads(heads, None, None, cache, torch.tensor([4, 5]), 2)
    attention = kernels.prepare_attention(AttentionBatch([Span(0, 2, 2, [1])], 4), CPU, torch.float32)
    reference = REFERENCE.prepare_attention(AttentionBatch([Span(0, 2, 2, [1])], 4), CPU, torch.float32)
    assert torch.equal(attention(heads[:, :2], cache, 1.0, None), reference(heads[:, :2], cache, 1.0, None))


@pytest.mark.skipif(native_for(1) is None, reason="the library was not built")
def test_the_seam_takes_the_library():
    """Else every other test of the engine would pass on the slow path."""
    native = native_for(2)
    assert native is not None
    assert kernels_for(CPU, 2) is native.kernels
