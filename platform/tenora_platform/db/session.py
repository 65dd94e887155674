"""Sessions that know whose rows they may see.

Row-level security lets a transaction see a tenant-owned row only when `tenora.tenant` names that tenant, or is
`*` (the platform itself). It is set at the start of every transaction from the session's scope; a session
without a scope sees nothing.
"""

from __future__ import annotations

import uuid
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, Select, create_engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session, SessionTransaction, sessionmaker

PLATFORM: Final = "*"
_SCOPE: Final = "tenora_scope"


class ScopedSession(Session):
    """A session bound to one scope for its whole life."""

    def __init__(self, *args: Any, scope: uuid.UUID | str, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.info[_SCOPE] = str(scope)


@event.listens_for(ScopedSession, "after_begin")
def _set_scope(session: Session, _transaction: SessionTransaction, connection: Connection) -> None:
    set_scope(connection, session.info[_SCOPE])


def set_scope(connection: Connection, scope: uuid.UUID | str) -> None:
    """Let `connection` see, until its transaction ends, the rows of a tenant, or of all with PLATFORM."""
    connection.execute(text("SELECT set_config('tenora.tenant', :scope, true)"), {"scope": str(scope)})


# Values of statements can be secrets: they are kept out of what errors say, and so out of logs.
_OPTIONS: Final[dict[str, Any]] = {"pool_pre_ping": True, "hide_parameters": True}


def make_engine(url: str, *, pool_size: int = 10) -> Engine:
    return create_engine(url, pool_size=pool_size, max_overflow=pool_size, **_OPTIONS)


def make_async_engine(url: str, *, pool_size: int = 5) -> AsyncEngine:
    return create_async_engine(url, pool_size=pool_size, max_overflow=pool_size, **_OPTIONS)


def session_factory(engine: Engine) -> sessionmaker[ScopedSession]:
    """Call the result with `scope=tenant_id` or `scope=PLATFORM`."""
    return sessionmaker(engine, class_=ScopedSession, expire_on_commit=False)


_Row = TypeVar("_Row")


def scoped(model: type[_Row], tenant_id: uuid.UUID) -> Select[_Row]:
    """The one way to query a tenant-owned table: `select(model)` limited to the tenant."""
    return select(model).where(model.tenant_id == tenant_id)  # type: ignore[attr-defined]
