"""Paged attention in Triton's interpreter against the formula in float64. Run by test_interpreter.py."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from interpreted import poison

from tenora_engine.kernels import attention_tiles
from tenora_engine.kernels.attention import AttentionBatch, Span
from tenora_engine.kernels.attention_step import Capacity, PagedAttention
from tenora_engine.kernels.kv import LARGEST, LayerKv, allocate_kv, dequantise, store_kv

pytest_plugins = ["interpreted"]

CPU = torch.device("cpu")
FP32, BF16, FP8, INT8 = torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8
BLOCK = 16
TOLERANCE = {FP32: 2e-6, BF16: 1e-2}  # of the largest magnitude

# (new tokens, context): decodes and chunks over a cached prefix, lengths around multiples of a block.
MIXED = [(1, 1), (1, 15), (1, 16), (1, 17), (3, 3), (5, 12), (1, 33), (20, 70), (2, 40), (17, 17), (1, 129)]


class Case:
    """A random cache, poisoned wherever no sequence has written, and a step over it."""

    def __init__(
        self,
        lengths: Sequence[tuple[int, int]],
        dtype: torch.dtype = FP32,
        kv_dtype: torch.dtype | None = None,
        num_heads: int = 6,
        num_kv_heads: int = 2,
        head_dim: int = 64,
        block_size: int = BLOCK,
        seed: int = 0,
    ) -> None:
        torch.manual_seed(seed)
        self.dtype, self.block_size = dtype, block_size
        num_blocks = sum(-(-context // block_size) for _, context in lengths) + 3
        (self.cache,) = allocate_kv(1, num_blocks, block_size, num_kv_heads, head_dim, kv_dtype or dtype, CPU)
        for pages in self.cache.pages:
            poison(pages)
        free = torch.randperm(num_blocks).add(1).tolist()
        self.spans: list[Span] = []
        row = 0
        for length, context in lengths:
            blocks = [free.pop() for _ in range(-(-context // block_size))]
            keys, values = torch.randn(2, context, num_kv_heads, head_dim).to(dtype)
            store_kv(self.cache, keys, values, self.places(blocks, context))
            self.spans.append(Span(row, row + length, context, blocks))
            row += length
        # As the decoder hands them over: a part of wider rows.
        around = poison(torch.empty(row, num_heads + 2 * num_kv_heads, head_dim, dtype=dtype))
        self.q = around[:, :num_heads]
        self.q.copy_(torch.randn(row, num_heads, head_dim) * 2)
        self.scale = head_dim**-0.5

    def places(self, blocks: Sequence[int], context: int) -> torch.Tensor:
        positions = torch.arange(context)
        return torch.tensor(blocks)[positions // self.block_size] * self.block_size + positions % self.block_size

    def batch(self) -> AttentionBatch:
        return AttentionBatch(self.spans, self.block_size)

    def attend(self, window: int | None = None) -> torch.Tensor:
        return PagedAttention(self.batch(), CPU, self.dtype)(self.q, self.cache, self.scale, window)

    def wanted(self, window: int | None = None) -> torch.Tensor:
        """From the numbers that are stored, in float64."""
        return torch.cat([self._of(span, window) for span in self.spans])

    def check(self, window: int | None = None) -> None:
        assert worst(self.attend(window), self.wanted(window)) < TOLERANCE[self.dtype]

    def _of(self, span: Span, window: int | None) -> torch.Tensor:
        first = 0 if window is None else max(0, span.context - span.length - window + 1)
        places = self.places(span.blocks, span.context)[first:]
        keys = self._read(self.cache.keys, self.cache.key_scales, places)
        values = self._read(self.cache.values, self.cache.value_scales, places)
        group = self.q.shape[1] // keys.shape[1]
        q = self.q[span.begin : span.end].double()
        scores = self.scale * torch.einsum("thd,nhd->htn", q, keys.repeat_interleave(group, 1))
        own = torch.arange(span.context - span.length, span.context)[:, None]
        positions = torch.arange(first, span.context)
        hidden = positions > own
        if window is not None:
            hidden |= positions <= own - window
        p = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        return torch.einsum("htn,nhd->thd", p, values.repeat_interleave(group, 1))

    def _read(self, pages: torch.Tensor, scales: torch.Tensor | None, places: torch.Tensor) -> torch.Tensor:
        stored = pages.flatten(0, 1)[places]
        if scales is None:
            return stored.double()
        return dequantise(stored.float().double(), scales.flatten(0, 1)[places].double(), torch.float64)


def worst(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted).abs().max() / wanted.abs().max())


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 16 keys and more, so that short sequences have many."""
    monkeypatch.setattr(attention_tiles, "MIN_PART", 16)
    monkeypatch.setattr(attention_tiles, "PART_STEP", 16)


