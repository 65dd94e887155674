"""The highest rate that meets an SLO: double until it does not, then halve the interval, on a logarithmic scale."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

_DOUBLING: Final = 2.0


@dataclass
class Search:
    """Ask `next_rate`, try it, `tell` the outcome; None ends it. At most `max_trials` are asked for."""

    start: float  # requests per second
    tolerance: float = 0.1  # how far the answer may lie below the truth, relative
    max_trials: int = 10
    best: float | None = None  # the highest rate that met the SLO
    _failed: float | None = None  # the lowest that did not
    _num_trials: int = field(default=0, repr=False)

    @property
    def converged(self) -> bool:
        """Whether the truth is known to lie within the tolerance above `best`."""
        return self.best is not None and self._failed is not None and self._failed <= self.best * (1 + self.tolerance)

    def next_rate(self) -> float | None:
        if self.converged or self._num_trials == self.max_trials:
            return None
        if self.best is None and self._failed is None:
            return self.start
        if self._failed is None:
            assert self.best is not None
            return self.best * _DOUBLING
        if self.best is None:
            return self._failed / _DOUBLING
        return math.sqrt(self.best * self._failed)

    def tell(self, rate: float, *, met: bool) -> None:
        self._num_trials += 1
        if met:
            self.best = rate
        else:
            self._failed = rate
