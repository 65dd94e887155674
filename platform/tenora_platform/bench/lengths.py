"""How many tokens: distributions of prompt and output lengths, written as `128`, `uniform:64-256`, `normal:128,32`
or `lognormal:128,0.5`."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Final

Lengths = Callable[[Random], int]  # one draw, at least 1

_FORMS: Final = "N, uniform:LOW-HIGH, normal:MEAN,DEVIATION, lognormal:MEAN,SIGMA"


def parse_lengths(text: str) -> Lengths:
    """Raises ValueError for anything else, and for lengths that cannot be."""
    kind, _, parameters = text.rpartition(":")
    try:
        match kind:
            case "":
                return fixed(int(text))
            case "uniform":
                low, high = map(int, parameters.split("-"))
                return uniform(low, high)
            case "normal":
                mean, deviation = map(float, parameters.split(","))
                return normal(mean, deviation)
            case "lognormal":
                mean, sigma = map(float, parameters.split(","))
                return lognormal(mean, sigma)
    except ValueError as error:
        raise ValueError(f"{text!r} is no length ({error}); write {_FORMS}") from error
    raise ValueError(f"{text!r} is no length; write {_FORMS}")


def fixed(tokens: int) -> Lengths:
    _at_least_one(tokens)
    return lambda _: tokens


def uniform(low: int, high: int) -> Lengths:
    """Both ends included."""
    _at_least_one(low)
    if high < low:
        raise ValueError("the upper end lies below the lower")
    return lambda random: random.randint(low, high)


def normal(mean: float, deviation: float) -> Lengths:
    """Draws below 1 become 1, which shifts the mean of a wide distribution upwards."""
    _at_least_one(mean)
    return lambda random: max(1, round(random.gauss(mean, deviation)))


def lognormal(mean: float, sigma: float) -> Lengths:
    """`mean` is that of the lengths; `sigma` the deviation of their logarithm. The long tail of real traffic."""
    _at_least_one(mean)
    mu = math.log(mean) - sigma**2 / 2
    return lambda random: max(1, round(random.lognormvariate(mu, sigma)))


def _at_least_one(tokens: float) -> None:
    if not tokens >= 1:
        raise ValueError("at least 1 token")
