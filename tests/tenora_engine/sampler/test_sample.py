"""Whole draws: frequencies, low temperatures, independence of the neighbours, log-probabilities."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from sampler_rows import draw, logits_of, row

from tenora_engine.sampler import logprobs_of, sample


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-12, 1e-6, 1e-5, 1e-4, 1e-3])
def test_low_temperatures_are_greedy(temperature: float):
    """API-11: no infinity, no NaN, no first token of the vocabulary."""
    assert set(draw(logits_of(), temperature=temperature)) == {int(logits_of().argmax())}


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}, {"top_k": 5}, {"min_p": 0.1}, {"typical_p": 0.5}], ids=str)
def test_logits_however_large_draw_a_token(scale: float, options: dict[str, Any]):
    """API-11: all equal but for rounding, and one above all others."""
    for logits in (logits_of() * scale, torch.full((16,), -3e38), torch.zeros(16)):
        assert set(draw(logits, 50, **options)) <= set(range(16))


@pytest.mark.parametrize(
    "options",
    [{}, {"top_p": 0.95}, {"top_k": 6}, {"min_p": 0.15}, {"temperature": 0.5}, {"temperature": 2.0, "top_p": 0.9}],
    ids=str,
)
def test_frequencies_follow_the_distribution(options: dict[str, Any]):
    """Chi-squared over 20,000 draws of eight tokens; 24.3 is passed by chance once in a thousand (7 degrees)."""
    logits = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.2, -0.4, -0.6])
    num = 20_000
    counts = torch.bincount(torch.tensor(draw(logits, num, **options)), minlength=8).double()
    probabilities = (logits.double() / options.get("temperature", 1.0)).softmax(-1)
    kept = probabilities.cumsum(-1) - probabilities < options.get("top_p", 1.0)
    kept &= torch.arange(8) < options.get("top_k", 8)
    kept &= probabilities >= options.get("min_p", 0.0) * probabilities[0]
    expected = probabilities * kept / (probabilities * kept).sum() * num
    assert float(((counts - expected)[kept] ** 2 / expected[kept]).sum()) < 24.3
    assert counts[~kept].sum() == 0


def test_positions_and_choices_are_independent():
    """Chi-squared of pairs drawn side by side (2 x 2 tokens, 1 degree; 10.8 is passed once in a thousand)."""
    logits = torch.tensor([0.3, 0.0])
    num = 10_000
    share = float(logits.softmax(-1)[0])
    for other in ({"generated": [0]}, {"choice": 1}, {"seed": 1}):
        seeds = range(0, 2 * num, 2)
        rows = [row([1], seed=seed) for seed in seeds]
        rows += [row([1], **({"seed": seed} | other | {"seed": seed + other.get("seed", 0)})) for seed in seeds]
        tokens = [sampled.token_id for sampled in sample(logits.repeat(2 * num, 1), rows)]
        both = sum(first == second == 0 for first, second in zip(tokens[:num], tokens[num:], strict=True))
        variance = num * share**2 * (1 - share**2)
        assert (both - num * share**2) ** 2 / variance < 10.8


def test_a_result_depends_on_seed_choice_and_position_only():
    """API-07: not on the neighbours, nor on how often it is asked; choices of one seed differ."""
    logits = logits_of(3, 500) / 3
    alone = sample(logits[None], [row([1, 2], seed=7, temperature=1.5)])[0]
    crowd = [row([1], seed=seed, top_k=seed % 5, temperature=seed / 10) for seed in range(20)]
    crowd[11] = row([1, 2], seed=7, temperature=1.5)
    assert sample(logits.repeat(20, 1), crowd)[11] == alone
    choices = [row([1, 2], seed=7, choice=index, temperature=1.5) for index in range(8)]
    assert len({sampled.token_id for sampled in sample(logits.repeat(8, 1), choices)}) > 4


def test_logprobs_are_the_models_own():
    """API-08: whatever bias, penalties and temperature do; all finite, best first, as many as each row asked for."""
    logits = logits_of()
    rows = [
        row([1], [2], temperature=0.3, logprobs=3, logit_bias={4: -100.0}, top_k=1),
        row([1], seed=4),
        row([1], seed=5, logprobs=0),
        row([1], seed=6, logprobs=16, repetition_penalty=2.0),
    ]
    want = logits.log_softmax(-1)
    for asking, sampled in zip(rows, sample(logits.repeat(4, 1), rows), strict=True):
        num_top = asking.sampling.logprobs
        if num_top is None:
            assert sampled.logprob is None
            continue
        entry = sampled.logprob
        assert entry is not None
        assert entry.token_id == sampled.token_id
        assert entry.logprob == pytest.approx(float(want[entry.token_id]), abs=1e-5)
        assert [token for token, _ in entry.top] == logits.topk(num_top).indices.tolist()
        assert all(math.isfinite(value) for _, value in entry.top)
    assert logprobs_of(logits[None], [4], 0)[0].top == ()
