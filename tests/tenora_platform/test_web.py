"""The combined web process: who answers which path, and the UI's files."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient

from tenora_platform.web import ByPath, WebUi


def application(name: str, log: list[str]) -> Starlette:
    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        log.append(f"{name} starts")
        yield
        log.append(f"{name} stops")

    app = Starlette(lifespan=lifespan)

    async def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse(f"{name} {request.url.path}")

    app.add_route("/{path:path}", answer)
    return app


@pytest.fixture
def ui(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / "index.html").write_text("<html>ui</html>")
    (tmp_path / "favicon.svg").write_text("<svg/>")
    (tmp_path / "assets" / "app-1234.js").write_text("1")
    return tmp_path


def test_paths_find_their_application_and_lifespans_run(ui: Path) -> None:
    log: list[str] = []
    gateway, control = application("gateway", log), application("control", log)
    app = ByPath({("/v1", "/healthz"): gateway, ("/api",): control}, WebUi(ui))
    with TestClient(app) as client:
        assert client.get("/v1/models").text == "gateway /v1/models"
        assert client.get("/healthz").text == "gateway /healthz"
        assert client.get("/api/v1/tenants").text == "control /api/v1/tenants"
        assert client.get("/v1x").text == "<html>ui</html>", "a prefix ends at a slash"
        assert log == ["gateway starts", "control starts"]
    assert log[2:] == ["control stops", "gateway stops"]


def test_the_router_of_the_ui_owns_every_other_path(ui: Path) -> None:
    client = TestClient(WebUi(ui))
    for path in ("/", "/tenants", "/tenants/abc/keys"):
        answer = client.get(path)
        assert answer.text == "<html>ui</html>"
        assert answer.headers["cache-control"] == "no-cache"
        assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert client.get("/assets/app-1234.js").headers["cache-control"].endswith("immutable")
    assert client.get("/favicon.svg").text == "<svg/>"
    assert client.get("/assets/missing.js").status_code == 404
    assert client.post("/tenants").status_code == 405


def test_nothing_outside_the_folder_is_served(ui: Path) -> None:
    (ui.parent / "secret.txt").write_text("secret")
    client = TestClient(WebUi(ui))
    for path in ("/../secret.txt", "/%2e%2e/secret.txt", "/assets/..%2f..%2fsecret.txt", "//etc/passwd.x"):
        assert "secret" not in client.get(path).text
        assert client.get(path).status_code in (200, 404)


def test_without_a_built_ui_the_answer_says_how_to_build_it(tmp_path: Path) -> None:
    answer = TestClient(WebUi(tmp_path)).get("/")
    assert answer.status_code == 503
    assert "make webui" in answer.text
