"""Regular expressions and choices mean what people mean by them, or are refused."""

from __future__ import annotations

import json
import re

import pytest
from compiler_under_test import CompilerUnderTest

from tenora_engine.grammar.errors import GrammarError
from tenora_engine.grammar.expressions import choice_rules, whole_text
from tenora_engine.wire import GrammarKind

EXPRESSIONS = [
    "^a+$",
    "a|b",
    "^(a|bc)$",
    "[^a]b",
    r"[\]a-c]x",
    r"a\.c",
    "a.c",
    r"\d{2}",
    "a{2,3}?",
    "(?:ab)*c",
    "[.$^]",
]
TEXTS = [
    "a",
    "aa",
    "aaa",
    "b",
    "bc",
    "ab",
    "bb",
    "xb",
    "ax",
    "]x",
    "a.c",
    "abc",
    "a\nc",
    "12",
    "1",
    "ababc",
    "c",
    ".",
    "$",
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_matches_what_python_matches(compiler: CompilerUnderTest, expression: str):
    """The whole text, with Python's `re` as the judge; a dot is no newline, a '$' not before one either."""
    matcher = compiler.constraint(GrammarKind.REGEX, expression)._matcher
    for text in TEXTS:
        matcher.reset()
        whole = matcher.accept_string(text) and matcher.is_completed()
        assert whole == bool(re.fullmatch(expression, text)), text


@pytest.mark.parametrize(
    ("expression", "word"),
    [
        ("a^b", "'^'"),
        ("(^a)", "'^'"),
        ("a$b", "'$'"),
        ("(a$)", "'$'"),
        (r"\bab", r"'\b'"),
        (r"[\Ba]", r"'\B'"),
        ("a\\", "'\\'"),
    ],
)
def test_what_the_compiler_takes_for_something_else_is_refused(expression: str, word: str):
    with pytest.raises(GrammarError, match=re.escape(word)):
        whole_text(expression)


@pytest.mark.parametrize("source", ["", "{}", "[]", '"yes"', '["yes", 1]', '["yes", ""]', "[NaN]"])
def test_choices_are_a_list_of_texts(source: str):
    with pytest.raises(GrammarError, match="choices"):
        choice_rules(source)


def test_a_choice_is_any_text(compiler: CompilerUnderTest):
    """Nothing in it is syntax of the rules it becomes part of."""
    texts = ['"', "\\", "a | b", "[a]", "\n", 'x" root "y', "yes"]
    matcher = compiler.constraint(GrammarKind.CHOICE, json.dumps(texts))._matcher
    for text in texts:
        matcher.reset()
        assert matcher.accept_string(text)
        assert matcher.is_completed()
    matcher.reset()
    assert not matcher.accept_string("no")
