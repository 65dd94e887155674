"""Signing in and out."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
import redis
from fastapi.testclient import TestClient
from sqlalchemy import select, text, update

from tenora_platform.control.resources import Resources
from tenora_platform.control.sessions import passwords
from tenora_platform.control.sessions.throttle import MAX_ATTEMPTS
from tenora_platform.db.models import Role, User, UserSession
from tenora_platform.db.session import PLATFORM

PASSWORD = "correct horse battery staple"
SESSION = "/api/v1/session"


def credentials(password: str = PASSWORD, username: str = "admin") -> dict[str, str]:
    return {"username": username, "password": password}


def test_a_session_from_beginning_to_end(anonymous: TestClient, resources: Resources) -> None:
    assert anonymous.get(SESSION).status_code == 401
    answer = anonymous.post(SESSION, json=credentials())
    assert answer.status_code == 200
    user = answer.json()["user"]
    assert (user["username"], user["role"], user["tenant_id"]) == ("admin", "platform_admin", None)
    assert anonymous.get(SESSION).json() == answer.json()

    token = anonymous.cookies["tenora_session"]
    with resources.sessions(scope=PLATFORM) as session:
        (row,) = session.scalars(select(UserSession)).all()
        assert row.token_sha256 == hashlib.sha256(token.encode()).digest(), "the token itself is not stored"

    assert anonymous.delete(SESSION).status_code == 204
    anonymous.cookies.set("tenora_session", token)
    assert anonymous.get(SESSION).status_code == 401, "the token is dead, not just the cookie"


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(anonymous: TestClient) -> None:
    cookie = anonymous.post(SESSION, json=credentials()).headers["set-cookie"].lower()
    for attribute in ("httponly", "samesite=strict", "path=/api/v1", "max-age=43200"):
        assert attribute in cookie


def test_an_expired_session_is_none(anonymous: TestClient, resources: Resources) -> None:
    anonymous.post(SESSION, json=credentials())
    with resources.sessions(scope=PLATFORM) as session, session.begin():
        session.execute(update(UserSession).values(expires_at=datetime.now(UTC) - timedelta(seconds=1)))
    assert anonymous.get(SESSION).status_code == 401
    anonymous.post(SESSION, json=credentials())
    with resources.sessions(scope=PLATFORM) as session:
        assert len(session.scalars(select(UserSession)).all()) == 1, "signing in again tidies up"


def test_a_disabled_user_is_out_at_once(anonymous: TestClient, resources: Resources) -> None:
    anonymous.post(SESSION, json=credentials())
    with resources.sessions(scope=PLATFORM) as session, session.begin():
        session.execute(update(User).values(disabled_at=datetime.now(UTC)))
    assert anonymous.get(SESSION).status_code == 401
    assert anonymous.post(SESSION, json=credentials()).status_code == 401


def test_unknown_user_and_wrong_password_look_and_cost_the_same(
    anonymous: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AUTH-05: the same answer, after the same work."""
    checked: list[str] = []
    verify = passwords._hasher.verify

    class Counting:
        hash = passwords._hasher.hash

        def verify(self, stored: str, password: str) -> bool:
            checked.append(stored.split("$")[3])  # the cost parameters
            return verify(stored, password)

    monkeypatch.setattr(passwords, "_hasher", Counting())
    wrong = anonymous.post(SESSION, json=credentials("wrong"))
    unknown = anonymous.post(SESSION, json=credentials(username="nobody"))
    assert wrong.status_code == unknown.status_code == 401
    assert wrong.content == unknown.content
    assert len(checked) == 2
    assert checked[0] == checked[1]


@pytest.mark.parametrize("username", ["' OR 1=1--", "x'; DROP TABLE users; --", "admin' --"])
def test_sql_in_the_user_name(anonymous: TestClient, resources: Resources, username: str) -> None:
    """AUTH-05"""
    assert anonymous.post(SESSION, json=credentials(username=username)).status_code == 401
    anonymous.cookies.set("tenora_session", "x")
    assert anonymous.get(SESSION, headers={"Cookie": f"tenora_session={username}"}).status_code == 401
    with resources.sessions(scope=PLATFORM) as session:
        assert session.scalar(text("SELECT count(*) FROM users")) == 1


def test_a_nul_in_the_user_name(anonymous: TestClient) -> None:
    """AUTH-05: PostgreSQL cannot hold one; it must not become a 500."""
    assert anonymous.post(SESSION, json=credentials(username="a\0b")).status_code in (400, 401)


def test_guessing_is_throttled_by_user_name(
    anonymous: TestClient, resources: Resources, make_user: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_user("other", Role.PLATFORM_ADMIN)
    monkeypatch.setattr("tenora_platform.control.sessions.service.verify_password", lambda given, _: given == PASSWORD)
    for _ in range(MAX_ATTEMPTS):
        assert anonymous.post(SESSION, json=credentials("wrong")).status_code == 401
    refused = anonymous.post(SESSION, json=credentials())
    assert refused.status_code == 429, "not even with the right password"
    assert 0 < int(refused.headers["retry-after"]) <= 300
    assert anonymous.post(SESSION, json=credentials(username="other")).status_code == 200
    (key,) = resources.redis.keys("tenora:signin:*")
    assert b"admin" not in key


def test_success_forgets_the_failures(anonymous: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tenora_platform.control.sessions.service.verify_password", lambda given, _: given == PASSWORD)
    for _ in range(3):
        for _ in range(MAX_ATTEMPTS - 1):
            anonymous.post(SESSION, json=credentials("wrong"))
        assert anonymous.post(SESSION, json=credentials()).status_code == 200


def test_without_redis_nobody_signs_in_and_who_is_in_stays(
    anonymous: TestClient, admin: TestClient, control: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise redis.ConnectionError("away")

    monkeypatch.setattr(redis.client.Pipeline, "execute", away)
    assert anonymous.post(SESSION, json=credentials()).status_code == 503
    assert admin.get(SESSION).status_code == 200


@pytest.mark.parametrize("method", ["post", "put", "patch", "delete"])
def test_forged_requests_are_refused(admin: TestClient, method: str) -> None:
    del admin.headers["X-Tenora-Request"]
    answer = admin.request(method, SESSION if method in ("post", "delete") else "/api/v1/tenants/x/quota", json={})
    assert answer.status_code in (403, 405)
    assert admin.get(SESSION).status_code == 200


def test_secrets_stay_out_of_logs_and_answers(anonymous: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    """AUTH-03: not when something is wrong either."""
    caplog.set_level(logging.DEBUG)
    secret = "canary-4f1b"
    texts = [
        anonymous.post(SESSION, json=credentials(secret)).text,
        anonymous.post(SESSION, json={"username": 1, "password": [secret]}).text,
        anonymous.post(SESSION, json={"username": "a", "password": secret, "extra": secret}).text,
        anonymous.post(SESSION, content=f'{{"password": "{secret}"', headers={"content-type": "application/json"}).text,
    ]
    assert secret not in "".join(texts)
    assert secret not in caplog.text
