"""The read-through cache: ages, bounds, and drops that overtake loads."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tenora_platform.gateway.cache import ReadThrough


class Source:
    """What is true now, and how often it was asked for."""

    def __init__(self) -> None:
        self.rows: dict[str, str] = {}
        self.asked: Counter[str] = Counter()
        self.gate: asyncio.Event | None = None
        self.now = 0.0

    async def load(self, key: str) -> str | None:
        self.asked[key] += 1
        row = self.rows.get(key)
        if self.gate is not None:
            await self.gate.wait()
        return row

    def cache(self, **bounds: int) -> ReadThrough[str, str]:
        return ReadThrough(self.load, ttl_s=4.0, clock=lambda: self.now, **bounds)


@pytest.fixture
def source() -> Source:
    return Source()


async def test_use_does_not_prolong_an_entry(source: Source) -> None:
    """AUTH-01: a revoked key in continuous use is refused within the bound."""
    source.rows["k"] = "valid"
    cache = source.cache()
    assert await cache.get("k") == "valid"
    del source.rows["k"]
    seen = []
    for tick in range(1, 12):
        source.now = tick * 0.5
        seen.append(await cache.get("k"))
    assert seen[:7] == ["valid"] * 7
    assert seen[7:] == [None] * 4  # from 4.0 s on


async def test_an_absent_entry_does_not_outlive_the_bound(source: Source) -> None:
    """AUTH-01: a key made just after somebody asked for it works within the bound."""
    cache = source.cache()
    assert await cache.get("k") is None
    source.rows["k"] = "valid"
    source.now = 3.9
    assert await cache.get("k") is None
    source.now = 4.0
    assert await cache.get("k") == "valid"


async def test_the_age_counts_from_when_the_load_began(source: Source) -> None:
    source.rows["k"] = "old"
    source.gate = asyncio.Event()
    cache = source.cache()
    asking = asyncio.create_task(cache.get("k"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    source.rows["k"] = "new"
    source.now = 3.0
    source.gate.set()
    assert await asking == "old"
    source.now = 4.0
    assert await cache.get("k") == "new"


async def test_a_load_overtaken_by_a_drop_is_not_kept(source: Source) -> None:
    source.rows["k"] = "old"
    source.gate = asyncio.Event()
    cache = source.cache()
    asking = asyncio.create_task(cache.get("k"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    source.rows["k"] = "new"
    cache.drop(lambda key, _: key == "k")
    source.gate.set()
    assert await cache.get("k") == "new"
    assert await asking == "old"
    assert await cache.get("k") == "new"


async def test_concurrent_misses_share_one_load_and_survive_each_other(source: Source) -> None:
    source.rows["k"] = "v"
    source.gate = asyncio.Event()
    cache = source.cache()
    asking = [asyncio.create_task(cache.get("k")) for _ in range(5)]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    asking[0].cancel()
    source.gate.set()
    assert await asyncio.gather(*asking[1:]) == ["v"] * 4
    assert source.asked["k"] == 1


async def test_guesses_push_out_no_real_entry_and_are_bounded(source: Source) -> None:
    source.rows["k"] = "v"
    cache = source.cache(max_entries=2, max_absent=3)
    await cache.get("k")
    for guess in range(100):
        await cache.get(f"guess-{guess}")
    assert len(cache) == 4
    await cache.get("k")
    assert source.asked["k"] == 1


async def test_a_failed_load_is_told_to_all_and_not_kept() -> None:
    calls = []

    async def load(key: str) -> str | None:
        calls.append(key)
        if len(calls) == 1:
            raise ConnectionError
        return "v"

    cache: ReadThrough[str, str] = ReadThrough(load, ttl_s=4.0, clock=lambda: 0.0)
    with pytest.raises(ConnectionError):
        await cache.get("k")
    assert await cache.get("k") == "v"
