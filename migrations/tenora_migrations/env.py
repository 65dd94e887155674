"""Alembic's entry. It runs on the connection that `migrate()` hands over, or opens one from the settings."""

from __future__ import annotations

from alembic import context
from sqlalchemy import Connection, create_engine

from tenora_platform.db.models import Base
from tenora_platform.db.session import PLATFORM, set_scope
from tenora_platform.settings import settings


def run(connection: Connection) -> None:
    """All pending migrations in the transaction that `connection` is in: all of them, or none."""
    set_scope(connection, PLATFORM)  # row-level security is forced on the owner too
    context.configure(
        connection=connection,
        target_metadata=Base.metadata,
        compare_type=True,
        compare_server_default=True,
        transaction_per_migration=False,
    )
    with context.begin_transaction():
        context.run_migrations()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with create_engine(settings().database_url).begin() as opened:
        run(opened)