@pytest.mark.parametrize("kv_dtype", [None, FP8, INT8], ids=["plain", "fp8", "int8"])
@pytest.mark.parametrize("dtype", [FP32, BF16])
def test_any_mix_of_lengths(dtype: torch.dtype, kv_dtype: torch.dtype | None):
    """ENG-03 for the quantised: what is read is what is stored, to the rounding of the products."""
    Case(MIXED, dtype, kv_dtype).check()


def test_the_same_bits_again(small_parts: None):
    case = Case([(1, 129), (20, 70)], num_heads=3, num_kv_heads=1, head_dim=16)
    assert torch.equal(case.attend(), case.attend())


@pytest.mark.parametrize("group", [1, 2, 4, 5, 7, 8, 16])
def test_any_number_of_query_heads_to_a_key_head(group: int):
    Case([(1, 20), (6, 9), (30, 41)], num_heads=2 * group, head_dim=16).check()


def test_more_query_heads_than_a_tile_has_rows():
    Case([(1, 20), (6, 9)], num_heads=2 * 65, head_dim=16).check()


@pytest.mark.parametrize("kv_dtype", [None, FP8])
@pytest.mark.parametrize("head_dim", [96, 128, 256])
def test_any_head_dimension(head_dim: int, kv_dtype: torch.dtype | None):
    Case([(1, 65), (9, 40)], BF16, kv_dtype, head_dim=head_dim).check()


@pytest.mark.parametrize("block_size", [1, 7, 32, 128])
def test_any_block_size(block_size: int):
    Case([(1, 65), (9, 40), (1, 7)], block_size=block_size, head_dim=16).check()


@pytest.mark.parametrize("window", [1, 2, 16, 17, 33, 1000])
def test_windows(window: int, small_parts: None):
    """And what no token sees any more is not even looked up: its blocks are gone."""
    case = Case([(1, 1), (1, 16), (1, 70), (20, 70), (3, 50)], num_heads=3, num_kv_heads=1, head_dim=16)
    for index, span in enumerate(case.spans):
        gone = max(0, span.context - span.length - window + 1) // BLOCK
        held = [0] * gone + list(span.blocks[gone:])
        case.spans[index] = Span(span.begin, span.end, span.context, held)
    case.check(window)


