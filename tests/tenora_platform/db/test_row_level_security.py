"""AUTH-06, second line: PostgreSQL itself hides other tenants' rows from a query that forgot to ask for its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from sqlalchemy import Engine, select, text
from sqlalchemy.exc import ProgrammingError
from sqlalchemy.orm import Session

from tenora_platform.control.bootstrap import migrate
from tenora_platform.db.models import (
    Adapter,
    AdapterUpload,
    AdapterVersion,
    ApiKey,
    AuditEntry,
    Base,
    BaseModelRow,
    Export,
    Quota,
    Role,
    Tenant,
    UsageConflict,
    UsageEventRow,
    User,
    UserSession,
)
from tenora_platform.db.session import PLATFORM, make_engine, session_factory

NOW = datetime(2026, 1, 2, tzinfo=UTC)
# Every table whose rows belong to a tenant: those that say so, the tenants themselves, and what hangs on a user.
OWNED = [mapper.class_ for mapper in Base.registry.mappers if "tenant_id" in mapper.columns] + [Tenant, UserSession]


@pytest.fixture
def engine(postgres_url: str) -> Iterator[Engine]:
    migrate(postgres_url)
    engine = make_engine(postgres_url)
    yield engine
    engine.dispose()


def _populate(session: Session, name: str) -> uuid.UUID:
    """One row in every table, for one tenant."""
    base = session.scalar(select(BaseModelRow))
    if base is None:
        base = BaseModelRow(name="base", fingerprint="f", folder="/", context_length=1, spec={})
    tenant = Tenant(name=name, display_name=name)
    session.add_all([base, tenant])
    session.flush()
    user = User(username=name, password_hash="-", role=Role.TENANT_ADMIN, tenant_id=tenant.id)
    adapter = Adapter(tenant_id=tenant.id, base_model_id=base.id, name="a")
    session.add_all([user, adapter])
    session.flush()
    tokens = {"prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 1}
    session.add_all(
        [
            UserSession(token_sha256=name.encode(), user_id=user.id, expires_at=NOW),
            ApiKey(tenant_id=tenant.id, name="k", prefix=name, key_sha256=b"-"),
            AdapterVersion(
                tenant_id=tenant.id,
                adapter_id=adapter.id,
                number=1,
                digest="d",
                size_bytes=1,
                status="ready",
                report={},
            ),
            Quota(tenant_id=tenant.id),
            AdapterUpload(
                tenant_id=tenant.id,
                name="a",
                confirm_base=False,
                promote=True,
                files=[],
                size_bytes=1,
                received_bytes=0,
                num_chunks=0,
                expires_at=NOW,
            ),
            UsageEventRow(
                event_id=uuid.uuid4(),
                request_id="r",
                tenant_id=tenant.id,
                key_id=uuid.uuid4(),
                base_model="base",
                endpoint="completions",
                outcome="completed",
                started_at=NOW,
                finished_at=NOW,
                payload_sha256=b"-",
                **tokens,
            ),
            UsageConflict(event_id=uuid.uuid4(), tenant_id=tenant.id, payload={}),
            Export(
                tenant_id=tenant.id,
                period_first_day=NOW.date(),
                period_last_day=NOW.date(),
                timezone="UTC",
                starts_at=NOW,
                ends_at=NOW.replace(day=3),
                revision=1,
                status="pending",
            ),
            AuditEntry(actor=name, tenant_id=tenant.id, action="test", target="-", detail={}),
        ]
    )
    session.flush()
    return tenant.id


@pytest.fixture
def tenants(engine: Engine) -> tuple[uuid.UUID, uuid.UUID]:
    with session_factory(engine)(scope=PLATFORM) as session, session.begin():
        return _populate(session, "a"), _populate(session, "b")


def test_the_role_is_bound_by_policies(engine: Engine) -> None:
    """Otherwise nothing below would prove anything."""
    with engine.connect() as connection:
        role = connection.execute(text("SELECT rolsuper, rolbypassrls FROM pg_roles WHERE rolname = current_user"))
        assert role.one() == (False, False)


def test_every_owned_table_forces_row_level_security(engine: Engine) -> None:
    query = text("SELECT relname FROM pg_class WHERE relrowsecurity AND relforcerowsecurity AND relkind = 'r'")
    with engine.connect() as connection:
        forced = set(connection.scalars(query))
    assert forced == {model.__tablename__ for model in OWNED}


@pytest.mark.usefixtures("tenants")
def test_a_session_without_scope_sees_nothing(engine: Engine) -> None:
    with Session(engine) as session:
        assert {model.__name__: session.scalars(select(model)).all() for model in OWNED} == {
            model.__name__: [] for model in OWNED
        }


@pytest.mark.usefixtures("tenants")
def test_a_connection_that_was_scoped_before_sees_nothing(engine: Engine) -> None:
    """The scope ends with its transaction: a pooled connection does not carry it to the next caller."""
    with session_factory(engine)(scope=PLATFORM) as scoped_session:
        assert len(scoped_session.scalars(select(Tenant)).all()) == 2
    with Session(engine) as session:
        assert session.scalars(select(Tenant)).all() == []


def test_a_tenant_sees_its_own_rows_only(engine: Engine, tenants: tuple[uuid.UUID, uuid.UUID]) -> None:
    """AUTH-06: queries without any WHERE, in B's scope."""
    _, b = tenants
    with session_factory(engine)(scope=b) as session:
        for model in OWNED:
            rows = session.scalars(select(model)).all()
            owners = {row.id if isinstance(row, Tenant) else row.tenant_id for row in rows if hasattr(row, "id")}
            if model is UserSession:
                assert rows == []
            elif model is Quota:
                assert [row.tenant_id for row in rows] == [b]
            else:
                assert len(rows) == 1, model
                assert owners <= {b}, model


def test_the_platform_sees_all(engine: Engine, tenants: tuple[uuid.UUID, uuid.UUID]) -> None:
    with session_factory(engine)(scope=PLATFORM) as session:
        for model in OWNED:
            assert len(session.scalars(select(model)).all()) == len(tenants), model


def test_nothing_can_be_written_into_another_tenant(engine: Engine, tenants: tuple[uuid.UUID, uuid.UUID]) -> None:
    a, b = tenants
    with session_factory(engine)(scope=b) as session:
        session.add(ApiKey(tenant_id=a, name="k", prefix="x", key_sha256=b"-"))
        with pytest.raises(ProgrammingError, match="row-level security"):
            session.flush()
    with session_factory(engine)(scope=b) as session, session.begin():
        moved = session.execute(text("UPDATE api_keys SET revoked_at = now()"))
        assert moved.rowcount == 1
    with session_factory(engine)(scope=a) as session:
        assert session.scalars(select(ApiKey)).one().revoked_at is None


def test_a_row_without_tenant_belongs_to_nobody_but_the_platform(
    engine: Engine, tenants: tuple[uuid.UUID, uuid.UUID]
) -> None:
    """AUTH-06: NULL never equals NULL."""
    _, b = tenants
    with session_factory(engine)(scope=PLATFORM) as session, session.begin():
        session.add(AuditEntry(actor="x", tenant_id=None, action="test", target="-", detail={}))
    for scope in (str(b), "", "null"):
        with session_factory(engine)(scope=scope) as session:
            assert [row for row in session.scalars(select(AuditEntry)) if row.tenant_id is None] == []
