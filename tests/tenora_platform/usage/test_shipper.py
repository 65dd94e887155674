"""Against a real PostgreSQL with row-level security."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway_under_test import TenantOfTest
from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from tenora_platform.db.models import ApiKey, UsageConflict, UsageEventRow
from tenora_platform.db.session import make_async_engine
from tenora_platform.usage.event import Outcome, UsageEvent
from tenora_platform.usage.shipper import ORDER_LOCK, Shipper
from tenora_platform.usage.spool import Spool


def make_event(tenant: TenantOfTest, **fields: Any) -> UsageEvent:
    with tenant.database.session() as session:
        key_id = session.scalars(select(ApiKey.id).where(ApiKey.tenant_id == tenant.id)).one()
    event_id = uuid.uuid4()
    now = datetime.now(UTC)
    defaults = {
        "event_id": event_id,
        "request_id": f"cmpl-{event_id.hex}",
        "tenant_id": tenant.id,
        "key_id": key_id,
        "base_model": "toy",
        "adapter": "pirate",
        "version_digest": "d" * 64,
        "endpoint": "completions",
        "prompt_tokens": 5,
        "cached_tokens": 1,
        "completion_tokens": 7,
        "outcome": Outcome.COMPLETED,
        "started_at": now,
        "finished_at": now,
    }
    return UsageEvent(**{**defaults, **fields})  # type: ignore[arg-type]


@pytest.fixture
async def postgres(gateway_database: str) -> AsyncIterator[AsyncEngine]:
    engine = make_async_engine(gateway_database)
    yield engine
    await engine.dispose()


@pytest.fixture
async def spool(tmp_path: Path) -> AsyncIterator[Spool]:
    spool = Spool(tmp_path / "spool")
    await spool.start()
    yield spool
    await spool.stop()


async def put(spool: Spool, *events: UsageEvent) -> None:
    for event in events:
        await spool.settle(event)


def conflicts(tenant: TenantOfTest) -> list[UsageConflict]:
    with tenant.database.session() as session:
        return list(session.scalars(select(UsageConflict).where(UsageConflict.tenant_id == tenant.id)))


async def test_an_event_arrives_whole_and_leaves_the_journal(
    spool: Spool, postgres: AsyncEngine, tenant: TenantOfTest
) -> None:
    event = make_event(tenant)
    await put(spool, event)
    assert await Shipper(spool, postgres).ship() == 1
    (row,) = tenant.usage()
    assert {field: getattr(row, field) for field in UsageEvent.__struct_fields__} == msgspec.structs.asdict(event)
    assert await spool.to_ship(10) == []
    assert await Shipper(spool, postgres).ship() == 0


async def test_an_event_delivered_again_counts_once(
    tmp_path: Path, spool: Spool, postgres: AsyncEngine, tenant: TenantOfTest
) -> None:
    """BILL-01: later, and by two gateways at the same moment."""
    event = make_event(tenant)
    other = Spool(tmp_path / "other")
    await other.start()
    await put(spool, event)
    await put(other, event)
    await asyncio.gather(Shipper(spool, postgres).ship(), Shipper(other, postgres).ship())
    await put(spool, event)
    await Shipper(spool, postgres).ship()
    await other.stop()
    assert len(tenant.usage()) == 1
    assert conflicts(tenant) == []


async def test_other_content_under_the_same_id_is_reported_and_changes_nothing(
    spool: Spool, postgres: AsyncEngine, tenant: TenantOfTest
) -> None:
    """BILL-01"""
    event = make_event(tenant)
    shipper = Shipper(spool, postgres)
    await put(spool, event)
    await shipper.ship()
    for _ in range(2):
        await put(spool, msgspec.structs.replace(event, completion_tokens=70))
        await shipper.ship()
    (row,) = tenant.usage()
    assert row.completion_tokens == 7
    (conflict,) = conflicts(tenant)
    assert (conflict.event_id, conflict.payload["completion_tokens"]) == (event.event_id, 70)
    assert await spool.to_ship(10) == []


async def test_doubled_and_shuffled_deliveries_sum_to_the_truth(
    spool: Spool, postgres: AsyncEngine, tenant: TenantOfTest
) -> None:
    """BILL-01"""
    rng = random.Random(7)
    events = [make_event(tenant, completion_tokens=rng.randrange(100), cached_tokens=0) for _ in range(60)]
    deliveries = events * 3
    rng.shuffle(deliveries)
    shipper = Shipper(spool, postgres)
    for start in range(0, len(deliveries), 40):
        await put(spool, *deliveries[start : start + 40])
        await shipper.ship()
    with tenant.database.session() as session:
        total = session.scalar(
            select(func.sum(UsageEventRow.completion_tokens)).where(UsageEventRow.tenant_id == tenant.id)
        )
    assert total == sum(event.completion_tokens for event in events)


async def test_an_event_that_the_database_refuses_stops_no_other(
    spool: Spool, postgres: AsyncEngine, tenant: TenantOfTest
) -> None:
    bad = make_event(tenant, tenant_id=uuid.uuid4())  # of no tenant
    good = [make_event(tenant) for _ in range(3)]
    await put(spool, good[0], bad, *good[1:])
    shipper = Shipper(spool, postgres)
    await shipper.ship()
    assert len(tenant.usage()) == 3
    assert await shipper.ship() == 0


async def test_while_postgres_is_away_nothing_is_lost_and_nobody_waits(
    spool: Spool, postgres: AsyncEngine, tenant: TenantOfTest
) -> None:
    """BILL-02: the journal takes events all the while; they arrive when the database is back."""
    nowhere = make_async_engine("postgresql+psycopg://nobody@127.0.0.1:1/none")
    shipping = asyncio.create_task(Shipper(spool, nowhere).run())
    events = [make_event(tenant) for _ in range(5)]
    async with asyncio.timeout(5):
        await put(spool, *events)
    shipping.cancel()
    await asyncio.gather(shipping, return_exceptions=True)
    await nowhere.dispose()
    assert len(await spool.to_ship(10)) == 5
    await Shipper(spool, postgres).flush()
    assert {row.event_id for row in tenant.usage()} == {event.event_id for event in events}


async def test_a_keys_last_use_is_noted(spool: Spool, postgres: AsyncEngine, tenant: TenantOfTest) -> None:
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    for at in (late, early):
        await put(spool, make_event(tenant, started_at=at, finished_at=at))
        await Shipper(spool, postgres).ship()
    with tenant.database.session() as session:
        assert session.scalars(select(ApiKey.last_used_at).where(ApiKey.tenant_id == tenant.id)).one() == late


async def test_sequence_numbers_appear_in_order(spool: Spool, postgres: AsyncEngine, tenant: TenantOfTest) -> None:
    """Whoever has seen a number has seen all below it: a gateway waits until another's batch is visible."""
    await put(spool, make_event(tenant))
    waits = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
    async with postgres.begin() as another_gateway:
        await another_gateway.execute(select(func.pg_advisory_xact_lock(ORDER_LOCK)))
        shipping = asyncio.create_task(Shipper(spool, postgres).ship())
        async with asyncio.timeout(10):
            while not (await another_gateway.scalar(waits)):
                assert not shipping.done()
        assert tenant.usage() == []
    await shipping
    assert len(tenant.usage()) == 1
