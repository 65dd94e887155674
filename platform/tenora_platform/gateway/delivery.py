"""Sends what the flow yields: as one body, or as server-sent events at the client's own pace.

The next event is made once the socket has taken the last one, so a slow client holds up nothing but itself. In
both forms a client that goes away ends the flow at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from tenora_platform.gateway.answer import Piece
from tenora_platform.gateway.edge import ClientGone, unless_gone
from tenora_platform.gateway.errors import GatewayError, GenerationFailed
from tenora_platform.gateway.flow import Closed, Event, Opened
from tenora_platform.gateway.wording import DONE

_STALLED_S: Final = 120.0  # a client that takes nothing for so long has gone, whatever its socket says
CLIENT_CLOSED_REQUEST: Final = 499
_JSON: Final = "application/json"
_log = logging.getLogger(__name__)


async def deliver(request: Request, events: AsyncGenerator[Event, None]) -> Response:
    """Answer with what `events` yields. The request's body must be read.

    Raises ClientGone, and GatewayError for what ends it before the first output (or, not streamed, at all).
    """
    opened = await unless_gone(request.receive, _first(events))
    if opened.stream:
        return EventStream(opened, events)
    return await unless_gone(request.receive, _whole(opened, events))


def error_response(error: GatewayError) -> Response:
    return Response(error.body, status_code=error.status, media_type=_JSON, headers=error.headers)


async def _first(events: AsyncGenerator[Event, None]) -> Opened:
    opened = await anext(events)
    assert isinstance(opened, Opened)
    return opened


async def _whole(opened: Opened, events: AsyncGenerator[Event, None]) -> Response:
    pieces: list[Piece] = []
    async with aclosing(events):
        async for event in events:
            match event:
                case Piece():
                    pieces.append(event)
                case Closed(charged):
                    body = opened.voice.whole(pieces, charged)
                    return Response(body, media_type=_JSON, headers=opened.headers)
    raise AssertionError("the flow ends with Closed")


class EventStream(Response):
    """A response whose body is the rest of `events`. It ends them, and with them the engine's work, in any case."""

    media_type = "text/event-stream"

    def __init__(self, opened: Opened, events: AsyncGenerator[Event, None]) -> None:
        headers = {**opened.headers, "cache-control": "no-cache", "x-accel-buffering": "no"}
        super().__init__(status_code=200, headers=headers)
        del self.headers["content-length"]
        self._opened = opened
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_gone(receive, self._send_all(send))
        except (ClientGone, TimeoutError):
            _log.info("a client left its stream")

    async def _send_all(self, send: Send) -> None:
        async with aclosing(self._events):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            try:
                async for event in self._events:
                    for data in self._worded(event):
                        async with asyncio.timeout(_STALLED_S):
                            await send({"type": "http.response.body", "body": data, "more_body": True})
            except GatewayError as error:
                await send(_error_event(error))
            except TimeoutError:
                raise
            except Exception:  # noqa: BLE001  # logged, and told as an event
                _log.exception("a stream failed")
                await send(_error_event(GenerationFailed("The server failed on this request.")))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _worded(self, event: Event) -> list[bytes]:
        match event:
            case Piece():
                chunk = self._opened.voice.chunk(event)
                return [] if chunk is None else [chunk]
            case Closed(charged):
                return [self._opened.voice.usage_chunk(charged), DONE] if self._opened.include_usage else [DONE]
        raise AssertionError(event)


def _error_event(error: GatewayError) -> Message:
    return {"type": "http.response.body", "body": b"data: " + error.body + b"\n\n", "more_body": True}
