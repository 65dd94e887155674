"""The tables. Every tenant-owned row carries `tenant_id`, and row-level security is the second line behind
`scoped()` (see `session.py`). Counts are integers, money is NUMERIC, instants are aware and UTC."""

from __future__ import annotations

import uuid
from datetime import date, datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    MetaData,
    Numeric,
    String,
    Text,
    UniqueConstraint,
    func,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_label)s",
            "uq": "uq_%(table_name)s_%(column_0_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        datetime: DateTime(timezone=True),
        int: BigInteger,
        str: Text,
        dict[str, Any]: JSONB,
        list[str]: ARRAY(Text),
        list[dict[str, Any]]: JSONB,
    }


class Role(StrEnum):
    PLATFORM_ADMIN = "platform_admin"
    TENANT_ADMIN = "tenant_admin"
    TENANT_VIEWER = "tenant_viewer"
    BILLING = "billing"


class VersionStatus(StrEnum):
    VALIDATING = "validating"
    READY = "ready"
    REJECTED = "rejected"
    RETIRED = "retired"
    DELETED = "deleted"


class ExportStatus(StrEnum):
    PENDING = "pending"
    READY = "ready"
    FAILED = "failed"


class Created:
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Tenant(Base, Created):
    __tablename__ = "tenants"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    name: Mapped[str] = mapped_column(String(63), unique=True)  # [a-z0-9][a-z0-9._-]*
    display_name: Mapped[str] = mapped_column(String(200))
    timezone: Mapped[str] = mapped_column(String(64), default="UTC")  # IANA; its billing days and months
    disabled_at: Mapped[datetime | None]
    # What its adapters may take up: null is unlimited, 0 takes nothing new.
    max_adapters: Mapped[int | None]
    max_adapter_bytes: Mapped[int | None]
    __table_args__ = (
        CheckConstraint("max_adapters BETWEEN 0 AND 1000000", name="max_adapters"),
        CheckConstraint("max_adapter_bytes BETWEEN 0 AND 1000000000000000", name="max_adapter_bytes"),
    )


class User(Base, Created):
    """Somebody who signs in to the control plane. `tenant_id` is null for the platform's own people."""

    __tablename__ = "users"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    username: Mapped[str] = mapped_column(String(200), unique=True)
    password_hash: Mapped[str]
    role: Mapped[str] = mapped_column(String(32))
    tenant_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("tenants.id"))
    disabled_at: Mapped[datetime | None]
    __table_args__ = (
        CheckConstraint("role IN ('platform_admin', 'tenant_admin', 'tenant_viewer', 'billing')", name="role"),
        CheckConstraint("role <> 'platform_admin' OR tenant_id IS NULL", name="platform_admin_has_no_tenant"),
        CheckConstraint("role NOT LIKE 'tenant%' OR tenant_id IS NOT NULL", name="tenant_role_has_tenant"),
    )


class UserSession(Base, Created):
    __tablename__ = "user_sessions"
    token_sha256: Mapped[bytes] = mapped_column(primary_key=True)
    user_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("users.id", ondelete="CASCADE"))
    expires_at: Mapped[datetime]


class ApiKey(Base, Created):
    """`tnr_<prefix>_<secret>`: the prefix finds the row, the SHA-256 of the whole key proves it."""

    __tablename__ = "api_keys"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    tenant_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str] = mapped_column(String(200))
    prefix: Mapped[str] = mapped_column(String(16), unique=True)
    key_sha256: Mapped[bytes]
    allowed_models: Mapped[list[str] | None]  # null: every model of the tenant
    expires_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class BaseModelRow(Base, Created):
    __tablename__ = "base_models"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    name: Mapped[str] = mapped_column(String(200), unique=True)  # what tenants ask for; may hold '/' and ':'
    fingerprint: Mapped[str] = mapped_column(String(64), unique=True)
    folder: Mapped[str]  # tokenizer, chat template and config; the same path on every node
    context_length: Mapped[int]
    spec: Mapped[dict[str, Any]]  # tenora_adapters.base.BaseModel as JSON
    # What an adapter's `base_model_name_or_path` may say, besides `name`. Compared and never opened.
    accepted_names: Mapped[list[str]] = mapped_column(default=list, server_default="{}")


