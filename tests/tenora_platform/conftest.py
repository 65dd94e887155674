"""A control plane in this process, over a real PostgreSQL and a real Valkey, and callers of each role."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from safetensors.numpy import save_file
from sqlalchemy import NullPool, create_engine, text

from tenora_platform.control.app import Control, build_control
from tenora_platform.control.bootstrap import bootstrap
from tenora_platform.control.resources import Resources
from tenora_platform.control.sessions.passwords import hash_password
from tenora_platform.db.models import Base, Role, Tenant, User
from tenora_platform.db.session import PLATFORM, session_factory
from tenora_platform.settings import Settings

PASSWORD = "correct horse battery staple"
BASE = "tiny"
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
def control_database(postgres_server: object, tiny_base: Path) -> Iterator[str]:
    """A bootstrapped database for all tests of the control plane; `control_settings` empties it for each."""
    name = "control"
    postgres_server.create_database(name)  # type: ignore[attr-defined]
    url: str = postgres_server.url_of(name)  # type: ignore[attr-defined]
    bootstrap(Settings(database_url=url, model=tiny_base, model_name=BASE, admin_password=PASSWORD))
    yield url
    postgres_server.drop_database(name)  # type: ignore[attr-defined]


@pytest.fixture
def control_settings(control_database: str, redis_url: str, tiny_base: Path, tmp_path: Path) -> Settings:
    tables = ", ".join(table for table in Base.metadata.tables if table != "base_models")
    engine = create_engine(control_database, poolclass=NullPool)
    with session_factory(engine)(scope=PLATFORM) as session, session.begin():
        session.execute(text(f"TRUNCATE {tables}"))
        session.add(User(username="admin", password_hash=_HASH, role=Role.PLATFORM_ADMIN))
    return Settings(
        home=tmp_path,
        database_url=control_database,
        redis_url=redis_url,
        blob_url=f"file://{tmp_path}/blobs",
        model=tiny_base,
        model_name=BASE,
        admin_password=PASSWORD,
        secret="0" * 32,
    )


@pytest.fixture
def control(control_settings: Settings) -> Iterator[Control]:
    built = build_control(control_settings)
    yield built
    built.resources.close()


@pytest.fixture
def resources(control: Control) -> Resources:
    return control.resources


@pytest.fixture
def app(control: Control) -> FastAPI:
    served = FastAPI()
    served.include_router(control.router)
    return served


Caller = Callable[[str], TestClient]


@pytest.fixture
def sign_in(app: FastAPI) -> Caller:
    """A client signed in as the user of this name."""

    def signed(username: str) -> TestClient:
        client = TestClient(
            app, base_url="http://control", headers={"X-Tenora-Request": "1"}, raise_server_exceptions=False
        )
        answer = client.post("/api/v1/session", json={"username": username, "password": PASSWORD})
        assert answer.status_code == 200, answer.text
        return client

    return signed


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
    return TestClient(app, base_url="http://control", headers={"X-Tenora-Request": "1"}, raise_server_exceptions=False)
