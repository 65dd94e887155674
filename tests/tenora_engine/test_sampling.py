"""Sampling parameters through the engine: the values at their edges, alone and together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from engine_under_test import TINY_VOCAB, EngineUnderTest, World, prompt

from tenora_engine.wire import FailCode, FinishReason

DRAWN: dict[str, Any] = {"temperature": 1.0, "seed": 11}


@pytest.fixture(scope="module")
def engine(world: World) -> Any:
    engine = EngineUnderTest(world.model, world.store)
    yield engine
    engine.close()


@pytest.mark.parametrize(
    "edge",
    [
        {"top_k": 0},
        {"top_k": TINY_VOCAB},
        {"top_k": TINY_VOCAB + 1},
        {"top_k": 10**9},
        {"top_p": 1.0},
        {"min_p": 0.0},
        {"typical_p": 1.0},
        {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0},
        {"logit_bias": {5: 0.0}},
        {"min_tokens": 0},
        {"stop_token_ids": ()},
    ],
    ids=str,
)
def test_off_is_as_if_it_were_not_said(engine: EngineUnderTest, edge: dict[str, Any]):
    """API-13: seeded, so that every draw is the same."""
    assert engine.ask(prompt(9), **DRAWN, **edge).text == engine.ask(prompt(9), **DRAWN).text


@pytest.mark.parametrize(
    "edge",
    [
        {"temperature": 0.0},
        {"temperature": 1e-12},
        {"temperature": 1e-6},
        {"temperature": 1e-4},
        {"temperature": 1e-3},
        {"temperature": 2.0, "top_k": 1},
        {"temperature": 2.0, "min_p": 1.0},
        {"temperature": 2.0, "top_p": 1e-9},
    ],
    ids=str,
)
def test_what_leaves_one_token_is_greedy(engine: EngineUnderTest, edge: dict[str, Any]):
    """API-11, API-13."""
    assert engine.ask(prompt(9), **({"seed": 3} | edge)).text == engine.ask(prompt(9)).text


@pytest.mark.parametrize(
    "edge",
    [
        {"temperature": 2.0},
        {"presence_penalty": 2.0, "frequency_penalty": 2.0},
        {"presence_penalty": -2.0, "frequency_penalty": -2.0},
        {"repetition_penalty": 10.0},
        {"repetition_penalty": 1e-38},
        {"typical_p": 1e-9},
        {"min_p": 1e-9, "top_p": 1 - 1e-7, "top_k": TINY_VOCAB - 1},
        {"logit_bias": dict.fromkeys(range(TINY_VOCAB), -100.0)},
        {"logit_bias": dict.fromkeys(range(TINY_VOCAB), 100.0), "logprobs": 20},
        {"seed": 0},
        {"seed": 2**64 - 1},
        {"seed": -1},
        {"stop_token_ids": (2, 2, 2)},
    ],
    ids=lambda edge: str(edge)[:60],
)
def test_the_last_values_that_are_allowed_are_served(engine: EngineUnderTest, edge: dict[str, Any]):
    """And say the same again, beside others."""
    alone = engine.ask(prompt(9), **(DRAWN | edge))
    crowd = [engine.submit(prompt(7, seed), temperature=1.0, seed=seed) for seed in range(4)]
    again = engine.submit(prompt(9), **(DRAWN | edge))
    answers = engine.finish()
    assert answers[again].text == alone.text
    assert all(answers[one].failed is None for one in crowd)
    assert all(math.isfinite(entry.logprob) for entry in alone.logprobs[0])


def test_two_seeds_differ_and_no_seed_is_a_new_one(engine: EngineUnderTest):
    answers = [engine.ask(prompt(9), temperature=1.5, seed=seed).text for seed in (1, 2, None, None)]
    assert len(set(map(tuple, answers))) == 4


def test_echo_with_log_probabilities_and_one_choice_left(engine: EngineUnderTest):
    """API-05, API-08: seen elsewhere as an error of the server. The first prompt token has none."""
    options: dict[str, Any] = {"top_k": 1, "temperature": 1.0, "logprobs": 5, "prompt_logprobs": 5}
    answer = engine.ask(prompt(21), max_tokens=4, n=2, logit_bias=dict.fromkeys(range(40, 90), -100.0), **options)
    told = answer.prompt_logprobs
    assert told is not None
    assert told[0] is None
    assert [entry.token_id for entry in told[1:] if entry is not None] == prompt(21)[1:]
    for entries in (told[1:], answer.logprobs[0], answer.logprobs[1]):
        for entry in entries:
            assert entry is not None
            assert len(entry.top) == 5
            assert all(math.isfinite(value) for value in (entry.logprob, *(value for _, value in entry.top)))
            assert [value for _, value in entry.top] == sorted((value for _, value in entry.top), reverse=True)


def test_the_prompts_log_probabilities_are_those_of_saying_it(engine: EngineUnderTest):
    """API-05: what was generated with log-probabilities, echoed, has the same ones."""
    said = engine.ask(prompt(20), max_tokens=30, logprobs=0)
    echoed = engine.ask(prompt(20) + said.text, max_tokens=0, prompt_logprobs=0).prompt_logprobs
    assert echoed is not None
    values = [entry.logprob for entry in echoed[20:] if entry is not None]
    assert values == pytest.approx([entry.logprob for entry in said.logprobs[0]], abs=1e-4)


def test_minimum_stop_tokens_and_ignored_ends(engine: EngineUnderTest):
    """The base's end token is 2; 9 is the request's own. A minimum rules out both, `ignore_eos` the base's only."""
    wants: dict[str, Any] = {"logit_bias": {2: 100.0, 9: 90.0}, "max_tokens": 6}
    both: dict[str, Any] = wants | {"stop_token_ids": (2, 9)}
    assert engine.ask(prompt(4), **both).text == [2]
    late = engine.ask(prompt(4), **both, min_tokens=3).text
    assert len(late) == 4
    assert late[3] == 2
    assert {2, 9}.isdisjoint(late[:3])
    ignored = engine.ask(prompt(4), **both, ignore_eos=True)
    assert (ignored.text, ignored.finish) == ([2] * 6, {0: FinishReason.LENGTH})
    own = engine.ask(prompt(4), **(both | {"logit_bias": {9: 100.0}}), ignore_eos=True)
    assert (own.text, own.finish) == ([9], {0: FinishReason.STOP})
    never = engine.ask(prompt(4), **both, min_tokens=6)
    assert (len(never.text), never.finish) == (6, {0: FinishReason.LENGTH})
    assert engine.ask(prompt(4), **both, min_tokens=7).fail_code is FailCode.INVALID


def test_a_stop_token_in_the_prompt_ends_nothing(engine: EngineUnderTest):
    assert len(engine.ask([9, 9, 9], stop_token_ids=(9,), logit_bias={9: -100.0}).text) == 16


def test_penalties_count_what_was_generated_before_a_preemption(make_engine: Callable[..., EngineUnderTest]):
    """API-14: repetition of prompt and answer, presence and frequency of the answer, recomputed or not."""
    options: dict[str, Any] = {"presence_penalty": 1.2, "frequency_penalty": 0.9, "repetition_penalty": 1.3}
    options |= {"max_tokens": 60, "temperature": 0.7, "logit_bias": dict.fromkeys((9, 30, 60, 61, 62), 8.0)}
    plain = make_engine().ask(prompt(30), seed=5, **options).text
    engine = make_engine()
    request_id = engine.submit(prompt(30), seed=5, **options)
    while engine.core.has_requests:
        engine.step_when_ready()
        for sequence in list(engine.core.scheduler.running):
            if sequence.num_generated % 7 == 3:
                engine.core.scheduler.preempt(sequence)
    assert engine.core.scheduler.num_preemptions >= 8
    assert engine.answers[request_id].text == plain
