"""A new installation, and the same start a second time."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import NullPool, create_engine, select, update

from tenora_adapters.base import BaseModelError, read_base_model
from tenora_platform.control.bootstrap import BootstrapError, bootstrap
from tenora_platform.control.sessions.passwords import verify_password
from tenora_platform.db.models import AuditEntry, BaseModelRow, Role, User
from tenora_platform.db.session import PLATFORM, session_factory
from tenora_platform.settings import Settings


def rows(url: str, model: type) -> list:
    with session_factory(create_engine(url, poolclass=NullPool))(scope=PLATFORM) as session:
        return list(session.scalars(select(model)))


def test_processes_that_start_at_once_do_not_race(postgres_url: str, tiny_base: Path) -> None:
    settings = Settings(database_url=postgres_url, model=tiny_base, model_name="tiny", admin_password="first")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(bootstrap, [settings] * 2))
    (admin,) = rows(postgres_url, User)
    assert (admin.username, admin.role, admin.tenant_id) == ("admin", Role.PLATFORM_ADMIN, None)
    assert verify_password("first", admin.password_hash)
    (model,) = rows(postgres_url, BaseModelRow)
    assert (model.name, model.folder, model.context_length) == ("tiny", str(tiny_base), 128)
    assert sorted(entry.action for entry in rows(postgres_url, AuditEntry)) == ["base_model.register", "user.create"]

    bootstrap(settings.model_copy(update={"admin_password": settings.secret, "admin_user": "second"}))
    assert [user.username for user in rows(postgres_url, User)] == ["admin"], "only while there is no user"


def test_what_contradicts_the_settings(postgres_url: str, tiny_base: Path, tmp_path: Path) -> None:
    settings = Settings(database_url=postgres_url, model=tiny_base, model_name="tiny")
    bootstrap(settings)
    assert rows(postgres_url, User) == [], "no password, no administrator"
    with pytest.raises(BootstrapError, match="TENORA_MODEL_NAME=tiny"):
        bootstrap(settings.model_copy(update={"model_name": "renamed"}))
    with pytest.raises(BaseModelError):
        bootstrap(settings.model_copy(update={"model": tmp_path}))

    other = tmp_path / "other"
    other.mkdir()
    (other / "model.safetensors").write_bytes((tiny_base / "model.safetensors").read_bytes())
    (other / "config.json").write_text((tiny_base / "config.json").read_text().replace("128", "256"))
    with pytest.raises(BootstrapError, match="another model"):
        bootstrap(settings.model_copy(update={"model": other}))


def test_names_of_the_settings_are_added_to_the_operators(postgres_url: str, tiny_base: Path) -> None:
    """ADP-13"""
    settings = Settings(database_url=postgres_url, model=tiny_base, model_name="tiny", model_accepts="org/b, org/a,")
    bootstrap(settings)
    bootstrap(settings.model_copy(update={"model_accepts": "org/c"}))
    bootstrap(settings.model_copy(update={"model_accepts": ""}))
    assert [row.accepted_names for row in rows(postgres_url, BaseModelRow)] == [["org/a", "org/b", "org/c"]]
    assert len(rows(postgres_url, AuditEntry)) == 2


def test_a_model_that_moved(postgres_url: str, tiny_base: Path, tmp_path: Path) -> None:
    settings = Settings(database_url=postgres_url, model=tiny_base, model_name="tiny")
    bootstrap(settings)
    moved = tmp_path / "moved"
    moved.symlink_to(tiny_base)
    bootstrap(settings.model_copy(update={"model": moved}))
    assert [row.folder for row in rows(postgres_url, BaseModelRow)] == [str(tiny_base)], "links are followed"
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in tiny_base.iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    bootstrap(settings.model_copy(update={"model": copy}))
    assert [row.folder for row in rows(postgres_url, BaseModelRow)] == [str(copy)]


def test_a_base_that_an_earlier_version_registered(postgres_url: str, tiny_base: Path, tmp_path: Path) -> None:
    """It gets the fingerprint of today, and what was not noted then; another model in its place does not."""
    folder = tmp_path / "windowed"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((tiny_base / "model.safetensors").read_bytes())
    config = json.loads((tiny_base / "config.json").read_bytes()) | {"use_sliding_window": False}
    (folder / "config.json").write_text(json.dumps(config))
    settings = Settings(database_url=postgres_url, model=folder, model_name="tiny")
    bootstrap(settings)
    model = read_base_model(folder)
    assert model.former_fingerprint == read_base_model(tiny_base).fingerprint

    def as_before(fingerprint: str | None) -> None:
        with session_factory(create_engine(postgres_url, poolclass=NullPool))(scope=PLATFORM) as session:
            (row,) = session.scalars(select(BaseModelRow))
            spec = {key: value for key, value in row.spec.items() if key not in ("vectors", "embeddings", "revision")}
            session.execute(update(BaseModelRow).values(fingerprint=fingerprint, spec=spec))
            session.commit()

    def row() -> Any:
        (found,) = rows(postgres_url, BaseModelRow)
        return found

    as_before(model.former_fingerprint)
    bootstrap(settings.model_copy(update={"model": None}))
    assert row().fingerprint == model.fingerprint
    assert row().spec["vectors"] == model.vectors
    assert [entry.action for entry in rows(postgres_url, AuditEntry)][-1] == "base_model.renew"

    as_before("f" * 64)
    bootstrap(settings.model_copy(update={"model": None}))
    assert (row().fingerprint, "vectors" in row().spec) == ("f" * 64, False)
