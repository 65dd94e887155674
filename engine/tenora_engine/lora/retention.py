"""Which adapter is worth keeping: how often and how lately it was used, and what it would cost to bring it back.

A use counts half after HALF_LIFE_S (LRFU: Lee et al. 2001, "LRFU: A Spectrum of Policies that Subsumes the Least
Recently Used and Least Frequently Used Policies"), and what is kept is what saves most seconds per byte
(GreedyDual-Size-Frequency: Cherkasova 1998). All uses fade alike, so the order of two adapters hangs on no clock: the
heat of uses at t1, t2, ... is

    log2(2^(t1 / half-life) + 2^(t2 / half-life) + ...)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log2
from typing import Final

HALF_LIFE_S: Final = 60.0
_LEAST_LOAD_S: Final = 1e-4


@dataclass(slots=True)
class Retention:
    """What is remembered of one adapter."""

    last_used: float
    load_s: float = 0.0  # what the last load took
    _heat: float = -inf

    def use(self, now: float) -> None:
        self.last_used = now
        at = now / HALF_LIFE_S
        most, least = max(at, self._heat), min(at, self._heat)
        self._heat = most + log2(1 + 2.0 ** (least - most))

    def worth(self, num_bytes: int) -> float:
        """The larger, the better to keep; only comparisons have a meaning."""
        return self._heat + log2(max(self.load_s, _LEAST_LOAD_S) / max(1, num_bytes))
