"""Where the control API lies, and its route class: bodies are bounded before anybody is asked who they are."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Message, Receive

PREFIX: Final = "/api/v1"  # where the control API is mounted, whatever process serves it
MAX_BODY_BYTES: Final = 1 << 20


class ControlRoute(APIRoute):
    """FastAPI reads a body whole before it asks the dependencies; here, at most MAX_BODY_BYTES of it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def bounded(request: Request) -> Response:
            return await handle(Request(request.scope, _counting(request.receive)))

        return bounded


def _counting(receive: Receive) -> Receive:
    received = 0

    async def counted() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            raise HTTPException(status_code=413)
        return message

    return counted
