"""What a new installation needs before anybody can use it. Every start runs it; the second time it changes nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection, NullPool, create_engine, exists, select, text
from sqlalchemy.orm import Session

import tenora_migrations
from tenora_adapters.base import REVISION, BaseModel, BaseModelError, read_base_model
from tenora_platform.control.base_models.service import new_row, renew
from tenora_platform.control.sessions.passwords import hash_password
from tenora_platform.db.models import AuditEntry, BaseModelRow, Role, User
from tenora_platform.db.session import PLATFORM, session_factory
from tenora_platform.settings import Settings

_log = logging.getLogger(__name__)
_LOCK: Final = 0x74656E6F7261  # "tenora", as PostgreSQL's number of an advisory lock


class BootstrapError(Exception):
    """The installation contradicts its settings; the message says how to resolve it."""


def migrate(database_url: str) -> None:
    """Bring the database to the newest schema. Of several processes one does it, the others wait and see it done."""
    config = Config(str(Path(tenora_migrations.__file__).parent / "alembic.ini"))
    engine = create_engine(database_url, poolclass=NullPool)
    with engine.begin() as connection:
        _take_turns(connection)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def bootstrap(settings: Settings) -> None:
    """Migrate, make the first administrator, register the base model of the settings.

    Raises BootstrapError, and tenora_adapters.base.BaseModelError when the model's folder cannot be read.
    """
    migrate(settings.database_url)
    model = read_base_model(settings.model) if settings.model is not None else None
    engine = create_engine(settings.database_url, poolclass=NullPool)
    with session_factory(engine)(scope=PLATFORM) as session, session.begin():
        _take_turns(session.connection())
        _first_administrator(session, settings)
        if model is not None and settings.model is not None:
            _base_model(session, settings, settings.model.resolve(), model)
        _renew_base_models(session)


def _take_turns(connection: Connection) -> None:
    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})


def _first_administrator(session: Session, settings: Settings) -> None:
    if session.scalar(select(exists(select(User.id)))):
        return
    password = settings.admin_password.get_secret_value()
    if not password:
        _log.warning("there is no user yet, and TENORA_ADMIN_PASSWORD is not set: nobody can sign in")
        return
    user = User(username=settings.admin_user, password_hash=hash_password(password), role=Role.PLATFORM_ADMIN)
    session.add(user)
    session.flush()
    session.add(_entry("user.create", str(user.id), username=user.username, role=str(user.role)))


def _base_model(session: Session, settings: Settings, folder: Path, model: BaseModel) -> None:
    name, accepted = settings.model_name, set(settings.model_accepted_names)
    row = session.scalar(select(BaseModelRow).where(BaseModelRow.name == name))
    if row is None:
        known_as = (model.fingerprint, model.former_fingerprint)
        other = session.scalar(select(BaseModelRow.name).where(BaseModelRow.fingerprint.in_(known_as)))
        if other is not None:
            raise BootstrapError(f"The model in {folder} is registered as {other!r}: set TENORA_MODEL_NAME={other}")
        row = new_row(name, folder, model, accepted)
        session.add(row)
        session.flush()
        session.add(_entry("base_model.register", str(row.id), name=name, fingerprint=model.fingerprint))
    elif not model.is_known_as(row.fingerprint):
        raise BootstrapError(
            f"{name!r} is another model than the one in {folder}. Adapters belong to exactly one base: "
            "give the new model a name of its own (TENORA_MODEL_NAME)"
        )
    if row.folder != str(folder):
        row.folder = str(folder)
        session.add(_entry("base_model.move", str(row.id), folder=row.folder))
    if not accepted <= set(row.accepted_names):
        row.accepted_names = sorted(accepted.union(row.accepted_names))
        session.add(_entry("base_model.accept", str(row.id), accepted_names=", ".join(row.accepted_names)))


def _renew_base_models(session: Session) -> None:
    """Read again the models that an earlier version registered: their fingerprints may have become others."""
    for row in session.scalars(select(BaseModelRow)):
        if row.spec.get("revision", 1) >= REVISION:
            continue
        try:
            model = read_base_model(Path(row.folder))
        except BaseModelError as error:
            _log.warning("the base model %r cannot be read again: %s", row.name, error)
            continue
        if not model.is_known_as(row.fingerprint):
            _log.warning("%s holds another model than the base %r", row.folder, row.name)
            continue
        renew(row, model)
        session.add(_entry("base_model.renew", str(row.id), fingerprint=row.fingerprint))


def _entry(action: str, target: str, **detail: str) -> AuditEntry:
    return AuditEntry(actor="system", tenant_id=None, action=action, target=target, detail=detail)
