"""From the journal into Postgres: each event once for ever, whatever is retried, lost or doubled on the way."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec
import sqlalchemy.exc
from sqlalchemy import bindparam, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tenora_platform.db.models import ApiKey, Base, UsageConflict, UsageEventRow
from tenora_platform.db.session import PLATFORM, set_scope
from tenora_platform.usage.event import UsageEvent
from tenora_platform.usage.spool import Spool, SpoolError

_BATCH: Final = 500
_IDLE_S: Final = 1.0
_GATHER_S: Final = 0.1  # events of this long travel together: one transaction instead of one each
_MAX_BACKOFF_S: Final = 10.0
# Held while a batch is inserted, so that `sequence` numbers become visible in their order: a reader that has seen
# one has seen all below it, which is what makes it a watermark.
ORDER_LOCK: Final = 0x7E40_5A6E
_TABLE: Final = Base.metadata.tables[UsageEventRow.__tablename__]
_INSERT: Final = insert(_TABLE).on_conflict_do_nothing(index_elements=["event_id"]).returning(_TABLE.c.event_id)
_log = logging.getLogger(__name__)


def payload_sha256(event: UsageEvent) -> bytes:
    """Tells the same event delivered again from another one under its id."""
    return hashlib.sha256(msgspec.json.encode(event)).digest()


class Shipper:
    """Runs beside the streams and never holds one up. Events leave the journal once Postgres has them."""

    def __init__(self, spool: Spool, database: AsyncEngine) -> None:
        self._spool = spool
        self._database = database

    async def run(self) -> None:
        """For ever. While Postgres is away events stay in the journal."""
        backoff_s = 0.1
        while True:
            try:
                self._spool.settled.clear()
                while await self.ship():
                    pass
                backoff_s = 0.1
                async with asyncio.timeout(_IDLE_S):
                    await self._spool.settled.wait()
                await asyncio.sleep(_GATHER_S)
            except TimeoutError:
                continue
            except (sqlalchemy.exc.SQLAlchemyError, SpoolError, OSError) as error:
                _log.warning("usage is kept in the journal for now: %s", type(error).__name__)
                await asyncio.sleep(backoff_s)
                backoff_s = min(2 * backoff_s, _MAX_BACKOFF_S)

    async def flush(self) -> None:
        """Ship what is there, in one try: for a process that ends. What stays is shipped by the next."""
        try:
            while await self.ship():
                pass
        except (sqlalchemy.exc.SQLAlchemyError, SpoolError, OSError) as error:
            _log.warning("usage stays in the journal: %s", type(error).__name__)

    async def ship(self) -> int:
        """Ship one batch; how many events left the journal or were set aside."""
        events = await self._spool.to_ship(_BATCH)
        if not events:
            return 0
        try:
            await self._store(events)
        except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.DataError):
            await self._ship_one_by_one(events)
        else:
            await self._spool.remove([event.event_id for event in events])
        return len(events)

    async def _ship_one_by_one(self, events: Sequence[UsageEvent]) -> None:
        """One of them breaks a rule of the database. It is set aside, so that the others do not wait for it."""
        for event in events:
            try:
                await self._store([event])
            except (sqlalchemy.exc.IntegrityError, sqlalchemy.exc.DataError) as error:
                _log.critical("usage event %s was refused: %s", event.event_id, error.orig)
                await self._spool.set_aside(event.event_id, str(error.orig))
            else:
                await self._spool.remove([event.event_id])

    async def _store(self, events: Sequence[UsageEvent]) -> None:
        async with self._database.begin() as connection:
            await connection.run_sync(set_scope, PLATFORM)
            await connection.execute(select(func.pg_advisory_xact_lock(ORDER_LOCK)))
            stored = await connection.execute(_INSERT, [_row(event) for event in events])
            new = set(stored.scalars())
            again = [event for event in events if event.event_id not in new]
            if again:
                await _record_conflicts(connection, again)
            await _note_key_use(connection, events)


async def _record_conflicts(connection: AsyncConnection, events: Sequence[UsageEvent]) -> None:
    """Of events that were there already, keep those whose content differs. The first one stays what is billed."""
    ids = [event.event_id for event in events]
    known = await connection.execute(
        select(UsageEventRow.event_id, UsageEventRow.payload_sha256).where(UsageEventRow.event_id.in_(ids))
    )
    hashes: dict[UUID, bytes] = {row.event_id: row.payload_sha256 for row in known}
    for event in events:
        if hashes[event.event_id] == payload_sha256(event):
            continue
        payload = msgspec.to_builtins(event)
        same = select(UsageConflict.id).where(
            UsageConflict.event_id == event.event_id, UsageConflict.payload == payload
        )
        if (await connection.scalars(same)).first() is None:
            _log.error("usage event %s arrived again with other content", event.event_id)
            await connection.execute(
                insert(UsageConflict).values(event_id=event.event_id, tenant_id=event.tenant_id, payload=payload)
            )


async def _note_key_use(connection: AsyncConnection, events: Sequence[UsageEvent]) -> None:
    latest: dict[UUID, datetime] = {}
    for event in events:
        latest[event.key_id] = max(event.started_at, latest.get(event.key_id, event.started_at))
    statement = (
        update(ApiKey)
        .where(ApiKey.id == bindparam("key"))
        .values(last_used_at=func.greatest(func.coalesce(ApiKey.last_used_at, bindparam("at")), bindparam("at")))
    )
    # In one order everywhere, so that two gateways never wait for each other.
    await connection.execute(statement, [{"key": key, "at": latest[key]} for key in sorted(latest)])


def _row(event: UsageEvent) -> dict[str, Any]:
    return {**msgspec.structs.asdict(event), "payload_sha256": payload_sha256(event)}
