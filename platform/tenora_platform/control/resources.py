"""What the control plane's processes hold open: database, Redis, blobs, and a way to send jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import redis
from celery import Celery
from sqlalchemy import Engine
from sqlalchemy.orm import sessionmaker

from tenora_adapters.blobs import BlobStore, open_store
from tenora_platform.control.queue import make_queue
from tenora_platform.db.session import ScopedSession, make_engine, session_factory
from tenora_platform.settings import Settings


@dataclass(frozen=True)
class Resources:
    settings: Settings
    engine: Engine
    sessions: sessionmaker[ScopedSession]
    redis: redis.Redis
    blobs: BlobStore
    queue: Celery

    def close(self) -> None:
        self.engine.dispose()
        self.redis.close()
        self.queue.close()


def open_resources(settings: Settings) -> Resources:
    """Nothing connects before it is first used. Raises BlobError on a blob URL of an unknown kind."""
    engine = make_engine(settings.database_url)
    timeouts: dict[str, Any] = {"socket_timeout": 5.0, "socket_connect_timeout": 2.0}
    return Resources(
        settings=settings,
        engine=engine,
        sessions=session_factory(engine),
        redis=redis.Redis.from_url(settings.redis_url, **timeouts),
        blobs=open_store(settings.blob_url),
        queue=make_queue(settings),
    )
