"""What the gateway reads from Postgres, and the values it reads it into. Nothing here is cached."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from uuid import UUID

import sqlalchemy.exc
from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from tenora_platform.db.models import Adapter, AdapterVersion, ApiKey, BaseModelRow, Quota, Tenant, VersionStatus
from tenora_platform.db.session import PLATFORM, set_scope
from tenora_platform.gateway.canary import bucket
from tenora_platform.gateway.errors import Unavailable


@dataclass(frozen=True)
class Principal:
    """A tenant's key, and what its tenant may spend. Null limits are unlimited."""

    key_id: UUID
    tenant_id: UUID
    allowed_models: frozenset[str] | None
    requests_per_minute: int | None
    tokens_per_minute: int | None

    def may_use(self, name: str) -> bool:
        return self.allowed_models is None or name in self.allowed_models


@dataclass(frozen=True)
class KeyRecord:
    principal: Principal
    sha256: bytes
    expires_at: datetime | None
    usable: bool  # neither revoked nor of a disabled tenant


@dataclass(frozen=True)
class Base:
    id: UUID
    name: str
    fingerprint: str
    folder: Path
    context_length: int  # tokens, prompt and completion
    vocab_size: int
    created_at: datetime


@dataclass(frozen=True)
class Version:
    """One immutable version of a tenant's adapter, ready to be served."""

    base_id: UUID
    adapter: str
    digest: str
    created_at: datetime
    number: int


@dataclass(frozen=True)
class Serving:
    """What an adapter's name means without a number: one version, or two that share its requests."""

    adapter_id: UUID
    active: Version
    canary: Version | None
    canary_percent: int  # 0 without a canary

    def version_for(self, asker: str) -> Version:
        if self.canary is not None and bucket(self.adapter_id, asker) < self.canary_percent:
            return self.canary
        return self.active


@dataclass(frozen=True)
class AdapterKey:
    tenant_id: UUID
    base_id: UUID
    adapter: str


@dataclass(frozen=True)
class VersionKey(AdapterKey):
    number: int


class Catalog:
    """Every method raises Unavailable when Postgres cannot be asked."""

    def __init__(self, database: AsyncEngine) -> None:
        self._database = database

    async def key(self, prefix: str) -> KeyRecord | None:
        query = (
            select(
                ApiKey.id,
                ApiKey.tenant_id,
                ApiKey.key_sha256,
                ApiKey.allowed_models,
                ApiKey.expires_at,
                ApiKey.revoked_at,
                Tenant.disabled_at,
                Quota.requests_per_minute,
                Quota.tokens_per_minute,
            )
            .join(Tenant, Tenant.id == ApiKey.tenant_id)
            .outerjoin(Quota, Quota.tenant_id == ApiKey.tenant_id)
            .where(ApiKey.prefix == prefix)
        )
        # A key is what tells the tenant, so this one look-up is the platform's own.
        async with self._reading(PLATFORM) as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            return None
        return KeyRecord(
            principal=Principal(
                key_id=row.id,
                tenant_id=row.tenant_id,
                allowed_models=None if row.allowed_models is None else frozenset(row.allowed_models),
                requests_per_minute=row.requests_per_minute,
                tokens_per_minute=row.tokens_per_minute,
            ),
            sha256=row.key_sha256,
            expires_at=row.expires_at,
            usable=row.revoked_at is None and row.disabled_at is None,
        )

    async def bases(self) -> tuple[Base, ...]:
        """Every base model, by name."""
        columns = BaseModelRow
        query = select(
            columns.id,
            columns.name,
            columns.fingerprint,
            columns.folder,
            columns.context_length,
            columns.spec["vocab_size"].as_integer().label("vocab_size"),
            columns.created_at,
        ).order_by(columns.name)
        async with self._reading(PLATFORM) as connection:
            rows = (await connection.execute(query)).all()
        return tuple(
            Base(
                row.id, row.name, row.fingerprint, Path(row.folder), row.context_length, row.vocab_size, row.created_at
            )
            for row in rows
        )

    async def version(self, key: VersionKey) -> Version | None:
        query = _VERSIONS.where(*_named(key), AdapterVersion.number == key.number)
        async with self._reading(key.tenant_id) as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else Version(*row)

    async def serving(self, key: AdapterKey) -> Serving | None:
        is_active = AdapterVersion.id == Adapter.active_version_id
        query = _VERSIONS.add_columns(
            Adapter.id.label("adapter_id"), Adapter.canary_percent, is_active.label("is_active")
        ).where(*_named(key), or_(is_active, AdapterVersion.id == Adapter.canary_version_id))
        async with self._reading(key.tenant_id) as connection:
            rows = (await connection.execute(query)).all()
        versions = {
            row.is_active: Version(row.base_model_id, row.name, row.digest, row.created_at, row.number) for row in rows
        }
        if True not in versions:
            return None
        return Serving(rows[0].adapter_id, versions[True], versions.get(False), rows[0].canary_percent or 0)

    async def active_versions(self, tenant_id: UUID) -> tuple[Version, ...]:
        """Of each of the tenant's adapters that has one, by name."""
        query = _VERSIONS.where(
            Adapter.tenant_id == tenant_id, AdapterVersion.id == Adapter.active_version_id
        ).order_by(Adapter.name)
        async with self._reading(tenant_id) as connection:
            return tuple(Version(*row) for row in await connection.execute(query))

    async def check(self) -> None:
        """Whether Postgres answers. Raises Unavailable."""
        async with self._reading(PLATFORM) as connection:
            await connection.execute(select(1))

    @asynccontextmanager
    async def _reading(self, scope: UUID | str) -> AsyncIterator[AsyncConnection]:
        try:
            async with self._database.connect() as connection:
                await connection.run_sync(set_scope, scope)
                yield connection
        except (sqlalchemy.exc.DBAPIError, sqlalchemy.exc.TimeoutError, OSError) as error:
            raise Unavailable("The platform's database does not answer.", retry_after_s=2.0) from error


def _named(key: AdapterKey) -> tuple[ColumnElement[bool], ...]:
    return (Adapter.tenant_id == key.tenant_id, Adapter.base_model_id == key.base_id, Adapter.name == key.adapter)


_VERSIONS = (
    select(Adapter.base_model_id, Adapter.name, AdapterVersion.digest, AdapterVersion.created_at, AdapterVersion.number)
    .join(AdapterVersion, AdapterVersion.adapter_id == Adapter.id)
    .where(
        AdapterVersion.tenant_id == Adapter.tenant_id,
        AdapterVersion.status == VersionStatus.READY,
        Adapter.deleted_at.is_(None),
    )
)
