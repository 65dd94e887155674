"""Which tokens can be drawn, against the definitions; and that looking at the best ones first changes nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sampler_rows import VOCAB, draw, logits_of, row

from tenora_engine.sampler import sample, truncation


@pytest.mark.parametrize(
    "off",
    [{"top_k": 0}, {"top_k": VOCAB}, {"top_k": VOCAB + 1}, {"top_k": 10**9}, {"top_p": 1.0}, {"typical_p": 1.0}],
    ids=str,
)
def test_off_means_off(off: dict[str, Any]):
    """API-13: the same seeded result as without the parameter."""
    assert draw(logits_of(), **off) == draw(logits_of())


@pytest.mark.parametrize("one", [{"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-9}, {"min_p": 0.9999}], ids=str)
def test_a_choice_of_one_is_greedy(one: dict[str, Any]):
    """API-13."""
    assert set(draw(logits_of(), temperature=2.0, **one)) == {int(logits_of().argmax())}


@pytest.mark.parametrize("vocab", [VOCAB, 2000])
def test_truncation_keeps_exactly_what_it_should(vocab: int):
    """Support of the draws against the definition, with fewer and with more tokens than are looked at first."""
    logits = logits_of(1, vocab) / 3  # flat enough for many tokens to be likely
    order = logits.argsort(descending=True).tolist()
    probabilities = logits.softmax(-1)
    assert set(draw(logits, top_k=3)) == set(order[:3])

    limit = float(probabilities.max()) * 0.4
    assert set(draw(logits, min_p=0.4)) <= {token for token in order if probabilities[token] >= limit}

    for top_p in (0.3, 0.9, 0.999):
        before = 0.0
        kept = set()
        for token in order:
            if before < top_p:
                kept.add(token)
            before += float(probabilities[token])
        drawn = set(draw(logits, top_p=top_p))
        assert drawn <= kept
        if len(kept) < 12:
            assert drawn == kept

    # top-p is a share of what top-k left.
    first_two = probabilities[order[:2]]
    share = float(first_two[0] / first_two.sum())
    assert set(draw(logits, top_k=2, top_p=share * 0.99)) == {order[0]}
    assert set(draw(logits, top_k=2, top_p=min(1.0, share * 1.01))) == set(order[:2])


def test_typical_sampling_keeps_what_surprises_as_much_as_expected():
    """Against the definition, token by token; the likeliest token itself may fall out."""
    logits = torch.tensor([3.0, 1.95, 1.9, 1.85, 1.8, 1.75, 1.7, -2.0])
    probabilities = logits.double().softmax(-1)
    entropy = float(-(probabilities * probabilities.log()).sum())
    by_distance = sorted(range(8), key=lambda token: abs(-float(probabilities[token].log()) - entropy))
    for typical_p in (0.1, 0.3, 0.6, 0.9, 0.99):
        kept, mass = set(), 0.0
        for token in by_distance:
            if mass >= typical_p:
                break
            kept.add(token)
            mass += float(probabilities[token])
        assert set(draw(logits, 3000, typical_p=typical_p)) == kept
    assert 0 not in set(draw(logits, 3000, typical_p=0.3))


@pytest.mark.parametrize(
    "options",
    [
        {"top_p": 0.5},
        {"top_p": 0.95},
        {"top_p": 0.9999},
        {"top_k": 40},
        {"top_k": 600},
        {"top_k": 1000, "top_p": 0.9},
        {"min_p": 0.02},
        {"min_p": 0.0001, "top_p": 0.99},
        {"typical_p": 0.9, "top_p": 0.97},
    ],
    ids=str,
)
@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_the_short_cut_draws_the_same_tokens(options: dict[str, Any], temperature: float, monkeypatch: Any):
    """Among the best few first, or over the whole vocabulary at once: token for token, equal logits included."""
    logits = (logits_of(2, 3001) * 8).round() / 8  # many equals
    quick = draw(logits, 100, temperature=temperature, **options)
    monkeypatch.setattr(truncation, "_WIDTHS", (16, 700))
    assert draw(logits, 100, temperature=temperature, **options) == quick
    monkeypatch.setattr(truncation, "_WIDTHS", ())
    assert draw(logits, 100, temperature=temperature, **options) == quick


def test_equals_are_kept_or_cut_together():
    """Which of them comes first in a sort is nobody's business: that differs from device to device."""
    logits = torch.zeros(1000)
    logits[:10] = 1.0
    assert set(draw(logits, 400, top_k=3)) == set(range(10))
    assert len(set(draw(logits, 400, top_p=0.5))) > 300


def test_a_mixed_batch_draws_what_each_draws_alone():
    rows = [
        row([1], seed=1, top_p=0.9),
        row([1], seed=2, temperature=0.0),
        row([1], seed=3),
        row([1], seed=4, top_k=900, temperature=1.9),
        row([1], seed=5, min_p=0.3),
        row([1], seed=6, typical_p=0.2),
    ]
    logits = torch.stack([logits_of(seed, 1200) for seed in range(len(rows))])
    alone = [sample(logits[index : index + 1], [asking])[0] for index, asking in enumerate(rows)]
    assert sample(logits, rows) == alone
