"""When requests of an open loop are due: instants in seconds from the start, in order, without end."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from random import Random


def constant(rate: float) -> Iterator[float]:
    """Evenly spaced, `rate` per second."""
    number = 0
    while True:
        yield number / rate
        number += 1


def poisson(rate: float, random: Random) -> Iterator[float]:
    """A Poisson process: gaps are exponential with mean 1 / rate, as of many clients who do not know each other."""
    now = 0.0
    while True:
        now += random.expovariate(rate)
        yield now


def bursts(rate: float, size: int, random: Random) -> Iterator[float]:
    """`size` requests at the same instant, the bursts a Poisson process; `rate` requests per second on average."""
    for instant in poisson(rate / size, random):
        for _ in range(size):
            yield instant


def arrivals(process: str, rate: float, random: Random) -> Iterator[float]:
    """`poisson`, `constant` or `bursts:SIZE`. Raises ValueError."""
    if not 0 < rate < inf:
        raise ValueError(f"a rate is above zero, not {rate:g}")
    match process.split(":"):
        case ["poisson"]:
            return poisson(rate, random)
        case ["constant"]:
            return constant(rate)
        case ["bursts", size] if size.isdecimal() and int(size) > 0:
            return bursts(rate, int(size), random)
    raise ValueError(f"{process!r} is none of poisson, constant, bursts:SIZE")
