"""What a request to the control API can end in, other than success.

    ControlError                  status, code, message, param
    +-- InvalidRequest      400   the caller sent something that cannot be; `param` names it
    |   +-- Rejected        400   an upload that was refused; carries a report for a person to act on
    +-- Unauthenticated     401   no session, or one that has ended
    +-- Forbidden           403   the role does not allow it, or the CSRF header is missing
    +-- NotFound            404   no such object *for this caller*: another tenant's ids look exactly like none
    +-- Timeout             408   an upload that took too long
    +-- Conflict            409   it clashes with what is there
    |   +-- QuotaExceeded   409   what is stored already leaves no room; `param` names the limit
    +-- TooLarge            413
    +-- TooManyRequests     429   `retry_after` seconds
    +-- Unavailable         503   a part behind the API is away; worth another try

Anything else is a bug and answers 500 without saying more.
"""

from __future__ import annotations

from typing import Any


class ControlError(Exception):
    status = 500
    code = "internal_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or type(self).code
        self.param = param
        self.headers: dict[str, str] = {}
        self.report: dict[str, Any] | None = None


class InvalidRequest(ControlError):
    status = 400
    code = "invalid_request"


class Rejected(InvalidRequest):
    code = "rejected"

    def __init__(self, message: str, *, code: str, param: str | None, report: dict[str, Any]) -> None:
        super().__init__(message, code=code, param=param)
        self.report = report  # adapters.schemas.Report as JSON


class Unauthenticated(ControlError):
    status = 401
    code = "unauthenticated"


class Forbidden(ControlError):
    status = 403
    code = "forbidden"


class NotFound(ControlError):
    status = 404
    code = "not_found"

    def __init__(self, what: str) -> None:
        super().__init__(f"No such {what}.")


class Timeout(ControlError):
    status = 408
    code = "timeout"


class Conflict(ControlError):
    status = 409
    code = "conflict"


class QuotaExceeded(Conflict):
    code = "quota_exceeded"


class TooLarge(ControlError):
    status = 413
    code = "too_large"


class TooManyRequests(ControlError):
    status = 429
    code = "too_many_requests"

    def __init__(self, message: str, *, retry_after: int, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.headers["Retry-After"] = str(retry_after)


class Unavailable(ControlError):
    status = 503
    code = "unavailable"
