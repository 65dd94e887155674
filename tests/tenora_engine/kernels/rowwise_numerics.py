"""Norm, activation and sampling in Triton's interpreter against their references. Run by test_interpreter.py."""

from __future__ import annotations

import pytest
import torch

from tenora_engine.kernels import REFERENCE, race, rowwise
from tenora_engine.kernels.draw import race as reference_race
from tenora_engine.model.spec import Activation

pytest_plugins = ["interpreted"]

DTYPES = [torch.float32, torch.bfloat16]
SIZES = [1, 30, 576, 1030]


def tolerance(dtype: torch.dtype) -> float:
    """Of the largest magnitude: some last places of fp32, or two roundings to bf16."""
    return 2e-6 if dtype is torch.float32 else 8e-3


def assert_near(got: torch.Tensor, want: torch.Tensor, dtype: torch.dtype) -> None:
    assert got.dtype == dtype
    assert (got.double() - want).abs().max() <= tolerance(dtype) * want.abs().max()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("adds", [True, False])
def test_norm(dtype: torch.dtype, size: int, adds: bool):
    """Rows of x with NaN between them; the residual is changed in place, and x is not."""
    around = torch.full((5, size + 3), float("nan"), dtype=dtype)
    x = around[:, :size].copy_(torch.randn(5, size))
    weight = torch.rand(size) + 0.5
    residual = torch.randn(5, size).to(dtype) if adds else None
    want = REFERENCE.add_rms_norm(x.double(), None if residual is None else residual.double(), weight.double(), 1e-5)
    kept = x.clone()
    got = rowwise.add_rms_norm(x, residual, weight, 1e-5)
    assert_near(got.out, want.out, dtype)
    assert_near(got.residual, want.residual, dtype)
    assert got.residual is (x if residual is None else residual)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("activation", Activation)
def test_gated(dtype: torch.dtype, size: int, activation: Activation):
    gate_up = (4 * torch.randn(3, 2 * size)).to(dtype)
    assert_near(rowwise.gated(gate_up, activation), REFERENCE.gated(gate_up.double(), activation), dtype)


def test_what_does_not_fit_is_refused():
    x, weight = torch.zeros(4, 6), torch.zeros(6)
    with pytest.raises(ValueError, match="do not fit"):
        rowwise.add_rms_norm(x.t(), None, torch.zeros(4), 1e-5)
    with pytest.raises(ValueError, match="do not fit"):
        rowwise.add_rms_norm(x, torch.zeros(3, 6), weight, 1e-5)
    with pytest.raises(ValueError, match="do not fit"):
        rowwise.add_rms_norm(x, None, torch.zeros(5), 1e-5)
    with pytest.raises(ValueError, match="do not fit"):
        rowwise.gated(x.t(), Activation.SILU)


@pytest.mark.parametrize("vocab_size", [3, 130, 5003])
def test_the_same_token_wins_as_on_the_reference(vocab_size: int):
    """Weights that let the noise decide; seeds of 64 bits, and one row with a single token."""
    generator = torch.Generator().manual_seed(vocab_size)
    weights = torch.rand(9, vocab_size, generator=generator)
    weights[0] = 0
    weights[0, -1] = 1e-30
    keys = torch.stack([torch.randint(2**32, (9,), generator=generator) for _ in range(4)], dim=1)
    keys[1] = 2**32 - 1
    got = race.race(weights, keys)
    assert got.dtype == torch.int64
    assert torch.equal(got, reference_race(weights, keys))
    assert got[0] == vocab_size - 1
    assert len(got.unique()) > 2


def test_of_equals_the_lowest_token_wins(monkeypatch: pytest.MonkeyPatch):
    """All weigh too much for the noise to matter; over the borders of a group and of a program's block."""
    weights = torch.zeros(4, 5003)
    for row, token in enumerate((2, 3, 2047, 4999)):
        weights[row, token:] = float("inf")
    assert race.race(weights, torch.zeros(4, 4, dtype=torch.int64)).tolist() == [2, 3, 2047, 4999]
