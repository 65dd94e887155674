"""Every optimisation with every other, among strangers: tokens and log-probabilities are those of a run alone.

The batch is mixed in every cell: base and adapters, greedy and seeded, penalties, choices, a grammar, log-probabilities
of answer and prompt. What it is held against ran one request at a time, with everything off and room for all.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from constraint_double import Script, tokenize
from engine_under_test import TINY_VOCAB, Answer, EngineUnderTest, World, prompt

Make = Callable[..., EngineUnderTest]

FEW_WORDS = {"logit_bias": dict.fromkeys((9, 30, 60), 60.0)}  # so that guesses come true
SCRIPT = [{7}, {8}, {9}, range(3, TINY_VOCAB), {7}, {8}, range(20, 60), *[{30, 31, 32}] * 8, {2}]
ASKED: list[tuple[str | None, int, dict[str, Any]]] = [
    (None, 40, {"logprobs": 2} | FEW_WORDS),
    ("r8", 40, {"temperature": 0.3, "seed": 3, "n": 2, "logprobs": 1} | FEW_WORDS),
    ("r64", 20, {"temperature": 1.0, "seed": 4, "logprobs": 0, "stop_token_ids": (2,)}),  # with a grammar
    ("r4", 70, {"temperature": 0.8, "seed": 5, "presence_penalty": 0.8, "repetition_penalty": 1.2, "top_p": 0.9}),
    (None, 33, {"prompt_logprobs": 2, "logprobs": 0, "frequency_penalty": 0.1} | FEW_WORDS),
    ("r1", 50, {"min_tokens": 6, "stop_token_ids": tuple(range(3, 30)), "temperature": 1.0, "seed": 6, "min_p": 0.05}),
]
OPTIONS: dict[str, dict[str, Any]] = {
    "warm cache": {"prefix_cache": True},
    "chunks": {"max_batch_tokens": 12, "max_sequences": 8},
    "preemption": {"kv_blocks": 14},
    "swap": {"kv_blocks": 14, "host_kv_blocks": 64, "swap_block_tokens": 0.01},
    "steps ahead": {"async_step": True},
    "guesses": {"draft_tokens": 5},
    "eviction": {"adapter_slots": 1, "host_adapters": 2},
}


def ask(engine: EngineUnderTest, world: World, index: int) -> str:
    name, length, options = ASKED[index]
    request_id = engine.submit(prompt(length, index), world.uses(name), **({"max_tokens": 40} | options))
    if index == 2:
        (request,) = (live for live in engine.core._live if live.key.request_id == request_id)
        request.sequences[0].constraint = Script(SCRIPT)
    return request_id


@pytest.fixture(scope="module")
def alone(world: World) -> list[Answer]:
    engine = EngineUnderTest(world.model, world.store, prefix_cache=False, max_batch_tokens=256)
    told = []
    for index in range(len(ASKED)):
        request_id = ask(engine, world, index)
        told.append(engine.finish()[request_id])
    engine.close()
    return told


@pytest.mark.parametrize("pair", list(combinations(OPTIONS, 2)), ids=" and ".join)
def test_together_as_alone(make_engine: Make, world: World, alone: list[Answer], pair: tuple[str, str]) -> None:
    engine = make_engine(**({"prefix_cache": False, "max_batch_tokens": 256} | OPTIONS[pair[0]] | OPTIONS[pair[1]]))
    speculator = engine.core._speculator
    if speculator is not None:
        speculator.cost.price, speculator._tokenize = 0.0, tokenize
        speculator.cost.observe = lambda *_: None  # every guess pays
    if "warm cache" in pair:
        for index in reversed(range(len(ASKED))):  # in a small pool the last ones stay
            engine.ask(prompt(ASKED[index][1], index), world.uses(ASKED[index][0]), max_tokens=1)
    # However long the others' adapters take to load, the first three requests begin together, which fills a small pool.
    engine.ask(prompt(5, 99), world.uses("r8"), max_tokens=1)
    ids = [ask(engine, world, index) for index in range(len(ASKED))]
    answers = engine.finish()
    for request_id, want in zip(ids, alone, strict=True):
        assert_same(answers[request_id], want)

    # Else the cell would be empty.
    scheduler = engine.core.scheduler
    assert (scheduler.num_preemptions > 0) == ("preemption" in pair or "swap" in pair)
    assert (scheduler.num_swaps > 0) == ("swap" in pair)
    assert (engine.cache.counters.hit > 0) == ("warm cache" in pair)
    assert (speculator is not None and speculator.num_accepted > 10) == ("guesses" in pair)
    engine.assert_at_rest()


def assert_same(got: Answer, want: Answer) -> None:
    assert got.failed is None
    assert (got.tokens, got.finish) == (want.tokens, want.finish)
    assert (got.usage.prompt, got.usage.completion) == (want.usage.prompt, want.usage.completion)
    for choice, entries in want.logprobs.items():
        assert [entry.token_id for entry in got.logprobs[choice]] == [entry.token_id for entry in entries]
        values = [entry.logprob for entry in entries]
        assert [entry.logprob for entry in got.logprobs[choice]] == pytest.approx(values, abs=1e-4)
    prompts = [[entry.logprob for entry in (told.prompt_logprobs or [])[1:]] for told in (got, want)]
    assert prompts[0] == pytest.approx(prompts[1], abs=1e-4)
