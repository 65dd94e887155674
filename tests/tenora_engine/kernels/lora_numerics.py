"""The LoRA kernels in Triton's interpreter against the reference in float64. Run by test_interpreter.py, in a process
of its own: whether a kernel is interpreted is decided when it is imported."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import pytest
import torch

from tenora_engine.kernels import REFERENCE, lora_apply, lora_launch
from tenora_engine.kernels.bgmv import bgmv
from tenora_engine.kernels.lora import LoraPair, LoraShape, Segment
from tenora_engine.kernels.lora_slots import TableSlots
from tenora_engine.kernels.lora_step import LoraStep
from tenora_engine.kernels.sgmv import expand, shrink

pytest_plugins = ["interpreted"]

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16]
QKV = LoraShape(40, (24, 8, 7))  # nothing a multiple of a block
Ranks = Sequence[tuple[int, ...]]  # by slot, of each slice


def tolerance(dtype: torch.dtype) -> float:
    """Of the largest magnitude: of bf16, the rounding of the rank intermediate and of the result."""
    return 2e-6 if dtype is torch.float32 else 1.2e-2


class Case:
    """Random adapters on one layer. The rows of x and y have NaN behind them, and x is NaN where no adapter looks."""

    def __init__(
        self,
        shape: LoraShape,
        ranks: Ranks,
        segments: Sequence[Segment],
        num_rows: int,
        dtype: torch.dtype,
        affine: Collection[int] = (),
    ) -> None:
        """`affine`: the slots whose adapters have a gain and an offset too."""
        generator = torch.Generator().manual_seed(7)

        def make(rows: int, columns: int) -> torch.Tensor:
            return torch.randn(rows, columns, generator=generator).to(dtype)

        self.segments, self.dtype, self.shape = segments, dtype, shape
        if shape.is_embedding:
            self.x = torch.randint(shape.in_features, (num_rows,), generator=generator)
        else:
            self.x = torch.full((num_rows, shape.in_features + 3), float("nan"), dtype=dtype)[:, : shape.in_features]
            for segment in segments:
                self.x[segment.begin : segment.end] = make(segment.end - segment.begin, shape.in_features)
        self.around = torch.full((num_rows, shape.out_features + 5), float("nan"), dtype=dtype)
        self.y = self.around[:, : shape.out_features]
        self.y.copy_(make(num_rows, shape.out_features))
        self.pairs = [self._pair(of_slices, slot in affine, make) for slot, of_slices in enumerate(ranks)]
        self.slots = TableSlots(shape, len(ranks), dtype, CPU)
        for slot, pair in enumerate(self.pairs):
            self.slots.put(slot, pair)

    def _pair(self, ranks: tuple[int, ...], is_affine: bool, make: Any) -> LoraPair | None:
        if not sum(ranks) and not is_affine:
            return None
        a, b = make(self.shape.in_features, sum(ranks)), torch.zeros(sum(ranks), self.shape.out_features)
        row = column = 0
        for rank, size in zip(ranks, self.shape.slices, strict=True):
            b[row : row + rank, column : column + size] = make(rank, size)
            row, column = row + rank, column + size
        affine = make(2, self.shape.out_features).float() if is_affine else None
        return LoraPair(a, b.to(self.dtype), ranks, affine)

    def wanted(self) -> torch.Tensor:
        """The reference in float64."""
        slots = REFERENCE.make_lora_slots(self.shape, len(self.pairs), torch.float64, CPU)
        for slot, pair in enumerate(self.pairs):
            if pair is not None:
                affine = None if pair.affine is None else pair.affine.double()
                slots.put(slot, LoraPair(pair.a.double(), pair.b.double(), pair.ranks, affine))
        y = self.y.double()
        REFERENCE.prepare_lora(self.segments, CPU)(y, self.x.double() if self.x.is_floating_point() else self.x, slots)
        return y

    def check(self, *, again: bool = True) -> None:
        """Right, the same bits `again`, and nothing written where no adapter is or behind the rows."""
        before, wanted = self.around.clone(), self.wanted()
        add_lora = lora_apply.prepare_lora(self.segments, CPU)
        add_lora(self.y, self.x, self.slots)
        error = (self.y.double() - wanted).abs().max() / wanted.abs().max()
        assert error < tolerance(self.dtype)
        adapted = torch.zeros(len(self.y), dtype=torch.bool)
        for segment in self.segments:
            adapted[segment.begin : segment.end] |= self.pairs[segment.slot] is not None
        assert torch.equal(self.y[~adapted], before[~adapted, : self.y.shape[1]])
        assert self.around[:, self.y.shape[1] :].isnan().all()
        if again:
            first = self.y.clone()
            self.y.copy_(before[:, : self.y.shape[1]])
            add_lora(self.y, self.x, self.slots)
            assert torch.equal(self.y, first)


MIXED: Ranks = [(1, 0, 1), (8, 8, 8), (0, 0, 0), (0, 33, 0), (128, 16, 64), (4, 4, 4)]


@pytest.fixture(params=["bgmv", "sgmv", "sgmv-low"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """All ways for the same rows, whatever their number: sgmv with the tiles of prefilling and of decoding."""
    monkeypatch.setattr(lora_launch, "DECODE_ROWS", 0 if request.param == "sgmv" else 10**6)
    monkeypatch.setattr(lora_apply, "is_fused", lambda *_: request.param == "bgmv")
    return str(request.param)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("segments", "num_rows"),
    [
        pytest.param([Segment(0, 1, 1, 1.0)], 1, id="one token"),
        pytest.param([Segment(0, 83, 4, 0.5)], 83, id="all tokens one adapter"),
        pytest.param([Segment(i, i + 1, i, 1.0 + i) for i in range(6)], 6, id="one token each"),
        pytest.param([Segment(2, 19, 0, 1.0), Segment(21, 22, 2, 1.0), Segment(25, 90, 3, -2.0)], 95, id="gaps"),
        pytest.param([Segment(0, 20, 1, 1.0), Segment(0, 20, 4, 0.5), Segment(20, 23, 5, 1.0)], 23, id="two at once"),
        pytest.param([Segment(0, 40, 1, 1.0), Segment(7, 30, 2, 1.0), Segment(9, 50, 3, 1.0)], 50, id="overlap"),
    ],
)
def test_any_segments(path: str, segments: Sequence[Segment], num_rows: int, dtype: torch.dtype):
    Case(QKV, MIXED, segments, num_rows, dtype).check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_gain_and_offset(path: str, dtype: torch.dtype):
    """DoRA: of the base's output also where adapters add up, in any order; with the product, in one slice, alone."""
    segments = [Segment(0, 20, 0, 1.0), Segment(0, 20, 1, -0.5), Segment(0, 20, 2, 2.0), Segment(22, 23, 3, 1.0)]
    Case(QKV, [(4, 4, 4), (0, 17, 0), (8, 8, 8), (0, 0, 0)], segments, 24, dtype, affine=(1, 2, 3)).check()


