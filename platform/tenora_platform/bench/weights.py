"""How often each of several things is asked for: `uniform`, or `zipf:S` where the k-th has weight 1 / k^S."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from random import Random
from typing import Generic, TypeVar

T = TypeVar("T")


def parse_weights(text: str, count: int) -> list[float]:
    """Weights of `count` things in their order. Raises ValueError."""
    match text.split(":"):
        case ["uniform"]:
            return [1.0] * count
        case ["zipf", exponent] if re.fullmatch(r"\d+(\.\d+)?", exponent):
            return [(rank + 1) ** -float(exponent) for rank in range(count)]
    raise ValueError(f"{text!r} is none of uniform, zipf:S")


class Weighted(Generic[T]):
    """Draws from `things` in proportion to their weights."""

    def __init__(self, things: Sequence[T], weights: Sequence[float]) -> None:
        if not things or min(weights) < 0 or not sum(weights) > 0:
            raise ValueError("weights must be there, not negative, and not all zero")
        self._things = things
        self._cumulative = list(accumulate(weights))

    def draw(self, random: Random) -> T:
        return random.choices(self._things, cum_weights=self._cumulative)[0]
