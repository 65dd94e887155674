"""LoRA by segments against the formula, and the cutting of segments into tiles."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tenora_engine.kernels.lora import LoraPair, LoraShape, Segment, make_lora_slots, prepare_lora
from tenora_engine.kernels.lora_tiles import cut

CPU = torch.device("cpu")


def test_segments():
    """Ranks mixed, a gap without adapter, an adapter that leaves this layer alone, two adapters on one segment."""
    torch.manual_seed(0)
    pairs = [LoraPair(torch.randn(6, rank), torch.randn(rank, 5), (rank,)) for rank in (1, 3, 64)]
    slots = make_lora_slots(LoraShape(6, (5,)), 4, torch.float32, CPU)
    for slot, pair in enumerate([pairs[0], None, pairs[1], pairs[2]]):
        slots.put(slot, pair)
    x, y = torch.randn(9, 6), torch.randn(9, 5)
    segments = [Segment(0, 1, 3, 1.0), Segment(2, 6, 0, 0.5), Segment(2, 6, 2, -1.0), Segment(6, 9, 1, 1.0)]
    expected = y.clone()
    expected[0] += x[0] @ pairs[2].a @ pairs[2].b
    expected[2:6] += 0.5 * (x[2:6] @ pairs[0].a @ pairs[0].b) - x[2:6] @ pairs[1].a @ pairs[1].b
    prepare_lora(segments, CPU)(y, x, slots)
    torch.testing.assert_close(y, expected, atol=1e-4, rtol=1e-4)


@st.composite
def segment_lists(draw: st.DrawFn) -> list[Segment]:
    """Any intervals, empty and overlapping ones too; the scale tells which one it is."""
    intervals = draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 40), st.integers(0, 5)), max_size=8))
    return [Segment(begin, begin + n, slot, float(i)) for i, (begin, n, slot) in enumerate(intervals)]


@settings(deadline=None)
@given(segments=segment_lists(), height=st.sampled_from([1, 3, 16]))
def test_tiles_cover_every_adapted_row_once(segments: list[Segment], height: int):
    """Row by row: each that has adapters is in one tile, whose pieces are those adapters in order; others in none."""
    made = cut(segments, height)
    seen: dict[int, list[tuple[int, float]]] = {}
    scratch: list[int] = []
    for begin, end, first_piece, end_piece in made.tiles.tolist():
        assert 0 < end - begin <= height
        pieces = made.pieces[first_piece:end_piece].tolist()
        assert pieces
        for piece_begin, piece_end, _, first_row in pieces:
            assert (piece_begin, piece_end) == (begin, end)
            scratch += range(first_row, first_row + end - begin)
        uses = [
            (slot, scale)
            for (_, _, slot, _), scale in zip(pieces, made.scales[first_piece:end_piece].tolist(), strict=True)
        ]
        for row in range(begin, end):
            assert row not in seen
            seen[row] = uses
    assert sorted(scratch) == list(range(made.num_scratch_rows))
    for row in range(100):
        assert seen.get(row, []) == [(s.slot, s.scale) for s in segments if s.begin <= row < s.end]


@pytest.mark.parametrize("height", [16, 64])
def test_no_row_without_an_adapter_is_worked_on(height: int):
    made = cut([Segment(3, 4, 0, 1.0), Segment(1000, 1001, 1, 1.0)], height)
    assert made.tiles.tolist() == [[3, 4, 0, 1], [1000, 1001, 1, 2]]
    assert made.num_scratch_rows == 2
