"""The engine core on a real tiny model, step by step and a step ahead: ends, limits, aborts and preemption."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from engine_under_test import ROUTE, TINY_VOCAB, EngineUnderTest, World, prompt

from tenora_engine.config import Dtype
from tenora_engine.wire import (
    AdapterUse,
    FailCode,
    FinishReason,
    Sampling,
    Submit,
    Tier,
    Usage,
)

Make = Callable[..., EngineUnderTest]
MANY = ("r1", "r4", "r8", "r64")


@pytest.fixture(params=[False, True], ids=["in-turn", "ahead"])
def make_engine(request: pytest.FixtureRequest, make_engine: Make) -> Make:
    return functools.partial(make_engine, async_step=request.param)


# -- how a request ends -----------------------------------------------------------------------------------------------


def test_the_end_token_is_the_last(engine: EngineUnderTest):
    free = engine.ask(prompt(8), max_tokens=12).text
    stop = free[5]
    answer = engine.ask(prompt(8), max_tokens=12, stop_token_ids=(stop,))
    assert answer.text == free[: free.index(stop) + 1]
    assert answer.finish == {0: FinishReason.STOP}
    assert answer.usage == Usage(prompt=8, cached=0, completion=len(answer.text))


def test_ignore_eos_and_min_tokens(make_engine: Make, world: World):
    """The tiny base's own end token is 2: a bias makes it the only choice."""
    engine = make_engine()
    wants_eos: dict[str, Any] = {"stop_token_ids": (2,), "logit_bias": {2: 100.0}, "max_tokens": 6}
    assert engine.ask(prompt(4), **wants_eos).text == [2]
    assert engine.ask(prompt(4), **wants_eos, ignore_eos=True).text == [2] * 6
    late = engine.ask(prompt(4), **wants_eos, min_tokens=3)
    assert len(late.text) == 4  # three that are not the end token, then it
    assert 2 not in late.text[:3]
    assert late.finish == {0: FinishReason.STOP}


def test_one_token_and_none(engine: EngineUnderTest):
    """API-05, as far as the engine decides: none with prompt log-probabilities, one, and the context window's last."""
    echo = engine.ask(prompt(5), max_tokens=0, prompt_logprobs=1)
    assert echo.text == []
    assert echo.prompt_logprobs is not None
    assert [entry is None for entry in echo.prompt_logprobs] == [True, False, False, False, False]
    assert (echo.finish, echo.usage) == ({0: FinishReason.LENGTH}, Usage(5, 0, 0))
    assert len(engine.ask(prompt(5), max_tokens=1).text) == 1
    last = engine.ask(prompt(255), max_tokens=50)
    assert (len(last.text), last.finish) == (1, {0: FinishReason.LENGTH})


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"prompt": []}, "no tokens"),
        ({"prompt": [1] * 256}, "256 tokens"),
        ({"prompt": [TINY_VOCAB]}, "token id"),
        ({"prompt": [-1]}, "token id"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"n": 0}, "n is"),
        ({"n": 10**6}, "n is"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": float("nan")}, "top_p"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 1.1}, "min_p"),
        ({"presence_penalty": float("nan")}, "presence_penalty"),
        ({"frequency_penalty": 2.5}, "frequency_penalty"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"logit_bias": {TINY_VOCAB: 1.0}}, "logit_bias"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias"),
        ({"logit_bias": {5: 101.0}}, "logit_bias"),
        ({"logit_bias": {5: float("nan")}}, "logit_bias"),
        ({"logprobs": 10**6}, "logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"stop_token_ids": (10**6,)}, "stop_token_ids"),
        ({"adapters": [AdapterUse("../etc/passwd")]}, "digest"),
        ({"adapters": [AdapterUse("a" * 64, float("nan"))]}, "scale"),
        ({"adapters": [AdapterUse("a" * 64)] * 2}, "twice"),
        ({"adapters": [AdapterUse(c * 64) for c in "abcde"]}, "5 adapters"),
        ({"deadline_s": float("nan")}, "deadline_s"),
    ],
)
def test_what_can_never_run_is_refused_at_once(engine: EngineUnderTest, change: dict[str, Any], word: str):
    """API-06, API-07, API-08, API-10, API-11, API-13, ENG-04: named, before it costs anything; others do not notice."""
    asked = {"prompt": [3, 4]} | change
    neighbour = engine.submit(prompt(6))
    bad = engine.submit(**asked)
    answers = engine.finish()
    assert answers[bad].fail_code is FailCode.INVALID
    assert answers[bad].failed is not None
    assert word in answers[bad].failed.message
    assert answers[neighbour].text == engine.ask(prompt(6)).text
    engine.assert_at_rest()


def test_a_request_that_can_never_fit_is_refused(make_engine: Make):
    """ENG-04: more blocks than there are. One that fits exactly is served."""
    engine = make_engine(kv_blocks=4)
    assert engine.ask(prompt(40), max_tokens=25).fail_code is FailCode.INVALID
    assert len(engine.ask(prompt(40), max_tokens=24).text) == 24


