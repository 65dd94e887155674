"""Structured output in the engine: every finished text follows its grammar, and nobody else notices."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from engine_under_test import Answer, EngineUnderTest, World, random_adapter, store_adapter, tiny_llama
from random_schemas import random_schema
from tiny_tokenizer import END, text_of, write_tokenizer

from tenora_adapters.base import read_base_model
from tenora_engine.wire import GRAMMAR_REFUSED, FailCode, FinishReason, Grammar, GrammarKind

PROMPT = [40, 41, 42, 43, 44]
LIST = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 3, "maxItems": 3}


def schema(value: Any) -> Grammar:
    return Grammar(GrammarKind.JSON_SCHEMA, json.dumps(value))


def choice(*texts: str) -> Grammar:
    return Grammar(GrammarKind.CHOICE, json.dumps(texts))


def text(answer: Answer, index: int = 0) -> str:
    assert answer.failed is None, answer.failed
    return text_of(answer.tokens[index])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tiny_llama(tmp_path_factory.mktemp("structured") / "model", max_position_embeddings=512)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def shared(model: Path, world: World) -> Iterator[EngineUnderTest]:
    """One engine for all tests that leave it as it was: its compiler takes seconds to start."""
    engine = EngineUnderTest(model, world.store, grammar_seconds=2)
    yield engine
    engine.close()


def _lend(shared: EngineUnderTest, engine: EngineUnderTest) -> None:
    """What the shared engine has compiled; the other one need not start a compiler."""
    engine.core.grammars._kept.update(shared.core.grammars._kept)


@pytest.fixture
def engine(shared: EngineUnderTest) -> Iterator[EngineUnderTest]:
    yield shared
    shared.assert_at_rest()


def test_kinds(engine: EngineUnderTest):
    """STR-01: each kind ends by itself, with an end token; a list that goes on by reference included."""
    assert text(engine.ask(PROMPT, grammar=choice("yes", "no"))) in ("yes", "no")
    assert json.loads(text(engine.ask(PROMPT, grammar=schema(LIST), max_tokens=60))) is not None
    expression = Grammar(GrammarKind.REGEX, "[a-c]{4}-(x|y)")
    assert text(engine.ask(PROMPT, grammar=expression, seed=1, temperature=1.0))[4:] in ("-x", "-y")
    rules = Grammar(GrammarKind.EBNF, 'root ::= "(" root ")" | "aa"')
    answer = engine.ask(PROMPT, grammar=rules, max_tokens=100, logit_bias={ord(")") - 29: 50.0})
    assert answer.finish[0] is FinishReason.STOP
    assert text(answer).strip("()") == "aa"
    node = {
        "type": "object",
        "properties": {"v": {"type": "boolean"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    }
    node |= {"required": ["v", "next"], "additionalProperties": False}
    answer = engine.ask(PROMPT, grammar=schema(node), max_tokens=200, seed=3, temperature=1.5)
    if answer.finish[0] is FinishReason.STOP:
        jsonschema.validate(json.loads(text(answer)), node)


def test_random_schemas_are_kept(engine: EngineUnderTest):
    """STR-01: every finished output validates. A hot model says whatever the masks let it."""
    _outputs_validate(engine, range(25))


@pytest.mark.long
def test_many_random_schemas_are_kept(engine: EngineUnderTest):
    """STR-01: as above."""
    _outputs_validate(engine, range(25, 600))


def _outputs_validate(engine: EngineUnderTest, seeds: range) -> None:
    num_finished = 0
    for begin in range(seeds.start, seeds.stop, 25):
        asked = {}
        for seed in range(begin, min(begin + 25, seeds.stop)):
            wanted = random_schema(random.Random(seed))
            # Whitespace for ever, or a string, would go on to the last token.
            bias = {3: -8.0, 98: -8.0, 99: -8.0, ord('"') - 29: 4.0}
            request_id = engine.submit(
                PROMPT, grammar=schema(wanted), max_tokens=250, seed=seed, temperature=2.0, logit_bias=bias
            )
            asked[request_id] = wanted
        answers = engine.finish()
        for request_id, wanted in asked.items():
            if answers[request_id].finish.get(0) is FinishReason.STOP:
                num_finished += 1
                jsonschema.Draft202012Validator(wanted).validate(json.loads(text(answers[request_id])))
            else:
                assert answers[request_id].failed is None, (wanted, answers[request_id].failed)
    assert num_finished > 0.6 * len(seeds)


def test_no_end_before_the_text_is_whole(make_engine: Callable[..., EngineUnderTest], tmp_path: Path, world: World):
    """STR-05: all end tokens of the base, whatever bias wants them, and the request's own."""
    folder = tiny_llama(tmp_path / "model", eos_token_id=[2, 1])
    write_tokenizer(folder)
    engine = make_engine(folder, store=world.store)
    bias = {1: 100.0, 2: 100.0, 50: 100.0}
    answer = engine.ask(PROMPT, grammar=schema(LIST), max_tokens=60, logit_bias=bias, stop_token_ids=(2, 1, 50))
    assert len(json.loads(text_of(answer.text[:-1]))) == 3
    assert answer.text[-1] in bias
    assert answer.finish[0] is FinishReason.STOP


