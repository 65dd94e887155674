"""The prefix cache as a client sees it: the answers of a cold run, hits for its own tenant and adapter version only."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from engine_under_test import TINY_VOCAB, EngineUnderTest, World, random_adapter, store_adapter

Make = Callable[..., EngineUnderTest]


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(f"{length}/{seed}").choices(range(3, TINY_VOCAB), k=length)


def cached(engine: EngineUnderTest, tokens: list[int], adapters: list[str], salt: bytes = b"tenant") -> int:
    usage = engine.ask(tokens, adapters, salt=salt, max_tokens=1).usage
    assert usage is not None
    assert usage.prompt == len(tokens)
    return usage.cached


def test_base_and_adapters_share_no_block(make_engine: Make, world: World):
    """CACHE-01: warm base, then X, then Y, then base again: no hit across them, each answer as when cold."""
    engine, tokens = make_engine(), prompt(70)
    for name in (None, "r8", "r64"):
        cold = make_engine(prefix_cache=False).ask(tokens, world.uses(name))
        first, second = engine.ask(tokens, world.uses(name)), engine.ask(tokens, world.uses(name))
        assert first.text == second.text == cold.text
        assert (first.usage.cached, second.usage.cached) == (0, 64)
    assert cached(engine, tokens, []) == 64


def test_a_new_version_finds_nothing_of_the_old_one(make_engine: Make, world: World, tmp_path):
    """CACHE-02: the same name holds other weights now; the engine only knows digests."""
    engine, tokens = make_engine(), prompt(70)
    engine.ask(tokens, world.uses("r8"))
    second = store_adapter(world.store, random_adapter(world.model, tmp_path, rank=8, seed=99), world.base)
    warm = engine.ask(tokens, [second])
    assert warm.usage.cached == 0
    assert warm.text == make_engine(prefix_cache=False).ask(tokens, [second]).text


def test_a_reused_slot_finds_nothing_of_its_old_tenant(make_engine: Make, world: World):
    """CACHE-02, numeric ids: with one slot every adapter in turn has the same slot number."""
    engine, tokens = make_engine(adapter_slots=1), prompt(40)
    assert cached(engine, tokens, world.uses("r8")) == 0
    assert cached(engine, tokens, world.uses("r64")) == 0
    assert cached(engine, tokens, world.uses("r8")) == 32


def test_tenants_share_no_block(engine: EngineUnderTest, world: World):
    """CACHE-05, both halves: the owner's repeat hits three blocks, everybody else hits none."""
    tokens = prompt(49)
    assert cached(engine, tokens, world.uses("r8"), b"a") == 0
    assert cached(engine, tokens, world.uses("r8"), b"a") == 48
    assert cached(engine, tokens, world.uses("r8"), b"b") == 0
    assert cached(engine, tokens, world.uses("r64"), b"a") == 0
    assert cached(engine, tokens, world.uses("r8"), b"a") == 48


@pytest.mark.parametrize("length", [1, 15, 16, 17, 31, 32, 33, 48])
def test_lengths_around_the_block_size(make_engine: Make, length: int):
    """CACHE-06: exact hits, and the answer of a cold run, for a prompt, its repeat and one token more."""
    engine, tokens = make_engine(), prompt(length)
    for text, expected in ((tokens, 0), (tokens, (length - 1) // 16 * 16), ([*tokens, 5], length // 16 * 16)):
        answer = engine.ask(text)
        assert answer.usage.cached == expected
        assert answer.text == make_engine(prefix_cache=False).ask(text).text


def test_a_conversation_finds_its_own_answer(make_engine: Make):
    """What was generated is cached like a prompt: the next turn computes only what is new."""
    engine, tokens = make_engine(), prompt(20)
    answer = engine.ask(tokens, max_tokens=30).text
    turn = tokens + answer + prompt(4, seed=1)
    assert engine.ask(turn).usage.cached == 48
    assert engine.ask(turn).text == make_engine(prefix_cache=False).ask(turn).text


def test_eviction_under_pressure_keeps_answers(make_engine: Make):
    """A pool that holds two of ten prompts: most blocks are reused while their keys still lie around."""
    engine, plain = make_engine(kv_blocks=12), make_engine(prefix_cache=False)
    order = random.Random(0)
    for _ in range(30):
        tokens = prompt(60, seed=order.randrange(10))
        assert engine.ask(tokens, max_tokens=8).text == plain.ask(tokens, max_tokens=8).text
    assert engine.cache.counters.evicted_blocks > 0
    assert engine.cache.counters.hit > 0
