"""The HTTP side of a request: whose key it bears, its body within bounds, and whether the client is still there."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from tenora_platform.gateway.errors import BodyTooLarge, InvalidRequest, Unauthenticated
from tenora_platform.keys import KEY_START

_BODY_WAIT_S: Final = 60.0
_KEY_PARAMETERS: Final = frozenset({"api_key", "apikey", "api-key", "key", "token", "access_token", "authorization"})
_KEY_START: Final = re.compile(KEY_START)
_Answer = TypeVar("_Answer")


class ClientGone(Exception):
    """The client closed the connection."""


def bearer_key(request: Request) -> str:
    """The key of `Authorization: Bearer ...`. Raises Unauthenticated; also for a key in the URL, which logs keep."""
    parameters = request.query_params.multi_items()
    if any(name.lower() in _KEY_PARAMETERS or _KEY_START.search(f"{name}={value}") for name, value in parameters):
        raise Unauthenticated(
            "API keys are not accepted in the URL, where they end up in logs. Revoke this one and send the next in the "
            "Authorization header."
        )
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not key:
        raise Unauthenticated("No API key provided: send 'Authorization: Bearer <key>'.", code="missing_api_key")
    return key.strip()


async def read_body(request: Request, max_bytes: int) -> bytes:
    """Raises BodyTooLarge before more than that is held, InvalidRequest when it does not come, ClientGone."""
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise BodyTooLarge(f"The body is larger than {max_bytes} bytes.")
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_WAIT_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > max_bytes:
                    raise BodyTooLarge(f"The body is larger than {max_bytes} bytes.")
    except TimeoutError as error:
        raise InvalidRequest("The body did not arrive in time.") from error
    except ClientDisconnect as error:
        raise ClientGone from error
    return bytes(body)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, _Answer]) -> _Answer:
    """The result of `work`, which is cancelled, and has ended, before this raises ClientGone. The body must be read.

    `work` runs in a task of its own that is cancelled once, so that it can still wait for things while it cleans up.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await _cancel(working)
            raise ClientGone
        return working.result()
    finally:
        watching.cancel()
        if not working.done():  # this very task was cancelled: the server is stopping
            await _cancel(working)


async def _cancel(working: asyncio.Task[Any]) -> None:
    """Cancel, and wait until it has cleaned up. Whatever it ends with, nobody is there to be told."""
    working.cancel()
    await asyncio.wait({working})
    if not working.cancelled():
        working.exception()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
