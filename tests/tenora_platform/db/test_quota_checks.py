"""QTA-06: the table itself refuses a quota that cannot be, whoever writes it."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

from tenora_platform.control.bootstrap import migrate
from tenora_platform.db.session import PLATFORM, make_engine, session_factory

INSERT = text("INSERT INTO quotas (tenant_id, requests_per_minute, tokens_per_minute) VALUES (:tenant, :r, :t)")
TENANT = "00000000-0000-0000-0000-000000000001"


@pytest.fixture(scope="module")
def sessions(postgres_server: object):
    postgres_server.create_database("quota_checks")
    url = postgres_server.url_of("quota_checks")
    migrate(url)
    engine = make_engine(url)
    with session_factory(engine)(scope=PLATFORM) as session, session.begin():
        session.execute(
            text("INSERT INTO tenants (id, name, display_name, timezone) VALUES (:id, 'a', 'a', 'UTC')"), {"id": TENANT}
        )
    yield session_factory(engine)
    engine.dispose()
    postgres_server.drop_database("quota_checks")


@pytest.mark.parametrize(("r", "t"), [(-1, None), (None, -1), (10**9 + 1, None), (None, 10**12 + 1)])
def test_out_of_bounds(sessions, r: int | None, t: int | None) -> None:
    with sessions(scope=PLATFORM) as session, pytest.raises(IntegrityError, match="ck_quotas"):
        session.execute(INSERT, {"tenant": TENANT, "r": r, "t": t})


@pytest.mark.parametrize("r", [2**63, "x", float("nan"), float("inf")])
def test_not_a_bigint(sessions, r: object) -> None:
    with sessions(scope=PLATFORM) as session, pytest.raises(DBAPIError):
        session.execute(INSERT, {"tenant": TENANT, "r": r, "t": None})


@pytest.mark.parametrize(("r", "t"), [(0, 0), (None, None), (10**9, 10**12)])
def test_null_is_unlimited_and_zero_blocks(sessions, r: int | None, t: int | None) -> None:
    with sessions(scope=PLATFORM) as session:
        session.execute(INSERT, {"tenant": TENANT, "r": r, "t": t})