class Adapter(Base, Created):
    """A name of a tenant on a base, and the versions that the bare name serves; moving it is atomic.

    `canary_percent` of its requests go to the canary, the others to the active version. `previous_version_id` is what
    a roll back serves again.
    """

    __tablename__ = "adapters"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    tenant_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tenants.id"))
    base_model_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("base_models.id"))
    name: Mapped[str] = mapped_column(String(63))
    active_version_id: Mapped[uuid.UUID | None] = mapped_column(
        ForeignKey("adapter_versions.id", use_alter=True, name="fk_adapters_active_version")
    )
    canary_version_id: Mapped[uuid.UUID | None] = mapped_column(
        ForeignKey("adapter_versions.id", use_alter=True, name="fk_adapters_canary_version")
    )
    canary_percent: Mapped[int | None]
    previous_version_id: Mapped[uuid.UUID | None] = mapped_column(
        ForeignKey("adapter_versions.id", use_alter=True, name="fk_adapters_previous_version")
    )
    deleted_at: Mapped[datetime | None]
    __table_args__ = (
        CheckConstraint("name ~ '^[a-z0-9][a-z0-9._-]{0,62}$'", name="name"),
        CheckConstraint("(canary_version_id IS NULL) = (canary_percent IS NULL)", name="canary"),
        CheckConstraint("canary_percent BETWEEN 1 AND 99", name="canary_percent"),
        CheckConstraint("canary_version_id <> active_version_id", name="canary_is_another"),
        UniqueConstraint("id", "tenant_id", name="uq_adapters_id_tenant"),
        Index(
            "uq_adapters_live_name",
            "tenant_id",
            "base_model_id",
            "name",
            unique=True,
            postgresql_where="deleted_at IS NULL",
        ),
    )


class AdapterVersion(Base, Created):
    """Immutable once `ready`. Its files lie in the blob store under `digest`, until nobody's version has it."""

    __tablename__ = "adapter_versions"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    tenant_id: Mapped[uuid.UUID]
    adapter_id: Mapped[uuid.UUID]
    number: Mapped[int]  # 1, 2, 3 ... within the adapter
    digest: Mapped[str] = mapped_column(String(64))
    size_bytes: Mapped[int]
    status: Mapped[str] = mapped_column(String(16))  # moved by control.adapters.states alone
    promote_when_ready: Mapped[bool] = mapped_column(default=True, server_default="true")
    ended_at: Mapped[datetime | None]  # when it was rejected or deleted
    report: Mapped[dict[str, Any]]  # what validation found, for a person to act on
    __table_args__ = (
        ForeignKeyConstraint(
            ["adapter_id", "tenant_id"], ["adapters.id", "adapters.tenant_id"], name="fk_version_adapter"
        ),
        UniqueConstraint("adapter_id", "number", name="uq_adapter_versions_number"),
        Index("ix_adapter_versions_digest", "digest"),
        CheckConstraint("status IN ('validating', 'ready', 'rejected', 'retired', 'deleted')", name="status"),
        CheckConstraint("number > 0 AND size_bytes >= 0", name="counts"),
    )


class AdapterUpload(Base, Created):
    """An upload in chunks. It ends as a version or with an error, and is forgotten when it expires."""

    __tablename__ = "adapter_uploads"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    tenant_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    name: Mapped[str]
    base_model: Mapped[str | None]
    confirm_base: Mapped[bool]
    promote: Mapped[bool]
    files: Mapped[list[dict[str, Any]]]  # control.uploads.schemas.UploadFile, in the order of their bytes
    size_bytes: Mapped[int]
    received_bytes: Mapped[int]
    num_chunks: Mapped[int]
    finishing_at: Mapped[datetime | None]  # since when somebody is making a version of it
    adapter_id: Mapped[uuid.UUID | None]
    version_id: Mapped[uuid.UUID | None] = mapped_column(ForeignKey("adapter_versions.id"))
    error: Mapped[dict[str, Any] | None]  # control.failures.FailureDetail
    expires_at: Mapped[datetime] = mapped_column(index=True)
    __table_args__ = (
        CheckConstraint("received_bytes BETWEEN 0 AND size_bytes AND num_chunks >= 0", name="counts"),
        CheckConstraint("(adapter_id IS NULL) = (version_id IS NULL)", name="outcome"),
    )


class AdapterBlobs(Base):
    """That an adapter's files may lie in the blob store; they are everybody's who uploaded them.

    Whoever wants to make a version of them takes the generation before it writes them, and holds the row with the same
    generation when it makes the version. Null: the files are about to go. See `control/adapters/storing.py`.
    """

    __tablename__ = "adapter_blobs"
    digest: Mapped[str] = mapped_column(String(64), primary_key=True)
    noted_at: Mapped[datetime] = mapped_column(server_default=func.now(), index=True)
    generation: Mapped[uuid.UUID | None]


