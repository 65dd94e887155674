"""Probes of a control plane that runs as a process of its own."""

from __future__ import annotations

import redis
from fastapi import APIRouter
from fastapi.responses import JSONResponse
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from tenora_platform.control.resources import Resources


def probes(resources: Resources) -> APIRouter:
    """`/healthz`: the process lives. `/readyz`: its database and Redis answer."""
    router = APIRouter()

    @router.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @router.get("/readyz")
    def readyz() -> JSONResponse:
        parts = {"database": _database_answers(resources), "redis": _redis_answers(resources)}
        status = 200 if all(parts.values()) else 503
        return JSONResponse({name: "ok" if up else "away" for name, up in parts.items()}, status_code=status)

    return router


def _database_answers(resources: Resources) -> bool:
    try:
        with resources.engine.connect() as connection:
            connection.execute(text("SELECT 1"))
    except SQLAlchemyError:
        return False
    return True


def _redis_answers(resources: Resources) -> bool:
    try:
        return bool(resources.redis.ping())
    except redis.RedisError:
        return False
