"""How uvicorn has to serve the gateway: bounded request heads, patient keep-alive, and no secrets in its logs.

uvicorn.run(app, **uvicorn_options())
"""

from __future__ import annotations

import copy
import logging
import re
from typing import Any, Final

from uvicorn.config import LOGGING_CONFIG
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tenora_platform.gateway.errors import HeadTooLarge
from tenora_platform.keys import KEY_START

MAX_HEAD_BYTES: Final = 64 * 1024  # request line and headers
MAX_HEADERS: Final = 200
KEEP_ALIVE_S: Final = 75  # longer than clients keep idle connections: they close first and never meet a reset
GRACE_S: Final = 10  # what still streams then is ended, and settled
_KEY: Final = re.compile(rf"({KEY_START})[A-Za-z0-9_%-]+")
_QUERY: Final = re.compile(r"\?\S*")


def uvicorn_options() -> dict[str, Any]:
    """Keyword arguments for `uvicorn.run` or `uvicorn.Config`."""
    logging_config = copy.deepcopy(LOGGING_CONFIG)
    logging_config["filters"] = {"redact": {"()": "tenora_platform.gateway.server.Redact"}}
    for handler in logging_config["handlers"].values():
        handler["filters"] = ["redact"]
    return {
        "http": BoundedHeads,
        "ws": "none",  # nothing here speaks it: an upgrade is answered as the plain request that it also is
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_graceful_shutdown": GRACE_S,
        "server_header": False,
        "log_config": logging_config,
    }


class Redact(logging.Filter):
    """Takes query strings and the secret part of keys out of every record."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = _KEY.sub(r"\1[redacted]", _QUERY.sub("?[redacted]", record.getMessage()))
        record.args = ()
        return True


class BoundedHeads(HttpToolsProtocol):
    """Answers 431, and closes, when a request's head grows past its bounds, instead of collecting it."""

    _head_bytes = 0
    _in_head = True

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse()

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._refuse()

    def on_headers_complete(self) -> None:
        self._in_head = False
        head_bytes = sum(len(name) + len(value) for name, value in self.headers) + len(self.url)
        if not self.transport.is_closing() and head_bytes > MAX_HEAD_BYTES:
            self._refuse()
        if not self.transport.is_closing():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self.cycle is not None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self.cycle is not None:
            super().on_message_complete()
        self._in_head = True
        self._head_bytes = 0

    def _refuse(self) -> None:
        if self.transport.is_closing():
            return
        body = HeadTooLarge("The request's headers are too large.").body
        self.transport.write(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-type: application/json\r\n"
            b"content-length: %d\r\nconnection: close\r\n\r\n%s" % (len(body), body)
        )
        self.transport.close()
