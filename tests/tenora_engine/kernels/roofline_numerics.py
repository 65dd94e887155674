"""bench/roofline.py counts what the launchers launch, to the byte. Run by test_interpreter.py."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import GridExecutor, InterpreterBuilder

from tenora_engine.kernels import lora_apply, lora_launch, rowwise
from tenora_engine.kernels.attention import AttentionBatch, Span
from tenora_engine.kernels.attention_step import PagedAttention
from tenora_engine.kernels.kv import allocate_kv
from tenora_engine.kernels.lora import LoraPair, LoraShape, Segment
from tenora_engine.kernels.lora_slots import TableSlots
from tenora_engine.kernels.place_heads import place_heads
from tenora_engine.kernels.race import race
from tenora_engine.model.spec import Activation

sys.path.insert(0, str(Path(__file__).parents[3] / "bench"))
import roofline

CPU, FP32, INT8 = torch.device("cpu"), torch.float32, torch.int8
SHAPE = LoraShape(272, (144, 32, 32))
RANKS = [(8, 8, 8), (0, 0, 0), (33, 0, 5), (64, 16, 1)]
TABLES = (tl.int32, tl.int64)


@dataclass
class Seen:
    """What one launch did."""

    kernel: str
    programs: int
    moved: int = 0  # bytes of blocks of numbers; the words of tables do not count
    working: set[Any] = field(default_factory=set)  # the programs that stored something


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[Seen]:
    launches: list[Seen] = []
    launch = GridExecutor.__call__

    def noted(executor: GridExecutor, *given: Any, **named: Any) -> None:
        programs = 1
        for size in executor.grid:
            programs *= size
        launches.append(Seen(executor.fn.__name__, programs))
        launch(executor, *given, **named)

    def watched(access: str, mask_index: int) -> None:
        original = getattr(InterpreterBuilder, access)

        def watch(builder: InterpreterBuilder, places: Any, *rest: Any) -> Any:
            element = places.get_element_ty()
            if places.data.size > 1 and element not in TABLES:
                launches[-1].moved += int(rest[mask_index].data.sum()) * element.primitive_bitwidth // 8
            if access == "create_masked_store" and rest[mask_index].data.any():
                launches[-1].working.add(tuple(builder.grid_idx))
            return original(builder, places, *rest)

        monkeypatch.setattr(InterpreterBuilder, access, watch)

    monkeypatch.setattr(GridExecutor, "__call__", noted)
    watched("create_masked_load", 0)
    watched("create_masked_store", 1)
    return launches


def assert_counted(seen: Sequence[Seen], works: Sequence[roofline.Work]) -> None:
    assert [(s.programs, len(s.working), s.moved) for s in seen] == [(w.programs, w.working, w.moved) for w in works]


@pytest.mark.parametrize(("fused", "rows"), [(True, 10**6), (False, 10**6), (False, 0)])
def test_lora(seen: list[Seen], monkeypatch: pytest.MonkeyPatch, fused: bool, rows: int):
    """Gaps, two adapters over the same rows, one that leaves the layer alone, ranks that differ by slice."""
    monkeypatch.setattr(lora_launch, "DECODE_ROWS", rows)
    monkeypatch.setattr(lora_apply, "is_fused", lambda *_: fused)
    segments = [Segment(1, 9, 0, 1.0), Segment(1, 20, 3, 1.0), Segment(22, 24, 1, 1.0), Segment(24, 60, 2, 1.0)]
    slots = TableSlots(SHAPE, len(RANKS), FP32, CPU)
    for slot, ranks in enumerate(RANKS):
        if any(ranks):
            slots.put(slot, LoraPair(torch.ones(272, sum(ranks)), torch.ones(sum(ranks), 208), ranks))
    lora_apply.prepare_lora(segments, CPU)(torch.ones(60, 208), torch.ones(60, 272), slots)
    works = roofline.LoraWork(segments, SHAPE, RANKS, FP32).launches()
    assert [s.kernel.removesuffix("_kernel") for s in seen] == list(works)
    assert_counted(seen, list(works.values()))


def test_nothing_for_no_adapter(seen: list[Seen]):
    assert roofline.LoraWork([Segment(0, 4, 1, 1.0)], SHAPE, RANKS).launches() == {}


@pytest.mark.parametrize("kv_dtype", [FP32, INT8])
@pytest.mark.parametrize("window", [None, 100])
def test_attention(seen: list[Seen], kv_dtype: torch.dtype, window: int | None):
    lengths = ((1, 600), (1, 30), (20, 100), (3, 17))
    spans, row = [], 0
    for length, context in lengths:
        spans.append(Span(row, row + length, context, list(range(1, 2 + context // 16))))
        row += length
    batch = AttentionBatch(spans, 16)
    (cache,) = allocate_kv(1, 50, 16, 2, 48, kv_dtype, CPU)
    PagedAttention(batch, CPU, FP32)(torch.ones(row, 6, 48), cache, 1.0, window)
    works = roofline.AttentionWork(batch, kv_dtype, FP32, 6, 2, 48, window).launches()
    assert_counted(seen, list(works.values()))


@pytest.mark.parametrize(
    ("run", "counted"),
    [
        pytest.param(
            lambda: rowwise.add_rms_norm(torch.ones(5, 96), torch.ones(5, 96), torch.ones(96), 1e-5),
            lambda: roofline.norm(5, 96, FP32),
            id="norm",
        ),
        pytest.param(
            lambda: rowwise.gated(torch.ones(3, 2600), Activation.SILU),
            lambda: roofline.gated(3, 1300, FP32),
            id="gated",
        ),
        pytest.param(
            lambda: place_heads(
                torch.ones(2, 48, 128),
                torch.ones(2, 128),
                None,
                allocate_kv(1, 1, 16, 8, 128, INT8, CPU)[0],
                torch.tensor([16, 17]),
                32,
            ),
            lambda: roofline.place_heads(2, INT8, FP32),
            id="place_heads",
        ),
    ],
)
def test_rows(seen: list[Seen], run: Callable[[], Any], counted: Callable[[], Any]):
    run()
    _, work = counted()
    assert_counted(seen, [work])


def test_race(seen: list[Seen]):
    race(torch.ones(2, 5000), torch.zeros(2, 4, dtype=torch.int64))
    _, work = roofline.race(2, 5000)
    assert (seen[0].programs, seen[0].moved) == (work.programs, 4 * 2 * 5000)


def test_the_least_is_no_more_than_what_is_moved():
    for shape in roofline.LAYERS.values():
        work = roofline.mixed(shape, 64, roofline.RANKS)
        ours = sum(work.launches().values(), roofline.NOTHING)
        assert work.least().moved <= ours.moved
        assert work.least().operations <= ours.done
    for kv_dtype in (torch.bfloat16, INT8):
        attention = roofline.decoding(8, 3000, kv_dtype)
        assert attention.least().moved <= sum(attention.launches().values(), roofline.NOTHING).moved


def test_vllms_programs_by_hand():
    """One slot of two in use, three rows, rank 8, a layer of 512 to 128: 64 splits of which two find a part of the sum,
    and one block of columns; each for the two slots and for none."""
    work = roofline.LoraWork([Segment(0, 3, 0, 1.0)], LoraShape(512, (128,)), [(8,), (8,)])
    works = work.of_vllm(2)
    assert (works["shrink"].programs, works["shrink"].working) == (64 * 3, 2)
    assert (works["expand"].programs, works["expand"].working) == (3, 1)
