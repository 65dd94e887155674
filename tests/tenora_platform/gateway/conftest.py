"""A gateway over real PostgreSQL, real Valkey and a scripted engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_under_test import (
    BASE,
    CONTEXT,
    FINGERPRINT,
    SECRET,
    Database,
    GatewayServer,
    Served,
    TenantOfTest,
    write_toy_model,
)
from scripted_engine import ScriptedEngine
from sqlalchemy import NullPool, create_engine

from tenora_platform.control.bootstrap import migrate
from tenora_platform.db.models import BaseModelRow
from tenora_platform.db.session import PLATFORM, session_factory
from tenora_platform.gateway.detokenize import TokenBytes
from tenora_platform.settings import Settings


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
    name = "gateway"
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


@pytest.fixture
def engine(token_ids: dict[bytes, int]) -> Iterator[ScriptedEngine]:
    engine = ScriptedEngine(FINGERPRINT, token_ids).start()
    yield engine
    engine.kill()


@pytest.fixture
def gateway_settings(gateway_database: str, redis_url: str, engine: ScriptedEngine, tmp_path: Path) -> Settings:
    return Settings(
        database_url=gateway_database,
        redis_url=redis_url,
        engines=engine.url,
        secret=SECRET,
        spool_dir=tmp_path / "spool",
        max_pending_s=5.0,
        max_body_bytes=200_000,
    )


@pytest.fixture
def start_gateway() -> Iterator[Callable[[Settings], Served]]:
    servers: list[GatewayServer] = []

    def start(settings: Settings) -> Served:
        servers.append(GatewayServer(settings))
        return servers[-1].start()

    yield start
    for server in servers:
        server.stop()


@pytest.fixture
def gateway(start_gateway: Callable[[Settings], Served], gateway_settings: Settings, engine: ScriptedEngine) -> Served:
    served = start_gateway(gateway_settings)
    engine.wait_for(lambda: bool(engine.peers))
    return served
