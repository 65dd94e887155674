"""A choice on its way through a grammar that xgrammar follows: masks, ends, the way back, and what must come next."""

from __future__ import annotations

import json
import time

import pytest
import torch
from compiler_under_test import CompilerUnderTest
from tiny_tokenizer import END, TOKENS

from tenora_engine.errors import Refused
from tenora_engine.grammar.constraint import Constraint
from tenora_engine.sampler.shaping import allowed
from tenora_engine.wire import FailCode, GrammarKind

FORM = {"type": "object", "properties": {"identifier": {"type": "boolean"}}, "required": ["identifier"]}
FORM |= {"additionalProperties": False}


def next_texts(constraint: Constraint) -> set[bytes]:
    mask = torch.empty(len(TOKENS) // 32, dtype=torch.int32)
    constraint.fill(mask)
    return {TOKENS[token_id] for token_id in allowed(mask[None], len(TOKENS))[0].nonzero()[:, 0].tolist()}


def say(constraint: Constraint, text: str) -> None:
    for character in text:
        assert constraint.accept(TOKENS.index(character.encode()))


def test_a_choice_to_its_end(compiler: CompilerUnderTest):
    """STR-05: an end token only where the text is whole, and nothing after it."""
    constraint = compiler.constraint(GrammarKind.CHOICE, '["yes", "no"]')
    assert next_texts(constraint) == {b"y", b"n", b"yes", b"no"}
    assert not constraint.accept(END)
    say(constraint, "no")
    assert next_texts(constraint) == {TOKENS[END]}
    assert not constraint.is_terminated
    assert constraint.accept(END)
    assert constraint.is_terminated


def test_the_way_back(compiler: CompilerUnderTest):
    constraint = compiler.constraint(GrammarKind.REGEX, "[ab]c{2}")
    before = next_texts(constraint)
    say(constraint, "bcc")
    assert constraint.accept(END)
    constraint.rollback(4)
    assert next_texts(constraint) == before
    say(constraint, "ac")
    constraint.rollback(1)
    assert next_texts(constraint) == {b"c"}


@pytest.mark.parametrize(
    ("kind", "source", "said", "forced"),
    [
        (GrammarKind.CHOICE, '["yes"]', "", "yes"),
        (GrammarKind.CHOICE, '["yes", "yellow"]', "", "yes"),  # a guess: what goes on from "ye" is not looked for
        (GrammarKind.CHOICE, '["yes", "no"]', "", ""),
        (GrammarKind.CHOICE, '["yes", "no"]', "n", "o"),
        (GrammarKind.JSON_SCHEMA, json.dumps(FORM), '{"', 'identifier":'),
        (GrammarKind.REGEX, "a{1000}", "", "aaaa" * 16),  # no further than sixteen tokens look
        (GrammarKind.REGEX, "yes!*", "yes", ""),  # it may end here
        (GrammarKind.EBNF, 'root ::= "x" [0-9] "yz"', "x", ""),
        (GrammarKind.EBNF, 'root ::= "x" [0-9] "yz"', "x1", "yz"),
    ],
)
def test_what_must_come_next(
    compiler: CompilerUnderTest,
    monkeypatch: pytest.MonkeyPatch,
    kind: GrammarKind,
    source: str,
    said: str,
    forced: str,
):
    """Or the beginning of it; looking leaves the place as it was."""
    monkeypatch.setattr(time, "thread_time", lambda: 0.0)  # it looks no longer than it has time
    constraint = compiler.constraint(kind, source)
    say(constraint, said)
    before = next_texts(constraint)
    assert constraint.forced_text() == forced
    assert next_texts(constraint) == before


def test_a_grammar_that_costs_too_much_to_follow_is_its_requests_end(
    compiler: CompilerUnderTest, monkeypatch: pytest.MonkeyPatch
):
    """STR-03: on the step path too."""
    constraint = compiler.constraint(GrammarKind.CHOICE, '["yes"]')
    clock = iter([0.0, 0.2])
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    with pytest.raises(Refused, match="too long to follow") as refused:
        next_texts(constraint)
    assert refused.value.code is FailCode.INVALID