@pytest.mark.parametrize("rank", [1, 70])
def test_embedding(path: str, rank: int):
    """A token's product with A is a row of it."""
    shape = LoraShape(50, (70,), is_embedding=True)
    segments = [Segment(0, 3, 0, 2.0), Segment(2, 20, 1, 1.0)]
    Case(shape, [(rank,), (5,)], segments, 21, torch.bfloat16).check()


@pytest.mark.parametrize("rank", [1, 2, 15, 16, 17, 63, 64, 65, 128])
def test_any_rank(path: str, rank: int):
    Case(LoraShape(33, (70,)), [(rank,)], [Segment(0, 3, 0, 2.0)], 3, torch.float32).check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_aligned_layers_and_several_chunks(path: str, dtype: torch.dtype):
    """Sizes that allow wide loads; more than one block along every dimension."""
    shape = LoraShape(272, (288, 144, 144))
    Case(shape, [(16, 8, 8), (64, 64, 64)], [Segment(0, 2, 0, 1.0), Segment(2, 21, 1, 1.0)], 21, dtype).check()


def test_loads_are_wide_only_where_rows_begin_at_multiples_of_16():
    for shape, aligned in ((QKV, False), (LoraShape(272, (144, 16)), True), (LoraShape(272, (144, 8)), False)):
        assert TableSlots(shape, 1, torch.float32, CPU).aligned == aligned


