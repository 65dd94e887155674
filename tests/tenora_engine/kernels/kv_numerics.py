"""QK-norm, rotation and the write to the cache in Triton's interpreter. Run by test_interpreter.py."""

from __future__ import annotations

import itertools

import pytest
import torch
from interpreted import poison

from tenora_engine.kernels import heads as reference
from tenora_engine.kernels.heads import HeadNorms
from tenora_engine.kernels.kv import LARGEST, LayerKv, allocate_kv, dequantise
from tenora_engine.kernels.place_heads import place_heads

pytest_plugins = ["interpreted"]

CPU = torch.device("cpu")
FP32, BF16, FP8, INT8 = torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int8
FORMATS = pytest.mark.parametrize("kv_dtype", [FP8, INT8], ids=["fp8", "int8"])
PLACES = torch.tensor([17, 3, 40])


class Case:
    """Three tokens' heads, and a poisoned cache of 16 blocks of 4 tokens."""

    def __init__(
        self,
        dtype: torch.dtype = FP32,
        kv_dtype: torch.dtype | None = None,
        num_heads: int = 6,
        num_kv_heads: int = 2,
        head_dim: int = 16,
        *,
        normed: bool = True,
        rotated: bool = True,
        shifted: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.heads = torch.randn(3, num_heads + 2 * num_kv_heads, head_dim).to(dtype)
        angles = torch.rand(3, head_dim // 2) * 6
        self.cos_sin = torch.cat([angles.cos(), angles.sin()], -1) if rotated else None
        self.norms = HeadNorms(torch.rand(head_dim) + 0.5, torch.rand(head_dim) + 0.5, 1e-5) if normed else None
        self.offset = torch.randn(num_kv_heads, head_dim) if shifted else None
        self.cache = self._cache(kv_dtype or dtype)

    def _cache(self, dtype: torch.dtype) -> LayerKv:
        offsets = None if self.offset is None else [self.offset]
        (cache,) = allocate_kv(1, 15, 4, self.num_kv_heads, self.heads.shape[2], dtype, CPU, offsets)
        for pages in cache.pages:
            poison(pages)
        return cache

    def place(self) -> None:
        place_heads(self.heads, self.cos_sin, self.norms, self.cache, PLACES, self.num_heads)

    def wanted(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values in float64, keys without the offset that is taken off them."""
        heads, cache = self.heads.double(), self._cache(torch.float64)
        norms = self.norms and HeadNorms(self.norms.q.double(), self.norms.k.double(), self.norms.eps)
        reference.place_heads(heads, self.cos_sin, norms, cache, PLACES, self.num_heads)
        keys, values = cache.keys.flatten(0, 1)[PLACES], cache.values.flatten(0, 1)[PLACES]
        return heads[:, : self.num_heads], keys if self.offset is None else keys - self.offset, values

    def stored(self) -> tuple[torch.Tensor, torch.Tensor]:
        keys = _read(self.cache.keys, self.cache.key_scales)
        return keys, _read(self.cache.values, self.cache.value_scales)

    def assert_nothing_else_written(self) -> None:
        others = torch.ones(64, dtype=torch.bool).index_fill_(0, PLACES, False)
        for pages, fresh in zip(self.cache.pages, self._cache(self.cache.keys.dtype).pages, strict=True):
            before, after = fresh.flatten(0, 1)[others], pages.flatten(0, 1)[others]
            assert torch.equal(before.view(torch.uint8), after.view(torch.uint8))


def _read(pages: torch.Tensor, scales: torch.Tensor | None) -> torch.Tensor:
    rows = pages.flatten(0, 1)[PLACES]
    if scales is None:
        return rows.double()
    return dequantise(rows.float().double(), scales.flatten(0, 1)[PLACES].double(), torch.float64)


def assert_close(got: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    tolerance = 1e-6 if dtype is FP32 else 2**-8  # of bf16: half a unit in the last place, at the result
    torch.testing.assert_close(got.double(), wanted, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [FP32, BF16])
@pytest.mark.parametrize(("normed", "rotated"), list(itertools.product([False, True], repeat=2)))
def test_as_the_reference(dtype: torch.dtype, normed: bool, rotated: bool):
    case = Case(dtype, normed=normed, rotated=rotated)
    queries, keys, values = case.wanted()
    case.place()
    assert_close(case.heads[:, : case.num_heads], queries, dtype)
    assert_close(case.stored()[0], keys, dtype)
    assert torch.equal(case.stored()[1], values)  # values are moved, nothing else
    case.assert_nothing_else_written()


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(1, 1, 96), (9, 3, 64), (7, 1, 128), (4, 4, 256)])
def test_any_shape(num_heads: int, num_kv_heads: int, head_dim: int):
    case = Case(FP32, None, num_heads, num_kv_heads, head_dim)
    queries, keys, values = case.wanted()
    case.place()
    assert_close(case.heads[:, :num_heads], queries, FP32)
    assert_close(case.stored()[0], keys, FP32)
    assert_close(case.stored()[1], values, FP32)


@FORMATS
@pytest.mark.parametrize("shifted", [False, True])
def test_quantised_within_half_a_step(kv_dtype: torch.dtype, shifted: bool):
    """ENG-03: e4m3 within 2^-4 of each number in its normal range, int8 within half a step of the vector's scale."""
    case = Case(BF16, kv_dtype, shifted=shifted)
    _, keys, values = case.wanted()
    case.place()
    scales = (case.cache.key_scales, case.cache.value_scales)
    for got, wanted, pages in zip(case.stored(), (keys, values), scales, strict=True):
        assert pages is not None
        step = pages.flatten(0, 1)[PLACES].unsqueeze(-1).double()
        bound = step / 2 if kv_dtype is INT8 else torch.maximum(wanted.abs() * 2**-4, step * 2**-10)
        assert ((got - wanted).abs() <= bound * 1.001).all()
        assert torch.allclose(step[..., 0] * LARGEST[kv_dtype], wanted.abs().amax(-1), rtol=1e-4)
    case.assert_nothing_else_written()


@FORMATS
@pytest.mark.parametrize("amplitude", [0.0, 1e-40, 1e-31, 1e-4, 1.0, 1e3, 1e30])
def test_the_bits_of_the_reference_at_any_amplitude(kv_dtype: torch.dtype, amplitude: float):
    """ENG-03: K and V far above 448, far below the smallest number of the format, and zero."""
    case, other = (Case(FP32, kv_dtype, normed=False, rotated=False, shifted=True) for _ in range(2))
    for each in (case, other):
        each.heads.mul_(amplitude)
        assert each.cache.key_offset is not None
        each.cache.key_offset.mul_(amplitude)
    case.place()
    reference.place_heads(other.heads, None, None, other.cache, PLACES, other.num_heads)
    for pages, wanted in zip(case.cache.pages, other.cache.pages, strict=True):
        assert torch.equal(pages.view(torch.uint8), wanted.view(torch.uint8))
    assert all(stored.isfinite().all() for stored in case.stored())


@FORMATS
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_spoils_its_own_vector_only(kv_dtype: torch.dtype, bad: float):
    """ENG-03: the scale is NaN, so whoever reads it knows; the neighbours' bits are as without it."""
    case, sound = Case(FP32, kv_dtype, normed=False), Case(FP32, kv_dtype, normed=False)
    case.heads[1, 6, 5] = case.heads[2, 9, 0] = bad  # a key of token 1, a value of token 2
    case.place()
    sound.place()
    keys, values = case.stored()
    assert keys[1, 0].isnan().all()
    assert values[2, 1].isnan().all()
    keys[1, 0], values[2, 1] = sound.stored()[0][1, 0], sound.stored()[1][2, 1]
    assert torch.equal(keys, sound.stored()[0])
    assert torch.equal(values, sound.stored()[1])


def test_what_does_not_fit_is_refused():
    case = Case()
    for num_heads, places, heads in ((5, PLACES, case.heads), (6, PLACES[:2], case.heads), (6, PLACES, case.heads.mT)):
        with pytest.raises(ValueError, match=r"heads|places"):
            place_heads(heads, case.cos_sin, None, case.cache, places, num_heads)
