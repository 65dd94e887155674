"""Seeded interleavings: the same operations as a state machine's rules, in an order that one number decides.

A failure names its seed; `TENORA_TEST_SEED=<seed>` runs that one alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from random import Random

import pytest

SEED = "TENORA_TEST_SEED"


def seeds(first: int, count: int) -> Iterable[int]:
    return [int(os.environ[SEED])] if SEED in os.environ else range(first, first + count)


def interleave(run: Callable[[Random], None], first: int, count: int) -> None:
    """`run` once for each seed `first`, `first` + 1, ..."""
    for seed in seeds(first, count):
        try:
            run(Random(seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error


def counts(few: int = 2_000, many: int = 50_000, very_many: int = 1_000_000) -> pytest.MarkDecorator:
    """Parameters `first` and `count`: `few` in every run, `many` marked long and `very_many` marked soak, in parts."""
    parts = [pytest.param(0, few, id=f"{few}")]
    for total, mark, step in ((many, pytest.mark.long, 5_000), (very_many, pytest.mark.soak, 50_000)):
        parts += [pytest.param(first, step, id=f"{first}+{step}", marks=mark) for first in range(0, total, step)]
    return pytest.mark.parametrize(("first", "count"), parts)
