"""A control plane in this process, over a real PostgreSQL and a real Valkey, and callers of each role."""

from __future__ import annotations

import hashlib
import secrets
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from safetensors.numpy import save_file
from sqlalchemy import NullPool, create_engine, select, text, update

from tenora_platform.control.app import Control, build_control
from tenora_platform.control.bootstrap import bootstrap
from tenora_platform.control.resources import Resources
from tenora_platform.control.sessions.passwords import hash_password
from tenora_platform.db.models import Adapter, Base, BaseModelRow, Role, Tenant, UsageEventRow, User, UserSession
from tenora_platform.db.session import PLATFORM
from tenora_platform.settings import Settings

PASSWORD = "correct horse battery staple"
BASE = "tiny"
# Adapters and versions point at each other: before versions can be removed.
NO_POINTERS: dict[str, None] = dict.fromkeys(
    ("active_version_id", "previous_version_id", "canary_version_id", "canary_percent")
)
_HASH = hash_password(PASSWORD)


def make_tiny_base(folder: Path) -> Path:
    """A Llama-shaped base of two layers: enough for shapes, names and a fingerprint."""
    hidden, heads, kv_heads, inner, vocab = 16, 4, 2, 32, 64
    rng = np.random.default_rng(7)
    tensors = {"model.embed_tokens.weight": rng.standard_normal((vocab, hidden)).astype(np.float32)}
    for layer in range(2):
        at = f"model.layers.{layer}"
        shapes = {
            "self_attn.q_proj": (hidden, hidden),
            "self_attn.k_proj": (hidden // heads * kv_heads, hidden),
            "self_attn.v_proj": (hidden // heads * kv_heads, hidden),
            "self_attn.o_proj": (hidden, hidden),
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for name, shape in shapes.items():
            tensors[f"{at}.{name}.weight"] = rng.standard_normal(shape).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(
        '{"model_type": "llama", "vocab_size": 64, "hidden_size": 16, "intermediate_size": 32,'
        ' "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,'
        ' "max_position_embeddings": 128, "tie_word_embeddings": true}'
    )
    return folder


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_base(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="session")
def shared_control(
    postgres_server: object, valkey_server: object, tiny_base: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Control]:
    """A bootstrapped control plane for all tests; `control` empties what it keeps for each."""
    name = "control"
    postgres_server.create_database(name)  # type: ignore[attr-defined]
    url: str = postgres_server.url_of(name)  # type: ignore[attr-defined]
    with create_engine(url, poolclass=NullPool).begin() as connection:
        connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))
    home = tmp_path_factory.mktemp("control")
    settings = Settings(
        home=home,
        database_url=url,
        redis_url=valkey_server.url,  # type: ignore[attr-defined]
        blob_url=f"file://{home}/blobs",
        model=tiny_base,
        model_name=BASE,
        admin_password=PASSWORD,
        secret="0" * 32,
    )
    bootstrap(settings)
    built = build_control(settings)
    yield built
    built.resources.close()
    postgres_server.drop_database(name)  # type: ignore[attr-defined]


@pytest.fixture
def control(shared_control: Control, redis_url: str) -> Control:
    """With the administrator and the base model, and nothing else."""
    with shared_control.resources.sessions(scope=PLATFORM) as session, session.begin():
        session.execute(update(Adapter).values(NO_POINTERS))
        for table in reversed(Base.metadata.sorted_tables):
            if table.name != "base_models":
                session.execute(table.delete())
        session.execute(update(BaseModelRow).values(accepted_names=[]))
        session.add(User(username="admin", password_hash=_HASH, role=Role.PLATFORM_ADMIN))
    shutil.rmtree(shared_control.resources.settings.home / "blobs", ignore_errors=True)
    assert redis_url == shared_control.resources.settings.redis_url
    return shared_control


@pytest.fixture
def control_settings(control: Control) -> Settings:
    return control.resources.settings


@pytest.fixture
def resources(control: Control) -> Resources:
    return control.resources


@pytest.fixture(scope="session")
def shared_app(shared_control: Control) -> FastAPI:
    served = FastAPI()
    served.include_router(shared_control.router)
    return served


@pytest.fixture
def app(control: Control, shared_app: FastAPI) -> FastAPI:
    return shared_app


Caller = Callable[[str], TestClient]


@pytest.fixture
def sign_in(app: FastAPI, resources: Resources) -> Caller:
    """A client with a session of the user of this name. The session is made here: checking passwords is slow."""

    def signed(username: str) -> TestClient:
        token = secrets.token_urlsafe(8)
        with resources.sessions(scope=PLATFORM) as session, session.begin():
            user = session.scalars(select(User).where(User.username == username)).one()
            sha256, tomorrow = hashlib.sha256(token.encode()).digest(), datetime.now(UTC) + timedelta(days=1)
            session.add(UserSession(token_sha256=sha256, user_id=user.id, expires_at=tomorrow))
        return _client(app, cookies={"tenora_session": token})

    return signed


def _client(app: FastAPI, **options: Any) -> TestClient:
    headers = {"X-Tenora-Request": "1"}
    return TestClient(app, "http://control", headers=headers, raise_server_exceptions=False, **options)


@pytest.fixture
def admin(sign_in: Caller) -> TestClient:
    return sign_in("admin")


@pytest.fixture
def make_user(resources: Resources) -> Callable[..., None]:
    def make(username: str, role: Role, tenant_id: uuid.UUID | None = None) -> None:
        with resources.sessions(scope=PLATFORM) as session, session.begin():
            session.add(User(username=username, password_hash=_HASH, role=role, tenant_id=tenant_id))

    return make


@pytest.fixture
def make_tenant(resources: Resources) -> Callable[..., uuid.UUID]:
    def make(name: str, timezone: str = "UTC") -> uuid.UUID:
        with resources.sessions(scope=PLATFORM) as session, session.begin():
            tenant = Tenant(name=name, display_name=name, timezone=timezone)
            session.add(tenant)
            session.flush()
            return tenant.id

    return make


@pytest.fixture
def anonymous(app: FastAPI) -> TestClient:
    return _client(app)


@pytest.fixture
def add_event(resources: Resources) -> Callable[..., None]:
    """Insert one usage event; what is not given has a plain default."""

    def add(tenant_id: uuid.UUID, finished_at: datetime, **given: object) -> None:
        values: dict[str, object] = {
            "event_id": uuid.uuid4(),
            "request_id": "r",
            "key_id": uuid.UUID(int=1),
            "base_model": BASE,
            "endpoint": "chat.completions",
            "prompt_tokens": 10,
            "cached_tokens": 0,
            "completion_tokens": 5,
            "outcome": "completed",
            "started_at": finished_at,
            "payload_sha256": b"-",
        }
        with resources.sessions(scope=PLATFORM) as session, session.begin():
            session.add(UsageEventRow(tenant_id=tenant_id, finished_at=finished_at, **(values | given)))

    return add
