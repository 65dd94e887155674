"""Regular expressions from strangers, matched in time linear in the text.

PEFT matches with Python's backtracking `re`; here RE2 does, with bounds on size and program memory. An expression is
accepted when both engines compile it and it uses none of the few constructs that they read differently, so that
what matches here is what matches in PEFT. The rest (look-around, back-references) is refused by name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Final

import re2

from tenora_adapters.errors import ConfigRejected
from tenora_adapters.limits import Limits

_PROGRAM_BYTES: Final = 128 << 10  # what RE2 may use for one expression: bounds the cost per character, too
_NAME: Final = re.compile(r"(\w|\\?\.)+", re.ASCII)  # mostly it is just that, and then nothing can blow up
# Read differently: "{,3}" is a repetition for Python and text for RE2, "[[:alpha:]]" the other way round.
_AMBIGUOUS: Final = re.compile(r"\{,|\[:|\[\[")


@dataclass
class PatternBudget:
    """Counts what the patterns of one config add up to. Mutated by `compile_pattern` and `spend`."""

    limits: Limits
    spent_chars: int = field(default=0)
    spent_program: int = field(default=0)

    def spend(self, text: str, param: str) -> str:
        """Count `text`; itself, or ConfigRejected when it, or all together, is too long."""
        self.spent_chars += len(text)
        if len(text) > self.limits.max_pattern_chars or self.spent_chars > self.limits.max_pattern_total:
            raise ConfigRejected(
                f"{param} is too long: at most {self.limits.max_pattern_chars} characters each, and "
                f"{self.limits.max_pattern_total} in the whole config",
                param=param,
                code="pattern_too_long",
            )
        return text

    def spend_program(self, instructions: int, param: str) -> None:
        """Linear is not yet fast: the time for a module's name is proportional to the program's length."""
        self.spent_program += instructions
        if self.spent_program > self.limits.max_pattern_program:
            raise ConfigRejected(
                f"{param}: the config's expressions are too complex", param=param, code="pattern_too_complex"
            )


def compile_pattern(template: str, text: str, param: str, budget: PatternBudget) -> Any:
    """`text` put in the place of `{}` in our own `template`, compiled. Raises ConfigRejected."""
    budget.spend(text, param)
    whole = template.replace("{}", text)
    if _NAME.fullmatch(text):
        return re.compile(whole)
    if not text.isascii():  # modules are; and a range over all of Unicode makes Python's own compiler crawl
        raise _refused(text, param, "only ASCII is supported")
    if _AMBIGUOUS.search(text):
        raise _refused(text, param, "'{,', '[:' and '[[' are not supported")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _PROGRAM_BYTES
    try:
        compiled = re2.compile(whole, options)
        for expression in (text, whole):
            re.compile(expression)
    except (re.error, re2.error, OverflowError, RecursionError, ValueError) as error:
        raise _refused(text, param, _reason(error)) from error
    budget.spend_program(compiled.programsize, param)
    return compiled


def _reason(error: Exception) -> str:
    detail = error.args[0] if error.args else ""
    return detail.decode(errors="replace") if isinstance(detail, bytes) else str(detail)


def _refused(text: str, param: str, reason: str) -> ConfigRejected:
    return ConfigRejected(
        f"{param}: the expression {text[:80]!r} is not supported: {reason}", param=param, code="unsupported_pattern"
    )