@pytest.mark.parametrize("kv_dtype", [None, INT8])
@pytest.mark.parametrize("context", [16, 17, 33, 513])
def test_any_number_of_parts(context: int, kv_dtype: torch.dtype | None, small_parts: None):
    """One to 32, decoding and chunks of one tile and of several, whose early tokens do not see the last parts."""
    lengths = [(1, context), (5, context), (23, context + 40)]
    case = Case(lengths, FP32, kv_dtype, num_heads=3, num_kv_heads=1, head_dim=16)
    tables = attention_tiles.cut(case.spans[:1], 5, None, torch.zeros(1).long().numpy(), 0)
    assert tables.tiles[0, 7] == min(32, -(-context // (16 * -(-context // 512))))
    case.check()


def test_parts_as_they_are_shipped():
    Case([(1, 255), (1, 257), (9, 600)], BF16, FP8, num_heads=3, num_kv_heads=1, head_dim=16).check()


def test_a_sequence_gets_the_same_bits_whatever_runs_beside_it(small_parts: None):
    case = Case([(1, 129), (20, 70), (3, 40), (1, 17)], BF16, num_heads=3, num_kv_heads=1, head_dim=16)
    together = case.attend()
    for span in list(case.spans):
        case.spans = [span]
        assert torch.equal(case.attend()[span.begin : span.end], together[span.begin : span.end])


@pytest.mark.parametrize(("kv_dtype", "bad"), [(None, "nan"), (FP8, "nan"), (INT8, "nan"), (FP8, "inf"), (INT8, "inf")])
def test_what_is_not_finite_stays_in_its_sequence(kv_dtype: torch.dtype | None, bad: str):
    """ENG-03: one sequence's broken key leaves its neighbours' bits as they were, and itself NaN."""
    case = Case([(1, 20), (1, 20), (4, 20)], BF16, kv_dtype, head_dim=16)
    before = case.attend()
    place = case.places(case.spans[1].blocks, 20)[7:8]
    broken = torch.zeros(1, 2, 16).index_fill_(2, torch.tensor([3]), float(bad))
    store_kv(case.cache, broken.to(BF16), torch.zeros(1, 2, 16).to(BF16), place)
    after = case.attend()
    assert after[1].isnan().all()
    assert torch.equal(after[[0, 2, 3, 4, 5]], before[[0, 2, 3, 4, 5]])


def test_a_graphs_memory_takes_one_step_after_another():
    """Up to its capacity, at the addresses it had; the rows of smaller steps are right, and no more are written."""
    case = Case([(1, 5), (1, 300), (1, 17), (1, 48)], num_heads=3, num_kv_heads=1, head_dim=16)
    spans = list(case.spans)
    attention = PagedAttention(case.batch(), CPU, FP32, Capacity.for_decoding(4, 300, BLOCK))
    wanted = case.wanted()
    assert worst(attention(case.q, case.cache, case.scale, None), wanted) < TOLERANCE[FP32]
    (tables,) = attention._tables.values()
    address = tables.blocks.data_ptr()
    for taken in ([1], [3, 0], [0, 1, 2, 3], [2]):
        case.spans = [Span(row, row + 1, spans[at].context, spans[at].blocks) for row, at in enumerate(taken)]
        attention.refill(case.batch())
        got = attention(case.q[taken + [0] * (4 - len(taken))], case.cache, case.scale, None)
        assert worst(got[: len(taken)], wanted[taken]) < TOLERANCE[FP32]
        assert got[len(taken) :].isnan().all()
    assert tables.blocks.data_ptr() == address
    case.spans = [Span(row, row + 1, 300, spans[1].blocks) for row in range(5)]
    with pytest.raises(ValueError, match="tables of"):
        attention.refill(case.batch())


def test_reading_beyond_a_sequence_is_noticed():
    """The debug mode (TRITON_DEBUG=1, always on in the interpreter): a block of nobody's, and keys beyond the tile."""
    case = Case([(1, 40)], head_dim=16)
    span = case.spans[0]
    case.spans = [Span(0, 1, 40, [*span.blocks[:2], 0])]
    with pytest.raises(Exception, match="no sequence holds"):
        case.attend()
    case.spans = [Span(0, 1, 40, [*span.blocks[:2], 10**6])]
    with pytest.raises(Exception, match="no sequence holds"):
        case.attend()
    case.spans = [span]
    attention = PagedAttention(case.batch(), CPU, FP32)
    attention(case.q, case.cache, case.scale, None)
    (tables,) = attention._tables.values()
    tables.short[4] += 1
    with pytest.raises(Exception, match="keys beyond"):
        attention(case.q, case.cache, case.scale, None)


def test_what_does_not_fit_is_refused():
    """The kernels follow addresses: shapes, dtypes and block sizes are checked before."""
    case = Case([(1, 20)], head_dim=16)
    attention = PagedAttention(case.batch(), CPU, FP32)
    with pytest.raises(ValueError, match="q of shape"):
        attention(case.q[:, :5], case.cache, 1.0, None)
    with pytest.raises(ValueError, match=r"q in torch\.bfloat16"):
        attention(case.q.bfloat16(), case.cache, 1.0, None)
    with pytest.raises(ValueError, match="rows"):
        attention(case.q[:0], case.cache, 1.0, None)
    with pytest.raises(ValueError, match="blocks of 8"):
        PagedAttention(AttentionBatch(case.spans, 8), CPU, FP32)(case.q, case.cache, 1.0, None)
    with pytest.raises(ValueError, match="without scales"):
        attention(case.q, LayerKv(case.cache.keys.to(INT8), case.cache.values.to(INT8)), 1.0, None)
    assert INT8 in LARGEST