def test_a_rank_beyond_the_registers_takes_the_other_way():
    Case(LoraShape(20, (30,)), [(129,), (4,)], [Segment(0, 2, 0, 1.0), Segment(2, 3, 1, 1.0)], 3, torch.float32).check()


@pytest.mark.parametrize("path", ["bgmv", "sgmv"], indirect=True)
def test_200_adapters(path: str):
    """One token each, ranks mixed, up to the largest that decoding meets."""
    ranks = [(1 + 37 * slot % (128 if path == "bgmv" else 24),) for slot in range(200)]
    segments = [Segment(slot, slot + 1, slot, 1.0) for slot in range(200)]
    Case(LoraShape(17, (19,)), ranks, segments, 200, torch.float32).check(again=False)


def test_no_adapter_launches_nothing(monkeypatch: pytest.MonkeyPatch):
    """Neither a step without segments, nor a layer that the step's adapters leave alone."""

    def launched(*args: Any) -> None:
        raise AssertionError("a kernel was launched")

    for kernel in ("bgmv", "shrink", "expand"):
        monkeypatch.setattr(lora_apply, kernel, launched)
    Case(QKV, [(8, 8, 8), (0, 0, 0)], [], 5, torch.float32).check()
    Case(QKV, [(8, 8, 8), (0, 0, 0)], [Segment(0, 5, 1, 1.0)], 5, torch.float32).check()
    with pytest.raises(AssertionError, match="launched"):
        Case(QKV, [(8, 8, 8)], [Segment(0, 5, 0, 1.0)], 5, torch.float32).check()


def test_a_slot_gets_other_content():
    """The table follows: another rank, then nothing, while the other slot is in use."""
    case = Case(QKV, [(8, 8, 8), (2, 0, 3)], [Segment(0, 4, 0, 1.0), Segment(4, 6, 1, 1.0)], 6, torch.float32)
    case.slots.put(0, case.pairs[1])
    case.pairs[0] = case.pairs[1]
    case.check()
    case.slots.put(0, None)
    case.pairs[0] = None
    case.check()


def test_an_adapter_takes_the_memory_of_its_own_rank():
    """Whatever lies beside it (ADR 8): A of all slices, and of B the blocks on its diagonal."""
    ranks: Ranks = [(8, 8, 8), (0, 33, 0), (128, 16, 64)]
    slots = Case(QKV, ranks, [Segment(0, 1, 0, 1.0)], 1, torch.bfloat16).slots
    for placed, own in zip(slots._placed, ranks, strict=True):
        numbers = sum(rank * (QKV.in_features + size) for rank, size in zip(own, QKV.slices, strict=True))
        assert sum(tensor.untyped_storage().nbytes() for tensor in placed) == 2 * numbers


