"""A gateway over real PostgreSQL, real Valkey and a scripted engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from gateway_fixtures import database, gateway_database, tenant, token_ids, toy_model, vocab_size
from gateway_under_test import FINGERPRINT, SECRET, GatewayServer, Served
from scripted_engine import ScriptedEngine

from tenora_platform.settings import Settings

__all__ = ["database", "gateway_database", "tenant", "token_ids", "toy_model", "vocab_size"]


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
