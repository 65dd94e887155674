"""Any interleaving of operations, against a naive model: in an order that one number decides, many times over, and in
orders that hypothesis chooses, which makes a failure small.

A failure names its seed; `TENORA_TEST_SEED=<seed>` runs that one alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from random import Random
from typing import Any, ClassVar, Protocol

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

SEED = "TENORA_TEST_SEED"


class Interleaving(Protocol):
    """Something with operations without arguments, named in RULES with their weights. What is left open the dice
    decide; `check` holds after each operation."""

    RULES: ClassVar[dict[str, int]]
    dice: Random

    def check(self) -> None: ...

    def end(self) -> None:
        """Bring everything to rest, and check that nothing is left."""


def interleave(make: Callable[[Random], Interleaving], first: int, count: int) -> None:
    """One run for each seed `first`, `first` + 1, ..."""
    seeds = [int(os.environ[SEED])] if SEED in os.environ else range(first, first + count)
    for seed in seeds:
        try:
            _run(make, Random(seed))
        except Exception as error:
            raise AssertionError(f"{SEED}={seed}: {error!r}") from error


def counts(few: int = 2_000, many: int = 50_000, very_many: int = 1_000_000) -> pytest.MarkDecorator:
    """Parameters `first` and `count`: `few` in every run, `many` marked long and `very_many` marked soak, in parts."""
    parts = [pytest.param(0, few, id=f"{few}")]
    for total, mark, step in ((many, pytest.mark.long, 5_000), (very_many, pytest.mark.soak, 50_000)):
        parts += [pytest.param(first, step, id=f"{first}+{step}", marks=mark) for first in range(0, total, step)]
    return pytest.mark.parametrize(("first", "count"), parts)


def machine(make: Callable[[Random], Interleaving], rules: dict[str, int], max_examples: int) -> Any:
    """The same as a test case of hypothesis."""
    names = [name for name, weight in rules.items() for _ in range(weight)]

    class Machine(RuleBasedStateMachine):
        interleaving: Interleaving | None = None

        @rule(dice=st.randoms(use_true_random=False), name=st.sampled_from(names))
        def act(self, dice: Random, name: str) -> None:
            if self.interleaving is None:
                self.interleaving = make(dice)
            self.interleaving.dice = dice
            getattr(self.interleaving, name)()
            self.interleaving.check()

        def teardown(self) -> None:
            if self.interleaving is not None:
                self.interleaving.end()

    Machine.TestCase.settings = settings(max_examples=max_examples, stateful_step_count=40, deadline=None)
    return Machine.TestCase


def _run(make: Callable[[Random], Interleaving], dice: Random) -> None:
    interleaving = make(dice)
    rules = interleaving.RULES
    for name in dice.choices(list(rules), weights=list(rules.values()), k=dice.randint(10, 60)):
        getattr(interleaving, name)()
        interleaving.check()
    interleaving.end()
