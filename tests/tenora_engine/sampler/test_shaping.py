"""Penalties, bias, minimum length and masks on known logits: exact, and each row on its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from sampler_rows import VOCAB, logits_of, mask_of, row

from tenora_engine.sampler import Row, sample
from tenora_engine.sampler.shaping import allowed, shape

PENALTIES = {"presence_penalty": 2.0, "frequency_penalty": 0.5}


def shaped(logits: torch.Tensor, asking: Row, masks: torch.Tensor | None = None) -> torch.Tensor:
    return shape(logits[None], [asking], masks)[0]


def test_presence_and_frequency_count_generated_tokens_only():
    """API-14: the first step's logits are unchanged by the prompt."""
    logits = logits_of()
    assert torch.equal(shaped(logits, row([7, 7, 7], **PENALTIES)), logits)
    expected = logits.clone()
    expected[3] -= 2.0 + 2 * 0.5
    expected[5] -= 2.0 + 0.5
    assert torch.allclose(shaped(logits, row([7, 7, 7], [3, 3, 5], **PENALTIES)), expected)


def test_repetition_covers_prompt_and_generated():
    """API-14: a positive logit is divided, a negative one multiplied."""
    logits = logits_of()
    got = shaped(logits, row([7, 7, 9], [3], repetition_penalty=2.0))
    for token in range(VOCAB):
        factor = 1.0 if token not in (3, 7, 9) else (0.5 if logits[token] > 0 else 2.0)
        assert got[token] == logits[token] * factor


@pytest.mark.parametrize("options", [PENALTIES, {"repetition_penalty": 1.7}, {"min_tokens": 3, "stop_token_ids": (4,)}])
def test_drafts_count_as_if_they_had_been_generated(options: dict[str, Any]):
    for split in range(4):
        tokens = [3, 3, 5]
        asking = row([7], tokens[:split], drafts=tuple(tokens[split:]), **options)
        assert torch.equal(shaped(logits_of(), asking), shaped(logits_of(), row([7], tokens, **options)))
        assert asking.position == 4


@pytest.mark.parametrize("penalty", [1e-300, 1e-45, 1e-38])
@pytest.mark.parametrize("truncation", [{}, {"top_p": 0.9}, {"min_p": 0.1}, {"temperature": 0.0}, {"typical_p": 0.5}])
def test_a_repetition_penalty_however_small_still_draws_a_token(penalty: float, truncation: dict[str, float]):
    """ENG-04: a token outside the vocabulary would fail the whole next step, other tenants' requests with it."""
    logits = logits_of().abs()
    repeated = row([2, 5, 9], repetition_penalty=penalty, **truncation)
    (sampled,) = sample(logits[None], [repeated])
    assert shaped(logits, repeated).isfinite().all()
    assert sampled.token_id in {2, 5, 9}


def test_logit_bias_decides_and_forbids():
    """API-10: and a neighbour in the batch never feels it."""
    logits = logits_of()
    best, worst = int(logits.argmax()), int(logits.argmin())
    neighbours = [row([1], temperature=0.0, logit_bias={worst: 100.0}), row([1], temperature=0.0)]
    assert [s.token_id for s in sample(logits.repeat(2, 1), neighbours)] == [worst, best]
    forbidding = [row([1], seed=seed, temperature=2.0, logit_bias={best: -100.0}) for seed in range(300)]
    assert best not in {s.token_id for s in sample(logits.repeat(300, 1), forbidding)}


def test_no_stop_token_before_the_minimum_length():
    logits = torch.zeros(VOCAB)
    logits[4] = 50.0
    short, long_enough = (row([1], [2] * num, min_tokens=2, stop_token_ids=(4,), temperature=0.0) for num in (1, 2))
    assert [s.token_id == 4 for s in sample(logits.repeat(2, 1), [short, long_enough])] == [False, True]


def test_all_at_once_equals_one_by_one():
    """Rows of every kind in one batch, against each on its own."""
    rows = [
        row([7, 9], [3, 3], **PENALTIES, repetition_penalty=1.3, logit_bias={3: 4.0, 5: -100.0}),
        row([1]),
        row([2], [4], logit_bias={4: 1.0}, min_tokens=5, stop_token_ids=(4, 6)),
        row([8], [8, 8], drafts=(8, 1), frequency_penalty=-1.0),
    ]
    logits = torch.stack([logits_of(seed) for seed in range(len(rows))])
    masks = torch.cat([mask_of({1, 2, 3}), mask_of(set(range(VOCAB))), mask_of({4, 6}), mask_of({0, 15})])
    batched = shape(logits, rows, masks)
    for index, asking in enumerate(rows):
        assert torch.equal(batched[index], shaped(logits[index], asking, masks[index : index + 1]))
    assert torch.equal(shape(logits, rows[1:2] * 4, None), logits)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 70])
def test_a_mask_is_read_bit_by_bit(vocab: int):
    """The sign bit of a word included, and no token after the vocabulary's end."""
    tokens = {token for token in (0, 30, 31, 32, 63, 69) if token < vocab}
    got = allowed(mask_of(tokens, vocab), vocab)
    assert got.shape == (1, vocab)
    assert set(got[0].nonzero()[:, 0].tolist()) == tokens


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.0}, {"top_p": 0.5}, {"top_k": 1}, {"typical_p": 0.3}], ids=str
)
def test_a_mask_holds_against_everything_else(options: dict[str, Any]):
    """STR-05: whatever bias and penalties want, what the grammar forbids is never drawn."""
    rows = [
        row([1], seed=seed, **options, logit_bias=dict.fromkeys(range(8), 100.0) | dict.fromkeys(range(8, 16), -100.0))
        for seed in range(100)
    ]
    sampled = sample(logits_of().repeat(100, 1), rows, mask_of({9, 12}).repeat(100, 1))
    assert {s.token_id for s in sampled} <= {9, 12}


def test_minimum_length_gives_way_when_a_mask_leaves_only_the_end():
    """A grammar that is at its end wins over min_tokens; otherwise no token at all would be left."""
    logits = logits_of()
    asking = row([1], min_tokens=5, stop_token_ids=(4, 6), logit_bias={6: -100.0})
    (sampled,) = sample(logits[None], [asking], mask_of({4, 6}))
    assert sampled.token_id in {4, 6}
