"""Guesses: when they are made, and that they change nothing but the number of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from constraint_double import Script, tokenize
from engine_under_test import TINY_VOCAB, Answer, EngineUnderTest, World

from tenora_engine.request import Request, RequestKey, Sequence
from tenora_engine.speculation import Speculator, StepCost
from tenora_engine.wire import Sampling

Make = Callable[..., EngineUnderTest]


class Free(StepCost):
    """A machine on which one position more costs nothing: every guess pays."""

    def __init__(self, price: float = 0.0) -> None:
        super().__init__()
        self.price = price

    def observe(self, num_tokens: int, num_drawn: int, seconds: float) -> None:
        pass


def sequence_of(tokens: list[int]) -> Sequence:
    request = Request(RequestKey(b"", "r"), "t", tokens[:1], Sampling(), (), b"", frozenset(), 1000)
    request.sequences = [Sequence(request, 0, list(tokens))]
    return request.sequences[0]


def say(speculator: Speculator, sequence: Sequence, tokens: list[int], num_drafts: int = 0) -> None:
    for token in tokens:
        sequence.append(token)
    speculator.learn(sequence, len(tokens), num_drafts)


# -- when a guess pays ------------------------------------------------------------------------------------------------


def test_the_price_of_a_position_is_measured() -> None:
    """One sequence: 10 ms for one token, 12 ms for three. The tokens that 1 ms is worth: a tenth."""
    cost = StepCost()
    cost.observe(1, 1, 0.010)
    assert cost.price == 1.0  # nothing larger was seen: as dear as what there is
    for _ in range(200):
        cost.observe(3, 1, 0.012)
        cost.observe(1, 1, 0.010)
    assert cost.price == pytest.approx(0.1, rel=1e-3)


def test_a_full_batch_makes_positions_dear() -> None:
    """32 tokens in 40 ms, 64 in 78: another position costs as many tokens as it could bring."""
    cost = StepCost()
    for _ in range(200):
        cost.observe(64, 64, 0.078)
        cost.observe(32, 32, 0.040)
    assert cost.price == pytest.approx(0.95, rel=1e-3)
    speculator = Speculator(8, tokenize, cost)
    assert speculator.propose(sequence_of([1, 2, 3, 4] * 5), 8) == ()
    assert not speculator.pays([sequence_of([1, 2, 3, 4] * 5)])


def test_guesses_grow_while_they_are_right_and_end_when_they_are_not() -> None:
    speculator = Speculator(8, tokenize, Free(price=0.2))
    sequence = sequence_of([1, 2, 3, 4] * 4)
    lengths = []
    for token in [1, 2, 3, 4] * 3:
        drafts = speculator.propose(sequence, 8)
        lengths.append(len(drafts))
        say(speculator, sequence, [token], len(drafts))
    assert lengths == sorted(lengths)
    assert (lengths[0], lengths[-1]) == (2, 8)  # half of them right: 0.5 ** 2 > 0.2
    for unheard in range(50, 90):
        drafts = speculator.propose(sequence, 8)
        say(speculator, sequence, [1, 2, 3, unheard], len(drafts))
    assert speculator.propose(sequence, 8) == ()  # what followed 1 2 3 never comes again


def test_a_sequence_is_judged_while_nothing_is_guessed_for_it() -> None:
    """Too dear for its record so far; then its text repeats, which costs nothing to notice."""
    speculator = Speculator(4, tokenize, Free(price=0.8))
    sequence = sequence_of([1, 2, 3, 4, 5])
    assert speculator.propose(sequence, 4) == ()
    for token in [1, 2, 3, 4, 5] * 6:
        speculator.propose(sequence, 4)
        say(speculator, sequence, [token])
    assert speculator.propose(sequence, 4) == (1, 2, 3, 4)
    assert speculator.pays([sequence])
    assert not speculator.pays([sequence_of(list(range(50)))])


def test_no_more_than_the_limit() -> None:
    speculator = Speculator(8, tokenize, Free())
    assert len(speculator.propose(sequence_of([1, 2, 3] * 5), 8)) == 8
    assert len(speculator.propose(sequence_of([1, 2, 3] * 5), 2)) == 2


def test_forced_text_comes_before_what_was_found() -> None:
    speculator = Speculator(8, tokenize, Free())
    sequence = sequence_of([1, 2, 3, 1, 2, 3, 1, 2])
    sequence.constraint = Script([{7}, {8}, {9, 10}, {2}])
    assert speculator.propose(sequence, 8) == (7, 8)
    assert sequence.constraint.at == 0
    sequence.constraint.at = 2
    say(speculator, sequence, [3])
    assert speculator.propose(sequence, 8)[:3] == (1, 2, 3)


def test_what_has_ended_is_forgotten() -> None:
    speculator = Speculator(8, tokenize, Free())
    sequence = sequence_of([1, 2, 3] * 5)
    speculator.propose(sequence, 8)
    speculator.forget(sequence)
    assert not speculator._tracks
    speculator.forget(sequence)


# -- the same answers -------------------------------------------------------------------------------------------------

# A random model hardly repeats itself; with few words to choose from it does. Each draw depends on all before it.
FEW_WORDS = {"logit_bias": dict.fromkeys((9, 30, 60), 60.0)}
ASKED: list[tuple[str | None, dict[str, Any]]] = [
    (None, {"logprobs": 2}),
    ("r8", {"logprobs": 2}),
    ("r64", {"temperature": 0.2, "seed": 3, "logprobs": 1}),
    ("r4", {"temperature": 0.3, "seed": 4, "top_k": 5, "n": 2, "logprobs": 0}),
    (None, {"frequency_penalty": 0.05, "repetition_penalty": 1.02, "logprobs": 0}),
    ("r8", {"stop_token_ids": (30,), "min_tokens": 12}),
    ("r1", {"prompt_logprobs": 1, "max_tokens": 30}),
]


def ask_all(engine: EngineUnderTest, world: World) -> list[Answer]:
    ids = [
        engine.submit(
            [5, 9, 13, 17, 21, 25] * 3 + [index], world.uses(name), **({"max_tokens": 60} | FEW_WORDS | options)
        )
        for index, (name, options) in enumerate(ASKED)
    ]
    answers = engine.finish()
    return [answers[request_id] for request_id in ids]


def assert_same(got: Answer, want: Answer) -> None:
    assert got.failed is None
    assert (got.tokens, got.finish) == (want.tokens, want.finish)
    assert got.usage.completion == want.usage.completion
    for choice, entries in want.logprobs.items():
        assert [entry.token_id for entry in got.logprobs[choice]] == [entry.token_id for entry in entries]
        assert [e.logprob for e in got.logprobs[choice]] == pytest.approx([e.logprob for e in entries], abs=1e-4)
    if want.prompt_logprobs is not None:
        values = [e.logprob for e in want.prompt_logprobs[1:]]
        assert [e.logprob for e in got.prompt_logprobs[1:]] == pytest.approx(values, abs=1e-4)


def guessing(engine: EngineUnderTest, price: float = 0.0) -> Speculator:
    """The engine's speculator, made to guess."""
    speculator = engine.core._speculator
    assert speculator is not None
    speculator.cost = Free(price)
    speculator._tokenize = tokenize
    return speculator


