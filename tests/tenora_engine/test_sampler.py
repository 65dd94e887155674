"""The sampler on known logits: exact shaping, exact truncation, and independence of the neighbours."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tenora_engine import sampler
from tenora_engine.request import Request, RequestKey, Sequence
from tenora_engine.sampler import logprobs_of, sample, uniform
from tenora_engine.wire import Sampling

VOCAB = 16


def choice(prompt: list[int], generated: list[int] | None = None, *, index: int = 0, **sampling: Any) -> Sequence:
    settings = Sampling(**({"seed": 0, "max_tokens": 100} | sampling))
    request = Request(
        key=RequestKey(b"", "r"),
        tenant="t",
        prompt=prompt,
        sampling=settings,
        adapters=(),
        cache_root=b"",
        stop_token_ids=frozenset(settings.stop_token_ids),
        max_new_tokens=settings.max_tokens,
    )
    sequence = Sequence(request, index, list(prompt))
    request.sequences = [sequence]
    for token in generated or []:
        sequence.append(token)
    return sequence


def logits(seed: int = 0, vocab: int = VOCAB) -> torch.Tensor:
    return torch.randn(vocab, generator=torch.Generator().manual_seed(seed)) * 3


def draw(row: torch.Tensor, **sampling: Any) -> list[int]:
    """The tokens for 300 seeds."""
    rows = [choice([1], seed=seed, **sampling) for seed in range(300)]
    return [sampled.token_id for sampled in sample(row.repeat(300, 1), rows)]


def shaped(row: torch.Tensor, sequence: Sequence) -> torch.Tensor:
    return sampler._shape(row[None], [sequence])[0]


@pytest.mark.parametrize("penalty", [1e-300, 1e-45, 1e-38])
@pytest.mark.parametrize("truncation", [{}, {"top_p": 0.9}, {"min_p": 0.1}, {"temperature": 0.0}])
def test_a_repetition_penalty_however_small_still_draws_a_token(penalty: float, truncation: dict[str, float]):
    """ENG-04: a token outside the vocabulary would fail the whole next step, other tenants' requests with it."""
    row = logits().abs()
    repeated = choice([2, 5, 9], repetition_penalty=penalty, **truncation)
    (sampled,) = sample(row[None], [repeated])
    assert shaped(row, repeated).isfinite().all()
    assert sampled.token_id in {2, 5, 9}


def test_presence_and_frequency_count_generated_tokens_only():
    """API-14: the first step's logits are unchanged by the prompt."""
    row = logits()
    penalties = {"presence_penalty": 2.0, "frequency_penalty": 0.5}
    assert torch.equal(shaped(row, choice([7, 7, 7], **penalties)), row)
    later = shaped(row, choice([7, 7, 7], [3, 3, 5], **penalties))
    expected = row.clone()
    expected[3] -= 2.0 + 2 * 0.5
    expected[5] -= 2.0 + 0.5
    assert torch.allclose(later, expected)


def test_repetition_covers_prompt_and_generated():
    """API-14: a positive logit is divided, a negative one multiplied."""
    row = logits()
    got = shaped(row, choice([7, 7, 9], [3], repetition_penalty=2.0))
    for token in range(VOCAB):
        factor = 1.0 if token not in (3, 7, 9) else (0.5 if row[token] > 0 else 2.0)
        assert got[token] == row[token] * factor


def test_logit_bias_decides_and_forbids():
    """API-10."""
    row = logits()
    best, worst = int(row.argmax()), int(row.argmin())
    neighbours = [choice([1], temperature=0.0, logit_bias={worst: 100.0}), choice([1], temperature=0.0)]
    assert [s.token_id for s in sample(row.repeat(2, 1), neighbours)] == [worst, best]
    assert best not in draw(row, temperature=2.0, logit_bias={best: -100.0})


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-12, 1e-6, 1e-5, 1e-4, 1e-3])
def test_low_temperatures_are_greedy(temperature: float):
    """API-11: no infinity, no NaN, no first token of the vocabulary."""
    row = logits()
    assert set(draw(row, temperature=temperature)) == {int(row.argmax())}


