"""The web processes as uvicorn factories: gateway alone, control plane (with the UI) alone, or both in one process.

Each side stays the application that it is on its own, with its own error shape and limits; here requests are only
told apart by path.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from tenora_platform.settings import settings

UI_FOLDER: Final = Path(__file__).parent / "webui"
_GATEWAY_PATHS: Final = ("/v1", "/healthz", "/readyz")
_CONTROL_PATHS: Final = ("/api",)
_UI_HEADERS: Final = {
    "content-security-policy": "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


def create_app() -> ASGIApp:
    """Gateway, control API and web UI in one process."""
    from tenora_platform.control.app import create_app as control
    from tenora_platform.gateway.app import create_app as gateway

    config = settings()
    return _spared(ByPath({_GATEWAY_PATHS: gateway(config), _CONTROL_PATHS: control(config)}, WebUi(UI_FOLDER)))


def create_gateway_app() -> ASGIApp:
    from tenora_platform.gateway.app import create_app as gateway

    return _spared(gateway(settings()))


def create_control_app() -> ASGIApp:
    """Control API and web UI."""
    from tenora_platform.control.app import create_app as control

    return _spared(ByPath({(*_CONTROL_PATHS, "/healthz", "/readyz"): control(settings())}, WebUi(UI_FOLDER)))


def _spared(application: ASGIApp) -> ASGIApp:
    """What is there before the first request lives as long as the process: no collection of garbage is to look at it
    again, as that would hold up every stream."""
    gc.collect()
    gc.freeze()
    return application


class ByPath:
    """Hands each request to the first application one of whose path prefixes it has, else to `otherwise`."""

    def __init__(self, applications: dict[tuple[str, ...], Starlette], otherwise: ASGIApp) -> None:
        self._applications = applications
        self._otherwise = otherwise
        self._lifespan = Starlette(lifespan=self._run_all)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        else:
            await self._application(scope["path"])(scope, receive, send)

    def _application(self, path: str) -> ASGIApp:
        for prefixes, application in self._applications.items():
            if any(path == prefix or path.startswith(f"{prefix}/") for prefix in prefixes):
                return application
        return self._otherwise

    @asynccontextmanager
    async def _run_all(self, _app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for application in self._applications.values():
                await stack.enter_async_context(application.router.lifespan_context(application))
            yield


class WebUi:
    """The built single-page application: its files, and index.html for every path that its router owns."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files = StaticFiles(directory=folder, check_dir=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._respond(scope)
        await response(scope, receive, send)

    async def _respond(self, scope: Scope) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("method not allowed\n", status_code=405)
        if not (self._folder / "index.html").is_file():
            return PlainTextResponse(
                "The web UI is not built; the APIs work without it (/v1 and /api/v1).\n"
                "Build it with: make webui    (it needs Node, which `make webui` installs)\n",
                status_code=503,
            )
        path = scope["path"].lstrip("/")
        asset = path.startswith("assets/")
        name = path if asset or (path and "." in path) else "index.html"
        try:
            response = await self._files.get_response(name, scope)
        except HTTPException as error:
            return PlainTextResponse(f"{error.detail}\n", status_code=error.status_code)
        response.headers.update(_UI_HEADERS)
        response.headers["cache-control"] = "public, max-age=31536000, immutable" if asset else "no-cache"
        return response
