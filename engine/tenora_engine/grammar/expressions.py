"""Regular expressions and choices in the words of the compiler, which differs from what people mean by them.

Expressions are those of ECMA-262 that a linear automaton can follow, and match the whole text. The compiler takes an
anchor for nothing wherever it stands and an unknown escape for a plain letter: both are refused here.
"""

from __future__ import annotations

import json
import string
from typing import Final

from tenora_engine.grammar.errors import GrammarError

_ESCAPES: Final = frozenset("dDwWsSnrtfvxu" + string.punctuation)


def whole_text(expression: str) -> str:
    """The expression for the compiler, to which a dot is any character. Raises GrammarError."""
    parts: list[str] = []
    depth = 0
    position = 0
    while position < len(expression):
        character = expression[position]
        taken = 1
        match character:
            case "\\":
                taken = 2
                _check_escape(expression[position + 1 : position + 2])
            case "[":
                taken = _class_length(expression, position)
            case "(":
                depth += 1
            case ")":
                depth -= 1
            case "^" if depth or expression[position - 1 : position] not in ("", "|"):
                raise GrammarError("the regular expression has a '^' that is not at its beginning")
            case "$" if depth or expression[position + 1 : position + 2] not in ("", "|"):
                raise GrammarError("the regular expression has a '$' that is not at its end")
        parts.append("[^\\n]" if character == "." else expression[position : position + taken])
        position += taken
    return "".join(parts)


def choice_rules(source: str) -> str:
    """EBNF for a JSON array of texts. Raises GrammarError."""
    try:
        texts = json.loads(source)
    except ValueError as error:
        raise GrammarError("the choices are not a JSON array") from error
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) and text for text in texts):
        raise GrammarError("the choices must be a list of texts, none of them empty")
    return "root ::= " + " | ".join(f'"{_escaped(text)}"' for text in texts)


def _check_escape(character: str) -> None:
    if character not in _ESCAPES or not character:
        raise GrammarError(f"the regular expression's escape '\\{character}' is not supported")


def _class_length(expression: str, begin: int) -> int:
    """Length of the character class that begins here, brackets included."""
    position = begin + 1
    while position < len(expression) and expression[position] != "]":
        if expression[position] == "\\":
            _check_escape(expression[position + 1 : position + 2])
            position += 1
        position += 1
    return position + 1 - begin


def _escaped(text: str) -> str:
    return "".join(
        character if character.isascii() and character.isalnum() else f"\\U{ord(character):08x}" for character in text
    )
