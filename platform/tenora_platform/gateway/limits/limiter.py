"""Reserve and settle on Redis, in one script each and on Redis' own clock.

When Redis is away nothing is admitted (the policy is `closed`): a gateway that cannot count must not give away what
it cannot count. What a dead gateway had reserved leaves its window by itself, after 61 s at most.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Final
from uuid import UUID

import redis.asyncio
import redis.exceptions

from tenora_platform.gateway.catalog import Principal
from tenora_platform.gateway.errors import RateLimited, Unavailable
from tenora_platform.gateway.limits.policy import NOTHING, Cost, Decision, Limit, Unit, decision_from, unused

_HOLD_S: Final = 70  # longer than the window: a later settlement has nothing to give back to
_log = logging.getLogger(__name__)


def limits_of(principal: Principal) -> tuple[Limit, ...]:
    ceilings = {Unit.REQUESTS: principal.requests_per_minute, Unit.TOKENS: principal.tokens_per_minute}
    scope = f"tenant:{principal.tenant_id}"
    return tuple(Limit(scope, unit, ceiling) for unit, ceiling in ceilings.items() if ceiling is not None)


@dataclass(frozen=True)
class Reservation:
    """What was taken of each limit for one request. Settle it exactly once; again does no harm."""

    id: UUID
    limits: tuple[Limit, ...]
    cost: Cost
    decision: Decision


def script_text(name: str) -> str:
    return (resources.files("tenora_platform.gateway.limits") / name).read_text(encoding="utf-8")


class Limiter:
    def __init__(self, cache: redis.asyncio.Redis, *, reserve: str | None = None) -> None:
        """`reserve` is the script to reserve with, the one beside this file unless a test brings its own clock."""
        self._reserve = cache.register_script(reserve or script_text("reserve.lua"))
        self._settle = cache.register_script(script_text("settle.lua"))

    async def reserve(self, request_id: UUID, limits: Sequence[Limit], cost: Cost) -> Reservation:
        """Take `cost` of every limit, or of none. Raises RateLimited, and Unavailable when Redis is away."""
        if not limits:
            return Reservation(request_id, (), cost, Decision(granted=True, standings=()))
        arguments = [_HOLD_S, *(value for limit in limits for value in (limit.ceiling, cost.of(limit.unit)))]
        try:
            answer = await self._reserve(keys=_keys(request_id, limits), args=arguments)
        except (redis.exceptions.RedisError, OSError) as error:
            _log.error("cannot reserve: %s", error)
            raise Unavailable("Quotas cannot be checked now.", retry_after_s=1.0) from error
        except asyncio.CancelledError:
            # The client left while Redis was at it: whether it was granted is not known, so it is given back.
            await self.settle(Reservation(request_id, tuple(limits), cost, Decision(True, ())), NOTHING)
            raise
        decision = decision_from(limits, answer)
        if not decision.granted:
            raise _refusal(decision, cost)
        return Reservation(request_id, tuple(limits), cost, decision)

    async def settle(self, reservation: Reservation, actual: Cost) -> None:
        """Give back what was not used. If Redis is away the window forgets it by itself: never too much is granted."""
        if not reservation.limits:
            return
        back = unused(reservation.cost, actual)
        try:
            await self._settle(
                keys=_keys(reservation.id, reservation.limits),
                args=[back.of(limit.unit) for limit in reservation.limits],
            )
        except (redis.exceptions.RedisError, OSError) as error:
            _log.error("cannot settle %s: %s", reservation.id, error)


def _keys(request_id: UUID, limits: Sequence[Limit]) -> list[str]:
    """All in one hash slot, so that a Redis cluster can run the script."""
    tag = f"tenora:limit:{{{limits[0].scope}}}"
    return [f"{tag}:hold:{request_id}", *(f"{tag}:{limit.scope}:{limit.unit}" for limit in limits)]


def _refusal(decision: Decision, cost: Cost) -> RateLimited:
    blocking = decision.blocking
    assert blocking is not None
    limit = blocking.limit
    asked = f"Limit {limit.ceiling}, used {blocking.used}, requested {cost.of(limit.unit)}."
    if limit.ceiling == 0:
        message = f"The quota of {limit.unit} per minute is 0."
    elif blocking.fits_in_ms is None:
        message = f"The request is larger than the whole limit of {limit.unit} per minute. {asked}"
    else:
        message = (
            f"Rate limit of {limit.unit} per minute reached. {asked} Try again in {blocking.fits_in_ms / 1000:.3f}s."
        )
    return RateLimited(
        message,
        unit=limit.unit,
        retry_after_s=None if blocking.fits_in_ms is None else blocking.fits_in_ms / 1000,
        headers=decision.headers(),
    )
