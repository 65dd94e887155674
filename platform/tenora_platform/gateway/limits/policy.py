"""The arithmetic of limits, without Redis and without a clock.

A limit is a ceiling on what is taken in any 60 s. A request takes its most when it is admitted, and gives back what
it did not use when it ends, in the second in which it had been taken: at no time can more be granted than the
ceiling, however many requests run at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Unit(StrEnum):
    REQUESTS = "requests"
    TOKENS = "tokens"


@dataclass(frozen=True)
class Limit:
    """A ceiling per minute of one scope. 0 blocks everything; what is unlimited has no Limit."""

    scope: str  # "tenant:<id>"; keys, adapters and the platform can join later
    unit: Unit
    ceiling: int


@dataclass(frozen=True)
class Cost:
    """What a request takes: itself, and its tokens."""

    requests: int
    tokens: int

    def of(self, unit: Unit) -> int:
        return self.requests if unit is Unit.REQUESTS else self.tokens


NOTHING = Cost(requests=0, tokens=0)


@dataclass(frozen=True)
class Standing:
    """How a limit stood when a request was decided on. Milliseconds from that moment."""

    limit: Limit
    used: int
    fits_in_ms: int | None  # 0: it fits now; None: it never can
    empty_in_ms: int

    @property
    def remaining(self) -> int:
        return max(0, self.limit.ceiling - self.used)


@dataclass(frozen=True)
class Decision:
    """`standings` are in the order in which the limits were given."""

    granted: bool
    standings: tuple[Standing, ...]

    @property
    def blocking(self) -> Standing | None:
        """The limit that the request has to wait for longest; None when it was granted."""
        waiting = [standing for standing in self.standings if standing.fits_in_ms != 0]
        return max(waiting, key=_wait, default=None)

    def headers(self) -> dict[str, str]:
        """`x-ratelimit-{limit,remaining,reset}-{requests,tokens}`, of the tightest limit of each unit."""
        headers: dict[str, str] = {}
        for unit in Unit:
            of_unit = [standing for standing in self.standings if standing.limit.unit is unit]
            if of_unit:
                tightest = min(of_unit, key=lambda standing: standing.remaining)
                headers[f"x-ratelimit-limit-{unit}"] = str(tightest.limit.ceiling)
                headers[f"x-ratelimit-remaining-{unit}"] = str(tightest.remaining)
                headers[f"x-ratelimit-reset-{unit}"] = f"{tightest.empty_in_ms / 1000:.3f}s"
        return headers


def decision_from(limits: Sequence[Limit], answer: Sequence[int]) -> Decision:
    """Read what `reserve.lua` answers."""
    assert len(answer) == 2 + 3 * len(limits)
    standings = []
    for index, limit in enumerate(limits):
        used, fits_in_ms, empty_in_ms = answer[2 + 3 * index : 5 + 3 * index]
        standings.append(Standing(limit, used, None if fits_in_ms < 0 else fits_in_ms, empty_in_ms))
    return Decision(granted=answer[0] == 1, standings=tuple(standings))


def unused(reserved: Cost, actual: Cost) -> Cost:
    """What goes back. Never negative: an engine cannot have used more than was reserved."""
    return Cost(
        requests=max(0, reserved.requests - actual.requests),
        tokens=max(0, reserved.tokens - actual.tokens),
    )


def _wait(standing: Standing) -> float:
    return float("inf") if standing.fits_in_ms is None else standing.fits_in_ms
