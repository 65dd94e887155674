"""Fixtures that the tests of the gateway and of usage share; each folder's conftest imports what it needs."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_under_test import BASE, CONTEXT, FINGERPRINT, Database, TenantOfTest, write_toy_model
from sqlalchemy import NullPool, create_engine

from tenora_adapters.token_bytes import TokenBytes
from tenora_platform.control.bootstrap import migrate
from tenora_platform.db.models import BaseModelRow
from tenora_platform.db.session import PLATFORM, session_factory


@pytest.fixture(scope="session")
def toy_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    write_toy_model(folder)
    return folder


@pytest.fixture(scope="session")
def token_ids(toy_model: Path) -> dict[bytes, int]:
    """Token id of each piece, the 256 bytes included."""
    definition = json.loads((toy_model / "tokenizer.json").read_text())
    table = TokenBytes.from_tokenizer(definition)
    ids = {table[token_id]: token_id for token_id in range(len(table)) if table[token_id]}
    return {**ids, b"": definition["added_tokens"][1]["id"]}  # the end token has no text


@pytest.fixture(scope="session")
def vocab_size(token_ids: dict[bytes, int]) -> int:
    return max(token_ids.values()) + 1


@pytest.fixture(scope="session")
def gateway_database(postgres_server: Any, toy_model: Path, vocab_size: int) -> Iterator[str]:
    """One migrated database with one base model for all tests of the gateway: each makes its own tenants."""
    name = f"gateway_{secrets.token_hex(4)}"
    postgres_server.create_database(name)
    url: str = postgres_server.url_of(name)
    migrate(url)
    engine = create_engine(url, poolclass=NullPool)
    with session_factory(engine)(scope=PLATFORM) as session, session.begin():
        session.add(
            BaseModelRow(
                name=BASE,
                fingerprint=FINGERPRINT,
                folder=str(toy_model),
                context_length=CONTEXT,
                spec={"vocab_size": vocab_size},
            )
        )
    yield url
    postgres_server.drop_database(name)


@pytest.fixture
def database(gateway_database: str) -> Iterator[Database]:
    engine = create_engine(gateway_database)
    yield Database(gateway_database, session_factory(engine))
    engine.dispose()


@pytest.fixture
def tenant(database: Database) -> TenantOfTest:
    return database.tenant()
