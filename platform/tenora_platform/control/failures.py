"""How failures look on the wire: `{"error": {"code", "message", "param"}}` with a fitting status, for everything."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import redis
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import OperationalError, TimeoutError
from starlette.exceptions import HTTPException

from tenora_adapters.blobs import BlobUnavailable
from tenora_platform.control.adapters.schemas import Report
from tenora_platform.control.errors import ControlError, Unavailable
from tenora_platform.control.fields import View

_log = logging.getLogger(__name__)


class FailureDetail(View):
    code: str
    message: str
    param: str | None
    report: Report | None = None


class Failure(View):
    error: FailureDetail


def install(api: FastAPI) -> None:
    api.add_exception_handler(ControlError, _control_error)
    api.add_exception_handler(RequestValidationError, _validation_error)
    api.add_exception_handler(HTTPException, _http_exception)
    for away in (OperationalError, TimeoutError, redis.RedisError, BlobUnavailable):
        api.add_exception_handler(away, _away)
    api.add_exception_handler(Exception, _bug)


def _answer(
    status: int,
    code: str,
    message: str,
    *,
    param: str | None = None,
    report: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
) -> JSONResponse:
    error: dict[str, Any] = {"code": code, "message": message, "param": param}
    if report is not None:
        error["report"] = report
    return JSONResponse({"error": error}, status_code=status, headers=headers)


def _control_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ControlError)
    return _answer(
        error.status, error.code, error.message, param=error.param, report=error.report, headers=error.headers
    )


def _validation_error(_request: Request, error: Exception) -> JSONResponse:
    """Names the first field that is wrong and the rule; never what was sent, which may be a secret."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = [str(part) for part in first["loc"] if part not in ("body", "header", "query", "path")]
    message = str(first["msg"]).removeprefix("Value error, ")
    param = ".".join(where) or None
    return _answer(400, "invalid_request", f"{param or 'body'}: {message}", param=param)


def _http_exception(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    code = {404: "not_found", 405: "method_not_allowed", 413: "too_large"}.get(status, "invalid_request")
    headers = dict(error.headers) if error.headers else None
    return _answer(status, code, f"{status.phrase}.", headers=headers)


def _away(_request: Request, error: Exception) -> JSONResponse:
    _log.error("a part behind the control API is away: %s", type(error).__name__, exc_info=error)
    return _answer(Unavailable.status, Unavailable.code, "A part of the platform is away. Try again in a moment.")


def _bug(_request: Request, error: Exception) -> JSONResponse:
    _log.error("a request to the control API failed", exc_info=error)
    return _answer(ControlError.status, ControlError.code, "Something went wrong on our side.")