@pytest.mark.parametrize("num_splits", [1, 2, 4, 8])
def test_shrink_in_parts(num_splits: int):
    """The sum over in_features in as many parts as its length allows: they add up to the product."""
    block = lora_launch.sgmv_launch("shrink", 64, 16, torch.float32).block
    case = Case(
        LoraShape(8 * num_splits * block // 2 + 5, (8, 8)), [(3, 20)], [Segment(1, 4, 0, 1.0)], 5, torch.float32
    )
    step = LoraStep(case.segments, CPU)
    scratch = shrink(case.x, case.slots, step, lora_launch.sgmv_launch("shrink", 64, 23, torch.float32))
    pair = case.pairs[0]
    assert pair is not None
    assert scratch.shape == (num_splits, 3, 32)
    assert scratch[:, :, 23:].isnan().all()  # nobody pays for what is beyond the rank
    torch.testing.assert_close(scratch[:, :, :23].sum(0), case.x[1:4] @ pair.a, atol=2e-5, rtol=1e-5)


def test_expand_adds_the_parts():
    case = Case(LoraShape(8, (30, 20)), [(3, 20)], [Segment(1, 4, 0, 0.5)], 5, torch.float32)
    step = LoraStep(case.segments, CPU)
    scratch = torch.full((3, 3, 32), float("nan"))
    scratch[:, :, :23] = torch.randn(3, 3, 23)
    pair = case.pairs[0]
    assert pair is not None
    wanted = case.y.clone()
    wanted[1:4] += 0.5 * scratch[:, :, :23].sum(0) @ pair.b
    expand(case.y, scratch, case.slots, step, lora_launch.sgmv_launch("expand", step.height, 20, torch.float32))
    torch.testing.assert_close(case.y, wanted, atol=2e-5, rtol=1e-5)


def test_bgmv_in_chunks_of_any_width(monkeypatch: pytest.MonkeyPatch):
    """How many programs share a tile changes no bit."""
    results = []
    for width in (128, 256, 1024):
        monkeypatch.setattr("tenora_engine.kernels.bgmv.bgmv_width", lambda *args, width=width: width)
        case = Case(LoraShape(40, (300, 290)), [(8, 3)], [Segment(0, 3, 0, 1.0)], 3, torch.float32)
        bgmv(case.y, case.x, case.slots, LoraStep(case.segments, CPU), lora_launch.bgmv_launch(8, torch.float32))
        results.append(case.y.clone())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


@pytest.mark.parametrize(
    ("x", "y"),
    [
        pytest.param(torch.zeros(4, 39), torch.zeros(4, 39), id="in_features"),
        pytest.param(torch.zeros(4, 40), torch.zeros(4, 38), id="out_features"),
        pytest.param(torch.zeros(3, 40), torch.zeros(4, 39), id="rows"),
        pytest.param(torch.zeros(3, 40), torch.zeros(3, 39), id="segments"),
        pytest.param(torch.zeros(4, 40).bfloat16(), torch.zeros(4, 39), id="dtype"),
        pytest.param(torch.zeros(4, 40), torch.zeros(39, 4).t(), id="strides"),
    ],
)
def test_what_does_not_fit_is_refused(x: torch.Tensor, y: torch.Tensor):
    case = Case(QKV, [(8, 8, 8)], [Segment(0, 4, 0, 1.0)], 4, torch.float32)
    with pytest.raises(ValueError, match=r"x |segments|rows"):
        lora_apply.prepare_lora(case.segments, CPU)(y, x, case.slots)


@pytest.mark.parametrize(
    "pair",
    [
        pytest.param(LoraPair(torch.zeros(39, 2), torch.zeros(2, 39), (2, 0, 0)), id="in_features"),
        pytest.param(LoraPair(torch.zeros(40, 2), torch.zeros(2, 38), (2, 0, 0)), id="out_features"),
        pytest.param(LoraPair(torch.zeros(40, 2), torch.zeros(2, 39), (2, 1, 0)), id="ranks"),
        pytest.param(LoraPair(torch.zeros(40, 2), torch.zeros(2, 39), (2,)), id="slices"),
        pytest.param(LoraPair(torch.zeros(40, 2).half(), torch.zeros(2, 39), (2, 0, 0)), id="dtype"),
    ],
)
def test_a_slot_takes_only_what_fits(pair: LoraPair):
    slots = TableSlots(QKV, 1, torch.float32, CPU)
    with pytest.raises(ValueError, match="LoRA"):
        slots.put(0, pair)
    assert not slots.table.any()
