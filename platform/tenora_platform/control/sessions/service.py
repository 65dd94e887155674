"""Signing in and out. A session is an opaque random token in a cookie; the table keeps only its SHA-256."""

from __future__ import annotations

import hashlib
import secrets
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import delete, select

from tenora_platform.control.audit.service import record
from tenora_platform.control.errors import Unauthenticated
from tenora_platform.control.resources import Resources
from tenora_platform.control.sessions.passwords import verify_password
from tenora_platform.control.sessions.throttle import count_attempt, forget_attempts
from tenora_platform.control.transaction import transaction
from tenora_platform.db.models import Role, User, UserSession
from tenora_platform.db.session import PLATFORM

LIFETIME: Final = timedelta(hours=12)


@dataclass(frozen=True)
class Principal:
    """Who is calling. `tenant_id` is None for the platform's own people."""

    user_id: uuid.UUID
    username: str
    role: Role
    tenant_id: uuid.UUID | None


@dataclass(frozen=True)
class NewSession:
    token: str  # shown once, in the cookie
    principal: Principal

    def __repr__(self) -> str:
        return f"NewSession({self.principal!r})"  # the token stays out of logs and tracebacks


def sign_in(resources: Resources, username: str, password: str) -> NewSession:
    """Raises Unauthenticated, TooManyRequests, Unavailable."""
    count_attempt(resources.redis, username)
    with resources.sessions(scope=PLATFORM) as session:
        user = session.scalar(select(User).where(User.username == username, User.disabled_at.is_(None)))
    # Outside any transaction: it is slow on purpose, and waits its turn.
    if not verify_password(password, user.password_hash if user else None) or user is None:
        raise Unauthenticated("The user name or the password is wrong.")
    forget_attempts(resources.redis, username)

    token = secrets.token_urlsafe(32)
    now = datetime.now(UTC)
    with transaction(resources, PLATFORM, user.username) as work:
        work.session.execute(delete(UserSession).where(UserSession.user_id == user.id, UserSession.expires_at <= now))
        work.session.add(UserSession(token_sha256=_sha256(token), user_id=user.id, expires_at=now + LIFETIME))
        record(work, "session.create", user.id, tenant_id=user.tenant_id)
    return NewSession(token, _principal(user))


def authenticate(resources: Resources, token: str | None) -> Principal:
    """Who holds `token`. Raises Unauthenticated."""
    user = None
    if token:
        query = select(User).join(UserSession, UserSession.user_id == User.id)
        query = query.where(
            UserSession.token_sha256 == _sha256(token),
            UserSession.expires_at > datetime.now(UTC),
            User.disabled_at.is_(None),
        )
        with resources.sessions(scope=PLATFORM) as session:
            user = session.scalar(query)
    if user is None:
        raise Unauthenticated("Sign in first.")
    return _principal(user)


def sign_out(resources: Resources, token: str) -> None:
    with transaction(resources, PLATFORM, "system") as work:
        work.session.execute(delete(UserSession).where(UserSession.token_sha256 == _sha256(token)))


def _principal(user: User) -> Principal:
    return Principal(user.id, user.username, Role(user.role), user.tenant_id)


def _sha256(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()