def test_more_adapters_than_slots_are_refused(make_engine: Make, world: World):
    """ENG-04: slot demand beyond what exists."""
    engine = make_engine(adapter_slots=1)
    assert engine.ask(prompt(4), [world.digests["r1"], world.digests["r4"]]).fail_code is FailCode.INVALID


def test_another_base_is_refused(engine: EngineUnderTest):
    assert engine.ask(prompt(4), base_fingerprint="0" * 64).fail_code is FailCode.BASE_MISMATCH


def test_a_full_queue_refuses_and_says_that_it_may_be_tried_again(make_engine: Make):
    engine = make_engine(max_waiting=3)
    ids = [engine.submit(prompt(4, seed)) for seed in range(5)]
    answers = engine.finish()
    codes = [answers[i].failed.code if answers[i].failed else None for i in ids]
    assert codes == [None, None, None, FailCode.OVERLOADED, FailCode.OVERLOADED]
    assert answers[ids[4]].failed.retryable


def test_draining_gives_back_what_has_not_started(make_engine: Make):
    engine = make_engine(max_sequences=1)
    running, queued = engine.submit(prompt(4)), engine.submit(prompt(5))
    engine.step()
    engine.core.drain()
    late = engine.submit(prompt(6))
    answers = engine.finish()
    assert len(answers[running].text) == 16
    for request_id in (queued, late):
        assert answers[request_id].fail_code is FailCode.SHUTTING_DOWN
        assert answers[request_id].failed.retryable


# -- sampling next to others ------------------------------------------------------------------------------------------


def test_choices_repeat_with_their_seed_whatever_runs_beside_them(make_engine: Make, world: World):
    """API-07: four different choices, the same four in a crowd; billed together, the prompt once."""
    options: dict[str, Any] = {"n": 4, "seed": 7, "temperature": 1.0, "max_tokens": 12}
    alone = make_engine().ask(prompt(20), **options)
    engine = make_engine(max_batch_tokens=40)
    for seed in range(16):
        engine.submit(prompt(9, seed), world.uses((None, *MANY)[seed % 5]), temperature=1.0, seed=seed)
    crowded = engine.submit(prompt(20), **options)
    answer = engine.finish()[crowded]
    assert answer.tokens == alone.tokens
    assert len({tuple(tokens) for tokens in answer.tokens.values()}) == 4
    assert answer.usage == alone.usage == Usage(prompt=20, cached=0, completion=48)
    assert set(answer.finish) == {0, 1, 2, 3}


def test_a_bias_is_its_own_requests(engine: EngineUnderTest):
    """API-10: +100 makes a token the only choice, -100 forbids one; the neighbour's answer is its solo one."""
    solo = engine.ask(prompt(10)).text
    only = engine.submit(prompt(11), logit_bias={5: 100.0}, temperature=1.0)
    never = engine.submit(prompt(10), logit_bias={solo[0]: -100.0})
    neighbour = engine.submit(prompt(10))
    answers = engine.finish()
    assert set(answers[only].text) == {5}
    assert solo[0] not in answers[never].text
    assert answers[neighbour].text == solo


def test_bf16_runs(make_engine: Make, world: World):
    """The other arithmetic, and a KV cache in it; its key says so."""
    engine = make_engine(dtype=Dtype.BF16)
    assert engine.core.capacity.kv_dtype == "bfloat16"
    first, again = (engine.ask(prompt(40), world.uses("r8"), logprobs=1) for _ in range(2))
    assert len(first.text) == 16
    assert first.text == again.text
    assert again.usage.cached == 32


# -- abort and deadline -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_abort_frees_everything_at_any_stage(make_engine: Make, world: World, steps: int):
    """API-19, in the engine: blocks and pins are back at once, the usage is what was produced."""
    engine = make_engine(max_batch_tokens=20, max_sequences=8)
    engine.ask(prompt(2), world.uses("r8"))  # so that the adapter is there, and the steps below do something
    request_id = engine.submit(prompt(50), world.uses("r8"), n=2, temperature=1.0, seed=1)
    for _ in range(steps):
        engine.step()
    assert (engine.core.residency.num_pins > 0) == (steps > 0)
    engine.core.abort(ROUTE, request_id)
    engine.core.abort(ROUTE, request_id)  # twice is once
    engine.step()
    answer = engine.answers[request_id]
    assert answer.num_terminal == 1
    assert set(answer.finish.values()) == {FinishReason.ABORT}
    assert answer.usage.completion == sum(map(len, answer.tokens.values()))
    assert answer.usage.prompt == (50 if steps else 0)
    engine.assert_at_rest()


def test_a_deadline_aborts(engine: EngineUnderTest):
    request_id = engine.submit(prompt(5), max_tokens=200, deadline_s=1e-6)
    answer = engine.finish()[request_id]
    assert answer.finish == {0: FinishReason.ABORT}
    engine.assert_at_rest()


def test_a_gateway_that_goes_takes_its_requests_along(engine: EngineUnderTest, world: World):
    for name in (None, "r8"):
        engine.submit(prompt(5), world.uses(name), max_tokens=200)
    engine.step_when_ready()
    engine.core.abort_route(ROUTE)
    engine.assert_at_rest()


