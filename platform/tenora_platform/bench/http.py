"""HTTP/1.1 for a load generator: one connection carries one request at a time, and says when each piece arrived.

A general client spends more on a small chunk than a small model on a token; here a chunk costs tens of microseconds.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast
from urllib.parse import urlsplit

import httptools

_REUSE_WITHIN_S: Final = (
    2.0  # servers close idle connections after some seconds; a race with that is no failure of theirs
)
OnBody = Callable[[bytes, float], None]  # (bytes, the instant at which they arrived)


@dataclass(frozen=True)
class Address:
    host: str
    port: int
    authority: str  # as the Host header has it
    path: str  # what the URL adds before the endpoint's own path
    tls: ssl.SSLContext | None

    @classmethod
    def of(cls, url: str) -> Address:
        """Raises ValueError for anything but an http or https URL."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is no http or https URL")
        tls = ssl.create_default_context() if parts.scheme == "https" else None
        authority = parts.netloc.rpartition("@")[2]
        return cls(parts.hostname, parts.port or (443 if tls else 80), authority, parts.path.rstrip("/"), tls)


class Connection(asyncio.Protocol):
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._ended: asyncio.Future[int] | None = None
        self._on_body: OnBody = _ignore
        self._arrived = 0.0
        self._has_frame = False  # the body says itself where it ends
        self._num_answers = 0
        self.idle_since = clock()
        self.reusable = True

    async def post(self, message: bytes, on_body: OnBody) -> int:
        """Send a whole request; the status, when the answer has ended. `on_body` may raise to give the answer up.

        Raises OSError, httptools.HttpParserError, and what `on_body` raised. Afterwards, or when this was cancelled,
        `reusable` says whether the connection can carry another request.
        """
        assert self._transport is not None, "an open connection"
        assert self._ended is None, "one request at a time"
        self._parser = httptools.HttpResponseParser(self)
        self._ended = asyncio.get_running_loop().create_future()
        self._on_body, self._has_frame, self._arrived = on_body, False, 0.0
        self.reusable = False  # until the answer has ended, and says so
        try:
            self._transport.write(message)
            return await self._ended
        finally:
            self._ended, self._on_body = None, _ignore
            self.idle_since = self._clock()
            if not self.reusable:
                self.close()

    @property
    def status(self) -> int:
        """Of the answer that is coming in."""
        assert self._parser is not None
        return int(self._parser.get_status_code())

    @property
    def was_stale(self) -> bool:
        """It has carried an answer, and nothing came for the last request: its server was closing it already."""
        return self._num_answers > 0 and not self._arrived

    def close(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it

    def data_received(self, data: bytes) -> None:
        self._arrived = self._clock()
        if self._parser is None:
            self.close()  # nobody asked
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            self._fail(error.__context__ or error)  # what `on_body` raised
        except httptools.HttpParserError as error:
            self._fail(error)

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        if error is None and self._arrived and not self._has_frame and self._ended is not None and self.status:
            self._end(reusable=False)  # a body without length ends with its connection
        else:
            self._fail(error or ConnectionResetError("the server closed the connection"))

    # httptools

    def on_message_begin(self) -> None: ...

    def on_header(self, name: bytes, _value: bytes) -> None:
        self._has_frame = self._has_frame or name.lower() in (b"content-length", b"transfer-encoding")

    def on_body(self, body: bytes) -> None:
        self._on_body(body, self._arrived)

    def on_message_complete(self) -> None:
        assert self._parser is not None
        self._end(reusable=self._parser.should_keep_alive())

    def _end(self, *, reusable: bool) -> None:
        if self._ended is not None and not self._ended.done():
            self.reusable = reusable
            self._num_answers += 1
            self._ended.set_result(self.status)

    def _fail(self, error: BaseException) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)


class Pool:
    """Connections to one address, opened when none is free and kept for a little while."""

    def __init__(self, address: Address, clock: Callable[[], float]) -> None:
        self._address = address
        self._clock = clock
        self._free: list[Connection] = []

    async def take(self) -> Connection:
        """Raises OSError (ssl.SSLError among them)."""
        while self._free:
            connection = self._free.pop()  # the one that was idle for the shortest time
            if connection.reusable and self._clock() - connection.idle_since < _REUSE_WITHIN_S:
                return connection
            connection.close()
        address = self._address
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection(self._clock), address.host, address.port, ssl=address.tls
        )
        return connection

    def give_back(self, connection: Connection) -> None:
        if connection.reusable:
            self._free.append(connection)

    def close(self) -> None:
        for connection in self._free:
            connection.close()
        self._free.clear()


def _ignore(_body: bytes, _arrived: float) -> None: ...