@pytest.mark.parametrize(
    "options",
    [
        {"logit_bias": dict.fromkeys(range(128), -100.0)},
        {"min_tokens": 14, "stop_token_ids": (END,)},
        {"ignore_eos": True},
        {"repetition_penalty": 2.0, "frequency_penalty": 2.0, "temperature": 1.0},
        {"top_k": 1},
        {"top_p": 0.01, "temperature": 2.0},
        {"logprobs": 3},
    ],
    ids=lambda options: next(iter(options)),
)
def test_everything_else_composes(engine: EngineUnderTest, options: dict[str, Any]):
    """STR-05: a grammar at its end wins over min_tokens and ignore_eos; the others choose among what it allows."""
    answer = engine.ask(PROMPT, grammar=choice("yes", "no", "aaaaaa"), max_tokens=15, **options)
    assert text(answer) in ("yes", "no", "aaaaaa")
    assert answer.finish[0] is FinishReason.STOP
    assert all(entry.token_id == token for entry, token in zip(answer.logprobs[0], answer.tokens[0], strict=False))


def test_choices_go_their_own_ways(engine: EngineUnderTest):
    """API-07: n choices, each with its own place in the grammar; the same with neighbours, and again."""
    wanted = Grammar(GrammarKind.REGEX, "[a-z]{3,8}")
    options: dict[str, Any] = {"grammar": wanted, "n": 4, "seed": 7, "temperature": 2.0, "stop_token_ids": (END,)}
    first = engine.ask(PROMPT, **options)
    assert len({text(first, index) for index in range(4)}) > 1
    again = engine.submit(PROMPT, **options)
    others = [engine.submit([7, 8, seed], seed=seed, temperature=1.0) for seed in range(8)]
    answers = engine.finish()
    assert answers[again].tokens == first.tokens
    assert all(answers[other].failed is None for other in others)


def test_preempted_and_chunked_it_says_the_same(
    make_engine: Callable[..., EngineUnderTest], model: Path, shared: EngineUnderTest
):
    """The constraint stays with its sequence."""
    options: dict[str, Any] = {"grammar": schema(LIST), "max_tokens": 40, "seed": 5, "temperature": 2.0}
    prompts = [[10 + seed] * 20 for seed in range(4)]
    want = [shared.ask(prompt, **options).text for prompt in prompts]
    tight = make_engine(model, kv_blocks=10, block_size=8, max_batch_tokens=8, max_sequences=4)
    _lend(shared, tight)
    ids = [tight.submit(prompt, **options) for prompt in prompts]
    answers = tight.finish()
    assert tight.core.scheduler.num_preemptions > 0
    assert [answers[request_id].text for request_id in ids] == want


def test_a_victims_stream_runs_on_while_a_hostile_schema_compiles(engine: EngineUnderTest):
    """STR-03: shown by steps. The engine is idle for the attacker alone; each step brings the victim a token."""
    hostile = engine.submit(PROMPT, tenant="attacker", grammar=Grammar(GrammarKind.REGEX, "a?" * 4000 + "b"))
    victim = engine.submit(PROMPT, tenant="victim", max_tokens=100)
    engine.step()
    for num_steps in range(1, 60):
        engine.step()
        assert len(engine.answers[victim].tokens[0]) >= num_steps
        assert not engine.answers[hostile].num_terminal
    answers = engine.finish()
    assert answers[hostile].failed is not None
    assert answers[hostile].failed.code is FailCode.INVALID
    assert "more than 2 s" in answers[hostile].failed.message
    assert len(answers[victim].text) == 100


def test_good_after_bad_after_good(engine: EngineUnderTest):
    """STR-05: on one live engine; the bad one fails alone, with its reason."""
    for _ in range(2):
        assert text(engine.ask(PROMPT, grammar=choice("yes"))) == "yes"
        ids = [engine.submit(PROMPT, grammar=Grammar(GrammarKind.EBNF, 'root ::= "a')), engine.submit(PROMPT)]
        answers = engine.finish()
        failed = answers[ids[0]].failed
        assert failed is not None
        assert failed.code is FailCode.INVALID
        assert failed.message.startswith(GRAMMAR_REFUSED)
        assert "string literal" in failed.message
        assert answers[ids[1]].failed is None


def test_what_the_model_cannot_write_ends_the_request_alone(engine: EngineUnderTest):
    """No token of the tiny base has a byte of this text."""
    ids = [engine.submit(PROMPT, grammar=Grammar(GrammarKind.REGEX, "aa(é|ü)")), engine.submit(PROMPT)]
    answers = engine.finish()
    failed = answers[ids[0]].failed
    assert failed is not None
    assert failed.code is FailCode.INVALID
    assert "no token of this model" in failed.message
    assert answers[ids[1]].failed is None


def test_a_base_without_tokenizer_serves_no_grammar(make_engine: Callable[..., EngineUnderTest]):
    failed = make_engine().ask(PROMPT, grammar=choice("yes")).failed
    assert failed is not None
    assert "tokenizer" in failed.message


def test_an_aborted_request_waits_for_nothing(engine: EngineUnderTest):
    request_id = engine.submit(PROMPT, grammar=choice("yes", "no", "12"))
    engine.core.abort(b"gateway", request_id)
    assert engine.finish()[request_id].finish[0] is FinishReason.ABORT


def test_with_an_adapter(engine: EngineUnderTest, model: Path, world: World, tmp_path: Path):
    folder = random_adapter(model, tmp_path, rank=8, seed=91)
    adapter = store_adapter(world.store, folder, read_base_model(model))
    wanted = Grammar(GrammarKind.REGEX, "[a-z]{6}")
    plain, adapted = engine.ask(PROMPT, grammar=wanted), engine.ask(PROMPT, [adapter], grammar=wanted)
    assert len(text(plain)) == len(text(adapted)) == 6
    assert text(plain) != text(adapted)
