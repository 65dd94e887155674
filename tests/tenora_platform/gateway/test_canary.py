"""Which of two versions a request gets."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gateway_under_test import BASE, TenantOfTest
from sqlalchemy import select, update

from tenora_platform.db.models import Adapter, AdapterVersion
from tenora_platform.db.session import make_async_engine
from tenora_platform.gateway.canary import asker_of, bucket
from tenora_platform.gateway.catalog import AdapterKey, Catalog, Serving
from tenora_platform.gateway.directory import Directory

ADAPTER = uuid.UUID("0190d7a2-0000-7000-8000-000000000001")


class CountingCatalog(Catalog):
    asked = 0

    async def serving(self, key: AdapterKey) -> Serving | None:
        self.asked += 1
        return await super().serving(key)


@pytest.fixture
async def catalog(gateway_database: str) -> AsyncIterator[CountingCatalog]:
    engine = make_async_engine(gateway_database)
    yield CountingCatalog(engine)
    await engine.dispose()


def test_the_documented_hash() -> None:
    """Written down once: gateways of two releases must agree while both run."""
    assert [bucket(ADAPTER, asker) for asker in ("user:alice", "user:bob", f"key:{ADAPTER}")] == [46, 28, 60]


def test_who_is_asking() -> None:
    key_id = uuid.uuid4()
    assert asker_of("alice", key_id) == "user:alice"
    assert asker_of(None, key_id) == asker_of("", key_id) == f"key:{key_id}"
    assert asker_of(f"key:{key_id}", key_id) != asker_of(None, key_id), "a user cannot be named like a key"


def test_shares_are_what_they_say_and_only_grow() -> None:
    buckets = [bucket(ADAPTER, f"user:{number}") for number in range(20_000)]
    for percent in (1, 10, 50, 99):
        share = sum(b < percent for b in buckets) / len(buckets)
        assert abs(share - percent / 100) < 0.012  # more than three standard deviations at 50 %
    other = [bucket(uuid.UUID(int=1), f"user:{number}") for number in range(20_000)]
    both = sum(a < 10 and b < 10 for a, b in zip(buckets, other, strict=True)) / len(buckets)
    assert both < 0.015, "who is in one adapter's canary is in another's by chance alone"


async def test_requests_are_split_by_user_from_what_is_cached(catalog: CountingCatalog, tenant: TenantOfTest) -> None:
    """One question to the database for all of them, and each user always gets the same version."""
    canary, active = tenant.adapter("bot"), tenant.adapter("bot")
    adapter_id = start_canary(tenant, canary, percent=25)
    directory = Directory(catalog, ttl_s=3600.0)
    principal = await directory.authenticate(tenant.key)

    async def digest(name: str, user: str | None = None) -> str:
        version = (await directory.resolve(principal, f"{BASE}:{name}", user)).version
        assert version is not None
        return version.digest

    for _ in range(2):
        for number in range(100):
            wanted = canary if bucket(adapter_id, f"user:u{number}") < 25 else active
            assert await digest("bot", f"u{number}") == wanted
    assert len({await digest("bot") for _ in range(20)}) == 1, "without a user the key decides"
    assert catalog.asked == 1
    assert (await digest("bot@1", "u1"), await digest("bot@2", "u1")) == (canary, active)
    (_, listed) = await directory.models(principal)
    assert (listed.name, listed.version.digest) == (f"{BASE}:bot", active)  # type: ignore[union-attr]


def start_canary(tenant: TenantOfTest, digest: str, percent: int) -> uuid.UUID:
    with tenant.database.session() as session, session.begin():
        version: Any = session.scalars(select(AdapterVersion).where(AdapterVersion.digest == digest)).one()
        moved = {"canary_version_id": version.id, "canary_percent": percent}
        session.execute(update(Adapter).where(Adapter.id == version.adapter_id).values(moved))
        return uuid.UUID(str(version.adapter_id))
