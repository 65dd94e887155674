"""The shape of the API: failures, bounds, pages, and the document that describes it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError

from tenora_platform.control.app import Control, create_app
from tenora_platform.control.resources import Resources
from tenora_platform.control.routes import MAX_BODY_BYTES
from tenora_platform.control.tenants import service as tenants
from tenora_platform.settings import Settings

TENANTS = "/api/v1/tenants"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/api/v1/nope", 404, "not_found"),
        ("GET", "/api/v1/", 404, "not_found"),
        ("GET", "/api/v1/tenants/", 404, "not_found"),
        ("PUT", "/api/v1/tenants", 405, "method_not_allowed"),
        ("GET", "/api/v1/tenants/zz", 400, "invalid_request"),
        ("GET", "/api/v1/tenants?limit=0", 400, "invalid_request"),
        ("GET", "/api/v1/tenants?cursor=!!", 400, "invalid_request"),
        ("GET", "/api/v1/tenants?cursor=WyIyMDI2LTAxLTAxVDAwOjAwOjAwWiIsNV0", 400, "invalid_request"),
        ("POST", "/api/v1/tenants", 400, "invalid_request"),
    ],
)
def test_every_failure_has_one_shape(admin: TestClient, method: str, path: str, status: int, code: str) -> None:
    answer = admin.request(method, path)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    assert answer.json()["error"]["code"] == code
    assert set(answer.json()["error"]) == {"code", "message", "param"}


def test_a_bug_says_nothing_about_itself(admin: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("SELECT secret FROM users")

    monkeypatch.setattr(tenants, "list_tenants", broken)
    answer = admin.get(TENANTS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "SELECT" not in answer.text


def test_a_database_that_is_away_is_not_a_bug(admin: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise OperationalError("SELECT 1", {}, Exception("connection refused"))

    monkeypatch.setattr(tenants, "list_tenants", away)
    answer = admin.get(TENANTS)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "unavailable")


@pytest.mark.parametrize(
    "body",
    [
        b"{" + b" " * MAX_BODY_BYTES,
        b"[" * 100_000,
        b'{"name": "a"',
        b"\xff\xfe",
        b'{"name": "a\\u0000b"}',
        b'{"name": NaN}',
        b"null",
    ],
    ids=["long", "deep", "cut", "binary", "nul", "nan", "null"],
)
def test_hostile_bodies(admin: TestClient, body: bytes) -> None:
    answer = admin.post(TENANTS, content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 413), answer.text
    assert set(answer.json()["error"]) == {"code", "message", "param"}


def test_a_failed_request_leaves_nothing_behind(
    admin: TestClient, resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request is one transaction: what came before the failure is gone, the news too."""
    view = tenants.view

    def broken(tenant: Any) -> Any:
        if tenant.name == "second":
            raise RuntimeError("after the insert")
        return view(tenant)

    monkeypatch.setattr(tenants, "view", broken)
    assert admin.post(TENANTS, json={"name": "first"}).status_code == 201
    assert admin.post(TENANTS, json={"name": "second"}).status_code == 500
    assert [item["name"] for item in admin.get(TENANTS).json()["items"]] == ["first"]
    assert [item["action"] for item in admin.get("/api/v1/audit").json()["items"]] == ["tenant.create"]


def test_pages_hold_every_row_once(admin: TestClient, make_tenant: Callable[..., object]) -> None:
    names = [f"t{number}" for number in range(7)]
    for name in names:
        make_tenant(name)
    seen: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        query = {"limit": "3"} | ({"cursor": cursor} if cursor else {})
        page = admin.get(TENANTS, params=query).json()
        seen += [item["name"] for item in page["items"]]
        assert len(page["items"]) <= 3
        cursor = page["next"]
        make_tenant(f"later-{len(seen)}")  # shifts nothing
    assert seen == names[::-1]


def test_the_document_is_complete() -> None:
    """The web UI's client is generated from it."""
    printed = subprocess.run(
        [sys.executable, "-m", "tenora_platform.control.openapi"], capture_output=True, check=True, text=True
    )
    document = json.loads(printed.stdout)
    names = []
    for path, item in document["paths"].items():
        assert path.startswith("/api/v1/")
        for operation in item.values():
            names.append(operation["operationId"])
            success = [answer for status, answer in operation["responses"].items() if status.startswith("2")]
            assert all("content" in answer or "204" in operation["responses"] for answer in success), path
            assert operation["responses"]["default"]["content"]["application/json"]["schema"]["$ref"].endswith(
                "/Failure"
            )
    assert len(names) == len(set(names))


def test_alone_as_a_process(control_settings: Settings) -> None:
    with TestClient(create_app(control_settings)) as client:
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").json() == {"database": "ok", "redis": "ok"}
        assert client.get("/api/v1/session").status_code == 401
    away = control_settings.model_copy(update={"redis_url": "redis://127.0.0.1:1/0"})
    with TestClient(create_app(away)) as client:
        answer = client.get("/readyz")
        assert (answer.status_code, answer.json()) == (503, {"database": "ok", "redis": "away"})


def test_beside_other_routes(control: Control) -> None:
    """The web process serves more than this API: its failures stay its own."""
    app = FastAPI()
    app.include_router(control.router)

    @app.get("/elsewhere")
    def elsewhere() -> str:
        return "here"

    client = TestClient(app)
    assert client.get("/elsewhere").json() == "here"
    assert client.get("/nope").json() == {"detail": "Not Found"}
    assert client.get("/api/v1/nope").json()["error"]["code"] == "not_found"
