"""The control plane's HTTP application.

It is one FastAPI application of its own, with its own handling of errors, mounted at `/api/v1` of whatever process
serves it: the web process of `tenora up`, or `create_app` alone.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.concurrency import run_in_threadpool

from tenora_platform.control import failures
from tenora_platform.control.access import protect_from_forgery
from tenora_platform.control.adapters.endpoints import quotas as adapter_quotas
from tenora_platform.control.adapters.endpoints import router as adapters
from tenora_platform.control.adapters.endpoints import uploads
from tenora_platform.control.audit.endpoints import router as audit
from tenora_platform.control.base_models.endpoints import router as base_models
from tenora_platform.control.engines.endpoints import router as engines
from tenora_platform.control.exports.endpoints import router as exports
from tenora_platform.control.keys.endpoints import router as keys
from tenora_platform.control.prices.endpoints import router as prices
from tenora_platform.control.quotas.endpoints import router as quotas
from tenora_platform.control.readiness import probes
from tenora_platform.control.resources import Resources, open_resources
from tenora_platform.control.routes import PREFIX
from tenora_platform.control.sessions.endpoints import router as sessions
from tenora_platform.control.tenants.endpoints import router as tenants
from tenora_platform.control.uploads.endpoints import chunks
from tenora_platform.control.uploads.endpoints import router as resumable_uploads
from tenora_platform.control.usage.endpoints import router as usage
from tenora_platform.settings import Settings

SLICES: Final = (
    sessions,
    tenants,
    keys,
    adapters,
    uploads,
    adapter_quotas,
    resumable_uploads,
    chunks,
    quotas,
    base_models,
    usage,
    exports,
    prices,
    engines,
    audit,
)


class Control:
    """The control plane of one process. `router` carries all of `/api/v1`; connections open when first needed."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self.router = APIRouter()
        self.router.mount(PREFIX, build_api(resources))

    async def stop(self) -> None:
        await run_in_threadpool(self.resources.close)


def build_control(settings: Settings) -> Control:
    """Raises BlobError on a blob URL of an unknown kind."""
    return Control(open_resources(settings))


def build_api(resources: Resources | None) -> FastAPI:
    """The application below PREFIX. Without resources it serves only to describe itself."""
    api = FastAPI(
        title="Tenora control API",
        version="1",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        dependencies=[Depends(protect_from_forgery)],
        responses={"default": {"model": failures.Failure, "description": "What went wrong."}},
    )
    api.state.resources = resources
    failures.install(api)
    for slice_router in SLICES:
        api.include_router(slice_router)
    api.openapi = lambda: describe(api)  # type: ignore[method-assign]
    return api


def describe(api: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with paths as a client sends them."""
    document = get_openapi(title=api.title, version=api.version, routes=api.routes)
    document["paths"] = {PREFIX + path: item for path, item in document["paths"].items()}
    return document


def create_app(settings: Settings) -> FastAPI:
    """The control plane as a process of its own, with /healthz and /readyz."""
    control = build_control(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        try:
            yield
        finally:
            await control.stop()

    app = FastAPI(title="Tenora control plane", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(control.router)
    app.include_router(probes(control.resources))
    logging.getLogger(__name__).info("control plane built")
    return app
