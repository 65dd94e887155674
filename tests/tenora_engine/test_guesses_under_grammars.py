"""Guesses for what a real grammar constrains: its forced text, and what was said before. They change no answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine_under_test import Answer, EngineUnderTest, World, random_adapter, store_adapter, tiny_llama
from test_speculation import assert_same, guessing
from tiny_tokenizer import TOKENS, text_of, write_tokenizer

from tenora_adapters.base import read_base_model
from tenora_engine.speculation import Speculator
from tenora_engine.wire import FinishReason, Grammar, GrammarKind

FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "identifier": {"type": "boolean"},
        "values": {"type": "array", "items": {"enum": ["first", "second"]}, "minItems": 4, "maxItems": 4},
        "description": {"type": "null"},
    },
    "required": ["identifier", "values", "description"],
    "additionalProperties": False,
}
SCHEMA = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(FORM))
WORDS = Grammar(GrammarKind.REGEX, "(left|right|over|under){12}[.]")
RULES = Grammar(GrammarKind.EBNF, 'root ::= item{8} "end"\nitem ::= "[" ("on" | "off") ("," "on")* "] "')
NO_SPACE = {"logit_bias": {3: -9.0, 98: -9.0, 99: -9.0}}  # else whitespace goes on for ever


def ids_of(text: str) -> list[int]:
    return [TOKENS.index(character.encode()) for character in text]


# Prompts in which some of the answer stands already.
ASKED: list[tuple[str | None, str, Grammar | None, dict[str, Any]]] = [
    (None, "leftrightleftrightleft", WORDS, {"logprobs": 2}),
    ("lora", "", WORDS, {"temperature": 0.7, "seed": 3, "n": 2, "logprobs": 0}),
    (None, 'x = {"identifier": true, "values": ["first"', SCHEMA, {"logprobs": 1} | NO_SPACE),
    ("lora", "fill in:", SCHEMA, {"temperature": 1.0, "seed": 5, "repetition_penalty": 1.1, "logprobs": 0} | NO_SPACE),
    (None, "[on] [off] [on] [off] ", RULES, {"temperature": 0.5, "seed": 6, "frequency_penalty": 0.2, "logprobs": 0}),
    ("lora", "[off,on] [off,on] ", RULES, {"top_p": 0.9, "temperature": 0.5, "seed": 7, "prompt_logprobs": 1}),
    (None, "abcabcabc", None, {"max_tokens": 40, "logprobs": 0}),
]
OPTIONS: dict[str, dict[str, Any]] = {
    "in turn": {},
    "ahead": {"async_step": True},
    "preempted": {"kv_blocks": 22, "max_batch_tokens": 48},
    "swapped": {"kv_blocks": 22, "max_batch_tokens": 48, "host_kv_blocks": 64, "swap_block_tokens": 0.01},
    "preempted ahead": {"kv_blocks": 22, "async_step": True},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_llama(tmp_path_factory.mktemp("guesses") / "model", max_position_embeddings=512)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def adapter(model: Path, world: World, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = random_adapter(model, tmp_path_factory.mktemp("adapter"), rank=8, seed=91)
    return store_adapter(world.store, folder, read_base_model(model))


@pytest.fixture(scope="module")
def roomy(model: Path, world: World) -> Iterator[EngineUnderTest]:
    """Without guesses. The grammars that it compiles are lent to the other engines."""
    engine = EngineUnderTest(model, world.store, max_batch_tokens=256)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def alone(roomy: EngineUnderTest, adapter: str) -> list[Answer]:
    told = []
    for index in range(len(ASKED)):
        request_id = ask(roomy, adapter, index)
        told.append(roomy.finish()[request_id])
    return told


def ask(engine: EngineUnderTest, adapter: str, index: int) -> str:
    name, text, grammar, options = ASKED[index]
    uses = [] if name is None else [adapter]
    return engine.submit([1, *ids_of(text)], uses, grammar=grammar, **({"max_tokens": 200} | options))


def guess_for(engine: EngineUnderTest, roomy: EngineUnderTest) -> Speculator:
    engine.core.grammars._kept.update(roomy.core.grammars._kept)
    tokenize = engine.core._speculator._tokenize
    speculator = guessing(engine)
    speculator._tokenize = tokenize  # the model's own
    return speculator


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_guesses_under_a_grammar_change_no_answer(
    make_engine: Callable[..., EngineUnderTest],
    model: Path,
    adapter: str,
    roomy: EngineUnderTest,
    alone: list[Answer],
    options: dict[str, Any],
) -> None:
    """Tokens, ends and log-probabilities: base and adapter, greedy and seeded, choices, penalties, in one batch."""
    engine = make_engine(model, draft_tokens=6, **options)
    speculator = guess_for(engine, roomy)
    ids = [ask(engine, adapter, index) for index in range(len(ASKED))]
    answers = engine.finish()
    for request_id, want in zip(ids, alone, strict=True):
        assert_same(answers[request_id], want)

    # Else this would show nothing.
    assert speculator.num_accepted > 60
    assert speculator.num_accepted < speculator.num_proposed
    scheduler = engine.core.scheduler
    assert (scheduler.num_preemptions > 0) == ("kv_blocks" in options)
    assert (scheduler.num_swaps > 0) == ("host_kv_blocks" in options)
    engine.assert_at_rest()


def test_the_answers_follow_their_grammars(alone: list[Answer]) -> None:
    """The run that the others are held against."""
    for (_, _, grammar, _), answer in zip(ASKED, alone, strict=True):
        for tokens in answer.tokens.values():
            if grammar is SCHEMA:
                assert json.loads(text_of(tokens)).keys() == FORM["properties"].keys()
            elif grammar is WORDS:
                assert text_of(tokens).endswith(".")
            elif grammar is RULES:
                assert text_of(tokens).endswith("] end")
        if grammar is not None:
            assert set(answer.finish.values()) == {FinishReason.STOP}


def test_forced_text_is_said_in_leaps(
    make_engine: Callable[..., EngineUnderTest], model: Path, roomy: EngineUnderTest
) -> None:
    """Nothing was said before: what comes true was forced. Fewer steps than tokens."""
    engine = make_engine(model, draft_tokens=8)
    speculator = guess_for(engine, roomy)
    request_id = engine.submit([1, 40], grammar=SCHEMA, max_tokens=200, **NO_SPACE)
    num_steps = 0
    while engine.core.has_requests:
        engine.step_when_ready()
        num_steps += 1
    (answer,) = engine.answers.values()
    assert answer is engine.answers[request_id]
    assert speculator.num_accepted > 20
    assert num_steps < 0.7 * len(answer.text)


def test_preempted_in_the_middle_of_forced_text(
    make_engine: Callable[..., EngineUnderTest], model: Path, adapter: str, roomy: EngineUnderTest, alone: list[Answer]
) -> None:
    """By hand between two steps, at each of many places: the constraint and the guesses go on where they were."""
    engine = make_engine(model, draft_tokens=6)
    guess_for(engine, roomy)
    ids = [ask(engine, adapter, index) for index in (2, 3)]
    num_steps = 0
    while engine.core.has_requests:
        engine.step_when_ready()
        num_steps += 1
        running = list(engine.core.scheduler.running)
        if num_steps % 3 == 0 and running:
            engine.core.scheduler.preempt(running[num_steps // 3 % len(running)])
    assert engine.core.scheduler.num_preemptions > 6
    for request_id, want in zip(ids, alone[2:4], strict=True):
        assert_same(engine.answers[request_id], want)
    engine.assert_at_rest()
