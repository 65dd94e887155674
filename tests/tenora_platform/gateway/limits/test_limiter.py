"""Against a real Valkey. Where time matters the scripts run on a clock that the test sets."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
import redis.asyncio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenora_platform.gateway.errors import RateLimited, Unavailable
from tenora_platform.gateway.limits.limiter import Limiter, Reservation, script_text
from tenora_platform.gateway.limits.policy import NOTHING, Cost, Limit, Unit

_CLOCK = "redis.call('TIME')"


def limits(requests: int | None = None, tokens: int | None = None, scope: str | None = None) -> list[Limit]:
    scope = scope or f"tenant:{uuid.uuid4()}"
    ceilings = ((Unit.REQUESTS, requests), (Unit.TOKENS, tokens))
    return [Limit(scope, unit, ceiling) for unit, ceiling in ceilings if ceiling is not None]


class OnFakeClock:
    """The limiter on a time of its own, in milliseconds."""

    def __init__(self, cache: redis.asyncio.Redis) -> None:
        script = script_text("reserve.lua")
        assert script.count(_CLOCK) == 1
        self._cache = cache
        self._limiter = Limiter(cache, reserve=script.replace(_CLOCK, "redis.call('HMGET', 'clock', 's', 'us')"))

    async def reserve(self, at_ms: int, of: list[Limit], tokens: int = 0) -> Reservation:
        await self._cache.hset("clock", mapping={"s": at_ms // 1000, "us": at_ms % 1000 * 1000})
        return await self._limiter.reserve(uuid.uuid4(), of, Cost(1, tokens))

    async def settle(self, reservation: Reservation, tokens: int) -> None:
        await self._limiter.settle(reservation, Cost(1, tokens))


@pytest.fixture
async def cache(redis_url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(redis_url) as cache:
        yield cache


@pytest.fixture
def limiter(cache: redis.asyncio.Redis) -> Limiter:
    return Limiter(cache)


@pytest.fixture
def clock(cache: redis.asyncio.Redis) -> OnFakeClock:
    return OnFakeClock(cache)


START_MS = 1_000_000_000_000


async def test_a_burst_at_the_minute_is_held_to_the_limit(clock: OnFakeClock) -> None:
    """QTA-04"""
    of = limits(requests=60)
    for _ in range(60):
        await clock.reserve(START_MS + 59_900, of)
    with pytest.raises(RateLimited) as caught:
        await clock.reserve(START_MS + 60_100, of)
    assert caught.value.retry_after_s == pytest.approx(59.9)  # when its own budget frees, not at the next minute
    with pytest.raises(RateLimited):
        await clock.reserve(START_MS + 60_100 + 59_899, of)
    await clock.reserve(START_MS + 60_100 + 59_900, of)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    ceiling=st.integers(0, 12),
    arrivals=st.lists(st.tuples(st.integers(0, 25_000), st.integers(1, 6), st.integers(0, 6)), max_size=40),
)
async def test_in_any_minute_at_most_the_limit(
    redis_url: str, ceiling: int, arrivals: list[tuple[int, int, int]]
) -> None:
    """QTA-04: against a naive model, with requests settled to what they used, at the time that is told."""
    async with redis.asyncio.Redis.from_url(redis_url) as cache:
        clock, of = OnFakeClock(cache), limits(tokens=ceiling)
        now, taken = START_MS, []  # [(ms, amount)]
        for gap_ms, amount, used in arrivals:
            now += gap_ms
            in_window = sum(each for at, each in taken if at // 1000 > now // 1000 - 61)
            try:
                reservation = await clock.reserve(now, of, amount)
            except RateLimited as refusal:
                assert in_window + amount > ceiling
                if refusal.retry_after_s is None:
                    assert amount > ceiling
                else:
                    later = now + round(refusal.retry_after_s * 1000)
                    still = sum(each for at, each in taken if at // 1000 > later // 1000 - 61)
                    just_before = sum(each for at, each in taken if at // 1000 > (later - 1) // 1000 - 61)
                    assert still + amount <= ceiling < just_before + amount
            else:
                assert in_window + amount <= ceiling
                used = min(used, amount)
                await clock.settle(reservation, used)
                taken.append((now, used))
        for end, _ in taken:
            assert sum(each for at, each in taken if end - 60_000 < at <= end) <= ceiling


async def test_fifty_at_once_through_two_gateways_stay_within_the_budget(redis_url: str) -> None:
    """QTA-01"""
    of = limits(tokens=1000)

    async def gateway() -> list[Reservation]:
        async with redis.asyncio.Redis.from_url(redis_url) as cache:
            limiter = Limiter(cache)
            asked = [limiter.reserve(uuid.uuid4(), of, Cost(1, 100)) for _ in range(25)]
            answers = await asyncio.gather(*asked, return_exceptions=True)
            assert all(isinstance(answer, Reservation | RateLimited) for answer in answers)
            return [answer for answer in answers if isinstance(answer, Reservation)]

    admitted = await asyncio.gather(gateway(), gateway())
    assert sum(map(len, admitted)) == 10


async def test_a_refusal_costs_nothing_in_any_limit(limiter: Limiter) -> None:
    """QTA-03: enough requests are left, but the tokens are not."""
    of = limits(requests=10, tokens=100)
    await limiter.reserve(uuid.uuid4(), of, Cost(1, 90))
    for _ in range(20):
        with pytest.raises(RateLimited) as caught:
            await limiter.reserve(uuid.uuid4(), of, Cost(1, 20))
    assert caught.value.unit == "tokens"
    last = await limiter.reserve(uuid.uuid4(), of, Cost(1, 10))
    assert [standing.used for standing in last.decision.standings] == [2, 100]


async def test_what_is_not_used_goes_back_once(limiter: Limiter) -> None:
    """QTA-03: free + held + used is the limit, whatever is repeated."""
    of = limits(requests=10, tokens=100)
    reservation = await limiter.reserve(uuid.uuid4(), of, Cost(1, 80))
    for _ in range(3):
        await limiter.settle(reservation, Cost(1, 30))
    after = await limiter.reserve(uuid.uuid4(), of, Cost(1, 70))
    assert [standing.remaining for standing in after.decision.standings] == [8, 0]
    await limiter.settle(after, NOTHING)
    again = await limiter.reserve(uuid.uuid4(), of, Cost(1, 0))
    assert [standing.remaining for standing in again.decision.standings] == [8, 70]


async def test_a_reservation_that_is_sent_twice_is_taken_once(limiter: Limiter) -> None:
    of, request_id = limits(tokens=100), uuid.uuid4()
    for _ in range(3):
        answer = await limiter.reserve(request_id, of, Cost(1, 60))
    assert answer.decision.standings[0].used == 60


async def test_nothing_is_given_back_to_a_minute_that_has_passed(clock: OnFakeClock) -> None:
    of = limits(tokens=100)
    old = await clock.reserve(START_MS, of, 100)
    await clock.reserve(START_MS + 61_000, of, 60)
    await clock.settle(old, 0)
    with pytest.raises(RateLimited):
        await clock.reserve(START_MS + 61_500, of, 41)
    await clock.reserve(START_MS + 61_500, of, 40)


async def test_what_a_dead_gateway_held_leaves_by_itself(clock: OnFakeClock, cache: redis.asyncio.Redis) -> None:
    """QTA-03: kill -9 after reserving."""
    of = limits(tokens=100)
    await clock.reserve(START_MS, of, 100)
    await clock.reserve(START_MS + 61_000, of, 100)
    keys = [key async for key in cache.scan_iter("tenora:limit:*")]
    assert keys
    for key in keys:
        assert 0 < await cache.ttl(key) <= 70


async def test_zero_blocks_all_and_is_told_as_final(limiter: Limiter) -> None:
    with pytest.raises(RateLimited) as caught:
        await limiter.reserve(uuid.uuid4(), limits(requests=0), Cost(1, 1))
    assert caught.value.retry_after_s is None
    assert caught.value.headers["x-should-retry"] == "false"
    assert "retry-after" not in caught.value.headers


async def test_no_limit_needs_no_redis() -> None:
    async with redis.asyncio.Redis(port=1) as nowhere:
        reservation = await Limiter(nowhere).reserve(uuid.uuid4(), [], Cost(1, 10**12))
        await Limiter(nowhere).settle(reservation, NOTHING)


async def test_without_redis_nothing_is_admitted() -> None:
    async with redis.asyncio.Redis(port=1) as nowhere:
        with pytest.raises(Unavailable) as caught:
            await Limiter(nowhere).reserve(uuid.uuid4(), limits(requests=1), Cost(1, 1))
    assert caught.value.headers["retry-after"] == "1"


async def test_tenants_do_not_share(limiter: Limiter) -> None:
    await limiter.reserve(uuid.uuid4(), limits(requests=1, scope="tenant:a"), Cost(1, 0))
    await limiter.reserve(uuid.uuid4(), limits(requests=1, scope="tenant:b"), Cost(1, 0))


async def test_large_ceilings_are_exact(limiter: Limiter) -> None:
    of = limits(tokens=10**12)
    await limiter.reserve(uuid.uuid4(), of, Cost(1, 10**12 - 1))
    last = await limiter.reserve(uuid.uuid4(), of, Cost(1, 1))
    assert last.decision.standings[0].used == 10**12