@pytest.mark.parametrize(
    "off", [{"top_k": 0}, {"top_k": VOCAB}, {"top_k": VOCAB + 1}, {"top_k": 10**9}, {"top_p": 1.0}]
)
def test_off_means_off(off: dict[str, Any]):
    """API-13: the same seeded result as without the parameter."""
    assert draw(logits(), **off) == draw(logits())


@pytest.mark.parametrize("one", [{"top_k": 1}, {"min_p": 1.0}, {"top_p": 1e-9}])
def test_a_choice_of_one_is_greedy(one: dict[str, Any]):
    """API-13."""
    assert set(draw(logits(), temperature=2.0, **one)) == {int(logits().argmax())}


@pytest.mark.parametrize("vocab", [VOCAB, 2000])
def test_truncation_keeps_exactly_what_it_should(vocab: int):
    """Support of the draws against the definition, with fewer and with more tokens than are looked at first."""
    row = logits(1, vocab) / 3  # flat enough for many tokens to be likely
    order = row.argsort(descending=True).tolist()
    probabilities = row.softmax(-1)
    assert set(draw(row, top_k=3)) == set(order[:3])

    limit = float(probabilities.max()) * 0.4
    assert set(draw(row, min_p=0.4)) <= {token for token in order if probabilities[token] >= limit}

    for top_p in (0.3, 0.9, 0.999):
        before = 0.0
        kept = set()
        for token in order:
            if before < top_p:
                kept.add(token)
            before += float(probabilities[token])
        drawn = set(draw(row, top_p=top_p))
        assert drawn <= kept
        if len(kept) < 12:
            assert drawn == kept

    # top-p is a share of what top-k left.
    first_two = probabilities[order[:2]]
    share = float(first_two[0] / first_two.sum())
    assert set(draw(row, top_k=2, top_p=share * 0.99)) == {order[0]}
    assert set(draw(row, top_k=2, top_p=min(1.0, share * 1.01))) == set(order[:2])


@pytest.mark.parametrize("options", [{}, {"top_p": 0.95}, {"top_k": 8}], ids=str)
def test_frequencies_follow_the_distribution(options: dict[str, Any]):
    """Chi-squared over 20,000 draws of eight tokens; 24.3 is passed by chance once in a thousand (7 degrees)."""
    row = torch.tensor([2.0, 1.5, 1.0, 0.5, 0.0, -0.2, -0.4, -0.6])
    num = 20_000
    rows = [choice([1], seed=seed, **options) for seed in range(num)]
    counts = torch.zeros(8)
    for sampled in sample(row.repeat(num, 1), rows):
        counts[sampled.token_id] += 1
    probabilities = row.softmax(-1)
    if "top_p" in options:
        kept = probabilities.cumsum(-1) - probabilities < options["top_p"]
        probabilities = probabilities * kept / (probabilities * kept).sum()
    expected = probabilities * num
    used = expected > 0
    assert float(((counts - expected)[used] ** 2 / expected[used]).sum()) < 24.3
    assert counts[~used].sum() == 0


def test_a_result_depends_on_seed_choice_and_position_only():
    """API-07: not on the neighbours, nor on how often it is asked."""
    row = logits()
    alone = sample(row[None], [choice([1, 2], seed=7, temperature=1.5)])[0]
    crowd = [choice([1], seed=seed, top_k=seed % 5, temperature=seed / 10) for seed in range(20)]
    crowd[11] = choice([1, 2], seed=7, temperature=1.5)
    assert sample(row.repeat(20, 1), crowd)[11] == alone
    points = {uniform(seed, index, position) for seed in (0, 7) for index in range(4) for position in range(5)}
    assert len(points) == 40
    assert all(0 <= point < 1 for point in points)


def test_logprobs_are_the_models_own():
    """Whatever bias, penalties and temperature do; all finite, best first."""
    row = logits()
    sequence = choice([1], [2], temperature=0.3, logprobs=3, logit_bias={4: -100.0}, top_k=1)
    entry = sample(row[None], [sequence])[0].logprob
    assert entry is not None
    want = row.log_softmax(-1)
    assert entry.logprob == pytest.approx(float(want[entry.token_id]), abs=1e-5)
    assert [token for token, _ in entry.top] == row.topk(3).indices.tolist()
    assert all(math.isfinite(value) for _, value in entry.top)
    assert logprobs_of(row[None], [4], 0)[0].top == ()
