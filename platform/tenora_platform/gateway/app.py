"""The gateway put together: `build_gateway` for a process that mounts it, `create_app` for one of its own."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Final

import redis.asyncio
import redis.exceptions
from fastapi import APIRouter, FastAPI
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from sqlalchemy.ext.asyncio import AsyncEngine
from starlette.responses import JSONResponse

from tenora_platform.db.session import make_async_engine
from tenora_platform.gateway.background import run_in_background
from tenora_platform.gateway.catalog import Catalog
from tenora_platform.gateway.directory import Directory
from tenora_platform.gateway.engines import Engines
from tenora_platform.gateway.errors import Unavailable
from tenora_platform.gateway.flow import Generations
from tenora_platform.gateway.limits.limiter import Limiter
from tenora_platform.gateway.news import follow_changes
from tenora_platform.gateway.routes import make_router
from tenora_platform.gateway.tokenizer import Tokenizers
from tenora_platform.settings import Settings
from tenora_platform.usage.shipper import Shipper
from tenora_platform.usage.spool import Spool

_REDIS_TIMEOUT_S: Final = 2.0
_REDIS_CONNECTIONS: Final = 64


@dataclass(frozen=True)
class Readiness:
    database: bool
    redis: bool
    engine: bool  # at least one answers
    background: bool  # what ships usage, hears of changes and talks to engines is running

    @property
    def ready(self) -> bool:
        return self.database and self.redis and self.engine and self.background


class Gateway:
    """Mount `router`; `start` before the first request and `stop` after the last."""

    def __init__(self, settings: Settings) -> None:
        """Raises ValueError naming the setting that is missing."""
        for name in ("database_url", "redis_url", "engines"):
            if not getattr(settings, name):
                raise ValueError(f"TENORA_{name.upper()} is not set")
        secret = settings.secret.get_secret_value().encode()
        if not secret:
            raise ValueError("TENORA_SECRET is not set")
        self._database: AsyncEngine = make_async_engine(settings.database_url)
        self._redis = _connect(settings.redis_url, socket_timeout=_REDIS_TIMEOUT_S)
        self._feed = _connect(settings.redis_url, socket_timeout=None)  # a subscriber hears nothing for long
        self._catalog = Catalog(self._database)
        self.directory = Directory(self._catalog, ttl_s=settings.key_cache_s)
        self.engines = Engines(settings.engine_urls, uuid.uuid4().hex, settings.max_pending_s, self._redis)
        self._spool = Spool(settings.spool_dir or settings.home.expanduser() / "spool")
        self._shipper = Shipper(self._spool, self._database)
        self._tasks: list[asyncio.Task[None]] = []
        self._generations = Generations(
            directory=self.directory,
            tokenizers=Tokenizers(),
            limiter=Limiter(self._redis),
            spool=self._spool,
            engines=self.engines,
            secret=secret,
        )
        self.router: APIRouter = make_router(self._generations, self.directory, settings.max_body_bytes)

    async def start(self) -> None:
        """Raises SpoolError when usage could not be recorded: then nothing may be served."""
        await self._spool.start()
        await self.engines.start()
        self._tasks = [
            run_in_background(follow_changes(self._feed, self.directory), "feed of changes"),
            run_in_background(self._shipper.run(), "shipper of usage"),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.engines.stop()
        await self._shipper.flush()
        await self._spool.stop()
        await self._feed.aclose()
        await self._redis.aclose()
        await self._database.dispose()

    async def readiness(self) -> Readiness:
        return Readiness(
            database=await self._database_answers(),
            redis=await self._redis_answers(),
            engine=bool(self.engines.statuses),
            background=self.engines.alive and not any(task.done() for task in self._tasks),
        )

    async def _database_answers(self) -> bool:
        try:
            await self._catalog.check()
        except Unavailable:
            return False
        return True

    async def _redis_answers(self) -> bool:
        try:
            await self._redis.ping()
        except (redis.exceptions.RedisError, OSError):
            return False
        return True


def _connect(url: str, *, socket_timeout: float | None) -> redis.asyncio.Redis:
    """Commands are tried twice, at once: what is sent can be repeated, and nobody should wait long for a refusal."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(
        url,
        max_connections=_REDIS_CONNECTIONS,
        timeout=_REDIS_TIMEOUT_S,
        socket_timeout=socket_timeout,
        socket_connect_timeout=_REDIS_TIMEOUT_S,
        retry=Retry(NoBackoff(), 1),
    )
    return redis.asyncio.Redis.from_pool(pool)


def build_gateway(settings: Settings) -> Gateway:
    return Gateway(settings)


def create_app(settings: Settings) -> FastAPI:
    """The gateway alone, with `/healthz` (the process lives) and `/readyz` (it can serve)."""
    gateway = build_gateway(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    app = FastAPI(title="Tenora gateway", lifespan=lifespan, docs_url=None, redoc_url=None)
    app.include_router(gateway.router)

    @app.get("/healthz", include_in_schema=False)
    async def healthz() -> JSONResponse:
        return JSONResponse({"status": "ok"})

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> JSONResponse:
        readiness = await gateway.readiness()
        body = {"ready": readiness.ready, "parts": asdict(readiness)}
        return JSONResponse(body, status_code=200 if readiness.ready else 503)

    return app
