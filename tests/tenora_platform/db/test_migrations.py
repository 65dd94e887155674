"""The migration makes what the models say, and can be undone."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import NullPool, create_engine, inspect

import tenora_migrations
from tenora_platform.control.bootstrap import migrate


def _config(connection: object) -> Config:
    config = Config(str(Path(tenora_migrations.__file__).parent / "alembic.ini"))
    config.attributes["connection"] = connection
    return config


def test_models_and_migrations_agree(postgres_url: str) -> None:
    migrate(postgres_url)
    with create_engine(postgres_url, poolclass=NullPool).begin() as connection:
        command.check(_config(connection))  # raises when autogenerate would have something to add


def test_down_and_up_again(postgres_url: str) -> None:
    migrate(postgres_url)
    engine = create_engine(postgres_url, poolclass=NullPool)
    with engine.begin() as connection:
        command.downgrade(_config(connection), "base")
    assert inspect(engine).get_table_names() == ["alembic_version"]
    migrate(postgres_url)
    with engine.begin() as connection:
        command.check(_config(connection))
