"""The real parts that tests share: a PostgreSQL, a Valkey and the real model, each started or made once."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parent.parent


def pytest_configure(config: pytest.Config) -> None:
    """Examples are the same in every run, so that a change is judged by itself; only `make soak` draws new ones."""
    settings.register_profile("repeatable", derandomize=True)
    if config.option.markexpr != "soak":
        settings.load_profile("repeatable")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares costly parts runs in one worker: the flows with their platform, other tests file by file."""
    for item in items:
        folder = item.path.relative_to(REPOSITORY / "tests")
        item.add_marker(pytest.mark.xdist_group("flows" if folder.parts[0] == "flows" else str(folder)))


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[object]:
    """The running server, a `tenora_platform.stack.postgres.Postgres`. Most tests want `postgres_url`."""
    from tenora_platform.stack.part import running
    from tenora_platform.stack.ports import free_port
    from tenora_platform.stack.postgres import Postgres

    with tempfile.TemporaryDirectory(prefix="tenora-test-") as folder:
        server = Postgres(
            folder=Path(folder) / "postgres",
            port=free_port(),
            password=secrets.token_hex(8),
            superuser_password=secrets.token_hex(8),
            log=Path(folder) / "postgres.log",
        )
        server.initialise()
        with running(server.part()):
            server.ensure_database()
            yield server


@pytest.fixture
def postgres_url(postgres_server: object) -> Iterator[str]:
    """URL of a fresh, empty database, owned by a role that is no superuser."""
    name = f"test_{secrets.token_hex(6)}"
    postgres_server.create_database(name)  # type: ignore[attr-defined]
    yield postgres_server.url_of(name)  # type: ignore[attr-defined]
    postgres_server.drop_database(name)  # type: ignore[attr-defined]


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[object]:
    """The running server, a `tenora_platform.stack.valkey.Valkey`. Most tests want `redis_url`."""
    from tenora_platform.stack.part import running
    from tenora_platform.stack.ports import free_port
    from tenora_platform.stack.valkey import Valkey

    with tempfile.TemporaryDirectory(prefix="tenora-test-") as folder:
        server = Valkey(
            folder=Path(folder) / "valkey",
            port=free_port(),
            password=secrets.token_hex(8),
            log=Path(folder) / "valkey.log",
        )
        server.initialise()
        with running(server.part()):
            yield server


@pytest.fixture
def redis_url(valkey_server: object) -> str:
    """URL of a Valkey that was emptied for this test."""
    import redis

    url: str = valkey_server.url  # type: ignore[attr-defined]
    with redis.Redis.from_url(url) as client:
        client.flushall()
    return url


@pytest.fixture(scope="session")
def model_folder() -> Path:
    """SmolLM2-135M-Instruct as a Hugging Face folder, dequantised once and kept for later runs."""
    from tenora_engine.prepare import find_embedded_gguf, prepare_model

    cache = Path(os.environ.get("TENORA_TEST_CACHE", REPOSITORY / "build" / "test-cache"))
    return prepare_model(find_embedded_gguf(), cache / "smollm2-135m", lambda *_: None)