def test_random_aborts_leave_nothing_behind(make_engine: Make, world: World):
    engine = make_engine(kv_blocks=24, adapter_slots=2, max_batch_tokens=24, max_sequences=6)
    dice = random.Random(3)
    live: list[str] = []
    for _ in range(150):
        if dice.random() < 0.5:
            name = dice.choice([None, *MANY])
            live.append(
                engine.submit(prompt(dice.randint(1, 60), dice.randrange(3)), world.uses(name), n=dice.randint(1, 2))
            )
        if live and dice.random() < 0.4:
            engine.core.abort(ROUTE, live.pop(dice.randrange(len(live))))
        engine.step()
    answers = engine.finish()
    assert all(answer.num_terminal == 1 for answer in answers.values())
    engine.assert_at_rest()


# -- preemption -------------------------------------------------------------------------------------------------------


def test_preemption_is_invisible(make_engine: Make, world: World):
    """ENG-01: tokens, log-probabilities, usage and ends as with a large pool, each request preempted twice or more.

    The pool is too small, which preempts the younger ones; the eldest, whose turn never comes, is preempted by hand.
    """
    options: list[dict[str, Any]] = [
        {"temperature": 1.0, "seed": 1, "logprobs": 3},
        {"temperature": 0.8, "seed": 2, "presence_penalty": 1.5, "frequency_penalty": 0.7, "top_p": 0.9},
        {"logprobs": 0, "repetition_penalty": 1.4},
        {"temperature": 1.0, "seed": 4, "top_k": 20, "min_tokens": 40, "stop_token_ids": (2, 3, 4, 5)},
    ]
    small, large = make_engine(kv_blocks=10, max_batch_tokens=32), make_engine(max_batch_tokens=32)
    ids: list[str] = []
    preempted: dict[str, int] = {}
    for engine in (small, large):
        ids = [
            engine.submit(prompt(30, seed), world.uses(name), max_tokens=90, **option)
            for seed, (name, option) in enumerate(zip((None, "r8", "r64", "r8"), options, strict=True))
        ]
        steps = 0
        while engine.core.has_requests:
            engine.step_when_ready()
            steps += 1
            scheduler = engine.core.scheduler
            if engine is small and steps % 25 == 0 and scheduler.running:
                scheduler.preempt(next(iter(scheduler.running)))
            for sequence in [*scheduler.running, *scheduler.waiting]:
                if engine is small:
                    preempted[sequence.request.key.request_id] = sequence.num_preemptions
    assert min(preempted[request_id] for request_id in ids) >= 2, preempted
    assert large.core.scheduler.num_preemptions == 0
    for request_id in ids:
        a, b = small.answers[request_id], large.answers[request_id]
        assert a.text == b.text
        assert (a.finish, a.usage) == (b.finish, b.usage)
        assert [e.token_id for e in a.logprobs[0]] == [e.token_id for e in b.logprobs[0]]
        assert [e.logprob for e in a.logprobs[0]] == pytest.approx([e.logprob for e in b.logprobs[0]], abs=1e-4)
    small.assert_at_rest()


def test_prompt_logprobs_survive_chunks_preemption_and_a_warm_cache(make_engine: Make):
    plain = make_engine().ask(prompt(100), max_tokens=4, prompt_logprobs=2)
    engine = make_engine(kv_blocks=9, max_batch_tokens=33)
    engine.ask(prompt(100), max_tokens=4)
    first = engine.submit(prompt(20, 1), max_tokens=60)
    second = engine.submit(prompt(100), max_tokens=4, prompt_logprobs=2)
    answers = engine.finish()
    assert len(answers[first].text) == 60
    got, want = answers[second].prompt_logprobs, plain.prompt_logprobs
    assert got is not None
    assert want is not None
    assert len(got) == len(want) == 100
    assert [e.logprob for e in got[1:]] == pytest.approx([e.logprob for e in want[1:]], abs=1e-4)


def test_two_submits_with_one_id_end_once(engine: EngineUnderTest):
    first = Submit("same", prompt(4), Sampling(max_tokens=3), "t", b"", engine.core.capacity.base_fingerprint)
    engine.core.submit(first, ROUTE)
    engine.core.submit(msgspec.structs.replace(first, token_ids=prompt(9)), ROUTE)
    assert engine.finish()["same"].usage == Usage(4, 0, 3)


def test_more_adapters_than_room_for_them(make_engine: Make, world: World):
    """Slots for two, room on the host for two, four wanted again and again: all are served, none is mixed up."""
    engine = make_engine(adapter_slots=2, host_adapters=2)
    asked = {engine.submit(prompt(7), world.uses(name), max_tokens=5): name for _ in range(3) for name in MANY}
    answers = engine.finish()
    for request_id, name in asked.items():
        assert answers[request_id].text == make_engine().ask(prompt(7), world.uses(name), max_tokens=5).text
    engine.assert_at_rest()
    assert sum(adapter.tier is not Tier.DISK for adapter in engine.core.residency.residents()) == 2