class Quota(Base):
    """Limits of one tenant. Null is unlimited, 0 blocks everything."""

    __tablename__ = "quotas"
    tenant_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    requests_per_minute: Mapped[int | None]
    tokens_per_minute: Mapped[int | None]
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now(), onupdate=func.now())
    __table_args__ = (
        CheckConstraint("requests_per_minute BETWEEN 0 AND 1000000000", name="requests_per_minute"),
        CheckConstraint("tokens_per_minute BETWEEN 0 AND 1000000000000", name="tokens_per_minute"),
    )


class UsageEventRow(Base):
    """`tenora_platform.usage.event.UsageEvent`, once for ever per event id. `payload_sha256` finds conflicts."""

    __tablename__ = "usage_events"
    event_id: Mapped[uuid.UUID] = mapped_column(primary_key=True)
    sequence: Mapped[int] = mapped_column(Identity(always=True), unique=True)  # order of arrival, for watermarks
    request_id: Mapped[str]
    tenant_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tenants.id"))
    key_id: Mapped[uuid.UUID]
    base_model: Mapped[str]
    adapter: Mapped[str | None]
    version_digest: Mapped[str | None] = mapped_column(String(64))
    endpoint: Mapped[str]
    prompt_tokens: Mapped[int]
    cached_tokens: Mapped[int]
    completion_tokens: Mapped[int]
    outcome: Mapped[str] = mapped_column(String(16))
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime]
    payload_sha256: Mapped[bytes]
    received_at: Mapped[datetime] = mapped_column(server_default=func.now())
    __table_args__ = (
        CheckConstraint("prompt_tokens >= 0 AND completion_tokens >= 0", name="tokens"),
        CheckConstraint("cached_tokens BETWEEN 0 AND prompt_tokens", name="cached"),
        CheckConstraint("started_at <= finished_at", name="instants"),
        Index("ix_usage_events_tenant_finished", "tenant_id", "finished_at"),
    )


class UsageConflict(Base):
    """An event id that arrived again with other content. The first stays; this is for a person to look at."""

    __tablename__ = "usage_conflicts"
    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    event_id: Mapped[uuid.UUID]
    tenant_id: Mapped[uuid.UUID]
    payload: Mapped[dict[str, Any]]
    received_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Price(Base, Created):
    """The price book: per million tokens, from `effective_from` until a later row of the same base."""

    __tablename__ = "prices"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    base_model: Mapped[str]
    effective_from: Mapped[datetime]
    currency: Mapped[str] = mapped_column(String(3))
    prompt_per_million: Mapped[Decimal] = mapped_column(Numeric(18, 9))
    cached_per_million: Mapped[Decimal] = mapped_column(Numeric(18, 9))
    completion_per_million: Mapped[Decimal] = mapped_column(Numeric(18, 9))
    __table_args__ = (
        UniqueConstraint("base_model", "effective_from", name="uq_prices_base_effective"),
        CheckConstraint(
            "prompt_per_million >= 0 AND cached_per_million >= 0 AND completion_per_million >= 0", name="amounts"
        ),
    )


class Export(Base, Created):
    """A billing export of one tenant and period, and revision. Once `ready` its files never change."""

    __tablename__ = "exports"
    id: Mapped[uuid.UUID] = mapped_column(primary_key=True, default=uuid.uuid4)
    tenant_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("tenants.id"), index=True)
    period_first_day: Mapped[date]  # in the tenant's time zone
    period_last_day: Mapped[date]  # inclusive
    timezone: Mapped[str] = mapped_column(String(64))  # the tenant's when the export was made
    starts_at: Mapped[datetime]  # the same period as half-open instants
    ends_at: Mapped[datetime]
    revision: Mapped[int]
    up_to_sequence: Mapped[int | None]  # the last usage event it could see: makes it again byte for byte
    prices: Mapped[list[dict[str, Any]] | None]  # and the part of the price book that it saw, for the same reason
    status: Mapped[str] = mapped_column(String(16))
    sha256: Mapped[str | None] = mapped_column(String(64))
    rows: Mapped[int | None]
    totals: Mapped[dict[str, Any] | None]
    error: Mapped[str | None]
    __table_args__ = (
        UniqueConstraint(
            "tenant_id", "period_first_day", "period_last_day", "revision", name="uq_exports_period_revision"
        ),
        CheckConstraint("status IN ('pending', 'ready', 'failed')", name="status"),
        CheckConstraint("starts_at < ends_at AND revision > 0", name="period"),
    )


class AuditEntry(Base):
    """Who changed what. `detail` never holds a secret."""

    __tablename__ = "audit_entries"
    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=func.now(), index=True)
    actor: Mapped[str]  # user name, or "system"
    tenant_id: Mapped[uuid.UUID | None]
    action: Mapped[str]  # "api_key.revoke", ...
    target: Mapped[str]  # id of what was changed
    detail: Mapped[dict[str, Any]]