@pytest.mark.parametrize("options", [{}, {"async_step": True}, {"kv_blocks": 16, "max_batch_tokens": 40}], ids=str)
def test_guessing_changes_no_answer(make_engine: Make, world: World, options: dict[str, Any]) -> None:
    """Greedy and seeded, with adapters, penalties, stops, choices; also with steps ahead and a pool too small."""
    plain = ask_all(make_engine(), world)
    engine = make_engine(draft_tokens=6, **options)
    speculator = guessing(engine)
    for got, want in zip(ask_all(engine, world), plain, strict=True):
        assert_same(got, want)
    assert speculator.num_accepted > 20
    assert speculator.num_accepted < speculator.num_proposed  # some were wrong, and nobody noticed
    if "kv_blocks" in options:
        assert engine.core.scheduler.num_preemptions > 0
    engine.assert_at_rest()


def test_guessing_takes_fewer_steps(make_engine: Make) -> None:
    def steps(engine: EngineUnderTest) -> int:
        engine.submit([5, 9, 13, 17] * 4, max_tokens=80, **FEW_WORDS)
        count = 0
        while engine.core.has_requests:
            engine.step()
            count += 1
        return count

    engine = make_engine(draft_tokens=6)
    guessing(engine)
    assert steps(engine) < 0.7 * steps(make_engine())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_masks_every_draft_position(make_engine: Make, temperature: float) -> None:
    """Forced places are said in leaps, free ones as a run without guesses says them."""
    places = [{7}, {8}, {9}, {20, 21, 22}, {7}, {8}, set(range(3, TINY_VOCAB)), {9}, {30, 31}, {2}]
    told = []
    for drafts in (0, 5):
        engine = make_engine(draft_tokens=drafts)
        request_id = engine.submit([5, 9, 13], temperature=temperature, seed=8, logprobs=1, stop_token_ids=(2,))
        (request,) = engine.core._live
        request.sequences[0].constraint = Script(places)
        if drafts:
            speculator = guessing(engine)
        told.append(engine.finish()[request_id])
    assert_same(told[1], told[0])
    assert len(told[0].text) == len(places)
    assert all(token in place for token, place in zip(told[0].text, places, strict=True))
    assert speculator.num_accepted >= 3


def test_an_exception_in_guessing_ends_one_request(make_engine: Make) -> None:
    """ENG-04: in the grammar that is asked for its forced text."""
    plain = make_engine().ask([5, 9, 13, 17])

    class Broken(Script):
        def forced_text(self) -> str:
            raise RuntimeError("injected")

    engine = make_engine(draft_tokens=4)
    guessing(engine)
    good, bad = engine.submit([5, 9, 13, 17]), engine.submit([5, 9, 13])
    broken = next(request for request in engine.core._live if request.key.request_id == bad)
    broken.sequences[0].constraint = Broken([range(3, TINY_VOCAB)] * 99)
    answers = engine.finish()
    assert answers[bad].failed is not None
    assert answers[good].text == plain.text
    engine.assert_at_rest()
