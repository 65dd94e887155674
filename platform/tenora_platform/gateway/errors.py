"""Everything the gateway tells a client that it cannot have, branched by what the client can do about it.

    GatewayError
    +-- InvalidRequest     400  change the request
    |   +-- ContextTooLong 400  ... make it shorter
    |   +-- BodyTooLarge   413
    |   +-- HeadTooLarge   431
    +-- Unauthenticated    401  present a valid key
    +-- ModelNotFound      404  ask for a model that this key may use
    +-- NoSuchRoute        404
    +-- RateLimited        429  wait for `retry_after_s`; for ever when it is None
    +-- Overloaded         429  wait, every engine's queue is full
    +-- Unavailable        503  wait, a part of the platform is away
    +-- GenerationFailed   500  the engine failed on this request; another try may work

On the wire each is OpenAI's `{"error": {"message", "type", "param", "code"}}`.
"""

from __future__ import annotations

import math
from typing import ClassVar

import msgspec


class ErrorBody(msgspec.Struct, frozen=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    error: ErrorBody


class GatewayError(Exception):
    """Base of the tree. `message` is safe to show to the client."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code or self.default_code
        self.retry_after_s = retry_after_s
        self.extra_headers = headers or {}

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(ErrorEnvelope(ErrorBody(self.message, self.kind, self.param, self.code)))

    @property
    def headers(self) -> dict[str, str]:
        """`retry-after` in whole seconds, rounded up as HTTP wants it; `retry-after-ms` is exact."""
        if self.retry_after_s is None:
            return dict(self.extra_headers)
        return {
            **self.extra_headers,
            "retry-after": str(max(1, math.ceil(self.retry_after_s))),
            "retry-after-ms": str(max(1, math.ceil(self.retry_after_s * 1000))),
        }


class InvalidRequest(GatewayError):
    status = 400
    kind = "invalid_request_error"


class ContextTooLong(InvalidRequest):
    default_code = "context_length_exceeded"


class BodyTooLarge(InvalidRequest):
    status = 413
    default_code = "request_too_large"


class HeadTooLarge(InvalidRequest):
    status = 431
    default_code = "request_headers_too_large"


class Unauthenticated(GatewayError):
    status = 401
    kind = "authentication_error"
    default_code = "invalid_api_key"

    @property
    def headers(self) -> dict[str, str]:
        return {**super().headers, "www-authenticate": "Bearer"}


class ModelNotFound(GatewayError):
    """One text for what does not exist and for what belongs to somebody else."""

    status = 404
    kind = "invalid_request_error"
    default_code = "model_not_found"

    def __init__(self, name: str, param: str = "model") -> None:
        super().__init__(f"The model {_shortened(name)!r} does not exist or you have no access to it.", param=param)


class NoSuchRoute(GatewayError):
    status = 404
    kind = "invalid_request_error"
    default_code = "unknown_url"


class RateLimited(GatewayError):
    """`unit` says what ran out, "requests" or "tokens", and stands as the error's `type`, as OpenAI does it."""

    status = 429
    default_code = "rate_limit_exceeded"

    def __init__(self, message: str, *, unit: str, retry_after_s: float | None, headers: dict[str, str]) -> None:
        if retry_after_s is None:
            headers = {**headers, "x-should-retry": "false"}
        super().__init__(message, retry_after_s=retry_after_s, headers=headers)
        self.unit = unit

    @property
    def body(self) -> bytes:
        return msgspec.json.encode(ErrorEnvelope(ErrorBody(self.message, self.unit, None, self.code)))


class Overloaded(GatewayError):
    status = 429
    kind = "overloaded_error"
    default_code = "overloaded"


class Unavailable(GatewayError):
    status = 503
    default_code = "service_unavailable"


class GenerationFailed(GatewayError):
    default_code = "generation_failed"


def _shortened(text: str, length: int = 200) -> str:
    return text if len(text) <= length else text[:length] + "..."
